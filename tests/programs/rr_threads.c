// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Three threads that take turns, map memory and interrupt each other with a signal, for rr.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static volatile sig_atomic_t signals;
int turns;

static void on_signal(int number)
{
	signals += number == SIGUSR1;
}

__attribute__((noinline)) void turn(int n)
{
	int *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return;
	for (int i = 0; i < 1000; i++)
		page[i % 16] += i % (n + 2);
	printf("thread %d: %d\n", n, page[7]);
	munmap(page, 4096);
	turns++;
}

static void *work(void *argument)
{
	int n = *(int *)argument;

	pthread_mutex_lock(&lock);
	while (turns != n)
		pthread_cond_wait(&changed, &lock);
	raise(SIGUSR1);
	turn(n);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return NULL;
}

int main(void)
{
	pthread_t threads[3];
	int numbers[3] = { 0, 1, 2 };

	signal(SIGUSR1, on_signal);
	for (int n = 2; n >= 0; n--)
		if (pthread_create(&threads[n], NULL, work, &numbers[n]))
			return 1;
	for (int n = 0; n < 3; n++)
		pthread_join(threads[n], NULL);
	printf("%d turns, %d signals\n", turns, (int)signals);
	return 0;
}
