// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Tasks that start, exit, fork and exec while they are traced.
 */
#include <linux/futex.h>
#include "bts.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/select.h>

/* An ioctl of guest-kernel/patches/vbts */
#define FIOREADERS 0x5461

/* Each task waits for the other, so that they alternate on one processor. */
static int to_a[2], to_b[2];

static void work_a_in_turn(void)
{
	char turn = 0;

	for (int i = 0; i < 20; i++) {
		loop_a(101);
		if (write(to_b[1], &turn, 1) != 1 || read(to_a[0], &turn, 1) != 1)
			_exit(1);
	}
}

static void work_b_in_turn(void)
{
	char turn = 0;

	for (int i = 0; i < 20; i++) {
		loop_b(51);
		if (read(to_b[0], &turn, 1) != 1 || write(to_a[1], &turn, 1) != 1)
			_exit(1);
	}
}

static int test_two_tasks(void)
{
	static struct record r[2][8192];
	cpu_set_t first;
	pid_t pid[2];
	long n[2];

	CHECK(!pipe(to_a) && !pipe(to_b));
	/* On two processors, one may not wait, because the other has already written. */
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	CHECK(!sched_setaffinity(0, sizeof(first), &first));
	pid[0] = start(work_a_in_turn);
	pid[1] = start(work_b_in_turn);
	for (int i = 0; i < 2; i++) {
		CHECK(pid[i] > 0);
		CHECK(config(pid[i], sizeof(r[i]), O_TRACE | O_SCHED) == 0);
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ptrace(PTRACE_CONT, pid[i], 0, 0));
	for (int i = 0; i < 2; i++) {
		int status;

		CHECK(waitpid(pid[i], &status, __WALL) == pid[i] && status >> 8 == AT_EXIT);
		n[i] = bts(DRAIN, pid[i], r[i], 0);
		CHECK(n[i] > 0 && n[i] < 8192);
	}
	CHECK(count(r[0], n[0], loop_a_branch, loop_a_head) == 2000);
	CHECK(count(r[1], n[1], loop_b_branch, loop_b_head) == 1000);
	CHECK(count(r[0], n[0], loop_b_branch, loop_b_head) == 0);
	CHECK(count(r[1], n[1], loop_a_branch, loop_a_head) == 0);
	TRY(check_sched(r[0], n[0], "a", 20));
	TRY(check_sched(r[1], n[1], "b", 20));
	stop(pid[0]);
	stop(pid[1]);
	return 0;
}

static void work_fork(void)
{
	pid_t pid = fork();

	if (!pid) {
		loop_b(1000);
		_exit(0);
	}
	loop_a(1000);
	waitpid(pid, NULL, 0);
}

static int test_fork(void)
{
	static struct record r[8192];
	pid_t pid = start(work_fork), child;
	unsigned long message;
	struct config cfg;
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0,
		      PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL));
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	CHECK(next_stop(pid, 0) >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8));
	CHECK(!ptrace(PTRACE_GETEVENTMSG, pid, 0, &message));
	child = (pid_t)message;
	CHECK(waitpid(child, &status, __WALL) == child);
	CHECK(bts(STATUS, child, &cfg, 0) > 0 && !cfg.size);
	CHECK(next_stop(child, 0) >> 8 == AT_EXIT);
	REFUSED(bts(SIZE, child, NULL, 0), ENXIO);
	ptrace(PTRACE_CONT, child, 0, 0);
	CHECK(waitpid(child, &status, __WALL) == child && WIFEXITED(status));
	do
		status = next_stop(pid, 0);
	while (status >> 8 == SIGCHLD);
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 0);
	stop(pid);
	return 0;
}

static void work_exec(void)
{
	loop_a(1000);
	execl("/proc/self/exe", "ptrace_bts", "loop_b", NULL);
}

static int test_exec(void)
{
	static struct record r[1 << 16];
	pid_t pid = start(work_exec);
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	while ((status = next_stop(pid, 0)) >> 8 == SIGTRAP)
		;
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999);
	/* Built without -static-pie, the program is at the same addresses again. */
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 499);
	stop(pid);
	return 0;
}

static void work_until_told(void)
{
	for (;;) {
		loop_a(1000);
		sched_yield();
	}
}

