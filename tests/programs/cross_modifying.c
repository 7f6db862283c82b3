/*
 * One thread rewrites a function and publishes its number, another one calls the function, without
 * a serializing instruction in between. Prints how many calls returned another number.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROUNDS = 2000 };

static unsigned char *code;
static atomic_int published, called;

static void pin(int processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		exit(1);
}

static void *reader(void *stale)
{
	int last = 0;

	pin(1);
	while (last < ROUNDS) {
		int number = atomic_load(&published);

		if (number == last) {
			__builtin_ia32_pause();
			continue;
		}
		if (((int (*)(void))code)() != number)
			++*(int *)stale;
		last = number;
		atomic_store(&called, number);
	}
	return NULL;
}

int main(void)
{
	/* mov $0, %eax; ret */
	static const unsigned char function[] = { 0xB8, 0, 0, 0, 0, 0xC3 };
	pthread_t thread;
	int stale = 0;

	pin(0);
	code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return 1;
	memcpy(code, function, sizeof(function));
	if (pthread_create(&thread, NULL, reader, &stale))
		return 1;
	for (int n = 1; n <= ROUNDS; n++) {
		*(volatile int *)(code + 1) = n;
		atomic_store(&published, n);
		while (atomic_load(&called) != n)
			__builtin_ia32_pause();
	}
	pthread_join(thread, NULL);
	printf("%d of %d calls were stale\n", stale, ROUNDS);
	return 0;
}
