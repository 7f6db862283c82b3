// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Requests, tracees, and code with known branches.
 */
#include <dirent.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <sys/io.h>
#include <sys/reboot.h>
#include <termios.h>
#include "bts.h"

/* Exit port of the vbts machine: a byte written to it ends the machine with that status. */
#define EXIT_PORT	0xf4

char *why;

#ifdef __i386__
#define LOOP_COUNT "mov 4(%esp), %ecx\n"
#define LOOP_COUNT_DOWN "dec %ecx\n"
#else
#define LOOP_COUNT
#define LOOP_COUNT_DOWN "dec %rdi\n"
#endif

#define LOOP(name)								\
	asm(".text\n.globl " #name "\n" #name ":\n"				\
	    LOOP_COUNT								\
	    ".globl " #name "_head\n" #name "_head:\n"				\
	    LOOP_COUNT_DOWN							\
	    ".globl " #name "_branch\n" #name "_branch:\n"			\
	    "jnz " #name "_head\n"						\
	    "ret\n")
LOOP(loop_a);
LOOP(loop_b);

long bts(int request, pid_t pid, void *addr, unsigned long data)
{
	errno = 0;
	return syscall(SYS_ptrace, request, pid, addr, data);
}

/* Calls ptrace as a 32-bit program does. Static data of this program is below 4 GiB. */
int bts32(int request, pid_t pid, void *addr, unsigned int data)
{
	int ret;

	asm volatile("int $0x80"
		     : "=a"(ret)
		     : "a"(26), "b"(request), "c"(pid), "d"((unsigned int)(uintptr_t)addr),
		       "S"(data)
#ifdef __i386__
		     : "memory");
#else
		     : "memory", "r8", "r9", "r10", "r11");
#endif
	return ret;
}

long bts_x32(int request, pid_t pid, void *addr, unsigned int data)
{
	/* __X32_SYSCALL_BIT and the number in arch/x86/entry/syscalls/syscall_64.tbl */
	errno = 0;
	return syscall(0x40000000 + 521, request, pid, addr, (unsigned long)data);
}

long config(pid_t pid, unsigned long size, unsigned long flags)
{
	return config_virtual(pid, size, flags, 0);
}

long config_virtual(pid_t pid, unsigned long size, unsigned long flags, unsigned long virtual_size)
{
	struct config cfg = { size, flags, virtual_size };

	return bts(CONFIG, pid, &cfg, 0);
}

unsigned long flags_of(pid_t pid)
{
	struct config cfg;

	return bts(STATUS, pid, &cfg, 0) > 0 ? cfg.flags : ~0ul;
}

pid_t start(void (*work)(void))
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		work();
		_exit(0);
	}
	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		return -1;
	ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL);
	return pid;
}

void stop(pid_t pid)
{
	kill(pid, SIGKILL);
	/*
	 * SIGKILL does not wake up a task in its exit stop. Other tasks enter their exit stop now.
	 */
	do
		ptrace(PTRACE_CONT, pid, 0, 0);
	while (waitpid(pid, NULL, __WALL) == pid);
}

int next_stop(pid_t pid, int signal)
{
	int status;

	ptrace(PTRACE_CONT, pid, 0, signal);
	return waitpid(pid, &status, __WALL) == pid ? status : -1;
}

unsigned long count(const struct record *r, long n, const char *from, const char *to)
{
	unsigned long found = 0;

	for (; n > 0; n--, r++)
		found += r->qualifier == BRANCH && r->a == (uintptr_t)from && r->b == (uintptr_t)to;
	return found;
}

void work_none(void)
{
}

void work_a(void)
{
	loop_a(1000);
}

unsigned int maze_steps = 8000;

void work_maze(void)
{
	maze(maze_steps);
}

/* Not inlined, and in a section of its own, for which the linker defines the bounds. */
__attribute__((noinline, section("maze_text"))) void maze(unsigned int steps)
{
	unsigned int x = 1, y = 0;

	while (steps--) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		/* The asm prevents the compiler from removing the branches. */
		if (x & 1)
			asm volatile("" : "+r"(y));
		else
			asm volatile("nop" : "+r"(y));
		if (x & 0x10)
			asm volatile("nop; nop" : "+r"(y));
		if (x & 0x700)
			asm volatile("nop; nop; nop" : "+r"(y));
	}
}