static int test_detach(void)
{
	static struct record r[4096];
	pid_t pid = start(work_until_told);
	struct config cfg;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SCHED) == 0);
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
	for (int i = 0; i < 10; i++)
		sched_yield();
	if (attach(pid))
		return -1;
	CHECK(bts(STATUS, pid, &cfg, 0) > 0 && !cfg.size);
	/* Immediately after the detach, before the task could run */
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
	if (attach(pid))
		return -1;
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	stop(pid);
	return 0;
}

static int test_tracer_death(void)
{
	int shared[2];
	pid_t pid, tracer;
	struct config cfg;
	int status;

	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	CHECK(!pipe(shared));
	tracer = fork();
	if (!tracer) {
		pid = fork();
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, 0);
			work_until_told();
		}
		_exit(attach(pid) || config(pid, 1 << 16, O_TRACE | O_SCHED | O_SIGNAL) ||
		      ptrace(PTRACE_CONT, pid, 0, 0) || waitpid(pid, &status, __WALL) != pid ||
		      write(shared[1], &pid, sizeof(pid)) != sizeof(pid) ||
		      config(pid, 1 << 16, O_TRACE) == 0 /* EBUSY: not drained */ ||
		      bts(CLEAR, pid, NULL, 0) || ptrace(PTRACE_CONT, pid, 0, 0) ? 1 : 42);
	}
	CHECK(waitpid(tracer, &status, 0) == tracer);
	CHECK(read(shared[0], &pid, sizeof(pid)) == sizeof(pid));
	/* It records without a ptracer. It must release the buffer and survive. */
	for (int i = 0; i < 100; i++)
		sched_yield();
	CHECK(waitpid(pid, &status, WNOHANG) == 0);
	if (attach(pid))
		return -1;
	CHECK(bts(STATUS, pid, &cfg, 0) > 0 && !cfg.size);
	CHECK(config(pid, 1 << 16, O_TRACE) == 0);
	stop(pid);
	return 0;
}

/* ptrace's own errors have precedence. */
static int test_not_stopped(void)
{
	pid_t pid = start(work_until_told), other = fork();
	struct config cfg = { 4096, O_TRACE, 0 };

	if (!other)
		work_until_told();
	CHECK(pid > 0 && other > 0);
	for (int request = CONFIG; request <= DRAIN; request++)
		REFUSED(bts(request, other, &cfg, 0), ESRCH);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	for (int request = CONFIG; request <= DRAIN; request++)
		REFUSED(bts(request, pid, &cfg, 0), ESRCH);
	kill(other, SIGKILL);
	CHECK(waitpid(other, NULL, 0) == other);
	for (int request = CONFIG; request <= DRAIN; request++)
		REFUSED(bts(request, other, &cfg, 0), ESRCH);
	stop(pid);
	return 0;
}

/* Killed while it records, at any time: all its memory is released. */
static int test_killed(void)
{
	return kill_while_recording(work_until_told);
}

/* A new size during a trace: older records are discarded, all later ones are there. */
static void work_resize(void)
{
	loop_a(1000);
	raise(SIGUSR1);
	loop_b(1000);
}

static int test_resize(void)
{
	static const unsigned long sizes[] = { 100, 5000, 64, 2000, 1 << 16 };
	static struct record r[1 << 16];

	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		pid_t pid = start(work_resize);
		long n;

		CHECK(pid > 0);
		CHECK(config(pid, RECORDS(1000), O_TRACE) == 0);
		CHECK(next_stop(pid, 0) >> 8 == SIGUSR1);
		CHECK(bts(SIZE, pid, NULL, 0) == 1000);
		/* Part of a record more is the same size. */
		CHECK(config(pid, RECORDS(1000) + 23, O_TRACE) == 0);
		CHECK(bts(SIZE, pid, NULL, 0) == 1000);
		CHECK(config(pid, RECORDS(sizes[i]), O_TRACE) == 0);
		CHECK(bts(SIZE, pid, NULL, 0) == 0);
		CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, 0);
		CHECK(n > 0 && n <= (long)sizes[i]);
		CHECK(count(r, n, loop_a_branch, loop_a_head) == 0);
		if (sizes[i] >= 2000)
			CHECK(n < (long)sizes[i] && count(r, n, loop_b_branch, loop_b_head) == 999);
		else
			CHECK(n == (long)sizes[i]);
		stop(pid);
	}
	CHECK(locked() == 0);
	return 0;
}

