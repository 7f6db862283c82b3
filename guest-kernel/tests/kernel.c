// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * PTRACE_BTS_O_KERNEL: the kernel's branches on behalf of the traced task.
 */
#include <linux/capability.h>
#include "bts.h"

#define MIB (1ul << 20)

/* Returns the number of records that do not start near the target of the record before them. */
static unsigned long breaks(const struct record *r, long n)
{
	const struct record *last = NULL;
	unsigned long found = 0;

	for (; n > 0; n--, r++) {
		if (r->qualifier != BRANCH)
			continue;
		/* No sequence without a branch is longer, in the kernel or in this program. */
		if (last && (r->a < last->b || r->a - last->b > 4096))
			found++;
		last = r;
	}
	return found;
}

#define CALLS 50

static void work_getppid(void)
{
	for (int i = 0; i < CALLS; i++)
		syscall(SYS_getppid);
}

/* Stores the records of a tracee up to its exit, and returns their number. */
static long trace(pid_t *pid, void (*work)(void), struct record *r, long room,
		  unsigned long records, unsigned long flags, unsigned long virtual_size)
{
	long n;

	*pid = start(work);
	CHECK(*pid > 0);
	CHECK(config_virtual(*pid, RECORDS(records), flags, virtual_size) == 0);
	CHECK(next_stop(*pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, *pid, r, room);
	CHECK(n > 0 && n <= room);
	return n;
}

/*
 * A long interrupt, such as one that prints a warning about long interrupts, can take more branches
 * than there is room for. If records were lost and STATUS reported it, the test runs again, up to
 * three times in all. An instrumented kernel takes several times as many branches in a system call,
 * so those of work_calls() and work_long_call() are shorter each time.
 */
static unsigned int tries;
#define LOST 1
#define IF_LOST_AGAIN(pid) do { if (flags_of(pid) & O_LOST) { stop(pid); return LOST; } } while (0)

static int again(int (*test)(void))
{
	int result = LOST;

	for (tries = 0; result == LOST && tries < 3; tries++)
		result = test();
	tries = 0;
	if (result == LOST)
		FAIL("records are lost each time");
	return result;
}

/* More than a virtual buffer of 64 MiB has. An instrumented kernel takes as many branches. */
#define ROOM (3 << 20)
static struct record r[ROOM];

/* A whole short program: every system call enters the kernel and returns. */
static int test_all(void)
{
	unsigned long in = 0, out = 0, inside = 0, broken;
	pid_t pid;
	long n = trace(&pid, work_getppid, r, ROOM, 1 << 18, O_TRACE | O_KERNEL, 0);

	TRY(n < 0);
	CHECK(n < 1 << 18);
	for (long i = 0; i < n; i++) {
		in += !is_kernel(r[i].a) && is_kernel(r[i].b);
		out += is_kernel(r[i].a) && !is_kernel(r[i].b);
		inside += is_kernel(r[i].a) && is_kernel(r[i].b);
	}
	if (in < CALLS || out < CALLS || in > out + 1 || out > in + 1 || inside < 10 * CALLS)
		FAIL("%lu branches into the kernel, %lu out of it, %lu inside", in, out, inside);
	/* Branches are missing only around context switches, where recording is off. */
	broken = breaks(r, n);
	if (broken > 3)
		FAIL("%lu gaps in %ld records", broken, n);
	stop(pid);
	return 0;
}

static int test_kernel_only(void)
{
	unsigned long in = 0, inside = 0;
	pid_t pid;
	long n = trace(&pid, work_getppid, r, ROOM, 1 << 18, O_KERNEL, 0);

	TRY(n < 0);
	for (long i = 0; i < n; i++) {
		CHECK(is_kernel(r[i].b));
		in += !is_kernel(r[i].a);
		inside += is_kernel(r[i].a);
	}
	CHECK(in >= CALLS && inside > 10 * CALLS);
	CHECK(flags_of(pid) == O_KERNEL);
	stop(pid);
	return 0;
}

/* Without O_KERNEL only the returns from the kernel are recorded. */
static int test_user_only(void)
{
	pid_t pid;
	long n = trace(&pid, work_getppid, r, ROOM, 1 << 18, O_TRACE, 0);

	TRY(n < 0);
	for (long i = 0; i < n; i++)
		CHECK(!is_kernel(r[i].b));
	stop(pid);
	return 0;
}

/* A system call that takes many more branches than fit into the buffer. */
static void work_long_call(void)
{
	static char buffer[64 << 10];

	for (int i = 0; i < 3; i++)
		syscall(SYS_getrandom, buffer, sizeof(buffer) >> 2 * tries, 0);
	loop_a(1000);
}

static int long_call(unsigned long records, unsigned long flags)
{
	unsigned long broken, longest = 0, length = 0;
	unsigned long room = is_copied() && records > COPIED_ROOM ? COPIED_ROOM : records;
	pid_t pid;
	long n = trace(&pid, work_long_call, r, ROOM, records,
		       O_TRACE | O_KERNEL | O_VIRTUAL | flags, 64 * MIB);

	TRY(n < 0);
	CHECK(n < ROOM);
	IF_LOST_AGAIN(pid);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999);
	for (long i = 0; i < n; i++) {
		/* With PREEMPT_RT, the task switches to a thread that fetches memory for it. */
		if (r[i].qualifier != BRANCH)
			continue;
		length = is_kernel(r[i].b) ? length + 1 : 0;
		longest = length > longest ? length : longest;
	}
	if (longest < 4 * records)
		FAIL("the longest stretch in the kernel has only %lu branches", longest);
	broken = breaks(r, n);
	stop(pid);
	/* Recording is off while the kernel moves records and allocates pages for the next ones. */
	if (broken > 2 * (unsigned long)n / (room / 2) + 20)
		FAIL("%lu gaps in %ld records", broken, n);
	return 0;
}

