// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A faulty suite, to test `vbts test`: its cases crash, hang, warn and reset. One fails on a kernel
 * whose release has "-oops", and one unless its guest runs nothing else. It needs no Branch Trace
 * Store.
 *
 *	gcc -O2 -Wall -Wextra -static -o bad_suite bad_suite.c
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Exit port of the vbts machine: a byte written to it ends the machine with that status. */
#define EXIT_PORT	0xf4

static int kmsg;

static void say(const char *text, const char *more)
{
	char line[256];
	int length = snprintf(line, sizeof(line), "<1>%s%s\n", text, more);

	if (write(kmsg, line, length) != length)
		exit(2);
}

static void pass(void)
{
	/* Messages of the kernel may come before, between and after the lines of the suite. */
	for (int i = 0; i < 100; i++)
		say("something else: ok 1 bad.fail", "");
}

static void fail(void)
{
	say("vbts-test: # bad_suite.c:1: <a> & \"b\"", "");
}

static void crash(void)
{
	/* The kernel panics. */
	exit(1);
}

static void hang(void)
{
	for (;;)
		;
}

static void warn(void)
{
	say("WARNING: CPU: 0 PID: 1 at bad_suite.c:2", "");
}

static void reset(void)
{
	ioperm(EXIT_PORT, 1, 1);
	outb(0, EXIT_PORT);
}

static void release(void)
{
}

static void alone(void)
{
}

/* Returns whether a case of this function fails in a guest that runs `number` cases. */
static int fails(void (*run)(void), unsigned int number)
{
	struct utsname name;

	if (run == alone)
		return number > 1;

	if (run == release)
		return uname(&name) || strstr(name.release, "-oops");
	return run == fail;
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "bad.pass", pass },
	{ "bad.fail", fail },
	{ "bad.crash", crash },
	{ "bad.pass_again", pass },
	{ "bad.hang", hang },
	{ "bad.warn", warn },
	{ "bad.reset", reset },
	{ "good.pass", pass },
	{ "release.known", release },
	{ "flaky.first", pass },
	{ "flaky.alone", alone },
};

#define CASES (sizeof(cases) / sizeof(cases[0]))

int main(int argc, char **argv)
{
	char wanted[4096] = "\n";
	char name[64];
	unsigned int number = 0;
	int file;

	if (argc > 1 && !strcmp(argv[1], "--list")) {
		for (unsigned int i = 0; i < CASES; i++)
			printf("%s\tnew\tany\n", cases[i].name);
		return 0;
	}
	kmsg = open("/dev/kmsg", O_WRONLY);
	file = open("/cases", O_RDONLY);
	if (kmsg < 0 || file < 0 || read(file, wanted + 1, sizeof(wanted) - 2) < 0)
		return 1;
	for (const char *c = wanted + 1; *c; c++)
		number += *c == '\n';
	say("vbts-test: # api new", "");
	for (unsigned int i = 0; i < CASES; i++) {
		snprintf(name, sizeof(name), "\n%s\n", cases[i].name);
		if (!strstr(wanted, name))
			continue;
		say("vbts-test: # start ", cases[i].name);
		cases[i].run();
		say(fails(cases[i].run, number) ? "vbts-test: not ok 1 " : "vbts-test: ok 1 ",
		    cases[i].name);
	}
	reset();
	return 1;
}
