//! Instructions that a kernel or a program uses and that some KVMs cannot run: those that interpret CPL 0, above all.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, al, bl, cl, dword_ptr, dx, eax, ebx, ecx, edx, mm0, mm1, ptr, qword_ptr, r8,
    rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp, st0, st1, word_ptr, xmm0, xmm1, xmm2,
};

use super::tables::{KERNEL_DATA, USER_DATA};

/// An instruction, or a few: R8 is the address of data, and RAX is to be a value afterwards.
#[derive(Debug)]
pub struct Row {
    /// Their mnemonics.
    pub name: &'static str,
    /// The code.
    pub code: fn(&mut CodeAssembler) -> Result<(), IcedError>,
    /// RAX afterwards.
    pub result: u64,
    /// They are for CPL 0 only.
    pub privileged: bool,
}

const fn row(
    name: &'static str,
    result: u64,
    code: fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Row {
    Row {
        name,
        code,
        result,
        privileged: false,
    }
}

const fn privileged(
    name: &'static str,
    result: u64,
    code: fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Row {
    Row {
        name,
        code,
        result,
        privileged: true,
    }
}

/// Where R8 points: at CPL 0, and at CPL 3.
pub const DATA: [u64; 2] = [KERNEL_DATA + 0x100, USER_DATA + 0x100];

/// The instructions.
pub const ROWS: &[Row] = &[
    row("CMPXCHG16B", 7, |a| {
        a.mov(qword_ptr(r8), 1)?;
        a.mov(qword_ptr(r8 + 8), 2)?;
        a.mov(eax, 1)?;
        a.mov(edx, 2)?;
        a.mov(ebx, 7)?;
        a.mov(ecx, 8)?;
        a.lock().cmpxchg16b(ptr(r8))?;
        a.mov(rax, qword_ptr(r8))
    }),
    row("CMPXCHG8B", 0x3_0000_0004, |a| {
        a.mov(qword_ptr(r8), 1)?;
        a.mov(eax, 1)?;
        a.xor(edx, edx)?;
        a.mov(ebx, 4)?;
        a.mov(ecx, 3)?;
        a.lock().cmpxchg8b(qword_ptr(r8))?;
        a.mov(rax, qword_ptr(r8))
    }),
    row("LOCK XADD, XCHG, LOCK CMPXCHG", 15, |a| {
        a.mov(qword_ptr(r8), 5)?;
        a.mov(ebx, 2)?;
        a.lock().xadd(qword_ptr(r8), rbx)?;
        a.mov(ecx, 10)?;
        a.xchg(qword_ptr(r8), rcx)?;
        a.mov(eax, 10)?;
        a.mov(edx, 15)?;
        a.lock().cmpxchg(qword_ptr(r8), rdx)?;
        a.mov(rax, qword_ptr(r8))
    }),
    row("LOCK BTS, BSF, BSR", 0x0805, |a| {
        a.mov(qword_ptr(r8), 0x20)?;
        a.lock().bts(qword_ptr(r8), 8)?;
        a.mov(rcx, qword_ptr(r8))?;
        a.bsf(rax, rcx)?;
        a.bsr(rbx, rcx)?;
        a.shl(ebx, 8)?;
        a.or(eax, ebx)
    }),
    row("SHLD, RCL, BSWAP, IMUL", 0x7856_3412_0000_0002, |a| {
        a.mov(eax, 0x1234_5678)?;
        a.bswap(rax)?;
        a.mov(ebx, 0x8000_0000u32)?;
        a.xor(ecx, ecx)?;
        a.shld(ecx, ebx, 1)?;
        a.imul_3(ecx, ecx, 1)?;
        a.clc()?;
        a.rcl(ecx, 1)?;
        a.or(rax, rcx)
    }),
    row("DIV, CQO, IDIV", 14, |a| {
        a.mov(eax, 100)?;
        a.cqo()?;
        a.mov(ecx, 7)?;
        a.div(rcx)?;
        a.neg(rax)?;
        a.cqo()?;
        a.mov(rcx, -1i64)?;
        a.idiv(rcx)
    }),
    row("REP STOSQ, REP MOVSB, REPE CMPSB", 0, |a| {
        a.mov(rdi, r8)?;
        a.mov(rax, 0x0102_0304_0506_0708u64)?;
        a.mov(ecx, 8)?;
        a.rep().stosq()?;
        a.mov(rsi, r8)?;
        a.mov(ecx, 61)?;
        a.rep().movsb()?;
        a.mov(rdi, r8)?;
        a.lea(rsi, ptr(r8 + 64))?;
        a.mov(ecx, 61)?;
        a.repe().cmpsb()?;
        a.mov(eax, ecx)
    }),
    row("PUSHFQ, POPFQ, LAHF, SETcc, CMOVcc", 3, |a| {
        a.stc()?;
        a.pushfq()?;
        a.clc()?;
        a.popfq()?;
        a.setc(bl)?;
        a.lahf()?;
        a.movzx(ecx, bl)?;
        a.mov(eax, 3)?;
        a.cmovnc(eax, ecx)
    }),
    row("ENTER, LEAVE, PUSH, POP", 9, |a| {
        a.mov(rbp, 9u64)?;
        a.enter(32, 0)?;
        a.leave()?;
        a.push(rbp)?;
        a.pop(rax)
    }),
    row("XLATB, MOVZX, MOVSX", 0xFFFF_FFFF_FFFF_FF83, |a| {
        a.mov(dword_ptr(r8), 0x8382_8180u32)?;
        a.mov(rbx, r8)?;
        a.mov(eax, 3)?;
        a.xlatb()?;
        a.movsx(rax, al)
    }),
    row("RDTSC", 1, |a| {
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)?;
        a.mov(rbx, rax)?;
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)?;
        a.cmp(rax, rbx)?;
        a.seta(al)?;
        a.movzx(eax, al)
    }),
    row("LFENCE, SFENCE, MFENCE, PAUSE, CLFLUSH, PREFETCH", 6, |a| {
        a.lfence()?;
        a.sfence()?;
        a.mfence()?;
        a.pause()?;
        a.clflush(ptr(r8))?;
        a.prefetcht0(ptr(r8))?;
        a.mov(eax, 6)
    }),
    row("x87: FLD, FADD, FISTP", 42, |a| {
        a.fninit()?;
        a.mov(dword_ptr(r8), 41)?;
        a.fild(dword_ptr(r8))?;
        a.fld1()?;
        a.faddp(st1, st0)?;
        a.fistp(qword_ptr(r8))?;
        a.mov(rax, qword_ptr(r8))
    }),
    row("x87: FNSTCW, FNSTSW, FNCLEX", 0x37F, |a| {
        a.fninit()?;
        a.fnclex()?;
        a.fnstcw(word_ptr(r8))?;
        a.xor(eax, eax)?;
        a.fnstsw(word_ptr(r8 + 2))?;
        a.mov(eax, dword_ptr(r8))
    }),
    row("MMX: MOVQ, PADDD, EMMS", 0x4_0000_0006, |a| {
        a.mov(rax, 0x2_0000_0003u64)?;
        a.movq(mm0, rax)?;
        a.movq(mm1, mm0)?;
        a.paddd(mm0, mm1)?;
        a.movq(rax, mm0)?;
        a.emms()
    }),
    row("SSE2: MOVDQU, PADDQ, PSHUFD, CVTSI2SD", 24, |a| {
        a.mov(eax, 10)?;
        a.movq(xmm0, rax)?;
        a.movdqu(xmm1, xmm0)?;
        a.paddq(xmm0, xmm1)?;
        a.movdqu(ptr(r8), xmm0)?;
        a.cvtsi2sd(xmm1, dword_ptr(r8))?;
        a.mov(ecx, 4)?;
        a.cvtsi2sd(xmm2, ecx)?;
        a.addsd(xmm1, xmm2)?;
        a.cvttsd2si(rax, xmm1)?;
        a.pshufd(xmm0, xmm1, 0)
    }),
    row("SSSE3: PSHUFB, SSE3: HADDPD", 0x0101_0101_0101_0101, |a| {
        a.mov(eax, 1)?;
        a.movq(xmm0, rax)?;
        a.pxor(xmm1, xmm1)?;
        a.pshufb(xmm0, xmm1)?;
        a.haddpd(xmm1, xmm1)?;
        a.movq(rax, xmm0)
    }),
    row("FXSAVE, FXRSTOR, LDMXCSR", 0x55, |a| {
        a.mov(eax, 0x55)?;
        a.movq(xmm0, rax)?;
        a.mov(dword_ptr(r8), 0x1F80)?;
        a.ldmxcsr(dword_ptr(r8))?;
        a.fxsave(ptr(r8 + 0x40))?;
        a.pxor(xmm0, xmm0)?;
        a.fxrstor(ptr(r8 + 0x40))?;
        a.movq(rax, xmm0)
    }),
    row("CALL, RET n, JMP, LOOP, JRCXZ", 11, |a| {
        let (mut function, mut start, mut again, mut end) = (
            a.create_label(),
            a.create_label(),
            a.create_label(),
            a.create_label(),
        );
        a.jmp(start)?;
        a.set_label(&mut function)?;
        a.add(rax, qword_ptr(rsp + 8))?;
        a.ret_1(8)?;
        a.set_label(&mut start)?;
        a.xor(eax, eax)?;
        a.mov(ecx, 3)?;
        a.set_label(&mut again)?;
        a.push(3)?;
        a.call(function)?;
        a.loop_(again)?;
        a.jrcxz(end)?;
        a.ud2()?;
        a.set_label(&mut end)?;
        a.add(eax, 2)
    }),
    row("SLDT, STR, SMSW, VERW, LAR", 0x40, |a| {
        a.str(eax)?;
        a.mov(word_ptr(r8), 0x2B)?;
        a.verw(word_ptr(r8))?;
        a.mov(edx, 0x2B)?;
        a.lar(ecx, edx)
    }),
    privileged(
        "SWAPGS, WRMSR and RDMSR of IA32_KERNEL_GS_BASE",
        0x12_3000,
        |a| {
            a.mov(ecx, 0xC000_0102u32)?;
            a.mov(eax, 0x12_3000)?;
            a.xor(edx, edx)?;
            a.wrmsr()?;
            a.swapgs()?;
            a.mov(ecx, 0xC000_0101u32)?;
            a.rdmsr()
        },
    ),
    privileged("MOV CR3, MOV CR4, INVLPG, CLTS, WBINVD", 5, |a| {
        a.mov(rax, iced_x86::code_asm::cr3)?;
        a.mov(iced_x86::code_asm::cr3, rax)?;
        a.mov(rax, iced_x86::code_asm::cr4)?;
        a.mov(iced_x86::code_asm::cr4, rax)?;
        a.invlpg(ptr(r8))?;
        a.clts()?;
        a.wbinvd()?;
        a.mov(eax, 5)
    }),
    privileged(
        "SGDT, LGDT, SIDT, LIDT, LLDT, loads of segments",
        0x18,
        |a| {
            a.sgdt(ptr(r8))?;
            a.lgdt(ptr(r8))?;
            a.sidt(ptr(r8))?;
            a.lidt(ptr(r8))?;
            a.xor(eax, eax)?;
            a.lldt(iced_x86::code_asm::ax)?;
            a.mov(iced_x86::code_asm::es, eax)?;
            a.mov(eax, 0x18)?;
            a.mov(iced_x86::code_asm::ds, eax)?;
            a.mov(iced_x86::code_asm::ss, eax)?;
            a.xor(eax, eax)?;
            a.mov(eax, iced_x86::code_asm::ss)
        },
    ),
    privileged("far RET", 0x10, |a| {
        let mut next = a.create_label();
        a.lea(rax, ptr(next))?;
        a.push(0x10)?;
        a.push(rax)?;
        a.db(&[0x48, 0xCB])?; // 64-bit far RET
        a.set_label(&mut next)?;
        a.xor(eax, eax)?;
        a.mov(eax, iced_x86::code_asm::cs)
    }),
    privileged("CLI, STI, PUSHFQ", 0x200, |a| {
        a.sti()?;
        a.pushfq()?;
        a.cli()?;
        a.pop(rax)?;
        a.and(eax, 0x200)
    }),
    privileged("OUT and IN in one block, REP OUTSB", 0, |a| {
        a.mov(rsi, r8)?;
        a.mov(ecx, 0)?;
        a.mov(edx, 0x3F8)?;
        a.rep().outsb()?;
        a.movzx(eax, cl)?;
        a.mov(dx, dx)
    }),
];
