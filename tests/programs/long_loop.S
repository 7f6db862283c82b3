/*
 * More than 70 000 taken branches: over a hundred times the 682 records of a 16 KiB buffer. A
 * generator of pseudo-random numbers decides which branches are taken, so that the sequence does
 * not repeat.
 */

	.text
	.globl _start
	.type _start, @function
_start:
	mov	$6500, %ecx
	mov	$12345, %eax
again:
	imul	$1664525, %eax, %eax
	add	$1013904223, %eax
	js	1f
	jc	2f
1:	jp	3f
	jmp	4f
2:	jmp	3f
4:	jnc	5f
3:	call	leaf
5:	jmp	7f
6:	jmp	9f
7:	call	leaf
	jmp	6b
8:	loop	again
	jmp	done
9:	call	other
	jmp	8b
done:
	cmp	$0xafe20cdd, %eax
	setne	%dil
	movzbl	%dil, %edi
	mov	$231, %eax			/* SYS_exit_group */
	syscall
	.size _start, . - _start

	.type leaf, @function
leaf:	ret
	.size leaf, . - leaf

	.type other, @function
other:	jmp	leaf
	.size other, . - other
	.section .note.GNU-stack, "", @progbits
