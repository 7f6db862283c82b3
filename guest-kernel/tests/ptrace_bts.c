// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The PTRACE_BTS_* requests of the guest kernel, tested from a program inside the guest.
 *
 *	gcc -O2 -Wall -Wextra -static -o ptrace_bts ptrace_bts.c bts.c basic.c signal.c virtual.c kernel.c task.c smp.c \
 *		generations.c
 *
 *	ptrace_bts [--list] [PATTERN...]
 *
 * Prints KTAP. A test is called GROUP.NAME; with patterns (of the shell) only those that match one are run. Those for
 * another generation of the API than the kernel's are left out. --list prints the names, of all generations, instead.
 * Exit status: 0 if all passed, 1 if one failed, 2 if the kernel or the processor has no BTS. As PID 1 it mounts what it
 * needs and reports through the machine's exit port.
 */
#include <fnmatch.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include "bts.h"

/* A test that takes longer hangs. */
#define SECONDS		100

enum api { NONE, NOVEMBER, DECEMBER, NEW };

static const struct {
	const char *name;
	const struct test *tests;
	enum api api;
} groups[] = {
	{ "basic", basic_tests, NEW },
	{ "signal", signal_tests, NEW },
	{ "virtual", virtual_tests, NEW },
	{ "kernel", kernel_tests, NEW },
	{ "task", task_tests, NEW },
	{ "smp", smp_tests, NEW },
	{ "2007-11", november_tests, NOVEMBER },
	{ "2007-12", december_tests, DECEMBER },
};

#define GROUPS (sizeof(groups) / sizeof(groups[0]))

static int is_wanted(const char *name, char **patterns)
{
	if (!*patterns)
		return 1;
	for (; *patterns; patterns++)
		if (!fnmatch(*patterns, name, 0))
			return 1;
	return 0;
}

/* In a process of its own: what it leaves behind ends with it, and a crash is a failure. */
static int run_test(const struct test *test)
{
	int status;
	pid_t pid;

	*why = '\0';
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(SECONDS);
		_exit(test->run() ? 1 : 0);
	}
	if (waitpid(pid, &status, __WALL) != pid)
		FAIL("waitpid: %s", strerror(errno));
	if (WIFSIGNALED(status))
		FAIL("ended by signal %d%s", WTERMSIG(status), WTERMSIG(status) == SIGALRM ? ", a time-out" : "");
	return status ? -1 : 0;
}

/* Request 40 is CONFIG, which wants an address, MAX_BUFFER_SIZE, which is 4000, or INIT, which says what there is. */
static enum api kernel_api(void)
{
	pid_t pid = start(work_none);
	long value = pid > 0 ? bts(40, pid, NULL, 0) : -1;
	int error = errno;

	if (pid > 0)
		stop(pid);
	errno = error;
	if (value < 0)
		return errno == EFAULT ? NEW : NONE;
	errno = EOPNOTSUPP;
	return value == 4000 ? DECEMBER : value ? NOVEMBER : NONE;
}

static int run(char **arguments)
{
	int list = *arguments && !strcmp(*arguments, "--list");
	unsigned int number = 0, failures = 0;
	enum api api = NONE;
	char name[128];

	arguments += list;
	setvbuf(stdout, NULL, _IOLBF, 0);
	why = mmap(NULL, WHY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (why == MAP_FAILED)
		return 1;

	if (!list) {
		puts("KTAP version 1");
		api = kernel_api();
		if (api == NONE) {
			printf("1..0 # SKIP no branch trace store: %s\n", strerror(errno));
			return 2;
		}
	}
	/* First they are counted. */
	for (int pass = list; pass < 2; pass++) {
		if (pass && !list)
			printf("1..%u\n", number);
		number = 0;
		for (unsigned int i = 0; i < GROUPS; i++) {
			if (!list && groups[i].api != api)
				continue;
			for (const struct test *test = groups[i].tests; test->name; test++) {
				snprintf(name, sizeof(name), "%s.%s", groups[i].name, test->name);
				if (!is_wanted(name, arguments))
					continue;
				number++;
				if (!pass)
					continue;
				if (list) {
					puts(name);
				} else if (run_test(test)) {
					printf("not ok %u %s\n# %s\n", number, name, why);
					failures++;
				} else if (*why) {
					printf("ok %u %s # SKIP %s\n", number, name, why);
				} else {
					printf("ok %u %s\n", number, name);
				}
			}
		}
	}
	return failures ? 1 : 0;
}

int main(int argc, char **argv)
{
	/* What test_exec() runs. */
	if (argc > 1 && !strcmp(argv[1], "loop_b")) {
		loop_b(500);
		return 0;
	}
	if (getpid() != 1)
		return run(argv + 1);

	mkdir("/proc", 0555);
	mkdir("/sys", 0555);
	if (mount("proc", "/proc", "proc", 0, NULL) || mount("sysfs", "/sys", "sysfs", 0, NULL))
		perror("mount");
	return end_machine(run(argv + 1));
}
