/* SPDX-License-Identifier: Apache-2.0 OR MIT */

/* Two coroutines that switch at the same place, and main, which starts and continues them. */
#include <stdio.h>
#include <ucontext.h>

static ucontext_t main_context, contexts[2];
static char stacks[2][64 << 10];
static volatile int sum;

__attribute__((noinline)) static void leaf(int n)
{
	sum += n;
}

__attribute__((noinline)) static void yield(int which)
{
	swapcontext(&contexts[which], &contexts[!which]);
	leaf(which);
}

__attribute__((noinline)) static void one(void)
{
	for (int i = 0; i < 3; i++) {
		leaf(1);
		yield(0);
	}
}

__attribute__((noinline)) static void two(void)
{
	for (int i = 0; i < 3; i++) {
		leaf(2);
		yield(1);
	}
}

int main(void)
{
	void (*functions[2])(void) = { one, two };

	for (int i = 0; i < 2; i++) {
		getcontext(&contexts[i]);
		contexts[i].uc_stack.ss_sp = stacks[i];
		contexts[i].uc_stack.ss_size = sizeof(stacks[i]);
		contexts[i].uc_link = &main_context;
		makecontext(&contexts[i], functions[i], 0);
	}
	swapcontext(&main_context, &contexts[0]);
	leaf(0);
	printf("%d\n", sum);
	return 0;
}