/* Recording stops and continues. The records stay. */
static int test_off_and_on(void)
{
	static struct record r[8192];
	pid_t pid = start(work_resize);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR1);
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > 999);
	CHECK(config(pid, sizeof(r), 0) == 0 && bts(SIZE, pid, NULL, 0) == n);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) == n && bts(DRAIN, pid, r, 0) == n);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999 &&
	      count(r, n, loop_b_branch, loop_b_head) == 0);
	stop(pid);
	return 0;
}

/* Stacks of threads that make only system calls: libc's functions would need more. */
static char thread_stack[2][64 << 10] __attribute__((aligned(16)));

static int thread_b(void *argument)
{
	(void)argument;
	loop_b(1000);
	syscall(SYS_exit, 0);
	return 0;
}

static void work_thread(void)
{
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
		    CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
	static int alive = 1;

	if (clone(thread_b, thread_stack[0] + sizeof(thread_stack[0]), flags, NULL, NULL, NULL,
		  &alive) < 0)
		_exit(1);
	loop_a(1000);
	/*
	 * Wait for the other thread: the end of the process would also end it while it is stopped.
	 */
	while (__atomic_load_n(&alive, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &alive, FUTEX_WAIT, 1, NULL);
}

/* Each thread of a process has a buffer of its own. */
static int test_threads(void)
{
	static struct record r[2][8192];
	unsigned long message;
	pid_t pid = start(work_thread), thread;
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0,
		      PTRACE_O_TRACEEXIT | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
	CHECK(config(pid, sizeof(r[0]), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == (SIGTRAP | PTRACE_EVENT_CLONE << 8));
	CHECK(!ptrace(PTRACE_GETEVENTMSG, pid, 0, &message));
	thread = (pid_t)message;
	CHECK(waitpid(thread, &status, __WALL) == thread);
	CHECK(flags_of(thread) == 0);
	CHECK(config(thread, sizeof(r[1]), O_TRACE) == 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(next_stop(thread, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, thread, r[1], 0);
	CHECK(n > 0 && count(r[1], n, loop_b_branch, loop_b_head) == 999);
	CHECK(count(r[1], n, loop_a_branch, loop_a_head) == 0);
	CHECK(!ptrace(PTRACE_CONT, thread, 0, 0));
	CHECK(waitpid(thread, &status, __WALL) == thread && WIFEXITED(status));
	CHECK(waitpid(pid, &status, __WALL) == pid && status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r[0], 0);
	CHECK(n > 0 && count(r[0], n, loop_a_branch, loop_a_head) == 999);
	CHECK(count(r[0], n, loop_b_branch, loop_b_head) == 0);
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

static void work_vfork(void)
{
	pid_t pid = vfork();

	if (!pid) {
		loop_b(1000);
		_exit(0);
	}
	loop_a(1000);
	waitpid(pid, NULL, 0);
}

/* The child uses the parent's memory, but does not write to the parent's buffer. */
static int test_vfork(void)
{
	static struct record r[8192];
	pid_t pid = start(work_vfork);
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SCHED) == 0);
	do
		status = next_stop(pid, 0);
	while (status >> 8 == SIGCHLD);
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 999);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 0);
	stop(pid);
	return 0;
}

#ifdef __i386__
#define NATIVE_CODE ".code32\n"

static int test_32_bit_code(void)
{
	snprintf(why, WHY_SIZE, "a 32-bit kernel has no other code");
	return 0;
}
#else
#define NATIVE_CODE ".code64\n"

/*
 * A loop in 32-bit code, with a stack below 4 GiB.
 */
extern const char loop_32_head[], loop_32_branch[];
void loop_32(unsigned long count);
asm(".text\n.globl loop_32\nloop_32:\n"
    "movq %rsp, loop_32_rsp\nmovq $loop_32_stack, %rsp\n"
    "pushq $0x23\npushq $loop_32_head\nlretq\n"
    ".code32\n.globl loop_32_head\nloop_32_head:\ndec %edi\n"
    ".globl loop_32_branch\nloop_32_branch:\njnz loop_32_head\n"
    "ljmp $0x33, $1f\n"
    ".code64\n1:\nmovq loop_32_rsp, %rsp\nret\n"
    ".data\n.balign 16\nloop_32_rsp: .quad 0\n.skip 248\nloop_32_stack:\n.text\n");

static void work_32(void)
{
	loop_32(10000);
}

static int test_32_bit_code(void)
{
	static struct record r[1 << 15];
	pid_t pid = start(work_32);
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, sizeof(r)) == 0);
	status = next_stop(pid, 0);
	if (status >> 8 != AT_EXIT)
		FAIL("status %#x", status);
	n = bts(DRAIN, pid, r, 1 << 15);
	CHECK(n > 0 && count(r, n, loop_32_branch, loop_32_head) == 9999);
	stop(pid);
	return 0;
}
#endif

