// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * PID 1 of a guest that runs one program of tools/testing/selftests and ends with its exit status.
 *
 *	gcc -O2 -Wall -Wextra -static -o init selftest_init.c
 *
 * Its argument is the name of the program, a file beside this one in the initramfs. The program has
 * the host's root, shared as "root", with its C library. The last line says how it ended, and the
 * machine's exit port gets the status that a shell would report.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exit port of the vbts machine: a byte written to it ends the machine with that status. */
#define EXIT_PORT	0xf4

/* The shell's status for a program that cannot be run. */
#define NOT_RUN		126

extern char **environ;

static _Noreturn void end(const char *how, int number, int status)
{
	printf("selftest: %s %d\n", how, number);
	fflush(stdout);
	/* The program must not inherit access to the port. */
	if (ioperm(EXIT_PORT, 1, 1)) {
		perror("ioperm");
		exit(1);	/* The kernel panics. */
	}
	outb(status, EXIT_PORT);
	for (;;)
		pause();
}

static _Noreturn void broken(const char *what)
{
	printf("selftest: %s: %s\n", what, strerror(errno));
	end("not run", errno, NOT_RUN);
}

static void mount_at(const char *source, const char *target, const char *type, unsigned long flags,
		     const char *options)
{
	if ((mkdir(target, 0755) && errno != EEXIST) || mount(source, target, type, flags, options))
		broken(target);
}

int main(int argc, char **argv)
{
	int program, status;
	pid_t child;

	if (argc < 2) {
		errno = EINVAL;
		broken("no program named");
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	program = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (program < 0)
		broken(argv[1]);
	mount_at("root", "/root", "9p", MS_RDONLY,
		 "trans=virtio,version=9p2000.L,cache=loose,access=any,msize=512000");
	mount_at("proc", "/root/proc", "proc", 0, NULL);
	mount_at("dev", "/root/dev", "devtmpfs", 0, NULL);
	mount_at("tmp", "/root/tmp", "tmpfs", 0, NULL);
	if (chdir("/root") || chroot("."))
		broken("chroot");

	child = fork();
	if (child < 0)
		broken("fork");
	if (!child) {
		argv[2] = NULL;
		fexecve(program, argv + 1, environ);
		broken(argv[1]);
	}
	/* Orphans of the program also become children of this process. */
	for (;;) {
		pid_t pid = wait(&status);

		if (pid == child)
			break;
		if (pid < 0 && errno != EINTR)
			broken("wait");
	}
	if (WIFSIGNALED(status))
		end("killed by signal", WTERMSIG(status), 128 + WTERMSIG(status));
	end("exited with", WEXITSTATUS(status), WEXITSTATUS(status));
}
