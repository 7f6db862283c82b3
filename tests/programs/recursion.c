/* Calls and returns: deep, wide and mutual recursion, also onto unmapped stack pages. */
#include "sys.h"

static NOINLINE u64 fibonacci(u64 n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

static NOINLINE u64 ackermann(u64 m, u64 n)
{
	if (!m)
		return n + 1;
	return ackermann(m - 1, n ? ackermann(m, n - 1) : 1);
}

static NOINLINE int is_odd(u64 n);

static NOINLINE int is_even(u64 n)
{
	return n ? is_odd(n - 1) : 1;
}

static NOINLINE int is_odd(u64 n)
{
	return n ? is_even(n - 1) : 0;
}

/* Uses 64 KiB of stack: calls fault on pages that are not mapped yet, and are restarted. */
static NOINLINE u64 descend(u64 depth)
{
	volatile u64 frame[32];

	frame[depth % 32] = depth;
	if (depth)
		frame[depth % 32] += descend(depth - 1);
	return frame[depth % 32];
}

int run(void)
{
	print_number("fibonacci ", fibonacci(14));
	print_number("ackermann ", ackermann(2, 4));
	print_number("even ", is_even(100));
	print_number("descend ", descend(240));
	return 0;
}
