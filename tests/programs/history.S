/* A few calls. The test of the debugger's branch history knows the offset of each instruction. */

	.text
	.globl _start
	.type _start, @function
_start:
	call	outer				/* + 0 */
	call	finish				/* + 5 */
	.size _start, . - _start

	.type outer, @function
outer:
	mov	$2, %ecx			/* + 0 */
1:	call	leaf				/* + 5 */
	loop	1b				/* + 10 */
	ret					/* + 12 */
	.size outer, . - outer

	.type leaf, @function
leaf:
	inc	%eax				/* + 0 */
	ret					/* + 2 */
	.size leaf, . - leaf

	.type finish, @function
finish:
	xor	%edi, %edi
	mov	$231, %eax			/* SYS_exit_group */
	syscall
	.size finish, . - finish
	.section .note.GNU-stack, "", @progbits
