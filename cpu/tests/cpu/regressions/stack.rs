//! PUSH and POP: the stack segment, the width of a slot, the order of accesses.

use super::After::{Gpr, Memory};
use super::End::{Completes, Faults};
use super::Mode::{Bits32, Bits64};
use super::{Case, limited};
use crate::common::{DATA, USER_STACK, segment, selector};
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::RSP;
use vbts_cpu::state::vector::{GP, SS};
use vbts_testkit::descriptor::null;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "the stack segment has a limit in compatibility mode",
        mode: Bits32,
        code: |a| a.push(eax),
        before: |s| s.seg[2] = limited(USER_STACK - 4),
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, USER_STACK)],
    },
    Case {
        name: "a stack access across 4 GiB exceeds the limit",
        mode: Bits32,
        code: |a| a.push(eax),
        before: |s| s.gpr[RSP] = 2,
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, 2)],
    },
    Case {
        name: "POP [ESP+x] counts from the stack pointer after the pop",
        mode: Bits32,
        code: |a| a.pop(dword_ptr(esp + 4)),
        before: |s| s.gpr[RSP] = DATA,
        memory: &[(DATA, 0x1234_5678)],
        end: Completes,
        after: &[Gpr(RSP, DATA + 4), Memory(DATA + 8, 0x1234_5678)],
    },
    Case {
        name: "POP [ESP] with 32-bit addressing in 64-bit mode",
        mode: Bits64,
        code: |a| a.pop(qword_ptr(esp)),
        before: |s| s.gpr[RSP] = DATA,
        memory: &[(DATA, 0x1234_5678)],
        end: Completes,
        after: &[Gpr(RSP, DATA + 8), Memory(DATA + 8, 0x1234_5678)],
    },
    Case {
        name: "POP reads the stack before it checks the operand's segment",
        mode: Bits32,
        code: |a| a.pop(dword_ptr(ebx).gs()),
        before: |s| {
            s.gpr[RSP] = 0xFFFF_FFFF;
            s.seg[5] = null();
        },
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, 0xFFFF_FFFF)],
    },
    Case {
        name: "POP to a null segment leaves the stack pointer unchanged",
        mode: Bits32,
        code: |a| a.pop(dword_ptr(ebx).gs()),
        before: |s| s.seg[5] = null(),
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[Gpr(RSP, USER_STACK)],
    },
    Case {
        name: "PUSH of a segment register moves 16 bits into a slot of 32",
        mode: Bits32,
        code: |a| a.push(ss),
        before: |s| s.gpr[RSP] = DATA + 8,
        memory: &[(DATA, u64::MAX)],
        end: Completes,
        after: &[
            Gpr(RSP, DATA + 4),
            Memory(
                DATA,
                0xFFFF_0000_FFFF_FFFF | (selector::USER_SS as u64) << 32,
            ),
        ],
    },
    Case {
        name: "PUSH of a segment register with 64 bits moves all of them",
        mode: Bits64,
        code: |a| a.push(fs),
        before: |s| {
            s.gpr[RSP] = DATA + 8;
            s.seg[4] = segment(selector::USER_SS);
        },
        memory: &[(DATA, u64::MAX)],
        end: Completes,
        after: &[Gpr(RSP, DATA), Memory(DATA, selector::USER_SS as u64)],
    },
];
