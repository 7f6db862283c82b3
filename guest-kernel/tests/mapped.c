// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * PTRACE_BTS_O_MAPPED: segments that the tracer maps and takes.
 */
#include "bts.h"
#include <linux/capability.h>

#define FLAGS		(O_TRACE | O_SIGNAL | O_MAPPED)
#define SEGMENTS	3
#define PER_SEGMENT	300ul
#define PAGE		4096ul
/* RECORDS(PER_SEGMENT), rounded up to pages */
#define SEGMENT		(2 * PAGE)

static int to_tracee[2], to_tracer[2];
/* The flags of all branches that copy() has seen */
static uint64_t branch_flags;

static long configure(pid_t pid)
{
	return config_virtual(pid, RECORDS(PER_SEGMENT), FLAGS, SEGMENTS);
}

/* Maps all segments of a tracee, or returns NULL. */
static const char *map(pid_t pid)
{
	int fd = bts(MAP, pid, NULL, 0);
	void *at;

	if (fd < 0)
		return NULL;
	at = mmap(NULL, SEGMENTS * SEGMENT, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return at == MAP_FAILED ? NULL : at;
}

/* Copies mapped records in the form of the other requests. */
static void copy(struct record *out, const char *map, uint64_t offset, long n)
{
	const struct mapped_record *in = (const void *)(map + offset);

	for (long i = 0; i < n; i++) {
		if (in[i].flags & MAPPED_SCHED)
			out[i] = (struct record){ in[i].flags & ~MAPPED_SCHED, in[i].from, 0 };
		else
			out[i] = (struct record){ BRANCH, in[i].from, in[i].to };
		if (out[i].qualifier == BRANCH)
			branch_flags |= in[i].flags;
	}
}

/* All branches arrive, in order, and segments keep their records until they are given back. */
static int test_path(void)
{
	static struct record r[PER_SEGMENT];
	uint64_t offset, kept_at = 0, order = 0;
	struct path path = { 0 }, reference = { 0 };
	unsigned long taken = 0;
	long n, kept = 0;
	const char *at;
	int status;
	pid_t pid;

	maze_steps = 20000;
	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0 && configure(pid) == 0);
	at = map(pid);
	CHECK(at);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == AT_EXIT || status >> 8 == SIGIO);
		n = bts(TAKE, pid, &offset, taken == SEGMENTS - 1);
		CHECK(n > 0 && n <= (long)PER_SEGMENT);
		CHECK(offset == order++ % SEGMENTS * SEGMENT);
		CHECK(!(flags_of(pid) & (O_PAUSED | O_LOST)));
		/* The records of the segment before are read only now. */
		copy(r, at, kept_at, kept);
		TRY(path_add(&path, r, kept));
		kept_at = offset;
		kept = n;
		if (taken < SEGMENTS - 1)
			taken++;
	} while (status >> 8 != AT_EXIT);
	copy(r, at, kept_at, kept);
	TRY(path_add(&path, r, kept));
	CHECK(order > 50);
	TRY(path_compare(&path, &reference));
	CHECK(!(branch_flags & ~MAPPED_PREDICTED));
	CHECK(branch_flags || !is_netburst());
	stop(pid);
	return 0;
}

static int test_no_segment_left(void)
{
	pid_t pid = start(work_a);
	uint64_t offset;

	CHECK(pid > 0 && configure(pid) == 0);
	for (uint64_t i = 0; i < SEGMENTS - 1; i++) {
		CHECK(next_stop(pid, 0) >> 8 == SIGIO);
		CHECK(bts(TAKE, pid, &offset, 0) > 0 && offset == i * SEGMENT);
		/* There are no records now. */
		CHECK(bts(TAKE, pid, &offset, 0) == 0);
	}
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	REFUSED(bts(TAKE, pid, &offset, 0), ENOBUFS);
	CHECK(flags_of(pid) & O_PAUSED);
	REFUSED(bts(TAKE, pid, &offset, SEGMENTS), EINVAL);
	REFUSED(bts(TAKE, pid, &offset, -1ul), EINVAL);
	REFUSED(bts(TAKE, pid, (void *)8, 1), EFAULT);
	CHECK(bts(TAKE, pid, &offset, 1) > 0 && offset == 2 * SEGMENT);
	CHECK(!(flags_of(pid) & O_PAUSED));
	/* Without records, segments are only given back. */
	CHECK(bts(TAKE, pid, &offset, SEGMENTS - 1) == 0);
	REFUSED(bts(TAKE, pid, &offset, 1), EINVAL);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(!(flags_of(pid) & O_LOST));
	stop(pid);
	return 0;
}