/* Many tracees at the same time, with random requests to each. */
static int test_many(void)
{
	enum { TRACEES = 16 };
	static const unsigned long flags[] = {
		0,
		O_TRACE,
		O_TRACE | O_SCHED,
		O_TRACE | O_SIGNAL,
		O_TRACE | O_SIGNAL | O_SCHED,
		O_TRACE | O_VIRTUAL,
		O_TRACE | O_VIRTUAL | O_SIGNAL,
		O_TRACE | O_KERNEL,
		O_KERNEL | O_VIRTUAL,
		O_TRACE | O_KERNEL | O_VIRTUAL | O_SIGNAL,
	};
	static struct record r[1 << 15], one;
	pid_t pids[TRACEES] = { 0 };
	unsigned int x = 1;
	int status;

	for (int i = 0; i < 3000; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		pid_t *pid = &pids[x % TRACEES];
		unsigned int what = x >> 8 & 15;

		if (!*pid) {
			*pid = start(work_until_told);
			CHECK(*pid > 0);
			continue;
		}
		/* It is stopped. */
		if (what < 4) {
			errno = 0;
			if (config_virtual(*pid, RECORDS(KERNEL_MIN << (x >> 12 & 1)),
					   flags[(x >> 16) % 10], 1 << 19))
				CHECK(errno == EBUSY);
		} else if (what < 6) {
			CHECK(bts(DRAIN, *pid, r, x >> 16 & 0x7fff) >= 0 || errno == ENXIO);
		} else if (what == 6) {
			CHECK(bts(CLEAR, *pid, NULL, 0) == 0 || errno == ENXIO);
		} else if (what == 7) {
			CHECK(bts(GET, *pid, &one, x >> 20) > 0 || errno == ENXIO ||
			      errno == EINVAL);
		} else if (what == 8) {
			stop(*pid);
			*pid = 0;
			continue;
		} else if (what == 9) {
			CHECK(!ptrace(PTRACE_DETACH, *pid, 0, 0));
			if (x & 0x10000)
				usleep(100);
			TRY(attach(*pid));
		} else {
			CHECK(!ptrace(PTRACE_CONT, *pid, 0, 0));
			usleep(x >> 20 & 127);
			kill(*pid, SIGSTOP);
			CHECK(waitpid(*pid, &status, __WALL) == *pid);
			if (!WIFSTOPPED(status))
				*pid = 0;
		}
	}
	for (int i = 0; i < TRACEES; i++)
		if (pids[i])
			stop(pids[i]);
	CHECK(locked() == 0);
	return 0;
}

/* A forked child and its parent, each with a trace of its own. */
static int test_fork_both(void)
{
	static struct record r[2][8192];
	pid_t pid = start(work_fork), child;
	unsigned long message;
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0,
		      PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL));
	CHECK(config(pid, sizeof(r[0]), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8));
	CHECK(!ptrace(PTRACE_GETEVENTMSG, pid, 0, &message));
	child = (pid_t)message;
	CHECK(waitpid(child, &status, __WALL) == child);
	CHECK(config(child, sizeof(r[1]), O_TRACE) == 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(next_stop(child, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, child, r[1], 0);
	CHECK(n > 0 && count(r[1], n, loop_b_branch, loop_b_head) == 999);
	CHECK(count(r[1], n, loop_a_branch, loop_a_head) == 0);
	CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
	CHECK(waitpid(child, &status, __WALL) == child && WIFEXITED(status));
	CHECK(waitpid(pid, &status, __WALL) == pid);
	while (status >> 8 == SIGCHLD)
		status = next_stop(pid, 0);
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r[0], 0);
	CHECK(n > 0 && count(r[0], n, loop_a_branch, loop_a_head) == 999);
	CHECK(count(r[0], n, loop_b_branch, loop_b_head) == 0);
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

/* Calls an unmapped address. */
static void work_crash(void)
{
	void (*volatile nowhere)(void) = (void (*)(void))0x1000;

	loop_a(1000);
	nowhere();
}

/* The newest branch shows where the call came from. */
static int test_crash(void)
{
	static struct record r[4096];
	struct record one;
	pid_t pid = start(work_crash);
	int status;
	long n, i = 0;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	status = next_stop(pid, 0);
	CHECK(status >> 8 == SIGSEGV);
	/* If an interrupt came before the fault, the newest record is the return from it. */
	do
		CHECK(bts(GET, pid, &one, i++) == sizeof(one));
	while (is_kernel(one.a));
	if (one.qualifier != BRANCH || one.b != 0x1000 || one.a < (uintptr_t)work_crash ||
	    one.a > (uintptr_t)work_crash + 256)
		FAIL("the last branch is %#" PRIx64 " -> %#" PRIx64, one.a, one.b);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 999 && r[n - 1].b == 0x1000);
	stop(pid);
	return 0;
}

