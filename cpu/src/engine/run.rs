//! The fast path: from block to block.

use crate::backend::block::{Block, BlockId, Branch, Extent};
use crate::backend::interpreter::dispatch::{At, Done};
use crate::backend::interpreter::op::Op;
use crate::backend::jit::Edge;
use crate::engine::cache::BlockCache;
use crate::engine::lookup::Found;
use crate::engine::{Exit, SoftCpu};
use crate::insn::{Abort, BranchKind, Flow, Insn, reg, seg};
use crate::processor::cpu::Cpu;
use crate::processor::pmu::{add_branches, add_taken};

/// An instruction did not complete. [`Cpu`]'s `fault` has the reason.
pub(super) struct BlockFault {
    /// The memory operand was relative to SS: a non-canonical address is #SS.
    pub stack: bool,
}

impl BlockFault {
    /// The fault of `insn`.
    pub(super) fn at(insn: &Insn) -> Self {
        Self {
            stack: matches!(insn.seg, seg::SS | seg::FLAT_SS),
        }
    }
}

/// How the processor came to the end of the last block, for a link to the next one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// No link is possible.
    None,
    /// By a branch that the interpreter has executed.
    Branch(Branch),
    /// By a direct jump in native code.
    Edge(Edge),
    /// By an indirect jump in native code.
    Indirect,
    /// By a jump in native code, of either kind, to code that was not valid.
    Stale,
}

/// Why a sequence of blocks ended.
pub(super) enum BlockExit {
    /// The next block has to be looked up, and can be linked to the last one.
    Lookup(Origin),
    /// An instruction did not complete.
    Fault(BlockFault),
}

impl SoftCpu {
    /// Runs blocks until the run ends. `BRANCHES`: counts branch instructions. `NATIVE`: with
    /// native code.
    pub(super) fn run_blocks<const BRANCHES: bool, const NATIVE: bool>(&mut self) -> Exit {
        // The end of the last sequence, to be linked to the next block.
        let mut origin = Origin::None;
        loop {
            let from = std::mem::replace(&mut origin, Origin::None);
            if self.cpu.is_due() {
                if let Some(exit) = self.boundary() {
                    return exit;
                }
                continue;
            }
            let found = match self.cache.jump(self.cpu.rip, self.cpu.jump_keys) {
                Some(block) => Ok(Found::Cached(self.cache.id(block))),
                None => self.look_up(Extent::Whole),
            };
            let exit = match found {
                Ok(Found::Cached(id)) => {
                    self.link(from, id);
                    self.cpu.device_aborts = true;
                    let exit = if NATIVE {
                        self.run_mixed(id)
                    } else {
                        run_linked::<BRANCHES>(&mut self.cpu, &self.cache, id)
                    };
                    self.cpu.device_aborts = false;
                    exit
                }
                Ok(Found::Probed(id)) => match self.cache.get(id) {
                    Some(block) => run_alone::<BRANCHES>(&mut self.cpu, block),
                    None => BlockExit::Lookup(Origin::None),
                },
                Ok(Found::Single(block)) => run_alone::<BRANCHES>(&mut self.cpu, &block),
                Ok(Found::Stop) => BlockExit::Lookup(Origin::None),
                Err(fault) => BlockExit::Fault(fault),
            };
            match exit {
                BlockExit::Lookup(end) => origin = end,
                BlockExit::Fault(fault) => self.fault(fault),
            }
        }
    }

    /// Runs the block at RIP if its last instruction is before the limit or at it, and if the limit
    /// is all that is due. Returns whether the block has run.
    pub(super) fn run_up_to_limit(&mut self) -> bool {
        let cpu = &self.cpu;
        if cpu.is_signaled() || !cpu.pending_work.is_empty() {
            return false;
        }
        let Some(block) = self.cache.jump(cpu.rip, cpu.jump_keys) else {
            return false;
        };
        if block.ops.instructions() > cpu.left_to_limit() {
            return false;
        }
        let exit = match cpu.pmu.branches_count {
            true => run_alone::<true>(&mut self.cpu, block),
            false => run_alone::<false>(&mut self.cpu, block),
        };
        if let BlockExit::Fault(fault) = exit {
            self.fault(fault);
        }
        true
    }
}

/// Runs the block `id`, and others while each is linked to the next and no work is due.
fn run_linked<const BRANCHES: bool>(cpu: &mut Cpu, cache: &BlockCache, id: BlockId) -> BlockExit {
    let Some(mut block) = cache.get(id) else {
        return BlockExit::Lookup(Origin::None);
    };
    loop {
        let at = match run_block::<BRANCHES>(cpu, block, block.rip()) {
            Ok(at) => at,
            Err(fault) => return BlockExit::Fault(fault),
        };
        if cpu.is_due() {
            return BlockExit::Lookup(Origin::None);
        }
        let (rip, keys, link) = (cpu.rip, cpu.jump_keys, at.op().link);
        let linked = if link == Op::INDIRECT {
            cache.jump(rip, keys)
        } else {
            cache.linked(link, rip, keys)
        };
        block = match linked {
            Some(next) => next,
            None => {
                return BlockExit::Lookup(Origin::Branch(Branch {
                    block: cache.id(block),
                    op: block.ops.position(at),
                }));
            }
        };
    }
}

/// Runs a block that no other is linked to.
fn run_alone<const BRANCHES: bool>(cpu: &mut Cpu, block: &Block) -> BlockExit {
    cpu.device_aborts = true;
    let ran = run_block::<BRANCHES>(cpu, block, cpu.rip);
    cpu.device_aborts = false;
    match ran {
        Ok(_) => BlockExit::Lookup(Origin::None),
        Err(fault) => BlockExit::Fault(fault),
    }
}

/// Runs the operations of a block up to its end, a jump or a fault. Returns the last operation.
/// `rip` is RIP, from a source that does not depend on the jump that led here, so that the host
/// need not wait for it. `BRANCHES`: counts branch instructions.
#[inline(always)]
pub(super) fn run_block<'a, const BRANCHES: bool>(
    cpu: &mut Cpu,
    block: &'a Block,
    rip: u64,
) -> Result<At<'a>, BlockFault> {
    debug_assert_eq!(rip, cpu.rip);
    cpu.gpr[reg::BLOCK as usize] = rip;
    if BRANCHES {
        cpu.pmu.block = block.ops.branches();
    }
    let retired = |cpu: &mut Cpu, n: u64| {
        cpu.icount += n;
        if BRANCHES {
            add_branches(&mut cpu.pmu.branches, block.ops.branches(), n);
        }
    };
    let first = block.ops.first();
    let Done { at, how } = (first.op().run)(cpu, first, 0);
    let insn = at.insn();
    match how {
        Ok(flow) => {
            if flow == Flow::Branch && cpu.recording {
                cpu.record_near(insn);
            }
            retired(cpu, u64::from(insn.ordinal) + 1);
            if BRANCHES && flow == Flow::Branch && insn.branch == BranchKind::Conditional {
                add_taken(&mut cpu.pmu.branches);
            }
            Ok(at)
        }
        Err(Abort) => {
            cpu.rip = cpu.this_rip(insn);
            retired(cpu, insn.ordinal.into());
            Err(BlockFault::at(insn))
        }
    }
}

/// Runs a block of one instruction.
pub(super) fn run_one(cpu: &mut Cpu, block: &Block) -> Option<BlockFault> {
    let done = match cpu.pmu.branches_count {
        true => run_block::<true>(cpu, block, cpu.rip),
        false => run_block::<false>(cpu, block, cpu.rip),
    };
    done.err()
}
