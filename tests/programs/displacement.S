/*
 * Every kind of near branch in its short and near forms, taken and not taken, to the next
 * instruction and to itself.
 */

	.text
	.globl _start
	.type _start, @function
_start:
	/* To the next instruction. Such a branch is recorded too. */
	call	1f
1:	pop	%rax
	jmp	1f
1:	.byte	0xE9, 0, 0, 0, 0		/* jmp rel32 */
	xor	%eax, %eax
	jz	1f
1:	jnz	1f
1:	.byte	0x0F, 0x84, 0, 0, 0, 0		/* jz rel32 */
	.byte	0x0F, 0x85, 0, 0, 0, 0		/* jnz rel32 */
	xor	%ecx, %ecx
	jrcxz	1f
1:	jecxz	1f
1:	mov	$1, %ecx
	jrcxz	1f
1:	loop	1f				/* 1 -> 0: not taken */
1:	mov	$2, %ecx
	loop	1f				/* 2 -> 1: taken */
1:	mov	$0x100000000, %rcx
	jrcxz	1f				/* tests RCX */
1:	jecxz	1f				/* tests ECX */
1:	mov	$0x100000001, %rcx
	addr32 loop 1f				/* ECX 1 -> 0: not taken, RCX zero-extended */
1:	jrcxz	1f
	ud2
1:

	/* To itself. */
	mov	$5, %ecx
1:	loop	1b
	mov	$5, %ecx
	xor	%eax, %eax
1:	loope	1b
	mov	$5, %ecx
	or	$1, %eax
1:	loopne	1b
	mov	$5, %ecx
1:	loope	1b				/* ZF clear: not taken */

	/* All sixteen conditions under four sets of flags, short and near. */
	.macro conditions
	.irp	cc, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
	j\cc	1f
	nop
1:	{disp32} j\cc 1f
	nop
1:
	.endr
	.endm
	xor	%eax, %eax			/* ZF PF */
	conditions
	mov	$0x7fffffff, %eax
	inc	%eax				/* OF SF PF AF */
	conditions
	mov	$1, %eax
	sub	$2, %eax			/* CF SF AF PF */
	conditions
	mov	$0x80000000, %eax
	add	%eax, %eax			/* OF CF ZF PF */
	conditions
	mov	$1, %eax
	test	%eax, %eax			/* none */
	conditions

	/*
	 * Indirect branches through a register and memory. RET with and without an operand, and
	 * with a REP prefix, which has no effect.
	 */
	lea	1f(%rip), %rax
	jmp	*%rax
	ud2
1:	jmp	*there(%rip)
	ud2
there_code:
	lea	pop8(%rip), %rdx
	push	$0
	call	*%rdx
	call	*pop0_pointer(%rip)
	call	prefixed
	lea	1f(%rip), %rax
	push	%rax
	ret
	ud2
1:	lea	1f(%rip), %rax
	push	%rax
	mov	%rsp, %rsi
	push	(%rsi)
	ret	$8
	ud2

	/* Far, to the same code segment. */
1:	mov	%cs, %eax
	push	%rax
	lea	1f(%rip), %rdx
	push	%rdx
	lretq
	ud2
1:	sub	$16, %rsp
	lea	1f(%rip), %rdx
	mov	%edx, (%rsp)
	mov	%cs, 4(%rsp)
	ljmp	*(%rsp)
	ud2
1:	lea	far(%rip), %rdx
	mov	%edx, (%rsp)
	lcall	*(%rsp)
	add	$16, %rsp

	xor	%edi, %edi
	mov	$231, %eax			/* SYS_exit_group */
	syscall
	.size _start, . - _start

	.type pop8, @function
pop8:	ret	$8
	.size pop8, . - pop8

	.type pop0, @function
pop0:	ret	$0
	.size pop0, . - pop0

	.type prefixed, @function
prefixed:
	rep ret
	.size prefixed, . - prefixed

	.type far, @function
far:	lretl
	.size far, . - far

	.section .rodata
	.balign 8
there:		.quad there_code
pop0_pointer:	.quad pop0
	.section .note.GNU-stack, "", @progbits