static int long_call_5000(void)
{
	return long_call(5000, 0);
}

static int long_call_sched(void)
{
	return long_call(KERNEL_MIN, O_SCHED);
}

static int test_long_call(void)
{
	TRY(again(long_call_5000));
	return again(long_call_sched);
}

/* No branch of user mode is missing, whatever happens in the kernel. */
static int kernel_maze(void)
{
	struct path path = { 0 }, reference;
	pid_t pid;
	long n;

	TRY(path_reference(&reference));
	n = trace(&pid, work_maze, r, ROOM, KERNEL_MIN, O_TRACE | O_KERNEL | O_VIRTUAL, 64 * MIB);
	TRY(n < 0);
	IF_LOST_AGAIN(pid);
	TRY(path_add(&path, r, n));
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_maze(void)
{
	return again(kernel_maze);
}

static int signal_kernel_maze(void)
{
	struct path path = { 0 }, reference;
	unsigned long stops = 0;
	pid_t pid;
	int status;
	long n;

	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_VIRTUAL | O_SIGNAL,
			     RECORDS(10000)) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, ROOM);
		CHECK(n > 0);
		TRY(path_add(&path, r, n));
		stops++;
	} while (status >> 8 != AT_EXIT);
	CHECK(stops > 1);
	IF_LOST_AGAIN(pid);
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_signal(void)
{
	return again(signal_kernel_maze);
}

/* Each is longer than the one before, so on any kernel one of them begins with little room. */
static void work_calls(void)
{
	static char buffer[36 << 10];

	for (size_t size = 4 << 10; size <= sizeof(buffer); size += 4 << 10)
		syscall(SYS_getrandom, buffer, size >> 3 * tries, 0);
	loop_a(1000);
}

/*
 * A system call whose branches do not fit into the virtual buffer: they are kept until the next
 * DRAIN.
 */
static int signal_long_call(void)
{
	unsigned long stops = 0, broken = 0, loop = 0, all = 0;
	pid_t pid = start(work_calls);
	int status;
	long n, part, most = 0;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_VIRTUAL | O_SIGNAL,
			     RECORDS(32768)) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		most = bts(SIZE, pid, NULL, 0) > most ? bts(SIZE, pid, NULL, 0) : most;
		IF_LOST_AGAIN(pid);
		for (n = 0; (part = bts(DRAIN, pid, r + n, 333)) > 0; n += part)
			CHECK(n + part < ROOM - 333);
		CHECK(part == 0);
		broken += breaks(r, n);
		all += n;
		loop += count(r, n, loop_a_branch, loop_a_head);
		stops++;
	} while (status >> 8 != AT_EXIT);
	CHECK(loop == 999);
	if (stops < 3 || most <= 32768 || broken > 2 * all / 512 + 10 * stops)
		FAIL("%lu stops, %ld records at most, %lu gaps", stops, most, broken);
	stop(pid);
	return 0;
}

static int test_signal_long_call(void)
{
	return again(signal_long_call);
}

