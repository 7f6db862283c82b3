// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A security module that refuses to trace a task, or to use perf: SELinux, with a policy of three
 * domains.
 */
#include <sys/mount.h>
#include "bts.h"

#define SELINUX		"/sys/fs/selinux"
#define SEGMENTS	3
#define PER_SEGMENT	300ul

/*
 * The policy, in the binary form that a kernel reads: policydb_read() in
 * security/selinux/ss/policydb.c. Version 18 has neither levels nor capabilities of the policy.
 */
#define POLICY_MAGIC	0xf97cff8c
#define POLICY_STRING	"SE Linux"
#define POLICY_VERSION	18
/* What the policy does not define is allowed: POLICYDB_CONFIG's ALLOW_UNKNOWN */
#define POLICY_FLAGS	4
/* Common permissions, classes, roles, types, users and booleans */
#define POLICY_SYMBOLS	6
/* Initial contexts, and six tables for file systems and networks */
#define POLICY_CONTEXTS	7
/* SECINITSID_NUM */
#define INITIAL_CONTEXTS 27

enum class { PROCESS = 1, PERF_EVENT };
enum { OBJECT_ROLE = 1, ROLE };

/* The domains: of the first process, of a user who may not record the kernel, of another */
enum domain { ALL = 1, USER, STRANGER };

#define PROCESS_ALL	7
#define EVENT_OPEN	1
#define EVENT_ALL	3

static unsigned char policy[4096];
static size_t policy_size;

static void add(const void *bytes, size_t n)
{
	memcpy(policy + policy_size, bytes, n);
	policy_size += n;
}

static void add_words(int n, const uint32_t *words)
{
	add(words, n * sizeof(*words));
}

#define WORDS(...) do { \
	const uint32_t words[] = { __VA_ARGS__ }; \
	add_words(sizeof(words) / sizeof(words[0]), words); \
} while (0)

/* A symbol's name follows its words, of which the first is the length. */
#define NAMED(name, ...) do { \
	WORDS(strlen(name), __VA_ARGS__); \
	add(name, strlen(name)); \
} while (0)

/* A set of small numbers */
static void add_set(uint64_t bits)
{
	WORDS(64, bits ? 64 : 0, bits ? 1 : 0);
	if (bits) {
		WORDS(0);
		add(&bits, sizeof(bits));
	}
}

static void add_allowed(enum domain from, enum domain to, enum class class, uint32_t permissions)
{
	/* Five words follow. The fourth one is AVTAB_ALLOWED. */
	WORDS(5, from, to, class, 1, permissions);
}

static void make_policy(void)
{
	policy_size = 0;
	WORDS(POLICY_MAGIC, strlen(POLICY_STRING));
	add(POLICY_STRING, strlen(POLICY_STRING));
	WORDS(POLICY_VERSION, POLICY_FLAGS, POLICY_SYMBOLS, POLICY_CONTEXTS);
	/* Each table of symbols has the largest number and the number of its symbols. */
	WORDS(0, 0);
	WORDS(2, 2);
	NAMED("process", 0, PROCESS, 3, 3, 0);
	NAMED("transition", 1);
	NAMED("dyntransition", 2);
	NAMED("ptrace", 3);
	NAMED("perf_event", 0, PERF_EVENT, 2, 2, 0);
	NAMED("open", 1);
	NAMED("kernel", 2);
	WORDS(ROLE, 1);
	NAMED("role", ROLE);
	add_set(0);
	add_set(1 << (ALL - 1) | 1 << (USER - 1) | 1 << (STRANGER - 1));
	WORDS(3, 3);
	NAMED("all", ALL, 1);
	NAMED("user", USER, 1);
	NAMED("stranger", STRANGER, 1);
	WORDS(1, 1);
	NAMED("one", 1);
	add_set(1 << (ROLE - 1));
	WORDS(0, 0);
	/* What is allowed */
	WORDS(7);
	add_allowed(ALL, ALL, PROCESS, PROCESS_ALL);
	add_allowed(ALL, USER, PROCESS, PROCESS_ALL);
	add_allowed(ALL, STRANGER, PROCESS, PROCESS_ALL);
	add_allowed(USER, USER, PROCESS, PROCESS_ALL);
	add_allowed(STRANGER, STRANGER, PROCESS, PROCESS_ALL);
	add_allowed(ALL, ALL, PERF_EVENT, EVENT_ALL);
	add_allowed(USER, USER, PERF_EVENT, EVENT_OPEN);
	/* No conditions, transitions of roles, and roles that are allowed */
	WORDS(0, 0, 0);
	WORDS(INITIAL_CONTEXTS);
	for (uint32_t i = 1; i <= INITIAL_CONTEXTS; i++)
		WORDS(i, 1, ROLE, ALL);
	for (int i = 1; i < POLICY_CONTEXTS; i++)
		WORDS(0);
	/* No contexts of files */
	WORDS(0);
}

/* Returns 0 with a reason in `why` if this kernel has no SELinux. */
static int load_policy(void)
{
	int fd;

	if (mount("selinuxfs", SELINUX, "selinuxfs", 0, NULL) && errno != EBUSY) {
		snprintf(why, WHY_SIZE, "this kernel has no SELinux");
		return 0;
	}
	make_policy();
	fd = open(SELINUX "/load", O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0 && write(fd, policy, policy_size) == (ssize_t)policy_size);
	close(fd);
	return 0;
}

