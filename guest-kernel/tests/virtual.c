// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * PTRACE_BTS_O_VIRTUAL: a large buffer behind a small one.
 */
#include <linux/perf_event.h>
#include "bts.h"

#define MIB (1ul << 20)

/* Returns a tracee at its exit, after the maze, with this configuration. */
static int took_maze(pid_t *pid, unsigned long records, unsigned long flags,
		     unsigned long virtual_size)
{
	*pid = start(work_maze);
	CHECK(*pid > 0);
	CHECK(config_virtual(*pid, RECORDS(records), O_TRACE | O_VIRTUAL | flags, virtual_size) ==
	      0);
	CHECK(next_stop(*pid, 0) >> 8 == AT_EXIT);
	CHECK(!(flags_of(*pid) & (O_LOST | O_PAUSED)));
	return 0;
}

static int test_errors(void)
{
	long page = sysconf(_SC_PAGESIZE);
	char *end = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
	struct config short_one = { RECORDS(64), O_TRACE | O_VIRTUAL, MIB };
	pid_t pid = start(work_none);

	CHECK(pid > 0 && end != MAP_FAILED);
	end += page;
	CHECK(!munmap(end, page));
	/* The third word is used only with O_VIRTUAL. */
	memcpy(end - CONFIG_SIZE, &short_one, CONFIG_SIZE);
	REFUSED(bts(CONFIG, pid, end - CONFIG_SIZE, 0), EFAULT);
	short_one.flags = O_TRACE;
	memcpy(end - CONFIG_SIZE, &short_one, CONFIG_SIZE);
	CHECK(bts(CONFIG, pid, end - CONFIG_SIZE, 0) == 0);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, MIB) == 0);
	CHECK(bts(STATUS, pid, end - CONFIG_SIZE, 0) == CONFIG_SIZE);
	REFUSED(bts(STATUS, pid, end - CONFIG_SIZE, sizeof(struct config)), EFAULT);
	CHECK(bts(STATUS, pid, end - sizeof(struct config), sizeof(struct config)) ==
	      sizeof(struct config));

	REFUSED(config_virtual(pid, RECORDS(63), O_TRACE | O_VIRTUAL, MIB), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, 0), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, RECORDS(127)), EINVAL);
	REFUSED(config_virtual(pid, 0, O_VIRTUAL, MIB), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, TOO_LARGE), ENOMEM);
	REFUSED(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, ~0ul), ENOMEM);
	/* None of these has changed anything. */
	CHECK(flags_of(pid) == (O_TRACE | O_VIRTUAL));
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, RECORDS(128)) == 0);
	stop(pid);
	return 0;
}

static int test_status(void)
{
#ifdef __LP64__
	const unsigned long most = 1ul << 40;
#else
	const unsigned long most = TOO_LARGE;
#endif
	pid_t pid = start(work_none);
	struct config cfg;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, 4100, O_TRACE | O_VIRTUAL | O_SIGNAL | O_SIGNR(SIGUSR1),
			     MIB + 1) == 0);
	CHECK(bts(STATUS, pid, &cfg, sizeof(cfg)) == sizeof(cfg));
	CHECK(cfg.size == RECORDS(170) && cfg.virtual_size == RECORDS(MIB / sizeof(struct record)));
	CHECK(cfg.flags == (O_TRACE | O_VIRTUAL | O_SIGNAL | O_SIGNR(SIGUSR1)));
	/* Cut to the available memory, which is more than may be locked. */
	CHECK(config_virtual(pid, 4096, O_TRACE | O_VIRTUAL | O_CUT, most) == 0);
	CHECK(bts(STATUS, pid, &cfg, sizeof(cfg)) == sizeof(cfg));
	CHECK(cfg.size == RECORDS(170) && cfg.virtual_size >= 64 * MIB &&
	      cfg.virtual_size < most);
	CHECK(config_virtual(pid, ~0ul, O_TRACE | O_VIRTUAL | O_CUT, ~0ul) == 0);
	/* Without the flag there is no virtual buffer. */
	CHECK(config(pid, 4096, O_TRACE) == 0);
	CHECK(bts(STATUS, pid, &cfg, sizeof(cfg)) == sizeof(cfg) && cfg.flags == O_TRACE &&
	      !cfg.virtual_size);
	stop(pid);
	return 0;
}

