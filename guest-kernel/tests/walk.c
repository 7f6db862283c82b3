// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A pseudo-random path of indirect jumps.
 */
#include "walk.h"
#include <stdbool.h>

/*
 * The top four bits of the state select the place of a step. Each place increments COUNTER, and has
 * STRIDE bytes.
 */
#define A	6364136223846793005ull
#define C	1442695040888963407ull
#define STRIDE	64

struct constants {
	uint64_t a, c;
	const char *places[16];
};

void walk_along(uint64_t state, uint64_t steps, atomic_ulong *counter, const struct constants *);
extern const char walk_in[], walk_out[], walk_places[], walk_end[];
asm(".text\n"
    "walk_along:\n"
    "	mov 0(%rcx), %r8\n"
    "	mov 8(%rcx), %r9\n"
    "	add $16, %rcx\n"
    "	mov %rdi, %rax\n"
    "	shr $60, %rax\n"
    "walk_in:\n"
    "	jmp *(%rcx,%rax,8)\n"
    "	.balign 64\n"
    "walk_places:\n"
    "	.rept 16\n"
    "	.balign 64\n"
    "	lock incq (%rdx)\n"
    "	imul %r8, %rdi\n"
    "	add %r9, %rdi\n"
    "	dec %rsi\n"
    "	{disp32} jz walk_out\n"
    "	mov %rdi, %rax\n"
    "	shr $60, %rax\n"
    "	jmp *(%rcx,%rax,8)\n"
    "	.endr\n"
    "	.balign 64\n"
    "walk_end:\n"
    "walk_out:\n"
    "	ret\n");
/* Offsets of the branches from the start of a place, in bytes. */
#define LAST	(4 + 4 + 3 + 3)
#define NEXT	(LAST + 6 + 3 + 4)

#define PLACE(n) (walk_places + (n) * STRIDE)
#define PLACES4(n) PLACE(n), PLACE(n + 1), PLACE(n + 2), PLACE(n + 3)

void walk(uint64_t state, uint64_t steps, atomic_ulong *counter)
{
	static const struct constants constants = {
		A, C, { PLACES4(0), PLACES4(4), PLACES4(8), PLACES4(12) }
	};

	walk_along(state, steps, counter, &constants);
}

int walk_is_target(uint64_t ip)
{
	uint64_t offset = ip - (uintptr_t)walk_places;

	return offset < (uintptr_t)walk_end - (uintptr_t)walk_places ? offset % STRIDE == 0
								     : ip == (uintptr_t)walk_out;
}

int walk_begins(const struct record *record)
{
	return record->qualifier == BRANCH && record->a == (uintptr_t)walk_in;
}

int walk_follow(struct walker *walker, const struct record *record)
{
	uint64_t offset = record->a - (uintptr_t)walk_places;
	bool last;

	if (record->qualifier != BRANCH)
		return 0;
	if (walk_begins(record)) {
		if (walker->place != OUTSIDE)
			FAIL("a walk begins inside of another, after step %lu", walker->steps);
	} else if (offset < (uintptr_t)walk_end - (uintptr_t)walk_places) {
		last = offset % STRIDE == LAST;
		if (offset / STRIDE != (uint64_t)walker->place ||
		    (!last && offset % STRIDE != NEXT))
			FAIL("step %lu: a record from %#lx of the path, at place %d", walker->steps,
			     offset, walker->place);
		walker->state = walker->state * A + C;
		walker->steps++;
		if (last) {
			if (record->b != (uintptr_t)walk_out)
				FAIL("step %lu: a walk ends at %#lx", walker->steps, record->b);
			walker->place = OUTSIDE;
			return 0;
		}
	} else {
		return 0;
	}
	walker->place = walker->state >> 60;
	if (record->b != (uintptr_t)PLACE(walker->place))
		FAIL("step %lu: a record to %#lx instead of %#lx", walker->steps, record->b,
		     (uintptr_t)PLACE(walker->place));
	return 0;
}
