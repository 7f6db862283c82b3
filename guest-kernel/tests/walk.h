/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A pseudo-random path of indirect jumps: each record of it tells what the next one has to be.
 */
#ifndef WALK_H
#define WALK_H

#include "bts.h"
#include <stdatomic.h>

/* Takes so many steps; counts each in `counter`. */
void walk(uint64_t state, uint64_t steps, atomic_ulong *counter);

/* The branches of that: one to the first step, one to each other, and one out of the path. */
#define WALK_BRANCHES(steps) ((steps) + 1)

/* Can only a branch of a walk lead there? */
int walk_is_target(uint64_t ip);

/* What is known from the records of one who walks. */
struct walker {
	uint64_t state, steps;
	/* Where the last record led: a place of the path, or outside. */
	int place;
};

#define OUTSIDE -1

/* Is this record the first of a walk? */
int walk_begins(const struct record *record);
/* Fails unless RECORD is what comes next; one that is not of the path is nothing. A walk begins at walker->state. */
int walk_follow(struct walker *walker, const struct record *record);

#endif