static int test_other_requests(void)
{
	static struct record r[PER_SEGMENT], one;
	pid_t pid = start(work_a);
	struct config cfg = { 0 };
	uint64_t offset;
	long n;

	CHECK(pid > 0 && configure(pid) == 0);
	CHECK(bts(STATUS, pid, &cfg, sizeof(cfg)) == sizeof(cfg));
	CHECK(cfg.size == RECORDS(PER_SEGMENT) && cfg.flags == FLAGS);
	CHECK(cfg.virtual_size == SEGMENTS);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	/* They apply to the segment in use. */
	n = bts(SIZE, pid, NULL, 0);
	CHECK(n > 100 && bts(GET, pid, &one, 0) == sizeof(one));
	CHECK(bts(DRAIN, pid, r, 0) == n);
	CHECK(!memcmp(&one, r + n - 1, sizeof(one)));
	CHECK(bts(TAKE, pid, &offset, 0) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(bts(TAKE, pid, &offset, 0) > 0 && offset == 0);
	CHECK(bts(SIZE, pid, NULL, 0) == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(bts(CLEAR, pid, NULL, 0) == 0 && bts(SIZE, pid, NULL, 0) == 0);
	/* The same configuration keeps the segments, and another one replaces them. */
	CHECK(configure(pid) == 0 && next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(configure(pid) == -1 && errno == EBUSY);
	CHECK(bts(TAKE, pid, &offset, 1) > 0 && offset == SEGMENT);
	CHECK(config_virtual(pid, RECORDS(PER_SEGMENT), FLAGS, SEGMENTS + 1) == 0);
	REFUSED(bts(TAKE, pid, &offset, 1), EINVAL);
	stop(pid);
	return 0;
}

static int test_refused(void)
{
	static const unsigned long flags[] = {
		O_TRACE | O_MAPPED, FLAGS | O_VIRTUAL, FLAGS | O_KERNEL,
	};
	pid_t pid = start(work_none);
	uint64_t offset;

	CHECK(pid > 0);
	REFUSED(bts(MAP, pid, NULL, 0), ENXIO);
	REFUSED(bts(TAKE, pid, &offset, 0), ENXIO);
	REFUSED(bts(TAKE_RUNNING, pid, &offset, 0), ENXIO);
	for (int i = 0; i < 3; i++)
		REFUSED(config_virtual(pid, RECORDS(5000), flags[i], 10000), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(PER_SEGMENT), FLAGS, 0), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(PER_SEGMENT), FLAGS, 1), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(PER_SEGMENT), FLAGS, 1025), EINVAL);
	REFUSED(config_virtual(pid, RECORDS(63), FLAGS, 2), EINVAL);
	REFUSED(config_virtual(pid, TOO_LARGE / 2, FLAGS, 2), ENOMEM);
	/* More than a quarter of the memory, or as much as there is with O_CUT_SIZE */
	REFUSED(config_virtual(pid, 64ul << 20, FLAGS, 1024), ENOMEM);
	CHECK(config_virtual(pid, TOO_LARGE / 2, FLAGS | O_CUT, 1000) == 0);
	CHECK(config(pid, RECORDS(PER_SEGMENT), O_TRACE | O_SIGNAL) == 0);
	REFUSED(bts(MAP, pid, NULL, 0), EINVAL);
	REFUSED(bts(TAKE, pid, &offset, 0), EINVAL);
	REFUSED(bts(TAKE_RUNNING, pid, &offset, 0), EINVAL);
	stop(pid);
	return 0;
}

