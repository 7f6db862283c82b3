//! What native code calls: the code of an instruction that has no template or whose operand the TLB
//! does not find, that of the rest of a block, and the recording of a branch that finds no open
//! window.

use crate::backend::interpreter::op::Op;
use crate::backend::jit::layout::{Frame, exit};
use crate::backend::jit::{flags, host_vectors};
use crate::decode::MAX_BLOCK;
use crate::insn::{Abort, Flow, reg, seg};
use crate::processor::cpu::Cpu;
use crate::processor::last_branches::BranchClass;

/// The value of [`execute`] and [`record`] that continues native code.
const CONTINUE: u64 = 0;

impl Frame {
    /// Has native code leave at the end of the block if work is due or jumps have become invalid,
    /// and not later than the run loop would.
    fn limit_to(&mut self, cpu: &Cpu) {
        let left = if cpu.is_due() || cpu.jump_keys != self.keys {
            0
        } else {
            i64::try_from(cpu.limit - cpu.icount).unwrap_or(i64::MAX)
        };
        if left < self.budget {
            self.limit -= (self.budget - left) as u64;
            self.budget = left;
        }
    }

    /// Brings the counter of instructions to the start of the block.
    fn update_count(&self, cpu: &mut Cpu) {
        cpu.icount = self.limit.wrapping_sub(self.budget as u64);
    }
}

/// Which instructions of a block [`execute`] executes, as one word of native code.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(super) struct Part(pub u32);

impl Part {
    const COUNT: u32 = 24;
    /// As a count: the rest of the block.
    pub const REST: u8 = u8::MAX;

    /// `count` instructions from the operation of this number in the block on.
    pub fn of(first: u16, count: u8) -> Self {
        const {
            assert!(MAX_BLOCK < Self::REST);
            assert!((u16::MAX as usize) * size_of::<Op>() < 1 << Self::COUNT);
        }
        let offset = u32::from(first) * size_of::<Op>() as u32;
        Self(offset | u32::from(count) << Self::COUNT)
    }

    /// Offset of the first operation.
    fn offset(self) -> usize {
        (self.0 & ((1 << Self::COUNT) - 1)) as usize
    }

    fn count(self) -> u64 {
        u64::from(self.0 >> Self::COUNT)
    }
}

/// Executes instructions of the block with the operations `ops` at `rip`.
///
/// # Safety
/// `part` is one of the block, which does not begin with the operation that ends it.
pub(super) unsafe extern "sysv64" fn execute(
    cpu: &mut Cpu,
    frame: &mut Frame,
    part: Part,
    rip: u64,
    ops: *const Op,
) -> u64 {
    host_vectors::check();
    frame.update_count(cpu);
    cpu.gpr[usize::from(reg::BLOCK)] = rip;
    cpu.flags = flags::unpack(frame.flags);
    // SAFETY: the caller's promise.
    let code = unsafe { run(cpu, frame, ops.byte_add(part.offset()), part.count()) };
    frame.flags = flags::pack(cpu.flags);
    if code == CONTINUE {
        frame.limit_to(cpu);
    }
    code
}

/// Executes `count` instructions from that whose first operation is `first` on.
///
/// # Safety
/// `first` is an operation of a block.
unsafe fn run(cpu: &mut Cpu, frame: &mut Frame, first: *const Op, count: u64) -> u64 {
    let mut at = first;
    let mut left = count;
    loop {
        // SAFETY: the caller's promise. The last operation of the block ends it, so that none is
        // read behind it.
        let op = unsafe { &*at };
        let insn = &op.insn;
        if op.ends_block() {
            cpu.rip = cpu.this_rip(insn);
            frame.budget -= i64::from(insn.ordinal) + 1;
            return exit::ENDED;
        }
        match (op.body)(cpu, insn) {
            Ok(Flow::Next) => {}
            Ok(flow) => {
                if flow == Flow::Branch && cpu.recording {
                    cpu.record_near(insn);
                }
                frame.budget -= i64::from(insn.ordinal) + 1;
                return exit::ENDED;
            }
            Err(Abort) => {
                cpu.rip = cpu.this_rip(insn);
                frame.budget -= i64::from(insn.ordinal);
                return match insn.seg {
                    seg::SS | seg::FLAT_SS => exit::STACK_FAULT,
                    _ => exit::FAULT,
                };
            }
        }
        // SAFETY: as above: this operation does not end the block.
        at = unsafe { at.add(1) };
        // SAFETY: as above.
        let next = unsafe { &*at };
        let complete = next.ends_block() || next.insn.ordinal != insn.ordinal;
        left = left.saturating_sub(complete.into());
        // The rest of a block that began to record, or ceased to, is not in its code.
        if left == 0 && complete && u64::from(cpu.recording) == frame.recording {
            return CONTINUE;
        }
    }
}

/// Records a branch from `from` to `to`, the last instruction of the block. The window has no slot.
pub(super) extern "sysv64" fn record(cpu: &mut Cpu, frame: &mut Frame, from: u64, to: u64) -> u64 {
    host_vectors::check();
    frame.update_count(cpu);
    cpu.rip = to;
    cpu.record_near_anywhere(from, BranchClass(frame.branch_class as u32));
    frame.limit_to(cpu);
    CONTINUE
}
