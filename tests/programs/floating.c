/* Branches that depend on floating-point results: SSE, x87, comparisons with NaN, conversions. */
#include "sys.h"

static NOINLINE double newton(double x)
{
	double guess = x;

	for (int i = 0; i < 40; i++) {
		double next = 0.5 * (guess + x / guess);

		if (next == guess)
			break;
		guess = next;
	}
	return guess;
}

static NOINLINE long double series(int terms)
{
	long double sum = 0, sign = 1;

	for (int i = 0; i < terms; i++) {
		sum += sign / (2 * i + 1);
		sign = -sign;
		if (sum * 4 > 3.1415926535897932385L)
			sum += 0.0L;
		else if (sum * 4 < 3.0L)
			sum -= 0.0L;
	}
	return sum * 4;
}

static NOINLINE u32 logistic(float r)
{
	float x = 0.5f;
	u32 bits = 0;

	for (int i = 0; i < 300; i++) {
		x = r * x * (1 - x);
		bits = bits << 1 | bits >> 31;
		if (x > 0.5f)
			bits ^= 1;
		if (x != x)
			return 0;
	}
	return bits;
}

static NOINLINE int compare(double a, double b)
{
	return (a < b) | (a <= b) << 1 | (a == b) << 2 | (a >= b) << 3 | (a > b) << 4 |
	       (a != b) << 5 | __builtin_isunordered(a, b) << 6;
}

static NOINLINE int compare_x87(long double a, long double b)
{
	return a < b ? 1 : a == b ? 2 : a > b ? 3 : 4;
}

int run(void)
{
	static const double values[] = {
		0.0, -0.0, 1.0, -1.5, 1e300,
		__builtin_inf(), -__builtin_inf(), __builtin_nan(""),
	};
	u64 sum = 0;

	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 8; j++) {
			volatile double a = values[i], b = values[j];

			sum = sum * 3 + compare(a, b) + compare_x87(a, b);
		}
	print_number("compare ", sum);
	print_number("newton ", (u64)(newton(2.0) * 1e15));
	print_number("series ", (u64)(series(200) * 1e12L));
	print_number("logistic ", logistic(3.9f));
	return 0;
}
