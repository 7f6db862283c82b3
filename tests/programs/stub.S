/*
 * The process in which the host runs single instructions. It maps the shared memory at fixed
 * addresses and stops. Then its tracer sets its registers. tests/src/differential/mod.rs has the
 * same addresses.
 */

	.macro map address, length, protection, offset
	mov	$9, %eax			/* SYS_mmap */
	mov	$\address, %edi
	mov	$\length, %esi
	mov	$\protection, %edx
	mov	$0x11, %r10d			/* MAP_SHARED | MAP_FIXED */
	mov	$3, %r8d
	mov	$\offset, %r9d
	syscall
	cmp	$\address, %rax
	jne	bad
	.endm

	.text
	.globl _start
	.type _start, @function
_start:
	map	0x200000, 0x1000, 5, 0		/* code */
	map	0x210000, 0x3000, 3, 0x1000	/* data */
	map	0x213000, 0x1000, 1, 0x4000	/* read-only data */
	int3
bad:	ud2
	.size _start, . - _start
	.section .note.GNU-stack, "", @progbits
