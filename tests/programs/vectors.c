// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Small loops that the compiler makes vector code of for x86-64-v3, and glibc's string functions
 * for it. Each prints a checksum of its results.
 */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define N 1021

static uint64_t state = 1;

static uint32_t next(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return state >> 33;
}

static void fill(void *p, size_t size)
{
	unsigned char *bytes = p;

	for (size_t i = 0; i < size; i++)
		bytes[i] = next();
}

static void fill_floats(float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (int32_t)(next() << 1) / 65536.0f;
}

static void report(const char *name, const void *p, size_t size)
{
	const unsigned char *bytes = p;
	uint64_t hash = 14695981039346656037u;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ bytes[i]) * 1099511628211u;
	printf("%s %016llx\n", name, (unsigned long long)hash);
}

static float fa[N], fb[N], fc[N];
static double da[N], db[N];
static int32_t ia[N], ib[N];
static uint32_t index_of[N];
static int64_t la[N];
static int16_t sa[N], sb[N];
static uint8_t ba[N], bb[N];

static void multiply_matrices(void)
{
	static double a[24][24], b[24][24], c[24][24];

	for (int i = 0; i < 24; i++)
		for (int j = 0; j < 24; j++) {
			a[i][j] = (int)next() / 1e6;
			b[i][j] = 1.0 / (int)(next() | 1);
		}
	for (int i = 0; i < 24; i++)
		for (int k = 0; k < 24; k++)
			for (int j = 0; j < 24; j++)
				c[i][j] += a[i][k] * b[k][j];
	report("matrices", c, sizeof(c));
}

static void polynomial(void)
{
	for (int i = 0; i < N; i++) {
		float x = fa[i] / 40000.0f;

		/* A division would be RCPPS with -ffast-math: it depends on the processor. */
		fc[i] = ((x * 0.125f - 2.5f) * x + fb[i]) * x - 0.5f * (1.0f + x * x);
	}
	report("polynomial", fc, sizeof(fc));
}

static void gather(void)
{
	for (int i = 0; i < N; i++)
		index_of[i] = next() % N;
	for (int i = 0; i + 8 <= N; i += 8) {
		__m256i at = _mm256_loadu_si256((__m256i *)(index_of + i));
		__m256 v = _mm256_mask_i32gather_ps(_mm256_setzero_ps(), fa, at,
						    _mm256_loadu_ps(fb + i), 4);

		_mm256_storeu_ps(fc + i, v);
	}
	for (int i = 0; i < N; i++)
		da[i] = db[index_of[i]] + i;
	report("gather", fc, sizeof(fc));
	report("gather", da, sizeof(da));
}

static void conditions(void)
{
	for (int i = 0; i < N; i++) {
		if (fa[i] > fb[i])
			fc[i] = fa[i] - fb[i];
		if (ia[i] > 0)
			ib[i] = ia[i] >> 3;
	}
	for (int i = 0; i + 8 <= N; i += 8) {
		__m256i mask = _mm256_loadu_si256((__m256i *)(ia + i));

		_mm256_maskstore_ps(fc + i, mask, _mm256_maskload_ps(fb + i, mask));
	}
	report("conditions", fc, sizeof(fc));
	report("conditions", ib, sizeof(ib));
}

static void shifts(void)
{
	for (int i = 0; i < N; i++) {
		ib[i] = (uint32_t)ia[i] >> (i & 31) ^ ia[i] << (31 - (i & 31));
		la[i] = (uint64_t)la[i] << (i & 63) | (int64_t)ia[i] * ib[i];
	}
	report("shifts", ib, sizeof(ib));
	report("shifts", la, sizeof(la));
}

static void saturation(void)
{
	for (int i = 0; i < N; i++) {
		int sum = sa[i] + sb[i];

		sa[i] = sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum;
		ba[i] = (ba[i] + bb[i] + 1) >> 1;
		sb[i] = (sa[i] * sb[i]) >> 16;
	}
	report("saturation", sa, sizeof(sa));
	report("saturation", sb, sizeof(sb));
	report("saturation", ba, sizeof(ba));
}

