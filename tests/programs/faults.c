/*
 * Exceptions: an instruction that faults is not a user branch. The signal handler resumes the
 * program at another address.
 */
#include "signals.h"

static volatile u64 faults, resume_at;

static void skip(int signal, void *info, struct ucontext *context)
{
	(void)info;
	faults = faults * 16 + signal;
	context->gregs[REG_RIP] = resume_at;
}

/* Runs a statement that faults. The program continues after it, with the stack pointer restored. */
#define FAULT(statement, ...)                                                 \
	__asm__ volatile("mov %%rsp, %%r12\n"                                 \
			 "lea 1f(%%rip), %%rax\n"                             \
			 "mov %%rax, %0\n" statement "\n"                     \
			 "1: mov %%r12, %%rsp"                                \
			 : "=m"(resume_at)                                    \
			 : __VA_ARGS__                                        \
			 : "rax", "rcx", "rdx", "r12", "memory", "cc", "xmm0", "xmm1")

static const u64 constant[4] __attribute__((aligned(16))) = { 1, 2, 3, 4 };

int run(void)
{
	u32 mxcsr = 0x1d80;	/* zero-divide unmasked */

	on_signal(SIGILL, skip, 0, 0);
	on_signal(SIGBUS, skip, 0, 0);
	on_signal(SIGFPE, skip, 0, 0);
	on_signal(SIGSEGV, skip, 0, 0);

	FAULT("ud2");
	FAULT("xor %%eax, %%eax\n mov (%%rax), %%ecx");
	FAULT("xor %%eax, %%eax\n call *%%rax");
	FAULT("mov $0x40, %%eax\n jmp *%%rax");
	FAULT("mov $0x8000000000000000, %%rax\n mov (%%rax), %%ecx");
	FAULT("mov $0x8000000000000000, %%rax\n jmp *%%rax");
	FAULT("xor %%ecx, %%ecx\n mov $1, %%eax\n cltd\n idiv %%ecx");
	FAULT("mov $0x80000000, %%eax\n cltd\n mov $-1, %%ecx\n idiv %%ecx");
	FAULT("movb $1, %1", "m"(constant));
	FAULT("movaps 8+%1, %%xmm0", "m"(constant));
	FAULT("ldmxcsr %1\n mov $1, %%eax\n cvtsi2sd %%eax, %%xmm0\n xorps %%xmm1, %%xmm1\n "
	      "divsd %%xmm1, %%xmm0",
	      "m"(mxcsr));
	FAULT("hlt");
	FAULT("cli");
	FAULT("int $0x20");
	FAULT("mov %%cr0, %%rax");
	FAULT("mov $0x1000, %%eax\n push %%rax\n ret");
	FAULT("mov $0x8000000000000000, %%rax\n push %%rax\n ret");
	print_number("faults ", faults);
	return 0;
}
