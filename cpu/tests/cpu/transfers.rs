//! Transfers between segments, privilege levels and code sizes: far JMP, CALL and RET, call gates,
//! IRET.

use crate::common::{Guest, KERNEL, KERNEL_STACK, LDT, RSP0, USER, USER_STACK, assemble, selector};
use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction};
use vbts_cpu::state::vector::{GP, NP, SS, UD};
use vbts_cpu::state::{gpr, rflags};

const USER_CS: u64 = selector::USER_CS as u64;
const USER_SS: u64 = selector::USER_SS as u64;
const HOLE: u64 = 0x8000_0000_0000;

/// A kernel program that returns by IRETQ to `frame`, which is given from RIP up.
fn iret_to(frame: [u64; 5]) -> Guest {
    let mut g = Guest::kernel(|a| a.iretq());
    for (i, word) in frame.into_iter().enumerate() {
        g.write(KERNEL_STACK - 40 + 8 * i as u64, word);
    }
    g.update(|s| s.gpr[gpr::RSP] = KERNEL_STACK - 40);
    g
}

#[test]
fn iretq_to_user_code_loads_everything() {
    let image = rflags::FIXED | rflags::IF | rflags::CF | rflags::AC | rflags::ID | rflags::IOPL;
    let mut g = iret_to([USER, USER_CS, image, USER_STACK, USER_SS]);
    g.assemble(USER, |a| a.ud2());
    let frame = g.run_to_exception(UD, None);
    assert_eq!(
        (frame.rip, frame.cs, frame.rsp, frame.ss),
        (USER, USER_CS, USER_STACK, USER_SS)
    );
    assert_eq!(frame.rflags & !rflags::RF, image);
}

#[test]
fn iretq_drops_data_segments_of_the_inner_level_only() {
    let mut g = iret_to([USER, USER_CS, 2, USER_STACK, USER_SS]);
    g.assemble(USER, |a| a.ud2());
    g.update(|s| s.seg[4] = crate::common::segment(selector::USER_SS));
    g.run_to_exception(UD, None);
    let selectors = [0, 1, 2, 3, 4, 5].map(|n| g.soft.cpu.segment(n).selector);
    assert_eq!(selectors[3..], [0, selector::USER_SS, 0]);
}

#[test]
fn iretq_to_the_same_level_also_loads_the_stack() {
    for stack in [u64::from(selector::KERNEL_SS), 0] {
        let mut g = iret_to([
            KERNEL + 0x100,
            selector::KERNEL_CS.into(),
            2,
            0x3_0008,
            stack,
        ]);
        g.assemble(KERNEL + 0x100, |a| a.hlt());
        g.run_to(KERNEL + 0x101);
        assert_eq!(g.soft.cpu.gpr[gpr::RSP], 0x3_0008);
        assert_eq!(u64::from(g.soft.cpu.segment(2).selector), stack);
    }
}

#[test]
fn iretq_checks_what_it_returns_to() {
    let kernel_cs = u64::from(selector::KERNEL_CS);
    let kernel_ss = u64::from(selector::KERNEL_SS);
    let not_present = u64::from(selector::NOT_PRESENT_CS);
    let cases = [
        // Not canonical, null, beyond the table, a data segment, wrong RPL, not present.
        ([HOLE, USER_CS, 2, USER_STACK, USER_SS], GP, 0),
        ([USER, 3, 2, USER_STACK, USER_SS], GP, 0),
        ([USER, 0x1FFB, 2, USER_STACK, USER_SS], GP, 0x1FF8),
        ([USER, USER_SS, 2, USER_STACK, USER_SS], GP, 0x28),
        ([USER, kernel_cs | 3, 2, USER_STACK, USER_SS], GP, kernel_cs),
        (
            [USER, not_present, 2, KERNEL_STACK, kernel_ss],
            NP,
            not_present,
        ),
        // The stack: null at CPL 3, of another level, read-only or code, not present.
        ([USER, USER_CS, 2, USER_STACK, 3], GP, 0),
        ([USER, USER_CS, 2, USER_STACK, kernel_ss], GP, kernel_ss),
        ([USER, USER_CS, 2, USER_STACK, USER_CS], GP, 0x30),
        ([KERNEL, kernel_cs, 2, KERNEL_STACK, 0x70], SS, 0x70),
    ];
    for (i, (frame, vector, error)) in cases.into_iter().enumerate() {
        let mut g = iret_to(frame);
        let pushed = g.run_to_exception(vector, Some(error));
        assert_eq!(
            (pushed.rip, pushed.rsp),
            (KERNEL, KERNEL_STACK - 40),
            "case {i}"
        );
        assert_eq!((pushed.cs, pushed.ss), (kernel_cs, kernel_ss), "case {i}");
    }
}

#[test]
fn iret_with_nt_is_gp() {
    let mut g = iret_to([USER, USER_CS, 2, USER_STACK, USER_SS]);
    g.update(|s| s.rflags |= rflags::NT);
    g.run_to_exception(GP, Some(0));
}

