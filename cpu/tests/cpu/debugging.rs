//! Debug exceptions: single-stepping, breakpoints, watchpoints, and the debug registers.

use crate::common::{DATA, Gate, Guest, KERNEL, USER, handler, selector};
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{BP, DB, GP, UD};
use vbts_cpu::state::{Activity, cr4, gpr, rflags};

const BD: u64 = 1 << 13;
const BS: u64 = 1 << 14;
const BTF: u64 = 1 << 1;

/// Makes the handler of #DB collect the addresses at which it was entered, in a list that starts at
/// `DATA`, with its length in R15.
fn collect_traps(g: &mut Guest) {
    g.assemble(handler(DB), |a| {
        a.push(rax)?;
        a.mov(rax, qword_ptr(rsp + 8))?;
        a.mov(qword_ptr(r15 * 8 + DATA as i32), rax)?;
        a.inc(r15)?;
        a.pop(rax)?;
        a.iretq()
    });
}

fn traps(g: &Guest) -> Vec<u64> {
    (0..g.soft.cpu.gpr[15])
        .map(|i| g.read(DATA + 8 * i))
        .collect()
}

/// A user program that sets TF with POPFQ and then runs `program`, which ends by HLT (#GP).
fn step(
    program: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
) -> (Guest, u64) {
    let mut g = Guest::user(|a| {
        a.push(0x102)?;
        a.popfq()
    });
    let start = USER + 6;
    g.assemble(start, program);
    collect_traps(&mut g);
    (g, start)
}

#[test]
fn tf_traps_after_each_instruction_from_the_one_after_popf() {
    let (mut g, start) = step(|a| {
        a.nop()?;
        a.mov(eax, 1)?;
        a.hlt()
    });
    let frame = g.run_to_exception(GP, Some(0));
    assert_eq!(traps(&g), [start + 1, start + 6]);
    assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, BS);
    assert_ne!(frame.rflags & rflags::TF, 0);
}

#[test]
fn a_handler_runs_with_tf_clear_and_iret_restores_it() {
    let (mut g, start) = step(|a| {
        a.int(0x21)?;
        a.nop()?;
        a.nop()?;
        a.hlt()
    });
    g.gate(
        0x21,
        Gate {
            dpl: 3,
            ..Gate::default()
        },
    );
    g.assemble(handler(0x21), |a| {
        a.nop()?;
        a.iretq()
    });
    g.run_to_exception(GP, Some(0));
    // Neither INT nor the handler traps, and after IRET the first instruction is not before a trap.
    assert_eq!(traps(&g), [start + 3, start + 4]);
}

#[test]
fn mov_ss_holds_the_trap_until_after_the_next_instruction() {
    let (mut g, start) = step(|a| {
        a.mov(eax, u32::from(selector::USER_SS))?;
        a.mov(ss, eax)?;
        a.nop()?;
        a.hlt()
    });
    g.run_to_exception(GP, Some(0));
    assert_eq!(traps(&g), [start + 5, start + 8]);
}

#[test]
fn an_instruction_after_mov_ss_that_clears_tf_does_not_trap() {
    let (mut g, start) = step(|a| {
        a.mov(eax, u32::from(selector::USER_SS))?;
        a.mov(ss, eax)?;
        a.syscall()?;
        a.mov(ss, eax)?;
        a.int(0x21)?;
        a.hlt()
    });
    let user = Gate {
        dpl: 3,
        ..Gate::default()
    };
    g.gate(0x21, user);
    g.assemble(handler(0x21), |a| a.iretq());
    g.assemble(KERNEL, |a| a.sysretq());
    g.update(|s| {
        s.msr.lstar = KERNEL;
        s.msr.fmask = rflags::TF;
    });
    g.run_to_exception(GP, Some(0));
    // MOV to EAX, and SYSRET, which sets TF, but nothing in the kernel.
    assert_eq!(traps(&g), [start + 5, start + 9]);
}

