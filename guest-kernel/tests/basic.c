// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Each request by itself: its errors, its result, whole traces and wrapped ones.
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
	REFUSED(config(pid, 4096, 1ul << 17), EINVAL);
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
	CHECK(config(pid, TOO_LARGE, O_CUT) == 0);
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
	/* Without gaps: a branch cannot start before the target of the previous one. */
	for (i = 1; i < n; i++)
		CHECK(is_kernel(r[i].a) || r[i].a >= r[i - 1].b);
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
	/* The oldest records are those of the loop. The others lead out of it. */
	CHECK(count(r, 1, loop_a_branch, loop_a_head) == 1);
	CHECK(r[99].a != (uintptr_t)loop_a_branch);
	for (i = 1; i < 100; i++)
		CHECK(is_kernel(r[i].a) || r[i].a >= r[i - 1].b);
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
	CHECK(cfg.size == RECORDS((1 << 16) / sizeof(struct record)) &&
	      cfg.flags == (O_TRACE | O_SIGNAL));
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

static int test_x32(void)
{
	static struct { uint32_t size, flags; } cfg = { 1 << 16, O_TRACE | O_SIGNAL };
	static struct record r[4096];
	pid_t pid = start(work_a);
	long n;

	CHECK(pid > 0);
	if (bts_x32(SIZE, pid, NULL, 0) == -1 && errno == ENOSYS) {
		snprintf(why, WHY_SIZE, "this kernel has no x32 ABI");
		stop(pid);
		return 0;
	}
	REFUSED(bts_x32(SIZE, pid, NULL, 0), ENXIO);
	CHECK(bts_x32(CONFIG, pid, &cfg, 0) == 0);
	memset(&cfg, 0, sizeof(cfg));
	CHECK(bts_x32(STATUS, pid, &cfg, 0) == sizeof(cfg));
	CHECK(cfg.size == RECORDS((1 << 16) / sizeof(struct record)) &&
	      cfg.flags == (O_TRACE | O_SIGNAL));
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts_x32(SIZE, pid, NULL, 0);
	CHECK(n > 999);
	CHECK(bts_x32(GET, pid, r, 0) == sizeof(*r));
	REFUSED(bts_x32(GET, pid, r, n), EINVAL);
	CHECK(bts_x32(DRAIN, pid, r, 0) == n);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999);
	CHECK(bts_x32(CLEAR, pid, NULL, 0) == 0);
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
	/* The memory has been released, so the next buffer fits. */
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
		CHECK(!is_kernel(r[i].a) || r[i].a == ~0ull);
		CHECK(!is_kernel(r[i].b));
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
		_exit(setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1) ||
		      unprivileged());
	CHECK(waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
}

/* A wrapped buffer of any size has the end of the trace, oldest record first. */
static int test_wrap_sizes(void)
{
	static const unsigned long sizes[] = {
		50, 51, 99, 100, 101, 169, 170, 171, 340, 341, 1000, 4096, 8191
	};
	static struct record r[8192], one;
	struct path reference;

	TRY(path_reference(&reference));
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct path path = { 0 }, end = reference;
		pid_t pid = start(work_maze);
		const long n = sizes[i];

		CHECK(pid > 0);
		CHECK(config(pid, RECORDS(n), O_TRACE) == 0);
		CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
		CHECK(bts(SIZE, pid, NULL, 0) == n);
		for (long k = 0; k < n; k++)
			CHECK(bts(GET, pid, &r[n - 1 - k], k) == sizeof(one));
		REFUSED(bts(GET, pid, &one, n), EINVAL);
		TRY(path_add(&path, r, n));
		memset(r, 0, RECORDS(n));
		CHECK(bts(DRAIN, pid, r, 0) == n);
		stop(pid);
		/* GET and DRAIN return the same records. */
		struct path drained = { 0 };

		TRY(path_add(&drained, r, n));
		TRY(path_compare(&drained, &path));
		if (n > 400 && path.n < n - 400)
			FAIL("%ld records, %ld of the maze", n, path.n);
		end.r += reference.n - path.n;
		end.n = path.n;
		TRY(path_compare(&path, &end));
		free(path.r);
		free(drained.r);
	}
	return 0;
}

/* A buffer of a single record holds the last branch. */
static int test_one_record(void)
{
	static struct record r[4096], one;
	pid_t pid;
	long n;

	for (int small = 0; small < 2; small++) {
		pid = start(work_a);
		CHECK(pid > 0);
		CHECK(config(pid, small ? sizeof(one) : sizeof(r), O_TRACE) == 0);
		CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
		n = bts(SIZE, pid, NULL, 0);
		CHECK(small ? n == 1 : n > 999);
		CHECK(bts(GET, pid, &r[small], 0) == sizeof(one));
		stop(pid);
	}
	/* The branch before the exit stop comes from the same address. */
	CHECK(r[0].qualifier == BRANCH && !memcmp(&r[0], &r[1], sizeof(*r)));
	return 0;
}

static void work_twice(void)
{
	loop_a(1000);
	raise(SIGUSR1);
	loop_b(1000);
	raise(SIGUSR1);
}

/* CLEAR removes all records, also from a wrapped buffer, and does not stop recording. */
static int clear(unsigned long records)
{
	static struct record r[8192], one;
	pid_t pid = start(work_twice);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, RECORDS(records), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR1);
	CHECK(bts(SIZE, pid, NULL, 0) > 50);
	CHECK(bts(CLEAR, pid, NULL, 0) == 0);
	CHECK(bts(SIZE, pid, NULL, 0) == 0 && bts(DRAIN, pid, r, 0) == 0);
	REFUSED(bts(GET, pid, &one, 0), EINVAL);
	CHECK(flags_of(pid) == O_TRACE);
	CHECK(bts(CLEAR, pid, NULL, 0) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR1);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 50 && n <= (long)records);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 0);
	CHECK(count(r, n, loop_b_branch, loop_b_head) > 50);
	stop(pid);
	return 0;
}

