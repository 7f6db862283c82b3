// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Calls of all kinds, in numbers that are easy to know. */

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

struct tree {
	struct tree *left, *right;
	int value;
};

static volatile int sink;
static jmp_buf back;
static struct tree nodes[300];
static int used;

NOINLINE static int fib(int n)
{
	if (n < 2)
		return n;
	return fib(n - 1) + fib(n - 2);
}

NOINLINE static int leaf(int x)
{
	return x * 3 + sink;
}

NOINLINE static int is_odd(unsigned n);

/* With optimisation these two jump to each other. */
NOINLINE static int is_even(unsigned n)
{
	if (n == 0)
		return 1;
	return is_odd(n - 1);
}

NOINLINE static int is_odd(unsigned n)
{
	if (n == 0)
		return 0;
	return is_even(n - 1);
}

NOINLINE static struct tree *insert(struct tree *tree, int value)
{
	if (!tree) {
		tree = &nodes[used++];
		tree->value = value;
	} else if (value < tree->value) {
		tree->left = insert(tree->left, value);
	} else {
		tree->right = insert(tree->right, value);
	}
	return tree;
}

NOINLINE static int depth(struct tree *tree)
{
	if (!tree)
		return 0;
	int left = depth(tree->left), right = depth(tree->right);
	return 1 + (left > right ? left : right);
}

NOINLINE static int choose(int what)
{
	switch (what) {
	case 0:
		return leaf(1);
	case 1:
		return leaf(2) + leaf(3);
	case 7:
		return 4;
	default:
		return 0;
	}
}

NOINLINE static int never(int x)
{
	return x + 1;
}

NOINLINE static void deep(int n)
{
	if (n == 0)
		longjmp(back, 1);
	deep(n - 1);
	sink++;
}

static void handler(int signal)
{
	sink += leaf(signal);
}

static void *thread(void *argument)
{
	for (int i = 0; i < 50; i++)
		sink += leaf(i);
	return argument;
}

NOINLINE static void kinds(void)
{
	signal(SIGUSR1, handler);
	for (int i = 0; i < 10; i++)
		raise(SIGUSR1);
	if (!setjmp(back))
		deep(20);
	pthread_t other;
	if (pthread_create(&other, NULL, thread, NULL) == 0)
		pthread_join(other, NULL);
	if (fork() == 0) {
		for (int i = 0; i < 30; i++)
			sink += leaf(i);
		_exit(0);
	}
	wait(NULL);
}

int main(int argc, char **argv)
{
	struct tree *tree = NULL;
	unsigned seed = 1;

	for (int i = 0; i < 300; i++) {
		seed = seed * 1103515245 + 12345;
		tree = insert(tree, (int)(seed >> 16));
	}
	sink = fib(12) + is_even(101) + depth(tree);
	for (int i = 0; i < 5; i++)
		sink += choose(i);
	if (argc > 1 && argv[1][0] == 'k')
		kinds();
	if (argc > 9)
		sink = never(sink);
	return 0;
}
