// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Executes instructions of x86-64-v2, and prints a checksum of their results. It is not in the
 * table of tests/src/programs.rs, because it needs a processor that has them.
 */
#include <nmmintrin.h>

static const char digits[] = "0123456789abcdef";

static long write_out(const char *text, unsigned long length)
{
	long result = 1;

	asm volatile("syscall"
		     : "+a"(result)
		     : "D"(1), "S"(text), "d"(length)
		     : "rcx", "r11", "memory");
	return result;
}

__attribute__((noreturn)) static void leave(int status)
{
	for (;;)
		asm volatile("syscall" : : "a"(231), "D"(status) : "rcx", "r11");
}

__attribute__((force_align_arg_pointer)) void _start(void)
{
	char line[9];
	unsigned int eax = 1, ebx, ecx, edx, sum = 0;
	__m128i a = _mm_setr_epi32(0x01234567, -5, 0x7fffffff, 42), b = _mm_set1_epi32(3);
	__m128d f = _mm_setr_pd(1.5, -2.5);

	asm("cpuid" : "+a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx));
	/* SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT */
	if ((ecx & 0x982201) != 0x982201)
		leave(1);
	for (int i = 0; i < 1000; i++) {
		a = _mm_mullo_epi32(_mm_add_epi32(a, b), _mm_shuffle_epi8(a, b));
		b = _mm_blend_epi16(_mm_max_epu32(a, b), _mm_cmpgt_epi64(a, b), 0x5a);
		f = _mm_add_pd(_mm_round_pd(_mm_div_pd(f, _mm_set1_pd(1.37)),
					    _MM_FROUND_TO_NEG_INF),
			       _mm_set1_pd(i));
		sum = _mm_crc32_u64(sum, _mm_extract_epi64(a, 1));
		sum += _mm_popcnt_u64(_mm_extract_epi64(b, 0)) + _mm_testz_si128(a, b);
		sum ^= _mm_cmpistri(a, b, _SIDD_UBYTE_OPS | _SIDD_CMP_RANGES) << (i & 15);
		sum = _mm_crc32_u32(sum, _mm_cvtsd_si32(f));
	}
	for (int i = 0; i < 8; i++)
		line[i] = digits[sum >> 4 * (7 - i) & 15];
	line[8] = '\n';
	write_out(line, sizeof(line));
	leave(0);
}
