//! From one operation to the next: threaded dispatch.
//!
//! The code of each operation ends with a call of the next operation's code in tail position, until
//! an operation jumps, aborts, or ends the block. At `opt-level` 3 these calls are jumps, which
//! `ci/suite threaded` checks. Nothing relies on that: a chain of calls is never longer than a
//! block.
//!
//! An operation forwards the value that it writes to a general register as an argument, in a
//! register of the host. An operation that reads what the previous one has written would otherwise
//! wait for the store and the load, which take twice as long as the rest of it. The use of the
//! value is decided when a block is decoded: each frequent operation has code that reads its
//! operands from the register file, and code for each operand that can be forwarded to it.

use std::marker::PhantomData;

use crate::backend::interpreter::op::Op;
use crate::exec;
use crate::exec::table::{Backend, Handler, Inlined, Memory, Registers};
use crate::insn::operand::{FIRST, NONE, SECOND};
use crate::insn::{Abort, Exec, Flow, Insn, operand, reg};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// Code of an operation, and of those behind it. The last argument is the forwarded value, if there
/// is one.
pub type Run = for<'a> fn(&mut Cpu, At<'a>, u64) -> Done<'a>;

/// How a run of operations ended.
#[derive(Debug)]
pub struct Done<'a> {
    /// The last operation.
    pub at: At<'a>,
    /// Its result, which is not [`Flow::Next`].
    pub how: Exec,
}

/// The operations of a block. The last one ends it.
#[derive(Debug)]
pub struct Ops(Box<[Op]>);

impl Ops {
    /// `ops`, and the operation that ends a block of `len` bytes. `branches` says which are
    /// branches, see `branch_bits`.
    pub fn new(mut ops: Vec<Op>, len: u16, branches: u64) -> Self {
        ops.push(Op {
            run: end,
            ..Op::called(
                exec::undefined,
                Insn {
                    imm: branches,
                    offset: len,
                    // As many instructions have retired as if the last one had jumped.
                    ordinal: ops.last().map_or(0, |op| op.insn.ordinal),
                    ..Insn::INVALID
                },
            )
        });
        Self(ops.into())
    }

    /// The first operation.
    #[inline(always)]
    pub fn first(&self) -> At<'_> {
        At {
            op: self.0.as_ptr(),
            ops: PhantomData,
        }
    }

    /// The operations, with the one that ends the block.
    pub(crate) fn all(&self) -> &[Op] {
        &self.0
    }

    /// Which instructions are branches, see `branch_bits`.
    pub fn branches(&self) -> u64 {
        self.0.last().map_or(0, |end| end.insn.imm)
    }

    /// Number of instructions: so many retire if none of them jumps.
    pub fn instructions(&self) -> u64 {
        self.0
            .last()
            .map_or(0, |end| u64::from(end.insn.ordinal) + 1)
    }

    /// Number of operations.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Links the direct branch that is operation `from` to block `to`, to which it has led.
    pub fn link(&mut self, from: usize, to: u32) {
        if let Some(op) = self.0.get_mut(from)
            && op.link != Op::INDIRECT
        {
            op.link = to;
        }
    }

    /// The link of operation `from`.
    pub(crate) fn link_of(&self, from: usize) -> u32 {
        self.0.get(from).map_or(Op::UNLINKED, |op| op.link)
    }

    /// Index of the operation `at`.
    pub fn position(&self, at: At<'_>) -> usize {
        (at.op as usize - self.0.as_ptr() as usize) / size_of::<Op>()
    }
}

/// An operation in its block.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct At<'a> {
    op: *const Op,
    ops: PhantomData<&'a [Op]>,
}

