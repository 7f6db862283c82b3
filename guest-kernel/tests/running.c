// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What a tracer of several tasks needs: times in nanoseconds, records of tracees that are not
 * stopped or have ended, the event of a tracee that traces, and that of a task that hides.
 */
#include "bts.h"
#include <sched.h>
#include <sys/syscall.h>

#define EVENT_PTRACE	8
#define O_TRACEPTRACE	(1 << EVENT_PTRACE)
#define O_TRACEUNTRACED	(1 << 22)

static int to_tracee[2], to_tracer[2];

static void work_sleep(void)
{
	for (int i = 0; i < 10; i++) {
		loop_a(101);
		usleep(30000);
	}
}

/* Times are between the tracer's, and the tracee sleeps as long as it should. */
static int test_nsecs(void)
{
	static struct record r[1 << 13];
	pid_t pid = start(work_sleep);
	uint64_t begin = monotonic(), end, departed = 0;
	unsigned long sleeps = 0;
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SCHED | O_SIGNAL | O_NSECS) == 0);
	CHECK(flags_of(pid) & O_NSECS);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	/* The request waits until the tracee has left its processor. */
	n = bts(DRAIN, pid, r, 0);
	end = monotonic();
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 1000);
	TRY(check_sched(r, n, "asleep", 20));
	for (long i = 0; i < n; i++) {
		if (r[i].qualifier == BRANCH)
			continue;
		if (r[i].a < begin || r[i].a > end)
			FAIL("time %" PRIu64 " is not between %" PRIu64 " and %" PRIu64, r[i].a,
			     begin, end);
		/* When the tracee departs, its timer has already run for some time. */
		if (r[i].qualifier == DEPARTS)
			departed = r[i].a;
		else if (departed && r[i].a - departed >= 20000000)
			sleeps++;
	}
	if (sleeps < 10)
		FAIL("%lu sleeps of 30 ms instead of 10", sleeps);
	stop(pid);
	return 0;
}

/* Drains a tracee in any state, `room` records at a time. Returns their number. */
static long drain_running(pid_t pid, struct record *r, long room, long step)
{
	long n = 0, now;

	for (;;) {
		now = bts(DRAIN_RUNNING, pid, r + n, room - n < step ? room - n : step);
		if (now < 0 && errno == EAGAIN) {
			sched_yield();
			continue;
		}
		if (now <= 0)
			return now < 0 ? now : n;
		n += now;
	}
}

static void work_block(void)
{
	char turn = 0;

	loop_a(1000);
	if (write(to_tracer[1], &turn, 1) != 1 || read(to_tracee[0], &turn, 1) != 1)
		_exit(1);
	loop_b(1000);
}

static int test_blocked(void)
{
	static struct record r[1 << 13];
	pid_t pid;
	char turn;
	long n;

	CHECK(!pipe(to_tracee) && !pipe(to_tracer));
	pid = start(work_block);
	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(read(to_tracer[0], &turn, 1) == 1);
	/* So that it blocks. */
	usleep(10000);
	n = drain_running(pid, r, sizeof(r) / sizeof(*r), 100);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 999);
	CHECK(drain_running(pid, r, 100, 100) == 0);
	/* Other requests need a stop. */
	REFUSED(bts(SIZE, pid, NULL, 0), ESRCH);
	REFUSED(bts(DRAIN, pid, r, 0), ESRCH);
	CHECK(write(to_tracee[1], &turn, 1) == 1);
	CHECK(waitpid(pid, NULL, __WALL) == pid);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 0);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 999);
	stop(pid);
	return 0;
}

