// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The system-call workload: three of the shortest system calls in each round.
 *
 * syscalls ROUNDS: prints the sum of the bytes that came back through a pipe.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 0, sum = 0;
	pid_t parent = getppid();
	int ends[2];

	if (pipe(ends))
		return 1;
	for (long i = 0; i < rounds; i++) {
		unsigned char byte = i * 7;

		if (syscall(SYS_getppid) != parent || write(ends[1], &byte, 1) != 1 ||
		    read(ends[0], &byte, 1) != 1)
			return 1;
		sum += byte;
	}
	printf("%ld\n", sum);
	return 0;
}
