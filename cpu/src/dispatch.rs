//! From one operation to the next: threaded dispatch.
//!
//! Each operation's code ends with a call of the next one's in tail position, and that comes to the next, until one
//! jumps, stops, or ends the block. At `opt-level` 3 these calls are jumps (`ci/threaded` looks); but nothing relies on
//! that: a chain of calls is as long as a block, and no longer.

use std::marker::PhantomData;

use crate::cpu::Cpu;
use crate::op::{Exec, Flow, Handler, Op, reg};

/// Code of an operation, and of those behind it.
pub type Run = for<'a> fn(&mut Cpu, At<'a>) -> Done<'a>;

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
            off: len,
            // As many instructions have retired as if the last one had jumped.
            idx: ops.last().map_or(0, |op| op.idx),
            ..Op::BLANK
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
        // SAFETY: `op` is in the operations of an `Ops`, borrowed for as long: `first` gives one, `after` the next.
        unsafe { &*self.op }
    }

    /// The next operation.
    #[inline(always)]
    fn next(self) -> Self {
        At {
            // SAFETY: this operation is not the last: of that one only the code, `end`, is run, and it does not go on.
            op: unsafe { self.op.add(1) },
            ..self
        }
    }

    /// Goes on after the operation has been executed, with what came of it.
    #[inline(always)]
    pub fn after(self, cpu: &mut Cpu, how: Exec) -> Done<'a> {
        match how {
            Ok(Flow::Next) => {
                let next = self.next();
                (next.op().run)(cpu, next)
            }
            how => Done { at: self, how },
        }
    }

    /// After the operation has been executed: has `f` execute the next, which is an instruction's (see
    /// `exec::fused`), and goes on.
    #[inline(always)]
    pub(crate) fn with_next(
        self,
        cpu: &mut Cpu,
        f: impl FnOnce(&mut Cpu, &Op) -> Exec,
    ) -> Done<'a> {
        let next = self.next();
        let how = f(cpu, next.op());
        next.after(cpu, how)
    }
}

/// How a frequent instruction is executed.
pub(crate) struct Threaded {
    pub run: Run,
    pub body: Handler,
}

/// The instance of a handler with these generic parameters, for operations whose code calls it.
macro_rules! handler {
    ($f:ident $(, $g:tt)*) => {
        $f::<$($g),*> as $crate::op::Handler
    };
}
pub(crate) use handler;

/// Code of such an instance, which becomes part of it: for those that are short and frequent. One that lets the address of a
/// local variable escape would keep the call of the next operation's code from being a jump.
macro_rules! threaded {
    ($f:ident $(, $g:tt)*) => {{
        let run: $crate::dispatch::Run = |cpu, at| {
            let how = $f::<$($g),*>(cpu, at.op());
            at.after(cpu, how)
        };
        $crate::dispatch::Threaded { run, body: $crate::exec::undefined }
    }};
}
pub(crate) use threaded;

/// The same for a handler that accesses memory. Its first generic parameter is true in the code, which only has what the
/// TLB finds and else aborts: then the handler runs once more, as a whole, out of the way.
macro_rules! memory {
    ($f:ident, $($g:tt),+) => {{
        let run: $crate::dispatch::Run = |cpu, at| match $f::<true, $($g),+>(cpu, at.op()) {
            Err($crate::op::Abort) => $crate::dispatch::again(cpu, at),
            how => at.after(cpu, how),
        };
        $crate::dispatch::Threaded { run, body: $f::<false, $($g),+> }
    }};
}
pub(crate) use memory;

/// Code of all other operations: calls [`Op::body`].
pub(crate) fn called<'a>(cpu: &mut Cpu, at: At<'a>) -> Done<'a> {
    let how = (at.op().body)(cpu, at.op());
    at.after(cpu, how)
}

/// The operation was aborted, before it has changed anything, where its handler may go on.
#[cold]
#[inline(never)]
pub(crate) fn again<'a>(cpu: &mut Cpu, at: At<'a>) -> Done<'a> {
    called(cpu, at)
}

/// Code of a block's end.
fn end<'a>(cpu: &mut Cpu, at: At<'a>) -> Done<'a> {
    cpu.rip = cpu.gpr[usize::from(reg::BLOCK)].wrapping_add(u64::from(at.op().off));
    let how = Ok(Flow::Jump);
    Done { at, how }
}
