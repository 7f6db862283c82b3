/*
 * A just-in-time compiler. It makes three functions in memory, calls them, and writes what Linux
 * perf reads: with the argument "map" /tmp/perf-PID.map, with "dump" jit-PID.dump in its directory,
 * with "none" nothing. "gone" is like "dump", but the code is not in memory any more at the end.
 * With "clock" it makes no function, and also runs as a 32-bit program. The second argument is the
 * path of a source file, whose lines the dump has then.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* tools/perf/Documentation/jitdump-specification.txt */
struct header {
	uint32_t magic, version, size, machine, pad, pid;
	uint64_t time, flags;
};

struct load {
	uint32_t kind, size;
	uint64_t time;
	uint32_t pid, tid;
	uint64_t address, code, code_size, number;
};

struct lines {
	uint32_t kind, size;
	uint64_t time, code, count;
};

struct line {
	uint64_t code;
	uint32_t line, discriminator;
};

static FILE *map, *dump;
static const char *source;
static unsigned char *next;
static uint64_t made;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* Writes the lines of the function at `code`: for each its first byte, and its number. */
static void write_lines(uint64_t code, const unsigned char *lines, int count)
{
	struct lines head = {
		.kind = 2,
		.size = sizeof(head) + count * (sizeof(struct line) + 2) + strlen(source) - 1,
		.time = now(),
		.code = code,
		.count = count,
	};

	fwrite(&head, sizeof(head), 1, dump);
	for (int i = 0; i < count; i++) {
		struct line line = { .code = code + lines[2 * i], .line = lines[2 * i + 1] };
		/* The same file as before. */
		const char *path = i ? "\xff" : source;

		fwrite(&line, sizeof(line), 1, dump);
		fwrite(path, strlen(path) + 1, 1, dump);
	}
}

static void *make(const char *name, const void *code, size_t size, const unsigned char *lines,
	int count)
{
	void *at = memcpy(next, code, size);

	/* Functions are not adjacent. */
	next += size + 64;
	if (map)
		fprintf(map, "%lx %zx %s\n", (unsigned long)at, size, name);
	if (dump) {
		struct load load = {
			.size = sizeof(load) + strlen(name) + 1 + size,
			.time = now(),
			.pid = getpid(),
			.tid = getpid(),
			.address = (uintptr_t)at,
			.code = (uintptr_t)at,
			.code_size = size,
			.number = made++,
		};

		if (source)
			write_lines(load.code, lines, count);
		fwrite(&load, sizeof(load), 1, dump);
		fwrite(name, strlen(name) + 1, 1, dump);
		fwrite(code, size, 1, dump);
	}
	return at;
}

static void begin_dump(void)
{
	struct header header = {
		.magic = 0x4A695444, .version = 1, .size = sizeof(header), .machine = 62,
		.pid = getpid(), .time = now(),
	};
	char name[64];

	snprintf(name, sizeof(name), "jit-%d.dump", getpid());
	dump = fopen(name, "w+");
	fwrite(&header, sizeof(header), 1, dump);
	fflush(dump);
	/* perf finds the file because it is mapped as code. */
	mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0);
}

int main(int argc, char **argv)
{
	/* mov eax, edi; 1: dec eax; jne 1b; ret */
	static const unsigned char count_down[] = { 0x89, 0xF8, 0xFF, 0xC8, 0x75, 0xFC, 0xC3 };
	/*
	 * push rbx; mov ebx, 5; 1: mov edi, 10; mov rax, ADDRESS; call rax; dec ebx; jne 1b;
	 * pop rbx; ret
	 */
	unsigned char caller[] = { 0x53, 0xBB, 5, 0, 0, 0, 0xBF, 10, 0, 0, 0, 0x48, 0xB8,
		0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xD0, 0xFF, 0xCB, 0x75, 0xEB, 0x5B, 0xC3 };
	/* Where the code of lines begins, and their numbers. */
	static const unsigned char count_down_lines[] = { 0, 1, 2, 2, 6, 3 };
	static const unsigned char caller_lines[] = { 0, 5, 6, 6, 27, 7 };
	const char *mode = argc > 1 ? argv[1] : "none";
	unsigned char *memory;
	void *callee, *function;
	char name[64];

	memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE | PROT_EXEC,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	next = memory;
	source = argc > 2 ? argv[2] : NULL;
	snprintf(name, sizeof(name), "/tmp/perf-%d.map", getpid());
	if (!strcmp(mode, "map"))
		map = fopen(name, "w");
	if (!strcmp(mode, "dump") || !strcmp(mode, "gone"))
		begin_dump();
	if (strcmp(mode, "clock")) {
		callee = make("jit::count_down", count_down, sizeof(count_down),
			count_down_lines, sizeof(count_down_lines) / 2);
		memcpy(caller + 13, &callee, sizeof(callee));
		function = make("jit::caller", caller, sizeof(caller),
			caller_lines, sizeof(caller_lines) / 2);
		for (int i = 0; i < 7; i++)
			((void (*)(void))function)();
		((void (*)(int))callee)(1000);
	}
	/* The end of the run is in the vDSO's code. */
	for (int i = 0; i < 100; i++)
		now();
	if (map)
		fclose(map);
	if (dump)
		fclose(dump);
	if (!strcmp(mode, "gone"))
		munmap(memory, 1 << 20);
	return 0;
}