static int test_capability(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { 0 };
	pid_t pid = start(work_none);

	CHECK(pid > 0 && configure(pid) == 0);
	CHECK(map(pid));
	CHECK(!syscall(SYS_capset, &header, data));
	REFUSED(bts(MAP, pid, NULL, 0), EPERM);
	REFUSED(configure(pid), EPERM);
	stop(pid);
	return 0;
}

static int test_mmap(void)
{
	pid_t pid = start(work_a);
	uint64_t offset;
	const char *at;
	int fd, status;
	pid_t child;
	char byte;

	CHECK(pid > 0 && configure(pid) == 0);
	fd = bts(MAP, pid, NULL, 0);
	CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	REFUSED(read(fd, &byte, 1), EINVAL);
	CHECK(mmap(NULL, SEGMENT, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, SEGMENTS * SEGMENT, PROT_READ, MAP_SHARED, fd, PAGE) == MAP_FAILED);
	CHECK(mmap(NULL, (SEGMENTS + 1) * SEGMENT, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, SEGMENTS * SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) ==
	      MAP_FAILED);
	CHECK(mmap(NULL, SEGMENTS * SEGMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) ==
	      MAP_FAILED);
	close(fd);
	at = map(pid);
	CHECK(at);
	/* Nothing of another use of the memory is visible. */
	for (unsigned long i = 0; i < SEGMENTS * SEGMENT; i++)
		CHECK(!at[i] || i / sizeof(struct record) == PER_SEGMENT - 1);
	REFUSED(mprotect((void *)at, SEGMENTS * SEGMENT, PROT_READ | PROT_WRITE), EACCES);
	child = fork();
	if (!child)
		_exit(*(volatile const char *)at);
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(bts(TAKE, pid, &offset, 0) > 0 && offset == 0);
	stop(pid);
	/* It remains after the trace. */
	CHECK(((const struct mapped_record *)at)->to);
	return 0;
}

/* Locked memory comes back when neither the trace nor a mapping is left. */
static int test_locked(void)
{
	long before = locked(), with;
	pid_t pid = start(work_none);
	const char *at;

	CHECK(pid > 0 && before >= 0 && configure(pid) == 0);
	with = locked();
	CHECK(with == before + (long)(SEGMENTS * SEGMENT / 1024));
	at = map(pid);
	CHECK(at && locked() == with);
	CHECK(config(pid, 0, 0) == 0 && locked() == with);
	CHECK(!munmap((void *)at, SEGMENTS * SEGMENT));
	CHECK(locked() == before);
	stop(pid);
	return 0;
}

static void work_block(void)
{
	char turn = 0;

	loop_a(100);
	if (write(to_tracer[1], &turn, 1) != 1 || read(to_tracee[0], &turn, 1) != 1)
		_exit(1);
	loop_b(100);
}

static int test_running(void)
{
	static struct record r[PER_SEGMENT];
	uint64_t offset, first;
	const char *at;
	char turn;
	pid_t pid;
	long n;

	CHECK(!pipe(to_tracee) && !pipe(to_tracer));
	pid = start(work_block);
	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(PER_SEGMENT), FLAGS | O_SCHED, SEGMENTS) == 0);
	at = map(pid);
	CHECK(at);
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(read(to_tracer[0], &turn, 1) == 1);
	/* So that it blocks. */
	usleep(10000);
	REFUSED(bts(TAKE, pid, &first, 0), ESRCH);
	REFUSED(bts(MAP, pid, NULL, 0), ESRCH);
	n = bts(TAKE_RUNNING, pid, &first, 0);
	CHECK(n > 0);
	CHECK(write(to_tracee[1], &turn, 1) == 1);
	CHECK(waitpid(pid, NULL, __WALL) == pid);
	/* The tracee has not written there meanwhile. */
	copy(r, at, first, n);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 99);
	CHECK(r[n - 1].qualifier == DEPARTS);
	n = bts(TAKE, pid, &offset, 0);
	CHECK(n > 0 && offset != first);
	copy(r, at, offset, n);
	CHECK(r[0].qualifier == ARRIVES);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 0);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 99);
	stop(pid);
	return 0;
}

