//! What a transfer does to the stack, and what is done when the code does not lead to it.

use super::code::{Files, NoLine, SymbolKind, Transfer as Kind};
use super::functions::FunctionId;
use super::inlined::Chains;
use super::modules::{ModuleKind, Modules, Place, is_kernel};
use super::space::{Effect, Space, Transfer};
use super::stack::{Context, FrameKind, NOWHERE, Stack, Target};
use super::{Line, New, Profile, Task, Watch};
use crate::Branch;

/// Applies a transfer to a stack.
#[inline]
pub(super) fn apply(transfer: &mut Transfer, stack: &mut Stack, context: &mut Context<'_>) {
    let target = Target {
        to: transfer.to,
        function: transfer.function,
        is_entry: transfer.is_entry,
    };
    let (function, ret) = (transfer.function, transfer.ret);
    match transfer.effect {
        Effect::Jump => {}
        Effect::Call => stack.push(function, ret, FrameKind::Call, &mut transfer.cache, context),
        Effect::Return => stack.ret(target, context),
        Effect::Tail => stack.tail(target, &mut transfer.cache, context),
        Effect::Far => stack.far_jump(target, false, context),
        Effect::FarIndirect => stack.far_jump(target, true, context),
        Effect::FarGenerated => stack.generated_jump(target, &mut transfer.cache, context),
        Effect::Enter => stack.push(
            function,
            ret,
            FrameKind::Event,
            &mut transfer.cache,
            context,
        ),
        Effect::Leave => stack.far_return(target, !is_kernel(transfer.to), context),
        Effect::Switch => stack.switch(target, context),
        Effect::Blind => stack.blind(target, context),
    }
}

impl<F: Files, W: Watch> Profile<F, W> {
    /// Makes the transfer of a branch that the task executes. If the code does not lead to it,
    /// finds out what has happened before.
    #[cold]
    pub(super) fn new_transfer(
        &mut self,
        number: u64,
        task: &mut Task,
        space: &mut Space,
        branch: Branch,
    ) -> u32 {
        let from = branch.from;
        if let Some(parent_at) = task.parent_at.take()
            && task.at == NOWHERE
        {
            // A new task continues behind the system call that has made it.
            let line = self.line(space, parent_at, from);
            if let Ok(after) = line.map(|line| line.after_system_call) {
                task.at = after.unwrap_or(NOWHERE);
            }
        }
        let mut start = task.at;
        let mut line = match start {
            NOWHERE => Err(NoLine::Unreachable),
            _ => self.line(space, start, from),
        };
        if line == Err(NoLine::Unreachable) {
            start = self.resynchronize(task, space, from);
            line = self.line(space, start, from);
        }
        self.begin_if_empty(task, space, start);
        if let Some(known) = space.find(start, from, branch.to) {
            return known;
        }
        let mut transfer = self.classify(space, start, branch, line);
        transfer.inlined = self.inlined(space, &transfer);
        let mark = self.watch.mark(&New {
            transfer: &transfer,
            task: number,
            count: &task.count,
            map: &space.map,
            functions: &self.functions,
            modules: &self.modules,
            programs: &self.programs,
        });
        space.add(transfer, mark)
    }

    fn line(&mut self, space: &Space, start: u64, from: u64) -> Result<super::code::Line, NoLine> {
        let place = space.map.place(start);
        if place.module == Modules::UNMAPPED {
            return Err(NoLine::NoCode);
        }
        if space.map.place(from).module != place.module {
            return Err(NoLine::Unreachable);
        }
        let modules = &self.modules;
        self.code
            .line(modules, place.module, place.offset, start, from)
    }

    /// The function at an address.
    fn function(&mut self, space: &Space, address: u64) -> u32 {
        let files = &mut self.code.files;
        self.functions
            .at(space.map.place(address), &self.modules, files)
    }

