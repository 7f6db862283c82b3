// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The context-switch workload: two processes on one processor exchange a byte through two pipes.
 * Each read waits for the other process, so each exchange makes two context switches.
 *
 * switches ROUNDS: prints the sum of the bytes that came back.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 0, sum = 0;
	int there[2], back[2], status, processor = sched_getcpu();
	unsigned char byte;
	cpu_set_t one;
	pid_t child;

	CPU_ZERO(&one);
	CPU_SET(processor < 0 ? 0 : processor, &one);
	if (sched_setaffinity(0, sizeof(one), &one) || pipe(there) || pipe(back))
		return 1;
	child = fork();
	if (child < 0)
		return 1;
	if (!child) {
		close(there[1]);
		while (read(there[0], &byte, 1) == 1) {
			byte ^= 0x55;
			if (write(back[1], &byte, 1) != 1)
				_exit(1);
		}
		_exit(0);
	}
	for (long i = 0; i < rounds; i++) {
		byte = i * 7;
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			return 1;
		sum += byte;
	}
	close(there[1]);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	printf("%ld\n", sum);
	return 0;
}