extern const char __start_maze_text[], __stop_maze_text[];

static int in_maze(uint64_t ip)
{
	return ip >= (uintptr_t)__start_maze_text && ip < (uintptr_t)__stop_maze_text;
}

int path_add(struct path *path, const struct record *r, long n)
{
	for (; n > 0; n--, r++) {
		if (r->qualifier != BRANCH || !in_maze(r->a) || !in_maze(r->b))
			continue;
		if (path->n == path->room) {
			path->room += 1 << 15;
			path->r = realloc(path->r, RECORDS(path->room));
			CHECK(path->r);
		}
		path->r[path->n++] = *r;
	}
	return 0;
}

int path_reference(struct path *path)
{
	/* A step takes at most six branches. */
	const unsigned long room = maze_steps * 6ul + 4096;
	struct record *r = malloc(RECORDS(room));
	pid_t pid = start(work_maze);
	long n;

	CHECK(r && pid > 0);
	*path = (struct path){ 0 };
	CHECK(config(pid, RECORDS(room), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > (long)maze_steps && n < (long)room);
	TRY(path_add(path, r, n));
	CHECK(path->n > (long)maze_steps);
	stop(pid);
	free(r);
	return 0;
}

int path_compare(const struct path *path, const struct path *reference)
{
	for (long i = 0; i < path->n && i < reference->n; i++)
		if (memcmp(&path->r[i], &reference->r[i], sizeof(*path->r)))
			FAIL("branch %ld of %ld is %#" PRIx64 " -> %#" PRIx64
			     " instead of %#" PRIx64 " -> %#" PRIx64, i, reference->n,
			     path->r[i].a, path->r[i].b, reference->r[i].a,
			     reference->r[i].b);
	if (path->n != reference->n)
		FAIL("%ld branches instead of %ld", path->n, reference->n);
	return 0;
}

int check_sched(const struct record *r, long n, const char *name, unsigned long at_least)
{
	uint64_t expected = ARRIVES, jiffies = 0, events = 0;

	for (; n > 0; n--, r++) {
		if (r->qualifier == BRANCH) {
			if (expected != DEPARTS)
				FAIL("task %s: a branch while it has no processor", name);
			continue;
		}
		if (r->qualifier != expected)
			FAIL("task %s: qualifier %" PRIu64 " instead of %" PRIu64, name,
			     r->qualifier, expected);
		if (r->a < jiffies)
			FAIL("task %s: jiffies go back from %" PRIu64 " to %" PRIu64, name,
			     jiffies, r->a);
		jiffies = r->a;
		expected = expected == ARRIVES ? DEPARTS : ARRIVES;
		events++;
	}
	if (events < at_least)
		FAIL("task %s: only %" PRIu64 " scheduling events", name, events);
	return 0;
}

int attach(pid_t pid)
{
	int status;

	CHECK(!ptrace(PTRACE_SEIZE, pid, 0, 0));
	CHECK(!ptrace(PTRACE_INTERRUPT, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
	return 0;
}

int drop(int capability)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	CHECK(!syscall(SYS_capget, &header, data));
	data[capability / 32].effective &= ~(1u << capability % 32);
	CHECK(!syscall(SYS_capset, &header, data));
	return 0;
}

int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	return 0;
}

int set_kernel(const char *name, const char *value)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/sys/kernel/%s", name);
	return put(path, value);
}

int find_function(const char *name, uint64_t *start, uint64_t *end)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	char line[256], symbol[128];
	unsigned long at;

	*start = *end = 0;
	while (file && !*end && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx %*c %127s", &at, symbol) != 2)
			continue;
		if (!strcmp(symbol, name))
			*start = at;
		else if (*start && at > *start)
			*end = at;
	}
	if (file)
		fclose(file);
	return *end != 0;
}

long proc_number(const char *path, const char *name)
{
	FILE *file = fopen(path, "r");
	char line[4096];
	long number = -1;

	while (number < 0 && file && fgets(line, sizeof(line), file)) {
		const char *end = line + strlen(name);

		if (strncmp(line, name, strlen(name)))
			continue;
		end += strspn(end, " \t");
		if (*end == ':')
			number = strtol(end + 1, NULL, 10);
	}
	if (file)
		fclose(file);
	return number;
}

