/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the tests of the PTRACE_BTS_* requests.
 */
#ifndef BTS_H
#define BTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONFIG = 40, STATUS, SIZE, GET, CLEAR, DRAIN, DRAIN_RUNNING, MAP, TAKE, TAKE_RUNNING };
enum { INVALID, BRANCH, ARRIVES, DEPARTS };

#define O_TRACE		0x1ul
#define O_SCHED		0x2ul
#define O_SIGNAL	0x4ul
#define O_CUT		0x8ul
#define O_KERNEL	0x10ul
#define O_PAUSED	0x20ul
#define O_VIRTUAL	0x40ul
#define O_LOST		0x80ul
#define O_NSECS		0x10000ul
#define O_MAPPED	0x20000ul
#define O_SIGNR(nr)	((unsigned long)(nr) << 8)

/*
 * struct ptrace_bts_config and, with O_VIRTUAL or O_MAPPED, struct ptrace_bts_virtual_config. With
 * O_MAPPED, the last word is the number of segments.
 */
struct config {
	unsigned long size, flags, virtual_size;
};

#define CONFIG_SIZE	(2 * sizeof(unsigned long))

struct record {
	uint64_t qualifier, a, b;
};

/* A record in a mapped segment */
struct mapped_record {
	uint64_t from, to, flags;
};

#define MAPPED_SCHED (1ull << 63)
/* In the flags of a mapped branch: the processor has predicted it. */
#define MAPPED_PREDICTED (1ull << 4)

/* More than any guest has, in bytes */
#define TOO_LARGE	(~0ul / 2 + 1)

#define RECORDS(n) ((n) * sizeof(struct record))
/* The smallest buffer for records of the kernel with an interrupt. */
#define KERNEL_MIN 4096
/* Room after the interrupt in the processor's buffer, in records, if the kernel copies them */
#define COPIED_ROOM 1365

/* A test: a function that returns 0, or -1 with the reason in `why`. */
struct test {
	const char *name;
	int (*run)(void);
};

/* The tests of each file. A name of NULL marks the end. */
extern const struct test basic_tests[], errors_tests[], memlock_tests[], signal_tests[],
	virtual_tests[], pressure_tests[], kernel_tests[], task_tests[], running_tests[],
	mapped_tests[], perf_tests[], smp_tests[], hotplug_tests[], userfault_tests[],
	security_tests[], freezer_tests[], failures_tests[], no_bts_tests[], pti_tests[],
	swap_tests[], november_tests[], man_tests[], december_tests[];

/* Errno of ALLOCATE_BUFFER of 2007 as the first request, and whether none was made since boot. */
extern int before_first_request, fresh_machine;

/* Shared with the process that runs a test. */
extern char *why;
#define WHY_SIZE	256

#define FAIL(...) do { snprintf(why, WHY_SIZE, __VA_ARGS__); return -1; } while (0)
#define CHECK(what) do { \
	if (!(what)) \
		FAIL("%s:%d: %s (errno %d)", __FILE_NAME__, __LINE__, #what, errno); \
} while (0)
/* Fails with this errno. */
#define REFUSED(call, error) CHECK((call) == -1 && errno == (error))
/* Returns -1 if a helper fails. The helper has set the reason. */
#define TRY(call) do { if (call) return -1; } while (0)

long bts(int request, pid_t pid, void *addr, unsigned long data);
/* Makes the request as a 32-bit program. Returns the negative errno if it fails. */
int bts32(int request, pid_t pid, void *addr, unsigned int data);
/* Makes the request as an x32 program, one with 64-bit registers and 32-bit pointers. */
long bts_x32(int request, pid_t pid, void *addr, unsigned int data);
long config(pid_t pid, unsigned long size, unsigned long flags);
long config_virtual(pid_t pid, unsigned long size, unsigned long flags, unsigned long virtual_size);
/* Returns the flags of STATUS, or all ones if it fails. */
unsigned long flags_of(pid_t pid);

