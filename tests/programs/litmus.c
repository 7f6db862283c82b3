// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Litmus tests of the memory order of x86 (SDM Vol. 3A 8.2.3) and of locked instructions (8.1.2.2):
 * two threads, on two processors, run the same test on many locations. It prints how often each
 * outcome was, and fails if there was one that the manual forbids.
 *
 * usage: litmus ROUNDS
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64
/* Locations of a round, at each of which the threads meet. */
#define LOCATIONS 500
/* Increments of a round by each thread. */
#define INCREMENTS 20000

typedef uint64_t u64;

struct location {
	_Alignas(CACHE_LINE) volatile u64 x;
	_Alignas(CACHE_LINE) volatile u64 y;
	/* Number of the threads that are here. */
	_Alignas(CACHE_LINE) int present;
	/* What the threads have read. */
	_Alignas(CACHE_LINE) u64 read[2];
};

static struct location locations[LOCATIONS];

static inline void store(volatile u64 *at, u64 value)
{
	__asm__ volatile("movq %1, %0" : "=m"(*at) : "r"(value));
}

static inline u64 load(const volatile u64 *at)
{
	u64 value;

	__asm__ volatile("movq %1, %0" : "=r"(value) : "m"(*at));
	return value;
}

static inline void exchange(volatile u64 *at, u64 value)
{
	__asm__ volatile("xchgq %1, %0" : "+m"(*at), "+r"(value));
}

/* 8.2.3.4: loads may be reordered with earlier stores to other locations. */
static void store_buffering(struct location *l, int thread)
{
	store(thread ? &l->y : &l->x, 1);
	l->read[thread] = load(thread ? &l->x : &l->y);
}

/* 8.2.5: they are not with MFENCE in between. */
static void store_buffering_with_fences(struct location *l, int thread)
{
	store(thread ? &l->y : &l->x, 1);
	__asm__ volatile("mfence");
	l->read[thread] = load(thread ? &l->x : &l->y);
}

/* 8.2.3.9: nor with locked instructions. */
static void store_buffering_with_exchanges(struct location *l, int thread)
{
	exchange(thread ? &l->y : &l->x, 1);
	l->read[thread] = load(thread ? &l->x : &l->y);
}

/* 8.2.3.2: neither loads nor stores are reordered with like operations. */
static void message_passing(struct location *l, int thread)
{
	if (thread == 0) {
		store(&l->x, 1);
		store(&l->y, 1);
	} else {
		l->read[0] = load(&l->y);
		l->read[1] = load(&l->x);
	}
}

/* 8.2.3.3: stores are not reordered with earlier loads. */
static void load_buffering(struct location *l, int thread)
{
	l->read[thread] = load(thread ? &l->y : &l->x);
	store(thread ? &l->x : &l->y, 1);
}

/* 8.1.1: an aligned quadword is written and read at once. */
static void aligned_quadword(struct location *l, int thread)
{
	if (thread == 0) {
		store(&l->x, ~0ull);
	} else {
		u64 value = load(&l->x);

		l->read[0] = value & 1;
		l->read[1] = value >> 63;
	}
}

static const struct order {
	const char *name;
	void (*run)(struct location *, int thread);
	/* By the values that were read: bit 2 * read[0] + read[1]. */
	unsigned int forbidden;
} orders[] = {
	{ "SB", store_buffering, 0 },
	{ "SB+mfences", store_buffering_with_fences, 1 << 0 },
	{ "SB+xchgs", store_buffering_with_exchanges, 1 << 0 },
	{ "MP", message_passing, 1 << 2 },
	{ "LB", load_buffering, 1 << 3 },
	{ "quadword", aligned_quadword, 1 << 1 | 1 << 2 },
};

/* Counters that both threads add to. */
static _Alignas(CACHE_LINE) u64 whole;
static _Alignas(CACHE_LINE) unsigned __int128 wide;
static _Alignas(CACHE_LINE) unsigned char lines[2 * CACHE_LINE];
/* In two cache lines. */
#define SPLIT ((u64 *)(lines + CACHE_LINE - 4))

static void increment(volatile u64 *at)
{
	__asm__ volatile("lock incq %0" : "+m"(*at) :: "cc");
}

static void add(volatile u64 *at)
{
	__asm__ volatile("lock addq $1, %0" : "+m"(*at) :: "cc");
}

static void exchange_and_add(volatile u64 *at)
{
	u64 one = 1;

	__asm__ volatile("lock xaddq %1, %0" : "+m"(*at), "+r"(one) :: "cc");
}

static void compare_and_exchange(volatile u64 *at)
{
	u64 old = *at;
	bool done;

	do {
		__asm__ volatile("lock cmpxchgq %3, %0"
				 : "+m"(*at), "+a"(old), "=@ccz"(done)
				 : "r"(old + 1));
	} while (!done);
}

