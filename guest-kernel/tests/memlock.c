// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Memory: buffers are locked memory of the ptracer, within its RLIMIT_MEMLOCK, and all of it is
 * released.
 */
#include <linux/capability.h>
#include "bts.h"

#define KIB 1024ul

/* Runs a test as an ordinary user with a limit of 64 KiB. The limit does not apply to root. */
static int limited(int (*test)(void))
{
	struct rlimit limit = { 64 * KIB, 64 * KIB };
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(setrlimit(RLIMIT_MEMLOCK, &limit) || setgid(65534) || setuid(65534) ||
		      prctl(PR_SET_DUMPABLE, 1) || test());
	CHECK(waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
}

/* The limit is for all tracees together. */
static int sum(void)
{
	pid_t pid[3] = { start(work_none), start(work_none), start(work_none) };
	long before = locked();

	for (int i = 0; i < 3; i++)
		CHECK(pid[i] > 0);
	CHECK(before == 0);
	CHECK(config(pid[0], 28 * KIB, O_TRACE) == 0 && locked() == 28);
	CHECK(config(pid[1], 32 * KIB, O_TRACE) == 0 && locked() == 60);
	REFUSED(config(pid[2], 8 * KIB, O_TRACE), ENOMEM);
	CHECK(config(pid[2], 4 * KIB, O_TRACE) == 0 && locked() == 64);
	/* Memory that one tracee releases is available to another one. */
	CHECK(config(pid[0], 0, 0) == 0 && locked() == 36);
	CHECK(config(pid[2], 20 * KIB, O_TRACE) == 0);
	CHECK(locked() == 52);
	for (int i = 0; i < 3; i++)
		stop(pid[i]);
	CHECK(locked() == 0);
	return 0;
}

static int test_sum(void)
{
	return limited(sum);
}

static int cut(void)
{
	struct config cfg;
	pid_t pid[2] = { start(work_none), start(work_none) };

	CHECK(pid[0] > 0 && pid[1] > 0);
	/* The size fits. */
	CHECK(config(pid[0], 20 * KIB, O_TRACE | O_CUT) == 0);
	CHECK(bts(STATUS, pid[0], &cfg, 0) > 0 && cfg.size == 20 * KIB / 24 * 24);
	CHECK(locked() == 20);
	/* Cut to the available memory, at least to half of it */
	CHECK(config(pid[1], 1 << 30, O_TRACE | O_CUT) == 0);
	CHECK(bts(STATUS, pid[1], &cfg, 0) > 0);
	if (cfg.size > 44 * KIB || cfg.size < 22 * KIB || locked() > 64)
		FAIL("cut to %lu bytes, %ld KiB locked", cfg.size, locked());
	stop(pid[0]);
	stop(pid[1]);
	CHECK(locked() == 0);
	return 0;
}

static int test_cut(void)
{
	return limited(cut);
}

/* The same request again keeps the buffer and its records, although it was cut. */
static int cut_twice(void)
{
	static struct record r[4096];
	struct config first, second;
	pid_t pid = start(work_a);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, 1 << 20, O_TRACE | O_CUT) == 0);
	CHECK(bts(STATUS, pid, &first, 0) > 0 && first.size < 1 << 20);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > 999);
	for (int i = 0; i < 2; i++) {
		CHECK(config(pid, 1 << 20, O_TRACE | O_CUT) == 0);
		CHECK(bts(STATUS, pid, &second, 0) > 0 && second.size == first.size);
		CHECK(bts(SIZE, pid, NULL, 0) == n);
	}
	/* So does the size that STATUS returns. */
	CHECK(config(pid, first.size, O_TRACE | O_CUT) == 0);
	CHECK(config(pid, first.size, O_TRACE) == 0);
	/* Without O_CUT_SIZE, the whole size is wanted. */
	REFUSED(config(pid, 1 << 20, O_TRACE), ENOMEM);
	CHECK(bts(DRAIN, pid, r, 0) == n && count(r, n, loop_a_branch, loop_a_head) == 999);
	stop(pid);
	return 0;
}

static int test_cut_twice(void)
{
	return limited(cut_twice);
}

static int cut_nothing_left(void)
{
	struct rlimit none = { 0, 0 };
	pid_t pid = start(work_none);

	CHECK(pid > 0 && !setrlimit(RLIMIT_MEMLOCK, &none));
	REFUSED(config(pid, 4096, O_TRACE), ENOMEM);
	REFUSED(config(pid, 4096, O_TRACE | O_CUT), ENOMEM);
	CHECK(flags_of(pid) == 0 && locked() == 0);
	stop(pid);
	return 0;
}

static int test_cut_nothing_left(void)
{
	return limited(cut_nothing_left);
}