impl<'a> At<'a> {
    /// The operation.
    #[inline(always)]
    pub fn op(self) -> &'a Op {
        // SAFETY: `op` is in the operations of an `Ops`, borrowed for as long: `first` gives one,
        // `after` the next.
        unsafe { &*self.op }
    }

    /// The instruction.
    #[inline(always)]
    pub fn insn(self) -> &'a Insn {
        &self.op().insn
    }

    /// The next operation.
    ///
    /// # Safety
    /// This operation is not the last of its block.
    #[inline(always)]
    unsafe fn next(self) -> Self {
        At {
            // SAFETY: the caller's promise.
            op: unsafe { self.op.add(1) },
            ..self
        }
    }

    /// Continues after the operation has been executed with the result `how`.
    #[inline(always)]
    pub fn after(self, cpu: &mut Cpu, how: Exec, forwarded: u64) -> Done<'a> {
        match how {
            Ok(Flow::Next) => {
                // SAFETY: the last operation has the code `end`, whose result is never `Next`.
                let next = unsafe { self.next() };
                (next.op().run)(cpu, next, forwarded)
            }
            how => Done { at: self, how },
        }
    }

    /// Executes the next operation, which is a whole instruction, with `f` in place of its own code
    /// (see [`super::fused`]), and continues after it.
    ///
    /// # Safety
    /// This operation is not the last of its block.
    #[inline(always)]
    pub(crate) unsafe fn with_next(
        self,
        cpu: &mut Cpu,
        forwarded: u64,
        f: impl FnOnce(&mut Cpu, &Insn) -> Exec,
    ) -> Done<'a> {
        // SAFETY: the caller's promise.
        let next = unsafe { self.next() };
        let how = f(cpu, next.insn());
        next.after(cpu, how, forwarded)
    }
}

/// What the forwarded value is after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forwarding {
    /// All of the destination register.
    Destination,
    /// What it was before: no general register was written.
    Unchanged,
    /// Nothing that the next operation can use.
    Nothing,
}

impl Forwarding {
    /// After an operation that writes its destination register if `writes` is set, and no other
    /// general register. A write of 32 bits clears the upper half (SDM Vol. 1 3.4.1.1); a shorter
    /// one keeps part of the register, which the operation does not know.
    const fn after_write<T: Int>(writes: bool) -> Self {
        match (writes, T::BITS) {
            (false, _) => Self::Unchanged,
            (true, 32 | 64) => Self::Destination,
            (true, _) => Self::Nothing,
        }
    }
}

/// The code of an operation, one for each operand that can be forwarded to it.
#[derive(Clone, Copy)]
enum Runs {
    /// It reads the register file.
    One(Run),
    /// By [`operand`], of `dst` and `src`.
    Registers([Run; 3]),
    /// By [`operand`], of `base` and `index`.
    Memory([Run; 3]),
}

/// How the interpreter executes an instruction.
pub(crate) struct Threaded {
    runs: Runs,
    /// Executes the whole instruction, without a forwarded operand.
    pub body: Handler,
    /// What the operation forwards.
    pub forwarding: Forwarding,
}

impl Threaded {
    /// Which of its operands is forwarded to it, if the forwarded value is that of `register`: see
    /// [`operand`].
    pub(crate) fn operand(&self, insn: &Insn, register: Option<u8>) -> u8 {
        let [first, second] = match self.runs {
            Runs::One(_) => return operand::NONE,
            Runs::Registers(_) => [insn.dst, insn.src],
            Runs::Memory(_) => [insn.base, insn.index],
        };
        match register {
            Some(r) if r == first => operand::FIRST,
            Some(r) if r == second => operand::SECOND,
            _ => operand::NONE,
        }
    }

    /// Its code if that operand is forwarded to it.
    pub(crate) fn run(&self, operand: u8) -> Run {
        match self.runs {
            Runs::One(run) => run,
            Runs::Registers(runs) | Runs::Memory(runs) => runs[usize::from(operand % 3)],
        }
    }
}

/// The interpreter, as a backend of the table of instructions.
pub(crate) struct Interpreter;

impl Backend for Interpreter {
    type Code = Threaded;

    fn handler(body: Handler) -> Threaded {
        Threaded {
            runs: Runs::One(called),
            body,
            forwarding: Forwarding::Nothing,
        }
    }

