// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Requests with random arguments, of which sequence_model.c knows the results.
 */
#include <stdarg.h>
#include "sequences.h"

#define PICK(array) ((array)[any(sizeof(array) / sizeof((array)[0]))])

/* Prints the request, if this is wanted, and checks its result. */
__attribute__((format(printf, 4, 5))) static int
expect(const struct tracee *tracee, long result, int expected, const char *format, ...)
{
	const int error = result == -1 ? errno : 0;
	char text[128];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	__atomic_add_fetch(&shared->requests, 1, __ATOMIC_RELAXED);
	if (verbose)
		printf("# tracer %u, tracee %td: %s: %ld, errno %d\n", self, tracee - tracees, text,
		       result, error);
	if (expected != UNKNOWN && error != expected)
		FAIL("%s: errno %d instead of %d", text, error, expected);
	if (expected == UNKNOWN && error && error != ENOMEM && error != EBUSY && error != EINVAL)
		FAIL("%s: errno %d", text, error);
	return 0;
}

/* Counts what was owed in records that have been received. */
static int receive(struct tracee *tracee, const struct record *r, long n)
{
	const unsigned long found = count(r, n, loop_a_branch, loop_a_head);

	if (tracee->exact && found > tracee->owed)
		FAIL("%lu branches instead of %lu at most", found, tracee->owed);
	tracee->owed -= found;
	tracee->records -= n;
	if (tracee->records)
		return 0;
	/* Nothing is left. A tracee in the middle of its work goes on to make branches. */
	if (tracee->exact && tracee->owed)
		FAIL("%lu branches are missing", tracee->owed);
	tracee->exact = true;
	tracee->owed = 0;
	return 0;
}

int request_drain(struct tracee *tracee)
{
	const int request = any(3) ? DRAIN : DRAIN_RUNNING;
	const bool running = request == DRAIN_RUNNING;
	const bool bad = !any(8);
	const unsigned long room = any(3) ? ROOM : any(400);
	int error = running ? drain_running_error(tracee) : tracee->nr ? 0 : ENXIO;
	struct record one;
	long n = tracee->records, index = 0, at = -1;

	/* Without a virtual buffer, DRAIN takes no size. */
	if ((running || tracee->virtual_nr) && n > (long)room)
		n = room;
	if (!error && bad && n)
		error = EFAULT;
	if (!error && n == tracee->records && n) {
		index = any(n);
		at = bts(GET, tracee->pid, &one, index);
		CHECK(at == sizeof(one));
	}
	if (n > ROOM)
		return 0;
	TRY(expect(tracee, at = bts(request, tracee->pid, bad ? (void *)8 : records, room), error,
		   "%s of %lu%s", running ? "DRAIN_RUNNING" : "DRAIN", room, bad ? " to 8" : ""));
	if (at < 0)
		return 0;
	if (at != n)
		FAIL("%ld records instead of %ld", at, n);
	if (n && n == tracee->records && memcmp(&one, &records[n - 1 - index], sizeof(one)))
		FAIL("GET of %ld is another record than that of DRAIN", index);
	TRY(receive(tracee, records, n));
	if (!running && !tracee->records)
		tracee->paused = false;
	/* Whether there is room again, STATUS tells. */
	if (!running && tracee->records)
		tracee->paused = flags_of(tracee->pid) & O_PAUSED;
	return 0;
}

int request_config(struct tracee *tracee)
{
	static const unsigned long sizes[] = { 1, 24, 4000, RECORDS(63), RECORDS(64), RECORDS(200),
					       4096, RECORDS(3000), RECORDS(KERNEL_MIN), 120000,
					       TOO_LARGE };
	static const unsigned long more[] = { 0, 1, 2, 3, 8, 1025, 24, 100000, 200000, 400000,
					      TOO_LARGE };
	static const unsigned long signals[] = { 0, 0, SIGUSR1, 64, 65, SIGKILL, SIGSTOP };
	static const unsigned long data[] = { 0, 0, 24, 24, 16, 8 };
	static const struct config valid[] = {
		{ RECORDS(300), 0, 0 },
		{ 120000, 0, 0 },
		{ RECORDS(64), O_SIGNAL, 0 },
		{ RECORDS(1000), O_SIGNAL | O_SCHED, 0 },
		{ RECORDS(170), O_VIRTUAL, 100000 },
		{ RECORDS(200), O_VIRTUAL | O_SIGNAL, 20000 },
		{ RECORDS(KERNEL_MIN), O_VIRTUAL | O_KERNEL, 400000 },
		{ RECORDS(KERNEL_MIN), O_VIRTUAL | O_KERNEL | O_SIGNAL, 400000 },
		{ RECORDS(300), O_MAPPED | O_SIGNAL, 3 },
		{ RECORDS(100), O_MAPPED | O_SIGNAL | O_SCHED, 8 },
	};
	const bool usual = any(3);
	struct config cfg = { PICK(sizes), 0, PICK(more) };
	unsigned long size = PICK(data);
	int error;
	long result;

	if (usual)
		cfg = PICK(valid);
	/* Often the buffers that there are */
	if (tracee->nr && any(2)) {
		cfg.size = RECORDS(tracee->nr);
		cfg.flags = tracee->flags & (O_VIRTUAL | O_MAPPED | (any(2) ? O_KERNEL : 0) |
					     (usual ? O_SIGNAL : 0));
		cfg.virtual_size = tracee->segments ? tracee->segments :
						      RECORDS(tracee->virtual_nr);
	}
	if (any(8))
		cfg.flags |= O_TRACE;
	for (unsigned long flag = O_SCHED; flag <= O_LOST; flag <<= 1)
		if (!any(usual ? 30 : 4))
			cfg.flags |= flag;
	if (!any(4))
		cfg.flags |= O_NSECS;
	if (!usual && !any(6))
		cfg.flags |= O_MAPPED | O_SIGNAL;
	if (!any(usual && !(cfg.flags & O_SIGNAL) ? 30 : 4))
		cfg.flags |= PICK(signals) << 8;
	if (!any(30))
		cfg.flags |= 1ul << (18 + any(14));
	if (!any(12))
		cfg = (struct config){ 0 };
	/* A caller of two words has no third one. */
	if (size == 16 && cfg.flags & (O_VIRTUAL | O_MAPPED))
		cfg.virtual_size = 0;
	error = config_error(tracee, &cfg, size);
	result = bts(CONFIG, tracee->pid, &cfg, size);
	TRY(expect(tracee, result, error, "CONFIG {%#lx, %#lx, %#lx}, %lu", cfg.size, cfg.flags,
		   cfg.virtual_size, size));
	return result ? 0 : apply_config(tracee, &cfg);
}

