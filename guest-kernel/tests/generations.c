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

/* struct ptrace_bts_record */
struct old_record {
	int qualifier;
	union {
		struct { uint64_t from, to; };
		uint64_t timestamp;
	};
};

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
		if ((int64_t)records[i].from > 0 && records[i].from < records[i - 1].to)
			FAIL("record %ld starts before the one before it ended", i);
	}
	return 0;
}

static int test_11_init(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	/* PTRACE_BTS_T_DSCPL may be set repeatedly. */
	CHECK(bts(INIT_11, pid, NULL, 0) == 2 && bts(INIT_11, pid, NULL, 0) == 2);
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
	CHECK(bts(READ_11, pid, r, 99) == 0 && r->qualifier == INVALID && !r->from && !r->to);
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

static int test_11_records(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_a, ALLOCATE_11, CONFIG_11, MAX_RECORDS, O_TRACE_TASK));
	n = bts(INDEX_11, pid, NULL, 0);
	CHECK(n > 999 && n < MAX_RECORDS);
	for (long i = 0; i < MAX_RECORDS; i++)
		CHECK(bts(READ_11, pid, &r[i], i) == 0);
	CHECK(old_count(r, n, loop_a_branch, loop_a_head) == 999);
	TRY(check_order(r, n));
	for (long i = n; i < MAX_RECORDS; i++)
		CHECK(r[i].qualifier == INVALID);
	stop(pid);
	return 0;
}

static int test_11_wrap(void)
{
	pid_t pid;
	long next;

	TRY(traced(&pid, work_a, ALLOCATE_11, CONFIG_11, 100, O_TRACE_TASK));
	next = bts(INDEX_11, pid, NULL, 0);
	CHECK(next >= 0 && next < 100);
	/* The slot to be written next has the oldest record. */
	for (long i = 0; i < 100; i++)
		CHECK(bts(READ_11, pid, &r[i], (next + i) % 100) == 0);
	TRY(check_order(r, 100));
	CHECK(old_count(r, 1, loop_a_branch, loop_a_head) == 1);
	CHECK(old_count(&r[99], 1, loop_a_branch, loop_a_head) == 0);
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
	/* The unit is nanoseconds: at least five times 10 ms have passed. */
	CHECK(last > 50000000);
	CHECK(old_count(r, n, loop_a_branch, loop_a_head) == 50);
	return 0;
}

static int test_11_timestamps(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_yield, ALLOCATE_11, CONFIG_11, MAX_RECORDS,
		   O_TRACE_TASK | O_TIMESTAMPS));
	n = bts(INDEX_11, pid, NULL, 0);
	CHECK(n > 0 && n < MAX_RECORDS);
	for (long i = 0; i < n; i++)
		CHECK(bts(READ_11, pid, &r[i], i) == 0);
	TRY(check_timestamps(n));
	stop(pid);
	return 0;
}

static int compat(int read, pid_t pid, long n, long oldest, long step)
{
	static struct compat_record c[MAX_RECORDS];
	int found = 0;

	for (long i = 0; i < n; i++) {
		CHECK(bts32(read, pid, &c[i], oldest + i * step) == 0);
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
	CHECK(bts32(INIT_11, pid, NULL, 0) == 2 && bts32(STATUS_11, pid, NULL, 0) == O_TRACE_TASK);
	TRY(compat(READ_11, pid, bts32(INDEX_11, pid, NULL, 0), 0, 1));
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
	CHECK(bts(READ_12, pid, r, 0) == 0 && r->qualifier == INVALID && !r->from && !r->to);
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
static long read_12(pid_t pid)
{
	struct old_record one;
	long n = 0;

	while (n < bts(BUFFER_SIZE_12, pid, NULL, 0) && bts(READ_12, pid, &one, n) == 0 &&
	       one.qualifier != INVALID)
		n++;
	for (long i = 0; i < n; i++)
		CHECK(bts(READ_12, pid, &r[n - 1 - i], i) == 0);
	return n;
}

static int test_12_records(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_a, ALLOCATE_12, CONFIG_12, MAX_RECORDS, O_TRACE_TASK));
	n = read_12(pid);
	CHECK(n > 999 && n < MAX_RECORDS);
	CHECK(old_count(r, n, loop_a_branch, loop_a_head) == 999);
	TRY(check_order(r, n));
	stop(pid);
	return 0;
}

static int test_12_wrap(void)
{
	pid_t pid;

	TRY(traced(&pid, work_a, ALLOCATE_12, CONFIG_12, 100, O_TRACE_TASK));
	CHECK(read_12(pid) == 100);
	TRY(check_order(r, 100));
	CHECK(old_count(r, 1, loop_a_branch, loop_a_head) == 1);
	CHECK(old_count(&r[99], 1, loop_a_branch, loop_a_head) == 0);
	stop(pid);
	return 0;
}

static int test_12_timestamps(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_yield, ALLOCATE_12, CONFIG_12, MAX_RECORDS,
		   O_TRACE_TASK | O_TIMESTAMPS));
	n = read_12(pid);
	CHECK(n > 0 && n < MAX_RECORDS);
	TRY(check_timestamps(n));
	stop(pid);
	return 0;
}

static int test_12_compat(void)
{
	pid_t pid;
	long n;

	TRY(traced(&pid, work_a, ALLOCATE_12, CONFIG_12, MAX_RECORDS, O_TRACE_TASK));
	n = read_12(pid);
	TRY(compat(READ_12, pid, n, n - 1, -1));
	stop(pid);
	return 0;
}

const struct test november_tests[] = {
	{ "init", test_11_init },
	{ "errors", test_11_errors },
	{ "records", test_11_records },
	{ "wrap", test_11_wrap },
	{ "timestamps", test_11_timestamps },
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
		CHECK(bts(READ_11, pid, r, i) == 0 && r->qualifier == INVALID);
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
	TRY(compat(READ_11, pid, bts32(INDEX_11, pid, NULL, 0), 0, 1));
	stop(pid);
	return 0;
}

const struct test man_tests[] = {
	{ "page", test_man_page },
	{ "records", test_11_records },
	{ "wrap", test_11_wrap },
	{ "timestamps", test_11_timestamps },
	{ "compat", test_man_compat },
	{ 0 },
};

const struct test december_tests[] = {
	{ "errors", test_12_errors },
	{ "records", test_12_records },
	{ "wrap", test_12_wrap },
	{ "timestamps", test_12_timestamps },
	{ "compat", test_12_compat },
	{ 0 },
};
