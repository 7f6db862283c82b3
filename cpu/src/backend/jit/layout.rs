//! Where native code finds things: guest registers in the host's, the processor's fields, and the
//! values on the host's stack.

use std::mem::{offset_of, size_of};

use vbts_bts::Window;

use crate::backend::blocks::Blocks;
use crate::backend::jit::assembler::{
    Mem, R8, R9, R10, R11, R12, R13, R15, RBP, RBX, RCX, RDI, RDX, RSI, RSP, Reg,
};
use crate::insn::{reg, seg};
use crate::mmu::tlb;
use crate::processor::branch_trace::MappedWindow;
use crate::processor::cpu::Cpu;
use crate::processor::jump_keys::JumpKeys;
use crate::state::{MsrState, SpinCount, SystemState};

/// Has the address of the [`Cpu`] plus [`BIAS`].
pub(super) const CPU: Reg = R15;
/// So far are the fields that native code uses often, of which the first is the pointer to the TLB,
/// within displacements of 8 bits.
pub(super) const BIAS: i32 = (offset_of!(Cpu, tlb) + tlb::layout::TABLE) as i32 + 128;

/// The host register of each guest register. The others stay in [`Cpu`]'s register file.
///
/// RAX of the host is needed to save the flags, RSP for the host's own stack, R14 for addresses. CL
/// and RDX, which instructions name implicitly, are themselves.
pub(super) const HOST: [Option<Reg>; 16] = [
    Some(R10),
    Some(RCX),
    Some(RDX),
    Some(RBX),
    Some(R11),
    Some(RBP),
    Some(RSI),
    Some(RDI),
    Some(R8),
    Some(R9),
    None,
    None,
    Some(R12),
    Some(R13),
    None,
    None,
];

/// Where a guest register is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Location {
    Register(Reg),
    Memory(Mem),
}

/// Where the guest register `n` is.
pub(super) const fn location(n: u8) -> Location {
    match HOST[n as usize] {
        Some(host) => Location::Register(host),
        None => Location::Memory(register(n)),
    }
}

/// Host register of the guest's RAX.
pub(super) const GUEST_RAX: Reg = R10;
/// Host register of the guest's RSP.
pub(super) const GUEST_RSP: Reg = R11;

const fn field(offset: usize) -> Mem {
    Mem::at(CPU, offset as i32 - BIAS)
}

/// The guest register `n`, or a pseudo register, in [`Cpu`].
pub(super) const fn register(n: u8) -> Mem {
    field(offset_of!(Cpu, gpr) + size_of::<u64>() * n as usize)
}

/// The XMM register `n` in [`Cpu`]: aligned, for MOVAPS.
pub(super) const fn xmm(n: u8) -> Mem {
    const { assert!(offset_of!(Cpu, xmm).is_multiple_of(16) && align_of::<Cpu>().is_multiple_of(16)) };
    field(offset_of!(Cpu, xmm) + 16 * n as usize)
}

/// The upper half of the YMM register `n` in [`Cpu`].
pub(super) const fn ymm_high(n: u8) -> Mem {
    field(offset_of!(Cpu, ymm_high) + 16 * n as usize)
}

pub(super) const RIP: Mem = field(offset_of!(Cpu, rip));
pub(super) const EFLAGS: Mem = field(offset_of!(Cpu, eflags));
pub(super) const CPL: Mem = field(offset_of!(Cpu, cpl));
pub(super) const SIGNAL_MASK: Mem = field(offset_of!(Cpu, signal_mask));
pub(super) const KERNEL_GS_BASE: Mem =
    field(offset_of!(Cpu, msr) + offset_of!(MsrState, kernel_gs_base));
pub(super) const MXCSR: Mem = field(offset_of!(Cpu, mxcsr));
pub(super) const CR0: Mem = field(offset_of!(Cpu, sys) + offset_of!(SystemState, cr0));
pub(super) const CR4: Mem = field(offset_of!(Cpu, sys) + offset_of!(SystemState, cr4));
pub(super) const XCR0: Mem = field(offset_of!(Cpu, sys) + offset_of!(SystemState, xcr0));
pub(super) const ICOUNT: Mem = field(offset_of!(Cpu, icount));
pub(super) const KEY_ANY: Mem = field(offset_of!(Cpu, jump_keys) + offset_of!(JumpKeys, any));
pub(super) const KEY_GLOBAL: Mem = field(offset_of!(Cpu, jump_keys) + offset_of!(JumpKeys, global));
pub(super) const PENDING_WORK: Mem = field(offset_of!(Cpu, pending_work));
pub(super) const PRIVILEGE: Mem = field(offset_of!(Cpu, privilege));
pub(super) const TSC_AUX: Mem = field(offset_of!(Cpu, msr) + offset_of!(MsrState, tsc_aux));
pub(super) const TSC_OFFSET: Mem = field(offset_of!(Cpu, tsc_offset));
pub(super) const SKIPPED: Mem = field(offset_of!(Cpu, skipped));
pub(super) const SPIN_PAUSES: Mem = field(offset_of!(Cpu, spin) + offset_of!(SpinCount, pauses));
pub(super) const TLB_CURRENT: Mem = field(offset_of!(Cpu, tlb) + tlb::layout::CURRENT);
pub(super) const TLB_TABLE: Mem = field(offset_of!(Cpu, tlb) + tlb::layout::TABLE);

