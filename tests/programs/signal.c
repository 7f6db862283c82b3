/*
 * Signals that the program sends to itself: nested handlers, a signal that is blocked and then
 * unblocked, and a handler on an alternate stack.
 */
#include "signals.h"

static volatile u64 seen[3];
static volatile u32 depth;

static void count(int signal, void *info, struct ucontext *context)
{
	(void)info;
	(void)context;
	seen[0] += signal;
	if (signal == SIGUSR1 && ++depth < 4)
		syscall2(SYS_kill, syscall0(SYS_getpid), SIGUSR1);
	if (signal == SIGUSR2)
		seen[1]++;
}

static void on_other_stack(int signal, void *info, struct ucontext *context)
{
	volatile u64 here = (u64)&here;

	(void)signal;
	(void)info;
	seen[2] += here < context->gregs[REG_RSP];
}

static NOINLINE void send(int signal)
{
	syscall3(SYS_tgkill, syscall0(SYS_getpid), syscall0(SYS_gettid), signal);
}

int run(void)
{
	static u8 stack[16384] __attribute__((aligned(16)));
	struct { void *base; int flags; u64 size; } other = { stack, 0, sizeof stack };
	u64 usr2 = 1ul << (SIGUSR2 - 1);

	on_signal(SIGUSR1, count, SA_NODEFER, 0);
	on_signal(SIGUSR2, count, 0, 0);
	for (int i = 0; i < 5; i++) {
		depth = i;
		send(SIGUSR1);
	}
	syscall4(SYS_rt_sigprocmask, 0, &usr2, 0, 8);
	send(SIGUSR2);
	send(SIGUSR2);
	send(SIGUSR1);
	syscall4(SYS_rt_sigprocmask, 1, &usr2, 0, 8);
	syscall2(SYS_sigaltstack, &other, 0);
	on_signal(SIGUSR1, on_other_stack, SA_ONSTACK, 0);
	send(SIGUSR1);
	print_number("signals ", seen[0]);
	print_number("blocked ", seen[1]);
	print_number("other stack ", seen[2]);
	return 7;
}