static int test_errors(void)
{
	static struct record r[1 << 13];
	pid_t pid = start(work_none), other = fork();
	int status;

	if (!other)
		for (;;)
			pause();
	CHECK(pid > 0 && other > 0);
	REFUSED(bts(DRAIN_RUNNING, other, r, 1), ESRCH);
	REFUSED(bts(DRAIN_RUNNING, pid, r, 1), ENXIO);
	/* A buffer that wraps around, and one that records nothing */
	CHECK(config(pid, RECORDS(1000), O_TRACE) == 0);
	REFUSED(bts(DRAIN_RUNNING, pid, r, 1000), EINVAL);
	CHECK(config(pid, RECORDS(1000), O_SIGNAL) == 0);
	REFUSED(bts(DRAIN_RUNNING, pid, r, 1000), EINVAL);
	stop(pid);

	pid = start(work_a);
	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	status = next_stop(pid, 0);
	CHECK(status >> 8 == AT_EXIT);
	/* Unlike the next one, this request waits until the tracee has left its processor. */
	CHECK(bts(SIZE, pid, NULL, 0) > 0);
	CHECK(bts(DRAIN_RUNNING, pid, r, 0) == 0);
	REFUSED(bts(DRAIN_RUNNING, pid, (void *)8, 1 << 13), EFAULT);
	/* Nothing has been discarded. A stopped tracee is one in any state. */
	CHECK(count(r, drain_running(pid, r, 1 << 13, 1 << 13), loop_a_branch, loop_a_head) == 999);
	stop(pid);
	kill(other, SIGKILL);
	CHECK(waitpid(other, NULL, 0) == other);
	return 0;
}

/* The request takes the records of a paused tracee, which stays paused for its tracer. */
static int test_paused(void)
{
	static struct record r[64];
	pid_t pid = start(work_a);
	unsigned long found = 0;
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	while ((status = next_stop(pid, 0)) >> 8 == SIGIO) {
		/* The tracee may still be on its processor, about to stop. */
		n = drain_running(pid, r, sizeof(r) / sizeof(*r), sizeof(r) / sizeof(*r));
		CHECK(n > 0 && flags_of(pid) & O_PAUSED);
		found += count(r, n, loop_a_branch, loop_a_head);
		CHECK(bts(DRAIN, pid, r, 0) == 0 && !(flags_of(pid) & O_PAUSED));
	}
	CHECK(status >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n >= 0 && found + count(r, n, loop_a_branch, loop_a_head) == 999);
	stop(pid);
	return 0;
}

#define PIECES	40

static void work_pieces(void)
{
	for (unsigned int i = 0; i < PIECES; i++) {
		maze(100 + i);
		usleep(20);
	}
}

/*
 * Drains a tracee while it runs, blocks and stops for overflow. No branch is missing, none is there
 * twice.
 */
