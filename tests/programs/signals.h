/* Signal handlers without a C library. */
#pragma once

#include "sys.h"

enum { SIGILL = 4, SIGBUS = 7, SIGFPE = 8, SIGUSR1 = 10, SIGSEGV = 11, SIGUSR2 = 12 };

enum { SA_SIGINFO = 4, SA_RESTORER = 0x04000000, SA_ONSTACK = 0x08000000, SA_NODEFER = 0x40000000 };

/* Indexes of registers in struct sigcontext. */
enum { REG_R8 = 0, REG_RDI = 8, REG_RAX = 13, REG_RSP = 15, REG_RIP = 16, REG_EFL = 17 };

struct ucontext {
	u64 flags;
	struct ucontext *link;
	u64 stack[3];
	u64 gregs[23];
};

struct sigaction {
	void (*handler)(int signal, void *info, struct ucontext *context);
	u64 flags;
	void (*restorer)(void);
	u64 mask;
};

void restorer(void);
__asm__(".globl restorer\n"
	".type restorer, @function\n"
	"restorer: mov $15, %eax\n" /* SYS_rt_sigreturn */
	"syscall\n"
	".size restorer, . - restorer\n");

static NOINLINE void on_signal(int signal, void (*handler)(int, void *, struct ucontext *), 
			       u64 flags, u64 mask)
{
	struct sigaction action = { handler, flags | SA_SIGINFO | SA_RESTORER, restorer, mask };

	syscall4(SYS_rt_sigaction, signal, &action, 0, 8);
}