static int drain_all(pid_t pid, struct path *path)
{
	const long room = 1 << 17;
	struct record *r = malloc(RECORDS(room));
	long n = bts(SIZE, pid, NULL, 0);

	CHECK(r && n > 0 && n <= room);
	CHECK(bts(DRAIN, pid, r, room) == n);
	CHECK(bts(SIZE, pid, NULL, 0) == 0 && bts(DRAIN, pid, r, room) == 0);
	TRY(path_add(path, r, n));
	free(r);
	return 0;
}

static int test_every_branch(void)
{
	static const unsigned long sizes[] = { 64, 65, 170, 171, 500, 2730 };
	struct path reference;

	TRY(path_reference(&reference));
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct path path = { 0 };
		pid_t pid;

		TRY(took_maze(&pid, sizes[i], 0, 4 * MIB));
		TRY(drain_all(pid, &path));
		stop(pid);
		TRY(path_compare(&path, &reference));
	}
	return 0;
}

/*
 * Runs a tracee through the maze, and compares its branches. With a period in ns, a timer
 * interrupts it. Sets the time in ns that it took.
 */
static int interrupted(unsigned long records, uint64_t period, const struct path *reference,
		       uint64_t *took)
{
	struct perf_event_attr timer = {
		.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_period = period,
	};
	struct path path = { 0 };
	pid_t pid = start(work_maze);
	uint64_t begin;
	int fd = -1;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(records), O_TRACE | O_VIRTUAL, 4 * MIB) == 0);
	if (period) {
		fd = perf_open(&timer, pid);
		CHECK(fd >= 0);
	}
	begin = monotonic();
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	*took = monotonic() - begin;
	CHECK(!(flags_of(pid) & (O_LOST | O_PAUSED)));
	TRY(drain_all(pid, &path));
	CHECK(!period || !close(fd));
	stop(pid);
	return path_compare(&path, reference);
}

/*
 * The timer interrupts every 10 us, often before the first instruction in user mode. On a slow
 * processor it interrupts some 500 times, because the task has to proceed.
 */
static int test_interrupts(void)
{
	static const unsigned long sizes[] = { 64, 100, 170, 2730 };
	struct path reference;
	uint64_t took, period;

	TRY(path_reference(&reference));
	TRY(interrupted(2730, 0, &reference, &took));
	period = took / 500 > 10000 ? took / 500 : 10000;
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		TRY(interrupted(sizes[i], period, &reference, &took));
	return 0;
}

/* A wrapped buffer of any size has the end of the trace. */
static int test_wrap(void)
{
	static const unsigned long sizes[] = { 128, 169, 170, 171, 340, 1000, 1700, 5000, 5001 };
	struct path reference;

	TRY(path_reference(&reference));
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct path path = { 0 }, end;
		struct record one;
		pid_t pid;
		long n;

		TRY(took_maze(&pid, 64, 0, RECORDS(sizes[i])));
		n = bts(SIZE, pid, NULL, 0);
		CHECK(n >= (long)sizes[i] && n <= (long)sizes[i] + 64);
		REFUSED(bts(GET, pid, &one, n), EINVAL);
		CHECK(bts(GET, pid, &one, n - 1) == sizeof(one));
		TRY(drain_all(pid, &path));
		/* After each interrupt of the processor, it records two returns to user mode. */
		if (path.n < n - 2 * n / threshold(64) - 200 || !path.n)
			FAIL("%ld records, %ld of the maze", n, path.n);
		end = reference;
		end.r += reference.n - path.n;
		end.n = path.n;
		stop(pid);
		TRY(path_compare(&path, &end));
	}
	return 0;
}

