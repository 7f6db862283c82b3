// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Each allocation of a request, and each access to the tracer's memory, fails once: the request
 * fails with the right error and changes nothing, nothing leaks, and the next request works.
 */
#include <ctype.h>
#include <sys/mount.h>
#include "bts.h"

#define DEBUGFS		"/sys/kernel/debug/"
#define FAIL_NTH	"/proc/thread-self/fail-nth"
/* More than any request can fail */
#define MAX_FAILURES	2000

static int fail_nth = -1;

/* Returns 0 with a reason in `why` if this kernel injects no failures. */
static int prepare(void)
{
	static const char *const off[] = {
		"failslab/verbose", "failslab/ignore-gfp-wait", "fail_page_alloc/verbose",
		"fail_page_alloc/ignore-gfp-wait", "fail_page_alloc/ignore-gfp-highmem",
		"fail_page_alloc/min-order", "fail_usercopy/verbose",
	};
	char path[128];

	if (access(FAIL_NTH, W_OK)) {
		snprintf(why, WHY_SIZE, "this kernel injects no failures");
		return 0;
	}
	CHECK(!mount("debugfs", DEBUGFS, "debugfs", 0, NULL) || errno == EBUSY);
	for (unsigned int i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
		snprintf(path, sizeof(path), DEBUGFS "%s", off[i]);
		TRY(put(path, "0"));
	}
	fail_nth = open(FAIL_NTH, O_RDWR | O_CLOEXEC);
	CHECK(fail_nth >= 0);
	return 0;
}

/* The Nth allocation or access from now on fails. With 0, none does. */
static void fail(unsigned int n)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", n);
	/* This one can fail, too, if fewer have failed than should. */
	while (pwrite(fail_nth, text, strlen(text), 0) < 0)
		;
}

/* Whether it has failed. Only then the number is zero, and this can be read. */
static int has_failed(void)
{
	char text[16] = "";
	int failed = pread(fail_nth, text, sizeof(text) - 1, 0) > 0 && atoi(text) == 0 &&
		     isdigit(text[0]);

	fail(0);
	return failed;
}

/* What a request must leave as it was if it fails */
struct state {
	struct config cfg;
	long size, locked;
	int descriptor;
};

static int look(pid_t pid, struct state *state)
{
	*state = (struct state){ .locked = locked(), .descriptor = dup(0) };
	close(state->descriptor);
	CHECK(bts(STATUS, pid, &state->cfg, sizeof(state->cfg)) == sizeof(state->cfg));
	state->size = bts(SIZE, pid, NULL, 0);
	return 0;
}

static unsigned long flags, virtual_size;

/* A request with a trace of this kind */
struct attempt {
	const char *name;
	/* Returns a tracee that has stopped. */
	pid_t (*begin)(void);
	/* Returns -1 with an errno, or another value. */
	long (*request)(pid_t pid);
	unsigned long flags, virtual_size;
	/* Fails at least as often. */
	unsigned int at_least;
};

/* Makes the request with one failure after the other, until it has succeeded without one. */
static int exhaust(const struct attempt *attempt)
{
	unsigned int n, refused = 0;
	struct state before, after;
	long result, error;
	int failed = 1;

	flags = attempt->flags;
	virtual_size = attempt->virtual_size;
	for (n = 1; failed; n++) {
		pid_t pid = attempt->begin();

		CHECK(pid > 0 && n < MAX_FAILURES);
		TRY(look(pid, &before));
		fail(n);
		result = attempt->request(pid);
		error = errno;
		failed = has_failed();
		if (result == -1) {
			refused++;
			if (!failed)
				FAIL("%s: errno %ld without a failure", attempt->name, error);
			if (error != ENOMEM && error != EFAULT)
				FAIL("%s: errno %ld at failure %u", attempt->name, error, n);
			TRY(look(pid, &after));
			if (memcmp(&before, &after, sizeof(after)))
				FAIL("%s: failure %u changes %#lx bytes, flags %#lx, %ld records, "
				     "%ld KiB, descriptor %d to %#lx, %#lx, %ld, %ld, %d",
				     attempt->name, n, before.cfg.size, before.cfg.flags,
				     before.size, before.locked, before.descriptor, after.cfg.size,
				     after.cfg.flags, after.size, after.locked, after.descriptor);
			if (attempt->request(pid) == -1)
				FAIL("%s: errno %d after failure %u", attempt->name, errno, n);
		}
		stop(pid);
		CHECK(locked() == 0);
	}
	if (refused < attempt->at_least)
		FAIL("%s: only %u of %u failures have an effect", attempt->name, refused, n);
	return 0;
}

