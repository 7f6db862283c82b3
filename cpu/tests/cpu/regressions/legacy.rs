//! Instructions that 64-bit mode does not have: BOUND and SALC.

use super::After::Gpr;
use super::End::{Completes, Faults, PageFaults};
use super::Mode::Bits32;
use super::{Case, ISLAND, READ};
use crate::common::DATA;
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::{RAX, RBX};
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector::BR;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "BOUND accepts an index that equals the lower bound",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| {
            s.gpr[RAX] = 0xFFFF_FFFE;
            s.gpr[RBX] = DATA;
        },
        memory: &[(DATA, 0x0000_0005_FFFF_FFFE)],
        end: Completes,
        after: &[],
    },
    Case {
        name: "BOUND raises #BR for an index above the upper bound",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| {
            s.gpr[RAX] = 6;
            s.gpr[RBX] = DATA;
        },
        memory: &[(DATA, 0x0000_0005_FFFF_FFFE)],
        end: Faults(BR, None),
        after: &[],
    },
    Case {
        name: "BOUND below the lower bound does not load the upper one",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| s.gpr[RBX] = ISLAND + 0xFFC,
        memory: &[(ISLAND + 0xFF8, 5 << 32)],
        end: Faults(BR, None),
        after: &[],
    },
    Case {
        name: "BOUND not below the lower bound loads the upper one",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| {
            s.gpr[RAX] = 5;
            s.gpr[RBX] = ISLAND + 0xFFC;
        },
        memory: &[(ISLAND + 0xFF8, 5 << 32)],
        end: PageFaults(READ, ISLAND + 0x1000),
        after: &[],
    },
    Case {
        name: "SALC sets AL if CF is set",
        mode: Bits32,
        code: |a| a.salc(),
        before: |s| {
            s.gpr[RAX] = 0x1234;
            s.rflags |= rflags::CF;
        },
        memory: &[],
        end: Completes,
        after: &[Gpr(RAX, 0x12FF)],
    },
    Case {
        name: "SALC clears AL if CF is clear",
        mode: Bits32,
        code: |a| a.salc(),
        before: |s| s.gpr[RAX] = 0x1234,
        memory: &[],
        end: Completes,
        after: &[Gpr(RAX, 0x1200)],
    },
];
