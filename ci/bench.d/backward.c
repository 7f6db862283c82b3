// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Variables that are written once, before a recursion of about a billion instructions: a debugger
 * searches for the writes from the end.
 *
 * backward [N]: the recursion of Fibonacci's number N, 37 without an argument.
 */
#include <stdio.h>
#include <stdlib.h>

long global;
volatile unsigned result;

__attribute__((noinline)) static unsigned fib(unsigned n)
{
	volatile unsigned sum = n;

	if (n >= 2)
		sum = fib(n - 1) + fib(n - 2);
	return sum;
}

__attribute__((noinline)) static void write_global(void)
{
	global = 42;
}

__attribute__((noinline)) static void recursion_done(void)
{
	puts("end");
}

__attribute__((noinline)) static void work(unsigned n)
{
	volatile long local = 7;

	result = fib(n);
	recursion_done();
	result += local;
}

__attribute__((noinline)) static void finished(void)
{
	puts("done");
}

int main(int argc, char **argv)
{
	write_global();
	work(argc > 1 ? atoi(argv[1]) : 37);
	finished();
	return 0;
}
