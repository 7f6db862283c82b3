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

const struct test task_tests[] = {
	{ "two_tasks", test_two_tasks },
	{ "fork", test_fork },
	{ "exec", test_exec },
	{ "detach", test_detach },
	{ "tracer_death", test_tracer_death },
	{ "perf", test_perf },
	{ 0 },
};