static void conversions(void)
{
	for (int i = 0; i < N; i++) {
		da[i] = ia[i] / 3.0;
		ia[i] = (int32_t)(da[i] * 0.5);
		fc[i] = (float)da[i] + ba[i];
		la[i] += sa[i];
		db[i] = sqrt(fabs(da[i])) + floor(da[i]) + rint(fc[i]);
	}
	report("conversions", ia, sizeof(ia));
	report("conversions", fc, sizeof(fc));
	report("conversions", la, sizeof(la));
	report("conversions", db, sizeof(db));
}

static void complex_numbers(void)
{
	for (int i = 0; i + 3 < N; i += 2) {
		float re = fa[i] * fb[i] - fa[i + 1] * fb[i + 1];
		float im = fa[i] * fb[i + 1] + fa[i + 1] * fb[i];

		fc[i] = re / 1e5f;
		fc[i + 1] = im / 1e5f;
	}
	report("complex", fc, sizeof(fc));
}

static void half_precision(void)
{
	static uint16_t half[N + 16];

	for (int i = 0; i + 8 <= N; i += 8) {
		__m256 v = _mm256_loadu_ps(fa + i);

		_mm_storeu_si128((__m128i *)(half + i), _mm256_cvtps_ph(v, 0));
		v = _mm256_cvtph_ps(_mm_loadu_si128((__m128i *)(half + i)));
		_mm256_storeu_ps(fc + i, _mm256_sub_ps(_mm256_loadu_ps(fa + i), v));
	}
	report("half", half, sizeof(half));
	report("half", fc, sizeof(fc));
}

static void bits(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < N; i++) {
		uint64_t v = la[i];

		sum += __builtin_popcountll(v) + __builtin_ctzll(v | 1) + __builtin_clzll(v | 1);
		sum ^= _pext_u64(v, 0x00ff00ff0f0f3333) + _pdep_u64(v, 0x5555333300ff0f0f);
		sum += (v & -v) ^ (v & (v - 1)) ^ __builtin_bswap64(~v & sum);
	}
	report("bits", &sum, sizeof(sum));
}

static void strings(void)
{
	static char text[4096], copy[4096];
	uint64_t sum = 0;

	for (size_t i = 0; i < sizeof(text) - 1; i++)
		text[i] = 'a' + next() % 4;
	for (int i = 0; i < 200; i++) {
		size_t at = next() % 2000, length = next() % 2000;
		char *found;

		memcpy(copy, text + at, length);
		memmove(copy + at % 64, copy, length);
		copy[at % 64 + length] = 0;
		sum = sum * 31 + strlen(copy) + strnlen(text + at, length);
		sum = sum * 31 + (memcmp(copy, text + at, length) > 0);
		sum = sum * 31 + (strcmp(copy, text + at) > 0) + (strncmp(copy, text, length) > 0);
		found = memchr(text + at, 'd', length);
		sum = sum * 31 + (found ? found - text : -1);
		found = strrchr(copy, 'a');
		sum = sum * 31 + (found ? found - copy : -1);
		found = strstr(text + at, "abcdab");
		sum = sum * 31 + (found ? found - text : -1);
		sum = sum * 31 + strspn(text + at, "abc") + strcspn(copy, "d");
		memset(copy + at % 128, i, length % 512);
	}
	report("strings", &sum, sizeof(sum));
	report("strings", copy, sizeof(copy));
}

int main(void)
{
	fill(ia, sizeof(ia));
	fill(la, sizeof(la));
	fill(sa, sizeof(sa));
	fill(sb, sizeof(sb));
	fill(ba, sizeof(ba));
	fill(bb, sizeof(bb));
	fill_floats(fa, N);
	fill_floats(fb, N);
	for (int i = 0; i < N; i++)
		db[i] = (int32_t)next() / 3.0;
	multiply_matrices();
	polynomial();
	gather();
	conditions();
	shifts();
	saturation();
	conversions();
	complex_numbers();
	half_precision();
	bits();
	strings();
	return 0;
}
