//! Bases of segments: which transfers keep them, and which loads refuse one.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{GP, UD};
use vbts_cpu::state::{Segment, gpr};

use crate::common::{DATA, Guest, KERNEL_STACK, USER, USER_STACK, segment, selector};

const GDT: u64 = 0x1000;

/// FS and GS have segments of the inner level, and their bases are DATA and DATA + 8.
#[test]
fn returns_to_an_outer_level_keep_the_bases_of_fs_and_gs() {
    let (code, stack) = (u64::from(selector::USER_CS), u64::from(selector::USER_SS));
    let iretq = [USER, code, 2, USER_STACK, stack];
    let retfq = [USER, code, USER_STACK, stack, 0];
    type Return = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    for (name, by, frame) in [
        ("IRETQ", (|a| a.iretq()) as Return, iretq),
        ("RETFQ", |a| a.retf(), retfq),
    ] {
        let mut g = Guest::kernel(by);
        g.assemble(USER, |a| {
            a.mov(rax, qword_ptr(0).fs())?;
            a.mov(rbx, qword_ptr(0).gs())?;
            a.ud2()
        });
        let top = KERNEL_STACK - 40;
        for (at, word) in (top..).step_by(8).zip(frame) {
            g.write(at, word);
        }
        g.write(DATA, 0xF5);
        g.write(DATA + 8, 0x65);
        g.update(|s| {
            s.gpr[gpr::RSP] = top;
            for (n, base) in [(4, DATA), (5, DATA + 8)] {
                s.seg[n] = Segment {
                    base,
                    ..segment(selector::KERNEL_SS)
                };
            }
        });
        g.run_to_exception(UD, None);
        let cpu = &g.soft.cpu;
        let selectors = [4, 5].map(|n| cpu.segment(n).selector);
        assert_eq!(selectors, [0, 0], "{name}");
        assert_eq!(
            [cpu.gpr[gpr::RAX], cpu.gpr[gpr::RBX]],
            [0xF5, 0x65],
            "{name}"
        );
    }
}

#[test]
fn ltr_and_lldt_refuse_a_base_that_is_not_canonical() {
    const BUSY: u64 = 2 << 40;
    const TOP: u64 = 0xFFFF_8000;
    const HOLE: u64 = 0x8000;
    type Load = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let ltr: Load = |a| a.ltr(ax);
    let lldt: Load = |a| a.lldt(ax);
    for (load, selector) in [(ltr, selector::TSS), (lldt, selector::LDT)] {
        for (upper, good) in [(TOP, true), (HOLE, false)] {
            let mut g = Guest::new();
            let end = g.assemble(crate::common::KERNEL, |a| {
                a.mov(eax, u32::from(selector))?;
                load(a)?;
                a.hlt()
            });
            let at = GDT + u64::from(selector);
            let available = if selector == selector::TSS {
                g.read(at) & !BUSY
            } else {
                g.read(at)
            };
            g.write(at, available);
            g.write(at + 8, upper);
            if good {
                g.run_to(end);
                continue;
            }
            g.run_to_exception(GP, Some(selector.into()));
            assert_eq!(g.read(at), available, "not busy");
        }
    }
}
