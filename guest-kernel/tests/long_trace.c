// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Traces a program with known branches, for any length. Checks that every record is there, in
 * order, and none twice.
 *
 *	gcc -O2 -Wall -Wextra -static -o long_trace long_trace.c walk.c bts.c
 *	long_trace [STEPS]		with PTRACE_BTS_O_SIGNAL, and with PTRACE_BTS_O_VIRTUAL
 *	long_trace --step STEPS		with PTRACE_SINGLESTEP, on any kernel
 *
 * Prints KTAP. As PID 1 it reports through the machine's exit port.
 */
#include "walk.h"
#include <sys/user.h>

#define START		0x9e3779b97f4a7c15ull
#define BUFFER		(64ul << 10)
#define VIRTUAL_BUFFER	(16ul << 20)

static uint64_t steps = 1000000;

static void work(void)
{
	atomic_ulong counter = 0;

	walk(START, steps, &counter);
	if (counter != steps)
		_exit(1);
}

/* The same walk seen with PTRACE_SINGLESTEP, which needs no branch records. */
static int single_step(void)
{
	struct user_regs_struct regs;
	uint64_t branches = 0;
	pid_t pid = start(work);
	int status;

	CHECK(pid > 0);
	for (;;) {
		CHECK(!ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
		if (status >> 8 == AT_EXIT)
			break;
		CHECK(WSTOPSIG(status) == SIGTRAP);
		CHECK(!ptrace(PTRACE_GETREGS, pid, 0, &regs));
		branches += walk_is_target(regs.rip);
	}
	stop(pid);
	if (branches != WALK_BRANCHES(steps))
		FAIL("%lu branches instead of %lu", branches, WALK_BRANCHES(steps));
	return 0;
}

/* Traces the walk with this configuration, and drains the buffer at each stop. */
static int trace(unsigned long flags, unsigned long virtual_size)
{
	static struct record records[BUFFER / sizeof(struct record)];
	const long room = sizeof(records) / sizeof(records[0]);
	struct walker walker = { START, 0, OUTSIDE };
	unsigned long all = 0, stops = 0, begun = 0;
	pid_t pid = start(work);
	long n, i;
	int why_stopped;

	CHECK(pid > 0);
	CHECK(!config_virtual(pid, BUFFER, O_TRACE | flags, virtual_size));
	do {
		why_stopped = next_stop(pid, 0) >> 8;
		CHECK(why_stopped == SIGIO || why_stopped == AT_EXIT);
		CHECK(!(flags_of(pid) & O_LOST));
		stops++;
		do {
			n = bts(DRAIN, pid, records, room);
			CHECK(n >= 0 && n <= room);
			for (i = 0; i < n; i++) {
				begun += walk_begins(&records[i]);
				TRY(walk_follow(&walker, &records[i]));
			}
			all += n;
			/* Without a virtual buffer one DRAIN returns all records. */
		} while (n && virtual_size);
	} while (why_stopped != AT_EXIT);
	if (begun != 1 || walker.steps != steps || walker.place != OUTSIDE)
		FAIL("%lu walks, and %lu steps of %lu", begun, walker.steps, steps);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(waitpid(pid, &why_stopped, __WALL) == pid && why_stopped == 0);
	printf("# %lu records, %lu of the walk, %lu stops\n", all, WALK_BRANCHES(steps), stops);
	return 0;
}

static int with_signal(void)
{
	return trace(O_SIGNAL, 0);
}

static int with_virtual(void)
{
	return trace(O_SIGNAL | O_VIRTUAL, VIRTUAL_BUFFER);
}

static int run(int argc, char **argv)
{
	static const struct test stepped[] = { { "single_step", single_step }, { NULL, NULL } };
	static const struct test traced[] = { { "signal", with_signal },
					      { "virtual", with_virtual },
					      { NULL, NULL } };
	const struct test *tests = traced, *test;
	static char reason[WHY_SIZE];
	int failures = 0;

	if (argc > 1 && !strcmp(argv[1], "--step")) {
		tests = stepped;
		argc--;
		argv++;
	}
	if (argc > 1)
		steps = strtoul(argv[1], NULL, 0);
	why = reason;
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("KTAP version 1\n1..%d\n", tests == traced ? 2 : 1);
	for (test = tests; test->name; test++) {
		int failed = test->run();

		printf("%sok %ld %s\n", failed ? "not " : "", test - tests + 1, test->name);
		if (failed)
			printf("# %s\n", why);
		failures += !!failed;
	}
	return failures ? 1 : 0;
}

int main(int argc, char **argv)
{
	int status = run(argc, argv);

	return getpid() == 1 ? end_machine(status) : status;
}