/*
 * Another process records branches, so that perf has allocated its own buffers. If it cannot, the
 * kernel warns.
 */
static int record_elsewhere(void)
{
	int ready[2];
	pid_t pid;
	char byte;

	CHECK(!pipe(ready));
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pid = start(work_none);
		if (pid < 0 || config(pid, 4096, O_TRACE) || write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	CHECK(pid > 0 && read(ready[0], &byte, 1) == 1);
	return close(ready[0]);
}

static int exhaust_all(const struct attempt *attempts, unsigned int n)
{
	TRY(prepare());
	if (*why)
		return 0;
	TRY(record_elsewhere());
	for (unsigned int i = 0; i < n; i++)
		TRY(exhaust(&attempts[i]));
	return 0;
}

#define EXHAUST(attempts) exhaust_all(attempts, sizeof(attempts) / sizeof((attempts)[0]))

static long configure(pid_t pid)
{
	return config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | flags, virtual_size);
}

static pid_t without_trace(void)
{
	return start(work_a);
}

/* A trace of another size */
static pid_t with_other(void)
{
	pid_t pid = start(work_a);

	if (pid > 0 && (config(pid, RECORDS(2000), O_TRACE) || next_stop(pid, 0) >> 8 != AT_EXIT))
		return -1;
	return pid;
}

static int test_config(void)
{
	static const struct attempt attempts[] = {
		{ "CONFIG", without_trace, configure, 0, 0, 3 },
		{ "O_SIGNAL", without_trace, configure, O_SIGNAL | O_SCHED, 0, 3 },
		{ "O_CUT_SIZE", without_trace, configure, O_CUT, 0, 2 },
		{ "O_VIRTUAL", without_trace, configure, O_VIRTUAL, 1 << 20, 5 },
		{ "O_VIRTUAL, cut", without_trace, configure, O_VIRTUAL | O_CUT, 1 << 20, 2 },
		{ "O_KERNEL", without_trace, configure, O_VIRTUAL | O_KERNEL, 3 << 20, 10 },
		{ "O_MAPPED", without_trace, configure, O_SIGNAL | O_MAPPED, 3, 3 },
	};

	return EXHAUST(attempts);
}

/* What the tracee has recorded before remains. */
static int test_replace(void)
{
	static const struct attempt attempts[] = {
		{ "other size", with_other, configure, 0, 0, 2 },
		{ "O_VIRTUAL instead", with_other, configure, O_VIRTUAL, 1 << 20, 5 },
		{ "O_KERNEL instead", with_other, configure, O_VIRTUAL | O_KERNEL, 3 << 20, 10 },
		{ "O_MAPPED instead", with_other, configure, O_SIGNAL | O_MAPPED, 3, 2 },
	};

	return EXHAUST(attempts);
}

/* A tracee in its exit stop, with a trace */
static pid_t with_trace(void)
{
	pid_t pid = start(work_a);

	if (pid > 0 && (configure(pid) || next_stop(pid, 0) >> 8 != AT_EXIT))
		return -1;
	return pid;
}

static long add_kernel(pid_t pid)
{
	return config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_VIRTUAL | O_KERNEL, 3 << 20);
}

static pid_t with_events(void)
{
	pid_t pid = start(work_a);

	if (pid > 0 && config(pid, RECORDS(KERNEL_MIN), O_SCHED))
		return -1;
	return pid;
}

static long add_branches(pid_t pid)
{
	return config(pid, RECORDS(KERNEL_MIN), O_TRACE | O_SCHED);
}

/* The same buffers record more. */
static int test_change(void)
{
	static const struct attempt attempts[] = {
		{ "O_KERNEL, too", with_trace, add_kernel, O_VIRTUAL, 1 << 20, 10 },
		{ "O_TRACE, too", with_events, add_branches, 0, 0, 1 },
	};

	return EXHAUST(attempts);
}

static struct record records[1 << 17];

