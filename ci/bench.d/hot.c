/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The hot integer workload: recursion, sorting, hashing, an indirect switch and byte scanning.
 * One instruction in seven is a taken branch. Freestanding, so that the same code runs natively and
 * in a guest.
 *
 * hot SCALE: prints a checksum; exit status 0.
 */
typedef unsigned int u32;
typedef unsigned long u64;

static u32 state = 12345;
static u32 numbers[4096];
static unsigned char bytes[4096];

static u32 next(void)
{
	state = state * 1664525u + 1013904223u;
	return state >> 8;
}

static u32 __attribute__((noinline)) fib(u32 n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

static void __attribute__((noinline)) sort(u32 *a, long lo, long hi)
{
	while (lo < hi) {
		u32 pivot = a[(lo + hi) / 2];
		long i = lo, j = hi;

		while (i <= j) {
			while (a[i] < pivot)
				i++;
			while (a[j] > pivot)
				j--;
			if (i <= j) {
				u32 t = a[i];

				a[i++] = a[j];
				a[j--] = t;
			}
		}
		if (j - lo < hi - i) {
			sort(a, lo, j);
			lo = i;
		} else {
			sort(a, i, hi);
			hi = j;
		}
	}
}

static u32 __attribute__((noinline)) mix(u32 h)
{
	for (int i = 0; i < 4096; i++) {
		h ^= numbers[i];
		h = (h << 5 | h >> 27) + 0x9e3779b9u;
		h ^= h >> 15;
	}
	return h;
}

static u32 __attribute__((noinline)) dispatch(u32 n)
{
	u32 acc = 0;

	for (u32 i = 0; i < n; i++) {
		switch (next() & 15) {
		case 0: acc += i; break;
		case 1: acc ^= i << 3; break;
		case 2: acc -= 7; break;
		case 3: acc = acc << 1 | acc >> 31; break;
		case 4: acc *= 3; break;
		case 5: acc += acc >> 3; break;
		case 6: acc ^= 0x55aa; break;
		case 7: acc = ~acc; break;
		case 8: acc += 99; break;
		case 9: acc ^= acc >> 7; break;
		case 10: acc -= i; break;
		case 11: acc |= 1; break;
		case 12: acc &= 0x7fffffff; break;
		case 13: acc += i * i; break;
		case 14: acc ^= i; break;
		default: acc++; break;
		}
	}
	return acc;
}

static u32 __attribute__((noinline)) classify(void)
{
	u32 letters = 0, digits = 0, rest = 0;

	for (int i = 0; i < 4096; i++) {
		unsigned char c = bytes[i];

		if (c >= 'a' && c <= 'z')
			letters++;
		else if (c >= '0' && c <= '9')
			digits++;
		else
			rest++;
	}
	return letters << 16 ^ digits << 8 ^ rest;
}

u32 hot(u32 scale)
{
	u32 h = 0;

	for (u32 round = 0; round < scale; round++) {
		for (int i = 0; i < 4096; i++) {
			numbers[i] = next();
			bytes[i] = next();
		}
		h += fib(18);
		sort(numbers, 0, 4095);
		h = mix(h);
		h += dispatch(20000);
		h ^= classify();
	}
	return h;
}

#ifndef BARE
enum { WRITE = 1, EXIT = 60 };

static long call(long nr, long a, long b, long c)
{
	long r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(nr), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return r;
}

static void work(u32 scale)
{
	u32 h = hot(scale);
	char text[9];

	for (int i = 0; i < 8; i++)
		text[i] = "0123456789abcdef"[h >> (28 - 4 * i) & 15];
	text[8] = '\n';
	call(WRITE, 1, (long)text, sizeof(text));
}

void __attribute__((used)) start(long *sp)
{
	char **argv = (char **)(sp + 1);
	u32 scale = 0;

	if (sp[0] > 1)
		for (char *p = argv[1]; *p >= '0' && *p <= '9'; p++)
			scale = scale * 10 + (*p - '0');
	work(scale);
	call(EXIT, 0, 0, 0);
	__builtin_unreachable();
}

__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall start\n");
#endif
