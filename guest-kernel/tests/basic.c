// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The requests one by one: their errors, what they return, whole traces and wrapped ones.
 */
#include "bts.h"

static int test_errors(void)
{
	pid_t pid = start(work_none);
	struct record r;
	struct config cfg;

	CHECK(pid > 0);
	REFUSED(bts(SIZE, pid, NULL, 0), ENXIO);
	REFUSED(bts(GET, pid, &r, 0), ENXIO);
	REFUSED(bts(CLEAR, pid, NULL, 0), ENXIO);
	REFUSED(bts(DRAIN, pid, &r, 0), ENXIO);
	CHECK(bts(STATUS, pid, &cfg, 0) == CONFIG_SIZE && !cfg.size && !cfg.flags);

	REFUSED(bts(CONFIG, pid, NULL, 0), EFAULT);
	REFUSED(bts(STATUS, pid, NULL, 0), EFAULT);
	REFUSED(config(pid, 4096, 1ul << 16), EINVAL);
	REFUSED(config(pid, 0, O_TRACE), EINVAL);
	REFUSED(config(pid, 23, O_TRACE), ENOMEM);
	REFUSED(config(pid, 4096, O_TRACE | O_SIGNR(SIGUSR1)), EINVAL);
	REFUSED(config(pid, 4096, O_SIGNAL | O_SIGNR(SIGKILL)), EINVAL);
	REFUSED(config(pid, 4096, O_SIGNAL | O_SIGNR(SIGSTOP)), EINVAL);
	REFUSED(config(pid, 4096, O_SIGNAL | O_SIGNR(65)), EINVAL);
	REFUSED(config(pid, RECORDS(63), O_SIGNAL), EINVAL);
	REFUSED(config(pid, ~0ul, O_TRACE), ENOMEM);
	CHECK(bts(STATUS, pid, &cfg, 0) == CONFIG_SIZE && !cfg.size);

	CHECK(config(pid, 4100, O_TRACE | O_SCHED | O_SIGNAL | O_SIGNR(64)) == 0);
	CHECK(bts(STATUS, pid, &cfg, 0) == CONFIG_SIZE);
	CHECK(cfg.size == RECORDS(170));
	CHECK(cfg.flags == (O_TRACE | O_SCHED | O_SIGNAL | O_SIGNR(64)));
	CHECK(bts(SIZE, pid, NULL, 0) == 0);
	CHECK(bts(DRAIN, pid, NULL, 0) == 0);
	REFUSED(bts(GET, pid, &r, 0), EINVAL);
	CHECK(config(pid, 0, 0) == 0);
	REFUSED(bts(SIZE, pid, NULL, 0), ENXIO);
	CHECK(config(pid, 1ul << 40, O_CUT) == 0);
	CHECK(bts(STATUS, pid, &cfg, 0) == CONFIG_SIZE && cfg.size > 1 << 20 && !cfg.flags);
	stop(pid);
	return 0;
}

static int test_every_branch(void)
{
	static struct record r[4096];
	pid_t pid = start(work_a);
	struct record one;
	long n, i;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > 999 && n < 4096);
	CHECK(bts(GET, pid, &one, 0) == sizeof(one));
	REFUSED(bts(DRAIN, pid, NULL, 0), EFAULT);
	CHECK(bts(DRAIN, pid, r, 0) == n);
	CHECK(!memcmp(&one, &r[n - 1], sizeof(one)));
	CHECK(bts(SIZE, pid, NULL, 0) == 0);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999);
	for (i = 0; i < n; i++)
		CHECK(r[i].qualifier == BRANCH);
	/* Gap-free: a branch cannot start before the place where the one before it went. */
	for (i = 1; i < n; i++)
		CHECK((int64_t)r[i].a < 0 || r[i].a >= r[i - 1].b);
	stop(pid);
	return 0;
}

static int test_wrap(void)
{
	static struct record r[100];
	pid_t pid = start(work_a);
	struct record one;
	long i;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) == 100);
	REFUSED(bts(GET, pid, &one, 100), EINVAL);
	REFUSED(config(pid, sizeof(r), O_TRACE | O_SIGNAL), EBUSY);
	for (i = 0; i < 100; i++)
		CHECK(bts(GET, pid, &r[99 - i], i) == sizeof(*r));
	struct record all[100];
	CHECK(bts(DRAIN, pid, all, 0) == 100);
	CHECK(!memcmp(all, r, sizeof(r)));
	/* The oldest are of the loop, what follows is the way out of it. */
	CHECK(count(r, 1, loop_a_branch, loop_a_head) == 1);
	CHECK(r[99].a != (uintptr_t)loop_a_branch);
	for (i = 1; i < 100; i++)
		CHECK((int64_t)r[i].a < 0 || r[i].a >= r[i - 1].b);
	stop(pid);
	return 0;
}

static int test_compat(void)
{
	static struct { uint32_t size, flags; } cfg = { 1 << 16, O_TRACE | O_SIGNAL };
	static struct record r[4096];
	pid_t pid = start(work_a);
	int n;

	CHECK(pid > 0);
	CHECK(bts32(CONFIG, pid, &cfg, 0) == 0);
	memset(&cfg, 0, sizeof(cfg));
	CHECK(bts32(STATUS, pid, &cfg, 0) == sizeof(cfg));
	CHECK(cfg.size == RECORDS((1 << 16) / sizeof(struct record)) && cfg.flags == (O_TRACE | O_SIGNAL));
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts32(SIZE, pid, NULL, 0);
	CHECK(n > 999);
	CHECK(bts32(GET, pid, r, 0) == sizeof(*r));
	CHECK(bts32(GET, pid, r, (unsigned int)n) == -EINVAL);
	CHECK(bts32(DRAIN, pid, r, 0) == n);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999);
	CHECK(bts32(CLEAR, pid, NULL, 0) == 0);
	stop(pid);
	return 0;
}

static int unprivileged(void)
{
	static struct record r[4096];
	pid_t pid = start(work_a);
	struct rlimit limit = { 64 << 10, 64 << 10 };
	unsigned long masked = 0;
	struct config cfg;
	long n;

	CHECK(pid > 0);
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	REFUSED(config(pid, 1 << 20, O_TRACE), ENOMEM);
	CHECK(config(pid, 1 << 20, O_TRACE | O_CUT) == 0);
	CHECK(bts(STATUS, pid, &cfg, 0) > 0 && cfg.size <= 64 << 10 && cfg.size >= 32 << 10);
	/* Given back: the next one fits as well. */
	for (int i = 0; i < 10; i++) {
		CHECK(config(pid, 0, 0) == 0);
		CHECK(config(pid, 60 << 10, O_TRACE) == 0);
	}
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999);
	for (long i = 0; i < n; i++) {
		masked += r[i].a == ~0ull;
		CHECK((int64_t)r[i].a >= 0 || r[i].a == ~0ull);
		CHECK((int64_t)r[i].b >= 0);
	}
	CHECK(masked > 0);
	stop(pid);
	return 0;
}

static int test_unprivileged(void)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1) || unprivileged());
	CHECK(waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
}

const struct test basic_tests[] = {
	{ "errors", test_errors },
	{ "every_branch", test_every_branch },
	{ "wrap", test_wrap },
	{ "compat", test_compat },
	{ "unprivileged", test_unprivileged },
	{ 0 },
};
