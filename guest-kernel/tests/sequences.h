/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Tracers and tracees of sequences.c, what is known about them (sequence_model.c), and requests for
 * them (sequence_requests.c).
 */
#ifndef SEQUENCES_H
#define SEQUENCES_H

#include <stdbool.h>
#include "stress.h"

#define TRACERS		3
#define TRACEES		2
/* Room for all records of a trace */
#define ROOM		(1 << 16)

/* A tracer */
struct tracer {
	/* Has CAP_PERFMON and CAP_IPC_LOCK. The others have a limit, in pages. */
	bool privileged;
	unsigned long limit;
	/* Pages of all its traces, and of the segments that it has mapped after their trace */
	unsigned long pages;
};

/* A tracee, which is stopped, and its trace. Without a trace, nr is 0. */
struct tracee {
	struct tracer *tracer;
	pid_t pid;
	unsigned long nr, flags, virtual_nr, segments;
	/* What CONFIG asked for, if it was cut to the above */
	unsigned long cut_nr, virtual_cut_nr;
	unsigned long buffer_pages, reserve_pages;
	/* The segment in use, and the number of those that the tracer has taken before it */
	unsigned long segment, taken;
	long records;
	bool paused, lost;
	/* Whether pages for the records of the kernel may have some, even after O_KERNEL */
	bool spilled;
	/*
	 * Branches of loop_a() that have been recorded and not yet received, unless records were
	 * overwritten, discarded or lost.
	 */
	unsigned long owed;
	bool exact;
	const char *map;
	unsigned long map_pages;
};

/* What a tracee does when it is restarted, in memory that it shares with its tracer */
struct work {
	unsigned long branches, calls;
	/* Random bytes that it asks for in one system call */
	unsigned long bytes;
};

/* So many that the branches of the call exceed the largest buffers. */
#define MAX_BYTES	(64 << 10)

/* Shared by all tracers */
struct shared {
	struct work work[TRACERS][TRACEES];
	pid_t pids[TRACERS][TRACEES];
	char why[TRACERS][WHY_SIZE];
	unsigned long requests;
};

extern struct shared *shared;
/* Whether to print each request */
extern bool verbose;
/* The number of this tracer, and its tracees */
extern unsigned int self;
extern struct tracer tracer;
extern struct tracee tracees[TRACEES];
/* Where records arrive */
extern struct record records[ROOM];

/* Each makes a random request, and fails unless it does what it should. */
int request_config(struct tracee *tracee);
int request_drain(struct tracee *tracee);
int request_take(struct tracee *tracee);
int request_map(struct tracee *tracee);
/* GET, CLEAR and STATUS, and requests for another tracer's tracee */
int request_other(struct tracee *tracee);

/* A result that the model does not know */
#define UNKNOWN -1

/* What a request returns: an errno, 0, or UNKNOWN. SIZE is the third argument of ptrace. */
int config_error(const struct tracee *tracee, const struct config *cfg, unsigned long size);
int take_error(const struct tracee *tracee, unsigned long back, bool running);
int drain_running_error(const struct tracee *tracee);

/* Whether the request keeps the buffers. */
bool keeps_buffers(const struct tracee *tracee, const struct config *cfg);
/* Applies a CONFIG that has succeeded. */
int apply_config(struct tracee *tracee, const struct config *cfg);
void forget_trace(struct tracee *tracee);
void unmap_segments(struct tracee *tracee);
/* Fails unless STATUS, SIZE and the locked memory are those of the model. */
int check_state(const struct tracee *tracee);
/* Takes what the model cannot know from STATUS and SIZE, after the tracee has run. */
int learn_state(struct tracee *tracee);

#endif