static int drain_all_the_time(unsigned long records, unsigned long flags)
{
	const long room = 1 << 17;
	struct record *r = malloc(RECORDS(room));
	struct path whole = { 0 }, path = { 0 };
	int status = 0;
	pid_t pid;
	long n;

	pid = start(work_pieces);
	CHECK(r && pid > 0);
	CHECK(config(pid, RECORDS(room), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && n < room);
	TRY(path_add(&whole, r, n));
	CHECK(whole.n > 100 * PIECES);
	stop(pid);

	pid = start(work_pieces);
	CHECK(pid > 0);
	flags |= O_TRACE | O_SIGNAL | O_SCHED | O_NSECS;
	CHECK(config_virtual(pid, RECORDS(records), flags, 1 << 20) == 0);
	do {
		CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
		for (unsigned int i = 0; !waitpid(pid, &status, __WALL | WNOHANG); i++) {
			n = bts(DRAIN_RUNNING, pid, r, i % 50 ? room : 10);
			CHECK(n >= 0 || errno == EAGAIN);
			TRY(path_add(&path, r, n));
			usleep(i % 30);
		}
		/* A pause remains for the tracer to see. */
		if (status >> 8 != AT_EXIT)
			CHECK(status >> 8 == SIGIO && flags_of(pid) & O_PAUSED);
		CHECK(!(flags_of(pid) & O_LOST));
		n = bts(DRAIN, pid, r, room);
		CHECK(n >= 0 && n < room);
		TRY(path_add(&path, r, n));
	} while (status >> 8 != AT_EXIT);
	TRY(path_compare(&path, &whole));
	stop(pid);
	free(r);
	free(path.r);
	free(whole.r);
	return 0;
}

static int test_all_the_time(void)
{
	return drain_all_the_time(1 << 12, 0);
}

static int test_overflow(void)
{
	return drain_all_the_time(64, 0);
}

static int test_virtual(void)
{
	return drain_all_the_time(64, O_VIRTUAL);
}

static int test_kernel(void)
{
	return drain_all_the_time(KERNEL_MIN, O_VIRTUAL | O_KERNEL);
}

/* The stack of a thread that makes only system calls. */
static char thread_stack[64 << 10] __attribute__((aligned(16)));

static int thread_a(void *argument)
{
	(void)argument;
	loop_a(1000);
	syscall(SYS_exit, 0);
	return 0;
}

static void work_leave_thread(void)
{
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
	char turn;

	if (clone(thread_a, thread_stack + sizeof(thread_stack), flags, NULL) < 0)
		_exit(1);
	if (read(to_tracee[0], &turn, 1) != 1)
		_exit(1);
}

/* Starts to record the task that a tracee has just started. */
static pid_t record_new_task(pid_t pid, unsigned long size, unsigned long flags)
{
	unsigned long message;

	CHECK(!ptrace(PTRACE_GETEVENTMSG, pid, 0, &message));
	CHECK(waitpid((pid_t)message, NULL, __WALL) == (pid_t)message);
	CHECK(config((pid_t)message, size, flags) == 0);
	return (pid_t)message;
}

/*
 * A thread is in its exit stop, which its tracer has not seen, when the process ends: that ends the
 * stop. The records remain until the thread is reaped.
 */
static int test_zombie(void)
{
	static struct record r[1 << 12];
	siginfo_t info = { 0 };
	pid_t pid, thread;
	char turn = 0;
	long n;

	CHECK(!pipe(to_tracee));
	pid = start(work_leave_thread);
	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0,
		      PTRACE_O_TRACEEXIT | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
	CHECK(next_stop(pid, 0) >> 8 == (SIGTRAP | PTRACE_EVENT_CLONE << 8));
	thread = record_new_task(pid, sizeof(r), O_TRACE | O_SIGNAL | O_SCHED);
	CHECK(thread > 0);
	CHECK(!ptrace(PTRACE_CONT, thread, 0, 0));
	CHECK(!waitid(P_PID, thread, &info, WSTOPPED | WNOWAIT | __WALL));
	CHECK(write(to_tracee[1], &turn, 1) == 1);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(!waitid(P_PID, thread, &info, WEXITED | WNOWAIT | __WALL));
	CHECK(info.si_code == CLD_EXITED);
	n = drain_running(thread, r, sizeof(r) / sizeof(*r), 100);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 999);
	TRY(check_sched(r, n, "dead", 2));
	CHECK(waitpid(thread, NULL, __WALL) == thread);
	CHECK(locked() == 0);
	REFUSED(bts(DRAIN_RUNNING, thread, r, 1), ESRCH);
	stop(pid);
	return 0;
}

/* It blocks for each page of a pipe, more often than the buffer has room for. */
static void work_write(void)
{
	static char bytes[4 << 20];

	loop_a(101);
	if (write(to_tracer[1], bytes, sizeof(bytes)) != sizeof(bytes))
		_exit(1);
	loop_a(101);
}

static int test_long_write(void)
{
	static struct record r[64];
	static char bytes[4096];
	unsigned long found = 0;
	pid_t reader, pid;
	int status;
	long n;

	CHECK(!pipe(to_tracer));
	CHECK(fcntl(to_tracer[1], F_SETPIPE_SZ, 4096) == 4096);
	reader = fork();
	if (!reader) {
		close(to_tracer[1]);
		while (read(to_tracer[0], bytes, sizeof(bytes)) > 0)
			;
		_exit(0);
	}
	pid = start(work_write);
	CHECK(reader > 0 && pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL | O_SCHED) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == AT_EXIT || status >> 8 == SIGIO);
		CHECK(!(flags_of(pid) & O_LOST));
		n = bts(DRAIN, pid, r, 0);
		CHECK(n >= 0);
		found += count(r, n, loop_a_branch, loop_a_head);
	} while (status >> 8 != AT_EXIT);
	CHECK(found == 200);
	stop(pid);
	kill(reader, SIGKILL);
	CHECK(waitpid(reader, NULL, 0) == reader);
	return 0;
}

/* A tracee whose child asks to be traced by it. */
static void work_traceme(void)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, 0, 0))
			_exit(2);
		raise(SIGSTOP);
		_exit(3);
	}
	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		_exit(4);
	if (ptrace(PTRACE_CONT, pid, 0, 0) || waitpid(pid, &status, __WALL) != pid)
		_exit(5);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 6);
}