static int test_clear(void)
{
	return clear(8192);
}

static int test_clear_after_wrap(void)
{
	return clear(200);
}

/*
 * DRAIN empties the buffer, the next DRAIN returns only newer records, and nothing is written after
 * the records.
 */
static int test_drain_twice(void)
{
	static struct record r[8192];
	pid_t pid = start(work_twice);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, RECORDS(8000), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR1);
	memset(r, 0xa5, sizeof(r));
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 999 && count(r, n, loop_a_branch, loop_a_head) == 999);
	for (long i = n; i < 8192; i++)
		CHECK(r[i].qualifier == 0xa5a5a5a5a5a5a5a5 && r[i].a == r[i].qualifier &&
		      r[i].b == r[i].qualifier);
	CHECK(bts(DRAIN, pid, r, 0) == 0 && bts(SIZE, pid, NULL, 0) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR1);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 999 && count(r, n, loop_b_branch, loop_b_head) == 999);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 0);
	stop(pid);
	return 0;
}

/* Without O_TRACE nothing is recorded except the arrivals and departures of O_SCHED. */
static int test_what_is_recorded(void)
{
	static struct record r[4096];
	pid_t pid = start(work_a);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), 0) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) == 0);
	stop(pid);

	pid = start(work_a);
	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_SCHED) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n >= 2 && n % 2 == 0);
	for (long i = 0; i < n; i++)
		CHECK(r[i].qualifier == (i % 2 ? DEPARTS : ARRIVES) && !r[i].b);
	TRY(check_sched(r, n, "idle", 2));
	stop(pid);
	return 0;
}

static int set_user(int user)
{
	CHECK(!setresuid(user, user, 0) && !prctl(PR_SET_DUMPABLE, 1));
	return 0;
}

/* perf_event_paranoid hides the kernel's addresses, with each way to read a record. */
static int paranoid(void)
{
	static struct record r[4096];
	unsigned long seen[2][2] = { 0 };
	pid_t pid;
	long n;

	TRY(set_user(65534));
	for (int strict = 0; strict < 2; strict++) {
		CHECK(!setresuid(-1, 0, -1));
		TRY(set_kernel("perf_event_paranoid", strict ? "2" : "1"));
		TRY(set_user(65534));
		pid = start(work_a);
		CHECK(pid > 0);
		CHECK(config(pid, 60 << 10, O_TRACE) == 0);
		CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
		n = bts(SIZE, pid, NULL, 0);
		CHECK(n > 999);
		for (long i = 0; i < n; i++) {
			CHECK(bts(GET, pid, r, i) == sizeof(*r));
			seen[strict][0] += is_kernel(r->a) && r->a != ~0ull;
		}
		n = bts(DRAIN, pid, r, 0);
		for (long i = 0; i < n; i++)
			seen[strict][1] += is_kernel(r[i].a) && r[i].a != ~0ull;
		stop(pid);
	}
	if (!seen[0][0] || seen[0][0] != seen[0][1] || seen[1][0] || seen[1][1])
		FAIL("%lu and %lu kernel addresses at 1, %lu and %lu at 2", seen[0][0], seen[0][1],
		     seen[1][0], seen[1][1]);
	return 0;
}

static int test_paranoid(void)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(paranoid());
	CHECK(waitpid(pid, &status, 0) == pid);
	TRY(set_kernel("perf_event_paranoid", "2"));
	return status ? -1 : 0;
}

#ifdef __x86_64__
/* time() in the vsyscall page, which is user mode's, although its address is one of the kernel */
#define VSYSCALL_TIME 0xffffffffff600400ul

static void work_vsyscall(void)
{
	((time_t (*)(time_t *))VSYSCALL_TIME)(NULL);
}

static int vsyscall_as_user(void)
{
	static struct record r[4096];
	unsigned long calls = 0;
	pid_t pid;
	int stopped;
	long n;

	TRY(set_user(65534));
	pid = start(work_vsyscall);
	CHECK(pid > 0 && config(pid, sizeof(r), O_TRACE) == 0);
	stopped = next_stop(pid, 0) >> 8;
	/* The kernel may have no vsyscall page. */
	CHECK(stopped == AT_EXIT || stopped == SIGSEGV);
	n = bts(DRAIN, pid, r, 0);
	for (long i = 0; i < n; i++)
		calls += !is_kernel(r[i].a) && r[i].b == VSYSCALL_TIME;
	if (calls != 1)
		FAIL("%lu calls of the vsyscall page in %ld records", calls, n);
	stop(pid);
	return 0;
}
#endif

/* A ptracer that may not see kernel addresses sees calls of the vsyscall page. */
static int test_vsyscall(void)
{
#ifdef __x86_64__
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(vsyscall_as_user());
	CHECK(waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
#else
	snprintf(why, WHY_SIZE, "32-bit programs call no vsyscall page");
	return 0;
#endif
}

const struct test basic_tests[] = {
	{ "errors", test_errors },
	{ "every_branch", test_every_branch },
	{ "wrap", test_wrap },
	{ "compat", test_compat },
	{ "x32", test_x32 },
	{ "unprivileged", test_unprivileged },
	{ "wrap_sizes", test_wrap_sizes },
	{ "one_record", test_one_record },
	{ "clear", test_clear },
	{ "clear_after_wrap", test_clear_after_wrap },
	{ "drain_twice", test_drain_twice },
	{ "what_is_recorded", test_what_is_recorded },
	{ "paranoid", test_paranoid },
	{ "vsyscall", test_vsyscall },
	{ 0 },
};
