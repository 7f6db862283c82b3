//! String instructions: the order of accesses, flags after a fault, 32-bit addresses in 64-bit
//! mode.

use super::After::{Flags, Gpr};
use super::End::{Completes, Faults, PageFaults};
use super::Mode::Bits64;
use super::{Case, HOLE, ISLAND, NOWHERE, READ, WRITE};
use crate::common::DATA;
use iced_x86::Instruction;
use vbts_cpu::state::gpr::{RAX, RCX, RDI, RDX, RSI};
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector::DB;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "MOVS loads before it stores",
        mode: Bits64,
        code: |a| a.movsb(),
        before: |s| {
            s.gpr[RSI] = NOWHERE + 0x1000;
            s.gpr[RDI] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(READ, NOWHERE + 0x1000),
        after: &[],
    },
    Case {
        name: "CMPS loads its second operand first",
        mode: Bits64,
        code: |a| a.cmpsb(),
        before: |s| {
            s.gpr[RSI] = NOWHERE + 0x1000;
            s.gpr[RDI] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(READ, NOWHERE),
        after: &[],
    },
    Case {
        name: "CMPS loads its second operand before it checks the first one's address",
        mode: Bits64,
        code: |a| a.cmpsb(),
        before: |s| {
            s.gpr[RSI] = HOLE;
            s.gpr[RDI] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(READ, NOWHERE),
        after: &[],
    },
    Case {
        name: "REP CMPS that faults leaves the flags unchanged",
        mode: Bits64,
        code: |a| a.repe().cmpsb(),
        before: |s| {
            s.gpr[RCX] = 0x10;
            s.gpr[RSI] = DATA;
            s.gpr[RDI] = ISLAND + 0xFF8;
            s.rflags |= rflags::CF | rflags::OF;
        },
        memory: &[],
        end: PageFaults(READ, ISLAND + 0x1000),
        after: &[
            Flags(rflags::CF | rflags::OF),
            Gpr(RCX, 8),
            Gpr(RSI, DATA + 8),
        ],
    },
    Case {
        name: "REP SCAS that traps between iterations leaves the flags unchanged",
        mode: Bits64,
        code: |a| a.repne().scasb(),
        before: |s| {
            s.gpr[RAX] = 1;
            s.gpr[RCX] = 3;
            s.gpr[RDI] = DATA;
            s.rflags |= rflags::TF | rflags::ZF | rflags::OF;
        },
        memory: &[],
        end: Faults(DB, None),
        after: &[Flags(rflags::ZF | rflags::OF), Gpr(RCX, 2)],
    },
    Case {
        name: "REP SCAS that completes sets the flags",
        mode: Bits64,
        code: |a| a.repne().scasb(),
        before: |s| {
            s.gpr[RCX] = 3;
            s.gpr[RDI] = DATA;
            s.rflags |= rflags::CF;
        },
        memory: &[],
        end: Completes,
        after: &[Flags(rflags::ZF | rflags::PF), Gpr(RCX, 2)],
    },
    Case {
        name: "a repeated string with ECX = 0 clears the upper half of RCX",
        mode: Bits64,
        code: |a| a.add_instruction(Instruction::with_rep_lodsb(32)?),
        before: |s| {
            s.gpr[RCX] = 0xFFFF_FFFF_0000_0000;
            s.gpr[RSI] = 0xFFFF_FFFF_0000_1234;
        },
        memory: &[],
        end: Completes,
        after: &[Gpr(RCX, 0), Gpr(RSI, 0xFFFF_FFFF_0000_1234)],
    },
    Case {
        name: "REP MOVS with ECX = 0 also clears the upper halves of its pointers",
        mode: Bits64,
        code: |a| a.add_instruction(Instruction::with_rep_movsb(32)?),
        before: |s| {
            s.gpr[RCX] = 0xFFFF_FFFF_0000_0000;
            s.gpr[RSI] = 0xFFFF_FFFF_0000_1234;
            s.gpr[RDI] = 0xFFFF_FFFF_0000_5678;
        },
        memory: &[],
        end: Completes,
        after: &[Gpr(RCX, 0), Gpr(RSI, 0x1234), Gpr(RDI, 0x5678)],
    },
    Case {
        name: "REP STOS that faults in its first iteration clears the upper halves",
        mode: Bits64,
        code: |a| a.add_instruction(Instruction::with_rep_stosb(32)?),
        before: |s| {
            s.gpr[RCX] = 0xFFFF_FFFF_0000_0003;
            s.gpr[RDI] = 0xFFFF_FFFF_0000_0000 | NOWHERE;
        },
        memory: &[],
        end: PageFaults(WRITE, NOWHERE),
        after: &[Gpr(RCX, 3), Gpr(RDI, NOWHERE)],
    },
    Case {
        name: "REP STOS with 64-bit addressing keeps the upper half of RDI",
        mode: Bits64,
        code: |a| a.rep().stosb(),
        before: |s| s.gpr[RDI] = 0xFFFF_FFFF_0000_5678,
        memory: &[],
        end: Completes,
        after: &[Gpr(RDI, 0xFFFF_FFFF_0000_5678), Gpr(RDX, 0)],
    },
];
