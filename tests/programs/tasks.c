/*
 * Threads, processes with and without memory of their own, and grandchildren. Tasks wait for each
 * other in system calls only, so that each takes the same branches in every run.
 */
#include "sys.h"

enum {
	SYS_read = 0, SYS_pipe = 22, SYS_fork = 57, SYS_exit = 60, SYS_wait4 = 61, SIGCHLD = 17,
	CLONE_VM = 0x100, CLONE_FS = 0x200, CLONE_FILES = 0x400, CLONE_SIGHAND = 0x800,
	CLONE_VFORK = 0x4000, CLONE_THREAD = 0x10000,
	THREAD = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD,
	WALL = 0x40000000,
};

/* Calls task(argument) in a new task with this stack. Returns the task's ID to its parent. */
long spawn(u64 flags, void *stack_end, void (*task)(u64), u64 argument);

__asm__(".globl spawn\n"
	"spawn: sub $16, %rsi\n"
	"mov %rdx, (%rsi)\n"
	"mov %rcx, 8(%rsi)\n"
	"xor %edx, %edx\n"
	"xor %r10d, %r10d\n"
	"xor %r8d, %r8d\n"
	"mov $56, %eax\n"		/* SYS_clone */
	"syscall\n"
	"test %eax, %eax\n"
	"jnz 1f\n"
	"pop %rax\n"
	"pop %rdi\n"
	"call *%rax\n"
	"ud2\n"
	"1: ret\n");

static u8 stacks[8][16384] __attribute__((aligned(16)));
static int pipes[2];
/* Keeps the compiler from leaving out work. */
static volatile u64 result;

static NOINLINE u64 work(u64 n)
{
	u64 x = n + 1, sum = 0;

	for (u64 i = 0; i < 200 + 50 * n; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		if (x & 1)
			sum += i;
		if ((x & 6) == 6)
			sum ^= x;
	}
	return sum;
}

static void thread(u64 n)
{
	u64 sum = work(n);

	syscall3(SYS_write, pipes[1], &sum, 8);
	syscall2(SYS_exit, n, 0);
	__builtin_unreachable();
}

static void process(u64 n)
{
	syscall2(SYS_exit_group, work(n) & 0x7f, 0);
	__builtin_unreachable();
}

static int status_of(long pid)
{
	int status = -1;

	if (syscall4(SYS_wait4, pid, &status, WALL, 0) != pid)
		return -1;
	return status >> 8 & 0xff;
}

static u64 threads(void)
{
	u64 sums = 0, sum;

	for (u64 n = 0; n < 4; n++)
		spawn(THREAD, stacks[n + 1], thread, n);
	for (u64 n = 0; n < 4; n++) {
		syscall3(SYS_read, pipes[0], &sum, 8);
		sums += sum;
	}
	return sums;
}

int run(void)
{
	long child;

	syscall2(SYS_pipe, pipes, 0);
	print_number("threads ", threads());
	child = syscall0(SYS_fork);
	if (!child) {
		long grandchild = syscall0(SYS_fork);

		if (!grandchild)
			process(7);
		result = work(6);
		threads();
		process(status_of(grandchild));
	}
	result = work(5);
	print_number("fork ", status_of(child));
	child = spawn(CLONE_VM | CLONE_VFORK | SIGCHLD, stacks[6], process, 8);
	print_number("vfork ", status_of(child));
	/* Without a signal at its end, and with the memory of its parent */
	child = spawn(CLONE_VM, stacks[7], process, 9);
	result = work(3);
	print_number("clone ", status_of(child));
	return 3;
}
