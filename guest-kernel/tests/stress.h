/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the programs that make random requests.
 */
#ifndef STRESS_H
#define STRESS_H

#include "bts.h"

/* Each program has one. */
extern uint64_t random_state;

/* Returns a random number below N. */
static inline uint64_t any(uint64_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (random_state * 0x2545f4914f6cdd1dull >> 16) % n;
}

static inline void seed_with(uint64_t seed)
{
	random_state = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
}

/* Returns the seconds since the machine started. */
static inline double now(void)
{
	return monotonic() * 1e-9;
}

/* Fails if the kernel has logged a warning or worse since the last call. */
static inline int kernel_is_content(int log)
{
	char text[8192];
	ssize_t n;

	while ((n = read(log, text, sizeof(text) - 1)) > 0) {
		text[n] = '\0';
		/* Expected: warnings about refused reservations, and about a slow machine. */
		if (strstr(text, "__vm_enough_memory: ") ||
		    strstr(text, "hrtimer: interrupt took "))
			continue;
		if ((strtoul(text, NULL, 10) & 7) <= 4)
			FAIL("the kernel says: %.200s",
			     strchr(text, ';') ? strchr(text, ';') + 1 : text);
	}
	/* -EPIPE: messages have been overwritten. */
	CHECK(n == 0 || errno == EAGAIN);
	return 0;
}

#endif
