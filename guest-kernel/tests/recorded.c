// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Prints the branches of a child as its Branch Trace Store has them, with those of the kernel, for
 * a comparison with a recording of the whole machine.
 *
 *	gcc -O2 -Wall -Wextra -static -o recorded recorded.c bts.c
 *
 * As PID 1 it reports through the machine's exit port.
 */
#include "bts.h"

#define ROOM 30000
#define CALLS 50

static void work(void)
{
	for (int i = 0; i < CALLS; i++) {
		syscall(SYS_getppid);
		maze(50);
	}
}

static int run(void)
{
	static struct record r[ROOM];
	pid_t pid = start(work);
	long n;

	if (pid <= 0 || config(pid, RECORDS(ROOM), O_TRACE | O_KERNEL)) {
		perror("recorded");
		return 1;
	}
	if (next_stop(pid, 0) >> 8 != AT_EXIT)
		return 2;
	/* The processor is idle meanwhile. */
	usleep(1000);
	n = bts(DRAIN, pid, r, RECORDS(ROOM));
	/* A full buffer has lost its oldest records. */
	if (n <= 0 || n >= ROOM)
		return 3;
	stop(pid);
	for (long i = 0; i < n; i++)
		if (r[i].qualifier == BRANCH)
			printf("branch %llx %llx\n", (unsigned long long)r[i].a,
			       (unsigned long long)r[i].b);
	return 0;
}

int main(void)
{
	int status = run();

	return getpid() == 1 ? end_machine(status) : status;
}
