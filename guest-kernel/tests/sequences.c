// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Sequences of random requests, valid and invalid, of several tracers at the same time. Each
 * request is made for a tracee that has stopped, so sequence_model.c knows its result and all that
 * it changes. A sequence depends only on its seed.
 *
 *	gcc -O2 -Wall -Wextra -static -pthread -o sequences sequences.c sequence_*.c bts.c
 *	sequences [SECONDS [SEED]]	makes sequences for this time, with seeds from SEED on
 *	sequences 0 SEED		makes this one again, and prints its requests
 *
 * Prints KTAP, and the seed of a sequence that fails. As PID 1 it reports through the exit port of
 * the machine.
 */
#include "sequences.h"
#include <linux/perf_event.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define REQUESTS	120
/* A sequence that takes longer, in seconds, hangs. */
#define TIMEOUT	60

uint64_t random_state;
struct shared *shared;
bool verbose;
unsigned int self;
struct tracer tracer;
struct tracee tracees[TRACEES];
struct record records[ROOM];
static struct work *my_work;

static void work(void)
{
	static char bytes[MAX_BYTES];

	for (;;) {
		if (my_work->bytes)
			syscall(SYS_getrandom, bytes, my_work->bytes, 0);
		for (unsigned long i = 0; i < my_work->calls; i++)
			syscall(SYS_getppid);
		loop_a(my_work->branches);
		raise(SIGSTOP);
	}
}

static int begin(struct tracee *tracee)
{
	const unsigned int i = tracee - tracees;

	my_work = &shared->work[self][i];
	*tracee = (struct tracee){ .tracer = &tracer, .pid = start(work), .exact = true };
	CHECK(tracee->pid > 0);
	shared->pids[self][i] = tracee->pid;
	return 0;
}

/* Requests while the tracee runs: refused, unless it has just stopped. */
static int while_running(struct tracee *tracee)
{
	struct config cfg;
	long n = bts(STATUS, tracee->pid, &cfg, 0);

	CHECK(n > 0 || errno == ESRCH);
	n = bts(SIZE, tracee->pid, NULL, 0);
	CHECK(n >= 0 || errno == ESRCH || errno == ENXIO);
	if (drain_running_error(tracee))
		return 0;
	n = bts(DRAIN_RUNNING, tracee->pid, records, ROOM);
	CHECK(n >= 0 || errno == EAGAIN);
	tracee->owed -= count(records, n, loop_a_branch, loop_a_head);
	return 0;
}

/* Restarts the tracee until its work is done. In between it stops when its buffer is full. */
static int run(struct tracee *tracee)
{
	struct work *work = &shared->work[self][tracee - tracees];
	const unsigned long signr = tracee->flags >> 8 & 0xff ? tracee->flags >> 8 & 0xff : SIGIO;
	int status;

	work->branches = 1 + any(any(2) ? 300 : 3000);
	work->calls = any(3) ? 0 : any(20);
	work->bytes = tracee->flags & O_KERNEL && !any(3) ? any(MAX_BYTES) : 0;
	if (tracee->flags & O_TRACE)
		tracee->owed += work->branches - 1;
	if (!tracee->records && !(tracee->flags & O_KERNEL))
		tracee->spilled = false;
	for (;;) {
		const bool unrecorded = tracee->paused && tracee->flags & (O_TRACE | O_KERNEL);

		CHECK(!ptrace(PTRACE_CONT, tracee->pid, 0, 0));
		if (!any(4))
			TRY(while_running(tracee));
		CHECK(waitpid(tracee->pid, &status, __WALL) == tracee->pid && WIFSTOPPED(status));
		if (verbose)
			printf("# tracer %u, tracee %td: runs to signal %d\n", self,
			       tracee - tracees, WSTOPSIG(status));
		TRY(learn_state(tracee));
		if (unrecorded && !tracee->lost)
			FAIL("the tracee has run unrecorded, and STATUS does not say so");
		if (tracee->lost && !unrecorded && !(tracee->flags & O_KERNEL) && tracee->exact)
			FAIL("records are lost without a reason");
		if (WSTOPSIG(status) == SIGSTOP)
			return 0;
		if (status >> 8 != (int)signr || !(tracee->flags & O_SIGNAL))
			FAIL("status %#x", status);
		CHECK(tracee->paused);
		/* In the middle of its work, not all that it owes has been recorded. */
		if (any(3)) {
			const unsigned long owed = tracee->owed;
			const bool exact = tracee->exact;
			const long n = bts(DRAIN, tracee->pid, records, ROOM);

			if (n != tracee->records)
				FAIL("DRAIN returns %ld records of %ld", n, tracee->records);
			tracee->owed = owed - count(records, n, loop_a_branch, loop_a_head);
			tracee->exact = exact;
			tracee->records = 0;
			tracee->paused = false;
			TRY(check_state(tracee));
		}
	}
}

