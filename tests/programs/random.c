/*
 * A program that Csmith has made (the file CSMITH), without a C library. It runs ROUNDS times, and
 * its global variables keep their values from one round to the next.
 */

#include <float.h>
#include <limits.h>
#include <stdint.h>

#include "sys.h"

/* What csmith.h defines with the help of a C library. */
#define STATIC static
#define UNDEFINED(value) (value)
#define LOG_INDEX
#define LOG_EXEC
#define FUNC_NAME(name) (safe_##name)
#include "safe_math.h"
#define RANDOM_RUNTIME_H
#define _CSMITH_BITFIELD(bits) ((bits) > 32 ? (bits) % 32 : (bits))
#define platform_main_begin()
#define platform_main_end(sum, show)
#define printf(...)
#define crc32_gentab()

static u64 hash;

static void transparent_crc(u64 value, const char *name, int show)
{
	(void)name, (void)show;
	for (int i = 0; i < 8; i++)
		hash = (hash ^ (value >> 8 * i & 0xFF)) * 0x100000001B3;
}

static void transparent_crc_bytes(const void *bytes, int count, const char *name, int show)
{
	for (int i = 0; i < count; i++)
		transparent_crc(((const u8 *)bytes)[i], name, show);
}

#define main csmith_main
#include CSMITH
#undef main

int run(void)
{
	for (int i = 0; i < ROUNDS; i++)
		csmith_main();
	print_number("hash ", hash);
	return 0;
}
