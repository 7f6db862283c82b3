/*
 * Self-modifying code: code changes between calls, in a loop, in the next instruction, and across a
 * page boundary.
 */
#include "sys.h"

typedef u64 function(u64);

/* mov $imm32, %eax; ret */
static void emit_constant(u8 *at, u32 value)
{
	at[0] = 0xb8;
	memcpy(at + 1, &value, 4);
	at[5] = 0xc3;
}

int run(void)
{
	u8 *page = (u8 *)syscall6(SYS_mmap, 0x20000000, 3 * 4096, 7, 0x32, -1, 0);
	u64 sum = 0;

	if (page != (u8 *)0x20000000)
		return 1;

	/* A function that is rewritten between calls, in one page and across two. */
	for (u32 i = 0; i < 60; i++) {
		u8 *at = page + (i % 2 ? 128 : 4096 - 3);

		emit_constant(at, i * i);
		sum += ((function *)at)(0);
	}

	/* A jump whose displacement alternates. */
	static const u8 hop[] = {
		0xeb, 0x00,			/* jmp +0 or +4 */
		0x83, 0xc7, 0x01, 0x90,		/* add $1, %edi; nop */
		0x8d, 0x47, 0x10,		/* lea 0x10(%rdi), %eax */
		0xc3,
	};
	memcpy(page + 512, hop, sizeof hop);
	for (u32 i = 0; i < 40; i++) {
		page[513] = i & 1 ? 4 : 0;
		sum += ((function *)(page + 512))(i);
	}

	/* A store that changes the next instruction from inc %eax to dec %eax, or back. */
	static const u8 ahead[] = {
		0xb8, 0x64, 0x00, 0x00, 0x00,			/* mov $100, %eax */
		0xb9, 0x06, 0x00, 0x00, 0x00,			/* mov $6, %ecx */
		0x80, 0x35, 0x01, 0x00, 0x00, 0x00, 0x08,	/* 1: xorb $8, 1+2f(%rip) */
		0xff, 0xc0,					/* 2: inc %eax */
		0xe2, 0xf5,					/* loop 1b */
		0xc3,
	};
	memcpy(page + 1024, ahead, sizeof ahead);
	sum = sum * 31 + ((function *)(page + 1024))(0);

	/* Code in a page that is never writable and executable at once, then in one that is. */
	syscall3(SYS_mprotect, page, 4096, 3);
	emit_constant(page + 2048, 77);
	syscall3(SYS_mprotect, page, 4096, 5);
	sum = sum * 31 + ((function *)(page + 2048))(0);
	syscall3(SYS_mprotect, page, 4096, 7);
	emit_constant(page + 2048, 78);
	sum = sum * 31 + ((function *)(page + 2048))(0);

	print_number("sum ", sum);
	return 0;
}