const WINDOW: usize = offset_of!(Cpu, window);
const SLOTS: usize = WINDOW + MappedWindow::SLOTS_OFFSET;
pub(super) const WINDOW_INDEX: Mem = field(SLOTS + Window::INDEX_OFFSET);
pub(super) const WINDOW_END: Mem = field(SLOTS + Window::END_OFFSET);
pub(super) const WINDOW_ADDEND: Mem = field(WINDOW + MappedWindow::ADDEND_OFFSET);
pub(super) const WINDOW_FIELD: Mem = field(WINDOW + MappedWindow::FIELD_OFFSET);

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
    while n < HOST.len() {
        let disp = register(n as u8).disp;
        assert!(HOST[n].is_some() || disp as i8 as i32 == disp);
        n += 1;
    }
};

/// What native code keeps on the host's stack.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Frame<'a> {
    /// Instructions that may still retire before the run loop takes over, from the start of the
    /// current block. The run loop takes over at the first end of a block where none is left.
    pub budget: i64,
    /// A linear address.
    pub address: u64,
    /// The arithmetic flags, where they are not in the host's: OF in bit 0, and in the second byte
    /// what LAHF loads.
    pub flags: u64,
    /// Instructions retired when the budget is used up.
    pub limit: u64,
    /// The code was made for a processor that records branches: 1, else 0.
    pub recording: u64,
    /// The keys that were valid when native code was entered.
    pub keys: JumpKeys,
    /// MXCSR for Rust's code.
    pub host_mxcsr: u64,
    /// The `BranchClass` of a branch that finds no open window.
    pub branch_class: u64,
    /// The target of an indirect branch: RIP, where native code leaves after it. The host forwards
    /// what was stored on its stack sooner than what was stored elsewhere.
    pub target: u64,
    /// The blocks whose code it is, which stay while native code runs.
    pub blocks: &'a Blocks,
}

pub(super) const FRAME_BUDGET: Mem = Mem::at(RSP, offset_of!(Frame<'_>, budget) as i32);
pub(super) const FRAME_ADDRESS: Mem = Mem::at(RSP, offset_of!(Frame<'_>, address) as i32);
pub(super) const FRAME_FLAGS: Mem = Mem::at(RSP, offset_of!(Frame<'_>, flags) as i32);
pub(super) const FRAME_LIMIT: Mem = Mem::at(RSP, offset_of!(Frame<'_>, limit) as i32);
pub(super) const FRAME_HOST_MXCSR: Mem = Mem::at(RSP, offset_of!(Frame<'_>, host_mxcsr) as i32);
pub(super) const FRAME_BRANCH_CLASS: Mem = Mem::at(RSP, offset_of!(Frame<'_>, branch_class) as i32);
pub(super) const FRAME_TARGET: Mem = Mem::at(RSP, offset_of!(Frame<'_>, target) as i32);
/// Size of the frame on the stack, which keeps the stack's alignment.
pub(super) const FRAME_SIZE: i32 = 96;
const _: () = assert!(size_of::<Frame<'_>>() <= FRAME_SIZE as usize && FRAME_SIZE % 16 == 0);

/// Why native code ended, in the low byte of the code with which it returns.
pub(super) mod exit {
    /// The run loop has to take over at RIP: the budget is used up.
    pub(crate) const BUDGET: u32 = 1;
    /// A direct jump that is not linked, whose number is in the upper bits.
    pub(crate) const EDGE: u32 = 2;
    pub(crate) const EDGE_SHIFT: u32 = 8;
    /// The jump to RIP is not valid any more.
    pub(crate) const STALE: u32 = 3;
    /// The target of an indirect jump is not in the table.
    pub(crate) const INDIRECT: u32 = 4;
    /// An instruction ended its block.
    pub(crate) const ENDED: u64 = 5;
    /// An instruction did not complete.
    pub(crate) const FAULT: u64 = 6;
    /// As [`FAULT`], and its memory operand was relative to SS.
    pub(crate) const STACK_FAULT: u64 = 7;
    /// Before an instruction without a template.
    pub(crate) const PARTIAL: u32 = 8;
    /// Before an instruction that native code was to have executed, of a block that has been
    /// removed.
    pub(crate) const REMOVED: u64 = 9;
}
