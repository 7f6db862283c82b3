// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Tracers and tracees that do anything at any time. Checks that the kernel survives and releases
 * their memory.
 *
 *	gcc -O2 -Wall -Wextra -static -pthread -o stress stress.c bts.c
 *	stress [SECONDS [SEED]]
 *
 * Each tracer has its own tracees, which compute, call, fault, sleep, fork, exec and exit. It makes
 * any request to any of them, with any arguments, in any state, kills them, detaches from them, and
 * is killed itself. DRAIN must return valid records. At the end no tracer has locked memory, and
 * the kernel has logged nothing of level "warning" or worse. The kernel should be one of
 * debug.config, which checks itself.
 *
 * Prints KTAP, and its progress every ten seconds. As PID 1 it reports through the machine's exit
 * port.
 */
#include "stress.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#define TRACERS		8
#define TRACEES		4
#define RECORDS_MAX	20000
/* A tracee ends by itself after this time, in seconds, even if its tracer has died. */
#define LIFE		20
/* A tracer without progress for this time, in seconds, hangs. */
#define PATIENCE	120

uint64_t random_state;

static struct shared {
	atomic_bool end;
	struct {
		_Alignas(64) atomic_ulong requests, records, stops;
		atomic_ulong started, killed, detached;
	} tracer[TRACERS];
	char why[TRACERS][WHY_SIZE];
} *shared;

/*
 * A tracee
 */

static void *idle(void *argument)
{
	maze(any(2000));
	return argument;
}

static void spawn(void)
{
	switch (any(4)) {
	case 0:
		if (!vfork())
			_exit(0);
		break;
	case 1:
		if (!fork()) {
			maze(any(500));
			_exit(0);
		}
		break;
	default: {
		pthread_t thread;

		if (!pthread_create(&thread, NULL, idle, NULL))
			pthread_join(thread, NULL);
	}
	}
}

static void touch(void)
{
	size_t size = 4096 * (1 + any(64));
	char *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return;
	memset(page, 1, size);
	munmap(page, size);
}

static void tracee(uint64_t seed)
{
	seed_with(seed);
	alarm(LIFE);
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		switch (any(16)) {
		case 0:
			spawn();
			break;
		case 1:
			touch();
			break;
		case 2:
			usleep(any(2000));
			break;
		case 3:
			sched_yield();
			break;
		case 4:
			raise(SIGSTOP);
			break;
		case 5:
			if (!any(4))
				_exit(0);
			break;
		case 6:
			if (!any(4)) {
				char text[32];

				snprintf(text, sizeof(text), "%lu", any(1ul << 40));
				execl("/proc/self/exe", "stress", "--tracee", text, NULL);
			}
			break;
		case 7:
			if (!any(8))
				raise(SIGSEGV);
			break;
		default:
			maze(any(5000));
		}
	}
}

/*
 * A tracer
 */

static unsigned int self;

static struct slot {
	pid_t pid;
	bool stopped;
	/* All flags that the tracee has had: records stay when the flags change. */
	unsigned long flags;
} slots[TRACEES];

static int begin(struct slot *slot)
{
	uint64_t seed = any(1ul << 40);

	slot->pid = fork();
	CHECK(slot->pid >= 0 || errno == EAGAIN);
	if (!slot->pid)
		tracee(seed);
	if (slot->pid < 0) {
		slot->pid = 0;
		return 0;
	}
	/* Some outlive their tracer. */
	if (ptrace(PTRACE_SEIZE, slot->pid, 0,
		   any(2)   ? PTRACE_O_EXITKILL
		   : any(2) ? PTRACE_O_TRACEEXIT
			    : 0)) {
		/* The tracee has ended. Any other reason is an error. */
		CHECK(waitpid(slot->pid, NULL, WNOHANG) == slot->pid);
		slot->pid = 0;
		return 0;
	}
	slot->stopped = false;
	slot->flags = 0;
	shared->tracer[self].started++;
	return 0;
}

/* The errors that requests may return for a task that can be killed at any time. */
static int is_expected(long result)
{
	static const int errors[] = { ESRCH, EINVAL, ENOMEM, ENXIO,
				      EBUSY, EFAULT, EPERM, EAGAIN };

	if (result >= 0)
		return 1;
	for (unsigned int i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errno == errors[i])
			return 1;
	return 0;
}

