// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Several processors: tasks that move, and tasks that are traced at the same time.
 */
#include "bts.h"
#include <sys/random.h>

static int one_processor(void)
{
	if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
		return 0;
	snprintf(why, WHY_SIZE, "one processor only");
	return 1;
}

static void move(unsigned int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		_exit(1);
}

static void work_migrate(void)
{
	for (unsigned int i = 0; i < 100; i++) {
		move(i % 2);
		loop_a(101);
	}
}

static int migrate(unsigned long records, unsigned long flags)
{
	const long room = 1 << 20;
	struct record *r = malloc(RECORDS(room));
	pid_t pid;
	long n;

	if (one_processor())
		return 0;
	pid = start(work_migrate);
	CHECK(r && pid > 0);
	CHECK(config_virtual(pid, RECORDS(records), O_TRACE | O_SCHED | O_VIRTUAL | flags,
			     64 << 20) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(!(flags_of(pid) & O_LOST));
	n = bts(DRAIN, pid, r, room);
	CHECK(n > 0 && n < room);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 10000);
	TRY(check_sched(r, n, "migrating", 150));
	stop(pid);
	return 0;
}

static int test_migrate(void)
{
	return migrate(1024, 0);
}

static int test_migrate_kernel(void)
{
	/*
	 * With interrupts off, the kernel can wait long for another processor, in a loop of
	 * branches.
	 */
	return migrate(1 << 15, O_KERNEL);
}

static void work_a_here(void)
{
	move(0);
	loop_a(20000);
}

static void work_b_there(void)
{
	move(1);
	loop_b(20000);
}

/* Each processor has its own Debug Store area, so the records do not mix. */
static int test_two_at_a_time(void)
{
	static struct record r[2][64];
	unsigned long own[2] = { 0 }, other = 0;
	pid_t pid[2];
	int left = 2, status;
	long n;

	if (one_processor())
		return 0;
	pid[0] = start(work_a_here);
	pid[1] = start(work_b_there);
	for (int i = 0; i < 2; i++) {
		CHECK(pid[i] > 0);
		CHECK(config(pid[i], sizeof(r[i]), O_TRACE | O_SIGNAL) == 0);
		CHECK(!ptrace(PTRACE_CONT, pid[i], 0, 0));
	}
	while (left) {
		pid_t now = waitpid(-1, &status, __WALL);
		int i = now == pid[1];

		CHECK(now == pid[i]);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		n = bts(DRAIN, now, r[i], 0);
		CHECK(n >= 0);
		own[i] += count(r[i], n, i ? loop_b_branch : loop_a_branch,
				i ? loop_b_head : loop_a_head);
		other += count(r[i], n, i ? loop_a_branch : loop_b_branch,
			       i ? loop_a_head : loop_b_head);
		if (status >> 8 == SIGIO)
			CHECK(!ptrace(PTRACE_CONT, now, 0, 0));
		else
			left--;
	}
	if (own[0] != 19999 || own[1] != 19999 || other)
		FAIL("%lu and %lu branches of 19999, %lu of the other", own[0], own[1], other);
	stop(pid[0]);
	stop(pid[1]);
	return 0;
}

/* The ptracer dies while its tracee records on another processor. */
static void work_forever(void)
{
	move(1);
	for (;;) {
		loop_a(1000);
		syscall(SYS_getppid);
	}
}

static int test_tracer_death(void)
{
	int shared[2], status;
	pid_t tracer, pid;

	if (one_processor())
		return 0;
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (int i = 0; i < 20; i++) {
		CHECK(!pipe(shared));
		tracer = fork();
		if (!tracer) {
			move(0);
			pid = fork();
			if (!pid)
				work_forever();
			_exit(attach(pid) ||
					      config_virtual(pid, RECORDS(KERNEL_MIN),
							     O_TRACE | O_KERNEL | O_VIRTUAL,
							     1 << 20) ||
					      write(shared[1], &pid, sizeof(pid)) != sizeof(pid) ||
					      ptrace(PTRACE_CONT, pid, 0, 0) ||
					      usleep(1000 + 100 * i)
				      ? 1
				      : 42);
		}
		CHECK(waitpid(tracer, &status, 0) == tracer && WIFEXITED(status) &&
		      WEXITSTATUS(status) == 42);
		CHECK(read(shared[0], &pid, sizeof(pid)) == sizeof(pid));
		CHECK(waitpid(pid, &status, WNOHANG) == 0);
		TRY(attach(pid));
		CHECK(flags_of(pid) == 0);
		stop(pid);
		close(shared[0]);
		close(shared[1]);
	}
	return 0;
}

