//! Functions that native code calls, by the routines.
//!
//! [`execute`] executes an instruction that has no template, or whose operand the TLB does not
//! find, and the rest of a block. [`record`] records a branch that finds no open window.

use crate::backend::block::BlockId;
use crate::backend::blocks::BlockHandle;
use crate::backend::interpreter::op::Op;
use crate::backend::jit::calls::exit;
use crate::backend::jit::calls::part::{InsnStart, Part};
use crate::backend::jit::flags;
use crate::backend::jit::registers::frame::Frame;
use crate::backend::jit::vectors::host_state;
use crate::insn::{Abort, Flow, reg, seg};
use crate::processor::cpu::Cpu;

/// The value of [`execute`] and [`record`] that continues native code.
const CONTINUE: u64 = 0;

impl Frame<'_> {
    /// Has native code leave at the end of the block if work is due or jumps have become invalid,
    /// and not later than the run loop would.
    fn limit_to(&mut self, cpu: &Cpu) {
        let left = if cpu.is_due() || cpu.jump_keys != self.keys {
            0
        } else {
            i64::try_from(cpu.limit.saturating_sub(cpu.icount)).unwrap_or(i64::MAX)
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

/// Executes instructions of the block with this index and generation, at `rip`. If the block has
/// been removed, native code leaves before them, and the run loop decodes what is there now.
pub(crate) extern "sysv64" fn execute(
    cpu: &mut Cpu,
    frame: &mut Frame<'_>,
    part: Part,
    rip: u64,
    id: BlockId,
    generation: u64,
) -> u64 {
    host_state::check();
    frame.update_count(cpu);
    let handle = BlockHandle { id, generation };
    let Some(ops) = frame.blocks.operations(handle, part.op()) else {
        return leave_before(cpu, frame, rip, part.first());
    };
    cpu.gpr[usize::from(reg::BLOCK)] = rip;
    let before = flags::unpack(frame.flags);
    cpu.flags = before;
    let code = run(cpu, frame, ops, part.count());
    if cpu.flags != before {
        frame.flags = flags::pack(cpu.flags);
    }
    match code {
        CONTINUE => frame.limit_to(cpu),
        exit::BRANCH => {
            frame.target = cpu.rip;
            // The budget is that of the next block.
            frame.update_count(cpu);
            frame.limit_to(cpu);
        }
        _ => {}
    }
    code
}

/// Leaves native code before the instruction `insn` of the block at `rip`.
#[cold]
fn leave_before(cpu: &mut Cpu, frame: &mut Frame<'_>, rip: u64, insn: InsnStart) -> u64 {
    cpu.rip = rip.wrapping_add(insn.offset.into());
    frame.budget -= i64::from(insn.ordinal);
    exit::REMOVED
}

/// Executes the first `count` instructions of `ops`, operations up to the end of a block. The
/// branch of a [`Part::CALL`] is left to native code, which records it, too.
fn run(cpu: &mut Cpu, frame: &mut Frame<'_>, mut ops: &[Op], count: u64) -> u64 {
    let mut left = count;
    while let [op, rest @ ..] = ops {
        let insn = &op.insn;
        if op.ends_block() {
            cpu.rip = cpu.this_rip(insn);
            frame.budget -= i64::from(insn.ordinal) + 1;
            return exit::ENDED;
        }
        match (op.body)(cpu, insn) {
            Ok(Flow::Next) => {}
            Ok(flow) => {
                let goes_on = flow == Flow::Branch && u64::from(cpu.recording) == frame.recording;
                if goes_on && count == u64::from(Part::CALL) {
                    return CONTINUE;
                }
                if flow == Flow::Branch && cpu.recording {
                    cpu.record_near(insn);
                }
                frame.budget -= i64::from(insn.ordinal) + 1;
                return if goes_on { exit::BRANCH } else { exit::ENDED };
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
        ops = rest;
        let next = rest.first();
        let complete =
            next.is_none_or(|next| next.ends_block() || next.insn.ordinal != insn.ordinal);
        left = left.saturating_sub(complete.into());
        // The rest of a block that began to record, or ceased to, is not in its code.
        if left == 0 && complete && u64::from(cpu.recording) == frame.recording {
            break;
        }
    }
    CONTINUE
}

/// Records the branch with this number, the last instruction of the block. The window has no slot.
pub(crate) extern "sysv64" fn record(cpu: &mut Cpu, frame: &mut Frame<'_>, number: u32) -> u64 {
    host_state::check();
    frame.update_count(cpu);
    if let Some(branch) = frame.branches.0.get(number as usize) {
        cpu.rip = branch.to.known().unwrap_or(frame.target);
        cpu.record_near_anywhere(branch.from, branch.class);
    }
    frame.limit_to(cpu);
    CONTINUE
}

/// A machine without devices, for tests.
#[cfg(test)]
pub(crate) struct NoDevices;

#[cfg(test)]
impl crate::processor::platform::Platform for NoDevices {
    fn mmio_read(&self, _: u64, _: u64, _: &mut [u8]) {}
    fn mmio_write(&self, _: u64, _: u64, _: &[u8]) {}
    fn pio_read(&self, _: u64, _: u16, _: &mut [u8]) {}
    fn pio_write(&self, _: u64, _: u16, _: &[u8]) {}
    fn acknowledge_interrupt(&self, _: u64) -> Option<u8> {
        None
    }
    fn take_nmi(&self) -> bool {
        false
    }
    fn give_back_nmi(&self) {}
    fn performance_interrupt(&self, _: u64) {}
    fn cr8(&self) -> u64 {
        0
    }
    fn set_cr8(&self, _: u64, _: u64) {}
    fn apic_rdmsr(&self, _: u64, _: u32) -> Option<u64> {
        None
    }
    fn apic_wrmsr(&self, _: u64, _: u32, _: u64) -> Option<()> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::block::Block;
    use crate::backend::blocks::Blocks;
    use crate::backend::interpreter::lower::Lowered;
    use crate::backend::jit::registers::frame::RecordedBranches;
    use crate::insn::Insn;
    use crate::mmu::ram::GuestRam;
    use crate::model::model;
    use crate::processor::jump_keys::JumpKeys;
    use crate::processor::platform::Signals;

    const START: InsnStart = InsnStart {
        op: 1,
        offset: 2,
        ordinal: 1,
    };

    #[test]
    fn native_code_of_a_removed_block_leaves_before_the_instruction() {
        const RIP: u64 = 0x1000;
        let increment: fn(&mut Cpu, &Insn) -> crate::insn::Exec = |cpu, _| {
            cpu.gpr[0] += 1;
            Ok(Flow::Next)
        };
        // Two instructions of two bytes.
        let insn = |ordinal: u8| Insn {
            len: 2,
            offset: 2 * u16::from(ordinal),
            ordinal,
            ..Insn::INVALID
        };
        let block = || {
            let ops = [0, 1].map(|n| Op::called(increment, insn(n))).into();
            let (branches, len) = (0, 4);
            Block::new(Lowered { ops, branches, len }, &[0x90; 4])
        };
        let (platform, signals) = (Arc::new(NoDevices), Arc::<Signals>::default());
        // SAFETY: it has no memory.
        let ram = unsafe { GuestRam::new(&[]) };
        let mut cpu = Cpu::new(model("core2").unwrap(), ram, platform, signals);
        cpu.limit = 1000;
        let mut blocks = Blocks::new(1);
        let id = blocks.insert(block()).unwrap();
        let BlockHandle { id, generation } = blocks.handle(id).unwrap();
        let branches = RecordedBranches::default();
        let mut call = |blocks: &Blocks| {
            let mut frame = Frame {
                budget: 100,
                address: 0,
                flags: flags::pack(cpu.flags),
                limit: 100,
                recording: 0,
                jumps: 0,
                keys: JumpKeys::default(),
                host_mxcsr: 0,
                target: 0,
                blocks,
                branches: &branches,
            };
            frame.keys = cpu.jump_keys;
            let code = execute(
                &mut cpu,
                &mut frame,
                Part::of(START, 1),
                RIP,
                id,
                generation,
            );
            (code, cpu.gpr[0], cpu.rip, frame.budget)
        };
        assert_eq!(call(&blocks), (CONTINUE, 1, 0, 100));
        blocks.remove(id);
        let left = (exit::REMOVED, 1, RIP + 2, 99);
        assert_eq!(call(&blocks), left);
        // Another block with the same index.
        assert_eq!(blocks.insert(block()), Some(id));
        assert_eq!(call(&blocks), left);
        blocks.clear();
        assert_eq!(call(&blocks), left);
    }
}