static int configure(struct slot *slot)
{
	static const unsigned long sizes[] = { 0,
					       1,
					       24,
					       1000,
					       4096,
					       RECORDS(64),
					       RECORDS(1024),
					       RECORDS(KERNEL_MIN),
					       100000,
					       RECORDS(RECORDS_MAX) };
	static const unsigned long virtual_sizes[] = { 0, 100000, RECORDS(RECORDS_MAX), 1 << 20,
						       1ul << 40 };
	unsigned long flags = any(4) ? O_TRACE : 0;
	long result;

	for (unsigned long flag = O_SCHED; flag <= O_VIRTUAL; flag <<= 1)
		if (flag != O_PAUSED && !any(3))
			flags |= flag;
	if (!any(16))
		flags = any(1 << 18);
	result = config_virtual(
		slot->pid, sizes[any(sizeof(sizes) / sizeof(sizes[0]))], flags,
		virtual_sizes[any(sizeof(virtual_sizes) / sizeof(virtual_sizes[0]))]);
	if (!is_expected(result))
		FAIL("CONFIG with flags %#lx: errno %d", flags, errno);
	if (!result)
		slot->flags |= flags;
	return 0;
}

static int drain(struct slot *slot)
{
	static struct record records[(1 << 20) / sizeof(struct record) + RECORDS_MAX];
	const long room = sizeof(records) / sizeof(records[0]);
	const int kind = any(2) ? DRAIN : DRAIN_RUNNING;
	long n = bts(kind, slot->pid, records, any(2) ? room : any(100)), i;

	if (!is_expected(n))
		FAIL("DRAIN: errno %d", errno);
	if (n > room)
		FAIL("DRAIN: %ld records", n);
	for (i = 0; i < n; i++) {
		const struct record *r = &records[i];

		if (r->qualifier < BRANCH || r->qualifier > DEPARTS)
			FAIL("record %ld of %ld has qualifier %#lx", i, n, r->qualifier);
		if (r->qualifier == BRANCH && !(slot->flags & O_KERNEL) && (int64_t)r->b < 0)
			FAIL("record %ld of %ld leads into the kernel, to %#lx", i, n, r->b);
	}
	if (n > 0)
		shared->tracer[self].records += n;
	return 0;
}

/* Makes a random request. Most are valid. */
static int request(struct slot *slot)
{
	struct config cfg;
	struct record one;
	long result = 0;

	shared->tracer[self].requests++;
	switch (any(10)) {
	case 0: case 1: case 2:
		return configure(slot);
	case 3: case 4: case 5:
		return drain(slot);
	case 6:
		result = bts(CLEAR, slot->pid, NULL, 0);
		break;
	case 7:
		result = bts(STATUS, slot->pid, &cfg, 0);
		break;
	case 8:
		result = bts(GET, slot->pid, &one, any(2000));
		break;
	case 9:
		result = any(8) ? bts(SIZE, slot->pid, NULL, 0)
				: bts(CONFIG + any(7), slot->pid, (void *)8, any(100));
		break;
	}
	if (!is_expected(result))
		FAIL("a request: errno %d", errno);
	return 0;
}

/* Records a stop or an end of a tracee, if there is one. */
static int look(struct slot *slot, int options)
{
	int status;
	pid_t pid = waitpid(slot->pid, &status, __WALL | options);

	if (!pid)
		return 0;
	CHECK(pid == slot->pid);
	if (WIFSTOPPED(status)) {
		slot->stopped = true;
		shared->tracer[self].stops++;
	} else {
		slot->pid = 0;
	}
	return 0;
}

static int act(struct slot *slot)
{
	if (!slot->pid)
		return begin(slot);
	if (!slot->stopped) {
		switch (any(8)) {
		case 0: case 1:
			ptrace(PTRACE_INTERRUPT, slot->pid, 0, 0);
			break;
		case 2:
			/* Every request except DRAIN_RUNNING is refused while the task runs. */
			return request(slot);
		case 3:
			if (!any(8)) {
				kill(slot->pid, SIGKILL);
				shared->tracer[self].killed++;
			}
			break;
		}
		return look(slot, WNOHANG);
	}
	switch (any(8)) {
	case 0:
		if (!any(8)) {
			kill(slot->pid, SIGKILL);
			shared->tracer[self].killed++;
			slot->stopped = false;
		}
		return 0;
	case 1:
		if (!any(16) && !ptrace(PTRACE_DETACH, slot->pid, 0, 0)) {
			shared->tracer[self].detached++;
			kill(slot->pid, any(2) ? SIGKILL : SIGALRM);
			kill(slot->pid, SIGCONT);
			/* It is still our child. */
			TRY(look(slot, 0));
		}
		return 0;
	case 2: case 3:
		ptrace(any(16) ? PTRACE_CONT : PTRACE_SINGLESTEP, slot->pid, 0, 0);
		slot->stopped = false;
		return 0;
	default:
		return request(slot);
	}
}

static int trace(void)
{
	unsigned int i;

	while (!shared->end) {
		TRY(act(&slots[any(TRACEES)]));
		if (!any(4))
			usleep(any(500));
	}
	for (i = 0; i < TRACEES; i++) {
		if (slots[i].pid)
			stop(slots[i].pid);
	}
	CHECK(locked() == 0);
	return 0;
}

