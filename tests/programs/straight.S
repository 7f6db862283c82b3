/*
 * 32 KiB of code without a loop, and jumps between its pages. The instructions have different
 * lengths, so that some of them, also branches, cross a page boundary.
 */

	.text
	.globl _start
	.type _start, @function
_start:
	xor	%eax, %eax
	lea	data(%rip), %rbx
	jmp	run_through

	/* Six jumps that end at a page boundary or cross it. Each of them jumps backwards. */
	.macro hop name, next, before
	.balign	4096
	.skip	4096 - \before, 0x90
	.globl	\name
\name:	.byte	0xE9
	.long	\next - . - 4
	.endm
	hop	hop0, hops_done, 1
	hop	hop1, hop0, 2
	hop	hop2, hop1, 3
	hop	hop3, hop2, 4
	hop	hop4, hop3, 5
	.balign	4096
	.skip	4096 - 3, 0x90
hop5:	.byte	0x0F, 0x84			/* jz rel32 */
	.long	hop4 - . - 4
	ud2

run_through:
	.set	i, 0
	.rept	1200
	add	$(i % 100), %eax
	lea	i(%rax, %rax, 2), %edx
	movl	$i, (i % 64)(%rbx)
	xor	%rdx, %rax
	imul	$(i + 1000), %rax, %rcx
	.if i % 37 == 0
	test	$1, %al
	jz	1f
	nopw	0(%rax, %rax)
1:
	.endif
	.set	i, i + 1
	.endr
	xor	%edx, %edx
	jz	hop5

hops_done:
	movzbl	%al, %edi
	mov	$231, %eax			/* SYS_exit_group */
	syscall
	.size _start, . - _start

	.bss
	.balign 16
data:	.skip	128
	.section .note.GNU-stack, "", @progbits
