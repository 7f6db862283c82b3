// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The API as posted in November and in December 2007, and that of the manual page between them, on
 * the kernels of `build --api 2007-11`, `2007-man` and `2007-12`.
 */
#include "bts.h"

/*
 * In November's API an index is a slot of the buffer. In December's, 0 is the newest record. The
 * API of the manual page is November's, with MAX_BUFFER_SIZE instead of INIT.
 */
enum { INIT_11 = 40, ALLOCATE_11, BUFFER_SIZE_11, INDEX_11, READ_11, CONFIG_11, STATUS_11 };
enum { MAX_SIZE_12 = 40, ALLOCATE_12, BUFFER_SIZE_12, READ_12, CONFIG_12, STATUS_12 };

#define MAX_RECORDS	4000
#define O_TRACE_TASK	1
#define O_TIMESTAMPS	2

/* What INIT returns */
#define T_BTS		1
#define T_DSCPL		2

/* struct ptrace_bts_record */
struct old_record {
	int qualifier;
	union {
		struct { uintptr_t from, to; };
		uint64_t timestamp;
	};
};

/* A kernel address that the ptracer may not see */
#define HIDDEN		UINTPTR_MAX

struct compat_record {
	int qualifier;
	uint32_t words[2];
};

static int old_count(const struct old_record *r, long n, const char *from, const char *to)
{
	int found = 0;

	for (; n > 0; n--, r++)
		found += r->qualifier == BRANCH && r->from == (uintptr_t)from &&
			 r->to == (uintptr_t)to;
	return found;
}

/* What READ_RECORD returns */
#define READ(read, pid, record, index) (bts(read, pid, record, index) == sizeof(struct old_record))

/* Returns a tracee at its exit that has recorded with these options. */
static int traced(pid_t *pid, void (*work)(void), int allocate, int configure, long records,
		  long options)
{
	*pid = start(work);
	CHECK(*pid > 0);
	CHECK(bts(allocate, *pid, NULL, records) == 0);
	CHECK(bts(configure, *pid, NULL, options) == 0);
	CHECK(next_stop(*pid, 0) >> 8 == AT_EXIT);
	return 0;
}

static struct old_record r[MAX_RECORDS];

/* Each branch leads to a place at or before the start of the next one. */
static int check_order(const struct old_record *records, long n)
{
	for (long i = 1; i < n; i++) {
		CHECK(records[i].qualifier == BRANCH);
		if (!is_kernel(records[i].from) && records[i].from < records[i - 1].to)
			FAIL("record %ld starts before the one before it ended", i);
	}
	return 0;
}

/* What INIT returns on this processor */
static long type(void)
{
	return is_unfiltered() ? T_BTS : T_DSCPL;
}

static int test_11_init(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	/* Before it, there is no buffer. The kernel may have been booted long ago. */
	if (fresh_machine)
		CHECK(before_first_request == ENXIO);
	/* The request may be made repeatedly. */
	CHECK(bts(INIT_11, pid, NULL, 0) == type() && bts(INIT_11, pid, NULL, 0) == type());
	stop(pid);
	return 0;
}

