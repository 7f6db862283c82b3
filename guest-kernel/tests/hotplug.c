// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A processor that goes offline while it records, and comes back.
 */
#include "bts.h"

#define ONLINE	"/sys/devices/system/cpu/cpu1/online"
/* How often the processor goes and comes in a test */
#define ROUNDS	6

static int no_hotplug(void)
{
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		snprintf(why, WHY_SIZE, "one processor only");
	else if (access(ONLINE, W_OK))
		snprintf(why, WHY_SIZE, "the second processor cannot go offline");
	return *why != 0;
}

static int run_on(pid_t pid, unsigned int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	CHECK(!sched_setaffinity(pid, sizeof(set), &set));
	return 0;
}

/* Takes the second processor offline, whose tasks move to another one, and online again. */
static int cycle(void)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);

	TRY(put(ONLINE, "0"));
	CHECK(sysconf(_SC_NPROCESSORS_ONLN) == online - 1);
	TRY(put(ONLINE, "1"));
	CHECK(sysconf(_SC_NPROCESSORS_ONLN) == online);
	return 0;
}

/* One part of the path on each processor, before and after the second one goes offline */
static void work_parts(void)
{
	for (unsigned int i = 0; i <= ROUNDS; i++) {
		maze(3000 + i);
		/* The test restarts us on the second processor. */
		raise(SIGSTOP);
	}
}

/* Waits for the tracee's next SIGSTOP, and drains it at its other stops. */
static int next_round(pid_t pid, struct record *r, long room, struct path *path, int *status)
{
	long n;

	do {
		*status = next_stop(pid, 0);
		CHECK(*status >> 8 == SIGIO || *status >> 8 == SIGSTOP || *status >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, room);
		CHECK(n >= 0);
		TRY(path_add(path, r, n));
	} while (*status >> 8 == SIGIO);
	return 0;
}

static int drained(unsigned long records, unsigned long flags, struct path *path)
{
	const long room = 1 << 16;
	struct record *r = malloc(RECORDS(room));
	pid_t pid = start(work_parts);
	int status = 0;

	CHECK(r && pid > 0);
	/* The hardware is reserved while the processor is offline. */
	TRY(put(ONLINE, "0"));
	CHECK(config_virtual(pid, RECORDS(records), O_TRACE | flags, 4 << 20) == 0);
	TRY(put(ONLINE, "1"));
	for (;;) {
		TRY(run_on(pid, 1));
		TRY(next_round(pid, r, room, path, &status));
		if (status >> 8 == AT_EXIT)
			break;
		TRY(cycle());
	}
	CHECK(!(flags_of(pid) & O_LOST));
	stop(pid);
	free(r);
	return 0;
}

/* After each return of the processor, its Debug Store area is set up, and records are complete. */
static int test_again(void)
{
	static const unsigned long flags[] = { O_SIGNAL, O_SIGNAL | O_SCHED, O_VIRTUAL };
	struct path reference = { 0 };

	if (no_hotplug())
		return 0;
	TRY(run_on(0, 0));
	TRY(drained(1 << 16, 0, &reference));
	CHECK(reference.n > 3000 * ROUNDS);
	for (unsigned int i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		struct path path = { 0 };

		TRY(drained(170, flags[i], &path));
		TRY(path_compare(&path, &reference));
		free(path.r);
	}
	return 0;
}

/* Set in memory that all processes share, when the processor has gone and come often enough */
static volatile int *enough;

static void work_mazes(void)
{
	do
		maze(maze_steps);
	while (!*enough);
}

/* Lets the processor go again and again from under the tracee, which then moves back. */
static int disturb(pid_t pid)
{
	for (int i = 0; i < ROUNDS; i++) {
		TRY(run_on(pid, 1));
		usleep(5000);
		TRY(cycle());
	}
	*enough = 1;
	return 0;
}

/* Compares the records with the path that the tracee takes again and again. */
static int follow(const struct path *reference, unsigned long *at, const struct record *r, long n)
{
	struct path part = { 0 };

	TRY(path_add(&part, r, n));
	for (long i = 0; i < part.n; i++, ++*at)
		if (memcmp(&part.r[i], &reference->r[*at % reference->n], sizeof(*r)))
			FAIL("branch %lu, %ld of %ld, is %#" PRIx64 " -> %#" PRIx64, *at,
			     *at % reference->n, reference->n, part.r[i].a, part.r[i].b);
	free(part.r);
	return 0;
}

static int while_recording(const struct path *reference, unsigned long flags)
{
	static struct record r[1 << 14];
	unsigned long at = 0;
	pid_t pid, other;
	int status;
	long n;

	*enough = 0;
	pid = start(work_mazes);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(1024), O_TRACE | O_SIGNAL | flags, 200000) == 0);
	other = fork();
	if (!other)
		_exit(disturb(pid) ? 1 : 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		CHECK(!(flags_of(pid) & O_LOST));
		n = bts(DRAIN, pid, r, sizeof(r) / sizeof(*r));
		CHECK(n > 0 || status >> 8 == AT_EXIT);
		TRY(follow(reference, &at, r, n));
	} while (status >> 8 == SIGIO);
	CHECK(waitpid(other, &status, 0) == other);
	if (status)
		return -1;
	if (at % reference->n || at < 2ul * reference->n)
		FAIL("%lu branches, in paths of %ld", at, reference->n);
	stop(pid);
	return 0;
}

/* The trace of a task that has to leave the processor has no gap. */
static int test_under_the_tracee(void)
{
	static const unsigned long flags[] = { 0, O_SCHED, O_VIRTUAL };
	struct path reference;

	if (no_hotplug())
		return 0;
	enough = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(enough != MAP_FAILED);
	TRY(run_on(0, 0));
	maze_steps = 5000;
	TRY(path_reference(&reference));
	for (unsigned int i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		TRY(while_recording(&reference, flags[i]));
	return 0;
}

static void work_forever(void)
{
	for (;;) {
		loop_a(1000);
		syscall(SYS_getppid);
	}
}

/* A tracee that records the kernel is killed while the processor that records goes offline. */
static int test_killed(void)
{
	if (no_hotplug())
		return 0;
	TRY(run_on(0, 0));
	for (int i = 0; i < ROUNDS; i++) {
		pid_t pid = start(work_forever), killer;
		int status;

		CHECK(pid > 0);
		CHECK(config_virtual(pid, RECORDS(KERNEL_MIN),
				     O_TRACE | O_KERNEL | O_VIRTUAL | O_SCHED, 1 << 20) == 0);
		TRY(run_on(pid, 1));
		CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, 0) && !ptrace(PTRACE_CONT, pid, 0, 0));
		killer = fork();
		if (!killer)
			_exit(usleep(1000 * i) || kill(pid, SIGKILL));
		TRY(cycle());
		CHECK(waitpid(killer, &status, 0) == killer && !status);
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status));
		CHECK(locked() == 0);
	}
	return 0;
}

const struct test hotplug_tests[] = {
	{ "again", test_again },
	{ "under_the_tracee", test_under_the_tracee },
	{ "killed", test_killed },
	{ 0 },
};