/* A lock of one bit, and a counter that needs it. */
static void test_and_set(volatile u64 *at)
{
	bool was_set;

	do {
		__asm__ volatile("lock btsq $63, %0" : "+m"(*at), "=@ccc"(was_set));
	} while (was_set);
	*at = *at + 1;
	__asm__ volatile("lock btrq $63, %0" : "+m"(*at) :: "cc");
}

static void compare_and_exchange_16_bytes(volatile u64 *at)
{
	u64 low = at[0], high = at[1];
	bool done;

	do {
		/* The upper half counts downwards. */
		__asm__ volatile("lock cmpxchg16b %0"
				 : "+m"(*(volatile unsigned __int128 *)at), "+a"(low), "+d"(high),
				   "=@ccz"(done)
				 : "b"(low + 1), "c"(high - 1));
	} while (!done);
}

static const struct count {
	const char *name;
	void (*run)(volatile u64 *at);
	u64 *at;
} counts[] = {
	{ "LOCK INC", increment, &whole },
	{ "LOCK ADD", add, &whole },
	{ "LOCK XADD", exchange_and_add, &whole },
	{ "LOCK CMPXCHG", compare_and_exchange, &whole },
	{ "LOCK BTS", test_and_set, &whole },
	{ "LOCK CMPXCHG16B", compare_and_exchange_16_bytes, (u64 *)&wide },
	{ "LOCK INC, split", increment, SPLIT },
};

#define ARRAY_SIZE(a) ((int)(sizeof(a) / sizeof((a)[0])))

static long rounds;
static pthread_barrier_t barrier;

/* Waits until both threads are at a location, so that they go on at the same time. */
static void meet(struct location *l)
{
	__atomic_add_fetch(&l->present, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&l->present, __ATOMIC_ACQUIRE) < 2)
		;
}

/* The outcomes of both threads' turns at `order`, by 2 * read[0] + read[1]. */
static u64 outcomes[ARRAY_SIZE(orders)][4];

static void run_order(int number, int thread)
{
	const struct order *order = &orders[number];

	for (long round = 0; round < rounds; round++) {
		if (thread == 0)
			memset(locations, 0, sizeof(locations));
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < LOCATIONS; i++) {
			meet(&locations[i]);
			order->run(&locations[i], thread);
		}
		pthread_barrier_wait(&barrier);
		if (thread == 0)
			for (int i = 0; i < LOCATIONS; i++) {
				const u64 *read = locations[i].read;

				outcomes[number][2 * read[0] + read[1]]++;
			}
	}
}

/* What the counters have counted. */
static u64 sums[ARRAY_SIZE(counts)];

static void run_count(int number, int thread)
{
	const struct count *count = &counts[number];

	pthread_barrier_wait(&barrier);
	for (long n = 0; n < rounds * INCREMENTS; n++)
		count->run(count->at);
	pthread_barrier_wait(&barrier);
	if (thread == 0) {
		sums[number] = *count->at;
		*count->at = 0;
	}
}

static void *work(void *argument)
{
	int thread = *(int *)argument;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(thread, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("litmus: two processors are needed");
		exit(2);
	}
	for (int i = 0; i < ARRAY_SIZE(orders); i++)
		run_order(i, thread);
	for (int i = 0; i < ARRAY_SIZE(counts); i++)
		run_count(i, thread);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t other;
	int first = 0, second = 1, status = 0;

	rounds = argc == 2 ? atol(argv[1]) : 0;
	if (rounds < 1) {
		fprintf(stderr, "usage: litmus ROUNDS\n");
		return 2;
	}
	if (pthread_barrier_init(&barrier, NULL, 2) || pthread_create(&other, NULL, work, &second))
		return 2;
	work(&first);
	pthread_join(other, NULL);
	for (int i = 0; i < ARRAY_SIZE(orders); i++) {
		bool forbidden = false;

		printf("%s:", orders[i].name);
		for (int n = 0; n < 4; n++) {
			printf(" %d,%d %llu", n >> 1, n & 1, (unsigned long long)outcomes[i][n]);
			forbidden |= orders[i].forbidden >> n & 1 && outcomes[i][n];
		}
		printf("%s\n", forbidden ? " FORBIDDEN" : "");
		status |= forbidden;
	}
	for (int i = 0; i < ARRAY_SIZE(counts); i++) {
		u64 expected = 2 * rounds * INCREMENTS;
		bool forbidden = sums[i] != expected;

		printf("%s: %llu of %llu%s\n", counts[i].name, (unsigned long long)sums[i],
		       (unsigned long long)expected, forbidden ? " FORBIDDEN" : "");
		status |= forbidden;
	}
	if ((u64)(wide >> 64) != -(u64)(2 * rounds * INCREMENTS)) {
		printf("LOCK CMPXCHG16B: FORBIDDEN upper half\n");
		status = 1;
	}
	return status;
}
