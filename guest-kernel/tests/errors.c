// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The error of each refused request. A refused request changes nothing.
 */
#include "bts.h"

#define MIB (1ul << 20)

/* Returns the last `size` bytes before an unmapped page. */
static void *before_end(size_t size)
{
	long page = sysconf(_SC_PAGESIZE);
	char *start = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0);

	if (start == MAP_FAILED || munmap(start + page, page))
		return NULL;
	return start + page - size;
}

static void *read_only(void)
{
	void *page = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return page == MAP_FAILED ? NULL : page;
}

/* A tracee at its exit with a trace of loop_a(1000). */
static int traced(pid_t *pid, unsigned long records, unsigned long flags)
{
	*pid = start(work_a);
	CHECK(*pid > 0);
	CHECK(config(*pid, RECORDS(records), O_TRACE | flags) == 0);
	CHECK(next_stop(*pid, 0) >> 8 == AT_EXIT);
	return 0;
}

static int test_no_buffer(void)
{
	struct record r;
	struct config cfg;
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	for (int i = 0; i < 2; i++) {
		REFUSED(bts(SIZE, pid, NULL, 0), ENXIO);
		REFUSED(bts(GET, pid, &r, 0), ENXIO);
		REFUSED(bts(CLEAR, pid, NULL, 0), ENXIO);
		REFUSED(bts(DRAIN, pid, &r, 1), ENXIO);
		/* After a buffer has been freed, requests fail as they do without one. */
		memset(&cfg, 0xff, sizeof(cfg));
		CHECK(bts(STATUS, pid, &cfg, 0) == CONFIG_SIZE && !cfg.size && !cfg.flags);
		CHECK(config(pid, 4096, i ? 0 : O_TRACE) == 0);
		CHECK(config(pid, 0, 0) == 0 && config(pid, 0, O_CUT) == 0);
	}
	stop(pid);
	return 0;
}

static int test_unknown_requests(void)
{
	pid_t pid = start(work_none);
	struct config cfg = { 4096, O_TRACE, 0 };

	CHECK(pid > 0);
	CHECK(config(pid, 4096, O_TRACE) == 0);
	for (int request = 34; request < 60; request++)
		if (request < CONFIG || request > TAKE_RUNNING) {
			REFUSED(bts(request, pid, &cfg, 0), EIO);
			CHECK(bts32(request, pid, &cfg, 0) == -EIO);
		}
	stop(pid);
	return 0;
}

static int test_config_address(void)
{
	struct config *ro = read_only();
	char *end = before_end(CONFIG_SIZE);
	struct config good = { 4096, O_TRACE, 0 };
	pid_t pid = start(work_none);

	CHECK(pid > 0 && ro && end);
	REFUSED(bts(CONFIG, pid, NULL, 0), EFAULT);
	REFUSED(bts(CONFIG, pid, (void *)0xffff888000001000ul, 0), EFAULT);
	REFUSED(bts(CONFIG, pid, (void *)~0ul, 0), EFAULT);
	/* Across the end of the mapping */
	memcpy(end, &good, CONFIG_SIZE);
	REFUSED(bts(CONFIG, pid, end + 1, 0), EFAULT);
	REFUSED(bts(CONFIG, pid, end + CONFIG_SIZE - 1, 0), EFAULT);
	CHECK(flags_of(pid) == 0);
	CHECK(bts(CONFIG, pid, end, 0) == 0);
	/*
	 * CONFIG reads the structure and does not write it, not even the flags that O_CUT_SIZE
	 * changes.
	 */
	CHECK(bts(CONFIG, pid, ro, 0) == 0 && flags_of(pid) == 0);
	stop(pid);
	return 0;
}

static int test_status_address(void)
{
	char *end = before_end(CONFIG_SIZE);
	pid_t pid = start(work_none);

	CHECK(pid > 0 && end);
	CHECK(config(pid, 4096, O_TRACE) == 0);
	REFUSED(bts(STATUS, pid, NULL, 0), EFAULT);
	REFUSED(bts(STATUS, pid, read_only(), 0), EFAULT);
	REFUSED(bts(STATUS, pid, (void *)0xffff888000001000ul, 0), EFAULT);
	REFUSED(bts(STATUS, pid, end + 1, 0), EFAULT);
	CHECK(bts(STATUS, pid, end, 0) == CONFIG_SIZE);
	stop(pid);
	return 0;
}

