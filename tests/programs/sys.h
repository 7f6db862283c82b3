/* System calls and an entry point for test programs, which have no C library. */
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
/* It has 32 bits in a 32-bit program. */
typedef unsigned long u64;

#define NOINLINE __attribute__((noinline, noclone))

#ifdef __i386__

enum {
	SYS_write = 4, SYS_getpid = 20, SYS_kill = 37, SYS_mprotect = 125,
	SYS_rt_sigreturn = 173, SYS_rt_sigaction = 174, SYS_rt_sigprocmask = 175,
	SYS_sigaltstack = 186, SYS_mmap = 192, SYS_gettid = 224, SYS_exit_group = 252,
	SYS_tgkill = 270,
};

static inline long syscall6(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	const u64 last[] = { f, nr };
	long ret;

	/* There are not enough registers for all operands. */
	__asm__ volatile("push %%ebp\n"
			 "mov (%%eax), %%ebp\n"
			 "mov 4(%%eax), %%eax\n"
			 "int $0x80\n"
			 "pop %%ebp"
			 : "=a"(ret)
			 : "0"(last), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
			 : "memory");
	return ret;
}

#else

enum {
	SYS_write = 1, SYS_mmap = 9, SYS_mprotect = 10, SYS_rt_sigaction = 13,
	SYS_rt_sigprocmask = 14, SYS_rt_sigreturn = 15, SYS_getpid = 39, SYS_kill = 62,
	SYS_sigaltstack = 131, SYS_gettid = 186, SYS_exit_group = 231, SYS_tgkill = 234,
};

static inline long syscall6(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

#endif

#define syscall0(nr) syscall6(nr, 0, 0, 0, 0, 0, 0)
#define syscall2(nr, a, b) syscall6(nr, (u64)(a), (u64)(b), 0, 0, 0, 0)
#define syscall3(nr, a, b, c) syscall6(nr, (u64)(a), (u64)(b), (u64)(c), 0, 0, 0)
#define syscall4(nr, a, b, c, d) syscall6(nr, (u64)(a), (u64)(b), (u64)(c), (u64)(d), 0, 0)

/* The compiler may call these even with -ffreestanding and -fno-builtin. */
void *memset(void *to, int value, u64 n)
{
	u8 *p = to;

	while (n--)
		*p++ = value;
	return to;
}

void *memcpy(void *to, const void *from, u64 n)
{
	u8 *p = to;
	const u8 *q = from;

	while (n--)
		*p++ = *q++;
	return to;
}

static NOINLINE void print(const char *text)
{
	u64 n = 0;

	while (text[n])
		n++;
	syscall3(SYS_write, 1, text, n);
}

static NOINLINE void print_number(const char *name, u64 value)
{
	char text[18];
	int i = 17;

	text[i] = '\n';
	do {
		text[--i] = "0123456789abcdef"[value & 15];
		value >>= 4;
	} while (value && i);
	print(name);
	syscall3(SYS_write, 1, text + i, 18 - i);
}

int run(void);

__attribute__((noreturn, used)) void start(void)
{
	syscall2(SYS_exit_group, run(), 0);
	__builtin_unreachable();
}

#ifdef __i386__
#define ALIGN_STACK "and $-16, %esp\n"
#else
#define ALIGN_STACK "and $-16, %rsp\n"
#endif

__asm__(".globl _start\n"
	".type _start, @function\n"
	"_start: xor %ebp, %ebp\n"
	ALIGN_STACK
	"call start\n"
	".size _start, . - _start\n");