/* A tracee that traces its child. */
static void work_seize(void)
{
	pid_t pid = fork();

	if (!pid)
		for (;;)
			pause();
	if (ptrace(PTRACE_SEIZE, pid, 0, 0))
		_exit(2);
	if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || waitpid(pid, NULL, __WALL) != pid)
		_exit(4);
	kill(pid, SIGKILL);
	_exit(3);
}

/*
 * Runs a tracee that traces its child, or is refused with EPERM unless the tracer of both detaches
 * from the child. Returns the status with which it exits.
 */
static int status_of_tracing(void (*work)(void), int detach)
{
	const int options = PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL | O_TRACEPTRACE;
	int status, events = 0;
	unsigned long message;
	pid_t pid, child;

	pid = start(work);
	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, options));
	CHECK(next_stop(pid, 0) >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8));
	child = record_new_task(pid, RECORDS(64), O_TRACE);
	CHECK(child > 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0) && !ptrace(PTRACE_CONT, child, 0, 0));
	for (;;) {
		pid_t now = waitpid(-1, &status, __WALL);

		CHECK(now == pid || now == child);
		if (!WIFSTOPPED(status)) {
			if (now == child)
				continue;
			CHECK(WIFEXITED(status) && events == 1);
			return WEXITSTATUS(status);
		}
		if (status >> 8 == (SIGTRAP | EVENT_PTRACE << 8)) {
			events++;
			CHECK(!ptrace(PTRACE_GETEVENTMSG, now, 0, &message));
			CHECK((pid_t)message == child);
			if (detach && now != child) {
				CHECK(!kill(child, SIGURG));
				CHECK(waitpid(child, &status, __WALL) == child);
			}
			if (detach)
				CHECK(!ptrace(PTRACE_DETACH, child, 0, 0));
			if (!detach || now != child)
				CHECK(!ptrace(PTRACE_CONT, now, 0, 0));
			continue;
		}
		ptrace(PTRACE_CONT, now, 0, status >> 16 ? 0 : WSTOPSIG(status));
	}
}

static int test_event_traceme(void)
{
	int status = status_of_tracing(work_traceme, 1);

	if (status != 3)
		FAIL("status %d", status);
	return 0;
}

static int test_event_seize(void)
{
	int status = status_of_tracing(work_seize, 1);

	if (status != 3)
		FAIL("status %d", status);
	status = status_of_tracing(work_seize, 0);
	if (status != 2)
		FAIL("without a detach: status %d", status);
	return 0;
}

static void work_clone_untraced(void)
{
	if (!syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, 0, 0, 0, 0)) {
		loop_a(101);
		_exit(0);
	}
	wait(NULL);
}

/* With CLONE_UNTRACED a new task is a tracee only if the tracer wants it. */
static int test_untraced(void)
{
	static struct record r[1 << 12];
	const int options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL;
	pid_t pid = start(work_clone_untraced), child;
	int status;
	long n;

	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, options));
	do
		status = next_stop(pid, 0);
	while (status >> 8 == SIGCHLD);
	CHECK(status >> 8 == AT_EXIT);
	stop(pid);

	pid = start(work_clone_untraced);
	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, options | O_TRACEUNTRACED));
	CHECK(next_stop(pid, 0) >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8));
	child = record_new_task(pid, sizeof(r), O_TRACE);
	CHECK(child > 0);
	CHECK(next_stop(child, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, child, r, 0);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 100);
	stop(child);
	stop(pid);
	return 0;
}

const struct test running_tests[] = {
	{ "nsecs", test_nsecs },
	{ "blocked", test_blocked },
	{ "errors", test_errors },
	{ "paused", test_paused },
	{ "all_the_time", test_all_the_time },
	{ "overflow", test_overflow },
	{ "virtual", test_virtual },
	{ "kernel", test_kernel },
	{ "zombie", test_zombie },
	{ "long_write", test_long_write },
	{ "event_traceme", test_event_traceme },
	{ "event_seize", test_event_seize },
	{ "untraced", test_untraced },
	{ 0 },
};