/* STATUS stores as much as the ptracer has room for, whatever the tracee's trace is. */
static int test_status_size(void)
{
	enum { BYTE = 0x5a };
	const unsigned long UNTOUCHED = ~0ul / 0xff * BYTE;
	struct {
		struct config cfg;
		unsigned long after[2];
	} s;
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(config_virtual(pid, 4096, O_TRACE | O_VIRTUAL, 1 << 20) == 0);
	/* A ptracer that knows nothing of the third word passes no size. */
	memset(&s, 0x5a, sizeof(s));
	CHECK(bts(STATUS, pid, &s, 0) == CONFIG_SIZE && s.cfg.size == RECORDS(170));
	CHECK(s.cfg.flags == (O_TRACE | O_VIRTUAL) && s.cfg.virtual_size == UNTOUCHED);
	/* All sizes that there may be */
	CHECK(bts(STATUS, pid, &s, CONFIG_SIZE) == CONFIG_SIZE);
	CHECK(s.cfg.virtual_size == UNTOUCHED);
	CHECK(bts(STATUS, pid, &s, sizeof(s.cfg)) == sizeof(s.cfg));
	CHECK(s.cfg.virtual_size == (1 << 20) / 24 * 24 && s.after[0] == UNTOUCHED);
	/* What a later kernel may add is zero. */
	CHECK(bts(STATUS, pid, &s, sizeof(s)) == sizeof(s.cfg) && !s.after[0] && !s.after[1]);
	REFUSED(bts(STATUS, pid, &s, CONFIG_SIZE - 1), EINVAL);
	REFUSED(bts(STATUS, pid, &s, 1), EINVAL);
	REFUSED(bts(STATUS, pid, &s, 4097), E2BIG);
	REFUSED(bts(STATUS, pid, &s, ~0ul), E2BIG);

	/* CONFIG takes a size, too. */
	s.cfg = (struct config){ 8192, O_TRACE | O_VIRTUAL, 1 << 20 };
	REFUSED(bts(CONFIG, pid, &s, CONFIG_SIZE), EINVAL);
	REFUSED(bts(CONFIG, pid, &s, CONFIG_SIZE - 1), EINVAL);
	CHECK(bts(CONFIG, pid, &s, sizeof(s.cfg)) == 0);
	CHECK(bts(CONFIG, pid, &s, sizeof(s)) == 0);
	s.after[1] = 1;
	REFUSED(bts(CONFIG, pid, &s, sizeof(s)), E2BIG);
	REFUSED(bts(CONFIG, pid, &s, ~0ul), E2BIG);
	stop(pid);
	return 0;
}

static int test_get_address(void)
{
	struct record *end = before_end(sizeof(*end)), r;
	pid_t pid;
	long n;

	TRY(traced(&pid, 4096, 0));
	n = bts(SIZE, pid, NULL, 0);
	CHECK(end && n > 999);
	REFUSED(bts(GET, pid, NULL, 0), EFAULT);
	REFUSED(bts(GET, pid, read_only(), 0), EFAULT);
	REFUSED(bts(GET, pid, (char *)end + 1, 0), EFAULT);
	REFUSED(bts(GET, pid, (void *)0xffff888000001000ul, 0), EFAULT);
	/* A bad index comes before a bad address. */
	REFUSED(bts(GET, pid, NULL, n), EINVAL);
	CHECK(bts(GET, pid, end, n - 1) == sizeof(*end) && end->qualifier == BRANCH);
	CHECK(bts(GET, pid, &r, n - 1) == sizeof(r) && !memcmp(&r, end, sizeof(r)));
	CHECK(bts(SIZE, pid, NULL, 0) == n);
	stop(pid);
	return 0;
}

