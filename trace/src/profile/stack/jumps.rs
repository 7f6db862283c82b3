//! What a jump, an interrupt's return, or a transfer of an unknown kind does to a call stack.

use super::{Context, Frame, FrameKind, MAX_PARKED, NOWHERE, RESUMED, Stack, Target};
use crate::profile::modules::Modules;
use crate::profile::tree::{Label, NodeId};

impl Stack {
    /// A jump to the beginning of another function. `cache` is as for [`Self::push`].
    pub fn tail(
        &mut self,
        target: Target,
        cache: &mut (NodeId, NodeId),
        context: &mut Context<'_>,
    ) {
        let Some(top) = self.frames.last().copied() else {
            return;
        };
        // Functions that jump to each other do not make the stack deeper.
        let mut at = self.frames.len();
        while let Some(frame) = at.checked_sub(1).and_then(|at| self.frames.get(at)) {
            at -= 1;
            if frame.function == target.function && !matches!(frame.kind, FrameKind::Signal(_)) {
                self.frames.truncate(at + 1);
                if let Some(node) = self
                    .frames
                    .last()
                    .and_then(|f| context.tree.get_mut(f.node))
                {
                    node.calls += 1;
                }
                return;
            }
            if frame.kind != FrameKind::Tail {
                break;
            }
        }
        // What is between a call and the function that is meant is no caller.
        let is_linkage = context.functions.is_linkage(top.function);
        if is_linkage && top.kind == FrameKind::Call && self.frames.len() > 1 {
            self.frames.pop();
            // The caller can be an inlined function.
            let node = context.tree.nodes().get(top.node as usize);
            let parent = node.map_or(0, |node| node.parent);
            self.add(parent, target.function, top.ret, FrameKind::Call, context);
            return;
        }
        self.push(target.function, top.ret, FrameKind::Tail, cache, context);
    }

    /// A jump into the middle of another function: longjmp, an exception, a coroutine, or parts of
    /// functions that share code.
    pub fn far_jump(&mut self, target: Target, indirect: bool, context: &mut Context<'_>) {
        if indirect {
            self.resume(target, context);
        } else if let Some(frame) = self.frames.last_mut() {
            frame.function = target.function;
        }
    }

    /// An indirect jump into the middle of another function, both of which the process has made. A
    /// method of a virtual machine has several entries, to which stubs and the interpreter jump,
    /// and the interpreter returns by jumps.
    pub fn generated_jump(
        &mut self,
        target: Target,
        cache: &mut (NodeId, NodeId),
        context: &mut Context<'_>,
    ) {
        match self.find(|frame| frame.ret == target.to) {
            Some(_) => self.ret(target, context),
            None => self.tail(target, cache, context),
        }
    }

    /// Continues on another stack: on one that was left, or with a function on a new one.
    pub fn switch(&mut self, target: Target, context: &mut Context<'_>) {
        if !target.is_entry {
            return match self.find(|frame| frame.ret == target.to) {
                // It is the same one.
                Some(_) if self.parked.is_empty() => self.ret(target, context),
                _ => self.resume(target, context),
            };
        }
        let program = self.program(context);
        context.counts.switches += 1;
        self.park(Vec::new(), context);
        let function = target.function;
        self.add(program, function, NOWHERE, FrameKind::First, context);
    }

    /// The node of the program of the outermost frame.
    pub(super) fn program(&self, context: &Context<'_>) -> NodeId {
        let outermost = self.frames.first().map_or(0, |frame| frame.node);
        let node = context.tree.nodes().get(outermost as usize);
        node.map_or(0, |node| node.parent)
    }

    /// Continues on the stack that was left last of those that return to the target. Returns
    /// whether there is one.
    pub(super) fn resume_parked(&mut self, target: Target, context: &mut Context<'_>) -> bool {
        let resumes = |stack: &Vec<Frame>| {
            let inner = stack.iter().rev().take(RESUMED);
            inner.filter(|frame| frame.ret == target.to).count() > 0
        };
        let Some(at) = self.parked.iter().rposition(resumes) else {
            return false;
        };
        context.counts.switches += 1;
        let mut next = self.parked.remove(at);
        if let Some(at) = next.iter().rposition(|frame| frame.ret == target.to) {
            next.truncate(at.max(1));
        }
        let program = self.program(context);
        self.park(next, context);
        // The thread can have got another name while the stack was left.
        let node = context.tree.nodes().get(program as usize);
        if node.is_some_and(|node| matches!(node.label, Label::Program(_)))
            && self.program(context) != program
        {
            self.rename(program, context.tree);
        }
        true
    }

