// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program of many threads. Some are traced while the others disturb them. Checks that every
 * record is there, in order, and none twice, and that all threads make progress.
 *
 *	gcc -O2 -Wall -Wextra -static -pthread -o traced_threads traced_threads.c walk.c bts.c
 *	traced_threads [SECONDS]
 *
 * A thread walks a pseudo-random path of indirect jumps, so that each record determines the next
 * one. The traced threads stop with PTRACE_BTS_O_SIGNAL when their buffer is nearly full. Its size
 * changes from time to time. The other threads send signals, and change mappings, which affects all
 * processors.
 *
 * Prints KTAP, and its progress every ten seconds. As PID 1 it reports through the machine's exit
 * port.
 */
#include "walk.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/time.h>
#include <time.h>

#define THREADS		8
#define TRACED		4
/* A thread without progress for this time, in seconds, hangs. */
#define PATIENCE	120

/* The start and the length of the N-th walk of a thread. */
static uint64_t seed(unsigned int thread, uint64_t n)
{
	uint64_t x = (n * THREADS + thread + 1) * 0x9e3779b97f4a7c15ull;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return x ^ x >> 32;
}

static uint64_t length(uint64_t start)
{
	return start % 2000 + 1;
}

/* Shared by both processes. */
static struct shared {
	atomic_ulong counter;
	atomic_bool go, end;
	struct {
		_Alignas(64) atomic_int tid;
		atomic_ulong steps, signals;
	} thread[THREADS];
} *shared;

static _Thread_local unsigned int self;

static void handler(int signal)
{
	(void)signal;
	atomic_fetch_add(&shared->thread[self].signals, 1);
}

/* The work of an untraced thread, which disturbs the others. */
static void disturb(uint64_t random)
{
	size_t size = 4096 * (1 + random % 8);
	unsigned int other = random / 8 % TRACED;
	char *page;

	switch (random / 64 % 4) {
	case 0:
		page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			break;
		memset(page, 1, size);
		mprotect(page, size, PROT_READ);
		munmap(page, size);
		break;
	case 1:
		tgkill(getpid(), shared->thread[other].tid, SIGUSR1);
		break;
	case 2:
		sched_yield();
		break;
	case 3:
		usleep(random / 256 % 512);
		break;
	}
}

static void *thread(void *argument)
{
	uint64_t n, start;

	self = (uintptr_t)argument;
	shared->thread[self].tid = gettid();
	while (!shared->go)
		usleep(1000);
	for (n = 0; !shared->end; n++) {
		start = seed(self, n);
		walk(start, length(start), &shared->counter);
		atomic_fetch_add(&shared->thread[self].steps, length(start));
		if (self >= TRACED)
			disturb(start);
	}
	return NULL;
}

static void program(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	pthread_t threads[THREADS];
	uintptr_t i;

	sigaction(SIGUSR1, &action, NULL);
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, thread, (void *)i))
			_exit(1);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	_exit(0);
}

/*
 * The tracer
 */

/* The state of a traced thread. */
static struct tracee {
	struct walker walker;
	uint64_t walks;
	bool gone;
	unsigned long capacity, records, stops, signals;
} tracees[TRACED];

static int configure(unsigned int i)
{
	static const unsigned int capacities[] = { 64, 100, 500, 3000, 10000 };
	struct tracee *t = &tracees[i];

	t->capacity =
		capacities[(t->stops / 16 + i) % (sizeof(capacities) / sizeof(capacities[0]))];
	CHECK(!config(shared->thread[i].tid, RECORDS(t->capacity), O_TRACE | O_SCHED | O_SIGNAL));
	return 0;
}

/* Checks that RECORD is the expected next one. */
static int follow(unsigned int i, const struct record *record)
{
	struct tracee *t = &tracees[i];
	char what[WHY_SIZE / 2];

	if (walk_begins(record) && t->walker.place == OUTSIDE)
		t->walker.state = seed(i, t->walks++);
	if (!walk_follow(&t->walker, record))
		return 0;
	snprintf(what, sizeof(what), "%s", why);
	FAIL("thread %u, walk %lu: %s", i, t->walks, what);
}

static int drain(unsigned int i)
{
	static struct record records[10000];
	long n = bts(DRAIN, shared->thread[i].tid, records, 0), at;

	CHECK(n >= 0 && n < (long)tracees[i].capacity);
	for (at = 0; at < n; at++)
		TRY(follow(i, &records[at]));
	tracees[i].records += n;
	return 0;
}