static int test_11_errors(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	REFUSED(bts(BUFFER_SIZE_11, pid, NULL, 0), ENXIO);
	REFUSED(bts(INDEX_11, pid, NULL, 0), ENXIO);
	REFUSED(bts(READ_11, pid, r, 0), ENXIO);
	REFUSED(bts(CONFIG_11, pid, NULL, O_TRACE_TASK), ENXIO);
	CHECK(bts(STATUS_11, pid, NULL, 0) == 0);
	REFUSED(bts(ALLOCATE_11, pid, NULL, MAX_RECORDS + 1), EINVAL);
	REFUSED(bts(ALLOCATE_11, pid, NULL, -1), EINVAL);
	REFUSED(bts(47, pid, NULL, 0), EIO);

	CHECK(bts(ALLOCATE_11, pid, NULL, 100) == 0);
	CHECK(bts(BUFFER_SIZE_11, pid, NULL, 0) == 100 && bts(INDEX_11, pid, NULL, 0) == 0);
	REFUSED(bts(READ_11, pid, r, 100), EINVAL);
	REFUSED(bts(READ_11, pid, r, -1), EINVAL);
	REFUSED(bts(READ_11, pid, NULL, 0), EFAULT);
	memset(r, 0xff, sizeof(*r));
	CHECK(READ(READ_11, pid, r, 99) && r->qualifier == INVALID && !r->from && !r->to);
	REFUSED(bts(CONFIG_11, pid, NULL, 4), EINVAL);

	/*
	 * A larger buffer replaces the old one and keeps the options. A size of 0 frees the buffer.
	 */
	CHECK(bts(CONFIG_11, pid, NULL, O_TRACE_TASK | O_TIMESTAMPS) == 0);
	CHECK(bts(ALLOCATE_11, pid, NULL, MAX_RECORDS) == 0);
	CHECK(bts(BUFFER_SIZE_11, pid, NULL, 0) == MAX_RECORDS &&
	      bts(STATUS_11, pid, NULL, 0) == 3);
	CHECK(bts(ALLOCATE_11, pid, NULL, 0) == 0);
	REFUSED(bts(BUFFER_SIZE_11, pid, NULL, 0), ENXIO);
	CHECK(locked() == 0);
	stop(pid);
	return 0;
}

/* Reads all slots of a buffer of the largest size that has not wrapped. */
static int read_11(pid_t pid, long *n)
{
	*n = bts(INDEX_11, pid, NULL, 0);
	CHECK(*n > 0 && *n < MAX_RECORDS);
	for (long i = 0; i < MAX_RECORDS; i++)
		CHECK(READ(READ_11, pid, &r[i], i));
	for (long i = *n; i < MAX_RECORDS; i++)
		CHECK(r[i].qualifier == INVALID);
	return 0;
}

static int test_11_records(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_a, ALLOCATE_11, CONFIG_11, MAX_RECORDS, O_TRACE_TASK));
	TRY(read_11(pid, &n));
	CHECK(n > 999);
	CHECK(old_count(r, n, loop_a_branch, loop_a_head) == 999);
	TRY(check_order(r, n));
	stop(pid);
	return 0;
}

static void work_long(void)
{
	loop_a(2 * MAX_RECORDS);
}

/* A tracee whose buffer has wrapped, and has the end of a loop and the tracee's exit */
static int wrapped(pid_t *pid, int allocate, int configure, long *records)
{
	/* Without DS-CPL, the exit has many branches. */
	*records = is_unfiltered() ? MAX_RECORDS : 100;
	return traced(pid, is_unfiltered() ? work_long : work_a, allocate, configure, *records,
		      O_TRACE_TASK);
}

/* Checks all records of wrapped(), oldest first. */
static int check_wrapped(long records)
{
	const struct old_record *oldest = r;

	TRY(check_order(r, records));
	/* The oldest one may belong to an interrupt. */
	while (is_unfiltered() && oldest < &r[records - 1] && is_kernel(oldest->from))
		oldest++;
	CHECK(old_count(oldest, 1, loop_a_branch, loop_a_head) == 1);
	CHECK(old_count(&r[records - 1], 1, loop_a_branch, loop_a_head) == 0);
	CHECK(!is_unfiltered() || is_kernel(r[records - 1].to));
	return 0;
}

static int test_11_wrap(void)
{
	pid_t pid;
	long next, records;

	TRY(wrapped(&pid, ALLOCATE_11, CONFIG_11, &records));
	next = bts(INDEX_11, pid, NULL, 0);
	CHECK(next >= 0 && next < records);
	/* The slot to be written next has the oldest record. */
	for (long i = 0; i < records; i++)
		CHECK(READ(READ_11, pid, &r[i], (next + i) % records));
	TRY(check_wrapped(records));
	stop(pid);
	return 0;
}

static void work_yield(void)
{
	for (int i = 0; i < 5; i++) {
		loop_a(11);
		/* Long enough that it sleeps on a slow processor, too. */
		usleep(10000);
	}
}

