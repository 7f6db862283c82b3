/*
 * A program of 32 bits: calls by value, through tables and recursive, string instructions, and
 * system calls with INT 80H. Exits with 5.
 */

typedef unsigned int u32;

static u32 call3(u32 number, u32 a, u32 b, u32 c)
{
	u32 result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(a), "c"(b), "d"(c)
			 : "memory");
	return result;
}

#define NR_EXIT 1
#define NR_WRITE 4
#define NR_GETPID 20

static __attribute__((noinline)) u32 add(u32 a, u32 b) { return a + b; }
static __attribute__((noinline)) u32 sub(u32 a, u32 b) { return a - b; }
static __attribute__((noinline)) u32 mul(u32 a, u32 b) { return a * b; }

static u32 (*const volatile operations[])(u32, u32) = { add, sub, mul };

static __attribute__((noinline)) u32 ackermann(u32 m, u32 n)
{
	if (!m)
		return n + 1;
	if (!n)
		return ackermann(m - 1, 1);
	return ackermann(m - 1, ackermann(m, n - 1));
}

static char from[64] = "32-bit code in IA-32e mode\n";
static char to[64];

static u32 copy(void)
{
	u32 n = sizeof(from);
	char *s = from, *d = to;

	__asm__ volatile("rep movsb" : "+S"(s), "+D"(d), "+c"(n) : : "memory");
	n = sizeof(to);
	d = to;
	__asm__ volatile("repne scasb" : "+D"(d), "+c"(n) : "a"('\n') : "memory", "cc");
	return d - to;
}

void __attribute__((noreturn, force_align_arg_pointer)) _start(void)
{
	u32 value = 1;

	for (u32 i = 0; i < 300; i++)
		value = operations[i % 3](value, i);
	for (u32 i = 1; i < 20; i++)
		value ^= value / i;
	value += ackermann(2, 3);
	call3(NR_WRITE, 1, (u32)to, copy());
	call3(NR_GETPID, 0, 0, 0);
	call3(NR_EXIT, value ? 5 : 6, 0, 0);
	__builtin_unreachable();
}
