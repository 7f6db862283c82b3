// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The upper halves of the YMM registers in signal frames, in what ptrace reads and writes, and in
 * switches between tasks: what Linux saves with XSAVE. A traced task that sleeps, and one beside
 * an untraced task, have their registers on the software CPU and, in between, on KVM. Prints what
 * it finds.
 */
#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* Offsets in the XSAVE area. */
#define FEATURES 512
#define YMM_HIGH 576

/* All 32 bytes of a register. */
#define PATTERN(n) _mm256_set1_epi32(0x01010101 * (n))

static __m256i loaded;

/* Reads a register after a system call that other tasks may have used for their own values. */
static inline __m256i across(__m256i value, long number, long a, long b)
{
	long result = number;

	asm volatile("vmovdqa %[value], %%ymm9\n\t"
		     "syscall\n\t"
		     "vmovdqa %%ymm9, %[value]"
		     : [value] "+m"(value), "+a"(result)
		     : "D"(a), "S"(b)
		     : "rcx", "r11", "memory", "xmm9");
	return value;
}

/* Reads a register after a loop that takes longer than the software CPU keeps an untraced task. */
static inline __m256i held(__m256i value)
{
	long count = 20000;

	asm volatile("vmovdqa %[value], %%ymm9\n\t"
		     "1: dec %[count]\n\t"
		     "jnz 1b\n\t"
		     "vmovdqa %%ymm9, %[value]"
		     : [value] "+m"(value), [count] "+r"(count)
		     :
		     : "memory", "xmm9");
	return value;
}

static int equal(__m256i a, __m256i b)
{
	return !memcmp(&a, &b, sizeof(a));
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	char *area = (char *)uc->uc_mcontext.fpregs;
	uint64_t features;

	(void)signal;
	(void)info;
	memcpy(&features, area + FEATURES, sizeof(features));
	printf("signal: features %d, register 9 %02x\n", (int)(features & 7),
	       area[YMM_HIGH + 16 * 9] & 0xFF);
	/* The task continues with what the frame has. */
	memset(area + YMM_HIGH + 16 * 9, 0x77, 16);
	asm volatile("vpxor %%ymm9, %%ymm9, %%ymm9" ::: "xmm9");
}

static void signals(void)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	unsigned char bytes[32];

	sigaction(SIGUSR1, &action, NULL);
	/* kill */
	loaded = across(PATTERN(0x11), 62, getpid(), SIGUSR1);
	memcpy(bytes, &loaded, sizeof(bytes));
	printf("after it: %02x %02x\n", bytes[0], bytes[31]);
}

static void traced(void)
{
	/* That of AMX alone has 8 KiB. */
	static char area[16384] __attribute__((aligned(64)));
	struct iovec vector = { area, sizeof(area) };
	uint64_t features;
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		loaded = across(PATTERN(0x22), 62, getpid(), SIGSTOP);
		_exit(((unsigned char *)&loaded)[31]);
	}
	waitpid(pid, &status, 0);
	if (ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &vector))
		perror("PTRACE_GETREGSET");
	memcpy(&features, area + FEATURES, sizeof(features));
	printf("ptrace: AVX state %d, register 9 %02x\n", (int)(features >> 2 & 1),
	       area[YMM_HIGH + 16 * 9] & 0xFF);
	memset(area + YMM_HIGH + 16 * 9, 0x33, 16);
	if (ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &vector))
		perror("PTRACE_SETREGSET");
	/* What no processor accepts. */
	area[FEATURES + 7] = 0x40;
	if (ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &vector))
		printf("a feature that is none: %s\n", strerror(errno));
	ptrace(PTRACE_CONT, pid, NULL, NULL);
	waitpid(pid, &status, 0);
	printf("the task had %02x\n", WEXITSTATUS(status));
}

static void switches(void)
{
	int failed = 0, status, n, i;

	fflush(stdout);
	for (n = 0; n < 4; n++) {
		if (fork())
			continue;
		for (i = 0; i < 500; i++) {
			__m256i value = PATTERN(0x40 + n + (i & 7) * 8);

			/* sched_yield */
			if (!equal(across(value, 24, 0, 0), value))
				_exit(1);
		}
		_exit(0);
	}
	for (n = 0; n < 4; n++) {
		wait(&status);
		failed += status != 0;
	}
	printf("switches: %d of 4 tasks failed\n", failed);
}

/* No other task uses the registers while this one sleeps: Linux leaves them as they are. */
static void sleeps(void)
{
	struct timespec time = { .tv_nsec = 1000000 };
	int failed = 0, i;

	for (i = 0; i < 20; i++) {
		__m256i value = PATTERN(0x50 + i);

		/* nanosleep */
		failed += !equal(across(value, 35, (long)&time, 0), value);
	}
	printf("sleeps: %d of 20 failed\n", failed);
}

static int takes_turns(int first)
{
	int failed = 0, i;

	for (i = 0; i < 10; i++) {
		__m256i value = PATTERN(first + i);

		failed += !equal(held(value), value);
		/* sched_yield */
		failed += !equal(across(value, 24, 0, 0), value);
	}
	return failed;
}

static void turns(void)
{
	int failed, status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(takes_turns(0x60));
	failed = takes_turns(0x70);
	waitpid(pid, &status, 0);
	printf("turns: %d and %d of 20 failed\n", failed, WEXITSTATUS(status));
}

int main(void)
{
	unsigned int a, b, c, d;

	__cpuid(1, a, b, c, d);
	if (~c & (bit_OSXSAVE | bit_AVX)) {
		puts("no AVX");
		return 1;
	}
	signals();
	traced();
	switches();
	sleeps();
	turns();
	return 0;
}