    /// Begins an empty stack with the function at `address`.
    pub(super) fn begin_if_empty(&mut self, task: &mut Task, space: &Space, address: u64) {
        if !task.stack.frames().is_empty() {
            return;
        }
        let function = self.function(space, address);
        let program = self.program_node(task.count.name());
        let context = &mut Context {
            tree: &mut self.tree,
            functions: &self.functions,
            counts: &mut self.counts,
            inlined: (&self.inlining.chains, Chains::EMPTY),
        };
        task.stack.begin(program, function, context);
    }

    /// Finds where the line to `from` begins, when the code does not lead there from the last
    /// branch, and corrects the stack.
    fn resynchronize(&mut self, task: &mut Task, space: &Space, from: u64) -> u64 {
        // The handler of a signal has returned.
        if let Some(interrupted) = task.stack.interrupted()
            && task.at != NOWHERE
            && self.line(space, interrupted, from).is_ok()
        {
            task.stack.end_signal();
            return interrupted;
        }
        let function = self.function(space, from);
        let entry = self.functions.get(function).start;
        let place = space.map.place(from);
        let distance = place.offset.wrapping_sub(entry.offset);
        let start = from.wrapping_sub(distance);
        let is_line = self.line(space, start, from).is_ok();
        let is_empty = task.stack.frames().is_empty();
        let context = &mut Context {
            tree: &mut self.tree,
            functions: &self.functions,
            counts: &mut self.counts,
            inlined: (&self.inlining.chains, Chains::EMPTY),
        };
        let target = Target {
            to: from,
            function,
            is_entry: false,
        };
        match is_line {
            _ if is_empty => {}
            true if task.at != NOWHERE => task.stack.signal(task.at, function, context),
            _ => {
                context.counts.gaps += 1;
                task.stack.resume(target, context);
            }
        }
        if is_line { start } else { from }
    }

    /// What a branch at the end of a line does.
    fn classify(
        &mut self,
        space: &Space,
        start: u64,
        branch: Branch,
        line: Result<super::code::Line, NoLine>,
    ) -> Transfer {
        let Branch { from, to } = branch;
        let target = space.map.place(to);
        let origin = self.function(space, from);
        let crosses = is_kernel(from) != is_kernel(to);
        let kind = line.as_ref().map_or(Kind::None, |line| line.transfer);
        // What an instruction cannot do itself is an event before it.
        let is_event = line.is_ok()
            && match kind {
                Kind::None => true,
                Kind::System => !crosses && !is_kernel(to),
                Kind::FarReturn => false,
                Kind::Jump { target, .. } => crosses || target.is_some_and(|target| target != to),
                Kind::Call | Kind::Return => crosses,
            };
        let from_kind = self.functions.get(origin).kind;
        // What the linkage jumps to is a function, also in a file without symbols.
        let links = from_kind.is_linkage() && matches!(kind, Kind::Jump { target: None, .. });
        let calls = is_event || matches!(kind, Kind::Call | Kind::System) || crosses || links;
        let (files, modules) = (&mut self.code.files, &self.modules);
        let function = match calls {
            true => self.functions.called(target, modules, files),
            false => self.functions.at(target, modules, files),
        };
        if links && from_kind == SymbolKind::LinkageHeader {
            self.functions.mark_resolver(function);
        }
        let known = self.functions.get(function);
        let is_entry = known.start == target;
        // The part of a function that a compiler has moved away can end with a tail call, too.
        let moved = known.kind == SymbolKind::Part || from_kind == SymbolKind::Part && !is_entry;
        let is_generated = space.map.place(from).module == target.module
            && self.modules.get(target.module).kind == ModuleKind::Generated;
        let effect = match (&line, kind) {
            (Err(_), _) if crosses && is_kernel(to) => Effect::Enter,
            (Err(_), _) if crosses => Effect::Leave,
            (Err(_), _) => Effect::Blind,
            _ if is_event => Effect::Enter,
            (_, Kind::Call) => Effect::Call,
            (_, Kind::System) => Effect::Enter,
            (_, Kind::Return | Kind::Jump { target: None, .. })
                if from_kind == SymbolKind::Switch && function != origin =>
            {
                Effect::Switch
            }
            (_, Kind::Return) => Effect::Return,
            (_, Kind::FarReturn) => Effect::Leave,
            (_, Kind::Jump { .. } | Kind::None) if function == origin || moved => Effect::Jump,
            _ if is_entry => Effect::Tail,
            (_, Kind::Jump { target: None, .. }) if is_generated => Effect::FarGenerated,
            (_, Kind::Jump { target: None, .. }) => Effect::FarIndirect,
            _ => Effect::Far,
        };
        let (instructions, end) = match &line {
            Ok(line) => (line.instructions + u32::from(!is_event), line.end),
            Err(_) => (0, NOWHERE),
        };
        Transfer {
            start,
            from,
            to,
            ret: if is_event { from } else { end },
            count: 0,
            instructions,
            inlined: Chains::EMPTY,
            next: 0,
            function,
            is_entry,
            complete: !is_event,
            effect,
            cache: (u32::MAX, 0),
        }
    }

