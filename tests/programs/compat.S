/* A 64-bit program that runs 32-bit code for a while, as Wine and CRIU do. */

	.text
	.globl _start
	.type _start, @function
_start:
	mov	%rsp, %r15
	lea	stack_top(%rip), %rsp
	mov	$0x2b, %eax			/* __USER_DS for 32-bit code: execve loads 0 */
	mov	%eax, %ds
	push	$0x23				/* __USER32_CS */
	lea	narrow(%rip), %rax
	push	%rax
	lretq

	.code32
	.type narrow, @function
narrow:
	mov	$10, %ecx
	xor	%eax, %eax
1:	call	add_ecx
	loop	1b
	cmp	$55, %eax
	jne	2f
	inc	%ecx
	jecxz	2f
	dec	%ecx
	jecxz	3f
2:	mov	$99, %eax
3:	push	$4f
	ret
4:	jmp	*pointer
5:	ljmp	$0x33, $wide			/* __USER_CS */
	.size narrow, . - narrow

	.type add_ecx, @function
add_ecx:
	add	%ecx, %eax
	ret
	.size add_ecx, . - add_ecx

	.code64
wide:
	mov	%r15, %rsp
	lea	-55(%rax), %edi
	mov	$231, %eax			/* SYS_exit_group */
	syscall
	.size _start, . - _start

	.section .rodata
	.balign 8
pointer: .long	5b
	.bss
	.balign 16
	.skip	4096
stack_top:
	.section .note.GNU-stack, "", @progbits