static volatile sig_atomic_t handled;

static void handler(int signal)
{
	handled = signal;
	loop_b(100);
}

static void work_handler(void)
{
	struct sigaction action = { .sa_handler = handler };

	sigaction(SIGUSR1, &action, NULL);
	loop_a(500);
	raise(SIGUSR1);
	loop_a(500);
}

/* The kernel enters and leaves a signal handler with returns to user mode. */
static int test_signal_handler(void)
{
	static struct record r[8192];
	unsigned long into = 0;
	pid_t pid = start(work_handler);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR1);
	CHECK(next_stop(pid, SIGUSR1) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 2 * 499);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 99);
	for (long i = 0; i < n; i++)
		into += r[i].b == (uintptr_t)handler;
	/* More than one if the kernel returns there again, after a page fault or an interrupt. */
	CHECK(into > 0);
	stop(pid);
	return 0;
}

static void work_faults(void)
{
	char *pages = mmap(NULL, 300 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0);

	for (int i = 0; i < 300; i++) {
		pages[i << 12] = 1;
		loop_a(11);
	}
}

/* A page fault interrupts a task at an instruction that is not a branch. */
static int test_page_faults(void)
{
	static struct record r[1 << 15];
	pid_t pid = start(work_faults);
	unsigned long returns = 0;
	long n;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(64), O_TRACE | O_VIRTUAL, sizeof(r)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 1 << 15);
	CHECK(n > 0 && n < 1 << 15 && !(flags_of(pid) & O_LOST));
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 3000);
	for (long i = 0; i < n; i++)
		returns += is_kernel(r[i].a);
	CHECK(returns >= 300);
	stop(pid);
	return 0;
}

/* A traced ptracer: both traces are complete. */
static void work_tracer(void)
{
	static struct record r[4096];
	pid_t pid = start(work_a);
	long n;

	if (pid < 0 || config(pid, sizeof(r), O_TRACE) || next_stop(pid, 0) >> 8 != AT_EXIT)
		_exit(1);
	n = bts(DRAIN, pid, r, 0);
	if (n < 0 || count(r, n, loop_a_branch, loop_a_head) != 999)
		_exit(2);
	stop(pid);
	loop_b(1000);
	_exit(42);
}

static int test_traced_tracer(void)
{
	static struct record r[1 << 16];
	pid_t pid = start(work_tracer);
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(1000), O_TRACE | O_VIRTUAL | O_SCHED, sizeof(r)) == 0);
	do
		status = next_stop(pid, 0);
	while (status >> 8 == SIGCHLD);
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 1 << 16);
	CHECK(n > 0 && n < 1 << 16 && !(flags_of(pid) & O_LOST));
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 999);
	TRY(check_sched(r, n, "tracer", 4));
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status));
	if (WEXITSTATUS(status) != 42)
		FAIL("the tracer ended with %d", WEXITSTATUS(status));
	return 0;
}

/*
 * Lets a seized tracee in loop_a() run until the loop has filled its buffer. The time grows with
 * each attempt, for slow machines.
 */
