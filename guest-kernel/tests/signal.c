// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * PTRACE_BTS_O_SIGNAL: the stop when the buffer is nearly full.
 */
#include <linux/io_uring.h>
#include "bts.h"

static void work_block(void)
{
	sigset_t all;

	/* The tracee stops although it blocks or ignores the signal. */
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
		CHECK(n >= threshold(170) && n < 170);
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
	/* Paused: the rest of the loop is not recorded and does not stop again. */
	CHECK(!(flags_of(pid) & O_LOST));
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) == n);
	/* But it is told. */
	CHECK(flags_of(pid) & O_LOST);
	stop(pid);

	/* A task that is restarted with the signal gets it, without another stop. */
	pid = start(work_a);
	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL | O_SIGNR(SIGUSR2)) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGUSR2);
	CHECK(config(pid, 0, 0) == 0);
	CHECK(next_stop(pid, SIGUSR2) >> 8 == AT_EXIT);
	ptrace(PTRACE_CONT, pid, 0, 0);
	int status;
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status) &&
	      WTERMSIG(status) == SIGUSR2);
	return 0;
}

static void work_naps(void)
{
	for (int i = 0; i < 100; i++)
		usleep(1000);
}

/* The same for a trace that has scheduling events only */
static int test_sched_undrained(void)
{
	pid_t pid = start(work_naps);

	CHECK(pid > 0);
	CHECK(config(pid, RECORDS(64), O_SCHED | O_SIGNAL) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO && flags_of(pid) & O_PAUSED);
	CHECK(!(flags_of(pid) & O_LOST));
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) <= 64 && flags_of(pid) & O_LOST);
	stop(pid);
	return 0;
}

/* Runs a tracee in the maze through all stops for overflow, and compares its records. */
static int maze_with(unsigned long records, unsigned long flags, unsigned long at_least)
{
	struct record *r = malloc(RECORDS(records));
	struct path path = { 0 }, reference;
	unsigned long stops = 0;
	pid_t pid;
	int status;
	long n;

	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(r && pid > 0);
	CHECK(config(pid, RECORDS(records), O_TRACE | O_SIGNAL | flags) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, 0);
		CHECK(n >= 0 && n <= (long)records);
		TRY(path_add(&path, r, n));
		stops++;
	} while (status >> 8 == SIGIO);
	CHECK(!(flags_of(pid) & (O_LOST | O_PAUSED)));
	if (stops < at_least)
		FAIL("only %lu stops", stops);
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_every_size(void)
{
	static const unsigned long sizes[] = {
		64, 65, 79, 100, 170, 171, 500, 513, 1000, 2730, 20000, 100000
	};

	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		TRY(maze_with(sizes[i], 0, maze_steps / sizes[i]));
	return 0;
}

static int test_with_sched(void)
{
	return maze_with(64, O_SCHED, 100);
}

/* Other stops between the branches do not change the records. */
static int with_other_stops(void (*work)(void), int request, int expected)
{
	static struct record r[64];
	struct path path = { 0 }, reference;
	unsigned long others = 0, overflows = 0;
	pid_t pid;
	int status;
	long n;

	/* Each stop takes long: with PREEMPT_RT, the ptracer sleeps for a tick in each request. */
	maze_steps = 350;
	TRY(path_reference(&reference));
	pid = start(work);
	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0,
		      PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD |
			      PTRACE_O_TRACESECCOMP));
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL | O_SIGNR(SIGUSR2)) == 0);
	for (;;) {
		CHECK(!ptrace(request, pid, 0, 0));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
		if (status >> 8 == AT_EXIT)
			break;
		if (status >> 8 == SIGUSR2) {
			CHECK(flags_of(pid) & O_PAUSED);
			n = bts(DRAIN, pid, r, 0);
			CHECK(n > 0);
			TRY(path_add(&path, r, n));
			overflows++;
		} else {
			CHECK(status >> 8 == expected);
			CHECK(!(flags_of(pid) & O_PAUSED));
			others++;
		}
	}
	n = bts(DRAIN, pid, r, 0);
	CHECK(n >= 0);
	TRY(path_add(&path, r, n));
	CHECK(!(flags_of(pid) & O_LOST));
	if (overflows < 15 || others < 50)
		FAIL("only %lu stops for overflow and %lu others", overflows, others);
	stop(pid);
	return path_compare(&path, &reference);
}