#[test]
fn no_instruction_breakpoint_right_after_mov_ss() {
    let mut g = Guest::user(|a| {
        a.mov(ss, word_ptr(DATA + 0x800))?;
        a.nop()?;
        a.hlt()
    });
    g.write(DATA + 0x800, selector::USER_SS.into());
    collect_traps(&mut g);
    g.update(|s| {
        s.sys.dr[0] = DATA + 0x800;
        s.sys.dr[1] = USER + 7;
        s.sys.dr7 = dr7(3, 1) | 1 << 2;
    });
    g.run_to_exception(GP, Some(0));
    // The data breakpoint of MOV SS, after NOP.
    assert_eq!(traps(&g), [USER + 8]);
    assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, 1);
}

#[test]
fn syscall_that_clears_tf_does_not_trap_and_sysret_that_sets_it_does() {
    let (mut g, start) = step(|a| {
        a.syscall()?;
        a.nop()?;
        a.hlt()
    });
    g.assemble(KERNEL, |a| {
        a.nop()?;
        a.sysretq()
    });
    g.update(|s| {
        s.msr.lstar = KERNEL;
        s.msr.fmask = rflags::TF;
    });
    g.run_to_exception(GP, Some(0));
    assert_eq!(traps(&g), [start + 2, start + 3]);
}

#[test]
fn sysenter_keeps_tf_and_traps_in_the_kernel() {
    let (mut g, _) = step(|a| a.sysenter());
    g.assemble(handler(DB), |a| a.hlt());
    g.update(|s| {
        s.msr.sysenter_eip = KERNEL;
        s.msr.sysenter_esp = crate::common::KERNEL_STACK;
    });
    let frame = g.run_to_exception(DB, None);
    assert_eq!((frame.rip, frame.cs), (KERNEL, selector::KERNEL_CS.into()));
}

#[test]
fn a_debug_exception_replaces_the_breakpoint_conditions_of_an_earlier_one() {
    let mut g = Guest::kernel(|a| a.nop());
    g.update(|s| {
        s.rflags |= rflags::TF;
        s.sys.dr6 |= BD | 0xF;
    });
    g.run_to_exception(DB, None);
    assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, BD | BS);
}

#[test]
fn a_debug_trap_wakes_hlt() {
    let mut g = Guest::kernel(|a| a.hlt());
    g.update(|s| s.rflags |= rflags::TF);
    assert_eq!(g.run_to_exception(DB, None).rip, KERNEL + 1);
}

#[test]
fn with_btf_only_branches_trap_and_the_trap_clears_it() {
    let (mut g, start) = step(|a| {
        let mut on = a.create_label();
        a.nop()?;
        a.test(esp, esp)?;
        a.jz(on)?;
        a.jnz(on)?;
        a.nop()?;
        a.set_label(&mut on)?;
        a.nop()?;
        a.hlt()
    });
    g.update(|s| s.debugctl = BTF);
    g.run_to_exception(GP, Some(0));
    // The branch; then, with BTF gone, every instruction.
    assert_eq!(traps(&g), [start + 8, start + 9]);
    assert_eq!(g.soft.cpu.state().debugctl, 0);
}

#[test]
fn with_btf_a_branch_before_tf_is_set_does_not_trap() {
    const TR_AND_BTS: u64 = 0xC0;
    let mut g = Guest::kernel(|a| {
        let (mut next, mut on) = (a.create_label(), a.create_label());
        // The first record of a window takes the slow path, as do all with BTF.
        a.jmp(next)?;
        a.set_label(&mut next)?;
        a.push(0x102)?;
        a.popfq()?;
        a.nop()?;
        a.nop()?;
        a.jmp(on)?;
        a.set_label(&mut on)?;
        a.hlt()
    });
    collect_traps(&mut g);
    g.trace(TR_AND_BTS | BTF, 100);
    g.run();
    let after_jump = KERNEL + 2 + 6 + 2 + 2;
    assert_eq!(traps(&g)[..1], [after_jump]);
}

