// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Tasks that are frozen while they trace, are traced, or wait for their records to be taken: by a
 * control group, and by a suspend.
 */
#include <sys/mount.h>
#include <sys/stat.h>
#include "bts.h"

#define GROUP		"/cgroup/frozen"
#define PARTS		200
/* How often the tasks are frozen in a test, at least, and how often they are suspended at most */
#define ROUNDS		5
#define MAX_SUSPENDS	20

/* Returns 0 with a reason in `why` if there are no groups that can be frozen. */
static int make_group(void)
{
	mkdir("/cgroup", 0755);
	if (mount("cgroup2", "/cgroup", "cgroup2", 0, NULL) && errno != EBUSY) {
		snprintf(why, WHY_SIZE, "this kernel has no control groups");
		return 0;
	}
	CHECK(!mkdir(GROUP, 0755) || errno == EEXIST);
	return put(GROUP "/cgroup.freeze", "0");
}

static int enter_group(pid_t pid)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", pid);
	return put(GROUP "/cgroup.procs", text);
}

static int is_frozen(void)
{
	char events[256] = "";
	FILE *file = fopen(GROUP "/cgroup.events", "r");

	if (file) {
		events[fread(events, 1, sizeof(events) - 1, file)] = '\0';
		fclose(file);
	}
	return strstr(events, "frozen 1") != NULL;
}

/* Freezes the group, and waits until all its tasks are frozen. */
static int freeze(void)
{
	TRY(put(GROUP "/cgroup.freeze", "1"));
	for (int i = 0; i < 1000 && !is_frozen(); i++)
		usleep(1000);
	if (!is_frozen())
		FAIL("the group does not freeze");
	return 0;
}

static int thaw(void)
{
	return put(GROUP "/cgroup.freeze", "0");
}

static void work_parts(void)
{
	for (unsigned int i = 0; i < PARTS; i++) {
		maze(100 + i);
		usleep(1000);
	}
}