static int test_singlestep(void)
{
	return with_other_stops(work_maze, PTRACE_SINGLESTEP, SIGTRAP);
}

static int test_singleblock(void)
{
	/* PTRACE_SINGLEBLOCK: DEBUGCTL.BTF beside the bits of the trace */
	return with_other_stops(work_maze, 33, SIGTRAP);
}

/* The maze between system calls */
static void work_maze_and_syscalls(void)
{
	for (int i = 0; i < 100; i++)
		syscall(SYS_getppid);
	work_maze();
	for (int i = 0; i < 100; i++)
		syscall(SYS_getppid);
}

static int test_syscall_stops(void)
{
	return with_other_stops(work_maze_and_syscalls, PTRACE_SYSCALL, SIGTRAP | 0x80);
}

/* The ptracer decides about getppid(). */
static void work_seccomp(void)
{
	static const struct { uint16_t code; uint8_t jt, jf; uint32_t k; } filter[] = {
		{ 0x20, 0, 0, 0 },			/* ld [nr] */
		{ 0x15, 0, 1, SYS_getppid },		/* jeq getppid */
		{ 0x06, 0, 0, 0x7ff00000 },		/* ret SECCOMP_RET_TRACE */
		{ 0x06, 0, 0, 0x7fff0000 },		/* ret SECCOMP_RET_ALLOW */
	};
	const struct { uint16_t len; const void *filter; } program = { 4, filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
		_exit(1);
	work_maze_and_syscalls();
}

static int test_seccomp_stops(void)
{
	return with_other_stops(work_seccomp, PTRACE_CONT, SIGTRAP | PTRACE_EVENT_SECCOMP << 8);
}

/* Signals that arrive during a stop for overflow are delivered after it, each once. */
static int test_signals_meanwhile(void)
{
	static struct record r[64];
	unsigned long branches = 0, overflows = 0, signals = 0;
	pid_t pid = start(work_a);
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	while ((status = next_stop(pid, 0)) >> 8 != AT_EXIT) {
		if (status >> 8 == SIGIO) {
			CHECK(flags_of(pid) & O_PAUSED);
			CHECK(!kill(pid, SIGUSR1));
			/* A queued signal with the same number: O_PAUSED tells them apart. */
			CHECK(!kill(pid, SIGRTMIN));
			overflows++;
		} else {
			CHECK(status >> 8 == SIGUSR1 || status >> 8 == SIGRTMIN);
			signals++;
		}
		n = bts(DRAIN, pid, r, 0);
		CHECK(n >= 0);
		branches += count(r, n, loop_a_branch, loop_a_head);
	}
	n = bts(DRAIN, pid, r, 0);
	branches += count(r, n, loop_a_branch, loop_a_head);
	if (branches != 999 || signals != 2 * overflows || overflows < 10)
		FAIL("%lu branches, %lu stops, %lu signals", branches, overflows, signals);
	stop(pid);
	return 0;
}

/* A signal of the ptracer with the same number is not an overflow. */
static int test_same_signal(void)
{
	static struct record r[64];
	pid_t pid = start(work_a);
	siginfo_t info;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	CHECK(!kill(pid, SIGIO));
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(!ptrace(PTRACE_GETSIGINFO, pid, 0, &info) && info.si_code == SI_USER);
	CHECK(!(flags_of(pid) & O_PAUSED));
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(!ptrace(PTRACE_GETSIGINFO, pid, 0, &info) && info.si_code == SI_KERNEL);
	CHECK(flags_of(pid) & O_PAUSED);
	stop(pid);
	return 0;
}

static int test_group_stop(void)
{
	static struct record r[64];
	unsigned long branches = 0, group_stops = 0;
	pid_t pid = fork();
	int status;
	long n;

	if (!pid) {
		raise(SIGSTOP);
		loop_a(10000);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, WUNTRACED) == pid);
	CHECK(!ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL));
	CHECK(waitpid(pid, &status, __WALL) == pid && status >> 16 == PTRACE_EVENT_STOP);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	CHECK(!kill(pid, SIGCONT));
	for (;;) {
		CHECK(!ptrace(PTRACE_CONT, pid, 0,
			      WSTOPSIG(status) == SIGSTOP && !(status >> 16) ? SIGSTOP : 0));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
		if (status >> 8 == AT_EXIT)
			break;
		if (status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) == SIGSTOP) {
			CHECK(!ptrace(PTRACE_LISTEN, pid, 0, 0));
			CHECK(waitpid(pid, NULL, __WALL | WNOHANG) == 0);
			CHECK(!kill(pid, SIGCONT));
			CHECK(waitpid(pid, &status, __WALL) == pid &&
			      status >> 16 == PTRACE_EVENT_STOP);
			group_stops++;
		}
		if (WSTOPSIG(status) == SIGIO) {
			n = bts(DRAIN, pid, r, 0);
			CHECK(n > 0);
			branches += count(r, n, loop_a_branch, loop_a_head);
			if (group_stops < 5)
				CHECK(!kill(pid, SIGSTOP));
		}
	}
	n = bts(DRAIN, pid, r, 0);
	branches += count(r, n, loop_a_branch, loop_a_head);
	if (branches != 9999 || group_stops != 5)
		FAIL("%lu branches, %lu group-stops", branches, group_stops);
	stop(pid);
	return 0;
}