/* Handles a stop of thread I, and stores the signal to restart it with. */
static int stopped(unsigned int i, int status, int *signal)
{
	struct tracee *t = &tracees[i];
	siginfo_t info;

	*signal = 0;
	switch (status >> 8) {
	case SIGIO:
		CHECK(!ptrace(PTRACE_GETSIGINFO, shared->thread[i].tid, 0, &info) &&
		      info.si_code == SI_KERNEL);
		TRY(drain(i));
		if (++t->stops % 16 == 0)
			return configure(i);
		return 0;
	case SIGUSR1:
		t->signals++;
		*signal = SIGUSR1;
		return 0;
	case AT_EXIT:
		t->gone = true;
		TRY(drain(i));
		if (t->walker.place != OUTSIDE || t->walker.steps != shared->thread[i].steps)
			FAIL("thread %u has taken %lu steps, and %lu are recorded", i,
			     shared->thread[i].steps, t->walker.steps);
		if (t->signals != shared->thread[i].signals)
			FAIL("thread %u has seen %lu signals of %lu", i, shared->thread[i].signals,
			     t->signals);
		return 0;
	}
	FAIL("thread %u stopped with status %#x", i, status);
}

static int trace(unsigned int i)
{
	pid_t tid = shared->thread[i].tid;

	TRY(attach(tid));
	CHECK(!ptrace(PTRACE_SETOPTIONS, tid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL));
	tracees[i].walker.place = OUTSIDE;
	TRY(configure(i));
	CHECK(!ptrace(PTRACE_CONT, tid, 0, 0));
	return 0;
}

static int find(pid_t tid)
{
	for (unsigned int i = 0; i < TRACED; i++)
		if (shared->thread[i].tid == tid)
			return i;
	return -1;
}

/* Milliseconds */
static long now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void nothing(int signal)
{
	(void)signal;
}

/* Once a second, checks the progress of all threads. */
static int look(long elapsed)
{
	static struct {
		unsigned long steps;
		long at;
	} last[THREADS];
	static long report;
	unsigned long records = 0, stops = 0;
	unsigned int i;

	for (i = 0; i < THREADS; i++) {
		if (last[i].steps != shared->thread[i].steps || (i < TRACED && tracees[i].gone)) {
			last[i].steps = shared->thread[i].steps;
			last[i].at = elapsed;
		} else if (elapsed - last[i].at > PATIENCE * 1000) {
			FAIL("thread %u has not got on for %d s", i, PATIENCE);
		}
	}
	for (i = 0; i < TRACED; i++) {
		records += tracees[i].records;
		stops += tracees[i].stops;
	}
	if (elapsed >= report) {
		printf("# %ld s: %lu steps, %lu records, %lu stops\n", elapsed / 1000,
		       shared->counter, records, stops);
		report += 10000;
	}
	return 0;
}

static bool all_have_stopped(void)
{
	for (unsigned int i = 0; i < TRACED; i++)
		if (!tracees[i].stops)
			return false;
	return true;
}

static int test(long duration)
{
	/* Wakes waitpid(). */
	struct sigaction action = { .sa_handler = nothing };
	struct itimerval second = { { 1, 0 }, { 1, 0 } }, never = {};
	long start, looked = -1000;
	unsigned long steps = 0;
	unsigned int i;
	int status, signal, of;
	pid_t pid, child;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	child = fork();
	CHECK(child >= 0);
	if (!child)
		program();
	for (i = 0; i < THREADS; i++)
		while (!shared->thread[i].tid)
			usleep(1000);
	for (i = 0; i < TRACED; i++)
		TRY(trace(i));
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &second, NULL);
	start = now();
	shared->go = true;
	for (;;) {
		if (now() - start >= looked + 1000) {
			looked = now() - start;
			TRY(look(looked));
		}
		/* On a slow machine some threads may not have stopped yet. */
		if (now() - start >= (all_have_stopped() ? duration : duration + PATIENCE * 1000))
			shared->end = true;
		pid = waitpid(-1, &status, __WALL);
		if (pid < 0 && errno == EINTR)
			continue;
		CHECK(pid > 0);
		if (pid == child) {
			CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
			break;
		}
		of = find(pid);
		CHECK(of >= 0);
		if (!WIFSTOPPED(status))
			continue;
		TRY(stopped(of, status, &signal));
		CHECK(!ptrace(PTRACE_CONT, pid, 0, signal));
	}
	setitimer(ITIMER_REAL, &never, NULL);
	for (i = 0; i < THREADS; i++) {
		if (i < TRACED && !(tracees[i].gone && tracees[i].stops))
			FAIL("thread %u was not traced to its end, or never stopped", i);
		if (i < TRACED)
			printf("# thread %u: %lu records, %lu stops, %lu signals\n", i,
			       tracees[i].records, tracees[i].stops, tracees[i].signals);
		steps += shared->thread[i].steps;
	}
	if (steps != shared->counter)
		FAIL("%lu steps were taken, and %lu counted", steps, shared->counter);
	return 0;
}

static int run(int argc, char **argv)
{
	static char reason[WHY_SIZE];

	why = reason;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("KTAP version 1\n1..1");
	if (test(argc > 1 ? atof(argv[1]) * 1000 : 10000)) {
		printf("not ok 1 traced_threads\n# %s\n", why);
		return 1;
	}
	puts("ok 1 traced_threads");
	return 0;
}

int main(int argc, char **argv)
{
	int status = run(argc, argv);

	return getpid() == 1 ? end_machine(status) : status;
}