    fn registers<S: Registers, T: Int>() -> Threaded {
        Threaded {
            runs: Runs::Registers([
                registers::<NONE, S, T>,
                registers::<FIRST, S, T>,
                registers::<SECOND, S, T>,
            ]),
            body: |cpu, insn| {
                S::execute::<NONE, T>(cpu, insn, 0);
                Ok(Flow::Next)
            },
            forwarding: Forwarding::after_write::<T>(S::WRITES),
        }
    }

    fn memory<S: Memory, T: Int>() -> Threaded {
        Threaded {
            runs: Runs::Memory([
                memory::<NONE, S, T>,
                memory::<FIRST, S, T>,
                memory::<SECOND, S, T>,
            ]),
            body: |cpu, insn| S::execute::<false, NONE, T>(cpu, insn, 0).map(|_| Flow::Next),
            forwarding: Forwarding::after_write::<T>(S::WRITES),
        }
    }

    fn inlined<S: Inlined, T: Int>() -> Threaded {
        Threaded {
            runs: Runs::One(inlined::<S, T>),
            body: S::execute::<false, T>,
            forwarding: if S::KEEPS_REGISTERS {
                Forwarding::Unchanged
            } else {
                Forwarding::Nothing
            },
        }
    }
}

/// Code of a [`Registers`] to which operand `N` is forwarded.
fn registers<'a, const N: u8, S: Registers, T: Int>(
    cpu: &mut Cpu,
    at: At<'a>,
    forwarded: u64,
) -> Done<'a> {
    let forwarded = S::execute::<N, T>(cpu, at.insn(), forwarded);
    at.after(cpu, Ok(Flow::Next), forwarded)
}

/// Code of a [`Memory`] to which operand `N` is forwarded.
fn memory<'a, const N: u8, S: Memory, T: Int>(
    cpu: &mut Cpu,
    at: At<'a>,
    forwarded: u64,
) -> Done<'a> {
    match S::execute::<true, N, T>(cpu, at.insn(), forwarded) {
        Ok(forwarded) => at.after(cpu, Ok(Flow::Next), forwarded),
        Err(Abort) if S::WRITES => retry_slow_load(cpu, at, forwarded),
        Err(Abort) => retry_slow(cpu, at, forwarded),
    }
}

/// Code of an [`Inlined`].
fn inlined<'a, S: Inlined, T: Int>(cpu: &mut Cpu, at: At<'a>, forwarded: u64) -> Done<'a> {
    match S::execute::<true, T>(cpu, at.insn()) {
        Err(Abort) => retry_slow(cpu, at, forwarded),
        how => at.after(cpu, how, forwarded),
    }
}

/// Code of an operation that calls [`Op::body`].
pub(crate) fn called<'a>(cpu: &mut Cpu, at: At<'a>, _: u64) -> Done<'a> {
    let how = (at.op().body)(cpu, at.insn());
    at.after(cpu, how, 0)
}

/// Executes an operation again, without the restriction to what the TLB finds. It aborted before it
/// had changed anything. It writes no register whose value is forwarded.
#[cold]
#[inline(never)]
pub(crate) fn retry_slow<'a>(cpu: &mut Cpu, at: At<'a>, forwarded: u64) -> Done<'a> {
    let how = (at.op().body)(cpu, at.insn());
    at.after(cpu, how, forwarded)
}

/// As [`retry_slow`], for an operation that forwards its destination register.
#[cold]
#[inline(never)]
fn retry_slow_load<'a>(cpu: &mut Cpu, at: At<'a>, _: u64) -> Done<'a> {
    let how = (at.op().body)(cpu, at.insn());
    let forwarded = cpu.gpr[usize::from(at.insn().dst)];
    at.after(cpu, how, forwarded)
}

/// Code of the operation that ends a block.
fn end<'a>(cpu: &mut Cpu, at: At<'a>, _: u64) -> Done<'a> {
    cpu.rip = cpu.gpr[usize::from(reg::BLOCK)].wrapping_add(u64::from(at.insn().offset));
    let how = Ok(Flow::Jump);
    Done { at, how }
}