static pid_t start_tracer(unsigned int i, uint64_t seed)
{
	static const rlim_t limits[] = { 64 << 10, 8 << 20, RLIM_INFINITY };
	struct rlimit limit;
	pid_t pid = fork();

	if (pid)
		return pid;
	self = i;
	seed_with(seed);
	why = shared->why[i];
	limit.rlim_cur = limit.rlim_max = limits[any(3)];
	setrlimit(RLIMIT_MEMLOCK, &limit);
	/* This also drops CAP_IPC_LOCK and CAP_PERFMON. */
	if (any(2) && (setuid(1000) || prctl(PR_SET_DUMPABLE, 1)))
		_exit(1);
	_exit(trace() ? 1 : 0);
}

/*
 * All tracers
 */

static int test(double seconds, uint64_t seed)
{
	pid_t tracers[TRACERS];
	struct {
		unsigned long requests;
		double at;
	} last[TRACERS] = { 0 };
	double start = now(), report = 0, elapsed;
	unsigned long requests = 0, records = 0, stops = 0, started, replaced = 0;
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK), status;
	unsigned int i;
	pid_t pid;

	CHECK(log >= 0 && lseek(log, 0, SEEK_END) == 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	seed_with(seed);
	for (i = 0; i < TRACERS; i++)
		tracers[i] = start_tracer(i, seed * TRACERS + i);
	while ((elapsed = now() - start) < seconds) {
		usleep(50000);
		TRY(kernel_is_content(log));
		/* Orphans are children, too. */
		while ((pid = waitpid(-1, &status, __WALL | WNOHANG)) > 0)
			for (i = 0; i < TRACERS; i++)
				if (tracers[i] == pid) {
					if (WIFEXITED(status) && WEXITSTATUS(status))
						FAIL("tracer %u: %.200s", i, shared->why[i]);
					if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
						FAIL("tracer %u ended by signal %d", i,
						     WTERMSIG(status));
					tracers[i] = start_tracer(i, any(1ul << 40));
					replaced++;
				}
		/* A tracee of a killed tracer can be stopped. */
		kill(0, SIGCONT);
		if (!any(20))
			kill(tracers[any(TRACERS)], SIGKILL);
		requests = records = stops = started = 0;
		for (i = 0; i < TRACERS; i++) {
			requests += shared->tracer[i].requests;
			records += shared->tracer[i].records;
			stops += shared->tracer[i].stops;
			started += shared->tracer[i].started;
			if (last[i].requests != shared->tracer[i].requests) {
				last[i].requests = shared->tracer[i].requests;
				last[i].at = elapsed;
			} else if (elapsed - last[i].at > PATIENCE) {
				FAIL("tracer %u has not got on for %d s", i, PATIENCE);
			}
		}
		if (elapsed >= report) {
			printf("# %.0f s: %lu requests, %lu records, %lu stops, %lu tracees, "
			       "%lu tracers killed\n",
			       elapsed, requests, records, stops, started, replaced);
			report += 10;
		}
	}
	shared->end = true;
	start = now();
	/* Wait for the last orphans. */
	for (;;) {
		pid = waitpid(-1, &status, __WALL | WNOHANG);
		if (pid < 0 && errno == ECHILD)
			break;
		if (!pid) {
			kill(0, SIGCONT);
			if (now() - start > PATIENCE)
				FAIL("not all have ended after %d s", PATIENCE);
			usleep(100000);
			continue;
		}
		for (i = 0; i < TRACERS; i++)
			if (tracers[i] == pid && status && !WIFSIGNALED(status))
				FAIL("tracer %u: %.200s", i, shared->why[i]);
	}
	/* Memory that is freed later has been freed. */
	sleep(1);
	TRY(kernel_is_content(log));
	CHECK(requests && records && stops);
	return 0;
}

static int run(int argc, char **argv)
{
	static char reason[WHY_SIZE];

	why = reason;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("KTAP version 1\n1..1");
	if (test(argc > 1 ? atof(argv[1]) : 10, argc > 2 ? strtoull(argv[2], NULL, 0) : 1)) {
		printf("not ok 1 stress\n# %s\n", why);
		return 1;
	}
	puts("ok 1 stress");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "--tracee"))
		tracee(strtoull(argv[2], NULL, 0));
	if (getpid() != 1)
		return run(argc, argv);
	mkdir("/proc", 0555);
	mkdir("/dev", 0755);
	if (mount("proc", "/proc", "proc", 0, NULL) || mount("dev", "/dev", "devtmpfs", 0, NULL))
		perror("mount");
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	return end_machine(run(argc, argv));
}
