//! What native code may access and reach, as the verifier is told.

use vbts_verifier::{Field, Rules};

use crate::backend::jit::assembler::Mem;
use crate::backend::jit::calls::jump_table::{JUMP_CODE, JUMP_MASK};
use crate::backend::jit::registers::frame::{
    FRAME_ADDRESS, FRAME_BUDGET, FRAME_FLAGS, FRAME_HOST_MXCSR, FRAME_LIMIT, FRAME_TARGET,
};
use crate::backend::jit::registers::processor::{
    CPL, CR0, CR4, EFLAGS, KERNEL_GS_BASE, KEY_ANY, KEY_GLOBAL, MXCSR, PENDING_WORK, SIGNAL_MASK,
    SKIPPED, SPIN_PAUSES, TLB_TABLE, TSC_AUX, TSC_OFFSET, WATCHED_LEN, WATCHED_START,
    WINDOW_ADDEND, WINDOW_END, WINDOW_FIELD, WINDOW_INDEX, XCR0, register, xmm, ymm_high,
};
use crate::insn::{reg, seg};
use crate::mmu::tlb::layout::{INDEX_MASK, SLOT_SHIFT};

const fn writable(m: Mem, len: u32) -> Field {
    Field {
        at: m.disp,
        len,
        writable: true,
    }
}

const fn readable(m: Mem, len: u32) -> Field {
    Field {
        writable: false,
        ..writable(m, len)
    }
}

/// The fields that are used most are the first.
const PROCESSOR: &[Field] = &[
    writable(register(0), 16 * 8),
    readable(TLB_TABLE, 8),
    writable(xmm(0), 16 * 16),
    writable(ymm_high(0), 16 * 16),
    readable(register(reg::SEGMENT + seg::FS), 8),
    writable(register(reg::SEGMENT + seg::GS), 8),
    readable(KEY_ANY, 8),
    readable(KEY_GLOBAL, 8),
    // What else is written of the window is that behind the sequence that stores a record.
    readable(WINDOW_INDEX, 8),
    readable(WINDOW_END, 8),
    readable(WINDOW_ADDEND, 8),
    readable(WINDOW_FIELD, 8),
    writable(EFLAGS, 4),
    writable(SIGNAL_MASK, 4),
    writable(PENDING_WORK, 4),
    writable(KERNEL_GS_BASE, 8),
    writable(SPIN_PAUSES, 4),
    readable(CPL, 1),
    readable(CR0, 4),
    readable(CR4, 4),
    readable(XCR0, 4),
    readable(MXCSR, 4),
    readable(TSC_AUX, 8),
    readable(TSC_OFFSET, 8),
    readable(SKIPPED, 8),
    readable(WATCHED_START, 8),
    readable(WATCHED_LEN, 8),
];

const FRAME: &[Field] = &[
    writable(FRAME_BUDGET, 8),
    writable(FRAME_FLAGS, 8),
    writable(FRAME_TARGET, 8),
    writable(FRAME_ADDRESS, 8),
    readable(FRAME_LIMIT, 8),
];

/// The rules for code of which the common call jumps to `execute`. `exits` and `called` are the
/// addresses of other routines, and `jumps` those of the tables of jump targets.
pub(super) fn rules<'a>(
    execute: u64,
    exits: &'a [u64],
    called: &'a [u64],
    jumps: &'a [u64],
) -> Rules<'a> {
    Rules {
        frame: FRAME,
        processor: PROCESSOR,
        tlb: TLB_TABLE.disp,
        tlb_mask: (INDEX_MASK << SLOT_SHIFT) as u32,
        tlb_entry: 1 << SLOT_SHIFT,
        window_index: WINDOW_INDEX.disp,
        window_end: WINDOW_END.disp,
        record: vbts_bts::RECORD_SIZE as u32,
        jumps,
        jump_mask: JUMP_MASK as u32,
        jump_code: JUMP_CODE as u32,
        target: FRAME_TARGET.disp,
        mxcsr: MXCSR.disp,
        host_mxcsr: FRAME_HOST_MXCSR.disp,
        exits,
        routines: called,
        common_routine: execute,
        common_constants: 3 * 8,
    }
}
