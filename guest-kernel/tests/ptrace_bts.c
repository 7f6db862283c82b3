// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Tests the PTRACE_BTS_* requests of the guest kernel, inside the guest. `vbts test` runs this
 * program, and guest-kernel/build builds it.
 *
 *	ptrace_bts [--list] [PATTERN...]
 *
 * Prints KTAP. A test is called GROUP.NAME. With patterns (of the shell), only tests that match one
 * are run. Tests for another generation of the API than the kernel's are left out. Tests for
 * another machine are left out unless a pattern matches them. --list prints the tests of all
 * generations instead: name, generation and machine, separated by tabs.
 * Exit status: 0 if all passed, 1 if one failed, 2 if the kernel or the processor has no BTS.
 *
 * As PID 1 it mounts file systems, takes a pattern from each line of the file /cases, if there is
 * one, or runs tests of the kernel's source that it names (kselftest.c). It reports its status
 * through the machine's exit port. It then prints through /dev/kmsg, because only the kernel can
 * separate these lines from its own messages on the console.
 */
#include <fnmatch.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include "bts.h"

/* Time limit of a test, in seconds. */
#define SECONDS		100

/* A priority that every console shows */
#define PRIORITY	"<1>"

enum api { NONE, NOVEMBER, MAN, DECEMBER, NEW };

static const char *const api_names[] = { "none", "2007-11", "2007-man", "2007-12",
					  "new" };

/* In /cases, the word before the directory of the kernel's selftests */
#define KSELFTEST	"kselftest "

/* Options of vbts that a group needs. */
#define ANY		"any"
#define NO_BTS		"bts=off"
#define PTI		"pti=on"
#define DISK		"disk=on"

static const struct {
	const char *name;
	const struct test *tests;
	enum api api;
	const char *machine;
} groups[] = {
	{ "basic", basic_tests, NEW, ANY },
	{ "errors", errors_tests, NEW, ANY },
	{ "memlock", memlock_tests, NEW, ANY },
	{ "signal", signal_tests, NEW, ANY },
	{ "virtual", virtual_tests, NEW, ANY },
	{ "pressure", pressure_tests, NEW, ANY },
	{ "kernel", kernel_tests, NEW, ANY },
	{ "task", task_tests, NEW, ANY },
	{ "running", running_tests, NEW, ANY },
	{ "mapped", mapped_tests, NEW, ANY },
	{ "perf", perf_tests, NEW, ANY },
	{ "smp", smp_tests, NEW, ANY },
	{ "hotplug", hotplug_tests, NEW, ANY },
	{ "userfault", userfault_tests, NEW, ANY },
	{ "security", security_tests, NEW, ANY },
	{ "freezer", freezer_tests, NEW, ANY },
	{ "failures", failures_tests, NEW, ANY },
	{ "no_bts", no_bts_tests, NEW, NO_BTS },
	{ "pti", pti_tests, NEW, PTI },
	{ "swap", swap_tests, NEW, DISK },
	{ "2007-11", november_tests, NOVEMBER, ANY },
	{ "2007-man", man_tests, MAN, ANY },
	{ "2007-12", december_tests, DECEMBER, ANY },
};

#define GROUPS (sizeof(groups) / sizeof(groups[0]))

static int kmsg = -1;

void say(const char *prefix, const char *format, ...)
{
	char line[1024] = PRIORITY;
	char *text = stpcpy(line + strlen(line), prefix), *c;
	const size_t room = sizeof(line) - (text - line) - 1;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, room, format, arguments);
	va_end(arguments);
	for (c = text; *c; c++)
		if (*c < ' ')
			*c = ' ';
	/* Without the end of the line, the kernel would wait for the rest. */
	strcpy(c, "\n");
	if (kmsg < 0)
		fputs(text, stdout);
	else if (write(kmsg, line, strlen(line)) < 0)
		perror("/dev/kmsg");
}

static int is_wanted(const char *name, char **patterns)
{
	if (!*patterns)
		return 1;
	for (; *patterns; patterns++)
		if (!fnmatch(*patterns, name, 0))
			return 1;
	return 0;
}

/*
 * Runs a test in a process of its own, so that its children end with it and a crash is a failure.
 */
static int run_test(const struct test *test)
{
	/* Unknown words of the kernel's command line are in the first process's environment. */
	const char *seconds = getenv("CASE_SECONDS");
	int status;
	pid_t pid;

	*why = '\0';
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(seconds ? atoi(seconds) : SECONDS);
		_exit(test->run() ? 1 : 0);
	}
	if (waitpid(pid, &status, __WALL) != pid)
		FAIL("waitpid: %s", strerror(errno));
	if (WIFSIGNALED(status))
		FAIL("ended by signal %d%s", WTERMSIG(status),
		     WTERMSIG(status) == SIGALRM ? ", a time-out" : "");
	return status ? -1 : 0;
}

/* Processes that a test has left behind would disturb the next test. */
static void clean_up(void)
{
	const struct timespec soon = { 0, 50 * 1000 * 1000 };

	if (getpid() != 1)
		return;
	kill(-1, SIGKILL);
	while (waitpid(-1, NULL, __WALL) > 0)
		;
	/* What the kernel frees later: memory, and the hardware for perf */
	nanosleep(&soon, NULL);
}

