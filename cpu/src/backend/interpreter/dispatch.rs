//! From one operation to the next: threaded dispatch.
//!
//! Each operation's code ends with a call of the next one's in tail position, and that comes to the
//! next, until one jumps, stops, or ends the block. At `opt-level` 3 these calls are jumps
//! (`ci/threaded` looks); but nothing relies on that: a chain of calls is as long as a block, and
//! no longer.
//!
//! What an operation writes to a general register it also passes on as an argument, so in a
//! register of the host: an operation that reads what the one before has written would else wait
//! for it to come back from memory, for twice as long as all of the rest takes. Where the value is
//! used is decided when a block is decoded: there is code of each frequent operation that reads its
//! operands from the register file, and code that has one of them passed.

use std::marker::PhantomData;

use crate::backend::interpreter::op::Op;
use crate::exec::{self, Handler};
use crate::insn::{Exec, Flow, Insn, operand, reg};
use crate::processor::cpu::Cpu;

/// Code of an operation, and of those behind it. The last argument is the value that is passed on,
/// if one is.
pub type Run = for<'a> fn(&mut Cpu, At<'a>, u64) -> Done<'a>;

/// How a run of operations ended.
#[derive(Debug)]
pub struct Done<'a> {
    /// The last operation.
    pub at: At<'a>,
    /// What came of it; not [`Flow::Next`].
    pub how: Exec,
}

/// The operations of a block, of which the last is one that ends it.
#[derive(Debug)]
pub struct Ops(Box<[Op]>);

impl Ops {
    /// `ops`, and at `len` bytes the end.
    pub fn new(mut ops: Vec<Op>, len: u16) -> Self {
        ops.push(Op {
            run: end,
            ..Op::called(
                exec::undefined,
                Insn {
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Remembers where the branch `from`, an operation of these, has led, if it leads to one place.
    pub fn link(&mut self, from: usize, to: u32) {
        if let Some(op) = self.0.get_mut(from)
            && op.link != Op::INDIRECT
        {
            op.link = to;
        }
    }

    /// Which operation of these `at` is.
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
    #[inline(always)]
    fn next(self) -> Self {
        At {
            // SAFETY: this operation is not the last: of that one only the code, `end`, is run, and
            // it does not go on.
            op: unsafe { self.op.add(1) },
            ..self
        }
    }

    /// Goes on after the operation has been executed, with what came of it.
    #[inline(always)]
    pub fn after(self, cpu: &mut Cpu, how: Exec, passed: u64) -> Done<'a> {
        match how {
            Ok(Flow::Next) => {
                let next = self.next();
                (next.op().run)(cpu, next, passed)
            }
            how => Done { at: self, how },
        }
    }

    /// After the operation has been executed: has `f` execute the next, which is an instruction's
    /// (see `exec::fused`), and goes on.
    #[inline(always)]
    pub(crate) fn with_next(
        self,
        cpu: &mut Cpu,
        passed: u64,
        f: impl FnOnce(&mut Cpu, &Insn) -> Exec,
    ) -> Done<'a> {
        let next = self.next();
        let how = f(cpu, next.insn());
        next.after(cpu, how, passed)
    }
}

/// What the value that is passed on is after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passes {
    /// All of the destination register.
    Destination,
    /// What it was before; no general register was written.
    Same,
    /// Nothing that could be used.
    Nothing,
}

/// The codes of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Codes {
    /// It reads the register file.
    One(Run),
    /// By [`operand`], of `dst` and `src`.
    Registers([Run; 3]),
    /// By [`operand`], of `base` and `index`.
    Memory([Run; 3]),
}

/// How an instruction is executed.
pub(crate) struct Threaded {
    pub codes: Codes,
    pub body: Handler,
    pub passes: Passes,
}

impl Threaded {
    /// An instruction whose code calls its handler.
    pub fn called(body: Handler) -> Self {
        Self {
            codes: Codes::One(called),
            body,
            passes: Passes::Nothing,
        }
    }

    /// The destination register is written, `size` bytes of it: 4 clear the rest (SDM Vol. 1
    /// 3.4.1.1).
    pub fn writes(self, size: usize) -> Self {
        self.passes(if size >= 4 {
            Passes::Destination
        } else {
            Passes::Nothing
        })
    }

    /// What is passed on after it.
    pub fn passes(self, passes: Passes) -> Self {
        Self { passes, ..self }
    }

    /// Which of its operands [`Self::run`] is to have passed, if that is the value of `register`.
    pub fn operand(&self, insn: &Insn, register: Option<u8>) -> u8 {
        let [first, second] = match self.codes {
            Codes::One(_) => return operand::NONE,
            Codes::Registers(_) => [insn.dst, insn.src],
            Codes::Memory(_) => [insn.base, insn.index],
        };
        match register {
            Some(r) if r == first => operand::FIRST,
            Some(r) if r == second => operand::SECOND,
            _ => operand::NONE,
        }
    }

