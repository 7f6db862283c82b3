//! Who may use the x87 FPU, MMX and SSE, and what of them is left by faults.

use crate::common::deviations::is_left_out;
use crate::common::{DATA, Guest, KERNEL, assemble, segment, selector};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{MF, NM, PF, UD, XM};
use vbts_cpu::state::{Activity, cr0, cr4, gpr};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

const X87: &[Program] = &[
    |a| a.fld1(),
    |a| a.fnstcw(word_ptr(rdi)),
    |a| a.fnclex(),
    |a| a.fnstenv(ptr(rdi)),
    |a| a.fxsave(ptr(rdi)),
    |a| a.fxrstor(ptr(rdi)),
];
const MMX: &[Program] = &[
    |a| a.paddb(mm0, mm1),
    |a| a.movq(mm0, qword_ptr(rdi)),
    |a| a.movd(eax, mm0),
    |a| a.pshufw(mm0, mm1, 1),
    |a| a.emms(),
];
const SSE: &[Program] = &[
    |a| a.addsd(xmm0, xmm1),
    |a| a.addps(xmm0, xmmword_ptr(rdi)),
    |a| a.paddb(xmm0, xmm1),
    |a| a.movaps(xmmword_ptr(rdi), xmm0),
    |a| a.ucomiss(xmm0, dword_ptr(rdi)),
    |a| a.cvtsi2sd(xmm0, rax),
    |a| a.movd(eax, xmm0),
    |a| a.stmxcsr(dword_ptr(rdi)),
    |a| a.cvtpi2ps(xmm0, mm0),
    |a| a.movdq2q(mm0, xmm0),
];
/// Part of SSE, but without vectors.
const NEITHER: &[Program] = &[
    |a| a.movnti(dword_ptr(rdi), eax),
    |a| a.mfence(),
    |a| a.sfence(),
    // Nothing is mapped there.
    |a| a.prefetcht0(byte_ptr(rdi + 0x7000_0000)),
    // A hint to later processors, and to this one nothing.
    |a| a.prefetchw(byte_ptr(rdi)),
];

/// Runs each program with CR0 and CR4 changed; it must raise `fault`, or complete.
fn each(programs: &[Program], fault: Option<u8>, set: u64, clear4: u64) {
    for (n, program) in programs.iter().enumerate() {
        let mut g = Guest::new();
        let end = g.assemble(KERNEL, |a| {
            program(a)?;
            a.hlt()
        });
        g.update(|s| {
            s.gpr[gpr::RDI] = DATA;
            s.sys.cr0 |= set;
            s.sys.cr4 &= !clear4;
        });
        match fault {
            Some(vector) => assert_eq!(g.run_to_exception(vector, None).rip, KERNEL, "{n}"),
            None => g.run_to(end),
        }
    }
}

#[test]
fn emulation_is_for_software() {
    each(X87, Some(NM), cr0::EM, 0);
    each(MMX, Some(UD), cr0::EM, 0);
    each(SSE, Some(UD), cr0::EM, 0);
    each(NEITHER, None, cr0::EM, 0);
}

#[test]
fn task_switched_state_is_not_touched() {
    for programs in [X87, MMX, SSE] {
        each(programs, Some(NM), cr0::TS, 0);
    }
    each(NEITHER, None, cr0::TS, 0);
}

#[test]
fn emulation_comes_before_task_switched() {
    each(MMX, Some(UD), cr0::EM | cr0::TS, 0);
    each(SSE, Some(UD), cr0::EM | cr0::TS, 0);
}

#[test]
fn sse_is_undefined_until_the_system_saves_it() {
    each(SSE, Some(UD), 0, cr4::OSFXSR);
    for programs in [X87, MMX, NEITHER] {
        each(programs, None, 0, cr4::OSFXSR);
    }
}

#[test]
fn fwait_checks_ts_only_with_mp() {
    const WAIT: &[Program] = &[|a| a.wait()];
    each(WAIT, None, cr0::TS, 0);
    each(WAIT, None, cr0::MP, 0);
    each(WAIT, None, cr0::EM, 0);
    each(WAIT, Some(NM), cr0::MP | cr0::TS, 0);
}

/// A program that divides 1 by 0 with ZE unmasked, which is then pending.
fn divide_by_zero(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(edi, DATA as u32)?;
    a.mov(dword_ptr(rdi), 0x37B)?;
    a.fldcw(word_ptr(rdi))?;
    a.fldz()?;
    a.fld1()?;
    a.fdiv_2(st0, st1)
}

