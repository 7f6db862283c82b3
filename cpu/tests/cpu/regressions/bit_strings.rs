//! Bit strings in memory: BT, BTS, BTR and BTC with a bit offset in a register.

use super::After::Memory;
use super::End::{Completes, Faults, PageFaults};
use super::Mode::{Bits32, Bits64};
use super::{Case, READ, WRITE_KERNEL, limited};
use crate::common::DATA;
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::{RBX, RCX};
use vbts_cpu::state::vector::GP;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "a bit string wraps around at 4 GiB with 32-bit addressing",
        mode: Bits64,
        code: |a| a.bts(dword_ptr(ebx), ecx),
        before: |s| {
            s.gpr[RBX] = 0xFFFF_FFFC;
            s.gpr[RCX] = 8 * (DATA + 4) + 3;
        },
        memory: &[],
        end: Completes,
        after: &[Memory(DATA, 8)],
    },
    Case {
        name: "a bit string below address 0 wraps around to the end of 4 GiB",
        mode: Bits64,
        code: |a| a.bt(dword_ptr(ebx), ecx),
        before: |s| {
            s.gpr[RBX] = 0x10;
            s.gpr[RCX] = (-8i64 * 0x30) as u64;
        },
        memory: &[],
        end: PageFaults(READ, 0xFFFF_FFE0),
        after: &[],
    },
    Case {
        name: "a bit string wraps around at 4 GiB in compatibility mode",
        mode: Bits32,
        code: |a| a.btc(dword_ptr(ebx), ecx),
        before: |s| {
            s.gpr[RBX] = 0xFFFF_FFFC;
            s.gpr[RCX] = 8 * (DATA + 4) + 3;
        },
        memory: &[(DATA, 0xF)],
        end: Completes,
        after: &[Memory(DATA, 7)],
    },
    Case {
        name: "a bit string wraps around at 64 KiB with 16-bit addressing",
        mode: Bits32,
        code: |a| a.btr(dword_ptr(bx), ecx),
        before: |s| {
            s.gpr[RBX] = 0xFFF0;
            s.gpr[RCX] = 8 * 0x20;
        },
        memory: &[],
        end: PageFaults(WRITE_KERNEL, 0x10),
        after: &[],
    },
    Case {
        name: "a bit string's accessed word is compared with the segment limit",
        mode: Bits32,
        code: |a| a.bt(dword_ptr(ebx), ecx),
        before: |s| {
            s.seg[3] = limited(DATA + 0xF);
            s.gpr[RBX] = DATA;
            s.gpr[RCX] = 8 * 0x10;
        },
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
];
