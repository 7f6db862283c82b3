//! x87 stores and comparisons with an unmasked exception.

use super::After::{Flags, StatusWord};
use super::End::{Completes, PageFaults};
use super::Mode::{Bits32, Bits64};
use super::{Case, NOWHERE, WRITE};
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::RBX;
use vbts_cpu::state::rflags;
use vbts_testkit::descriptor::null;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "an x87 store that an unmasked exception cancels accesses no memory",
        mode: Bits64,
        // ST(0) is empty.
        code: |a| a.fstp(dword_ptr(rbx)),
        before: |s| {
            s.x87.fcw = 0x37E;
            s.gpr[RBX] = NOWHERE;
        },
        memory: &[],
        end: Completes,
        // IE, SF, ES and B; the stack is not popped.
        after: &[StatusWord(0x80C1)],
    },
    Case {
        name: "an x87 store that an unmasked exception cancels does not check the segment",
        mode: Bits32,
        // ST(0) is empty.
        code: |a| a.fistp(word_ptr(ebx).gs()),
        before: |s| {
            s.x87.fcw = 0x37E;
            s.seg[5] = null();
        },
        memory: &[],
        end: Completes,
        after: &[StatusWord(0x80C1)],
    },
    Case {
        name: "an x87 store that faults leaves the FPU unchanged",
        mode: Bits64,
        // ST(0) is empty.
        code: |a| a.fstp(dword_ptr(rbx)),
        before: |s| {
            s.x87.fcw = 0x37F;
            s.gpr[RBX] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(WRITE, NOWHERE),
        after: &[StatusWord(0)],
    },
    Case {
        name: "FCOMI sets the flags even if its exception is unmasked",
        mode: Bits64,
        // Both are empty.
        code: |a| a.fcomi(st0, st1),
        before: |s| {
            s.x87.fcw = 0x37E;
            s.rflags |= rflags::OF;
        },
        memory: &[],
        end: Completes,
        after: &[
            Flags(rflags::ZF | rflags::PF | rflags::CF),
            StatusWord(0x80C1),
        ],
    },
];