static int paused(pid_t *pid, void (*work)(void))
{
	*pid = start(work);
	CHECK(*pid > 0);
	CHECK(config(*pid, RECORDS(170), O_TRACE | O_SIGNAL) == 0);
	CHECK(next_stop(*pid, 0) >> 8 == SIGIO);
	CHECK(flags_of(*pid) == (O_TRACE | O_SIGNAL | O_PAUSED));
	return 0;
}

static int test_get_while_paused(void)
{
	static struct record r[170], one;
	pid_t pid;
	long n;

	TRY(paused(&pid, work_a));
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n >= threshold(170) && n < 170);
	for (long i = 0; i < n; i++)
		CHECK(bts(GET, pid, &r[n - 1 - i], i) == sizeof(one));
	REFUSED(bts(GET, pid, &one, n), EINVAL);
	/* Reading a record does not make room. */
	CHECK(flags_of(pid) & O_PAUSED);
	struct record all[170];
	CHECK(bts(DRAIN, pid, all, 0) == n && !memcmp(all, r, RECORDS(n)));
	stop(pid);
	return 0;
}

static int test_clear_while_paused(void)
{
	static struct record r[170];
	pid_t pid;
	long n;

	TRY(paused(&pid, work_a));
	n = bts(SIZE, pid, NULL, 0);
	CHECK(bts(CLEAR, pid, NULL, 0) == 0 && bts(SIZE, pid, NULL, 0) == 0);
	CHECK(flags_of(pid) == (O_TRACE | O_SIGNAL));
	/* Recording continues with the branch after the last discarded one. */
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n >= threshold(170) &&
	      count(r, n, loop_a_branch, loop_a_head) >=
		      (unsigned long)n - (is_unfiltered() ? 12 : 4));
	stop(pid);
	return 0;
}