long locked(void)
{
	return proc_number("/proc/self/status", "VmLck");
}

int kill_while_recording(void (*work)(void))
{
	static const unsigned long flags[] = { 0, O_SIGNAL, O_VIRTUAL,
					       O_VIRTUAL | O_KERNEL | O_SCHED };
	int status;

	for (int i = 0; i < 40; i++) {
		pid_t pid = start(work);

		CHECK(pid > 0);
		CHECK(config_virtual(pid, RECORDS(KERNEL_MIN), O_TRACE | flags[i % 4], 1 << 18) ==
		      0);
		CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, 0));
		CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
		usleep(10 * i);
		CHECK(!kill(pid, SIGKILL));
		do
			CHECK(waitpid(pid, &status, __WALL) == pid);
		while (WIFSTOPPED(status));
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		CHECK(locked() == 0);
	}
	return 0;
}

enum printing { NO_PRINTER, IDLE, PRINTING };

/* What the process with this number does, if it is a thread that prints kernel messages. */
static enum printing printing(const char *pid)
{
	char path[300], line[128] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	file = fopen(path, "r");
	if (!file)
		return NO_PRINTER;
	if (!fgets(line, sizeof(line), file))
		line[0] = 0;
	fclose(file);
	if (!strstr(line, " (pr/"))
		return NO_PRINTER;
	return strstr(line, ") S ") || strstr(line, ") I ") ? IDLE : PRINTING;
}

/*
 * Linux 7 has a thread for each console, pr/ttyS0 for example, that prints kernel messages after
 * the write to /dev/kmsg has returned. Nothing reports that a message has been printed, but such a
 * thread sleeps only when it has printed all of them.
 */
static void wait_for_printing(void)
{
	int idle = 0, tries;

	for (tries = 0; idle < 2 && tries < 1000; tries++) {
		DIR *proc = opendir("/proc");
		struct dirent *entry;
		enum printing most = NO_PRINTER;

		while (proc && (entry = readdir(proc))) {
			enum printing one = NO_PRINTER;

			if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
				one = printing(entry->d_name);
			if (one > most)
				most = one;
		}
		if (proc)
			closedir(proc);
		if (most == NO_PRINTER)
			return;
		idle = most == IDLE ? idle + 1 : 0;
		/* The thread is woken by the next tick at the latest. */
		usleep(10000);
	}
}

int end_machine(int status)
{
	fflush(stdout);
	tcdrain(STDOUT_FILENO);
	wait_for_printing();
	if (!ioperm(EXIT_PORT, 1, 1)) {
		outb(status, EXIT_PORT);
		/* The machine has ended. */
		pause();
	}
	/* The kernel has no ioperm(), or this is another machine. */
	reboot(RB_AUTOBOOT);
	return 1;
}

int is_copied(void)
{
	return is_isolated() || !has_feature(" dtes64");
}

long threshold(long records)
{
	long room = records / 4;

	room = room < 16 ? 16 : room > 128 ? 128 : room;
	/* The processor also records the last branches of the kernel. */
	return records - room - (is_unfiltered() ? 32 : 0);
}

int is_unfiltered(void)
{
	return !has_feature(" ds_cpl");
}

int is_instrumented(void)
{
	uint64_t start, end;

	return find_function("kasan_report", &start, &end) ||
	       find_function("__tsan_read8", &start, &end);
}

int perf_open(struct perf_event_attr *attr, pid_t pid)
{
	errno = 0;
	attr->size = sizeof(*attr);
	return (int)syscall(SYS_perf_event_open, attr, pid, -1, -1, 0);
}

int is_netburst(void)
{
	return proc_number("/proc/cpuinfo", "cpu family") == 15;
}

int has_feature(const char *flag)
{
	FILE *file = fopen("/proc/cpuinfo", "r");
	char line[4096];
	int found = 0;

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, "flags", 5) && strstr(line, flag))
			found = 1;
	if (file)
		fclose(file);
	return found;
}

int is_isolated(void)
{
	return has_feature(" pti");
}