/*
 * A system call whose branches fit nowhere: the records are complete up to a full buffer. On an
 * instrumented kernel, a page fault before it can fill the virtual buffer, but loses nothing.
 */
static int test_signal_too_long_call(void)
{
	pid_t pid = start(work_long_call);
	int lost;
	long n, i;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_VIRTUAL | O_SIGNAL,
			     RECORDS(2 * KERNEL_MIN)) == 0);
	do {
		CHECK(next_stop(pid, 0) >> 8 == SIGIO);
		lost = flags_of(pid) & O_LOST;
		n = bts(DRAIN, pid, r, ROOM);
		CHECK(n > 0 && n < ROOM);
	} while (!lost);
	CHECK(n > 3 * KERNEL_MIN);
	for (i = 0; i < n; i++)
		if (r[i].qualifier != BRANCH)
			FAIL("record %ld of %ld has qualifier %#" PRIx64, i, n, r[i].qualifier);
	stop(pid);
	return 0;
}

/* The PMI itself takes branches. */
static int test_errors(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	REFUSED(config(pid, RECORDS(KERNEL_MIN - 1), O_KERNEL | O_SIGNAL), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(KERNEL_MIN - 1), O_TRACE | O_KERNEL | O_VIRTUAL, MIB),
		EINVAL);
	CHECK(config(pid, RECORDS(KERNEL_MIN), O_KERNEL | O_SIGNAL) == 0);
	CHECK(config(pid, RECORDS(KERNEL_MIN - 1), O_KERNEL) == 0);
	REFUSED(config(pid, 0, O_KERNEL), EINVAL);
	stop(pid);
	return 0;
}

/* Without a virtual buffer, branches of a long system call are lost, and STATUS has O_LOST. */
static int test_lost_is_told(void)
{
	pid_t pid = start(work_long_call);

	CHECK(pid > 0);
	CHECK(config(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_SIGNAL) == 0);
	CHECK(!(flags_of(pid) & O_LOST));
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	while (!(flags_of(pid) & O_LOST)) {
		/* Interrupts filled the buffer outside a system call. */
		CHECK(bts(DRAIN, pid, r, 0) > 0);
		CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	}
	CHECK(bts(SIZE, pid, NULL, 0) == KERNEL_MIN);
	/* O_LOST stays until CLEAR. */
	CHECK(bts(DRAIN, pid, r, 0) == KERNEL_MIN && flags_of(pid) & O_LOST);
	CHECK(bts(CLEAR, pid, NULL, 0) == 0 && !(flags_of(pid) & O_LOST));
	stop(pid);
	return 0;
}

/*
 * A long system call leaves more records than fit into the virtual buffer. Recording continues when
 * the ptracer has made room for the rest, although it has not drained it.
 */
static int test_drain_most(void)
{
	const long size = 2 * KERNEL_MIN, rest = KERNEL_MIN - 96;
	pid_t pid = start(work_long_call);
	long n;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_SIGNAL | O_VIRTUAL,
			     RECORDS(size)) == 0);
	for (;;) {
		CHECK(next_stop(pid, 0) >> 8 == SIGIO && flags_of(pid) & O_PAUSED);
		n = bts(SIZE, pid, NULL, 0);
		if (n > size + 10)
			break;
		CHECK(bts(DRAIN, pid, r, n) == n);
	}
	/* The rest fits into the virtual buffer without filling it. */
	CHECK(bts(DRAIN, pid, r, n - rest) == n - rest && bts(SIZE, pid, NULL, 0) == rest);
	if (flags_of(pid) & O_PAUSED)
		FAIL("it is still paused after DRAIN of %ld records of %ld", n - rest, n);
	CHECK(bts(DRAIN, pid, r, n) == rest);
	stop(pid);
	return 0;
}

/*
 * CONFIG without O_SIGNAL takes effect at once: the newest records of a buffer that is full replace
 * the oldest ones, and the tracee does not stop again.
 */