static int test_killed(void)
{
	static struct record r[PER_SEGMENT];
	uint64_t offset;
	const char *at;
	siginfo_t info;
	char turn;
	pid_t pid;
	long n;

	CHECK(!pipe(to_tracee) && !pipe(to_tracer));
	pid = start(work_block);
	CHECK(pid > 0 && configure(pid) == 0);
	at = map(pid);
	CHECK(at && !ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(read(to_tracer[0], &turn, 1) == 1);
	CHECK(!kill(pid, SIGKILL));
	do
		CHECK(!waitid(P_PID, pid, &info, WEXITED | WSTOPPED | WNOWAIT | __WALL));
	while (info.si_code == CLD_TRAPPED && !ptrace(PTRACE_CONT, pid, 0, 0));
	n = bts(TAKE_RUNNING, pid, &offset, 0);
	CHECK(n > 0);
	CHECK(waitpid(pid, NULL, __WALL) == pid);
	copy(r, at, offset, n);
	CHECK(count(r, n, loop_a_branch, loop_a_head) == 99);
	return 0;
}

/* MAP without a free descriptor leaves nothing behind. */
static int test_no_descriptor(void)
{
	struct rlimit usual, none = { 0, 0 };
	long before = locked();
	pid_t pid = start(work_a);
	uint64_t offset;
	const char *at;

	CHECK(pid > 0 && configure(pid) == 0);
	CHECK(!getrlimit(RLIMIT_NOFILE, &usual));
	none.rlim_max = usual.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &none));
	for (int i = 0; i < 100; i++)
		REFUSED(bts(MAP, pid, NULL, 0), EMFILE);
	CHECK(!setrlimit(RLIMIT_NOFILE, &usual));
	at = map(pid);
	CHECK(at && next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(bts(TAKE, pid, &offset, 0) > 0 && offset == 0);
	CHECK(((const struct mapped_record *)at)->to);
	CHECK(!munmap((void *)at, SEGMENTS * SEGMENT) && config(pid, 0, 0) == 0);
	CHECK(locked() == before);
	stop(pid);
	return 0;
}

/* The requests for a tracee in any state are refused for a task that is no tracee of ours. */
static int test_no_tracee(void)
{
	static const int requests[] = { DRAIN_RUNNING, TAKE_RUNNING };
	static struct record r[PER_SEGMENT];
	pid_t pid[4] = { start(work_none), fork(), start(work_none), start(work_a) };
	int status;

	if (!pid[1])
		for (;;)
			pause();
	/* A tracee that has let go, one that never was, one that has ended, and another's */
	CHECK(pid[0] > 0 && pid[1] > 0 && pid[2] > 0 && pid[3] > 0);
	CHECK(configure(pid[0]) == 0 && configure(pid[2]) == 0 && configure(pid[3]) == 0);
	CHECK(!ptrace(PTRACE_DETACH, pid[0], 0, SIGSTOP));
	stop(pid[2]);
	for (unsigned int i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		for (int j = 0; j < 3; j++)
			REFUSED(bts(requests[i], pid[j], r, 0), ESRCH);
		REFUSED(bts(requests[i], getpid(), r, 0), ESRCH);
		REFUSED(bts(requests[i], 1 << 30, r, 0), ESRCH);
	}
	pid[1] = fork();
	if (!pid[1])
		_exit(bts(TAKE_RUNNING, pid[3], r, 0) != -1 || errno != ESRCH ||
		      bts(DRAIN_RUNNING, pid[3], r, 0) != -1 || errno != ESRCH);
	CHECK(waitpid(pid[1], &status, 0) == pid[1]);
	if (status)
		FAIL("another process can take the records");
	CHECK(next_stop(pid[3], 0) >> 8 == SIGIO && !(flags_of(pid[3]) & O_LOST));
	stop(pid[3]);
	return 0;
}

const struct test mapped_tests[] = {
	{ "path", test_path },
	{ "no_segment_left", test_no_segment_left },
	{ "other_requests", test_other_requests },
	{ "refused", test_refused },
	{ "capability", test_capability },
	{ "mmap", test_mmap },
	{ "locked", test_locked },
	{ "running", test_running },
	{ "killed", test_killed },
	{ "no_descriptor", test_no_descriptor },
	{ "no_tracee", test_no_tracee },
	{ 0 },
};