int request_take(struct tracee *tracee)
{
	const bool running = any(2), bad = !any(8);
	const unsigned long back = any(3) ? tracee->taken : any(4);
	const unsigned long size = tracee->segments ?
		tracee->buffer_pages / tracee->segments * 4096 : 0;
	int error = take_error(tracee, back, running);
	uint64_t offset = ~0ull;
	long n;

	/* The address is checked before the segments are counted. */
	if (bad && (!error || error == ENOBUFS))
		error = EFAULT;
	n = bts(running ? TAKE_RUNNING : TAKE, tracee->pid, bad ? (void *)8 : &offset, back);
	TRY(expect(tracee, n, error, "%s of %lu%s", running ? "TAKE_RUNNING" : "TAKE", back,
		   bad ? " to 8" : ""));
	if (n < 0)
		return 0;
	if (n != tracee->records || offset != tracee->segment * size)
		FAIL("%ld records at %" PRIu64 " instead of %ld at %lu", n, offset, tracee->records,
		     tracee->segment * size);
	tracee->taken -= back;
	if (!running)
		tracee->paused = false;
	if (!n)
		return 0;
	for (long i = 0; tracee->map && i < n; i++) {
		const uint64_t *r = (const uint64_t *)(tracee->map + offset) + 3 * i;

		records[i] = (struct record){ r[2] & 1ull << 63 ? ARRIVES : BRANCH, r[0], r[1] };
	}
	tracee->taken++;
	tracee->segment = (tracee->segment + 1) % tracee->segments;
	if (tracee->map)
		return receive(tracee, records, n);
	tracee->records = tracee->owed = 0;
	tracee->exact = true;
	return 0;
}

int request_map(struct tracee *tracee)
{
	const int error = !tracee->nr ? ENXIO : !tracee->segments ? EINVAL : 0;
	int fd = bts(MAP, tracee->pid, NULL, 0);

	TRY(expect(tracee, fd, error, "MAP"));
	if (fd < 0)
		return 0;
	unmap_segments(tracee);
	tracee->map_pages = tracee->buffer_pages;
	tracee->map = mmap(NULL, tracee->map_pages * 4096, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(tracee->map != MAP_FAILED && !close(fd));
	return 0;
}

int request_other(struct tracee *tracee)
{
	const unsigned long index = any(2) ? any(400) : any(~0ul);
	const pid_t other = shared->pids[(self + 1) % TRACERS][any(TRACEES)];
	static const int requests[] = { STATUS, SIZE, CLEAR, DRAIN, DRAIN_RUNNING, MAP, TAKE,
					TAKE_RUNNING };
	struct config cfg;
	const int request = PICK(requests);

	switch (any(5)) {
	case 0:
		return expect(tracee, bts(GET, tracee->pid, records, index),
			      !tracee->nr ? ENXIO :
			      index >= (unsigned long)tracee->records ? EINVAL : 0,
			      "GET of %lu", index);
	case 1:
		TRY(expect(tracee, bts(CLEAR, tracee->pid, NULL, 0), tracee->nr ? 0 : ENXIO,
			   "CLEAR"));
		tracee->records = tracee->owed = 0;
		tracee->exact = true;
		tracee->paused = tracee->lost = false;
		return 0;
	case 2:
		return expect(tracee, bts(STATUS, tracee->pid, (void *)8, 0), EFAULT,
			      "STATUS to 8");
	case 3:
		return expect(tracee, bts(STATUS, tracee->pid, &cfg, 15), EINVAL,
			      "STATUS of 15 bytes");
	default:
		/* Another tracer's */
		return other ? expect(tracee, bts(request, other, records, 0), ESRCH,
				      "request %d of another's tracee", request) : 0;
	}
}