/* Memory that was locked in another way also counts. */
static int with_mlock(void)
{
	static char page[40 << 10] __attribute__((aligned(4096)));
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(!mlock(page, sizeof(page)) && locked() == 40);
	REFUSED(config(pid, 28 * KIB, O_TRACE), ENOMEM);
	CHECK(config(pid, 24 * KIB, O_TRACE) == 0 && locked() == 64);
	CHECK(mlock(&page, 1) == 0);
	CHECK(!munlock(page, sizeof(page)) && locked() == 24);
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

static int test_with_mlock(void)
{
	return limited(with_mlock);
}

/* A failed request locks no memory, and the old buffer and its records stay. */
static int refused(void)
{
	static struct record r[4096];
	pid_t pid = start(work_a);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, 28 * KIB, O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > 999);
	for (int i = 0; i < 20; i++) {
		/* The kernel allocates the new buffer before it frees the old one. */
		REFUSED(config(pid, 40 * KIB, O_TRACE), ENOMEM);
		REFUSED(config(pid, 1 << 20, O_TRACE), ENOMEM);
		REFUSED(config(pid, 63 * 24, O_TRACE | O_SIGNAL), EINVAL);
		REFUSED(config_virtual(pid, 8 * KIB, O_TRACE | O_VIRTUAL, TOO_LARGE), ENOMEM);
		REFUSED(config_virtual(pid, 8 * KIB, O_TRACE | O_VIRTUAL, 8 * KIB), EINVAL);
		CHECK(locked() == 28);
	}
	CHECK(bts(DRAIN, pid, r, 0) == n && count(r, n, loop_a_branch, loop_a_head) == 999);
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

static int test_refused(void)
{
	return limited(refused);
}

/* Every way to end a trace releases its memory. */
static int test_all_ends(void)
{
	for (int how = 0; how < 6; how++) {
		pid_t pid = start(work_a);
		int status;

		CHECK(pid > 0);
		CHECK(config(pid, 100 * KIB, O_TRACE | O_SCHED) == 0);
		CHECK(locked() == 100);
		switch (how) {
		case 0:
			CHECK(config(pid, 0, 0) == 0);
			CHECK(locked() == 0);
			break;
		case 1:
			CHECK(config(pid, 4 * KIB, O_TRACE) == 0 && locked() == 4);
			break;
		case 2:
			CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
			CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status));
			break;
		case 3:
			CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
			CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
			CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status));
			break;
		case 4:
			kill(pid, SIGKILL);
			break;
		}
		if (how != 2 && how != 3)
			stop(pid);
		if (locked())
			FAIL("%ld KiB locked after end number %d", locked(), how);
	}
	return 0;
}

/* With CAP_IPC_LOCK the only limit is a quarter of the memory. */
static int test_privileged(void)
{
	struct rlimit small = { 4096, 4096 };
	struct config cfg;
	pid_t pid = start(work_none);

	CHECK(pid > 0 && !setrlimit(RLIMIT_MEMLOCK, &small));
	CHECK(config(pid, 1 << 20, O_TRACE) == 0 && locked() == 1024);
	CHECK(config(pid, TOO_LARGE, O_TRACE | O_CUT) == 0);
	CHECK(bts(STATUS, pid, &cfg, 0) > 0);
	if (cfg.size > sysconf(_SC_PHYS_PAGES) / 4 * 4096ul || cfg.size < 1 << 20)
		FAIL("cut to %lu bytes of %ld pages", cfg.size, sysconf(_SC_PHYS_PAGES));
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

/* A buffer that is cut leaves room for the pages that the interrupt fills. */
static int test_cut_kernel(void)
{
	struct config cfg;
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	TRY(drop(CAP_IPC_LOCK));
	for (unsigned long kib = 512; kib <= 4096; kib += 256) {
		struct rlimit limit = { kib * KIB, kib * KIB };

		CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
		CHECK(config_virtual(pid, 64 << 20, O_TRACE | O_KERNEL | O_VIRTUAL | O_CUT,
				     16 << 20) == 0);
		CHECK(bts(STATUS, pid, &cfg, sizeof(cfg)) == sizeof(cfg));
		/* At least a quarter, for a reserve that may be twice as large */
		if (cfg.size < kib * KIB / 4 || locked() > (long)kib)
			FAIL("cut to %lu bytes, %ld of %lu KiB locked", cfg.size, locked(), kib);
		CHECK(config(pid, 0, 0) == 0 && locked() == 0);
	}
	stop(pid);
	return 0;
}

static void work_loop(void)
{
	for (;;)
		loop_a(1000);
}

/* A killed ptracer ends its tracee (PTRACE_O_EXITKILL), and all memory is released. */
static int test_tracer_killed(void)
{
	long free_before = -1, free_now;

	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (int i = 0; i < 12; i++) {
		int ready[2], status;
		pid_t tracer, pid;

		CHECK(!pipe(ready));
		tracer = fork();
		if (!tracer) {
			pid = start(work_loop);
			_exit(pid < 0 || config(pid, 8 << 20, O_TRACE) ||
			      ptrace(PTRACE_CONT, pid, 0, 0) ||
			      write(ready[1], &pid, sizeof(pid)) < 0 || pause());
		}
		CHECK(read(ready[0], &pid, sizeof(pid)) == sizeof(pid));
		CHECK(!kill(tracer, SIGKILL));
		CHECK(waitpid(tracer, &status, 0) == tracer && WIFSIGNALED(status));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status) &&
		      WTERMSIG(status) == SIGKILL);
		close(ready[0]);
		close(ready[1]);
		/* The kernel releases it in the background. */
		usleep(100000);
		free_now = sysconf(_SC_AVPHYS_PAGES);
		if (i == 1)
			free_before = free_now;
		/* Ten buffers of 2048 pages would be missing. */
		if (i > 1 && free_now < free_before - 4096)
			FAIL("%ld pages were free, %ld are", free_before, free_now);
	}
	return 0;
}

const struct test memlock_tests[] = {
	{ "sum", test_sum },
	{ "cut", test_cut },
	{ "cut_twice", test_cut_twice },
	{ "cut_nothing_left", test_cut_nothing_left },
	{ "with_mlock", test_with_mlock },
	{ "refused", test_refused },
	{ "all_ends", test_all_ends },
	{ "privileged", test_privileged },
	{ "cut_kernel", test_cut_kernel },
	{ "tracer_killed", test_tracer_killed },
	{ 0 },
};