    /// Its code that has that operand passed.
    pub fn run(&self, operand: u8) -> Run {
        match self.codes {
            Codes::One(run) => run,
            Codes::Registers(codes) | Codes::Memory(codes) => codes[usize::from(operand % 3)],
        }
    }
}

/// The instance of a handler with these generic parameters, for operations whose code calls it.
macro_rules! handler {
    ($f:ident $(, $g:tt)*) => {
        $f::<$($g),*> as $crate::exec::Handler
    };
}
pub(crate) use handler;

/// Code of such an instance, which becomes part of it: for those that are short and frequent. One
/// that lets the address of a local variable escape would keep the call of the next operation's
/// code from being a jump.
macro_rules! threaded {
    ($f:ident $(, $g:tt)*) => {{
        let run: $crate::backend::interpreter::dispatch::Run = |cpu, at, passed| {
            let how = $f::<$($g),*>(cpu, at.insn());
            at.after(cpu, how, passed)
        };
        $crate::backend::interpreter::dispatch::Threaded {
            codes: $crate::backend::interpreter::dispatch::Codes::One(run),
            body: $crate::exec::undefined,
            passes: $crate::backend::interpreter::dispatch::Passes::Nothing,
        }
    }};
}
pub(crate) use threaded;

/// The same for a handler that accesses memory. Its first generic parameter is true in the code,
/// which only has what the TLB finds and else aborts: then the handler runs once more, as a whole,
/// out of the way.
macro_rules! memory {
    ($f:ident, $($g:tt),+) => {{
        let run: $crate::backend::interpreter::dispatch::Run = |cpu, at, passed| match $f::<true, $($g),+>(cpu, at.insn()) {
            Err($crate::insn::Abort) => $crate::backend::interpreter::dispatch::again(cpu, at, passed),
            how => at.after(cpu, how, passed),
        };
        $crate::backend::interpreter::dispatch::Threaded {
            codes: $crate::backend::interpreter::dispatch::Codes::One(run),
            body: $f::<false, $($g),+>,
            passes: $crate::backend::interpreter::dispatch::Passes::Nothing,
        }
    }};
}
pub(crate) use memory;

/// Codes of a handler of registers that has its operands passed: `f::<OPERAND, ...>(cpu,
/// insn, passed)` returns what is passed on, and always completes. That it can be used has to be said:
/// [`Threaded::writes`].
macro_rules! registers {
    ($f:ident $(, $g:tt)*) => {{
        use $crate::insn::operand::{FIRST, NONE, SECOND};
        macro_rules! run {
            ($n:ident) => {{
                let run: $crate::backend::interpreter::dispatch::Run = |cpu, at, passed| {
                    let passed = $f::<$n $(, $g)*>(cpu, at.insn(), passed);
                    at.after(cpu, Ok($crate::insn::Flow::Next), passed)
                };
                run
            }};
        }
        $crate::backend::interpreter::dispatch::Threaded {
            codes: $crate::backend::interpreter::dispatch::Codes::Registers([run!(NONE), run!(FIRST), run!(SECOND)]),
            body: $crate::exec::undefined,
            passes: $crate::backend::interpreter::dispatch::Passes::Nothing,
        }
    }};
}
pub(crate) use registers;

/// The same for one with a memory operand, `f::<HIT, OPERAND, ...>`: see [`memory`]. What it passes
/// on is its destination register, or what it was passed.
macro_rules! addressed {
    ($again:ident, $f:ident $(, $g:tt)*) => {{
        use $crate::insn::operand::{FIRST, NONE, SECOND};
        macro_rules! run {
            ($n:ident) => {{
                let run: $crate::backend::interpreter::dispatch::Run =
                    |cpu, at, passed| match $f::<true, $n $(, $g)*>(cpu, at.insn(), passed) {
                        Ok(passed) => at.after(cpu, Ok($crate::insn::Flow::Next), passed),
                        Err($crate::insn::Abort) => $crate::backend::interpreter::dispatch::$again(cpu, at, passed),
                    };
                run
            }};
        }
        let body: $crate::exec::Handler =
            |cpu, insn| $f::<false, NONE $(, $g)*>(cpu, insn, 0).map(|_| $crate::insn::Flow::Next);
        $crate::backend::interpreter::dispatch::Threaded {
            codes: $crate::backend::interpreter::dispatch::Codes::Memory([run!(NONE), run!(FIRST), run!(SECOND)]),
            body,
            passes: $crate::backend::interpreter::dispatch::Passes::Same,
        }
    }};
}
pub(crate) use addressed;

/// [`addressed`] for what writes its destination register; see [`Threaded::writes`].
macro_rules! load {
    ($f:ident $(, $g:tt)*) => {
        $crate::backend::interpreter::dispatch::addressed!(again_loading, $f $(, $g)*)
            .passes($crate::backend::interpreter::dispatch::Passes::Nothing)
    };
}
pub(crate) use load;

/// [`addressed`] for what writes no register.
macro_rules! store {
    ($f:ident $(, $g:tt)*) => {
        $crate::backend::interpreter::dispatch::addressed!(again, $f $(, $g)*)
    };
}
pub(crate) use store;

/// Code of all other operations: calls [`Op::body`].
pub(crate) fn called<'a>(cpu: &mut Cpu, at: At<'a>, _: u64) -> Done<'a> {
    let how = (at.op().body)(cpu, at.insn());
    at.after(cpu, how, 0)
}

/// The operation was aborted, before it has changed anything, where its handler may go on. It
/// writes no register from which a value is passed on.
#[cold]
#[inline(never)]
pub(crate) fn again<'a>(cpu: &mut Cpu, at: At<'a>, passed: u64) -> Done<'a> {
    let how = (at.op().body)(cpu, at.insn());
    at.after(cpu, how, passed)
}

/// Runs the handler of an aborted operation that passes on its destination register.
#[cold]
#[inline(never)]
pub(crate) fn again_loading<'a>(cpu: &mut Cpu, at: At<'a>, _: u64) -> Done<'a> {
    let how = (at.op().body)(cpu, at.insn());
    let passed = cpu.gpr[usize::from(at.insn().dst)];
    at.after(cpu, how, passed)
}

/// Code of a block's end.
fn end<'a>(cpu: &mut Cpu, at: At<'a>, _: u64) -> Done<'a> {
    cpu.rip = cpu.gpr[usize::from(reg::BLOCK)].wrapping_add(u64::from(at.insn().offset));
    let how = Ok(Flow::Jump);
    Done { at, how }
}