static int enter(const char *domain)
{
	char context[64];

	snprintf(context, sizeof(context), "one:role:%s", domain);
	return put("/proc/self/attr/current", context);
}

/* Runs a test in another domain. */
static int as(const char *domain, int (*test)(void))
{
	pid_t pid;
	int status;

	TRY(load_policy());
	if (*why)
		return 0;
	pid = fork();
	if (!pid)
		_exit(enter(domain) || test() ? 1 : 0);
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
}

static int without_perf(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	REFUSED(config(pid, 4096, O_TRACE), EACCES);
	REFUSED(config(pid, 4096, O_TRACE | O_SCHED), EACCES);
	REFUSED(config(pid, 4096, O_KERNEL), EACCES);
	CHECK(flags_of(pid) == 0);
	/* Scheduling events are none of perf's. */
	CHECK(config(pid, 4096, O_SCHED) == 0 && flags_of(pid) == O_SCHED);
	REFUSED(config(pid, 4096, O_SCHED | O_TRACE), EACCES);
	CHECK(flags_of(pid) == O_SCHED);
	stop(pid);
	return 0;
}

/* A module that refuses events refuses branches. */
static int test_no_events(void)
{
	return as("stranger", without_perf);
}

/* Counts records with an address of the kernel, hidden or not. */
static int addresses(pid_t pid, unsigned long *visible, unsigned long *hidden)
{
	static struct record r[4096];
	struct record newest;
	long n;

	*visible = *hidden = 0;
	CHECK(bts(GET, pid, &newest, 0) == sizeof(newest));
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && !memcmp(&newest, r + n - 1, sizeof(newest)));
	for (long i = 0; i < n; i++)
		if (r[i].a == ~0ull)
			++*hidden;
		else
			*visible += is_kernel(r[i].a);
	return 0;
}

static void work_calls(void)
{
	for (int i = 0; i < 10; i++)
		syscall(SYS_getppid);
}

static int trace_calls(unsigned long *visible, unsigned long *hidden)
{
	pid_t pid = start(work_calls);

	CHECK(pid > 0 && config(pid, RECORDS(4096), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	TRY(addresses(pid, visible, hidden));
	stop(pid);
	return 0;
}

static int without_kernel(void)
{
	unsigned long visible, hidden;
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	REFUSED(config(pid, RECORDS(4096), O_TRACE | O_KERNEL), EACCES);
	REFUSED(config_virtual(pid, RECORDS(PER_SEGMENT), O_TRACE | O_SIGNAL | O_MAPPED, SEGMENTS),
		EACCES);
	CHECK(flags_of(pid) == 0);
	stop(pid);
	TRY(trace_calls(&visible, &hidden));
	if (visible || hidden < 10)
		FAIL("%lu addresses of the kernel are visible, %lu are hidden", visible, hidden);
	return 0;
}

/* One that refuses events of the kernel refuses its branches, and hides its addresses. */
static int test_no_kernel(void)
{
	unsigned long visible, hidden;

	TRY(trace_calls(&visible, &hidden));
	if (visible < 10 || hidden)
		FAIL("%lu addresses of the kernel are visible, %lu are hidden", visible, hidden);
	return as("user", without_kernel);
}

/* The segments of a tracer that was allowed to have them, and no longer is */
static int mapped_before(void)
{
	pid_t pid = start(work_a);
	uint64_t offset;

	CHECK(pid > 0);
	CHECK(config_virtual(pid, RECORDS(PER_SEGMENT), O_TRACE | O_SIGNAL | O_MAPPED, SEGMENTS) ==
	      0);
	TRY(enter("user"));
	REFUSED(bts(MAP, pid, NULL, 0), EACCES);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	CHECK(bts(TAKE, pid, &offset, 0) > 0 && offset == 0);
	stop(pid);
	return 0;
}

static int test_map(void)
{
	return as("all", mapped_before);
}

#define EVENT_PTRACE	8

static pid_t target;

/* A tracee that wants to trace a task of another domain */
static void work_seize(void)
{
	if (enter("user"))
		_exit(1);
	if (ptrace(PTRACE_SEIZE, target, 0, 0) != -1 || errno != EACCES)
		_exit(2);
	if (bts(DRAIN_RUNNING, target, NULL, 0) != -1 || errno != ESRCH)
		_exit(3);
	if (bts(TAKE_RUNNING, target, NULL, 0) != -1 || errno != ESRCH)
		_exit(4);
}

/* One that refuses to trace a task: its tracer is not asked to let go of it. */
static int test_attach(void)
{
	static struct record r[4096];
	int status;
	pid_t pid;
	long n;

	TRY(load_policy());
	if (*why)
		return 0;
	target = start(work_a);
	CHECK(target > 0 && config(target, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	pid = start(work_seize);
	CHECK(pid > 0);
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_EXITKILL | 1 << EVENT_PTRACE));
	status = next_stop(pid, 0);
	if (status >> 8 == (SIGTRAP | EVENT_PTRACE << 8))
		FAIL("the tracer is asked to let go of a task that may not be traced");
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		FAIL("the tracee ended with status %#x", status);
	CHECK(next_stop(target, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, target, r, 0);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 999);
	stop(target);
	return 0;
}

const struct test security_tests[] = {
	{ "no_events", test_no_events },
	{ "no_kernel", test_no_kernel },
	{ "map", test_map },
	{ "attach", test_attach },
	{ 0 },
};
