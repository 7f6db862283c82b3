// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Tasks that come, go, multiply and change their program while they are traced, and other users of the hardware.
 */
#include <linux/perf_event.h>
#include "bts.h"

static void work_a_yielding(void)
{
	for (int i = 0; i < 20; i++) {
		loop_a(101);
		sched_yield();
	}
}

static void work_b_yielding(void)
{
	for (int i = 0; i < 20; i++) {
		loop_b(51);
		sched_yield();
	}
}

static int test_two_tasks(void)
{
	static struct record r[2][8192];
	pid_t pid[2] = { start(work_a_yielding), start(work_b_yielding) };
	long n[2];

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
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL));
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
	/* At once after the detach, before the task could run */
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
	/* It records, full tilt, for nobody; it must let go of the buffer and live. */
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

static int perf_bts_type(void)
{
	FILE *file = fopen("/sys/bus/event_source/devices/intel_bts/type", "r");
	int type = -1;

	if (file) {
		if (fscanf(file, "%d", &type) != 1)
			type = -1;
		fclose(file);
	}
	return type;
}

static int perf_open(struct perf_event_attr *attr)
{
	errno = 0;
	return (int)syscall(SYS_perf_event_open, attr, 0, -1, -1, 0);
}

/* The BTS is then in use, for us. */
static int is_traced(void)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[256];
	int tracer = 0;

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "TracerPid: %d", &tracer);
	if (file)
		fclose(file);
	return tracer != 0;
}

static int test_perf(void)
{
	struct perf_event_attr intel_bts = { .size = sizeof(intel_bts), .exclude_kernel = 1, .disabled = 1 };
	struct perf_event_attr branches = {
		.size = sizeof(branches), .type = PERF_TYPE_HARDWARE, .config = PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
		.sample_period = 1, .sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_ADDR,
		.exclude_kernel = 1, .exclude_hv = 1, .disabled = 1,
	};
	pid_t pid;
	int type = perf_bts_type(), fd;

	if (is_traced()) {
		snprintf(why, WHY_SIZE, "this process is traced itself");
		return 0;
	}
	pid = start(work_none);
	CHECK(pid > 0);
	CHECK(type >= 0);
	intel_bts.type = (unsigned int)type;
	for (int i = 0; i < 2; i++) {
		struct perf_event_attr *attr = i ? &branches : &intel_bts;

		fd = perf_open(attr);
		CHECK(fd >= 0);
		REFUSED(config(pid, 4096, O_TRACE), EBUSY);
		close(fd);
		/* The event's hardware is given back from a work item that close() starts. */
		CHECK(config(pid, 4096, O_TRACE) == 0);
		CHECK(perf_open(attr) == -1 && errno == EBUSY);
		CHECK(config(pid, 0, 0) == 0);
	}
	fd = perf_open(&intel_bts);
	CHECK(fd >= 0);
	close(fd);
	stop(pid);
	return 0;
}

/* ptrace's own errors come before any of ours. */
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

/* Killed while it records, at any place: nothing of it stays. */
static int test_killed(void)
{
	static const unsigned long flags[] = { 0, O_SIGNAL, O_VIRTUAL, O_VIRTUAL | O_KERNEL | O_SCHED };
	int status;

	for (int i = 0; i < 40; i++) {
		pid_t pid = start(work_until_told);

		CHECK(pid > 0);
		CHECK(config_virtual(pid, RECORDS(1024), O_TRACE | flags[i % 4], 1 << 18) == 0);
		CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, 0));
		CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
		usleep(10 * i);
		CHECK(!kill(pid, SIGKILL));
		do
			CHECK(waitpid(pid, &status, __WALL) == pid);
		while (WIFSTOPPED(status));
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		CHECK(locked() == 0);
	}
	return 0;
}

/* A new size in the middle of a trace: the records before it go, those after it are all there. */
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
		/* Not another size: a part of a record more */
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

/* Recording stops and goes on; what was recorded stays. */
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
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 999 && count(r, n, loop_b_branch, loop_b_head) == 0);
	stop(pid);
	return 0;
}

/* A thread of its own: system calls only, as libc's would want more than this. */
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
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

	if (clone(thread_b, thread_stack[0] + sizeof(thread_stack[0]), flags, NULL) < 0)
		_exit(1);
	loop_a(1000);
	usleep(1000);
}

/* The threads of a process are traced one by one, each with a buffer of its own. */
static int test_threads(void)
{
	static struct record r[2][8192];
	unsigned long message;
	pid_t pid = start(work_thread), thread;
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
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

/* The child runs on the parent's memory, but not into its buffer. */
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

/* Many tracees at a time, and whatever comes to mind with each of them. */
static int test_many(void)
{
	enum { TRACEES = 16 };
	static const unsigned long flags[] = {
		0, O_TRACE, O_TRACE | O_SCHED, O_TRACE | O_SIGNAL, O_TRACE | O_SIGNAL | O_SCHED, O_TRACE | O_VIRTUAL,
		O_TRACE | O_VIRTUAL | O_SIGNAL, O_TRACE | O_KERNEL, O_KERNEL | O_VIRTUAL, O_TRACE | O_KERNEL | O_VIRTUAL | O_SIGNAL,
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
			if (config_virtual(*pid, RECORDS(1024 << (x >> 12 & 1)), flags[(x >> 16) % 10], 1 << 18))
				CHECK(errno == EBUSY);
		} else if (what < 6) {
			CHECK(bts(DRAIN, *pid, r, x >> 16 & 0x7fff) >= 0 || errno == ENXIO);
		} else if (what == 6) {
			CHECK(bts(CLEAR, *pid, NULL, 0) == 0 || errno == ENXIO);
		} else if (what == 7) {
			CHECK(bts(GET, *pid, &one, x >> 20) > 0 || errno == ENXIO || errno == EINVAL);
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

const struct test task_tests[] = {
	{ "two_tasks", test_two_tasks },
	{ "fork", test_fork },
	{ "exec", test_exec },
	{ "detach", test_detach },
	{ "tracer_death", test_tracer_death },
	{ "perf", test_perf },
	{ "not_stopped", test_not_stopped },
	{ "killed", test_killed },
	{ "resize", test_resize },
	{ "off_and_on", test_off_and_on },
	{ "threads", test_threads },
	{ "vfork", test_vfork },
	{ "32_bit_code", test_32_bit_code },
	{ "many", test_many },
	{ 0 },
};