static int test_get_index(void)
{
	static const unsigned long far[] = { 1ul << 31, TOO_LARGE, ~0ul,
					     ~0ul / sizeof(struct record) + 1,
#ifdef __LP64__
					     /* The lower half is a valid index. */
					     1ul << 32, 1ul << 32 | 99,
#endif
					   };
	struct record r, untouched;
	pid_t pid;

	TRY(traced(&pid, 100, 0));
	memset(&untouched, 0x5a, sizeof(untouched));
	r = untouched;
	REFUSED(bts(GET, pid, &r, 100), EINVAL);
	for (unsigned int i = 0; i < sizeof(far) / sizeof(*far); i++) {
		REFUSED(bts(GET, pid, &r, far[i]), EINVAL);
	}
	CHECK(!memcmp(&r, &untouched, sizeof(r)));
	CHECK(bts32(GET, pid, &r, ~0u) == -EINVAL);
	/* A buffer that has not wrapped has no record after the newest one. */
	CHECK(bts(CLEAR, pid, NULL, 0) == 0);
	REFUSED(bts(GET, pid, &r, 0), EINVAL);
	stop(pid);
	return 0;
}

/* The records that could not be copied are still there. */
static int test_drain_address(void)
{
	static struct record r[4096], all[4096];
	struct record *end = before_end(RECORDS(50));
	pid_t pid;
	long n;

	TRY(traced(&pid, 4096, 0));
	n = bts(SIZE, pid, NULL, 0);
	CHECK(end && n > 999);
	for (long i = 0; i < n; i++)
		CHECK(bts(GET, pid, &all[n - 1 - i], i) == sizeof(*r));
	REFUSED(bts(DRAIN, pid, NULL, 0), EFAULT);
	REFUSED(bts(DRAIN, pid, read_only(), 0), EFAULT);
	REFUSED(bts(DRAIN, pid, (void *)0xffff888000001000ul, 0), EFAULT);
	/* Half of the records would fit. */
	REFUSED(bts(DRAIN, pid, end, 0), EFAULT);
	CHECK(bts(SIZE, pid, NULL, 0) == n);
	CHECK(bts(DRAIN, pid, r, 0) == n && !memcmp(r, all, RECORDS(n)));
	/* With an empty buffer any address is valid. */
	CHECK(bts(DRAIN, pid, NULL, 0) == 0);
	stop(pid);
	return 0;
}

static int test_flags(void)
{
	struct config cfg;
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(config(pid, 4096, O_SCHED) == 0);
	for (int bit = 17; bit < __LONG_WIDTH__; bit++)
		REFUSED(config(pid, 4096, O_TRACE | 1ul << bit), EINVAL);
	CHECK(bts(STATUS, pid, &cfg, 0) > 0 && cfg.flags == O_SCHED && cfg.size == RECORDS(170));
	/* CONFIG accepts the flags that only STATUS sets, and ignores them. */
	CHECK(config(pid, 4096, O_TRACE | O_PAUSED | O_LOST) == 0 && flags_of(pid) == O_TRACE);
	/* O_CUT_SIZE is not kept. */
	CHECK(config(pid, 4096, O_TRACE | O_CUT) == 0 && flags_of(pid) == O_TRACE);
	/* Flags without a size */
	for (int bit = 0; bit < 8; bit++)
		if (1ul << bit & ~(O_CUT | O_PAUSED | O_LOST))
			REFUSED(config(pid, 0, 1ul << bit), EINVAL);
	CHECK(flags_of(pid) == O_TRACE);
	stop(pid);
	return 0;
}

static int test_signal_numbers(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	for (int signal = 0; signal < 256; signal++) {
		unsigned long flags = O_TRACE | O_SIGNAL | O_SIGNR(signal);

		if (signal > 64 || signal == SIGKILL || signal == SIGSTOP) {
			REFUSED(config(pid, RECORDS(64), flags), EINVAL);
		} else {
			CHECK(config(pid, RECORDS(64), flags) == 0);
			CHECK(flags_of(pid) == flags);
		}
		/* A signal number without O_SIGNAL */
		if (signal)
			REFUSED(config(pid, RECORDS(64), O_TRACE | O_SIGNR(signal)), EINVAL);
	}
	stop(pid);
	return 0;
}

