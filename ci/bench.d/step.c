// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * step COUNT PROGRAM [ARG]...: single-steps COUNT instructions of a program with ptrace and reads
 * the address of each, as a tracer without a Branch Trace Store must. Prints the seconds that this
 * took.
 */
#include <stddef.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long addresses = 0;
	long count = argc > 2 ? atol(argv[1]) : 0;
	struct timespec from, to;
	int status;
	pid_t child;

	if (count <= 0)
		return 1;
	child = fork();
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execv(argv[2], argv + 2);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 0; i < count; i++) {
		if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) || waitpid(child, &status, 0) != child ||
		    !WIFSTOPPED(status))
			return 1;
		addresses ^= ptrace(PTRACE_PEEKUSER, child, offsetof(struct user_regs_struct, rip),
				    0);
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	if (!addresses)
		return 1;
	printf("%.9f\n", to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9);
	return 0;
}
