/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A pseudo-random path of indirect jumps, in which each record determines the next one.
 */
#ifndef WALK_H
#define WALK_H

#include "bts.h"
#include <stdatomic.h>

/* Walks `steps` steps, and counts each in `counter`. */
void walk(uint64_t state, uint64_t steps, atomic_ulong *counter);

/* Number of branches of a walk: one to each step, and one out of the path. */
#define WALK_BRANCHES(steps) ((steps) + 1)

/* Whether only a branch of a walk can lead there. */
int walk_is_target(uint64_t ip);

/* The state of a walk, from its records. */
struct walker {
	uint64_t state, steps;
	/* The target of the last record: a place of the path, or outside. */
	int place;
};

#define OUTSIDE -1

/* Whether this record is the first of a walk. */
int walk_begins(const struct record *record);
/*
 * Fails unless RECORD is the expected next one. Ignores records outside the path. A walk begins at
 * walker->state.
 */
int walk_follow(struct walker *walker, const struct record *record);

#endif