static long drain(pid_t pid)
{
	long n = bts(DRAIN, pid, records, sizeof(records) / sizeof(*records));

	if (n >= 0 && count(records, n, loop_a_branch, loop_a_head) != 999)
		errno = EIO;
	return n >= 0 && errno ? -1 : n;
}

static long drain_running(pid_t pid)
{
	return bts(DRAIN_RUNNING, pid, records, sizeof(records) / sizeof(*records));
}

static long get(pid_t pid)
{
	return bts(GET, pid, records, 5);
}

static long status(pid_t pid)
{
	return bts(STATUS, pid, records, 0);
}

static long take(pid_t pid)
{
	return bts(TAKE, pid, records, 0);
}

/* Requests that return records: none is discarded that has not arrived. */
static int test_records(void)
{
	static const struct attempt attempts[] = {
		{ "DRAIN", with_trace, drain, 0, 0, 2 },
		{ "DRAIN with O_VIRTUAL", with_trace, drain, O_VIRTUAL, 1 << 20, 2 },
		{ "DRAIN with O_KERNEL", with_trace, drain, O_VIRTUAL | O_KERNEL, 3 << 20, 2 },
		{ "DRAIN_RUNNING", with_trace, drain_running, O_SIGNAL, 0, 2 },
		{ "GET", with_trace, get, O_VIRTUAL, 1 << 20, 1 },
		{ "STATUS", with_trace, status, 0, 0, 1 },
		{ "TAKE", with_trace, take, O_SIGNAL | O_MAPPED, 3, 1 },
	};

	return EXHAUST(attempts);
}

static long map(pid_t pid)
{
	const size_t size = 3 * ((RECORDS(KERNEL_MIN) + 4095) & -4096ul);
	int fd = bts(MAP, pid, NULL, 0), error;
	void *at;

	if (fd < 0)
		return -1;
	at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	error = errno;
	close(fd);
	if (at != MAP_FAILED)
		munmap(at, size);
	errno = error;
	return at == MAP_FAILED ? -1 : 0;
}

static int test_map(void)
{
	static const struct attempt attempts[] = {
		{ "MAP", with_trace, map, O_SIGNAL | O_MAPPED, 3, 4 },
	};

	return EXHAUST(attempts);
}

/* Which allocation of the tracee fails */
static unsigned int tracee_fails;

static void work_failing(void)
{
	if (prepare() || *why)
		_exit(1);
	/* In this and in the next step it takes no more memory of its own. */
	fail(tracee_fails);
	maze(maze_steps);
	fail(0);
}

/*
 * An allocation of a page of the virtual buffer fails: without O_SIGNAL records are lost, and
 * STATUS says so. With it the tracee stops, and nothing is lost.
 */
static int move(unsigned long more, unsigned int n, const struct path *reference, int *lost)
{
	static struct record r[1 << 16];
	struct path path = { 0 };
	int status;
	pid_t pid;
	long got;

	tracee_fails = n;
	pid = start(work_failing);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(170), O_TRACE | O_VIRTUAL | more, 4 << 20) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		got = bts(DRAIN, pid, r, sizeof(r) / sizeof(*r));
		CHECK(got >= 0);
		TRY(path_add(&path, r, got));
	} while (status >> 8 != AT_EXIT);
	*lost = (flags_of(pid) & O_LOST) != 0;
	stop(pid);
	if (!*lost)
		TRY(path_compare(&path, reference));
	else
		CHECK(path.n < reference->n);
	free(path.r);
	return 0;
}

static int test_move(void)
{
	unsigned int losses = 0;
	struct path reference;
	int lost;

	TRY(prepare());
	if (*why)
		return 0;
	maze_steps = 2000;
	TRY(path_reference(&reference));
	for (unsigned int n = 1; n <= 10; n++) {
		TRY(move(0, n, &reference, &lost));
		losses += lost;
		TRY(move(O_SIGNAL, n, &reference, &lost));
		CHECK(!lost);
	}
	if (!losses)
		FAIL("no allocation of the tracee has failed");
	CHECK(locked() == 0);
	return 0;
}

const struct test failures_tests[] = {
	{ "config", test_config },
	{ "replace", test_replace },
	{ "change", test_change },
	{ "records", test_records },
	{ "map", test_map },
	{ "move", test_move },
	{ 0 },
};