    /// What [`Transfer::inlined`] is for a transfer.
    fn inlined(&mut self, space: &mut Space, transfer: &Transfer) -> u32 {
        if transfer.instructions == 0 {
            return Chains::EMPTY;
        }
        let origin = self.function(space, transfer.from);
        let Some(function) = self.look_for_inlined(origin) else {
            return Chains::EMPTY;
        };
        let (start, last) = (
            space.map.place(transfer.start),
            space.map.place(transfer.from),
        );
        if let Some(chain) = self.inlining.chain(function, start.offset, last.offset) {
            return chain;
        }
        let mut pieces = Vec::new();
        let (code, inlining) = (&mut self.code, &self.inlining);
        let module = self.modules.get(start.module);
        code.instructions(module, start.offset, last.offset, |offset| {
            let executed = transfer.complete || offset != last.offset;
            inlining.step(function, offset, executed, &mut pieces);
        });
        let counted = pieces.iter().map(|piece| piece.instructions).sum::<u32>();
        match counted == transfer.instructions {
            true => space.add_pieces(pieces),
            // The code was changed in between.
            false => Chains::EMPTY,
        }
    }

    /// Makes sure that the inlined functions of a function are known. Returns where it begins, if
    /// it can have some.
    fn look_for_inlined(&mut self, id: FunctionId) -> Option<Place> {
        let start = self.functions.get(id).start;
        if !self.inlining.has(start) {
            let end = self.functions.end(id)?;
            let module = self.modules.get(start.module);
            let code = self.code.files.inlined(module, start.offset..end);
            self.inlining.add(start, &code);
        }
        Some(start)
    }

    /// Counts the line that a task executes last: up to `end`, or to its first system call.
    pub(super) fn last_line(&mut self, number: u64, end: Option<u64>) {
        let Some(task) = self.tasks.get_mut(&number) else {
            return;
        };
        let is_ignored = (self.only.as_ref()).is_some_and(|ids| !ids.contains(&task.count.id));
        let at = std::mem::replace(&mut task.at, NOWHERE);
        let (node, process) = (task.stack.node(), task.count.process);
        if at == NOWHERE || task.stack.frames().is_empty() || is_ignored {
            return;
        }
        let Some(space) = self.spaces.get(&process) else {
            return;
        };
        let start = space.map.place(at);
        let (code, modules) = (&mut self.code, &self.modules);
        let (last, instructions) = match end {
            Some(end) => match code.line(modules, start.module, start.offset, at, end) {
                Ok(line) => (end, line.instructions),
                Err(_) => return,
            },
            None => match code.line_to_system_call(modules, start.module, start.offset, at) {
                Some((last, instructions)) => (last, instructions),
                None => return,
            },
        };
        let line = Line {
            start,
            last: space.map.place(last).offset,
            complete: end.is_none(),
        };
        if let Some(task) = self.tasks.get_mut(&number) {
            task.count.instructions += u64::from(instructions);
        }
        if let Some(node) = self.tree.get_mut(node) {
            node.instructions += u64::from(instructions);
        }
        let count = self.lines.entry(line).or_default();
        (count.count, count.instructions) = (count.count + 1, instructions);
    }
}