/* DRAIN takes a part of the records. The rest stays, in order. */
static int test_partial_drain(void)
{
	static const unsigned long parts[] = { 1, 2, 7, 64, 169, 170, 171, 500, 4095 };
	static const unsigned long sizes[] = { RECORDS(1000), 4 * MIB };
	static struct record r[4097];
	struct path reference;

	TRY(path_reference(&reference));
	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct path path = { 0 }, end = reference;
		unsigned int part = 0;
		pid_t pid;
		long left, n;

		TRY(took_maze(&pid, 64, 0, sizes[i]));
		left = bts(SIZE, pid, NULL, 0);
		CHECK(bts(DRAIN, pid, r, 0) == 0 && bts(SIZE, pid, NULL, 0) == left);
		REFUSED(bts(DRAIN, pid, NULL, 1), EFAULT);
		CHECK(bts(SIZE, pid, NULL, 0) == left);
		while (left) {
			unsigned long want = parts[part++ % (sizeof(parts) / sizeof(parts[0]))];

			memset(r, 0xa5, sizeof(r));
			n = bts(DRAIN, pid, r, want);
			CHECK(n == (left < (long)want ? left : (long)want));
			CHECK(r[n].qualifier == 0xa5a5a5a5a5a5a5a5);
			left -= n;
			CHECK(bts(SIZE, pid, NULL, 0) == left);
			TRY(path_add(&path, r, n));
		}
		stop(pid);
		end.r += reference.n - path.n;
		end.n = path.n;
		TRY(path_compare(&path, &end));
		if (sizes[i] == 4 * MIB)
			CHECK(path.n == reference.n);
	}
	return 0;
}

/* After each part, recording continues when the tracee runs. */
static int test_partial_drain_meanwhile(void)
{
	static struct record r[300];
	struct path path = { 0 }, reference;
	pid_t pid;
	int status;
	long n;

	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL | O_SIGNAL, RECORDS(1000)) == 0);
	for (unsigned long want = 100; (status = next_stop(pid, 0)) >> 8 != AT_EXIT;
	     want = want % 300 + 1) {
		CHECK(status >> 8 == SIGIO && flags_of(pid) & O_PAUSED);
		n = bts(SIZE, pid, NULL, 0);
		CHECK(n > 1000 - 64 && n < 1000 + 64);
		do {
			n = bts(DRAIN, pid, r, want);
			CHECK(n == (long)want);
			TRY(path_add(&path, r, n));
		} while (flags_of(pid) & O_PAUSED);
	}
	while ((n = bts(DRAIN, pid, r, 300)) > 0)
		TRY(path_add(&path, r, n));
	CHECK(n == 0 && !(flags_of(pid) & O_LOST));
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_signal(void)
{
	struct path path = { 0 }, reference;
	unsigned long stops = 0;
	pid_t pid;
	int status;

	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(100), O_TRACE | O_VIRTUAL | O_SIGNAL | O_SIGNR(SIGUSR2),
			     RECORDS(2000)) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGUSR2 || status >> 8 == AT_EXIT);
		TRY(drain_all(pid, &path));
		CHECK(!(flags_of(pid) & (O_PAUSED | O_LOST)));
		stops++;
	} while (status >> 8 != AT_EXIT);
	CHECK(stops >= (unsigned long)path.n / 2100 && stops <= (unsigned long)path.n / 1800 + 1);
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_get(void)
{
	struct path path = { 0 }, reference;
	struct record one;
	pid_t pid;
	long n;

	TRY(path_reference(&reference));
	TRY(took_maze(&pid, 64, 0, 4 * MIB));
	n = bts(SIZE, pid, NULL, 0);
	while (n--) {
		CHECK(bts(GET, pid, &one, n) == sizeof(one));
		TRY(path_add(&path, &one, 1));
	}
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_clear(void)
{
	static struct record r[4096];
	pid_t pid = start(work_a);
	long n;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL | O_SIGNAL, RECORDS(500)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(bts(CLEAR, pid, NULL, 0) == 0 && bts(SIZE, pid, NULL, 0) == 0);
	CHECK(!(flags_of(pid) & O_PAUSED));
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	n = bts(DRAIN, pid, r, 4096);
	CHECK(n > 400 && count(r, n, loop_a_branch, loop_a_head) > (is_unfiltered() ? 350 : 400));
	stop(pid);
	return 0;
}

/* Records stay if no size changes. */
static int test_reconfigure(void)
{
	struct path path = { 0 }, reference;
	pid_t pid;
	long n;

	TRY(path_reference(&reference));
	TRY(took_maze(&pid, 64, O_SCHED, 4 * MIB));
	n = bts(SIZE, pid, NULL, 0);
	CHECK(config_virtual(pid, RECORDS(64), O_VIRTUAL | O_SIGNAL, 4 * MIB) == 0);
	CHECK(bts(SIZE, pid, NULL, 0) == n);
	TRY(drain_all(pid, &path));
	TRY(path_compare(&path, &reference));
	stop(pid);

	TRY(took_maze(&pid, 64, 0, RECORDS(1000)));
	/* A wrapped buffer refuses O_SIGNAL. */
	REFUSED(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL | O_SIGNAL, RECORDS(1000)),
		EBUSY);
	CHECK(bts(SIZE, pid, NULL, 0) >= 1000);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL | O_SIGNAL, RECORDS(1001)) == 0);
	CHECK(bts(SIZE, pid, NULL, 0) == 0);
	CHECK(config(pid, RECORDS(64), O_TRACE) == 0 && flags_of(pid) == O_TRACE);
	stop(pid);
	return 0;
}