/* A time after boot that does not fit in 32 bits */
#define LATE_NS		5000000000ull

/* Waits for a time after LATE_NS, so that each half of a timestamp matters. */
static void wait_for_time(void)
{
	const struct timespec then = { LATE_NS / 1000000000 + 1, 0 };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL);
}

static int check_timestamps(long n)
{
	uint64_t last = 0;
	int expected = ARRIVES, events = 0;

	for (long i = 0; i < n; i++) {
		if (r[i].qualifier == BRANCH) {
			CHECK(expected == DEPARTS);
			continue;
		}
		CHECK(r[i].qualifier == expected && r[i].timestamp >= last);
		last = r[i].timestamp;
		expected = expected == ARRIVES ? DEPARTS : ARRIVES;
		events++;
	}
	CHECK(events >= 10);
	/* The unit is nanoseconds, and the time has more than 32 bits: see wait_for_time(). */
	CHECK(last > LATE_NS && last < LATE_NS + 1000ull * 1000000000);
	CHECK(old_count(r, n, loop_a_branch, loop_a_head) == 50);
	return 0;
}

static int test_11_timestamps(void)
{
	pid_t pid;
	long n;

	wait_for_time();
	TRY(traced(&pid, work_yield, ALLOCATE_11, CONFIG_11, MAX_RECORDS,
		   O_TRACE_TASK | O_TIMESTAMPS));
	TRY(read_11(pid, &n));
	TRY(check_timestamps(n));
	stop(pid);
	return 0;
}

static int compat(int read, pid_t pid, long n)
{
	static struct compat_record c[MAX_RECORDS];
	int found = 0;

	for (long i = 0; i < n; i++) {
		CHECK(bts32(read, pid, &c[i], i) == sizeof(*c));
		found += c[i].qualifier == BRANCH &&
			 c[i].words[0] == (uint32_t)(uintptr_t)loop_a_branch &&
			 c[i].words[1] == (uint32_t)(uintptr_t)loop_a_head;
	}
	if (found != 999)
		FAIL("%d of 999 branches", found);
	return 0;
}

static int test_11_compat(void)
{
	pid_t pid;

	TRY(traced(&pid, work_a, ALLOCATE_11, CONFIG_11, MAX_RECORDS, O_TRACE_TASK));
	CHECK(bts32(INIT_11, pid, NULL, 0) == type() &&
	      bts32(STATUS_11, pid, NULL, 0) == O_TRACE_TASK);
	TRY(compat(READ_11, pid, bts32(INDEX_11, pid, NULL, 0)));
	stop(pid);
	return 0;
}

static int test_12_errors(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(bts(MAX_SIZE_12, pid, NULL, 0) == MAX_RECORDS);
	REFUSED(bts(BUFFER_SIZE_12, pid, NULL, 0), ENXIO);
	REFUSED(bts(READ_12, pid, r, 0), ENXIO);
	REFUSED(bts(CONFIG_12, pid, NULL, O_TRACE_TASK), ENXIO);
	REFUSED(bts(STATUS_12, pid, NULL, 0), ENXIO);
	REFUSED(bts(ALLOCATE_12, pid, NULL, MAX_RECORDS + 1), EINVAL);
	REFUSED(bts(ALLOCATE_12, pid, NULL, -1), EINVAL);
	REFUSED(bts(46, pid, NULL, 0), EIO);

	CHECK(bts(ALLOCATE_12, pid, NULL, 100) == 0);
	CHECK(bts(BUFFER_SIZE_12, pid, NULL, 0) == 100 && bts(STATUS_12, pid, NULL, 0) == 0);
	REFUSED(bts(READ_12, pid, r, 100), EINVAL);
	REFUSED(bts(READ_12, pid, NULL, 0), EFAULT);
	memset(r, 0xff, sizeof(*r));
	CHECK(READ(READ_12, pid, r, 0) && r->qualifier == INVALID && !r->from && !r->to);
	REFUSED(bts(CONFIG_12, pid, NULL, 4), EINVAL);
	CHECK(bts(CONFIG_12, pid, NULL, O_TIMESTAMPS) == 0 &&
	      bts(STATUS_12, pid, NULL, 0) == O_TIMESTAMPS);
	CHECK(bts(ALLOCATE_12, pid, NULL, 0) == 0);
	REFUSED(bts(STATUS_12, pid, NULL, 0), ENXIO);
	CHECK(locked() == 0);
	stop(pid);
	return 0;
}

