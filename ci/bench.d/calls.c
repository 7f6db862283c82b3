// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A loop of calls, for the speed of reports (docs/performance.md): 5.5 taken branches for each
 * iteration.
 */
#include <stdio.h>
#include <stdlib.h>

static unsigned state = 1;

__attribute__((noinline)) static unsigned next(void)
{
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

__attribute__((noinline)) static int step(int value)
{
	return value & 1 ? value * 3 + 1 : value / 2;
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 1000;
	int sum = 0;

	for (long i = 0; i < count; i++) {
		sum += step(next() & 0xffff);
		if (sum & 4)
			sum ^= i;
	}
	printf("%d\n", sum);
	return 0;
}