static int test_config_while_paused(void)
{
	static struct record r[170];
	struct config cfg;
	pid_t pid;
	long n;

	TRY(paused(&pid, work_a));
	n = bts(SIZE, pid, NULL, 0);
	/* The configuration of STATUS again: there is still no room. */
	CHECK(bts(STATUS, pid, &cfg, 0) > 0);
	REFUSED(bts(CONFIG, pid, &cfg, 0), EBUSY);
	CHECK(flags_of(pid) & O_PAUSED && bts(SIZE, pid, NULL, 0) == n);
	/* A buffer that wraps has room. The records stay. */
	CHECK(config(pid, RECORDS(170), O_TRACE) == 0);
	CHECK(flags_of(pid) == O_TRACE && bts(SIZE, pid, NULL, 0) == n);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) == 170);
	stop(pid);

	/* A buffer of another size has room. The records are gone. */
	TRY(paused(&pid, work_a));
	CHECK(config(pid, RECORDS(4096), O_TRACE | O_SIGNAL) == 0);
	CHECK(flags_of(pid) == (O_TRACE | O_SIGNAL) && bts(SIZE, pid, NULL, 0) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	static struct record rest[4096];
	n = bts(DRAIN, pid, rest, 0);
	CHECK(n > 0 && count(rest, n, loop_a_branch, loop_a_head) > 700);
	stop(pid);

	/* An invalid configuration changes nothing. */
	TRY(paused(&pid, work_a));
	n = bts(SIZE, pid, NULL, 0);
	REFUSED(config(pid, RECORDS(63), O_TRACE | O_SIGNAL), EINVAL);
	REFUSED(config(pid, TOO_LARGE, O_TRACE | O_SIGNAL), ENOMEM);
	CHECK(flags_of(pid) & O_PAUSED && bts(DRAIN, pid, r, 0) == n);
	stop(pid);
	return 0;
}

static void work_exec_paused(void)
{
	loop_a(1000);
	execl("/proc/self/exe", "ptrace_bts", "loop_b", NULL);
}

static int test_exec_while_paused(void)
{
	static struct record r[170];
	unsigned long branches = 0;
	int status;
	pid_t pid;
	long n;

	TRY(paused(&pid, work_exec_paused));
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0,
		      PTRACE_O_TRACEEXIT | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL));
	n = bts(SIZE, pid, NULL, 0);
	CHECK(next_stop(pid, 0) >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8));
	CHECK(flags_of(pid) & O_PAUSED && bts(DRAIN, pid, r, 0) == n);
	while ((status = next_stop(pid, 0)) >> 8 == SIGIO) {
		n = bts(DRAIN, pid, r, 0);
		branches += count(r, n, loop_b_branch, loop_b_head);
	}
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	branches += count(r, n, loop_b_branch, loop_b_head);
	CHECK(branches == 499);
	stop(pid);
	return 0;
}

static int test_kill_while_paused(void)
{
	int status;
	pid_t pid;

	TRY(paused(&pid, work_a));
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, 0));
	CHECK(!kill(pid, SIGKILL));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status) &&
	      WTERMSIG(status) == SIGKILL);
	CHECK(locked() == 0);
	return 0;
}

static int test_detach_while_paused(void)
{
	int status;
	pid_t pid;

	/* After the detach, the task has no pending signal and no trace. */
	TRY(paused(&pid, work_a));
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status) && !WEXITSTATUS(status));

	/* A detach with another signal delivers that signal. */
	TRY(paused(&pid, work_a));
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, SIGTERM));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status) &&
	      WTERMSIG(status) == SIGTERM);
	CHECK(locked() == 0);
	return 0;
}

static int test_inject_another(void)
{
	int status;
	pid_t pid;

	TRY(paused(&pid, work_a));
	CHECK(bts(CLEAR, pid, NULL, 0) == 0);
	CHECK(!(flags_of(pid) & O_PAUSED));
	ptrace(PTRACE_DETACH, pid, 0, SIGUSR1);
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status) &&
	      WTERMSIG(status) == SIGUSR1);
	return 0;
}

static volatile int handled;
static siginfo_t handled_info;

static void handler(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	handled++;
	handled_info = *info;
}

/* Handles SIGIO. Its exit status is the number of signals. */
static void work_handler(void)
{
	const struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };

	sigaction(SIGIO, &action, NULL);
	loop_a(1000);
	_exit(handled && handled_info.si_code != SI_KERNEL ? 99 : handled);
}

/* Each injected signal is delivered once, with the information of its stop, and stops once. */
static int test_inject_handled(void)
{
	static struct record r[170];
	int status, stops = 0;
	siginfo_t info;
	pid_t pid;

	TRY(paused(&pid, work_handler));
	do {
		CHECK(!ptrace(PTRACE_GETSIGINFO, pid, 0, &info) && info.si_code == SI_KERNEL);
		CHECK(flags_of(pid) & O_PAUSED && bts(DRAIN, pid, r, 0) > 0);
		stops++;
		status = next_stop(pid, SIGIO);
	} while (status >> 8 == SIGIO);
	CHECK(status >> 8 == AT_EXIT && stops > 3);
	ptrace(PTRACE_CONT, pid, 0, 0);
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status));
	if (WEXITSTATUS(status) != stops)
		FAIL("%d signals in %d stops", WEXITSTATUS(status), stops);
	return 0;
}

