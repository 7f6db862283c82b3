// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Memory control groups and swap: the ptracer's group pays for all buffers, and the pages of a
 * virtual buffer leave for the disk and return.
 */
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/sysmacros.h>
#include "bts.h"

#define MIB	(1ul << 20)
#define GROUP	"/cgroup/tracer"

/* Reads the first number of a file, or returns -1. */
static long number_in(const char *path)
{
	FILE *file = fopen(path, "r");
	long number = -1;

	if (file) {
		if (fscanf(file, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
	return number;
}

/* Creates a group without processes. Returns 0 with a reason in `why` if there are no groups. */
static int make_group(void)
{
	char controllers[256] = "";
	FILE *file;

	mkdir("/cgroup", 0755);
	if (mount("cgroup2", "/cgroup", "cgroup2", 0, NULL) && errno != EBUSY) {
		snprintf(why, WHY_SIZE, "this kernel has no control groups");
		return 0;
	}
	file = fopen("/cgroup/cgroup.controllers", "r");
	CHECK(file);
	if (!fgets(controllers, sizeof(controllers), file) || !strstr(controllers, "memory")) {
		snprintf(why, WHY_SIZE, "this kernel has no control groups for memory");
		fclose(file);
		return 0;
	}
	fclose(file);
	TRY(put("/cgroup/cgroup.subtree_control", "+memory"));
	CHECK(!mkdir(GROUP, 0755) || errno == EEXIST);
	return 0;
}

/* Moves this process to the group, with these limits in bytes. */
static int enter_group(const char *memory, const char *swap)
{
	char pid[32];

	snprintf(pid, sizeof(pid), "%d", getpid());
	TRY(put(GROUP "/memory.max", memory));
	TRY(put(GROUP "/memory.swap.max", swap));
	return put(GROUP "/cgroup.procs", pid);
}

/* Swaps to the first disk. Returns 0 with a reason in `why` if this is impossible. */
static int start_swap(void)
{
	static unsigned char header[4096];
	unsigned int major, minor, version = 1, last_page;
	FILE *file = fopen("/sys/block/vda/dev", "r");
	int fd;

	if (!file) {
		snprintf(why, WHY_SIZE, "this machine has no disk");
		return 0;
	}
	CHECK(fscanf(file, "%u:%u", &major, &minor) == 2);
	fclose(file);
	CHECK(!mknod("/vda", S_IFBLK | 0600, makedev(major, minor)) || errno == EEXIST);
	/* The header of mkswap: its format is in include/linux/swap.h. */
	last_page = number_in("/sys/block/vda/size") / (sizeof(header) / 512) - 1;
	memcpy(header + 1024, &version, sizeof(version));
	memcpy(header + 1028, &last_page, sizeof(last_page));
	memcpy(header + sizeof(header) - 10, "SWAPSPACE2", 10);
	fd = open("/vda", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && pwrite(fd, header, sizeof(header), 0) == sizeof(header) && !fsync(fd));
	close(fd);
	if (swapon("/vda", 0) && errno != EBUSY) {
		CHECK(errno == ENOSYS);
		snprintf(why, WHY_SIZE, "this kernel does not swap");
	}
	return 0;
}

static int drain_all(pid_t pid, struct path *path)
{
	static struct record r[1 << 14];
	long n;

	do {
		n = bts(DRAIN, pid, r, sizeof(r) / sizeof(*r));
		CHECK(n >= 0);
		TRY(path_add(path, r, n));
	} while (n);
	return 0;
}

/* The group may have a fraction of the records in memory, and all are read. */
static int test_virtual(void)
{
	struct path reference, path = { 0 };
	long swapped;
	pid_t pid;

	TRY(make_group());
	if (!*why)
		TRY(start_swap());
	if (*why)
		return 0;
	maze_steps = 200000;
	TRY(path_reference(&reference));
	TRY(enter_group("4194304", "max"));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(170), O_TRACE | O_VIRTUAL, 32 * MIB) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(RECORDS(bts(SIZE, pid, NULL, 0)) > 6 * MIB);
	swapped = number_in(GROUP "/memory.swap.current");
	if (swapped < (long)(2 * MIB))
		FAIL("%ld bytes are on the disk", swapped);
	CHECK(!(flags_of(pid) & (O_LOST | O_PAUSED)));
	TRY(drain_all(pid, &path));
	stop(pid);
	return path_compare(&path, &reference);
}

/*
 * Starts a process outside of the group that removes the group's limit when it gets SIGUSR1. In a
 * full group, the OOM killer ends a process that only opens a file.
 */
static pid_t start_helper(void)
{
	int signal;
	sigset_t set;
	pid_t pid;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	pid = fork();
	if (!pid)
		_exit(sigwait(&set, &signal) || put(GROUP "/memory.max", "max"));
	return pid;
}

/*
 * If there is neither memory nor swap, records are lost, STATUS says so, and neither the tracee nor
 * the ptracer is killed.
 */
static int test_nothing_left(void)
{
	struct path reference, path = { 0 };
	pid_t pid, helper;
	int status;
	long n;

	TRY(make_group());
	if (*why)
		return 0;
	maze_steps = 200000;
	TRY(path_reference(&reference));
	helper = start_helper();
	CHECK(helper > 0);
	TRY(enter_group("4194304", "0"));
	pid = start(work_maze);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(170), O_TRACE | O_VIRTUAL, 32 * MIB) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(flags_of(pid) & O_LOST);
	CHECK(!kill(helper, SIGUSR1) && waitpid(helper, &status, 0) == helper && !status);
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > 0 && RECORDS(n) < 4 * MIB);
	TRY(drain_all(pid, &path));
	CHECK(path.n > 0 && path.n < reference.n);
	CHECK(!memcmp(path.r, reference.r, RECORDS(1000)));
	stop(pid);
	return 0;
}

/* The processor's buffer is the group's memory. One that does not fit is refused or cut. */
static int test_charged(void)
{
	struct config cfg;
	long before, after;
	pid_t pid;

	TRY(make_group());
	if (*why)
		return 0;
	TRY(enter_group("8388608", "0"));
	pid = start(work_none);
	CHECK(pid > 0);
	before = number_in(GROUP "/memory.current");
	CHECK(config(pid, 4 * MIB, O_TRACE) == 0);
	after = number_in(GROUP "/memory.current");
	if (after < before + (long)(4 * MIB))
		FAIL("the group had %ld bytes, and has %ld", before, after);
	CHECK(config(pid, 0, 0) == 0);
	REFUSED(config(pid, 16 * MIB, O_TRACE), ENOMEM);
	CHECK(config(pid, 16 * MIB, O_TRACE | O_CUT) == 0);
	CHECK(bts(STATUS, pid, &cfg, 0) > 0 && cfg.size <= 8 * MIB && cfg.size >= 2 * MIB);
	stop(pid);
	CHECK(locked() == 0);
	return 0;
}

const struct test swap_tests[] = {
	{ "virtual", test_virtual },
	{ "nothing_left", test_nothing_left },
	{ "charged", test_charged },
	{ 0 },
};