/// Runs `program` after [`divide_by_zero`], and HLT. Tells where it starts and ends.
fn after_division(program: Program) -> (Guest, u64, u64) {
    let mut g = Guest::kernel(divide_by_zero);
    let start = KERNEL + assemble(64, KERNEL, divide_by_zero).len() as u64;
    let end = g.assemble(start, |a| {
        program(a)?;
        a.hlt()
    });
    (g, start, end)
}

#[test]
fn an_unmasked_x87_exception_is_raised_by_the_next_waiting_instruction() {
    if is_left_out("an_unmasked_x87_exception_is_raised_by_the_next_waiting_instruction") {
        return;
    }
    let waiting: &[Program] = &[
        |a| a.fld1(),
        |a| a.wait(),
        |a| a.fldcw(word_ptr(rdi)),
        |a| a.fstp(qword_ptr(rdi)),
        |a| a.paddb(mm0, mm1),
        |a| a.emms(),
        |a| a.cvtpi2ps(xmm0, mm0),
    ];
    for program in waiting {
        let (mut g, start, _) = after_division(*program);
        let frame = g.run_to_exception(MF, None);
        assert_eq!(frame.rip, start);
        let x87 = &g.soft.cpu.x87;
        // ZE, ES and B, with TOP at 6; the division has not replaced ST(0).
        assert_eq!(x87.fsw, 0xB084);
        assert_eq!(x87.st(0), 0x3FFF << 64 | 1 << 63);
        assert_eq!(x87.fip, start - 2);
        assert_eq!(x87.fop, 0x0F1);
    }
}

#[test]
fn control_instructions_do_not_wait() {
    let control: &[(Program, u16)] = &[
        (|a| a.fnstsw(ax), 0xB084),
        (|a| a.fnstcw(word_ptr(rdi)), 0xB084),
        (|a| a.fnclex(), 0x3000),
        (|a| a.fninit(), 0),
        // Masks everything, so that nothing is pending.
        (|a| a.fnstenv(ptr(rdi)), 0x3004),
        (|a| a.fnsave(ptr(rdi)), 0),
        (|a| a.fxsave(ptr(rdi)), 0xB084),
        (|a| a.addsd(xmm0, xmm1), 0xB084),
    ];
    for (n, (program, fsw)) in control.iter().enumerate() {
        let (mut g, _, end) = after_division(*program);
        g.run_to(end);
        assert_eq!(g.soft.cpu.x87.fsw, *fsw, "{n}");
    }
}

#[test]
fn a_page_fault_leaves_the_registers_and_memory_unchanged() {
    // The operand, and how much of it is in the page before the one that is missing.
    let programs: &[(Program, u64)] = &[
        (|a| a.fstp(qword_ptr(rdi)), 0),
        (|a| a.fstp(qword_ptr(rdi)), 4),
        (|a| a.fstp(tbyte_ptr(rdi)), 8),
        (|a| a.fistp(dword_ptr(rdi)), 2),
        (|a| a.fadd(qword_ptr(rdi)), 0),
        (|a| a.fnsave(ptr(rdi)), 16),
        (|a| a.frstor(ptr(rdi)), 16),
        (|a| a.fxsave(ptr(rdi)), 16),
        (|a| a.fxrstor(ptr(rdi)), 16),
        (|a| a.movq(mm0, qword_ptr(rdi)), 4),
        (|a| a.movq(qword_ptr(rdi), mm0), 4),
        (|a| a.mulsd(xmm0, qword_ptr(rdi)), 4),
        (|a| a.movups(xmmword_ptr(rdi), xmm0), 8),
    ];
    for &(program, before) in programs {
        let mut g = Guest::kernel(|a| {
            a.fldpi()?;
            program(a)?;
            a.hlt()
        });
        g.page(DATA + 0x1000, 0);
        g.update(|s| {
            s.gpr[gpr::RDI] = DATA + 0x1000 - before;
            s.xmm[0] = 0x1234;
        });
        let exit = g.run();
        assert_eq!(g.soft.cpu.rip, crate::common::handler(PF) + 1, "{exit:?}");
        assert_eq!(g.soft.cpu.sys.cr2, DATA + 0x1000);
        let x87 = &g.soft.cpu.x87;
        assert_eq!((x87.fsw, x87.ftw), (0x3800, 0x80));
        assert_eq!(x87.st(0), 0x4000_C90F_DAA2_2168_C235);
        assert_eq!(g.soft.cpu.xmm[0], 0x1234);
        assert_eq!((g.read(DATA + 0xFF0), g.read(DATA + 0xFF8)), (0, 0));
    }
}