/* A signal that the task blocks is delivered when the task no longer blocks it. */
static void work_blocked(void)
{
	const struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	sigset_t set;

	sigaction(SIGIO, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigprocmask(SIG_BLOCK, &set, NULL);
	loop_a(150);
	if (handled)
		_exit(98);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	_exit(handled);
}

static int test_inject_blocked(void)
{
	int status;
	pid_t pid;

	TRY(paused(&pid, work_blocked));
	CHECK(config(pid, 0, 0) == 0);
	/* As for every blocked signal, a second stop precedes the delivery. */
	CHECK(next_stop(pid, SIGIO) >> 8 == SIGIO);
	CHECK(next_stop(pid, SIGIO) >> 8 == AT_EXIT);
	ptrace(PTRACE_CONT, pid, 0, 0);
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status) &&
	      WEXITSTATUS(status) == 1);
	return 0;
}

/*
 * The ptracer dies at the stop, with or without a call of wait() for it. The task gets no signal,
 * also if it has another ptracer by then.
 */
static int tracer_dies(int waits, int next)
{
	const struct sched_param first = { 1 };
	struct config cfg = { RECORDS(170), O_TRACE | O_SIGNAL, 0 };
	int ready[2], status;
	pid_t pid, tracer;
	cpu_set_t one;

	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1) && !pipe(ready));
	/* This process runs before the tracee when the ptracer has died. */
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
	CHECK(!sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first));
	pid = fork();
	if (!pid) {
		char c;

		/* SIGIO would end it. */
		_exit(read(ready[0], &c, 1) != 1 || (loop_a(1000), 0));
	}
	tracer = fork();
	if (!tracer) {
		siginfo_t info;

		_exit(attach(pid) || bts(CONFIG, pid, &cfg, 0) || ptrace(PTRACE_CONT, pid, 0, 0) ||
		      write(ready[1], "", 1) != 1 ||
		      waitid(P_PID, pid, &info, WSTOPPED | __WALL | (waits ? 0 : WNOWAIT)) ||
		      info.si_status != SIGIO);
	}
	CHECK(waitpid(tracer, &status, 0) == tracer && WIFEXITED(status));
	if (WEXITSTATUS(status))
		FAIL("the ptracer failed (waits %d, next %d)", waits, next);
	if (next)
		CHECK(!ptrace(PTRACE_SEIZE, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		FAIL("the task ended with %#x (waits %d, next %d)", status, waits, next);
	close(ready[0]);
	close(ready[1]);
	return 0;
}

static int test_tracer_dies(void)
{
	for (int i = 0; i < 4; i++)
		TRY(tracer_dies(i & 1, i >> 1));
	return 0;
}

/* A detach with the signal delivers it. */
static int test_detach_with_signal(void)
{
	int status;
	pid_t pid;

	TRY(paused(&pid, work_handler));
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, SIGIO));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status) &&
	      WEXITSTATUS(status) == 1);
	return 0;
}

/* A ring of io_uring with one entry, without a library. */
struct ring {
	struct io_uring_params p;
	char *sq, *cq;
	struct io_uring_sqe *sqe;
	int fd;
};

static int ring_open(struct ring *ring)
{
	const int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;

	memset(ring, 0, sizeof(*ring));
	ring->fd = syscall(SYS_io_uring_setup, 1, &ring->p);
	if (ring->fd < 0)
		return -1;
	ring->sq = mmap(NULL, 4096, prot, flags, ring->fd, IORING_OFF_SQ_RING);
	ring->cq = mmap(NULL, 4096, prot, flags, ring->fd, IORING_OFF_CQ_RING);
	ring->sqe = mmap(NULL, 4096, prot, flags, ring->fd, IORING_OFF_SQES);
	return ring->sq == MAP_FAILED || ring->cq == MAP_FAILED || ring->sqe == MAP_FAILED;
}

