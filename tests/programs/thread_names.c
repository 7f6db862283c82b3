/*
 * Threads that name themselves in three ways, one that has two names in turn, and a child of one of
 * them. While all work, the program prints what the kernel calls them: ID and name.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static pthread_barrier_t named, seen;
static volatile unsigned long result;

NOINLINE static void work(unsigned long n)
{
	for (unsigned long i = 0; i < 1000 + n; i++)
		if (i * 2654435761u & 64)
			result += i;
}

/* A function of each thread, which shows whose branches a report has. */
NOINLINE static void accept_work(void) { work(1); }
NOINLINE static void store_work(void) { work(2); }
NOINLINE static void log_work(void) { work(3); }
NOINLINE static void turn_work(void) { work(4); }

static void meet(void)
{
	pthread_barrier_wait(&named);
	pthread_barrier_wait(&seen);
}

static void *acceptor(void *unused)
{
	pthread_setname_np(pthread_self(), "acceptor");
	accept_work();
	meet();
	return unused;
}

static void print(const char *path, int id)
{
	char name[64] = "";
	int fd = open(path, O_RDONLY);
	ssize_t length = read(fd, name, sizeof(name) - 1);

	close(fd);
	if (length > 0)
		dprintf(1, "%d %s", id, name);
}

static void *storage(void *unused)
{
	int status;

	/* The kernel keeps 15 characters. */
	prctl(PR_SET_NAME, "store/1 of a long name");
	store_work();
	/* The child has the name of the thread that has made it. */
	if (fork() == 0) {
		print("/proc/self/comm", getpid());
		store_work();
		_exit(0);
	}
	wait(&status);
	meet();
	return unused;
}

static void *logger(void *unused)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/comm", gettid());
	fd = open(path, O_WRONLY);
	write(fd, "logger", 6);
	close(fd);
	log_work();
	meet();
	return unused;
}

static void *turner(void *unused)
{
	pthread_setname_np(pthread_self(), "first");
	/* The records of this do not fit into the buffer. */
	work(500000);
	pthread_setname_np(pthread_self(), "second");
	turn_work();
	meet();
	return unused;
}

static void *unnamed(void *unused)
{
	work(6);
	meet();
	return unused;
}

int main(void)
{
	void *(*const bodies[])(void *) = { acceptor, storage, logger, turner, unnamed };
	enum { COUNT = sizeof(bodies) / sizeof(*bodies) };
	pthread_t threads[COUNT];
	struct dirent *entry;
	DIR *tasks;

	pthread_barrier_init(&named, NULL, COUNT + 1);
	pthread_barrier_init(&seen, NULL, COUNT + 1);
	for (int i = 0; i < COUNT; i++)
		pthread_create(&threads[i], NULL, bodies[i], NULL);
	pthread_barrier_wait(&named);
	tasks = opendir("/proc/self/task");
	while ((entry = readdir(tasks))) {
		char path[512];
		int id;

		if (sscanf(entry->d_name, "%d", &id) != 1)
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%d/comm", id);
		print(path, id);
	}
	closedir(tasks);
	pthread_barrier_wait(&seen);
	for (int i = 0; i < COUNT; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