static void work_sched(void)
{
	for (int i = 0; i < 200; i++) {
		loop_a(101);
		sched_yield();
		/* Long enough to sleep, also on a slow machine */
		usleep(10000);
	}
}

static int test_sched(void)
{
	const long room = 1 << 17;
	struct record *r = malloc(RECORDS(room));
	pid_t pid = start(work_sched);
	long n;

	CHECK(r && pid > 0);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_SCHED | O_VIRTUAL, 4 * MIB) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(!(flags_of(pid) & O_LOST));
	n = bts(DRAIN, pid, r, room);
	CHECK(n > 20000 && n < room);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 20000);
	TRY(check_sched(r, n, "a", 400));
	stop(pid);
	return 0;
}

/* The tracee's limits do not apply to the file of the virtual buffer. */
static void work_limited(void)
{
	struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_FSIZE, &none);
	setrlimit(RLIMIT_MEMLOCK, &none);
	work_maze();
}

static int test_limits_of_tracee(void)
{
	struct path path = { 0 }, reference;
	pid_t pid;

	TRY(path_reference(&reference));
	pid = start(work_limited);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, 4 * MIB) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	TRY(drain_all(pid, &path));
	stop(pid);
	return path_compare(&path, &reference);
}

/* Only the small buffer counts as locked memory. */
static int unprivileged(void)
{
	struct rlimit limit = { 64 << 10, 64 << 10 };
	struct path path = { 0 }, reference;
	pid_t pid;

	TRY(path_reference(&reference));
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	pid = start(work_maze);
	CHECK(pid > 0);
	REFUSED(config_virtual(pid, 65 << 10, O_TRACE | O_VIRTUAL, 16 * MIB), ENOMEM);
	CHECK(locked() == 0);
	for (int i = 0; i < 10; i++) {
		CHECK(config_virtual(pid, 60 << 10, O_TRACE | O_VIRTUAL, (16 + i) * MIB) == 0);
		CHECK(locked() == 60);
		CHECK(config(pid, 0, 0) == 0);
		CHECK(locked() == 0);
	}
	CHECK(config_virtual(pid, 60 << 10, O_TRACE | O_VIRTUAL, 16 * MIB) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	TRY(drain_all(pid, &path));
	stop(pid);
	CHECK(locked() == 0);
	return path_compare(&path, &reference);
}

static int test_memlock(void)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		/* The first trace of this task is large. */
		struct rlimit limit = { 16 << 20, 16 << 20 };

		_exit(setrlimit(RLIMIT_MEMLOCK, &limit) || setgid(65534) || setuid(65534) ||
		      prctl(PR_SET_DUMPABLE, 1) || unprivileged());
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
}

static long shmem_kib(void)
{
	return proc_number("/proc/meminfo", "Shmem");
}

static void work_long(void)
{
	loop_a(1000000);
}

/* A million branches: memory is allocated as the buffer fills, and freed as it is drained. */
static int test_long(void)
{
	const long room = 10000;
	struct record *r = malloc(RECORDS(room));
	unsigned long branches = 0;
	long before, full, after, n;
	pid_t pid = start(work_long);

	CHECK(r && pid > 0);
	memset(r, 0, RECORDS(room));
	CHECK(config_virtual(pid, 64 << 10, O_TRACE | O_VIRTUAL | O_SIGNAL, 64 * MIB) == 0);
	before = shmem_kib();
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	full = shmem_kib() - before;
	/* 170 records a page */
	if (full < 22 << 10 || full > 25 << 10)
		FAIL("%ld KiB for a million records", full);
	while ((n = bts(DRAIN, pid, r, room)) > 0) {
		branches += count(r, n, loop_a_branch, loop_a_head);
		/* After half of the records, half of the memory is free. */
		if (branches > 500000 && branches < 500000 + (unsigned long)room) {
			after = shmem_kib() - before;
			if (after > 13 << 10)
				FAIL("%ld KiB full, %ld half drained", full, after);
		}
	}
	after = shmem_kib() - before;
	if (after > 512)
		FAIL("%ld KiB full, %ld drained", full, after);
	if (branches != 999999)
		FAIL("%lu branches", branches);
	stop(pid);
	return 0;
}

