// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Page-table isolation: in user mode, the processor can only write the buffer in the
 * cpu_entry_area, from which the kernel copies the records.
 */
#include "bts.h"

static int no_isolation(void)
{
	int found = is_isolated();

	if (!found)
		snprintf(why, WHY_SIZE, "this kernel has no page-table isolation");
	return !found;
}

static void work_long_loop(void)
{
	loop_a(100000);
}

/* Many times what fits into the processor's buffer, and a circular buffer that is larger. */
static int test_pti_long(void)
{
	const unsigned long room = 1 << 17;
	struct record *r = malloc(RECORDS(room));
	pid_t pid;
	long n;

	if (no_isolation())
		return 0;
	pid = start(work_long_loop);
	CHECK(r && pid > 0 && config(pid, RECORDS(room), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 99999 && !(flags_of(pid) & O_LOST));
	stop(pid);
	free(r);
	return 0;
}

/* A circular buffer has the newest records, whatever its size is beside the processor's buffer. */
static int test_pti_wrap(void)
{
	static const long sizes[] = { 1, 2, 100, 2601, 2602, 2603, 2730, 2731, 5000, 10000 };
	static struct record r[10000];
	struct path reference;
	pid_t pid;
	long n;

	if (no_isolation())
		return 0;
	TRY(path_reference(&reference));
	CHECK(reference.n > 10000);
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct path path = { 0 };

		pid = start(work_maze);
		CHECK(pid > 0 && config(pid, RECORDS(sizes[i]), O_TRACE) == 0);
		CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, 0);
		if (n != sizes[i])
			FAIL("%ld records in a buffer for %ld", n, sizes[i]);
		TRY(path_add(&path, r, n));
		/* Some branches after the maze are not in it. */
		if (sizes[i] >= 100)
			CHECK(path.n > n - 100);
		CHECK(!memcmp(path.r, reference.r + reference.n - path.n, RECORDS(path.n)));
		stop(pid);
		free(path.r);
	}
	return 0;
}

/* Stops and the virtual buffer lose nothing. */
static int with_stops(unsigned long records, unsigned long flags, unsigned long virtual_size)
{
	static struct record r[1 << 16];
	struct path path = { 0 }, reference;
	pid_t pid;
	int status;
	long n;

	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0 && config_virtual(pid, RECORDS(records), O_TRACE | flags, virtual_size) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, 1 << 16);
		TRY(path_add(&path, r, n));
	} while (status >> 8 == SIGIO);
	CHECK(!(flags_of(pid) & (O_LOST | O_PAUSED)));
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_pti_stops(void)
{
	static const unsigned long sizes[] = { 64, 65, 170, 2730, 2731, 3000, 10000 };

	if (no_isolation())
		return 0;
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		TRY(with_stops(sizes[i], O_SIGNAL, 0));
		TRY(with_stops(sizes[i], O_SIGNAL | O_SCHED, 0));
	}
	return 0;
}

static int test_pti_virtual(void)
{
	if (no_isolation())
		return 0;
	TRY(with_stops(64, O_VIRTUAL, 1 << 20));
	TRY(with_stops(KERNEL_MIN, O_VIRTUAL, 1 << 20));
	return with_stops(170, O_SIGNAL | O_VIRTUAL, 20000);
}

static int test_pti_perf(void)
{
	if (no_isolation())
		return 0;
	/* perf's driver does not support page-table isolation. */
	CHECK(access("/sys/bus/event_source/devices/intel_bts", F_OK) == -1);
	return 0;
}

const struct test pti_tests[] = {
	{ "long", test_pti_long },
	{ "wrap", test_pti_wrap },
	{ "stops", test_pti_stops },
	{ "virtual", test_pti_virtual },
	{ "perf", test_pti_perf },
	{ 0 },
};
