// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Runs a program COUNT times at the same time, on as many processors. It fails if one of them does.
 *
 *	parallel COUNT PROGRAM [ARG]...
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int failed = 0, status;

	if (argc < 3)
		return 2;
	for (int n = atoi(argv[1]); n > 0; n--) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(n - 1, &set);
		switch (fork()) {
		case -1:
			return 1;
		case 0:
			if (sched_setaffinity(0, sizeof(set), &set))
				_exit(127);
			execv(argv[2], argv + 2);
			_exit(127);
		}
	}
	while (wait(&status) > 0)
		failed |= status != 0;
	return failed;
}
