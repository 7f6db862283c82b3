/*
 * Work with many branches, which depends on SEED and is done ROUNDS times. With a table of
 * instructions on standard input, the program single-steps the work itself, in a handler of
 * SIGTRAP, and writes the branches that it took to standard output. Without input it just works.
 */
#include "signals.h"

enum { SYS_read = 0, SIGTRAP = 5 };

/* What the table says about the instruction at an address, besides its length. */
enum { LENGTH = 15, BRANCH = 16, ALWAYS_TAKEN = 32 };

enum { TABLE = 1 << 16, MAX_RECORDS = 1 << 21, TF = 0x100, WORDS = 48 };

/* Statuses of an unknown instruction, and of too many records. */
enum { UNKNOWN = 3, FULL = 4 };

static struct {
	u64 base;
	u8 instructions[TABLE];
} table;

static struct record {
	u32 from, to;
} records[MAX_RECORDS];

static u64 count, previous, recording;
static u64 state = SEED * 0x9E3779B97F4A7C15ul + 1;
static u32 words[WORDS];
static char text[WORDS * 4];

static NOINLINE u64 next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static NOINLINE void sort(u32 *from, u32 *to)
{
	u32 *low = from, *high = to;
	u32 pivot;

	if (to - from < 1)
		return;
	pivot = from[(to - from) / 2];
	while (low <= high) {
		while (*low < pivot)
			low++;
		while (*high > pivot)
			high--;
		if (low <= high) {
			u32 word = *low;

			*low++ = *high;
			*high-- = word;
		}
	}
	sort(from, high);
	sort(low, to);
}

static NOINLINE u32 hash(const char *bytes, u64 length)
{
	u32 sum = 0;

	for (u64 i = 0; i < length; i++) {
		sum += (u8)bytes[i];
		for (int bit = 0; bit < 4; bit++)
			sum = sum & 1 ? sum >> 1 ^ 0xEDB88320 : sum >> 1;
	}
	return sum;
}

static NOINLINE u32 strings(void)
{
	u32 found = 0;
	u64 zeros = 8;
	char *to = text + sizeof text - 8;

	for (u64 i = 0; i < sizeof text; i++)
		text[i] = "abca\0bcb"[words[i / 4] >> i % 4 * 8 & 7];
	for (u64 i = 0; i + 4 < sizeof text; i++)
		for (u64 j = 0; text[i + j] && text[i + j] == text[j]; j++)
			found++;
	/* A single-step trap follows each iteration, and there is no branch. */
	__asm__ volatile("rep stosb" : "+D"(to), "+c"(zeros) : "a"(0) : "memory");
	return found;
}

static NOINLINE u64 add(u64 a, u64 b) { return a + b; }
static NOINLINE u64 mix(u64 a, u64 b) { return a ^ b << (a & 7); }
static NOINLINE u64 deeper(u64 a, u64 b) { return b & 7 ? deeper(a * 3, b - 1) + 1 : a; }

/* Direct, indirect and conditional branches in an order that the seed determines. */
static NOINLINE u64 decide(u64 choices)
{
	static u64 (*const functions[])(u64, u64) = { add, mix, deeper, add };
	u64 value = choices;

	for (; choices; choices >>= 3) {
		switch (choices & 7) {
		case 0: value = add(value, 5); break;
		case 1: value = mix(value, 3); break;
		case 2: value = deeper(value, choices >> 3); break;
		case 3: value = functions[value & 3](value, choices); break;
		case 4: if (value & 1) value += 7; break;
		case 5: if (value & 2) value = add(value, value); else value--; break;
		case 6: for (u64 i = value & 3; i; i--) value = mix(value, i); break;
		default: {
			u64 times = (value & 3) + 1;

			__asm__ volatile("1: inc %0\n\tloop 1b"
					 : "+r"(value), "+c"(times) : : "cc");
		}
		}
	}
	return value;
}

__attribute__((noinline, noclone, used)) void work(void)
{
	u64 sum = 0;

	for (u64 round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < WORDS; i++)
			words[i] = next();
		for (int i = 0; i < 8; i++)
			sum += decide(next());
		sum += strings();
		sort(words, words + WORDS - 1);
		sum += hash((char *)words, 64);
	}
	words[0] = sum;
}

__attribute__((noinline, noclone, used)) void finish(void)
{
	__asm__ volatile("");
}

/* Every instruction of the work is followed by this. */
static void stepped(int signal, void *info, struct ucontext *context)
{
	u64 now = context->gregs[REG_RIP], from = previous, at = from - table.base;
	u8 instruction;

	(void)signal, (void)info;
	previous = now;
	if (!recording) {
		recording = now == (u64)work;
		return;
	}
	instruction = at < TABLE ? table.instructions[at] : 0;
	if (!instruction)
		syscall2(SYS_exit_group, UNKNOWN, 0);
	if (!(instruction & BRANCH))
		return;
	if (!(instruction & ALWAYS_TAKEN) && now == from + (instruction & LENGTH))
		return;
	if (count == MAX_RECORDS)
		syscall2(SYS_exit_group, FULL, 0);
	records[count++] = (struct record){ from, now };
	if (now == (u64)finish)
		context->gregs[REG_EFL] &= ~(u64)TF;
}

/* Reads all of standard input. */
static NOINLINE u64 read_table(void)
{
	u64 size = 0;
	long got;

	do {
		got = syscall3(SYS_read, 0, (char *)&table + size, sizeof table - size);
		size += got > 0 ? got : 0;
	} while (got > 0);
	return size;
}

int run(void)
{
	u64 written = 0;

	if (read_table()) {
		on_signal(SIGTRAP, stepped, 0, 0);
		__asm__ volatile("pushf\n\torl %0, (%%rsp)\n\tpopf" : : "i"(TF) : "cc", "memory");
	}
	work();
	finish();
	while (written < count * sizeof(struct record)) {
		long put = syscall3(SYS_write, 1, (char *)records + written,
				    count * sizeof(struct record) - written);

		if (put <= 0)
			return 1;
		written += put;
	}
	return 0;
}