static int run_until_full(pid_t pid, struct record *r, long records)
{
	int status;
	long n;

	for (useconds_t time = 1000; time < 4000000; time *= 2) {
		CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
		usleep(time);
		CHECK(!ptrace(PTRACE_INTERRUPT, pid, 0, 0));
		CHECK(waitpid(pid, &status, __WALL) == pid && status >> 16 == PTRACE_EVENT_STOP);
		n = bts(DRAIN, pid, r, 0);
		CHECK(n >= 0);
		if (n == records &&
		    count(r, n, loop_a_branch, loop_a_head) > (unsigned long)records * 5 / 8)
			return 0;
	}
	FAIL("it does not fill its buffer");
}

/* Seized in the middle of a loop, and stopped there again. */
static int test_seize(void)
{
	static struct record r[64];
	pid_t pid = fork();
	int status;

	if (!pid)
		work_until_told();
	usleep(1000);
	TRY(attach(pid));
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	for (int i = 0; i < 5; i++)
		TRY(run_until_full(pid, r, 64));
	/* After the detach, the process continues normally. */
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
	CHECK(waitpid(pid, &status, WNOHANG) == 0);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	CHECK(locked() == 0);
	return 0;
}

/*
 * The program that test_tracer_execs() executes: the ptracer of a process before its loop_a(1000).
 */
int drain_after_exec(pid_t pid)
{
	static struct record r[4096];
	long n;

	if (flags_of(pid) != O_TRACE || next_stop(pid, 0) >> 8 != AT_EXIT)
		return 3;
	n = bts(DRAIN, pid, r, 0);
	if (n < 0 || count(r, n, loop_a_branch, loop_a_head) != 999)
		return 4;
	/* The buffer was charged to the memory of the previous program. */
	if (locked() != 0 || config(pid, 4096, O_TRACE) || locked() != 4)
		return 5;
	stop(pid);
	return locked() ? 6 : 42;
}

/* The next ptracer finds no trace, and can start its own. */
static int test_next_tracer(void)
{
	pid_t pid = start(work_until_told), other;
	int status, go[2];

	CHECK(pid > 0 && !pipe(go));
	CHECK(config(pid, 1 << 16, O_TRACE) == 0);
	other = fork();
	if (!other) {
		static struct record r[64];
		char c;

		_exit(read(go[0], &c, 1) != 1 || attach(pid) || flags_of(pid) != 0 ||
				      bts(SIZE, pid, NULL, 0) != -1 || errno != ENXIO ||
				      config(pid, sizeof(r), O_TRACE) ||
				      run_until_full(pid, r, 64) || locked() != 4
			      ? 1
			      : 42);
	}
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
	CHECK(write(go[1], "", 1) == 1);
	CHECK(waitpid(other, &status, 0) == other);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
	REFUSED(bts(STATUS, pid, NULL, 0), ESRCH);
	/* The detach released the first ptracer's memory. */
	usleep(1000);
	CHECK(locked() == 0);
	kill(pid, SIGKILL);
	return 0;
}

/* The ptracer executes a new program. It is still the ptracer, and the trace continues. */
static int test_tracer_execs(void)
{
	int status;
	pid_t tracer = fork();

	if (!tracer) {
		pid_t pid = start(work_a);
		char number[32];

		if (pid < 0 || config(pid, RECORDS(4096), O_TRACE))
			_exit(1);
		snprintf(number, sizeof(number), "%d", pid);
		execl("/proc/self/exe", "ptrace_bts", "drain", number, NULL);
		_exit(2);
	}
	CHECK(waitpid(tracer, &status, 0) == tracer && WIFEXITED(status));
	if (WEXITSTATUS(status) != 42)
		FAIL("the new program ended with %d", WEXITSTATUS(status));
	return 0;
}

/*
 * A minimal 32-bit program: an ELF file with one segment, at 64 KiB. It runs a loop and exits.
 */
extern const char program_32[], program_32_end[];
#define BASE_32		0x10000
#define LOOP_32		1000
asm(".section .rodata\n.balign 4\nprogram_32:\n"
    /* e_ident, ET_EXEC, EM_386, EV_CURRENT, entry, program headers at 52, no sections */
    ".byte 0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0\n.short 2, 3\n"
    ".long 1, 0x10000 + (1f - program_32), 52, 0, 0\n.short 52, 32, 1, 0, 0, 0\n"
    /* PT_LOAD, offset, virtual and physical address, sizes, R + X, alignment */
    ".long 1, 0, 0x10000, 0x10000, program_32_end - program_32\n"
    ".long program_32_end - program_32, 5, 0x1000\n"
    ".code32\n1:\nmov $1000, %ecx\n.globl program_32_head\nprogram_32_head:\ndec %ecx\n"
    ".globl program_32_branch\nprogram_32_branch:\njnz program_32_head\n"
    "mov $1, %eax\nmov $7, %ebx\nint $0x80\n"
    NATIVE_CODE "program_32_end:\n.text\n");
