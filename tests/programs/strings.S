/*
 * String instructions: an iteration is not a branch. Branches after them depend on the registers,
 * flags and memory that they have changed.
 */

	.text
	.globl _start
	.type _start, @function
_start:
	lea	source(%rip), %rbx
	lea	copy(%rip), %rbp
	xor	%r12d, %r12d		/* failed checks */

	/* A count of 0 does nothing; a count of 1 ends at once. */
	xor	%ecx, %ecx
	mov	%rbx, %rsi
	mov	%rbp, %rdi
	rep movsb
	cmp	%rbx, %rsi
	jne	fail1
	mov	$1, %ecx
	rep movsb
	lea	1(%rbp), %rax
	cmp	%rax, %rdi
	jne	fail1

	.macro copy width, count
	mov	%rbx, %rsi
	mov	%rbp, %rdi
	mov	$\count, %ecx
	rep movs\width
	test	%ecx, %ecx
	jnz	fail1
	.endm
	copy	b, 201
	copy	w, 100
	copy	l, 50
	copy	q, 25

	/* Equal up to the end, forwards. */
	mov	%rbx, %rsi
	mov	%rbp, %rdi
	mov	$200, %ecx
	repe cmpsb
	jne	fail2

	/* Different at byte 100: REPE stops after it, with ZF clear. */
	incb	100(%rbp)
	mov	%rbx, %rsi
	mov	%rbp, %rdi
	mov	$200, %ecx
	repe cmpsb
	je	fail2
	cmp	$99, %ecx
	jne	fail2

	/* Backwards, overlapping. */
	std
	lea	199(%rbp), %rsi
	lea	203(%rbp), %rdi
	mov	$200, %ecx
	rep movsb
	cld
	jrcxz	1f
	jmp	fail3
1:	cmpb	$'T', 4(%rbp)
	jne	fail3

	/* REPNE SCAS of a byte that is found, and of one that is not found. */
	mov	%rbx, %rdi
	mov	$'z', %al
	mov	$200, %ecx
	repne scasb
	jne	fail4
	sub	%rbx, %rdi
	cmp	$38, %edi
	jne	fail4
	mov	%rbx, %rdi
	mov	$'#', %al
	mov	$200, %ecx
	repne scasb
	je	fail4
	test	%ecx, %ecx
	jnz	fail4

	/* REPE SCAS backwards over a filled area. */
	mov	%rbp, %rdi
	mov	$0x1122334455667788, %rax
	mov	$20, %ecx
	rep stosq
	std
	lea	152(%rbp), %rdi
	mov	$20, %ecx
	repe scasq
	cld
	jne	fail5
	jrcxz	1f
	jmp	fail5

	/* REPNE CMPS of words, then LODS without a prefix in a loop. */
1:	mov	%rbx, %rsi
	mov	%rbp, %rdi
	mov	$60, %ecx
	repne cmpsw
	je	fail6
	mov	%rbx, %rsi
	mov	$26, %ecx
	xor	%edx, %edx
2:	lodsb
	cmp	$'a', %al
	jb	3f
	inc	%edx
3:	loop	2b
	cmp	$20, %edx
	jne	fail6

	/* Copies that cross into pages that are not mapped yet. */
	lea	fresh(%rip), %rdi
	mov	%rbx, %rsi
	mov	$3, %r13d
4:	mov	%rbx, %rsi
	mov	$200, %ecx
	rep movsb
	add	$3990, %rdi
	dec	%r13d
	jnz	4b
	lea	fresh(%rip), %rdi
	mov	$12000, %ecx
	xor	%eax, %eax
	mov	$'x', %al
	repne scasb
	jne	fail6
	jmp	done

fail6:	inc	%r12d
fail5:	inc	%r12d
fail4:	inc	%r12d
fail3:	inc	%r12d
fail2:	inc	%r12d
fail1:	inc	%r12d
done:
	mov	$1, %eax		/* SYS_write */
	mov	$1, %edi
	mov	%rbx, %rsi
	mov	$44, %edx
	syscall
	mov	%r12d, %edi
	mov	$231, %eax		/* SYS_exit_group */
	syscall
	.size _start, . - _start

	.section .rodata
source:
	.ascii "The quick brown fox jumps over the lazy dog\n"
	.fill 160, 1, '.'

	.bss
	.balign 16
copy:	.skip 512
	.balign 4096
fresh:	.skip 16384
	.section .note.GNU-stack, "", @progbits