/* All branches of work_parts(), recorded in one piece */
static int whole(struct path *path)
{
	const long room = 1 << 18;
	struct record *r = malloc(RECORDS(room));
	pid_t pid = start(work_parts);
	long n;

	CHECK(r && pid > 0 && config(pid, RECORDS(room), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && n < room);
	TRY(path_add(path, r, n));
	stop(pid);
	free(r);
	return 0;
}

/* Traces work_parts(), perhaps in the group, and takes the records while it runs. */
static int trace(unsigned long records, unsigned long flags, int in_group)
{
	const long room = 1 << 16;
	struct record *r = malloc(RECORDS(room));
	struct path reference = { 0 }, path = { 0 };
	int status = 0;
	pid_t pid;
	long n;

	TRY(whole(&reference));
	pid = start(work_parts);
	CHECK(r && pid > 0);
	CHECK(config_virtual(pid, RECORDS(records), O_TRACE | O_SIGNAL | O_SCHED | O_NSECS | flags,
			     1 << 20) == 0);
	if (in_group)
		TRY(enter_group(pid));
	do {
		CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
		while (!waitpid(pid, &status, __WALL | WNOHANG)) {
			n = bts(DRAIN_RUNNING, pid, r, room);
			CHECK(n >= 0 || errno == EAGAIN);
			TRY(path_add(&path, r, n));
			usleep(100);
		}
		CHECK(status >> 8 == AT_EXIT || status >> 8 == SIGIO);
		CHECK(!(flags_of(pid) & O_LOST));
		n = bts(DRAIN, pid, r, room);
		CHECK(n >= 0 && n < room);
		TRY(path_add(&path, r, n));
	} while (status >> 8 != AT_EXIT);
	stop(pid);
	return path_compare(&path, &reference);
}

static const struct {
	unsigned long records, flags;
} buffers[] = { { 64, 0 }, { 64, O_VIRTUAL }, { KERNEL_MIN, O_VIRTUAL | O_KERNEL } };

#define BUFFERS (sizeof(buffers) / sizeof(buffers[0]))

/* Who is in the group */
enum frozen { TRACEE = 1, TRACER };

/* Runs trace() in a process, and freezes the group again and again until it has ended. */
static int freeze_often(unsigned int buffer, int who)
{
	int status = 0, rounds = 0;
	pid_t tracer = fork();

	if (!tracer)
		_exit((who & TRACER && enter_group(getpid())) ||
				      trace(buffers[buffer].records, buffers[buffer].flags,
					    who & TRACEE)
			      ? 1
			      : 0);
	CHECK(tracer > 0);
	while (!waitpid(tracer, &status, WNOHANG)) {
		usleep(3000);
		TRY(freeze());
		rounds++;
		usleep(3000);
		TRY(thaw());
	}
	CHECK(rounds >= ROUNDS || status);
	return status ? -1 : 0;
}

static int freeze_in_turn(int who)
{
	TRY(make_group());
	if (*why)
		return 0;
	for (unsigned int i = 0; i < BUFFERS; i++)
		TRY(freeze_often(i, who));
	return 0;
}

static int test_tracee(void)
{
	return freeze_in_turn(TRACEE);
}

static int test_tracer(void)
{
	return freeze_in_turn(TRACER);
}

static int test_both(void)
{
	return freeze_in_turn(TRACEE | TRACER);
}

static void work_forever(void)
{
	for (;;) {
		loop_a(10);
		usleep(100);
	}
}

/* A tracee that is frozen is drained, interrupted, configured and killed as another one. */
static int test_requests(void)
{
	static struct record r[4096];
	pid_t pid;
	int status;
	long n;

	TRY(make_group());
	if (*why)
		return 0;
	pid = start(work_forever);
	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0) && !ptrace(PTRACE_SEIZE, pid, 0, 0));
	CHECK(!ptrace(PTRACE_INTERRUPT, pid, 0, 0) && waitpid(pid, NULL, __WALL) == pid);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL | O_SCHED) == 0);
	TRY(enter_group(pid));
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	usleep(20000);
	TRY(freeze());
	n = bts(DRAIN_RUNNING, pid, r, sizeof(r) / sizeof(*r));
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) >= 9);
	CHECK(r[n - 1].qualifier == DEPARTS);
	usleep(20000);
	CHECK(bts(DRAIN_RUNNING, pid, r, sizeof(r) / sizeof(*r)) == 0);
	/* It stops for us, and freezes again. */
	CHECK(!ptrace(PTRACE_INTERRUPT, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
	CHECK(bts(CLEAR, pid, NULL, 0) == 0);
	CHECK(config(pid, RECORDS(1000), O_TRACE | O_SIGNAL) == 0);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	usleep(20000);
	n = bts(DRAIN_RUNNING, pid, r, 1000);
	CHECK(n >= 0 && count(r, n, loop_a_branch, loop_a_head) == 0);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status));
	CHECK(locked() == 0);
	return thaw();
}

#define POWER	"/sys/power/"

/* Freezes all tasks, suspends the devices and resumes them. */
static int suspend(void)
{
	TRY(put("/sys/module/suspend/parameters/pm_test_delay", "0"));
	/* The machine has nothing that could wake it up, so the processors do not sleep. */
	TRY(put(POWER "pm_test", "platform"));
	return put(POWER "state", "freeze");
}

static int test_suspend(void)
{
	int status = 0, rounds;
	pid_t tracer;

	if (access(POWER "pm_test", W_OK)) {
		snprintf(why, WHY_SIZE, "this kernel cannot test a suspend");
		return 0;
	}
	for (unsigned int i = 0; i < BUFFERS; i++) {
		rounds = 0;
		tracer = fork();
		if (!tracer)
			_exit(trace(buffers[i].records, buffers[i].flags, 0) ? 1 : 0);
		CHECK(tracer > 0);
		while (!waitpid(tracer, &status, WNOHANG)) {
			if (rounds < MAX_SUSPENDS) {
				TRY(suspend());
				rounds++;
			}
			usleep(3000);
		}
		CHECK(rounds >= ROUNDS || status);
		if (status)
			return -1;
	}
	return 0;
}

const struct test freezer_tests[] = {
	{ "tracee", test_tracee },
	{ "tracer", test_tracer },
	{ "both", test_both },
	{ "requests", test_requests },
	{ "suspend", test_suspend },
	{ 0 },
};
