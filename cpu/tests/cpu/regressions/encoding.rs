//! Byte registers that need a REX prefix, and the length of an instruction.

use super::After::Gpr;
use super::Case;
use super::End::{Completes, Faults};
use super::Mode::Bits64;
use crate::common::USER_STACK;
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::{RAX, RSI, RSP};
use vbts_cpu::state::vector::{GP, UD};

/// NOP behind operand-size prefixes, `LEN` bytes in all. An assembler does not repeat a prefix.
fn prefixed_nop<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0x66; LEN];
    bytes[LEN - 1] = 0x90;
    bytes
}

/// NOP behind LOCK and operand-size prefixes, 15 bytes in all.
fn locked_nop() -> [u8; 15] {
    let mut bytes = prefixed_nop();
    bytes[0] = 0xF0;
    bytes
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "a REX prefix selects SIL and R8B to R15B, not AH to BH",
        mode: Bits64,
        code: |a| {
            a.mov(sil, 0x11)?;
            a.mov(r8b, 0x22)?;
            a.mov(r12b, 0x33)?;
            a.mov(r15b, 0x44)
        },
        before: |s| s.gpr[RSI] = 0xFF00,
        memory: &[],
        end: Completes,
        after: &[
            Gpr(RSI, 0xFF11),
            Gpr(8, 0x22),
            Gpr(12, 0x33),
            Gpr(15, 0x44),
            Gpr(RAX, 0),
            Gpr(RSP, USER_STACK),
        ],
    },
    Case {
        name: "SPL is the stack pointer",
        mode: Bits64,
        code: |a| a.mov(spl, 0x55),
        before: |_| {},
        memory: &[],
        end: Completes,
        after: &[Gpr(RSP, USER_STACK + 0x55), Gpr(RAX, 0)],
    },
    Case {
        name: "an instruction of 15 bytes executes",
        mode: Bits64,
        code: |a| a.db(&prefixed_nop::<15>()),
        before: |_| {},
        memory: &[],
        end: Completes,
        after: &[],
    },
    Case {
        name: "an instruction of 16 bytes raises #GP, not #UD",
        mode: Bits64,
        code: |a| a.db(&prefixed_nop::<16>()),
        before: |_| {},
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "15 bytes with a misplaced LOCK prefix raise #UD",
        mode: Bits64,
        code: |a| a.db(&locked_nop()),
        before: |_| {},
        memory: &[],
        end: Faults(UD, None),
        after: &[],
    },
];
