//! From block to block where blocks are translated to native code.

use std::time::Instant;

use crate::backend::block::{Block, BlockId, Branch};
use crate::backend::interpreter::op::Op;
use crate::backend::jit::check::Expectation;
use crate::backend::jit::{CodeId, NativeExit};
use crate::engine::SoftCpu;
use crate::engine::run::{BlockExit, BlockFault, Origin, run_block};
use crate::insn::{Abort, Flow, reg};
use crate::processor::cpu::Cpu;

impl SoftCpu {
    /// Runs the block `id`, and others while the next is known and no work is due: in native code
    /// what has some, and in the interpreter what has not.
    pub(super) fn run_mixed(&mut self, mut id: BlockId) -> BlockExit {
        loop {
            let ran = match self.native_code_of(id) {
                Some(code) if self.checks() => self.check_code(id, code),
                Some(code) => self.run_code(code),
                None => self.interpret(id),
            };
            let origin = match ran {
                Ok(origin) => origin,
                Err(fault) => return BlockExit::Fault(fault),
            };
            if self.cpu.is_due() {
                return BlockExit::Lookup(Origin::None);
            }
            let (rip, keys) = (self.cpu.rip, self.cpu.jump_keys);
            let next = match origin {
                Origin::Branch(branch) => self.cache.linked(self.cache.link_of(branch), rip, keys),
                _ => self.cache.jump(rip, keys),
            };
            let Some(next) = next else {
                return BlockExit::Lookup(origin);
            };
            id = self.cache.id(next);
            if !matches!(origin, Origin::Branch(_)) {
                self.link(origin, id);
            }
        }
    }

    /// Runs a block in the interpreter.
    fn interpret(&mut self, id: BlockId) -> Result<Origin, BlockFault> {
        let Some(block) = self.cache.get(id) else {
            return Ok(Origin::None);
        };
        let at = run_block::<false>(&mut self.cpu, block, block.rip())?;
        Ok(match at.op().link {
            Op::INDIRECT => Origin::None,
            _ => Origin::Branch(Branch {
                block: id,
                op: block.ops.position(at),
            }),
        })
    }

    /// Runs native code.
    fn run_code(&mut self, code: CodeId) -> Result<Origin, BlockFault> {
        let Some(jit) = &mut self.jit else {
            return Ok(Origin::None);
        };
        match jit.run(&mut self.cpu, self.cache.blocks(), code) {
            NativeExit::Block | NativeExit::Partial => Ok(Origin::None),
            NativeExit::Unlinked(edge) => Ok(Origin::Edge(edge)),
            NativeExit::Indirect => Ok(Origin::Indirect),
            NativeExit::Stale => Ok(Origin::Stale),
            NativeExit::Fault { stack } => Err(BlockFault { stack }),
        }
    }

    /// Whether native code is compared with the interpreter.
    fn checks(&self) -> bool {
        self.jit.as_ref().is_some_and(|jit| jit.checks)
    }

    /// Runs native code of a block, and compares what it changes with what the interpreter changes.
    ///
    /// # Panics
    /// They differ, which is an error of this program.
    #[expect(clippy::panic, reason = "the check has found an error of this program")]
    fn check_code(&mut self, id: BlockId, code: CodeId) -> Result<Origin, BlockFault> {
        let (Some(jit), Some(block)) = (&mut self.jit, self.cache.get(id)) else {
            return Ok(Origin::None);
        };
        let (rip, start, count) = (block.rip(), self.cpu.icount, jit.code.count(code));
        let (bytes, ops) = (block.bytes(), block.ops.all());
        let expectation = Expectation::of(&mut self.cpu, rip, bytes, ops, count);
        let exit = jit.run(&mut self.cpu, self.cache.blocks(), code);
        if let Some(difference) = expectation.and_then(|e| e.differs(&self.cpu)) {
            panic!(
                "--jit check: native code of the block at {rip:#x}, {bytes:02x?}, is wrong: \
                 {difference}"
            );
        }
        match exit {
            NativeExit::Fault { stack } => Err(BlockFault { stack }),
            NativeExit::Partial => {
                // The rest of the block belongs to the same one.
                self.cpu.icount = start;
                finish_block(&mut self.cpu, block, count)?;
                Ok(Origin::None)
            }
            _ => Ok(Origin::None),
        }
    }

    /// The native code of a block that is about to run at the RIP that it remembers. A block that
    /// has run often is translated.
    #[inline]
    fn native_code_of(&mut self, id: BlockId) -> Option<CodeId> {
        if let Some(code) = self.fitting_code(id) {
            return Some(code);
        }
        let (jit, block) = (self.jit.as_ref()?, self.cache.get_mut(id)?);
        match block.translation.heat_up(jit.threshold) {
            true => self.translate(id),
            false => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn translate(&mut self, id: BlockId) -> Option<CodeId> {
        let began = Instant::now();
        if !self.jit.as_mut()?.code.has_room() {
            self.forget_code();
        }
        let code = self.start_of(id).and_then(|start| {
            let (len, count) = self.own_part(id, start)?;
            let (block, handle) = (self.cache.get(id)?, self.cache.blocks().handle(id)?);
            let (bytes, ops) = (&block.bytes()[..len], &block.ops.all()[..count]);
            let jit = self.jit.as_mut()?;
            jit.translate(&self.cpu, start, handle, bytes, ops)
        });
        self.cache.get_mut(id)?.translation.set(code);
        self.jit.as_mut()?.add_time(began.elapsed());
        code
    }
}

/// Executes the instructions of a block from the one with this ordinal on, one by one.
fn finish_block(cpu: &mut Cpu, block: &Block, ordinal: u8) -> Result<(), BlockFault> {
    cpu.gpr[usize::from(reg::BLOCK)] = block.rip();
    let rest = block.ops.all().iter().filter(|op| {
        // The end has the ordinal of the last instruction.
        op.insn.ordinal >= ordinal || op.ends_block()
    });
    for op in rest {
        let insn = &op.insn;
        if op.ends_block() {
            cpu.rip = cpu.this_rip(insn);
            cpu.icount += u64::from(insn.ordinal) + 1;
            break;
        }
        match (op.body)(cpu, insn) {
            Ok(Flow::Next) => {}
            Ok(flow) => {
                if flow == Flow::Branch && cpu.recording {
                    cpu.record_near(insn);
                }
                cpu.icount += u64::from(insn.ordinal) + 1;
                break;
            }
            Err(Abort) => {
                cpu.rip = cpu.this_rip(insn);
                cpu.icount += u64::from(insn.ordinal);
                return Err(BlockFault::at(insn));
            }
        }
    }
    Ok(())
}
