// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Machines without a Branch Trace Store for ptrace: every request fails with EOPNOTSUPP, and
 * nothing else changes.
 */
#include "bts.h"

static int all_refused(void)
{
	static struct { uint32_t size, flags, virtual_size; } compat = { 4096, O_TRACE, 0 };
	static struct record r;
	struct config cfg = { 4096, O_TRACE, 0 };
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	REFUSED(bts(CONFIG, pid, &cfg, 0), EOPNOTSUPP);
	REFUSED(bts(STATUS, pid, &cfg, 0), EOPNOTSUPP);
	REFUSED(bts(SIZE, pid, NULL, 0), EOPNOTSUPP);
	REFUSED(bts(GET, pid, &r, 0), EOPNOTSUPP);
	REFUSED(bts(CLEAR, pid, NULL, 0), EOPNOTSUPP);
	REFUSED(bts(DRAIN, pid, &r, 1), EOPNOTSUPP);
	/* This error precedes all others. */
	REFUSED(bts(CONFIG, pid, NULL, 0), EOPNOTSUPP);
	REFUSED(config(pid, 0, 0), EOPNOTSUPP);
	REFUSED(config(pid, 4096, 1ul << 31), EOPNOTSUPP);
	/* Except ptrace's own errors */
	REFUSED(bts(CONFIG, getpid(), &cfg, 0), ESRCH);
	CHECK(bts32(CONFIG, pid, &compat, 0) == -EOPNOTSUPP &&
	      bts32(STATUS, pid, &compat, 0) == -EOPNOTSUPP);
	CHECK(locked() == 0);
	stop(pid);
	return 0;
}

/* The rest of ptrace works: single-step and, if the processor has it, branch step. */
static int rest_works(void)
{
	unsigned long steps = 0;
	pid_t pid = start(work_a);
	int status = 0;

	CHECK(pid > 0);
	for (; steps < 3000; steps++) {
		CHECK(!ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
		if (status >> 8 == AT_EXIT)
			break;
		CHECK(status >> 8 == SIGTRAP);
	}
	CHECK(status >> 8 == AT_EXIT && steps > 2000);
	stop(pid);
	return 0;
}

static int has_bts(void)
{
	int found = has_feature(" bts");

	if (found)
		snprintf(why, WHY_SIZE, "this processor has a branch trace store");
	return found;
}

static int test_no_bts_requests(void)
{
	if (has_bts())
		return 0;
	CHECK(access("/sys/bus/event_source/devices/intel_bts", F_OK) == -1);
	return all_refused();
}

static int test_no_bts_rest(void)
{
	return has_bts() ? 0 : rest_works();
}

const struct test no_bts_tests[] = {
	{ "requests", test_no_bts_requests },
	{ "rest_works", test_no_bts_rest },
	{ 0 },
};
