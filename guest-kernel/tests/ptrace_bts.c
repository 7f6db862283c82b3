// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The PTRACE_BTS_* requests of the guest kernel, tested from a program inside the guest.
 *
 *	gcc -O2 -Wall -Wextra -static -o ptrace_bts ptrace_bts.c
 *
 * Prints KTAP. Exit status: 0 if all passed, 1 if one failed, 2 if the kernel or the processor has no BTS. With the name
 * of a test only that one is run. As PID 1 it mounts what it needs and reports through the machine's exit port.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the vbts machine: a byte written here ends it, with that status. */
#define EXIT_PORT	0xf4

enum { CONFIG = 40, STATUS, SIZE, GET, CLEAR, DRAIN };
enum { INVALID, BRANCH, ARRIVES, DEPARTS };

#define O_TRACE		0x1ul
#define O_SCHED		0x2ul
#define O_SIGNAL	0x4ul
#define O_CUT		0x8ul
#define O_KERNEL	0x10ul
#define O_PAUSED	0x20ul
#define O_SIGNR(nr)	((unsigned long)(nr) << 8)

struct config {
	unsigned long size, flags;
};

struct record {
	uint64_t qualifier, a, b;
};

#define RECORDS(n) ((n) * sizeof(struct record))

/*
 * Two loops that take exactly count - 1 branches each, at addresses of their own.
 */
#define LOOP(name)								\
	void name(unsigned long count);						\
	extern const char name##_head[], name##_branch[];			\
	asm(".text\n.globl " #name "\n" #name ":\n"				\
	    ".globl " #name "_head\n" #name "_head:\n"				\
	    "dec %rdi\n"							\
	    ".globl " #name "_branch\n" #name "_branch:\n"			\
	    "jnz " #name "_head\n"						\
	    "ret\n")
LOOP(loop_a);
LOOP(loop_b);

static int failures;
static char why[256];

#define FAIL(...) do { snprintf(why, sizeof(why), __VA_ARGS__); return -1; } while (0)
#define CHECK(what) do { if (!(what)) FAIL("line %d: %s (errno %d)", __LINE__, #what, errno); } while (0)

static long bts(int request, pid_t pid, void *addr, unsigned long data)
{
	errno = 0;
	return syscall(SYS_ptrace, request, pid, addr, data);
}

static long config(pid_t pid, unsigned long size, unsigned long flags)
{
	struct config cfg = { size, flags };

	return bts(CONFIG, pid, &cfg, 0);
}

/* Fails with this errno. */
#define REFUSED(call, error) CHECK((call) == -1 && errno == (error))

/* A traced child, stopped before it calls work(). */
static pid_t start(void (*work)(void))
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		work();
		_exit(0);
	}
	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		return -1;
	ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL);
	return pid;
}

static void stop(pid_t pid)
{
	kill(pid, SIGKILL);
	/* A task in its exit stop does not wake up for that; others get there now. */
	do
		ptrace(PTRACE_CONT, pid, 0, 0);
	while (waitpid(pid, NULL, __WALL) == pid);
}

static int next_stop(pid_t pid, int signal)
{
	int status;

	ptrace(PTRACE_CONT, pid, 0, signal);
	return waitpid(pid, &status, __WALL) == pid ? status : -1;
}

#define AT_EXIT (SIGTRAP | PTRACE_EVENT_EXIT << 8)

static unsigned long count(const struct record *r, long n, const char *from, const char *to)
{
	unsigned long found = 0;

	for (; n > 0; n--, r++)
		found += r->qualifier == BRANCH && r->a == (uintptr_t)from && r->b == (uintptr_t)to;
	return found;
}

static void work_none(void)
{
}

