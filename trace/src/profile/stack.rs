//! The call stack of one task.
//!
//! A frame knows where its function returns to. Most transfers fit: a call adds a frame, a return
//! removes it. What does not fit is resynchronised: a longjmp or an exception leaves frames behind,
//! a coroutine or a context switch exchanges the stack, a return can be a disguised jump. What has
//! no explanation is counted.

mod jumps;

use rustc_hash::FxHashMap;

use super::Counts;
use super::functions::{FunctionId, Functions};
use super::inlined::{ChainId, Chains};
use super::tree::{Label, NodeId, Tree};

/// Maximum number of frames. When it is reached, the outer half is dropped.
const MAX_DEPTH: usize = 1 << 16;
/// Maximum number of frames among which one is looked for.
const MAX_SEARCH: usize = 1 << 12;
/// Maximum number of stacks that a task has left. When it is reached, the oldest is dropped.
const MAX_PARKED: usize = 1 << 10;
/// Number of frames of a stack that is moved to another name at most.
const MAX_RENAMED: usize = 256;
/// Number of inner frames of a stack to which a coroutine can return.
const RESUMED: usize = 8;

/// The address to which a frame returns, if it is not known. No code is there.
pub const NOWHERE: u64 = u64::MAX;

/// Why a frame exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// The first one.
    Outermost,
    /// The first one of a stack that has begun with its function.
    First,
    /// A call.
    Call,
    /// A jump to a function, which returns to the caller of the one that jumps.
    Tail,
    /// A signal interrupts a straight line, which begins at this address.
    Signal(u64),
    /// The handler of a signal.
    Handler,
    /// A system call, an interrupt or an exception enters the kernel.
    Event,
    /// A transfer from code that is not known.
    Blind,
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Where it returns to, or [`NOWHERE`].
    pub ret: u64,
    /// Its node in the call tree.
    pub node: NodeId,
    /// Its function. A frame of a signal has that of the interrupted frame.
    pub function: FunctionId,
    /// Why it exists.
    pub kind: FrameKind,
}

/// What a stack needs to know of the code.
#[derive(Debug)]
pub struct Context<'a> {
    /// The call tree.
    pub tree: &'a mut Tree,
    /// The functions.
    pub functions: &'a Functions,
    /// What could not be explained.
    pub counts: &'a mut Counts,
    /// The chains of inlined functions, and the one of the instruction that transfers control.
    pub inlined: (&'a Chains, ChainId),
}

/// The target of a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its address.
    pub to: u64,
    /// The function there.
    pub function: FunctionId,
    /// The function begins there.
    pub is_entry: bool,
}

/// The call stack of one task. It is empty only before its first record.
#[derive(Debug, Clone, Default)]
pub struct Stack {
    frames: Vec<Frame>,
    parked: Vec<Vec<Frame>>,
    /// The first function of the stack has returned.
    is_over: bool,
}

impl Stack {
    /// The frames, the outermost first.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The innermost frame.
    #[inline]
    pub fn top(&self) -> Option<&Frame> {
        self.frames.last()
    }

    /// Number of frames for which it has memory.
    pub fn held(&self) -> usize {
        let parked: usize = self.parked.iter().map(Vec::capacity).sum();
        self.frames.capacity() + parked
    }

    /// Forgets the stacks that the task has left, and all frames except `depth` inner ones. Returns
    /// whether there were more.
    pub fn trim(&mut self, depth: usize) -> bool {
        if self.held() <= depth {
            return false;
        }
        self.parked = Vec::new();
        // A shorter allocation in the place of the old one would leave a hole that is too small for
        // the next stack.
        let inner = self.frames.len().saturating_sub(depth);
        self.frames = self.frames.get(inner..).unwrap_or_default().to_vec();
        true
    }

    /// Forgets everything: the task executes another program.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the frames of the task that has made this one by a fork.
    pub fn fork(&mut self, parent: &Self) {
        self.frames.clone_from(&parent.frames);
    }

    /// Begins with a function.
    pub fn begin(&mut self, program: NodeId, function: FunctionId, context: &mut Context<'_>) {
        self.frames.clear();
        self.add(program, function, NOWHERE, FrameKind::Outermost, context);
    }

    /// Moves the frames below the node of another program: the thread has another name from here
    /// on. Deep stacks stay where they are, so that a name that changes each time has a bounded
    /// cost.
    pub fn rename(&mut self, program: NodeId, tree: &mut Tree) {
        if self.frames.len() > MAX_RENAMED {
            return;
        }
        let mut moved = FxHashMap::default();
        for frame in &mut self.frames {
            frame.node = tree.below(program, frame.node, &mut moved);
        }
    }

    /// Adds a frame below node `parent`.
    fn add(
        &mut self,
        parent: NodeId,
        function: FunctionId,
        ret: u64,
        kind: FrameKind,
        context: &mut Context<'_>,
    ) {
        let label = match kind {
            FrameKind::Signal(_) => Label::Signal,
            _ => Label::Function(function),
        };
        let node = context.tree.child(parent, label);
        self.add_node(node, function, ret, kind, context);
    }

