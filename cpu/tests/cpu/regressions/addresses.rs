//! Addresses of operands: page boundaries, canonical addresses, segments, XLAT.

use super::After::Gpr;
use super::End::{Faults, PageFaults};
use super::Mode::{Bits32, Bits64};
use super::{Case, HOLE, ISLAND, NOWHERE, READ, READ_KERNEL, WRITE, limited};
use crate::common::{DATA, USER_STACK};
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register, RepPrefixKind};
use vbts_cpu::state::gpr::{RAX, RBP, RBX, RSI, RSP};
use vbts_cpu::state::vector::{GP, SS};

/// XLAT with the base register `base`, by which the address size is known.
fn xlat(a: &mut CodeAssembler, base: Register) -> Result<(), IcedError> {
    let table = MemoryOperand::with_base_index(base, Register::AL);
    a.add_instruction(Instruction::with1(Code::Xlat_m8, table)?)
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "a load across two missing pages faults at its first byte",
        mode: Bits64,
        code: |a| a.mov(rax, qword_ptr(rbx)),
        before: |s| s.gpr[RBX] = NOWHERE + 0xFFC,
        memory: &[],
        end: PageFaults(READ, NOWHERE + 0xFFC),
        after: &[],
    },
    Case {
        name: "a load that crosses into a missing page faults at the start of that page",
        mode: Bits64,
        code: |a| a.mov(rax, qword_ptr(rbx)),
        before: |s| s.gpr[RBX] = ISLAND + 0xFFC,
        memory: &[],
        end: PageFaults(READ, ISLAND + 0x1000),
        after: &[],
    },
    Case {
        name: "a store across two missing pages faults at its first byte",
        mode: Bits64,
        code: |a| a.mov(qword_ptr(rbx), rax),
        before: |s| s.gpr[RBX] = NOWHERE + 0xFFC,
        memory: &[],
        end: PageFaults(WRITE, NOWHERE + 0xFFC),
        after: &[],
    },
    Case {
        name: "a load whose last bytes are not canonical raises #GP, not a page fault",
        mode: Bits64,
        code: |a| a.mov(rax, qword_ptr(rbx)),
        before: |s| s.gpr[RBX] = HOLE - 4,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "a store whose last bytes are not canonical raises #GP, not a page fault",
        mode: Bits64,
        code: |a| a.mov(qword_ptr(rbx), rax),
        before: |s| s.gpr[RBX] = HOLE - 4,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "ENTER reads the outer frame pointers from the stack segment: #SS",
        mode: Bits64,
        code: |a| a.enter(0, 2),
        before: |s| s.gpr[RBP] = HOLE + 8,
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, USER_STACK), Gpr(RBP, HOLE + 8)],
    },
    Case {
        name: "64-bit mode ignores an SS override: #GP",
        mode: Bits64,
        code: |a| a.mov(al, byte_ptr(rbx).ss()),
        before: |s| s.gpr[RBX] = HOLE,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "64-bit mode ignores a DS override of a stack access: #SS",
        mode: Bits64,
        code: |a| a.mov(al, byte_ptr(rbp).ds()),
        before: |s| s.gpr[RBP] = HOLE,
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[],
    },
    Case {
        name: "64-bit mode ignores an SS override of a string instruction: #GP",
        mode: Bits64,
        code: |a| {
            a.add_instruction(Instruction::with_lodsb(
                64,
                Register::SS,
                RepPrefixKind::None,
            )?)
        },
        before: |s| s.gpr[RSI] = HOLE,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "XLAT's sum wraps around at 4 GiB",
        mode: Bits64,
        code: |a| xlat(a, Register::EBX),
        before: |s| {
            s.gpr[RBX] = 0xFFFF_FFF0;
            s.gpr[RAX] = 0x30;
        },
        memory: &[],
        end: PageFaults(READ_KERNEL, 0x20),
        after: &[],
    },
    Case {
        name: "XLAT's sum wraps around at 64 KiB",
        mode: Bits32,
        code: |a| xlat(a, Register::BX),
        before: |s| {
            s.gpr[RBX] = 0x1_FFF0;
            s.gpr[RAX] = 0x30;
        },
        memory: &[],
        end: PageFaults(READ_KERNEL, 0x20),
        after: &[],
    },
    Case {
        name: "XLAT compares its sum with the segment limit",
        mode: Bits32,
        code: |a| xlat(a, Register::EBX),
        before: |s| {
            s.seg[3] = limited(DATA + 0xF);
            s.gpr[RBX] = DATA;
            s.gpr[RAX] = 0x10;
        },
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
];