/* Whether the flags in /proc/cpuinfo contain this text: a space, and the beginning of a name. */
int has_feature(const char *flag);
/* Whether the kernel has page-table isolation. */
int is_isolated(void);
/* Whether the kernel copies the records of the processor, because it cannot write our buffers. */
int is_copied(void);
/* Whether the processor lacks DS-CPL, and so records in user mode and in the kernel. */
int is_unfiltered(void);
/* Whether the kernel has KASAN or KCSAN, with which it takes many more branches. */
int is_instrumented(void);
/* Of the records that fit, the number at which the tracee stops with O_SIGNAL. */
long threshold(long records);
/* Whether the processor is one of family 15, which has records with a flag of its own. */
int is_netburst(void);

/* Opens an event of a task. Sets the size of its attributes, and errno. */
struct perf_event_attr;
int perf_open(struct perf_event_attr *attr, pid_t pid);

/* A traced child, stopped before it calls work(). */
pid_t start(void (*work)(void));
/* Kills a tracee. */
void stop(pid_t pid);
/* Restarts a tracee and waits for its next stop. */
int next_stop(pid_t pid, int signal);
int attach(pid_t pid);

#define AT_EXIT (SIGTRAP | PTRACE_EVENT_EXIT << 8)

/* Two loops at different addresses. Each takes exactly count - 1 branches. */
void loop_a(unsigned long count);
void loop_b(unsigned long count);
extern const char loop_a_head[], loop_a_branch[], loop_b_head[], loop_b_branch[];

/* CLOCK_MONOTONIC in ns */
static inline uint64_t monotonic(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static inline int is_kernel(uint64_t ip)
{
	return sizeof(long) == 4 ? ip >= 0xc0000000 : (int64_t)ip < 0;
}

/* Number of branches of a loop. */
unsigned long count(const struct record *r, long n, const char *from, const char *to);

void work_none(void);
/* loop_a(1000) */
void work_a(void);
/* Calls maze(maze_steps). */
void work_maze(void);

/*
 * A function whose branches depend on pseudo-random numbers, so that no two parts of its trace are
 * equal.
 */
extern unsigned int maze_steps;
void maze(unsigned int steps);

/* Branches of maze() in the order in which they were recorded. */
struct path {
	struct record *r;
	long n, room;
};

/* Appends the branches of maze() that are among `n` records. */
int path_add(struct path *path, const struct record *r, long n);
/* Returns all branches of maze(maze_steps), recorded in one piece. */
int path_reference(struct path *path);
/* Fails unless two paths are equal. */
int path_compare(const struct path *path, const struct path *reference);

/*
 * Fails unless arrivals and departures alternate after the first arrival, with all branches between
 * them.
 */
int check_sched(const struct record *r, long n, const char *name, unsigned long at_least);

/* The program that task.c's test_tracer_execs() executes. Returns its exit status. */
int drain_after_exec(pid_t pid);

/* Gives up an effective capability. */
int drop(int capability);

/* Writes this text to a file that exists. */
int put(const char *path, const char *text);
/* Writes /proc/sys/kernel/NAME. */
int set_kernel(const char *name, const char *value);

/* The bounds of a function of the kernel, or 0 if it cannot be found */
int find_function(const char *name, uint64_t *start, uint64_t *end);

/* Returns the number after "NAME:" in a file of /proc, or -1. */
long proc_number(const char *path, const char *name);
/* Returns the locked memory of this process, in KiB. */
long locked(void);

/*
 * Kills tracees in work(), a little later each time, in each configuration. All their memory must
 * come back.
 */
int kill_while_recording(void (*work)(void));

/* Starts a line of the report, and a line that a program has printed. */
#define REPORT		"vbts-test: "
#define OUTPUT		"vbts-out: "

/* Prints a line of the report or of a program. */
__attribute__((format(printf, 2, 3))) void say(const char *prefix, const char *format, ...);

/*
 * Runs these TARGET.NAME of tools/testing/selftests, which are installed in this directory of the
 * host. Returns 1 if one failed.
 */
int run_kselftests(const char *directory, char **tests);

/*
 * Ends the vbts machine with this status after all output has been written. Returns 1 if it cannot.
 */
int end_machine(int status);

#endif