/*
 * ptrace from a 32-bit program: the words of the configuration are shorter, the records are the
 * same.
 */
static int test_compat(void)
{
	static struct {
		uint32_t size, flags, virtual_size;
	} cfg = { RECORDS(64), O_TRACE | O_VIRTUAL, 4 * MIB };
	static struct record r[1 << 16];
	struct path path = { 0 }, reference;
	pid_t pid;
	int n;

	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(bts32(CONFIG, pid, &cfg, 0) == 0);
	memset(&cfg, 0, sizeof(cfg));
	CHECK(bts32(STATUS, pid, &cfg, sizeof(cfg)) == sizeof(cfg));
	CHECK(cfg.size == RECORDS(64) && cfg.flags == (O_TRACE | O_VIRTUAL));
	CHECK(cfg.virtual_size == RECORDS(4 * MIB / sizeof(struct record)));
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	while ((n = bts32(DRAIN, pid, r, 1 << 16)) > 0)
		TRY(path_add(&path, r, n));
	CHECK(n == 0);
	stop(pid);
	return path_compare(&path, &reference);
}

/*
 * At the stop, the processor's buffer may hold records that did not fit into the virtual buffer.
 * Recording continues when there is room for them, although they have not been drained.
 */
static int test_drain_most(void)
{
	static struct record r[2048];
	struct path path = { 0 }, reference;
	const long size = 512;
	pid_t pid;
	int status;
	long n;

	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(128), O_TRACE | O_SIGNAL | O_VIRTUAL, RECORDS(size)) ==
	      0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		/* All but one, in two steps of which the first makes too little room. */
		n = bts(SIZE, pid, NULL, 0);
		CHECK(n > 1);
		if (status >> 8 == SIGIO) {
			CHECK(n > size - 128);
			CHECK(bts(DRAIN, pid, r, 1) == 1);
			TRY(path_add(&path, r, 1));
			n -= 2;
		}
		CHECK(bts(DRAIN, pid, r, n) == n);
		TRY(path_add(&path, r, n));
		if (flags_of(pid) & (O_PAUSED | O_LOST))
			FAIL("flags %#lx after DRAIN of all but one", flags_of(pid));
	} while (status >> 8 == SIGIO);
	stop(pid);
	return path_compare(&path, &reference);
}

/* A stop at which most of the buffer remains: it records nothing, and says so. */
static int test_drain_few(void)
{
	static struct record r[2048];
	pid_t pid = start(work_maze);

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(128), O_TRACE | O_SIGNAL | O_VIRTUAL, RECORDS(512)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(bts(DRAIN, pid, r, 1) == 1 && (flags_of(pid) & (O_PAUSED | O_LOST)) == O_PAUSED);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK((flags_of(pid) & (O_PAUSED | O_LOST)) == (O_PAUSED | O_LOST));
	stop(pid);
	return 0;
}

const struct test virtual_tests[] = {
	{ "errors", test_errors },
	{ "status", test_status },
	{ "every_branch", test_every_branch },
	{ "interrupts", test_interrupts },
	{ "wrap", test_wrap },
	{ "partial_drain", test_partial_drain },
	{ "partial_drain_meanwhile", test_partial_drain_meanwhile },
	{ "signal", test_signal },
	{ "get", test_get },
	{ "clear", test_clear },
	{ "reconfigure", test_reconfigure },
	{ "sched", test_sched },
	{ "limits_of_tracee", test_limits_of_tracee },
	{ "memlock", test_memlock },
	{ "long", test_long },
	{ "compat", test_compat },
	{ "drain_most", test_drain_most },
	{ "drain_few", test_drain_few },
	{ 0 },
};
