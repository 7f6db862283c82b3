//! Bases of segments: which transfers keep them.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::UD;
use vbts_cpu::state::{Segment, gpr};

use crate::common::{DATA, Guest, KERNEL_STACK, USER, USER_STACK, segment, selector};

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
