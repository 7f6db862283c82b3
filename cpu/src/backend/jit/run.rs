//! Runs native code: the way in, and why it ended.

use crate::backend::blocks::Blocks;
use crate::backend::jit::calls::exit;
use crate::backend::jit::calls::routines::{Enter, Returned};
use crate::backend::jit::registers::frame::Frame;
use crate::backend::jit::vectors::host_state;
use crate::backend::jit::{CodeId, Edge, Jit, flags};
use crate::exec::HOST_MXCSR;
use crate::processor::cpu::Cpu;

/// Native code returns at the first end of a block after as many instructions: signals from other
/// threads are seen then.
const SLICE: i64 = 20_000;

/// Why native code ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NativeExit {
    /// At the end of a block.
    Block,
    /// At the end of a block, with a direct jump that can be linked to the block at RIP.
    Unlinked(Edge),
    /// At the end of a block, with an indirect jump whose target should be remembered.
    Indirect,
    /// At the start of a block, after a jump that is not valid any more.
    Stale,
    /// In the middle of a block, at RIP, if the code is checked.
    Partial,
    /// An instruction did not complete. `stack`: its memory operand was relative to SS.
    Fault {
        /// See above.
        stack: bool,
    },
}

impl Jit {
    /// Runs native code from the block of `id` on, one of `blocks`. The caller has checked that no
    /// work is due, and that `cpu` is at the start of the block.
    pub(crate) fn run(&mut self, cpu: &mut Cpu, blocks: &Blocks, id: CodeId) -> NativeExit {
        let Some(body) = self.code.body_address(id) else {
            return NativeExit::Block;
        };
        let left = cpu.limit.saturating_sub(cpu.icount);
        let budget = i64::try_from(left).unwrap_or(SLICE).min(SLICE);
        let frame = Frame {
            budget,
            address: 0,
            flags: flags::pack(cpu.flags),
            limit: cpu.icount + budget as u64,
            recording: cpu.recording.into(),
            jumps: self.code.jumps_address(cpu.recording),
            keys: cpu.jump_keys,
            host_mxcsr: HOST_MXCSR.into(),
            target: 0,
            blocks,
            branches: self.code.branches(),
        };
        self.reservation.select();
        // SAFETY: `body` is the address of native code: code of before a flush has no entry.
        let Returned { code, flags } = unsafe { self.enter(cpu, body, &frame) };
        host_state::check();
        cpu.flags = flags::unpack(flags);
        let (code, number) = (code as u32, code as u32 >> exit::NUMBER_SHIFT);
        let kind = code & exit::KIND;
        match kind {
            exit::EDGE => cpu.rip = self.code.edge_target(number).unwrap_or(cpu.rip),
            exit::STALE => cpu.rip = self.code.rip_of(number).unwrap_or(cpu.rip),
            _ => {}
        }
        if code & exit::BUDGET != 0 {
            return NativeExit::Block;
        }
        match kind {
            exit::EDGE => NativeExit::Unlinked(self.code.edge(number)),
            exit::INDIRECT => NativeExit::Indirect,
            exit::STALE => NativeExit::Stale,
            exit::PARTIAL => NativeExit::Partial,
            kind if u64::from(kind) == exit::FAULT => NativeExit::Fault { stack: false },
            kind if u64::from(kind) == exit::STACK_FAULT => NativeExit::Fault { stack: true },
            _ => NativeExit::Block,
        }
    }

    /// Executes native code from `body` on.
    ///
    /// # Safety
    /// `body` is the address of the native code of a block.
    unsafe fn enter(&self, cpu: &mut Cpu, body: u64, frame: &Frame<'_>) -> Returned {
        // SAFETY: the routine has this type, and is never overwritten.
        let enter: Enter = unsafe { std::mem::transmute(self.code.routines.enter as *const ()) };
        // SAFETY: the caller's promise. The code follows the calling convention, and accesses
        // `cpu`, the frame, its own tables, and the reservation, whose start GS has.
        unsafe { enter(cpu, body, frame) }
    }
}
