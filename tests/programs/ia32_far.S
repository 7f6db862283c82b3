/*
 * A 32-bit program that leaves its 32-bit code segment and comes back: by far jumps, far calls and
 * far returns of each operand size, in signal handlers, and for system calls of both kinds. A
 * signal also comes while 64-bit code runs, and has a 32-bit handler. Exits with 6.
 */

#define USER32_CS	0x23
#define USER_CS		0x33
#define NR_EXIT		1
#define NR_GETPID	20
#define NR_KILL		37
#define NR_RT_SIGRETURN	173
#define NR_RT_SIGACTION	174
#define NR64_GETPID	39
#define SIGUSR1		10
#define SA_SIGINFO	0x4
#define SA_RESTORER	0x4000000

	.text
	.code32
	.globl _start
	.type _start, @function
_start:
	mov	$NR_RT_SIGACTION, %eax
	mov	$SIGUSR1, %ebx
	mov	$action, %ecx
	xor	%edx, %edx
	mov	$8, %esi
	int	$0x80
	test	%eax, %eax
	jne	failed
	mov	$NR_GETPID, %eax
	int	$0x80
	mov	%eax, pid
	mov	$3, %edi
1:	call	raise
	dec	%edi
	jne	1b
	lcall	$USER_CS, $add_up
	cmp	$6, %eax
	jne	failed
	lcall	*add_up_pointer
	cmp	$6, %eax
	jne	failed
	ljmp	$USER_CS, $wide
back:
	cmpl	$4, seen
	jne	failed
	ljmp	*last_pointer
failed:
	mov	$99, %ebx
	jmp	exit
last:
	mov	$6, %ebx
exit:
	mov	$NR_EXIT, %eax
	int	$0x80
	.size _start, . - _start

	.type raise, @function
raise:
	mov	$NR_KILL, %eax
	mov	pid, %ebx
	mov	$SIGUSR1, %ecx
	int	$0x80
	ret
	.size raise, . - raise

	/* Enters 64-bit code before it returns. */
	.type handler, @function
handler:
	incl	seen
	lcall	$USER_CS, $add_up
	cmp	$6, %eax
	jne	failed
	ret
	.size handler, . - handler

	.type restorer, @function
restorer:
	mov	$NR_RT_SIGRETURN, %eax
	int	$0x80
	.size restorer, . - restorer

	.code64
	/* The far call has pushed 4 bytes each of CS and EIP. */
	.type add_up, @function
add_up:
	mov	$3, %ecx
	xor	%eax, %eax
1:	add	%ecx, %eax
	loop	1b
	lretl
	.size add_up, . - add_up

	.type wide, @function
wide:
	mov	$pid, %edx
	mov	$NR_KILL, %eax
	mov	(%rdx), %ebx
	mov	$SIGUSR1, %ecx
	int	$0x80
	mov	$NR64_GETPID, %eax
	syscall
	cmp	%eax, (%rdx)
	je	1f
	movl	$0, seen - pid(%rdx)
1:	push	$USER32_CS
	mov	$back, %eax
	push	%rax
	lretq
	.size wide, . - wide

	.section .rodata
	.balign 8
action:
	.long	handler, SA_SIGINFO | SA_RESTORER, restorer, 0, 0
add_up_pointer:
	.long	add_up
	.word	USER_CS
last_pointer:
	.long	last
	.word	USER32_CS

	.bss
	.balign 4
seen:	.skip	4
pid:	.skip	4
	.section .note.GNU-stack, "", @progbits
