// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The hot workload as a ROM of 64 KiB, for a PC without any other software. The processor starts at
 * the reset vector and copies the payload to 1 MiB. There it enters 64-bit mode with an identity
 * mapping of the first GiB.
 */
#ifdef ROM
	.code16
	.globl _start
_start:
rom:	cli
	lgdtl	%cs:gdtr - rom
	mov	$1, %eax
	mov	%eax, %cr0
	ljmpl	$8, $0xffff0000 + protected - rom
gdt:	.quad	0, 0x00cf9b000000ffff, 0x00cf93000000ffff, 0x00af9b000000ffff
gdtr:	.word	gdtr - gdt - 1
	.long	0xffff0000 + gdt - rom

	.code32
protected:
	mov	$16, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	mov	$0xffff0000 + payload - rom, %esi
	mov	$0x100000, %edi
	mov	$payload_end - payload, %ecx
	cld
	rep movsb
	mov	$0x100000, %eax
	jmp	*%eax
payload:
	.incbin	PAYLOAD
payload_end:
	.org	0xfff0
	.code16
	jmp	rom
	.org	0x10000
#else
	.section .text.first, "ax"
	.code32
	.globl _start
_start:	lgdtl	gdtr		/* The ROM's GDT is above the mapping. */
	/* PML4 at 0x1000, PDPT at 0x2000, 512 pages of 2 MiB at 0x3000; memory is zero. */
	movl	$0x2003, 0x1000
	movl	$0x3003, 0x2000
	mov	$0x83, %eax
	mov	$0x3000, %edi
1:	mov	%eax, (%edi)
	add	$0x200000, %eax
	add	$8, %edi
	cmp	$0x4000, %edi
	jb	1b
	mov	$0x20, %eax		/* PAE */
	mov	%eax, %cr4
	mov	$0x1000, %eax
	mov	%eax, %cr3
	mov	$0xc0000080, %ecx	/* EFER.LME */
	rdmsr
	or	$0x100, %eax
	wrmsr
	mov	$0x80000001, %eax
	mov	%eax, %cr0
	ljmp	$24, $2f
	.code64
2:	mov	$0x80000, %esp
	call	bare
3:	hlt
	jmp	3b
gdt:	.quad	0, 0x00cf9b000000ffff, 0x00cf93000000ffff, 0x00af9b000000ffff
gdtr:	.word	gdtr - gdt - 1
	.long	gdt
	.section .note.GNU-stack, "", @progbits
#endif