static int test_signal_off_full(void)
{
	const unsigned long flags = O_TRACE | O_KERNEL | O_VIRTUAL;
	const long size = 2 * KERNEL_MIN;
	pid_t pid = start(work_long_call);
	struct record one;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), flags | O_SIGNAL, RECORDS(size)) == 0);
	for (;;) {
		CHECK(next_stop(pid, 0) >> 8 == SIGIO);
		if (flags_of(pid) & O_LOST)
			break;
		CHECK(bts(CLEAR, pid, NULL, 0) == 0);
	}
	CHECK(bts(SIZE, pid, NULL, 0) > size + KERNEL_MIN);
	for (long i = 0; i < size; i++)
		CHECK(bts(GET, pid, &r[i], i) == sizeof(*r));
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), flags, RECORDS(size)) == 0);
	CHECK(flags_of(pid) == (flags | O_LOST));
	CHECK(bts(SIZE, pid, NULL, 0) == size);
	for (long i = 0; i < size; i++) {
		CHECK(bts(GET, pid, &one, i) == sizeof(one));
		if (memcmp(&one, &r[i], sizeof(one)))
			FAIL("record %ld is another one", i);
	}
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	stop(pid);
	return 0;
}

/*
 * At the end of a long system call, records wait for the virtual buffer. CONFIG with O_SIGNAL is
 * refused as for any buffer that is nearly full, and loses nothing.
 */
static int test_full_in_call(void)
{
	const unsigned long flags = O_TRACE | O_KERNEL | O_VIRTUAL;
	const long size = 2 * KERNEL_MIN;
	pid_t pid = start(work_long_call);
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0,
		      PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD));
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), flags | O_SIGNAL, RECORDS(size)) == 0);
	for (;;) {
		CHECK(!ptrace(PTRACE_SYSCALL, pid, 0, 0));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
		CHECK(status >> 8 == SIGIO || status >> 8 == (SIGTRAP | 0x80));
		if (status >> 8 == SIGIO)
			CHECK(bts(CLEAR, pid, NULL, 0) == 0);
		else if (flags_of(pid) & O_LOST)
			break;
	}
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > size + KERNEL_MIN);
	REFUSED(config_virtual(pid, RECORDS(KERNEL_MIN), flags | O_SIGNAL, RECORDS(size)), EBUSY);
	CHECK(bts(SIZE, pid, NULL, 0) == n);
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), flags, RECORDS(size)) == 0);
	CHECK(bts(SIZE, pid, NULL, 0) == size);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	stop(pid);
	return 0;
}

static void work_sleep(void)
{
	/* Long enough that the task is asleep before the time ends, also with a slow kernel. */
	for (int i = 0; i < 20; i++)
		usleep(10000);
}

/* Branches of the processor while the task sleeps are not recorded. */
static int test_sleep(void)
{
	pid_t pid;
	long n = trace(&pid, work_sleep, r, ROOM, 1 << 18, O_TRACE | O_KERNEL | O_SCHED, 0);

	TRY(n < 0);
	CHECK(n < 1 << 18);
	TRY(check_sched(r, n, "sleeping", 40));
	stop(pid);
	return 0;
}

/* A trace of the kernel wraps as other traces do. */
static int test_wrap(void)
{
	pid_t pid;
	long n = trace(&pid, work_long_call, r, ROOM, 1000, O_TRACE | O_KERNEL, 0);

	CHECK(n == 1000);
	CHECK(breaks(r, n) <= 3);
	CHECK(!(flags_of(pid) & O_LOST));
	stop(pid);
	return 0;
}

static int test_switch_on_and_off(void)
{
	pid_t pid = start(work_long_call);
	long before;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_VIRTUAL, 64 * MIB) == 0);
	before = locked();
	CHECK(before == KERNEL_MIN * sizeof(struct record) >> 10);
	for (int i = 0; i < 5; i++) {
		/* The pages for the kernel's records are also locked memory. */
		CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_VIRTUAL,
				     64 * MIB) == 0);
		CHECK(locked() > before);
		CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_VIRTUAL, 64 * MIB) == 0);
		CHECK(locked() == before);
	}
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

/* O_KERNEL needs CAP_PERFMON. */
static int test_capability(void)
{
	pid_t pid = start(work_getppid);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, RECORDS(1 << 16), O_TRACE | O_KERNEL) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	/* CAP_SYS_ADMIN implies it. */
	TRY(drop(CAP_PERFMON));
	CHECK(config(pid, RECORDS(1 << 16), O_TRACE | O_KERNEL) == 0);
	TRY(drop(CAP_SYS_ADMIN));
	REFUSED(config(pid, RECORDS(1 << 16), O_TRACE | O_KERNEL), EPERM);
	REFUSED(config(pid, 4096, O_KERNEL), EPERM);
	REFUSED(config_virtual(pid, 4096, O_KERNEL | O_VIRTUAL, MIB), EPERM);
	/* CONFIG has decided that the ptracer sees the kernel's addresses. */
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > 10 * CALLS);
	for (long i = 0; i < n; i++) {
		CHECK(bts(GET, pid, r, i) == sizeof(*r));
		CHECK(r->a != ~0ull && r->b != ~0ull);
	}
	CHECK(config(pid, RECORDS(1 << 16), O_TRACE) == 0);
	CHECK(bts(GET, pid, r, 0) == sizeof(*r) && r->a == ~0ull);
	CHECK(bts(DRAIN, pid, r, 0) == n);
	for (long i = 0; i < n; i++) {
		CHECK(!is_kernel(r[i].a) || r[i].a == ~0ull);
		CHECK(!is_kernel(r[i].b) || r[i].b == ~0ull);
	}
	stop(pid);
	return 0;
}

