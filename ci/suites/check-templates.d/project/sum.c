/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include <stdio.h>
#include <stdlib.h>

static long sum(long last)
{
	long total = 0;

	for (long i = 1; i <= last; i++)
		total += i;
	return total;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	printf("%ld\n", sum(atol(argv[1])));
	return 0;
}