#[test]
fn user_code_cannot_gain_if_or_iopl_by_iret() {
    let mut g = Guest::user(|a| {
        a.iretq()?;
        a.ud2()
    });
    let image = rflags::IF | rflags::IOPL | rflags::DF;
    for (i, word) in [USER + 2, USER_CS, image, USER_STACK, USER_SS]
        .into_iter()
        .enumerate()
    {
        g.write(USER_STACK - 40 + 8 * i as u64, word);
    }
    g.update(|s| s.gpr[gpr::RSP] = USER_STACK - 40);
    let frame = g.run_to_exception(UD, None);
    assert_eq!(
        frame.rflags & (rflags::IF | rflags::IOPL | rflags::DF),
        rflags::DF
    );
}

/// Puts 32-bit code at `at`.
fn assemble32(
    g: &mut Guest,
    at: u64,
    program: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
) {
    g.write_bytes(at, &assemble(32, at, program));
}

#[test]
fn compatibility_mode_is_entered_and_left() {
    let mut g = iret_to([USER, selector::USER_CS32.into(), 2, USER_STACK, USER_SS]);
    assemble32(&mut g, USER, |a| {
        // INC EAX is REX.W in 64-bit code.
        a.inc(eax)?;
        a.push(0x1234_5678u32 as i32)?;
        a.pop(ebx)?;
        let at = USER as u32 + 0x100;
        a.add_instruction(Instruction::with_far_branch(
            Code::Jmp_ptr1632,
            selector::USER_CS,
            at,
        )?)
    });
    g.assemble(USER + 0x100, |a| {
        a.mov(rcx, rsp)?;
        a.ud2()
    });
    let frame = g.run_to_exception(UD, None);
    assert_eq!((frame.rip, frame.cs), (USER + 0x103, USER_CS));
    assert_eq!(g.soft.cpu.gpr[..4], [1, USER_STACK, 0, 0x1234_5678]);
}

#[test]
fn exceptions_in_compatibility_mode_go_to_64_bit_handlers() {
    let mut g = iret_to([USER, selector::USER_CS32.into(), 2, USER_STACK, USER_SS]);
    assemble32(&mut g, USER, |a| {
        a.nop()?;
        a.syscall()
    });
    // SYSCALL is #UD outside 64-bit mode on Intel processors.
    let frame = g.run_to_exception(UD, None);
    assert_eq!(
        (frame.rip, frame.cs),
        (USER + 1, selector::USER_CS32.into())
    );
}

#[test]
fn retfq_returns_to_outer_levels_and_releases_arguments() {
    let mut g = Guest::kernel(|a| a.retf_1(16));
    let outer = [USER, USER_CS, 0, 0, USER_STACK - 0x100, USER_SS];
    for (i, word) in outer.into_iter().enumerate() {
        g.write(KERNEL_STACK - 48 + 8 * i as u64, word);
    }
    g.update(|s| s.gpr[gpr::RSP] = KERNEL_STACK - 48);
    g.assemble(USER, |a| a.ud2());
    let frame = g.run_to_exception(UD, None);
    assert_eq!(
        (frame.rip, frame.rsp, frame.ss),
        (USER, USER_STACK - 0x100 + 16, USER_SS)
    );
}

#[test]
fn a_far_call_and_return_at_one_level() {
    let mut g = Guest::kernel(|a| {
        a.mov(eax, KERNEL as u32 + 0x200)?;
        a.call(fword_ptr(rax))?;
        a.hlt()
    });
    g.write(
        KERNEL + 0x200,
        (KERNEL + 0x100) | u64::from(selector::CONFORMING_CS) << 32,
    );
    let after = g.assemble(KERNEL + 0x100, |a| {
        a.mov(ebx, cs)?;
        // With 32-bit operands, as the call.
        a.add_instruction(Instruction::with(Code::Retfd))
    });
    assert_eq!(after, KERNEL + 0x103);
    g.run_to(KERNEL + 8);
    // The selector's RPL is the CPL.
    assert_eq!(g.soft.cpu.gpr[3], u64::from(selector::CONFORMING_CS));
    assert_eq!(g.soft.cpu.segment(1).selector, selector::KERNEL_CS);
    assert_eq!(g.soft.cpu.gpr[gpr::RSP], KERNEL_STACK);
    // The operand size, and so the frame, is 32 bits.
    assert_eq!(g.read(KERNEL_STACK - 8) as u32, KERNEL as u32 + 7);
}

/// A user program that calls far through the pointer at `USER + 0x200`, to `selector`.
fn user_far_call(target: u16) -> Guest {
    let mut g = Guest::user(|a| {
        a.mov(eax, USER as u32 + 0x200)?;
        a.call(fword_ptr(rax))?;
        a.hlt()
    });
    g.write(USER + 0x200, u64::from(target) << 32);
    g
}