/* Another process moves the task at any time. The trace has no gap. */
static int test_pushed_around(void)
{
	static struct record r[64];
	struct path path = { 0 }, reference;
	unsigned int stops = 0;
	cpu_set_t set;
	pid_t pid;
	int status;
	long n;

	if (one_processor())
		return 0;
	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	do {
		CPU_ZERO(&set);
		CPU_SET(stops++ % 2, &set);
		CHECK(!sched_setaffinity(pid, sizeof(set), &set));
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, 0);
		CHECK(n >= 0);
		TRY(path_add(&path, r, n));
	} while (status >> 8 == SIGIO);
	CHECK(stops > 100 && !(flags_of(pid) & O_LOST));
	stop(pid);
	return path_compare(&path, &reference);
}

/*
 * Killed while it records on another processor: its memory is released, and the next trace can use
 * that processor.
 */
static int test_killed_elsewhere(void)
{
	if (one_processor())
		return 0;
	move(0);
	return kill_while_recording(work_forever);
}

/* Requests for a task that runs on another processor are refused. */
static int test_running_elsewhere(void)
{
	struct config cfg = { 4096, O_TRACE, 0 };
	pid_t pid;

	if (one_processor())
		return 0;
	move(0);
	pid = start(work_forever);
	CHECK(pid > 0);
	CHECK(config(pid, 1 << 16, O_TRACE) == 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	for (int i = 0; i < 100; i++)
		for (int request = CONFIG; request <= DRAIN; request++)
			REFUSED(bts(request, pid, &cfg, 0), ESRCH);
	stop(pid);
	return 0;
}

/* More tracees than processors, all at the same time. */
static int test_many(void)
{
	enum { TRACEES = 12 };
	static struct record r[170];
	unsigned long branches[TRACEES] = { 0 };
	pid_t pid[TRACEES];
	int left = TRACEES, status;

	if (one_processor())
		return 0;
	for (int i = 0; i < TRACEES; i++) {
		pid[i] = start(i % 2 ? work_migrate : work_a_here);
		CHECK(pid[i] > 0);
		CHECK(config(pid[i], sizeof(r), O_TRACE | O_SIGNAL | (i % 3 ? O_SCHED : 0)) == 0);
	}
	for (int i = 0; i < TRACEES; i++)
		CHECK(!ptrace(PTRACE_CONT, pid[i], 0, 0));
	while (left) {
		pid_t now = waitpid(-1, &status, __WALL);
		int i = 0;
		long n;

		while (i < TRACEES && pid[i] != now)
			i++;
		CHECK(i < TRACEES && (status >> 8 == SIGIO || status >> 8 == AT_EXIT));
		CHECK(!(flags_of(now) & O_LOST));
		n = bts(DRAIN, now, r, 0);
		CHECK(n >= 0);
		branches[i] += count(r, n, loop_a_branch, loop_a_head);
		if (status >> 8 == SIGIO)
			CHECK(!ptrace(PTRACE_CONT, now, 0, 0));
		else
			left--;
	}
	for (int i = 0; i < TRACEES; i++) {
		unsigned long expected = i % 2 ? 10000 : 19999;

		if (branches[i] != expected)
			FAIL("tracee %d: %lu branches of %lu", i, branches[i], expected);
		stop(pid[i]);
	}
	CHECK(locked() == 0);
	return 0;
}

/* Naps for NSECS, and returns whether this task has left the processor each time. */
static int naps(long nsecs)
{
	const struct timespec nap = { 0, nsecs };
	const long times = 8;
	struct rusage before, after;

	getrusage(RUSAGE_SELF, &before);
	for (long i = 0; i < times; i++)
		nanosleep(&nap, NULL);
	getrusage(RUSAGE_SELF, &after);
	return after.ru_nvcsw - before.ru_nvcsw >= times;
}

static void work_nap(void)
{
	struct timespec nap = { 0, 1000 };

	move(1);
	prctl(PR_SET_TIMERSLACK, 1);
	/* On an instrumented kernel, a short nap is over before the task has gone to sleep. */
	while (!naps(nap.tv_nsec))
		nap.tv_nsec *= 2;
	for (;;)
		nanosleep(&nap, NULL);
}

/*
 * While one processor takes the records, the other one adds scheduling events. None is taken before
 * it is complete, and none is missing: arrivals and departures alternate, in the order of time.
 */
static int test_drain_events(void)
{
	static struct record r[4096];
	struct record last = { .qualifier = DEPARTS };
	const uint64_t end = monotonic() + 300000000;
	unsigned long events = 0;
	pid_t pid;
	long n;

	if (one_processor())
		return 0;
	move(0);
	pid = start(work_nap);
	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_SCHED | O_SIGNAL | O_NSECS) == 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	while (monotonic() < end) {
		n = bts(DRAIN_RUNNING, pid, r, sizeof(r) / sizeof(*r));
		CHECK(n >= 0 || errno == EAGAIN);
		for (long i = 0; i < n; i++, events++) {
			if (r[i].qualifier + last.qualifier != ARRIVES + DEPARTS || r[i].a < last.a)
				FAIL("event %lu is %" PRIu64 " at %" PRIu64 ", after %" PRIu64
				     " at %" PRIu64, events, r[i].qualifier, r[i].a,
				     last.qualifier, last.a);
			last = r[i];
		}
	}
	if (events <= 100)
		FAIL("only %lu events", events);
	stop(pid);
	return 0;
}

