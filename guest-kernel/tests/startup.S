/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel that only starts and stops processors (SDM Vol. 3A 8.4.4): it repeatedly sends INIT and
 * a start-up IPI to all others, which are in HLT or in a loop. Each processor switches from
 * real-address mode to 64-bit mode, and counts.
 *
 *	gcc -nostdlib -static -no-pie -DOTHERS=3 -DROUNDS=1000 \
 *		-Wl,-Ttext=0x1000000,--build-id=none startup.S
 *
 * It ends the machine with status 0, or with 1 if a processor has not counted in time.
 */

/* The start address of a start-up IPI with this vector. */
#define VECTOR		0x08
#define TRAMPOLINE	(VECTOR << 12)
#define COUNTER		(TRAMPOLINE + 0x800)
#define ROUND		(TRAMPOLINE + 0x808)
#define ICR		0xFEE00300
/* To all but self, asserted. */
#define INIT		0x000C4500
#define STARTUP		(0x000C4600 | VECTOR)
#define CODE		0x10

	.text
	.globl	_start
_start:
	lea	trampoline(%rip), %rsi
	mov	$TRAMPOLINE, %edi
	mov	$(trampoline_end - trampoline), %ecx
	rep movsb
	sgdt	TRAMPOLINE + gdtr - trampoline
	mov	%cr3, %rax
	mov	%eax, TRAMPOLINE + cr3 - trampoline
	mov	$ICR, %ebp
	xor	%ebx, %ebx
round:
	inc	%ebx
	mov	%ebx, ROUND
	mov	$'.', %al
	mov	$0x3F8, %dx
	test	$15, %bl
	jnz	1f
	out	%al, %dx
1:
	/* After INIT, no processor counts, whatever it was doing. */
	movl	$INIT, (%rbp)
	movl	$STARTUP, (%rbp)
	/*
	 * Two IPIs, as in the manual. A processor that the first one has started ignores the
	 * second.
	 */
	movl	$STARTUP, (%rbp)
	imul	$OTHERS, %ebx, %edx
	mov	$100000000, %ecx
1:	cmp	%edx, COUNTER
	je	2f
	pause
	dec	%ecx
	jnz	1b
	mov	$1, %al
	jmp	end
2:	cmp	$ROUNDS, %ebx
	jb	round
	xor	%eax, %eax
end:	out	%al, $0xF4
3:	hlt
	jmp	3b

	.code16
trampoline:
	cli
	mov	%cs, %ax
	mov	%ax, %ds
	data32 lgdt gdtr - trampoline
	mov	%cr4, %eax
	or	$0x20, %eax
	mov	%eax, %cr4
	mov	cr3 - trampoline, %eax
	mov	%eax, %cr3
	mov	$0xC0000080, %ecx
	rdmsr
	or	$0x100, %eax
	wrmsr
	mov	%cr0, %eax
	or	$0x80000001, %eax
	mov	%eax, %cr0
	data32 ljmp $CODE, $(TRAMPOLINE + in_64_bit_mode - trampoline)
	.code64
in_64_bit_mode:
	lock incl COUNTER
	testl	$1, ROUND
	jz	2f
1:	hlt
	jmp	1b
2:	pause
	jmp	2b
gdtr:	.skip	10
cr3:	.long	0
trampoline_end:
