// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Memory that is short while a trace needs more of it.
 */
#include <sys/random.h>
#include "bts.h"

#define MIB (1ul << 20)

/* Memory that the machine has left when recording begins, in MiB */
#define LEFT 48

/* Whole calls of the tracee, in memory that it shares with the test */
static volatile unsigned int *calls;

/*
 * It has all its memory before the second stop: a page fault when there is none would call the OOM
 * killer.
 */
static void work_random(void)
{
	static char buffer[MIB];

	memset(buffer, 1, sizeof(buffer));
	*calls = 0;
	raise(SIGSTOP);
	for (;;) {
		getrandom(buffer, sizeof(buffer), 0);
		++*calls;
	}
}

/* Uses all memory but a rest. */
static int use_memory(void)
{
	long size = sysconf(_SC_AVPHYS_PAGES) * 4096l - LEFT * MIB;

	TRY(put("/proc/self/oom_score_adj", "-1000"));
	if (size <= 0)
		return 0;
	CHECK(mmap(NULL, size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) != MAP_FAILED);
	return 0;
}

/*
 * The interrupt gets no pages for the records of the kernel. They are lost, STATUS says so, and the
 * tracee's system calls end.
 */
static int test_kernel(void)
{
	const unsigned long virtual_size = 4 * LEFT * MIB;
	unsigned int before = 0;
	int status, lost = 0;
	pid_t pid;

	calls = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(calls != MAP_FAILED);
	pid = start(work_random);
	CHECK(pid > 0 && next_stop(pid, 0) >> 8 == SIGSTOP);
	TRY(use_memory());
	CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | O_KERNEL | O_VIRTUAL,
			     virtual_size) == 0);
	for (int i = 0; i < 200 && (!lost || *calls < before + 4); i++) {
		CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
		usleep(100000);
		CHECK(!kill(pid, SIGSTOP));
		CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
		if (!lost && flags_of(pid) & O_LOST) {
			lost = 1;
			before = *calls;
		}
	}
	if (!lost || *calls < before + 4)
		FAIL("%u calls, %s, %ld records", *calls, lost ? "lost" : "nothing lost",
		     bts(SIZE, pid, NULL, 0));
	stop(pid);
	return 0;
}

static int set_overcommit(const char *mode, const char *kib)
{
	TRY(put("/proc/sys/vm/overcommit_memory", mode));
	return put("/proc/sys/vm/overcommit_kbytes", kib);
}

/* The virtual buffer is cut to what may be committed, and the processor's buffer to half of it. */
static int test_overcommit(void)
{
	long used, ret, error, whole, whole_error;
	struct config cfg = { 0 };
	char kib[32];
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	used = proc_number("/proc/meminfo", "Committed_AS");
	CHECK(used > 0);
	snprintf(kib, sizeof(kib), "%ld", used + 16 * 1024);
	/* The next test needs the usual mode again, whatever the result is. */
	TRY(set_overcommit("2", kib));
	whole = config_virtual(pid, 16 * MIB, O_TRACE | O_VIRTUAL, 64 * MIB);
	whole_error = errno;
	ret = config_virtual(pid, 16 * MIB, O_TRACE | O_VIRTUAL | O_CUT, 64 * MIB);
	error = errno;
	bts(STATUS, pid, &cfg, sizeof(cfg));
	TRY(set_overcommit("0", "0"));
	CHECK(whole == -1 && whole_error == ENOMEM);
	if (ret || cfg.virtual_size < MIB || cfg.virtual_size > 16 * MIB ||
	    cfg.size < cfg.virtual_size / 4 || cfg.size > cfg.virtual_size / 2)
		FAIL("%ld, errno %ld: a buffer of %lu bytes, a virtual one of %lu", ret, error,
		     cfg.size, cfg.virtual_size);
	stop(pid);
	return 0;
}

const struct test pressure_tests[] = {
	{ "kernel", test_kernel },
	{ "overcommit", test_overcommit },
	{ 0 },
};