/* Takes one branch in user mode while it makes thousands in the kernel. */
static void work_busy(void)
{
	static char buffer[1 << 20];

	move(1);
	loop_a(100);
	for (;;)
		getrandom(buffer, sizeof(buffer), 0);
}

/*
 * A tracee that has a processor keeps its records. They are all there when it stops, and no segment
 * is given back.
 */
static int test_take_running(void)
{
	enum { SEGMENTS = 3 };
	const uint64_t end = monotonic() + 1000000000;
	unsigned int refused = 0;
	uint64_t offset = 0;
	long taken = 0, n;
	pid_t pid;

	if (one_processor())
		return 0;
	move(0);
	pid = start(work_busy);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(4096), O_TRACE | O_SIGNAL | O_MAPPED, SEGMENTS) == 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	/* Later it runs nearly always. */
	while (refused < 500 && monotonic() < end) {
		n = bts(TAKE_RUNNING, pid, &offset, taken);
		CHECK(n >= 0 || errno == EAGAIN);
		refused += n < 0;
		taken = n < 0 ? taken : n > 0;
		n = bts(DRAIN_RUNNING, pid, NULL, 0);
		CHECK(n == 0 || (n == -1 && errno == EAGAIN));
	}
	if (refused < 500)
		FAIL("only %u requests were refused", refused);
	CHECK(!kill(pid, SIGSTOP) && waitpid(pid, NULL, __WALL) == pid);
	REFUSED(bts(TAKE, pid, &offset, taken + 1), EINVAL);
	n = bts(TAKE, pid, &offset, taken);
	CHECK(n >= 0 && !(flags_of(pid) & O_LOST));
	stop(pid);
	return 0;
}

const struct test smp_tests[] = {
	{ "migrate", test_migrate },
	{ "migrate_kernel", test_migrate_kernel },
	{ "two_at_a_time", test_two_at_a_time },
	{ "tracer_death", test_tracer_death },
	{ "pushed_around", test_pushed_around },
	{ "killed_elsewhere", test_killed_elsewhere },
	{ "running_elsewhere", test_running_elsewhere },
	{ "many", test_many },
	{ "drain_events", test_drain_events },
	{ "take_running", test_take_running },
	{ 0 },
};