/* All valid records, oldest first */
static int read_12(pid_t pid, long *n)
{
	struct old_record one;

	*n = 0;
	while (*n < bts(BUFFER_SIZE_12, pid, NULL, 0) && READ(READ_12, pid, &one, *n) &&
	       one.qualifier != INVALID)
		++*n;
	CHECK(*n > 0);
	for (long i = 0; i < *n; i++)
		CHECK(READ(READ_12, pid, &r[*n - 1 - i], i));
	return 0;
}

static int test_12_records(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_a, ALLOCATE_12, CONFIG_12, MAX_RECORDS, O_TRACE_TASK));
	TRY(read_12(pid, &n));
	CHECK(n > 999 && n < MAX_RECORDS);
	CHECK(old_count(r, n, loop_a_branch, loop_a_head) == 999);
	TRY(check_order(r, n));
	stop(pid);
	return 0;
}

static int test_12_wrap(void)
{
	pid_t pid;
	long records, n;

	TRY(wrapped(&pid, ALLOCATE_12, CONFIG_12, &records));
	TRY(read_12(pid, &n));
	CHECK(n == records);
	TRY(check_wrapped(n));
	stop(pid);
	return 0;
}

static int test_12_timestamps(void)
{
	pid_t pid;
	long n;

	wait_for_time();
	TRY(traced(&pid, work_yield, ALLOCATE_12, CONFIG_12, MAX_RECORDS,
		   O_TRACE_TASK | O_TIMESTAMPS));
	TRY(read_12(pid, &n));
	CHECK(n < MAX_RECORDS);
	TRY(check_timestamps(n));
	stop(pid);
	return 0;
}

static int test_12_compat(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_a, ALLOCATE_12, CONFIG_12, MAX_RECORDS, O_TRACE_TASK));
	TRY(read_12(pid, &n));
	TRY(compat(READ_12, pid, n));
	stop(pid);
	return 0;
}

/* A generation's requests */
struct requests {
	int allocate, configure;
	int (*read)(pid_t pid, long *n);
};

static const struct requests november = { ALLOCATE_11, CONFIG_11, read_11 };
static const struct requests december = { ALLOCATE_12, CONFIG_12, read_12 };

/* Without DS-CPL, and only then, there are branches to the kernel. */
static int check_kernel(const struct requests *requests, int visible)
{
	long n, into = 0, seen = 0, hidden = 0;
	pid_t pid;

	TRY(traced(&pid, work_a, requests->allocate, requests->configure, MAX_RECORDS,
		   O_TRACE_TASK));
	TRY(requests->read(pid, &n));
	for (long i = 0; i < n; i++) {
		into += is_kernel(r[i].to);
		seen += is_kernel(r[i].from) && r[i].from != HIDDEN;
		seen += is_kernel(r[i].to) && r[i].to != HIDDEN;
		hidden += r[i].from == HIDDEN || r[i].to == HIDDEN;
	}
	CHECK(!into == !is_unfiltered());
	if (visible ? !seen || hidden : seen || !hidden)
		FAIL("%ld kernel addresses, %ld hidden ones", seen, hidden);
	/* Also with them, user mode has its branches. */
	CHECK(old_count(r, n, loop_a_branch, loop_a_head) == 999);
	stop(pid);
	return 0;
}

/* Kernel addresses are visible to a ptracer that could trace the kernel with perf. */
static int kernel(const struct requests *requests)
{
	int status;
	pid_t pid;

	TRY(check_kernel(requests, 1));
	pid = fork();
	if (!pid)
		_exit(setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1) ||
		      check_kernel(requests, 0));
	CHECK(waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
}