/* One step of a sequence */
static int step(struct tracee *tracee)
{
	switch (any(16)) {
	case 0: case 1: case 2: case 3:
		return run(tracee);
	case 4: case 5: case 6: case 7:
		return request_config(tracee);
	case 8: case 9: case 10:
		return request_drain(tracee);
	case 11: case 12:
		return request_take(tracee);
	case 13:
		return request_map(tracee);
	case 14:
		if (any(8))
			return request_other(tracee);
		stop(tracee->pid);
		forget_trace(tracee);
		return begin(tracee);
	default:
		return request_other(tracee);
	}
}

/* A tracer's part of a sequence */
static int trace(uint64_t seed)
{
	struct rlimit limit = { 256 << 10, 256 << 10 };

	seed_with(seed);
	tracer = (struct tracer){ .privileged = any(3), .limit = limit.rlim_cur / 4096 };
	if (!tracer.privileged)
		CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit) && !setgid(65534) && !setuid(65534) &&
		      !prctl(PR_SET_DUMPABLE, 1));
	for (unsigned int i = 0; i < TRACEES; i++)
		TRY(begin(&tracees[i]));
	for (unsigned int i = 0; i < REQUESTS; i++) {
		struct tracee *tracee = &tracees[any(TRACEES)];

		TRY(step(tracee));
		TRY(check_state(tracee));
	}
	/* Half of the tracers leave their tracees to PTRACE_O_EXITKILL. */
	for (unsigned int i = 0; i < TRACEES && seed % 2; i++)
		stop(tracees[i].pid);
	if (seed % 2 == 0)
		return 0;
	for (unsigned int i = 0; i < TRACEES; i++)
		forget_trace(&tracees[i]);
	CHECK(locked() == 0);
	return 0;
}

/* Fails if a trace has kept the hardware. */
static int hardware_is_free(void)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_HARDWARE,
					.config = PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
					.sample_period = 1, .exclude_kernel = 1 };
	int fd = -1;

	/* It is released soon after the tracer's end. */
	for (int i = 0; fd < 0 && i < 100; i++) {
		fd = perf_open(&attr, 0);
		if (fd < 0 && errno != EBUSY)
			return 0;
		if (fd < 0)
			usleep(10000);
	}
	CHECK(fd >= 0);
	return close(fd);
}

static int sequence(uint64_t seed)
{
	pid_t pids[TRACERS], pid;
	int status, failed = 0;

	memset(shared, 0, sizeof(*shared));
	for (unsigned int i = 0; i < TRACERS; i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		self = i;
		why = shared->why[i];
		alarm(TIMEOUT);
		_exit(trace(seed * TRACERS + i) ? 1 : 0);
	}
	/* Tracees whose tracer has ended are children, too. */
	while ((pid = waitpid(-1, &status, __WALL)) > 0)
		for (unsigned int i = 0; i < TRACERS; i++) {
			if (pid != pids[i] || !status || failed)
				continue;
			failed = 1;
			snprintf(why, WHY_SIZE, "tracer %u: %.200s", i,
				 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) :
						       shared->why[i]);
		}
	return failed ? -1 : hardware_is_free();
}

static int test(double seconds, uint64_t seed)
{
	const double start = now();
	unsigned long requests = 0, n = 0;
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);

	CHECK(log >= 0 && lseek(log, 0, SEEK_END) == 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	verbose = seconds == 0;
	do {
		if (sequence(seed + n) || kernel_is_content(log)) {
			printf("# seed %" PRIu64 "\n", seed + n);
			return -1;
		}
		requests += shared->requests;
		n++;
	} while (now() - start < seconds);
	printf("# %lu sequences from seed %" PRIu64 " on, %lu requests\n", n, seed, requests);
	CHECK(requests);
	return 0;
}

int main(int argc, char **argv)
{
	const double seconds = argc > 1 ? atof(argv[1]) : 10;
	const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	static char reason[WHY_SIZE];
	int failed;

	why = reason;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (getpid() == 1) {
		mkdir("/proc", 0555);
		mkdir("/dev", 0755);
		if (mount("proc", "/proc", "proc", 0, NULL) ||
		    mount("dev", "/dev", "devtmpfs", 0, NULL))
			perror("mount");
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	puts("KTAP version 1\n1..1");
	failed = test(seconds, seed);
	if (failed)
		printf("not ok 1 sequences\n# %s\n", why);
	else
		puts("ok 1 sequences");
	return getpid() == 1 ? end_machine(failed ? 1 : 0) : failed ? 1 : 0;
}