extern const char program_32_head[], program_32_branch[];

static void work_exec_32(void)
{
	int fd = (int)syscall(SYS_memfd_create, "program_32", 0);

	if (write(fd, program_32, program_32_end - program_32) == program_32_end - program_32)
		syscall(SYS_execveat, fd, "", NULL, NULL, 0x1000 /* AT_EMPTY_PATH */);
	_exit(1);
}

static int test_32_bit_program(void)
{
	static struct record r[1 << 14];
	const uint64_t head = BASE_32 + (program_32_head - program_32);
	const uint64_t branch = BASE_32 + (program_32_branch - program_32);
	unsigned long found = 0, last = 0;
	pid_t pid = start(work_exec_32);
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE) == 0);
	do
		status = next_stop(pid, 0);
	while (status >> 8 == SIGTRAP);
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && n < 1 << 14);
	for (long i = 0; i < n; i++)
		if (r[i].qualifier == BRANCH && r[i].a == branch && r[i].b == head) {
			found++;
			last = i;
		}
	if (found != LOOP_32 - 1)
		FAIL("%lu branches of %d", found, LOOP_32 - 1);
	/* The branches after the kernel has started the program */
	CHECK(last >= LOOP_32 - 2 && is_kernel(r[last - (LOOP_32 - 2) - 1].a));
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status) &&
	      WEXITSTATUS(status) == 7);
	return 0;
}

/*
 * The writer of a pipe learns that a reader waits only if it asks, as the agent of vbts does. For
 * other programs, a reader makes no exceptional condition.
 */
static int test_pipe_readers(void)
{
	struct pollfd pollfd = { .events = POLLPRI };
	struct timeval now = { 0, 0 };
	fd_set except;
	int fds[2];
	char byte = 0;

	CHECK(!pipe2(fds, O_NONBLOCK));
	pollfd.fd = fds[1];
	CHECK(read(fds[0], &byte, 1) == -1 && errno == EAGAIN);
	CHECK(poll(&pollfd, 1, 0) == 0);
	FD_ZERO(&except);
	FD_SET(fds[1], &except);
	CHECK(select(fds[1] + 1, NULL, NULL, &except, &now) == 0);
	if (ioctl(fds[1], FIOREADERS)) {
		/* A kernel without guest-kernel/patches/vbts */
		CHECK(errno == ENOTTY);
		return 0;
	}
	CHECK(poll(&pollfd, 1, 0) == 0);
	CHECK(read(fds[0], &byte, 1) == -1 && errno == EAGAIN);
	CHECK(poll(&pollfd, 1, 0) == 1 && pollfd.revents == POLLPRI);
	CHECK(write(fds[1], &byte, 1) == 1 && poll(&pollfd, 1, 0) == 0);
	CHECK(ioctl(fds[0], FIOREADERS) == -1 && errno == EBADF);
	return 0;
}

const struct test task_tests[] = {
	{ "two_tasks", test_two_tasks },
	{ "fork", test_fork },
	{ "exec", test_exec },
	{ "detach", test_detach },
	{ "tracer_death", test_tracer_death },
	{ "not_stopped", test_not_stopped },
	{ "killed", test_killed },
	{ "resize", test_resize },
	{ "off_and_on", test_off_and_on },
	{ "threads", test_threads },
	{ "vfork", test_vfork },
	{ "32_bit_code", test_32_bit_code },
	{ "32_bit_program", test_32_bit_program },
	{ "fork_both", test_fork_both },
	{ "crash", test_crash },
	{ "signal_handler", test_signal_handler },
	{ "page_faults", test_page_faults },
	{ "traced_tracer", test_traced_tracer },
	{ "seize", test_seize },
	{ "next_tracer", test_next_tracer },
	{ "tracer_execs", test_tracer_execs },
	{ "many", test_many },
	{ "pipe_readers", test_pipe_readers },
	{ 0 },
};
