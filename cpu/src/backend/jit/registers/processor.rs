//! Fields of [`Cpu`] that native code accesses.

use std::mem::{offset_of, size_of};

use vbts_bts::Window;

use crate::backend::jit::assembler::Mem;
use crate::backend::jit::registers::map::{CPU, host};
use crate::insn::{reg, seg};
use crate::mmu::tlb;
use crate::processor::branch_trace::MappedWindow;
use crate::processor::cpu::Cpu;
use crate::processor::jump_keys::JumpKeys;
use crate::processor::stop_points::WatchedRange;
use crate::state::{MsrState, SpinCount, SystemState};

/// Distance of [`CPU`] from the start of the [`Cpu`]. The fields that native code accesses often,
/// of which the pointer to the TLB is the first, are then within displacements of 8 bits.
pub(crate) const BIAS: i32 = (offset_of!(Cpu, tlb) + tlb::layout::TABLE) as i32 + 128;

const fn field(offset: usize) -> Mem {
    Mem::at(CPU, offset as i32 - BIAS)
}

/// The guest register `n`, or a pseudo register, in [`Cpu`].
pub(crate) const fn register(n: u8) -> Mem {
    field(offset_of!(Cpu, gpr) + size_of::<u64>() * n as usize)
}

/// The XMM register `n` in [`Cpu`]: aligned, for MOVAPS.
pub(crate) const fn xmm(n: u8) -> Mem {
    const { assert!(offset_of!(Cpu, xmm).is_multiple_of(16) && align_of::<Cpu>().is_multiple_of(16)) };
    field(offset_of!(Cpu, xmm) + 16 * n as usize)
}

/// The upper half of the YMM register `n` in [`Cpu`].
pub(crate) const fn ymm_high(n: u8) -> Mem {
    field(offset_of!(Cpu, ymm_high) + 16 * n as usize)
}

pub(crate) const RIP: Mem = field(offset_of!(Cpu, rip));
pub(crate) const EFLAGS: Mem = field(offset_of!(Cpu, eflags));
pub(crate) const CPL: Mem = field(offset_of!(Cpu, cpl));
pub(crate) const SIGNAL_MASK: Mem = field(offset_of!(Cpu, signal_mask));
pub(crate) const KERNEL_GS_BASE: Mem =
    field(offset_of!(Cpu, msr) + offset_of!(MsrState, kernel_gs_base));
pub(crate) const MXCSR: Mem = field(offset_of!(Cpu, mxcsr));
pub(crate) const CR0: Mem = field(offset_of!(Cpu, sys) + offset_of!(SystemState, cr0));
pub(crate) const CR4: Mem = field(offset_of!(Cpu, sys) + offset_of!(SystemState, cr4));
pub(crate) const XCR0: Mem = field(offset_of!(Cpu, sys) + offset_of!(SystemState, xcr0));
pub(crate) const ICOUNT: Mem = field(offset_of!(Cpu, icount));
pub(crate) const KEY_ANY: Mem = field(offset_of!(Cpu, jump_keys) + offset_of!(JumpKeys, any));
pub(crate) const KEY_GLOBAL: Mem = field(offset_of!(Cpu, jump_keys) + offset_of!(JumpKeys, global));
pub(crate) const PENDING_WORK: Mem = field(offset_of!(Cpu, pending_work));
pub(crate) const PRIVILEGE: Mem = field(offset_of!(Cpu, privilege));
pub(crate) const TSC_AUX: Mem = field(offset_of!(Cpu, msr) + offset_of!(MsrState, tsc_aux));
pub(crate) const TSC_OFFSET: Mem = field(offset_of!(Cpu, tsc_offset));
pub(crate) const SKIPPED: Mem = field(offset_of!(Cpu, skipped));
pub(crate) const SPIN_PAUSES: Mem = field(offset_of!(Cpu, spin) + offset_of!(SpinCount, pauses));
pub(crate) const WATCHED_START: Mem =
    field(offset_of!(Cpu, watched_range) + offset_of!(WatchedRange, start));
pub(crate) const WATCHED_LEN: Mem =
    field(offset_of!(Cpu, watched_range) + offset_of!(WatchedRange, len));
pub(crate) const TLB_CURRENT: Mem = field(offset_of!(Cpu, tlb) + tlb::layout::CURRENT);
pub(crate) const TLB_TABLE: Mem = field(offset_of!(Cpu, tlb) + tlb::layout::TABLE);

const WINDOW: usize = offset_of!(Cpu, window);
const SLOTS: usize = WINDOW + MappedWindow::SLOTS_OFFSET;
pub(crate) const WINDOW_INDEX: Mem = field(SLOTS + Window::INDEX_OFFSET);
pub(crate) const WINDOW_END: Mem = field(SLOTS + Window::END_OFFSET);
pub(crate) const WINDOW_ADDEND: Mem = field(WINDOW + MappedWindow::ADDEND_OFFSET);
pub(crate) const WINDOW_FIELD: Mem = field(WINDOW + MappedWindow::FIELD_OFFSET);

const _: () = {
    let often = [
        TLB_TABLE,
        WINDOW_INDEX,
        WINDOW_END,
        WINDOW_ADDEND,
        WINDOW_FIELD,
        KEY_ANY,
        KEY_GLOBAL,
        register(reg::SEGMENT + seg::FS),
        register(reg::SEGMENT + seg::GS),
    ];
    let mut n = 0;
    while n < often.len() {
        assert!(often[n].disp as i8 as i32 == often[n].disp);
        n += 1;
    }
    let mut n = 0;
    while n < 16 {
        let disp = register(n as u8).disp;
        assert!(host(n as u8).is_some() || disp as i8 as i32 == disp);
        n += 1;
    }
};