static unsigned int *ring_word(char *ring, unsigned int offset)
{
	return (unsigned int *)(ring + offset);
}

/* Waits for the ring's timer. Returns what io_uring_enter() returns, or the negative errno. */
static long ring_sleep(struct ring *ring, long ns)
{
	struct { int64_t seconds, ns; } time = { 0, ns };
	long n;

	*ring->sqe = (struct io_uring_sqe){ .opcode = IORING_OP_TIMEOUT, .len = 1,
					    .addr = (uintptr_t)&time };
	*ring_word(ring->sq, ring->p.sq_off.array) = 0;
	__atomic_add_fetch(ring_word(ring->sq, ring->p.sq_off.tail), 1, __ATOMIC_RELEASE);
	n = syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	if (n < 0)
		return -errno;
	/* The number of submitted entries; the wait may have ended early nevertheless. */
	if (*ring_word(ring->cq, ring->p.cq_off.tail) == *ring_word(ring->cq, ring->p.cq_off.head))
		return -EINTR;
	__atomic_add_fetch(ring_word(ring->cq, ring->p.cq_off.head), 1, __ATOMIC_RELEASE);
	return n;
}

/* Its exit status is 0 if no wait was interrupted, and 1 without io_uring. */
static void work_io_uring(void)
{
	struct ring ring;

	if (ring_open(&ring))
		_exit(1);
	for (int i = 0; i < 40; i++) {
		if (ring_sleep(&ring, 200 * 1000) != 1)
			_exit(2);
	}
}

/*
 * io_uring runs task work while it waits. The stop for overflow must not interrupt that: a task
 * does not notice that it is traced.
 */
static int io_uring(unsigned long records)
{
	static struct record r[2 * KERNEL_MIN];
	pid_t pid = start(work_io_uring);
	int status, stops = 0;

	CHECK(pid > 0 && config(pid, RECORDS(records), O_TRACE | O_KERNEL | O_SIGNAL) == 0);
	for (;;) {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		if (status >> 8 == AT_EXIT)
			break;
		CHECK(bts(DRAIN, pid, r, 0) > 0);
		stops++;
	}
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status));
	if (WEXITSTATUS(status) == 1)
		snprintf(why, WHY_SIZE, "no io_uring");
	else if (WEXITSTATUS(status))
		FAIL("a wait was interrupted, with %d stops", stops);
	else
		CHECK(stops > 2);
	return 0;
}

static int test_io_uring(void)
{
	/* The buffer becomes full at any time before, in and after a wait. */
	for (unsigned long i = 0; i < 8 && !*why; i++)
		TRY(io_uring(KERNEL_MIN + 333 * i));
	return 0;
}

const struct test signal_tests[] = {
	{ "overflow", test_overflow },
	{ "undrained", test_overflow_undrained },
	{ "sched_undrained", test_sched_undrained },
	{ "every_size", test_every_size },
	{ "with_sched", test_with_sched },
	{ "singlestep", test_singlestep },
	{ "singleblock", test_singleblock },
	{ "syscall_stops", test_syscall_stops },
	{ "seccomp_stops", test_seccomp_stops },
	{ "signals_meanwhile", test_signals_meanwhile },
	{ "same_signal", test_same_signal },
	{ "group_stop", test_group_stop },
	{ "get_while_paused", test_get_while_paused },
	{ "clear_while_paused", test_clear_while_paused },
	{ "config_while_paused", test_config_while_paused },
	{ "exec_while_paused", test_exec_while_paused },
	{ "kill_while_paused", test_kill_while_paused },
	{ "detach_while_paused", test_detach_while_paused },
	{ "inject_another", test_inject_another },
	{ "inject_handled", test_inject_handled },
	{ "inject_blocked", test_inject_blocked },
	{ "tracer_dies", test_tracer_dies },
	{ "detach_with_signal", test_detach_with_signal },
	{ "io_uring", test_io_uring },
	{ 0 },
};