static int test_11_kernel(void)
{
	return kernel(&november);
}

static int test_12_kernel(void)
{
	return kernel(&december);
}

const struct test november_tests[] = {
	{ "init", test_11_init },
	{ "errors", test_11_errors },
	{ "records", test_11_records },
	{ "wrap", test_11_wrap },
	{ "timestamps", test_11_timestamps },
	{ "kernel", test_11_kernel },
	{ "compat", test_11_compat },
	{ 0 },
};

/* What the manual page says about each request, in its order */
static int test_man_page(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(bts(MAX_SIZE_12, pid, NULL, 0) == MAX_RECORDS);
	/* ENXIO: access without a buffer */
	REFUSED(bts(BUFFER_SIZE_11, pid, NULL, 0), ENXIO);
	REFUSED(bts(INDEX_11, pid, NULL, 0), ENXIO);
	REFUSED(bts(READ_11, pid, r, 0), ENXIO);
	REFUSED(bts(CONFIG_11, pid, NULL, O_TRACE_TASK), ENXIO);
	REFUSED(bts(STATUS_11, pid, NULL, 0), ENXIO);
	/* "data must be in the range of 0..PTRACE_BTS_MAX_BUFFER_SIZE" */
	REFUSED(bts(ALLOCATE_11, pid, NULL, MAX_RECORDS + 1), EINVAL);
	REFUSED(bts(ALLOCATE_11, pid, NULL, -1), EINVAL);
	CHECK(bts(ALLOCATE_11, pid, NULL, 0) == 0);
	CHECK(bts(ALLOCATE_11, pid, NULL, MAX_RECORDS) == 0);
	/* "The new buffer initially contains invalid entries." */
	CHECK(bts(ALLOCATE_11, pid, NULL, 100) == 0 && bts(BUFFER_SIZE_11, pid, NULL, 0) == 100);
	for (long i = 0; i < 100; i++)
		CHECK(READ(READ_11, pid, r, i) && r->qualifier == INVALID);
	REFUSED(bts(READ_11, pid, r, 100), EINVAL);
	CHECK(bts(INDEX_11, pid, NULL, 0) == 0);
	/* "(addr is ignored.)" */
	CHECK(bts(CONFIG_11, pid, (void *)1, O_TRACE_TASK | O_TIMESTAMPS) == 0);
	CHECK(bts(STATUS_11, pid, (void *)1, 7) == (O_TRACE_TASK | O_TIMESTAMPS));
	REFUSED(bts(47, pid, NULL, 0), EIO);
	/* "automatically deallocated when the parent detaches" */
	CHECK(locked() > 0 && !ptrace(PTRACE_DETACH, pid, 0, SIGKILL) && locked() == 0);
	CHECK(waitpid(pid, NULL, __WALL) == pid);
	return 0;
}

static int test_man_compat(void)
{
	pid_t pid;

	TRY(traced(&pid, work_a, ALLOCATE_11, CONFIG_11, MAX_RECORDS, O_TRACE_TASK));
	CHECK(bts32(MAX_SIZE_12, pid, NULL, 0) == MAX_RECORDS);
	TRY(compat(READ_11, pid, bts32(INDEX_11, pid, NULL, 0)));
	stop(pid);
	return 0;
}

const struct test man_tests[] = {
	{ "page", test_man_page },
	{ "records", test_11_records },
	{ "wrap", test_11_wrap },
	{ "timestamps", test_11_timestamps },
	{ "kernel", test_11_kernel },
	{ "compat", test_man_compat },
	{ 0 },
};

const struct test december_tests[] = {
	{ "errors", test_12_errors },
	{ "records", test_12_records },
	{ "wrap", test_12_wrap },
	{ "timestamps", test_12_timestamps },
	{ "kernel", test_12_kernel },
	{ "compat", test_12_compat },
	{ 0 },
};
