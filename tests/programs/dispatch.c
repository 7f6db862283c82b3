/*
 * Indirect branches: the jump table of a switch, computed goto, and calls through a table of
 * functions.
 */
#include "sys.h"

static NOINLINE u64 step(u64 state, u32 op)
{
	switch (op) {
	case 0: return state + 3;
	case 1: return state * 5;
	case 2: return state ^ 0x55;
	case 3: return state - 1;
	case 4: return state << 1;
	case 5: return state >> 2;
	case 6: return ~state;
	case 7: return state | 0x100;
	case 8: return state * state;
	case 9: return state % 1009;
	default: return 1;
	}
}

static NOINLINE u64 interpret(const u8 *code)
{
	static const void *const ops[] = { &&inc, &&dbl, &&skip, &&back, &&halt };
	u64 acc = 1, loops = 40;

	goto *ops[*code];
inc:
	acc++;
	goto *ops[*++code];
dbl:
	acc *= 2;
	goto *ops[*++code];
skip:
	code += acc & 1;
	goto *ops[*++code];
back:
	if (--loops)
		code -= 4;
	goto *ops[*++code];
halt:
	return acc;
}

static NOINLINE u64 add(u64 a, u64 b) { return a + b; }
static NOINLINE u64 sub(u64 a, u64 b) { return a - b; }
static NOINLINE u64 mul(u64 a, u64 b) { return a * b; }
static NOINLINE u64 xor(u64 a, u64 b) { return a ^ b; }

static u64 (*const volatile functions[])(u64, u64) = { add, sub, mul, xor };

int run(void)
{
	static const u8 program[] = { 0, 1, 2, 0, 0, 3, 4 };
	u64 state = 7, folded = 1;

	for (u32 i = 0; i < 300; i++)
		state = step(state, (state ^ i * 7) % 12);
	for (u32 i = 0; i < 200; i++)
		folded = functions[(folded >> 3 ^ i) % 4](folded, i + 1);
	print_number("switch ", state);
	print_number("goto ", interpret(program));
	print_number("calls ", folded);
	return 3;
}