#[test]
fn a_call_gate_switches_to_the_kernel_and_back() {
    let mut g = user_far_call(selector::CALL_GATE | 3);
    g.call_gate(selector::KERNEL_CS, 3, KERNEL);
    g.assemble(KERNEL, |a| {
        a.mov(ebx, ss)?;
        a.mov(rcx, rsp)?;
        a.retf()
    });
    let frame = g.run_to_exception(GP, Some(0));
    assert_eq!(
        (frame.rip, frame.cs, frame.rsp, frame.ss),
        (USER + 7, USER_CS, USER_STACK, USER_SS)
    );
    assert_eq!((g.soft.cpu.gpr[3], g.soft.cpu.gpr[1]), (0, RSP0 - 32));
}

#[test]
fn a_call_gate_is_subject_to_its_dpl_and_its_targets_kind() {
    let gate = u64::from(selector::CALL_GATE);
    let cases = [
        (selector::KERNEL_CS, 0, KERNEL, GP, gate),
        (
            selector::KERNEL_SS,
            3,
            KERNEL,
            GP,
            selector::KERNEL_SS.into(),
        ),
        (
            selector::KERNEL_CS32,
            3,
            KERNEL,
            GP,
            selector::KERNEL_CS32.into(),
        ),
        (
            selector::NOT_PRESENT_CS,
            3,
            KERNEL,
            NP,
            selector::NOT_PRESENT_CS.into(),
        ),
        (0, 3, KERNEL, GP, 0),
        (selector::KERNEL_CS, 3, HOLE, GP, 0),
    ];
    for (i, (code, dpl, offset, vector, error)) in cases.into_iter().enumerate() {
        let mut g = user_far_call(selector::CALL_GATE | 3);
        g.call_gate(code, dpl, offset);
        let frame = g.run_to_exception(vector, Some(error));
        assert_eq!((frame.rip, frame.rsp), (USER + 5, USER_STACK), "case {i}");
    }
}

#[test]
fn a_far_call_cannot_reach_another_level_directly() {
    let mut g = user_far_call(selector::KERNEL_CS);
    g.run_to_exception(GP, Some(selector::KERNEL_CS.into()));
    let mut g = user_far_call(selector::TSS);
    g.run_to_exception(GP, Some(selector::TSS.into()));
}

#[test]
fn selectors_of_the_ldt_are_looked_up_there() {
    let mut g = Guest::new();
    let end = g.assemble(KERNEL, |a| {
        a.mov(eax, u32::from(selector::LDT))?;
        a.lldt(ax)?;
        a.mov(eax, 0xF)?; // Index 1, LDT, RPL 3
        a.mov(fs, eax)?;
        a.mov(eax, 0x1F)?; // Index 3 is beyond the limit
        a.mov(gs, eax)
    });
    g.write(LDT + 8, 0x00CF_F212_3456_FFFF);
    let frame = g.run_to_exception(GP, Some(0x1C));
    assert_eq!(frame.rip, end - 2);
    assert_eq!(g.soft.cpu.segment(4).base, 0x12_3456);
    // The descriptor is now marked as accessed.
    assert_eq!(g.read(LDT + 8), 0x00CF_F312_3456_FFFF);
}

#[test]
fn ltr_makes_the_tss_busy_and_takes_only_an_available_one() {
    let mut g = Guest::kernel(|a| {
        a.mov(eax, u32::from(selector::TSS))?;
        a.ltr(ax)
    });
    g.run_to_exception(GP, Some(selector::TSS.into()));

    let mut g = Guest::new();
    let end = g.assemble(KERNEL, |a| {
        a.mov(eax, u32::from(selector::TSS))?;
        a.ltr(ax)?;
        a.hlt()
    });
    let at = 0x1000 + u64::from(selector::TSS);
    let busy = g.read(at);
    g.write(at, busy & !(2 << 40));
    g.run_to(end);
    assert_eq!(g.read(at), busy);
}

#[test]
fn lar_lsl_verr_and_verw_report_through_zf() {
    // Selector; results of LAR (0 for none), LSL, VERR, VERW, at CPL 3.
    let cases = [
        (selector::USER_SS, 0xCF_F300, u32::MAX, true, true),
        (selector::USER_CS, 0xAF_FB00, u32::MAX, true, false),
        (selector::KERNEL_SS, 0, 0, false, false),
        (selector::CONFORMING_CS, 0xAF_9F00, u32::MAX, true, false),
        (0x1FF8, 0, 0, false, false),
        (0, 0, 0, false, false),
    ];
    for (selector, lar, lsl, readable, writable) in cases {
        let mut g = Guest::user(|a| {
            a.mov(eax, u32::from(selector))?;
            a.lar(ebx, eax)?;
            a.lsl(ecx, eax)?;
            a.verr(ax)?;
            a.setz(dl)?;
            a.verw(ax)?;
            a.setz(dh)?;
            a.ud2()
        });
        g.run_to_exception(UD, None);
        let r = &g.soft.cpu.gpr;
        // LAR returns the attributes without the limit.
        assert_eq!((r[3], r[1]), (lar & 0xF0_FF00, lsl.into()), "{selector:#x}");
        assert_eq!(
            r[2],
            u64::from(readable) | u64::from(writable) << 8,
            "{selector:#x}"
        );
    }
}