#[test]
fn int3_returns_to_the_next_instruction() {
    let mut g = Guest::user(|a| a.int3());
    g.gate(
        BP,
        Gate {
            dpl: 3,
            ..Gate::default()
        },
    );
    let frame = g.run_to_exception(BP, None);
    assert_eq!(frame.rip, USER + 1);
    assert_eq!(frame.rflags & rflags::RF, 0);
}

#[test]
fn int1_is_not_subject_to_the_dpl_of_its_gate() {
    let mut g = Guest::user(|a| a.int1());
    g.update(|s| s.debugctl = 3);
    let frame = g.run_to_exception(DB, None);
    assert_eq!(frame.rip, USER + 1);
    assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, 0);
    assert_eq!(g.soft.cpu.state().debugctl, 0);
}

#[test]
fn an_instruction_breakpoint_faults_before_the_instruction_until_rf_is_set() {
    let mut g = Guest::kernel(|a| {
        a.nop()?;
        a.inc(ebx)?;
        a.hlt()
    });
    g.update(|s| {
        s.sys.dr[2] = KERNEL + 1;
        s.sys.dr7 = 1 << 5;
    });
    let frame = g.run_to_exception(DB, None);
    assert_eq!((frame.rip, g.soft.cpu.gpr[3]), (KERNEL + 1, 0));
    assert_eq!(frame.rflags & rflags::RF, 0);
    assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, 1 << 2);

    // With RF in the frame the instruction runs, and RF is gone after it.
    g.write(frame.at + 16, frame.rflags | rflags::RF);
    g.assemble(0x2_1000, |a| a.iretq());
    g.update(|s| {
        s.rip = 0x2_1000;
        s.activity = Activity::Active;
    });
    g.run_to(KERNEL + 4);
    assert_eq!(g.soft.cpu.gpr[3], 1);
    assert_eq!(g.rflags() & rflags::RF, 0);
}

/// DR7 with breakpoint 0 enabled for `rw` accesses of an encoded length.
fn dr7(rw: u64, len: u64) -> u64 {
    1 | rw << 16 | len << 18
}

#[test]
fn watchpoints_trap_after_the_access() {
    const WRITE: u64 = 1;
    const READ_WRITE: u64 = 3;
    // Register value, R/W, LEN, whether the program stores, and where, how many bytes; whether that
    // is a hit.
    let cases = [
        (DATA, WRITE, 0, true, DATA, 1, true),
        (DATA, WRITE, 0, true, DATA + 1, 1, false),
        (DATA, WRITE, 0, false, DATA, 1, false),
        (DATA, READ_WRITE, 0, false, DATA, 1, true),
        (DATA + 4, WRITE, 3, true, DATA, 8, true),
        (DATA + 4, WRITE, 3, true, DATA + 1, 4, true),
        (DATA + 4, WRITE, 3, true, DATA, 4, false),
        (DATA, READ_WRITE, 2, false, DATA + 7, 1, true),
        (DATA, READ_WRITE, 2, false, DATA + 8, 1, false),
        // The low bits of the address are ignored.
        (DATA + 3, WRITE, 3, true, DATA, 1, true),
    ];
    for (i, (dr, rw, len, store, at, size, hit)) in cases.into_iter().enumerate() {
        let mut g = Guest::kernel(|a| {
            match (store, size) {
                (true, 1) => a.mov(byte_ptr(at), cl)?,
                (true, 4) => a.mov(dword_ptr(at), ecx)?,
                (true, _) => a.mov(qword_ptr(at), rcx)?,
                (false, _) => a.mov(cl, byte_ptr(at))?,
            }
            a.inc(ebx)?;
            a.hlt()
        });
        g.update(|s| {
            s.sys.dr[0] = dr;
            s.sys.dr7 = dr7(rw, len);
        });
        if hit {
            g.run_to_exception(DB, None);
            assert_eq!(g.soft.cpu.gpr[3], 0, "case {i}");
            assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, 1, "case {i}");
        } else {
            g.run();
            assert_eq!(g.soft.cpu.gpr[3], 1, "case {i}");
        }
    }
}