    fn add_node(
        &mut self,
        node: NodeId,
        function: FunctionId,
        ret: u64,
        kind: FrameKind,
        context: &mut Context<'_>,
    ) {
        if self.frames.len() >= MAX_DEPTH {
            self.frames.drain(..MAX_DEPTH / 2);
            context.counts.too_deep += 1;
        }
        if let Some(node) = context.tree.get_mut(node) {
            node.calls += 1;
        }
        self.frames.push(Frame {
            ret,
            node,
            function,
            kind,
        });
    }

    /// Adds a frame. `cache` has the node of the last caller's frame, and that of the new one.
    #[inline]
    pub fn push(
        &mut self,
        function: FunctionId,
        ret: u64,
        kind: FrameKind,
        cache: &mut (NodeId, NodeId),
        context: &mut Context<'_>,
    ) {
        let caller = self.node();
        if cache.0 != caller {
            let (chains, chain) = context.inlined;
            let parent = context.tree.inlined(caller, chain, chains);
            let label = Label::Function(function);
            *cache = (caller, context.tree.child(parent, label));
        }
        self.add_node(cache.1, function, ret, kind, context);
    }

    /// The node of the innermost frame.
    #[inline]
    pub fn node(&self) -> NodeId {
        self.frames.last().map_or(0, |frame| frame.node)
    }

    /// Adds the frames of a signal and its handler. The signal interrupts the line that begins at
    /// `start`.
    pub fn signal(&mut self, start: u64, handler: FunctionId, context: &mut Context<'_>) {
        context.counts.signals += 1;
        let function = self.top().map_or(handler, |frame| frame.function);
        let kind = FrameKind::Signal(start);
        self.add(self.node(), function, NOWHERE, kind, context);
        self.add(self.node(), handler, NOWHERE, FrameKind::Handler, context);
    }

    /// The start of the line that the innermost signal has interrupted.
    pub fn interrupted(&self) -> Option<u64> {
        let frames = self.frames.iter().rev().take(MAX_SEARCH);
        frames
            .filter_map(|frame| match frame.kind {
                FrameKind::Signal(start) => Some(start),
                _ => None,
            })
            .next()
    }

    /// Returns from the innermost signal.
    pub fn end_signal(&mut self) {
        let is_signal = |frame: &Frame| matches!(frame.kind, FrameKind::Signal(_));
        if let Some(at) = self.find(is_signal) {
            self.frames.truncate(at);
        }
    }

    /// The index of the innermost frame that is `wanted`.
    fn find(&self, wanted: impl Fn(&Frame) -> bool) -> Option<usize> {
        let first = self.frames.len().saturating_sub(MAX_SEARCH);
        let frames = self.frames.get(first..)?;
        Some(first + frames.iter().rposition(wanted)?)
    }

    /// Removes the frame at `at` and those inside of it. Its caller stays.
    fn leave(&mut self, at: usize) {
        self.frames.truncate(at);
    }

    /// A return.
    #[inline]
    pub fn ret(&mut self, target: Target, context: &mut Context<'_>) {
        if let Some(frame) = self.frames.last()
            && frame.ret == target.to
            && frame.kind == FrameKind::Call
        {
            self.frames.pop();
        } else {
            self.ret_slow(target, context);
        }
    }

    #[cold]
    fn ret_slow(&mut self, target: Target, context: &mut Context<'_>) {
        let returns = |frame: &Frame| frame.ret == target.to;
        if let Some(mut at) = self.find(returns) {
            // The frames of jumps return together with the one that was called.
            let is_tail = |frame: &Frame| frame.kind == FrameKind::Tail;
            let inner = self.frames.get(at + 1..).unwrap_or_default();
            if !inner.is_empty() && !inner.iter().all(is_tail) {
                context.counts.unwound += 1;
            }
            while at > 0 && self.frames.get(at).is_some_and(is_tail) {
                at -= 1;
            }
            self.leave(at);
            return;
        }
        // The handler of the innermost signal returns to code that ends the signal.
        let is_handler = |frame: &Frame| matches!(frame.kind, FrameKind::Handler | FrameKind::Call);
        if let Some(at) = self.find(is_handler)
            && self
                .frames
                .get(at)
                .is_some_and(|f| f.kind == FrameKind::Handler)
        {
            self.leave(at);
            return;
        }
        if let Some(at) = self.find(|frame| frame.kind == FrameKind::Blind)
            && let Some(below) = at.checked_sub(1).and_then(|below| self.frames.get(below))
            && context.functions.get(below.function).start.module
                == context.functions.get(target.function).start.module
        {
            self.leave(at);
            return;
        }
        if target.is_entry {
            // A return that is a jump, for example a retpoline.
            self.tail(target, &mut (NodeId::MAX, 0), context);
            return;
        }
        if self.frames.len() == 1 {
            if !self.resume_parked(target, context) {
                // The trace has begun in a function that was called before.
                let program = self.program(context);
                let first = self.frames.first().map(|frame| frame.kind);
                self.begin(program, target.function, context);
                self.is_over = first == Some(FrameKind::First);
            }
            return;
        }
        self.resume(target, context);
    }
}