#[test]
fn a_masked_store_writes_all_selected_bytes_or_none() {
    let mut g = Guest::kernel(|a| {
        a.maskmovdqu(xmm0, xmm1)?;
        a.hlt()
    });
    let run = |g: &mut Guest, la: u64, mask: u128| {
        g.update(|s| {
            s.rip = KERNEL;
            s.activity = Activity::Active;
            s.gpr[gpr::RDI] = la;
            s.xmm[0] = u128::from_le_bytes(std::array::from_fn(|i| i as u8 + 1));
            s.xmm[1] = mask;
        });
        g.run();
        g.soft.cpu.rip == crate::common::handler(PF) + 1
    };
    g.page(DATA + 0x1000, 0);
    assert!(!run(&mut g, DATA, 0x80 << 120 | 0x7F << 8 | 0xFF));
    assert_eq!((g.read(DATA), g.read(DATA + 8)), (1, 16 << 56));
    // Across the pages: only what is selected counts.
    let at = DATA + 0xFF8;
    assert!(!run(&mut g, at, 0x80));
    assert_eq!(g.read(at), 1);
    assert!(run(&mut g, at, 0x80 << 64 | 0x80 << 8));
    assert_eq!(g.read(at), 1);
    assert_eq!(g.soft.cpu.sys.cr2, DATA + 0x1000);
    assert!(!run(&mut g, DATA + 0x1000, 0));
}

#[test]
fn an_environment_has_the_address_of_the_last_instruction() {
    let mut g = Guest::kernel(|a| {
        a.mov(edi, DATA as u32)?;
        a.fld1()?;
        a.fadd(qword_ptr(rdi + 0x40))?;
        a.fninit()?;
        a.fadd(qword_ptr(rdi + 0x40))?;
        a.fnstenv(ptr(rdi))?;
        a.hlt()
    });
    g.run();
    // The second FADD follows 5, 2, 3 and 2 bytes; control instructions do not count.
    assert_eq!(g.read(DATA + 12) as u32, KERNEL as u32 + 12);
    assert_eq!(g.read(DATA + 20) as u32, DATA as u32 + 0x40);
    // FADD m64 is DC /0.
    assert_eq!(g.read(DATA + 16) >> 16 & 0x7FF, 0x400);
}

#[test]
fn outside_64_bit_mode_fxsave_stores_eight_xmm_registers() {
    let mut g = Guest::new();
    let code = assemble(32, KERNEL, |a| {
        a.fxsave(ptr(edi))?;
        a.pxor(xmm7, xmm7)?;
        a.fxrstor(ptr(edi))?;
        a.hlt()
    });
    g.write_bytes(KERNEL, &code);
    g.write_bytes(DATA, &[0xEE; 512]);
    g.update(|s| {
        s.seg[1] = segment(selector::KERNEL_CS32);
        s.gpr[gpr::RDI] = DATA;
        s.xmm = std::array::from_fn(|i| i as u128 + 1);
    });
    g.run_to(KERNEL + code.len() as u64);
    let xmm = |n: u64| g.read(DATA + 160 + 16 * n);
    assert_eq!((xmm(0), xmm(7), xmm(8)), (1, 8, 0xEEEE_EEEE_EEEE_EEEE));
    assert_eq!((g.soft.cpu.xmm[7], g.soft.cpu.xmm[8]), (8, 9));
}

#[test]
fn a_dot_product_is_not_added_up_after_an_unmasked_exception() {
    if !is_x86_feature_detected!("sse4.1") {
        return;
    }
    /// Underflow: the flag, and the mask that is cleared.
    const UE: u32 = 0x10;
    const UM: u32 = 0x800;
    let model = vbts_cpu::model("x86-64-v2").unwrap();
    let mut g = Guest::of(model);
    g.assemble(KERNEL, |a| {
        a.dpps(xmm0, xmm1, 0xFF)?;
        a.hlt()
    });
    // 2^-65, whose square is denormal and exact: as an addend it would raise DE.
    let small = 0x1F00_0000_1F00_0000_1F00_0000_1F00_0000;
    g.update(|s| {
        s.sys.cr4 |= cr4::OSXMMEXCPT;
        s.xmm[0] = small;
        s.xmm[1] = small;
        s.mxcsr = 0x1F80 & !UM;
    });
    assert_eq!(g.run_to_exception(XM, None).rip, KERNEL);
    assert_eq!(g.soft.cpu.mxcsr, 0x1F80 & !UM | UE);
    assert_eq!(g.soft.cpu.xmm[0], small);
}