    /// Continues in the middle of a function that was left.
    pub fn resume(&mut self, target: Target, context: &mut Context<'_>) {
        let is_wanted = |frame: &Frame| {
            frame.function == target.function && !matches!(frame.kind, FrameKind::Signal(_))
        };
        if self.resume_parked(target, context) {
            return;
        }
        if let Some(at) = self.find(is_wanted) {
            if at + 1 < self.frames.len() {
                context.counts.unwound += 1;
            }
            self.frames.truncate(at + 1);
            return;
        }
        let known = context.functions.get(target.function);
        if !known.named && known.start.module == Modules::UNMAPPED {
            self.enter_blindly(target, context);
            return;
        }
        context.counts.unexplained += 1;
        let program = self.program(context);
        self.park(Vec::new(), context);
        self.begin(program, target.function, context);
    }

    /// A transfer from or to code that is not known.
    pub fn blind(&mut self, target: Target, context: &mut Context<'_>) {
        if self.find(|frame| frame.ret == target.to).is_some() {
            self.ret(target, context);
        } else if target.is_entry && !self.was_entered_blindly(target) {
            // An outer frame of the same function is that of a recursion: the interpreter of a
            // language calls itself through code that is not known.
            self.enter_blindly(target, context);
        } else if let Some(at) = self.find(|frame| frame.function == target.function) {
            self.frames.truncate(at + 1);
        } else if context.functions.get(target.function).named {
            self.enter_blindly(target, context);
        }
    }

    /// Whether the function has a frame among those that were entered one from the other without
    /// known code in between: these can be jumps as well as calls.
    fn was_entered_blindly(&self, target: Target) -> bool {
        let frames = self.frames.iter().rev();
        let mut blind = frames.take_while(|frame| frame.kind == FrameKind::Blind);
        blind.any(|frame| frame.function == target.function)
    }

    fn enter_blindly(&mut self, target: Target, context: &mut Context<'_>) {
        if self
            .top()
            .is_none_or(|frame| frame.function != target.function)
        {
            let parent = self.node();
            self.add(parent, target.function, NOWHERE, FrameKind::Blind, context);
        }
    }

    /// Keeps the current stack, and continues with another one.
    fn park(&mut self, next: Vec<Frame>, context: &mut Context<'_>) {
        let last = std::mem::replace(&mut self.frames, next);
        // What has returned from the first function of its stack does not continue.
        let is_over = std::mem::take(&mut self.is_over);
        if last.len() > 1 && !is_over {
            if self.parked.len() >= MAX_PARKED {
                self.parked.remove(0);
                context.counts.too_deep += 1;
            }
            self.parked.push(last);
        }
    }

    /// A return from the kernel or from an event in it. Returns whether the straight line that
    /// begins at the target was entered by no call: by a signal.
    pub fn far_return(&mut self, target: Target, to_user: bool, context: &mut Context<'_>) {
        let is_event = |frame: &Frame| frame.kind == FrameKind::Event;
        if let Some(at) = self.find(|frame| is_event(frame) && frame.ret == target.to) {
            self.leave(at.max(1));
            return;
        }
        if !to_user {
            self.resume(target, context);
            return;
        }
        // The outermost of the events is the entry from the program.
        let mut event = self.find(is_event);
        while let Some(at) = event
            && let Some(outer) = self
                .frames
                .get(..at)
                .and_then(|f| f.iter().rposition(is_event))
            && self
                .frames
                .get(outer..at)
                .is_some_and(|f| f.iter().all(|f| !matches!(f.kind, FrameKind::Signal(_))))
        {
            event = Some(outer);
        }
        let ret = event
            .and_then(|at| self.frames.get(at))
            .map(|frame| frame.ret);
        if let Some(at) = event {
            self.leave(at.max(1));
        }
        if self.interrupted() == Some(target.to) {
            self.end_signal();
        } else if target.is_entry
            && let Some(ret) = ret
        {
            self.signal(ret, target.function, context);
        } else {
            self.resume(target, context);
        }
    }
}