/* The task records while it exits, with and without a ptracer. */
static int test_exit(void)
{
	int status;

	for (int i = 0; i < 3; i++) {
		pid_t pid = start(i == 2 ? work_long_call : work_getppid);

		CHECK(pid > 0);
		CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_VIRTUAL,
				     i ? RECORDS(2 * KERNEL_MIN) : MIB) == 0);
		if (i == 1)
			CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
		else
			CHECK(next_stop(pid, 0) >> 8 == AT_EXIT && !ptrace(PTRACE_CONT, pid, 0, 0));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status) &&
		      !WEXITSTATUS(status));
		CHECK(locked() == 0);
	}
	return 0;
}

static void work_very_long_call(void)
{
	static char buffer[512 << 10];

	syscall(SYS_getrandom, buffer, sizeof(buffer), 0);
}

/*
 * The interrupt copies the records since the last one. However large the buffer is, these are at
 * most 112 KiB.
 */
static int test_short_interrupts(void)
{
	unsigned long limit = (112 << 10) / sizeof(struct record);
	unsigned long longest = 0, length = 0;
	uint64_t nmi, end;
	pid_t pid;
	long n;

	/* Its interrupt takes more branches, and moves that it makes elsewhere do not show. */
	if (is_instrumented())
		limit *= 4;
	if (!find_function("asm_exc_nmi", &nmi, &end))
		FAIL("no asm_exc_nmi in /proc/kallsyms");
	n = trace(&pid, work_very_long_call, r, ROOM, 4 * MIB / sizeof(struct record),
		  O_KERNEL | O_VIRTUAL, 16 * MIB);
	TRY(n < 0);
	CHECK(n < ROOM && n > (long)(4 * MIB / sizeof(struct record)));
	for (long i = 0; i < n; i++) {
		length = r[i].b == nmi ? 0 : length + 1;
		longest = length > longest ? length : longest;
	}
	if (longest > limit)
		FAIL("%lu records without an interrupt", longest);
	stop(pid);
	return 0;
}

static void work_two_loops(void)
{
	loop_a(15000);
	raise(SIGSTOP);
	loop_b(1000);
}

/* A large buffer may hold more records than an interrupt may move, when that starts. */
static int test_switch_on_full(void)
{
	const unsigned long size = 20000;
	pid_t pid = start(work_two_loops);
	long n;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(size), O_TRACE | O_VIRTUAL, RECORDS(1 << 18)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGSTOP && bts(SIZE, pid, NULL, 0) > 14999);
	CHECK(config_virtual(pid, RECORDS(size), O_TRACE | O_KERNEL | O_VIRTUAL,
			     RECORDS(1 << 18)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, ROOM);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 14999);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 999);
	CHECK(!(flags_of(pid) & O_LOST));
	stop(pid);
	return 0;
}

const struct test kernel_tests[] = {
	{ "all", test_all },
	{ "kernel_only", test_kernel_only },
	{ "user_only", test_user_only },
	{ "long_call", test_long_call },
	{ "maze", test_maze },
	{ "signal", test_signal },
	{ "signal_long_call", test_signal_long_call },
	{ "signal_too_long_call", test_signal_too_long_call },
	{ "errors", test_errors },
	{ "lost_is_told", test_lost_is_told },
	{ "drain_most", test_drain_most },
	{ "signal_off_full", test_signal_off_full },
	{ "full_in_call", test_full_in_call },
	{ "sleep", test_sleep },
	{ "wrap", test_wrap },
	{ "switch_on_and_off", test_switch_on_and_off },
	{ "switch_on_full", test_switch_on_full },
	{ "capability", test_capability },
	{ "exit", test_exit },
	{ "short_interrupts", test_short_interrupts },
	{ 0 },
};