static void work_a(void)
{
	loop_a(1000);
}

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
	CHECK(bts(STATUS, pid, &cfg, 0) == sizeof(cfg) && !cfg.size && !cfg.flags);

	REFUSED(bts(CONFIG, pid, NULL, 0), EFAULT);
	REFUSED(bts(STATUS, pid, NULL, 0), EFAULT);
	REFUSED(config(pid, 4096, O_TRACE | O_KERNEL), EOPNOTSUPP);
	REFUSED(config(pid, 4096, 0x40), EINVAL);
	REFUSED(config(pid, 4096, 1ul << 16), EINVAL);
	REFUSED(config(pid, 0, O_TRACE), EINVAL);
	REFUSED(config(pid, 23, O_TRACE), ENOMEM);
	REFUSED(config(pid, 4096, O_TRACE | O_SIGNR(SIGUSR1)), EINVAL);
	REFUSED(config(pid, 4096, O_SIGNAL | O_SIGNR(SIGKILL)), EINVAL);
	REFUSED(config(pid, 4096, O_SIGNAL | O_SIGNR(SIGSTOP)), EINVAL);
	REFUSED(config(pid, 4096, O_SIGNAL | O_SIGNR(65)), EINVAL);
	REFUSED(config(pid, RECORDS(63), O_SIGNAL), EINVAL);
	REFUSED(config(pid, ~0ul, O_TRACE), ENOMEM);
	CHECK(bts(STATUS, pid, &cfg, 0) == sizeof(cfg) && !cfg.size);

	CHECK(config(pid, 4100, O_TRACE | O_SCHED | O_SIGNAL | O_SIGNR(64)) == 0);
	CHECK(bts(STATUS, pid, &cfg, 0) == sizeof(cfg));
	CHECK(cfg.size == RECORDS(170));
	CHECK(cfg.flags == (O_TRACE | O_SCHED | O_SIGNAL | O_SIGNR(64)));
	CHECK(bts(SIZE, pid, NULL, 0) == 0);
	CHECK(bts(DRAIN, pid, NULL, 0) == 0);
	REFUSED(bts(GET, pid, &r, 0), EINVAL);
	CHECK(config(pid, 0, 0) == 0);
	REFUSED(bts(SIZE, pid, NULL, 0), ENXIO);
	CHECK(config(pid, 1ul << 40, O_CUT) == 0);
	CHECK(bts(STATUS, pid, &cfg, 0) == sizeof(cfg) && cfg.size > 1 << 20 && !cfg.flags);
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

static void work_block(void)
{
	sigset_t all;

	/* Neither keeps the kernel from stopping us. */
	signal(SIGIO, SIG_IGN);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	loop_a(100000);
}

static int test_overflow(void)
{
	static struct record r[170];
	unsigned long branches = 0, stops = 0;
	pid_t pid = start(work_block);
	struct config cfg;
	siginfo_t info;
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	while ((status = next_stop(pid, 0)) >> 8 != AT_EXIT) {
		CHECK(WIFSTOPPED(status) && status >> 8 == SIGIO);
		CHECK(!ptrace(PTRACE_GETSIGINFO, pid, 0, &info));
		CHECK(info.si_signo == SIGIO && info.si_code == SI_KERNEL);
		CHECK(bts(STATUS, pid, &cfg, 0) > 0 && cfg.flags & O_PAUSED);
		n = bts(DRAIN, pid, r, 0);
		CHECK(n >= 128 && n < 170);
		CHECK(bts(STATUS, pid, &cfg, 0) > 0 && !(cfg.flags & O_PAUSED));
		branches += count(r, n, loop_a_branch, loop_a_head);
		stops++;
	}
	n = bts(DRAIN, pid, r, 0);
	CHECK(n >= 0);
	branches += count(r, n, loop_a_branch, loop_a_head);
	if (branches != 99999)
		FAIL("%lu of 99999 branches in %lu stops", branches, stops);
	CHECK(stops > 500);
	stop(pid);
	return 0;
}

static int test_overflow_undrained(void)
{
	static struct record r[170];
	pid_t pid = start(work_a);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL | O_SIGNR(SIGUSR2)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR2);
	n = bts(SIZE, pid, NULL, 0);
	/* Paused: the rest of the loop leaves no trace, and does not stop again. */
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) == n);
	stop(pid);

	/* Restarted with the signal, the task gets it. */
	pid = start(work_a);
	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL | O_SIGNR(SIGUSR2)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR2);
	CHECK(config(pid, 0, 0) == 0);
	CHECK(next_stop(pid, SIGUSR2) >> 8 == SIGUSR2);
	CHECK(next_stop(pid, SIGUSR2) >> 8 == AT_EXIT);
	ptrace(PTRACE_CONT, pid, 0, 0);
	int status;
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR2);
	return 0;
}

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