static int test_sizes(void)
{
	static const unsigned long too_large[] = {
#ifdef __LP64__
		1ul << 40, 1ul << 47,
#endif
		TOO_LARGE / 2, TOO_LARGE, ~0ul, ~0ul - 4095, ~0ul / 2, ~0ul / 24 * 24,
	};
	struct config cfg;
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(config(pid, RECORDS(500), O_TRACE) == 0);
	for (unsigned int i = 0; i < sizeof(too_large) / sizeof(*too_large); i++) {
		REFUSED(config(pid, too_large[i], O_TRACE), ENOMEM);
		/* The old buffer continues, and no memory is locked for the new one. */
		CHECK(bts(STATUS, pid, &cfg, 0) > 0 && cfg.size == RECORDS(500) &&
		      cfg.flags == O_TRACE);
		CHECK(locked() == 12);
	}
	/* Less than a record */
	for (unsigned long size = 1; size < 24; size++) {
		REFUSED(config(pid, size, O_TRACE), ENOMEM);
		REFUSED(config(pid, size, O_TRACE | O_CUT), ENOMEM);
	}
	/* O_SIGNAL needs room for records after the threshold. */
	REFUSED(config(pid, RECORDS(63) + 23, O_TRACE | O_SIGNAL), EINVAL);
	CHECK(config(pid, RECORDS(64), O_TRACE | O_SIGNAL) == 0);
	CHECK(locked() == 4);
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

/* A 32-bit ptracer has pointers and sizes of 32 bits, and gets the same errors. */
static int test_compat(void)
{
	static struct {
		uint32_t size, flags, virtual_size;
	} cfg = { 4096, O_TRACE | O_SIGNR(1), 0 };
	static struct record r;
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(bts32(SIZE, pid, NULL, 0) == -ENXIO);
	CHECK(bts32(CONFIG, pid, NULL, 0) == -EFAULT);
	CHECK(bts32(CONFIG, pid, &cfg, 0) == -EINVAL);
	cfg.flags = O_TRACE | O_VIRTUAL;
	CHECK(bts32(CONFIG, pid, &cfg, 0) == -EINVAL);
	cfg.size = 0xffffffff;
	cfg.flags = O_TRACE;
	CHECK(bts32(CONFIG, pid, &cfg, 0) == -ENOMEM);
	cfg.size = 4096;
	CHECK(bts32(CONFIG, pid, &cfg, 0) == 0);
	/* STATUS writes two words only. */
	cfg.virtual_size = 0x5a5a5a5a;
	CHECK(bts32(STATUS, pid, &cfg, 0) == 8 && cfg.size == RECORDS(170) &&
	      cfg.virtual_size == 0x5a5a5a5a);
	CHECK(bts32(STATUS, pid, NULL, 0) == -EFAULT);
	CHECK(bts32(GET, pid, &r, 0) == -EINVAL);
	CHECK(bts32(DRAIN, pid, NULL, 0) == 0 && bts32(CLEAR, pid, NULL, 0) == 0);
	stop(pid);
	return 0;
}

/* Requests of a process that is not the ptracer fail, whatever its privileges. */
static int test_another_tracer(void)
{
	struct config cfg = { 4096, O_TRACE, 0 };
	pid_t pid = start(work_none), other;
	int status;

	CHECK(pid > 0);
	CHECK(config(pid, 4096, O_TRACE) == 0);
	other = fork();
	if (!other) {
		for (int request = CONFIG; request <= DRAIN; request++)
			if (bts(request, pid, &cfg, 0) != -1 || errno != ESRCH)
				_exit(1);
		_exit(0);
	}
	CHECK(waitpid(other, &status, 0) == other && status == 0);
	for (int request = CONFIG; request <= DRAIN; request++) {
		REFUSED(bts(request, 0, &cfg, 0), ESRCH);
		REFUSED(bts(request, getpid(), &cfg, 0), ESRCH);
	}
	CHECK(flags_of(pid) == O_TRACE);
	stop(pid);
	return 0;
}

const struct test errors_tests[] = {
	{ "no_buffer", test_no_buffer },
	{ "unknown_requests", test_unknown_requests },
	{ "config_address", test_config_address },
	{ "status_address", test_status_address },
	{ "status_size", test_status_size },
	{ "get_address", test_get_address },
	{ "get_index", test_get_index },
	{ "drain_address", test_drain_address },
	{ "flags", test_flags },
	{ "signal_numbers", test_signal_numbers },
	{ "sizes", test_sizes },
	{ "compat", test_compat },
	{ "another_tracer", test_another_tracer },
	{ 0 },
};