#[test]
fn the_instruction_after_mov_ss_decides_about_its_watchpoint() {
    // The instruction after MOV SS; the RIP that each #DB is for.
    let trap = |length| USER + 7 + length;
    let cases: [(&[u8], Vec<u64>); 4] = [
        (&[0x90], vec![trap(1)]),
        // INT3 and INT n are done first: the trap is at the first instruction of their handler.
        (&[0xCC], vec![handler(BP)]),
        (&[0xCD, 3], vec![handler(BP)]),
        // INT1 is itself a #DB, and the only one.
        (&[0xF1], vec![trap(1)]),
    ];
    for (bytes, expected) in cases {
        let mut g = Guest::user(|a| {
            a.mov(ss, word_ptr(DATA + 0x800))?;
            a.db(bytes)?;
            a.hlt()
        });
        g.write(DATA + 0x800, selector::USER_SS.into());
        g.gate(
            BP,
            Gate {
                dpl: 3,
                ..Gate::default()
            },
        );
        g.assemble(handler(BP), |a| a.iretq());
        collect_traps(&mut g);
        g.update(|s| {
            s.sys.dr[0] = DATA + 0x800;
            s.sys.dr7 = dr7(3, 1);
        });
        g.run_to_exception(GP, Some(0));
        assert_eq!(traps(&g), expected, "{bytes:x?}");
    }
}

#[test]
fn a_new_watchpoint_matches_accesses_to_a_page_in_use() {
    let mut g = Guest::kernel(|a| {
        a.mov(eax, DATA as u32)?;
        a.mov(dword_ptr(rax), 1)?;
        a.mov(dr0, rax)?;
        a.mov(ecx, dr7(1, 3) as u32)?;
        a.mov(dr7_register(), rcx)?;
        a.mov(dword_ptr(rax), 2)?;
        a.hlt()
    });
    g.run_to_exception(DB, None);
    assert_eq!(g.read(DATA), 2);
}

/// DR7 for the assembler, whose name the function above has taken.
fn dr7_register() -> AsmRegisterDr {
    iced_x86::code_asm::registers::dr7
}

#[test]
fn general_detect_protects_the_debug_registers_once() {
    let mut g = Guest::kernel(|a| a.mov(rax, dr3));
    g.update(|s| s.sys.dr7 = BD);
    let frame = g.run_to_exception(DB, None);
    assert_eq!(frame.rip, KERNEL);
    assert_ne!(frame.rflags & rflags::RF, 0);
    assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, BD);
    assert_eq!(g.soft.cpu.sys.dr7 & BD, 0);
}

#[test]
fn dr4_and_dr5_are_aliases_only_without_debugging_extensions() {
    let program = |a: &mut CodeAssembler| {
        a.mov(rax, dr4)?;
        a.mov(rbx, dr5)?;
        a.hlt()
    };
    let mut g = Guest::kernel(program);
    g.run_to_exception(UD, None);
    let mut g = Guest::kernel(program);
    g.update(|s| s.sys.cr4 &= !cr4::DE);
    g.run_to(KERNEL + 7);
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 0xFFFF_0FF0);
    assert_eq!(g.soft.cpu.gpr[gpr::RBX], 0x400);
}

#[test]
fn debug_registers_are_the_kernels_and_have_32_bits_of_control() {
    let mut g = Guest::user(|a| a.mov(rax, dr6));
    g.run_to_exception(GP, Some(0));
    let mut g = Guest::kernel(|a| {
        a.mov(rax, 1u64 << 32)?;
        a.mov(dr6, rax)
    });
    g.run_to_exception(GP, Some(0));
}