static int check_sched(const struct record *r, long n, const char *name)
{
	uint64_t expected = ARRIVES, jiffies = 0, events = 0;

	for (; n > 0; n--, r++) {
		if (r->qualifier == BRANCH) {
			if (expected != DEPARTS)
				FAIL("task %s: a branch while it has no processor", name);
			continue;
		}
		if (r->qualifier != expected)
			FAIL("task %s: qualifier %lu instead of %lu", name, r->qualifier, expected);
		if (r->a < jiffies)
			FAIL("task %s: jiffies go back from %lu to %lu", name, jiffies, r->a);
		jiffies = r->a;
		expected = expected == ARRIVES ? DEPARTS : ARRIVES;
		events++;
	}
	if (events < 20)
		FAIL("task %s: only %lu scheduling events", name, events);
	return 0;
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
	if (check_sched(r[0], n[0], "a") || check_sched(r[1], n[1], "b"))
		return -1;
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

static int attach(pid_t pid)
{
	int status;

	CHECK(!ptrace(PTRACE_SEIZE, pid, 0, 0));
	CHECK(!ptrace(PTRACE_INTERRUPT, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
	return 0;
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
	pid_t pid = start(work_none);
	int type = perf_bts_type(), fd;

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

/* ptrace as a 32-bit program calls it. Static data of this program is below 4 GiB. */
static int bts32(int request, pid_t pid, void *addr, unsigned int data)
{
	int ret;

	asm volatile("int $0x80" : "=a"(ret)
		     : "a"(26), "b"(request), "c"(pid), "d"((unsigned int)(uintptr_t)addr), "S"(data)
		     : "memory", "r8", "r9", "r10", "r11");
	return ret;
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
	int report[2], status;
	pid_t pid;

	CHECK(!pipe(report));
	pid = fork();
	if (!pid) {
		int failed = setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1) || unprivileged();

		if (failed && write(report[1], why, sizeof(why)) < 0)
			_exit(2);
		_exit(failed);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	if (status) {
		close(report[1]);
		if (read(report[0], why, sizeof(why)) <= 0)
			FAIL("status %#x", status);
		return -1;
	}
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void);
} tests[] = {
	{ "errors", test_errors },
	{ "every_branch", test_every_branch },
	{ "wrap", test_wrap },
	{ "overflow", test_overflow },
	{ "overflow_undrained", test_overflow_undrained },
	{ "two_tasks", test_two_tasks },
	{ "fork", test_fork },
	{ "exec", test_exec },
	{ "detach", test_detach },
	{ "tracer_death", test_tracer_death },
	{ "perf", test_perf },
	{ "compat", test_compat },
	{ "unprivileged", test_unprivileged },
};

static int run(int argc, char **argv)
{
	const unsigned int n = sizeof(tests) / sizeof(tests[0]);
	struct config cfg;
	pid_t pid;

	if (argc > 1 && !strcmp(argv[1], "loop_b")) {
		loop_b(500);
		return 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("KTAP version 1");
	pid = start(work_none);
	if (pid < 0 || bts(STATUS, pid, &cfg, 0) < 0) {
		printf("1..0 # SKIP no branch trace store: %s\n", strerror(errno));
		return 2;
	}
	stop(pid);
	printf("1..%u\n", n);
	for (unsigned int i = 0; i < n; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name)) {
			printf("ok %u %s # SKIP not asked for\n", i + 1, tests[i].name);
			continue;
		}
		if (tests[i].run == test_perf && is_traced()) {
			printf("ok %u %s # SKIP this process is traced itself\n", i + 1, tests[i].name);
			continue;
		}
		if (tests[i].run()) {
			printf("not ok %u %s\n# %s\n", i + 1, tests[i].name, why);
			failures++;
		} else {
			printf("ok %u %s\n", i + 1, tests[i].name);
		}
	}
	return failures ? 1 : 0;
}

int main(int argc, char **argv)
{
	int status;

	if (getpid() != 1)
		return run(argc, argv);

	mkdir("/proc", 0555);
	mkdir("/sys", 0555);
	if (mount("proc", "/proc", "proc", 0, NULL) || mount("sysfs", "/sys", "sysfs", 0, NULL))
		perror("mount");
	status = run(argc, argv);
	fflush(stdout);
	if (ioperm(EXIT_PORT, 1, 1)) {
		perror("ioperm");
		return 1;
	}
	outb(status, EXIT_PORT);
	/* The machine has ended. */
	pause();
}
