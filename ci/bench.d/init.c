// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * PID 1 of a benchmark's guest: runs one program of the host without tracing it, and ends the
 * machine.
 *
 *	init plain|recorded PROGRAM [ARG]...
 *
 * The program gets the root that the agent of `vbts trace` gives it: the host's over 9P, below a
 * layer in memory. On a machine without 9P it is a program of the initramfs. With "recorded", its
 * branches are stored in a circular buffer that is not read, which shows what recording alone
 * costs. The program's output stays in the guest. Its length and CRC-32 are computed and printed
 * after the exit status: the host measures the time between the lines "bench: begin" and
 * "bench: status ..." of the console, and the time of a native run does not contain them either.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* From guest-kernel/patches, arch/x86/include/uapi/asm/ptrace-bts.h */
#define BTS_CONFIG	40
#define BTS_STATUS	41
#define BTS_O_TRACE	1

#define RECORDS_SIZE	(1 << 16)

static _Noreturn void end(void)
{
	fflush(stdout);
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

static _Noreturn void broken(const char *what)
{
	printf("bench: %s: %s\n", what, strerror(errno));
	end();
}

static int mount_at(const char *source, const char *target, const char *type, unsigned long flags,
		    const char *options)
{
	mkdir(target, 0755);
	return mount(source, target, type, flags, options);
}

/* Mounts the same file systems as guest-kernel/agent/src/mounts.rs. */
static void enter_root(void)
{
	if (mount_at("root", "/lower", "9p", MS_RDONLY,
		     "trans=virtio,version=9p2000.L,cache=loose,access=any,msize=512000"))
		return;
	if (mount_at("tmpfs", "/layer", "tmpfs", 0, "mode=0755") || mkdir("/layer/upper", 0755) ||
	    mkdir("/layer/work", 0755) ||
	    mount_at("root", "/root", "overlay", 0,
		     "lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work,volatile") ||
	    mount_at("proc", "/root/proc", "proc", 0, NULL) ||
	    mount_at("sysfs", "/root/sys", "sysfs", 0, NULL) ||
	    mount_at("devtmpfs", "/root/dev", "devtmpfs", 0, NULL) || chdir("/root") || chroot("."))
		broken("the host's root");
}

static void record(pid_t pid)
{
	struct { uint64_t size, flags; } config = { RECORDS_SIZE, BTS_O_TRACE }, status = { 0, 0 };

	if (ptrace(BTS_CONFIG, pid, &config, 0) < 0)
		broken("PTRACE_BTS_CONFIG");
	if (ptrace(BTS_STATUS, pid, &status, 0) < 0 || !(status.flags & BTS_O_TRACE))
		broken("PTRACE_BTS_STATUS");
}

static uint32_t crc32(uint32_t crc, const unsigned char *bytes, ssize_t length)
{
	static uint32_t table[256];

	for (uint32_t i = 0; !table[255] && i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320 : 0);
	}
	for (crc = ~crc; length-- > 0; bytes++)
		crc = crc >> 8 ^ table[(crc ^ *bytes) & 255];
	return ~crc;
}

int main(int argc, char **argv)
{
	static unsigned char piece[1 << 16];
	int recorded = argc > 1 && !strcmp(argv[1], "recorded"), started = 0, output, status;
	unsigned long length = 0;
	uint32_t crc = 0;
	ssize_t got;
	pid_t child;

	if (argc < 3) {
		errno = EINVAL;
		broken("no program named");
	}
	enter_root();
	/* With a pipe, this process could wait for the output of a stopped program. */
	output = memfd_create("output", MFD_CLOEXEC);
	child = output < 0 ? -1 : fork();
	if (child < 0)
		broken("fork");
	if (!child) {
		puts("bench: begin");
		fflush(stdout);
		dup2(output, 1);
		setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
		if (recorded)
			ptrace(PTRACE_TRACEME, 0, 0, 0);
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		_exit(127);
	}
	while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
		/* The first stop is the start of a traced program. It must not get this SIGTRAP. */
		if (!started)
			record(child);
		ptrace(PTRACE_CONT, child, 0, started ? WSTOPSIG(status) : 0);
		started = 1;
	}
	printf("bench: status %d\n", status);
	fflush(stdout);
	while ((got = pread(output, piece, sizeof(piece), length)) > 0) {
		crc = crc32(crc, piece, got);
		length += got;
	}
	printf("bench: output of %lu bytes, crc32 %08x\n", length, crc);
	end();
}
