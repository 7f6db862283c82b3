/* Two threads with variables of their own, in a program with a C library that is shared. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

__thread int own = 42;
__thread char name[16] = "first";

static pthread_barrier_t barrier;

void stop_here(void)
{
	own++;
}

static void *second(void *argument)
{
	own = 7;
	errno = *(int *)argument;
	pthread_barrier_wait(&barrier);
	for (;;)
		pthread_barrier_wait(&barrier);
}

int main(void)
{
	pthread_t thread;
	int number = ENOSPC;

	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&thread, NULL, second, &number);
	pthread_barrier_wait(&barrier);
	errno = EBADF;
	stop_here();
	puts("done");
	return 0;
}