int before_first_request, fresh_machine;

/*
 * Determines the generation by request 40: it is CONFIG, which needs an address, MAX_BUFFER_SIZE,
 * which returns 4000, or INIT, which returns the features. December's API has no request 46.
 * `error` gets the reason if none of them works. Before that, request 41 of 2007 allocates a buffer
 * for one record. The new one fails without an address.
 */
static enum api kernel_api(int *error)
{
	pid_t pid = start(work_none);
	int numbered = 0;
	long value;

	fresh_machine = getpid() == 1;
	before_first_request = pid > 0 && bts(41, pid, NULL, 1) ? errno : 0;
	value = pid > 0 ? bts(40, pid, NULL, 0) : -1;
	*error = errno;
	if (value == 4000)
		numbered = bts(46, pid, NULL, 0) == -1 && errno == EIO;
	if (pid > 0)
		stop(pid);
	if (value < 0)
		return *error == EFAULT ? NEW : NONE;
	*error = EOPNOTSUPP;
	if (value == 4000)
		return numbered ? DECEMBER : MAN;
	return value ? NOVEMBER : NONE;
}

static int list(char **patterns)
{
	char name[128];

	for (unsigned int i = 0; i < GROUPS; i++)
		for (const struct test *test = groups[i].tests; test->name; test++) {
			snprintf(name, sizeof(name), "%s.%s", groups[i].name, test->name);
			if (is_wanted(name, patterns))
				printf("%s\t%s\t%s\n", name, api_names[groups[i].api],
				       groups[i].machine);
		}
	return 0;
}

static int run(char **patterns)
{
	unsigned int number = 0, failures = 0;
	char name[128];
	int error, failed;
	enum api api;

	say(REPORT, "KTAP version 1");
	api = kernel_api(&error);
	say(REPORT, "# api %s", api_names[api]);
	/* The first pass counts the tests. */
	for (int pass = 0; pass < 2; pass++) {
		if (pass)
			say(REPORT, "1..%u", number);
		number = 0;
		for (unsigned int i = 0; i < GROUPS; i++) {
			/*
			 * Tests for a machine without the API check for themselves whether they can
			 * run.
			 */
			if (strcmp(groups[i].machine, ANY) ? !*patterns : groups[i].api != api)
				continue;
			for (const struct test *test = groups[i].tests; test->name; test++) {
				snprintf(name, sizeof(name), "%s.%s", groups[i].name, test->name);
				if (!is_wanted(name, patterns))
					continue;
				number++;
				if (!pass)
					continue;
				say(REPORT, "# start %s", name);
				failed = run_test(test);
				clean_up();
				if (failed) {
					say(REPORT, "# %s", why);
					say(REPORT, "not ok %u %s", number, name);
					failures++;
				} else if (*why) {
					say(REPORT, "ok %u %s # SKIP %s", number, name, why);
				} else {
					say(REPORT, "ok %u %s", number, name);
				}
			}
		}
		if (!number && api == NONE) {
			say(REPORT, "1..0 # SKIP no branch trace store: %s", strerror(error));
			return 2;
		}
	}
	return failures ? 1 : 0;
}

/* Returns the lines of a file, if there is one. */
static char **lines_of(const char *path)
{
	static char *lines[1024];
	FILE *file = fopen(path, "r");
	size_t size = 0, n = 0;

	while (file && n + 1 < sizeof(lines) / sizeof(*lines) &&
	       getline(&lines[n], &size, file) > 0) {
		lines[n][strcspn(lines[n], "\n")] = '\0';
		n++;
		size = 0;
	}
	if (file)
		fclose(file);
	free(lines[n]);
	lines[n] = NULL;
	return lines;
}

int main(int argc, char **argv)
{
	char **patterns;

	why = mmap(NULL, WHY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (why == MAP_FAILED)
		return 1;
	/* Programs that some tests execute. */
	if (argc > 1 && !strcmp(argv[1], "loop_b")) {
		loop_b(500);
		return 0;
	}
	if (argc > 2 && !strcmp(argv[1], "drain"))
		return drain_after_exec(atoi(argv[2]));
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && !strcmp(argv[1], "--list"))
		return list(argv + 2);
	if (getpid() != 1)
		return run(argv + 1);

	mkdir("/proc", 0555);
	mkdir("/sys", 0555);
	if (mount("proc", "/proc", "proc", 0, NULL) || mount("sysfs", "/sys", "sysfs", 0, NULL))
		perror("mount");
	/*
	 * On a slow machine perf would warn about long interrupts, and stop its events for a while.
	 * It prints the warning with interrupts off, which takes more branches than the trace of a
	 * kernel has room for.
	 */
	if (set_kernel("perf_cpu_time_max_percent", "0"))
		fprintf(stderr, "%s\n", why);
	kmsg = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
	patterns = lines_of("/cases");
	/* The first line then names the directory of these tests. */
	if (*patterns && !strncmp(*patterns, KSELFTEST, strlen(KSELFTEST)))
		return end_machine(run_kselftests(*patterns + strlen(KSELFTEST), patterns + 1));
	return end_machine(run(*patterns ? patterns : argv + 1));
}
