//! What a trace says about the code that was executed: straight lines with their counts, calls, and
//! the call stack of each task.
//!
//! Between the target of one branch and the next branch the code is a straight line. A [`Profile`]
//! takes the items of a trace, reads the code of the traced files through [`Files`], and counts. It
//! disassembles each different line once, so that the time depends on the number of branches and
//! the memory on the size of the code.
//!
//! | module | contents |
//! |---|---|
//! | `modules` | the mapped files; addresses that do not depend on where they are mapped |
//! | `code` | straight lines in the code |
//! | `changes` | code in memory that differs from that in its file |
//! | `generated` | code that a program has made, with its names |
//! | `functions` | which function a place is in |
//! | `space` | the transfers in one address space |
//! | `tree`, `stack` | the call tree; the call stack of a task |
//! | `classify` | what a transfer does to the stack |
//! | `limits` | limits of what lives at once |
//!
//! A stream of branches can be that of a task or of a processor. What does not fit together, for
//! example after lost records, is resynchronised, and [`Counts`] says how often.

mod changes;
mod classify;
pub mod code;
pub mod functions;
pub mod generated;
mod limits;
pub mod modules;
pub mod space;
pub mod stack;
pub mod tree;

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use crate::{Branch, CodeSource, Event, Item};
use code::{CodeReader, Files};
use functions::Functions;
use limits::{Added, MAX_ENDED, MAX_PATH, MAX_PROGRAMS, MAX_TASKS};
use modules::{AddressSpace, ModuleId, Modules, Place};
use space::{Effect, Space};
use stack::{Context, NOWHERE, Stack};
use tree::{NodeId, Tree};

/// Maximum number of different lines and branches that are counted. Further ones are not.
const MAX_COUNTED: usize = 1 << 21;
/// Index of RIP among the registers of [`Event::Crash`].
const RIP: usize = 16;

/// What could not be explained, and what was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Branches.
    pub branches: u64,
    /// Instructions.
    pub instructions: u64,
    /// Branches whose line is in code that is not known: its instructions are not counted.
    pub no_code: u64,
    /// Places where the code does not lead from one branch to the next.
    pub gaps: u64,
    /// Records that the trace says are missing.
    pub lost: u64,
    /// Signal handlers that were entered.
    pub signals: u64,
    /// Transfers that have left several frames at once: longjmp, exceptions.
    pub unwound: u64,
    /// Transfers to a stack that was left before: coroutines, context switches.
    pub switches: u64,
    /// Transfers into functions that were not called.
    pub unexplained: u64,
    /// Stacks that were too deep, or too many.
    pub too_deep: u64,
    /// Counts of lines that there was no memory for.
    pub uncounted: u64,
}

/// A straight line that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// Its first instruction.
    pub start: Place,
    /// Offset of its last instruction.
    pub last: u64,
    /// The last instruction was executed. Otherwise an interrupt or an exception came before it.
    pub complete: bool,
}

/// How often a line was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCount {
    /// How often.
    pub count: u64,
    /// Number of its instructions that were executed; 0 if the code is not known.
    pub instructions: u32,
}

/// A branch that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The instruction.
    pub from: Place,
    /// Its target.
    pub to: Place,
    /// The transfer is an event, which `from` has not caused as a branch.
    pub is_event: bool,
}

/// A task of the trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskCount {
    /// Its thread ID.
    pub id: u32,
    /// Its process.
    pub process: u32,
    /// The last program that it has executed, by its number.
    pub program: u32,
    /// Instructions.
    pub instructions: u64,
    /// Branches.
    pub branches: u64,
}

/// Sees each record, with the stack before and after it.
pub trait Watch {
    /// A record was taken into account.
    fn record(&mut self, seen: &Seen<'_>);

    /// A task has ended, or the trace has. Its stack is that after its last record.
    fn end(&mut self, _task: u64, _count: &TaskCount, _stack: &Stack, _map: &AddressSpace) {}
}

impl Watch for () {
    #[inline]
    fn record(&mut self, _: &Seen<'_>) {}
}

/// A record, and the state after it.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Number of the task.
    pub task: u64,
    /// The task.
    pub count: &'a TaskCount,
    /// Where the branch comes from.
    pub from: u64,
    /// Where it goes to.
    pub to: u64,
    /// What it does.
    pub effect: Effect,
    /// Number of instructions since the branch before it, with it.
    pub instructions: u32,
    /// Where these were executed: the innermost node of the stack before the branch.
    pub node: NodeId,
    /// The stack after it.
    pub stack: &'a Stack,
    /// The process's mappings.
    pub map: &'a AddressSpace,
}

/// A task while the trace is read.
#[derive(Debug)]
struct Task {
    count: TaskCount,
    stack: Stack,
    /// Where the current line begins, or [`NOWHERE`].
    at: u64,
    /// Where the line of the parent began when it made this task.
    parent_at: Option<u64>,
    /// The last transfer.
    last: u32,
}

impl Default for Task {
    fn default() -> Self {
        Self {
            count: TaskCount::default(),
            stack: Stack::default(),
            at: NOWHERE,
            parent_at: None,
            last: 0,
        }
    }
}

/// What a trace says about the code that was executed.
#[derive(Debug)]
pub struct Profile<F, W = ()> {
    code: CodeReader<F>,
    modules: Modules,
    functions: Functions,
    tree: Tree,
    counts: Counts,
    lines: FxHashMap<Line, LineCount>,
    edges: FxHashMap<Edge, u64>,
    programs: Vec<Vec<u8>>,
    spaces: HashMap<u32, Space>,
    tasks: HashMap<u64, Task>,
    /// Numbers of the live tasks, by thread ID.
    live: HashMap<u32, u64>,
    /// Tasks that no processor executes, if the streams are processors: by thread ID, and for idle
    /// tasks by processor.
    asleep: HashMap<(u32, u64), Task>,
    ended: Vec<(u64, TaskCount)>,
    added: Added,
    only: Option<u32>,
    watch: W,
}

impl<F: Files, W: Watch> Profile<F, W> {
    /// Nothing so far. `program` is the program that the first task executes.
    pub fn new(files: F, program: &[u8], watch: W) -> Self {
        Self {
            code: CodeReader::new(files),
            modules: Modules::default(),
            functions: Functions::default(),
            tree: Tree::default(),
            counts: Counts::default(),
            lines: FxHashMap::default(),
            edges: FxHashMap::default(),
            programs: vec![program.to_vec()],
            spaces: HashMap::new(),
            tasks: HashMap::new(),
            live: HashMap::new(),
            asleep: HashMap::new(),
            ended: Vec::new(),
            added: Added::default(),
            only: None,
            watch,
        }
    }

    /// Ignores the branches of all tasks except those with this thread ID.
    pub fn only_task(&mut self, id: u32) {
        self.only = Some(id);
    }

    /// What could not be explained, and what was.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The modules.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// The functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The call tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The executed lines. [`Self::finish`] completes them.
    pub fn lines(&self) -> impl Iterator<Item = (&Line, &LineCount)> {
        self.lines.iter()
    }

    /// The taken branches. [`Self::finish`] completes them.
    pub fn edges(&self) -> impl Iterator<Item = (&Edge, u64)> {
        self.edges.iter().map(|(edge, count)| (edge, *count))
    }

    /// Paths of the executed programs.
    pub fn programs(&self) -> &[Vec<u8>] {
        &self.programs
    }

    /// The tasks. [`Self::finish`] completes them.
    pub fn tasks(&self) -> &[(u64, TaskCount)] {
        &self.ended
    }

    /// What reads the code.
    pub fn code(&mut self) -> (&mut CodeReader<F>, &Modules) {
        (&mut self.code, &self.modules)
    }

    /// What sees each record.
    pub fn watch(&mut self) -> &mut W {
        &mut self.watch
    }

    /// Takes an item of the trace.
    pub fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Branches { task, branches } => self.branches(task, branches),
            Item::Event { task, event } => self.event(task, event),
        }
    }

    /// Takes branches of a task, oldest first.
    pub fn branches(&mut self, number: u64, branches: &[Branch]) {
        let task = self.tasks.remove(&number);
        if task.is_none() && self.tasks.len() >= MAX_TASKS {
            return self.do_not_count(branches);
        }
        let mut task = task.unwrap_or_default();
        if self.only.is_none_or(|id| id == task.count.id) {
            let process = task.count.process;
            let space = self.spaces.remove(&process);
            if self.is_full(space.as_ref()) {
                self.do_not_count(branches);
            } else {
                let mut space = space.unwrap_or_default();
                let (frames, transfers) = (task.stack.held(), space.transfers.len());
                self.execute(number, &mut task, &mut space, branches);
                self.added.frames += task.stack.held().saturating_sub(frames);
                self.added.transfers += space.transfers.len() - transfers;
                self.spaces.insert(process, space);
            }
        }
        self.tasks.insert(number, task);
        self.make_room();
    }

    fn do_not_count(&mut self, branches: &[Branch]) {
        let counts = &mut self.counts;
        counts.uncounted = counts.uncounted.saturating_add(branches.len() as u64);
    }

    fn execute(&mut self, number: u64, task: &mut Task, space: &mut Space, branches: &[Branch]) {
        let (mut instructions, mut last) = (task.count.instructions, task.last);
        let mut at = task.at;
        if at != NOWHERE {
            self.begin_if_empty(task, space, at);
        }
        for branch in branches {
            let this = match space.expected(last, at, branch.from, branch.to) {
                Some(this) => this,
                None => {
                    task.at = at;
                    let this = match space.find(at, branch.from, branch.to) {
                        Some(this) if at != NOWHERE => this,
                        _ => self.new_transfer(task, space, *branch),
                    };
                    space.expect(last, this);
                    this
                }
            };
            let Some(transfer) = space.transfers.get_mut(this as usize) else {
                break;
            };
            transfer.count += 1;
            instructions += u64::from(transfer.instructions);
            let node = task.stack.node();
            if let Some(node) = self.tree.get_mut(node) {
                node.instructions += u64::from(transfer.instructions);
                node.branches += 1;
            }
            if transfer.effect != Effect::Jump {
                let context = &mut Context {
                    tree: &mut self.tree,
                    functions: &self.functions,
                    counts: &mut self.counts,
                };
                classify::apply(transfer, &mut task.stack, context);
            }
            (at, last) = (transfer.to, this);
            task.count.branches += 1;
            task.count.instructions = instructions;
            self.watch.record(&Seen {
                task: number,
                count: &task.count,
                from: branch.from,
                to: branch.to,
                effect: transfer.effect,
                instructions: transfer.instructions,
                node,
                stack: &task.stack,
                map: &space.map,
            });
        }
        (task.at, task.last) = (at, last);
    }

    fn event(&mut self, number: u64, event: Event) {
        match event {
            Event::Start {
                id,
                parent,
                process,
                ..
            } => self.start(number, id, parent, process),
            Event::Exec { id, name, .. } => {
                self.last_line(number, None);
                let program = self.program(name);
                if let Some(task) = self.tasks.get_mut(&number) {
                    if self.live.get(&task.count.id) == Some(&number) {
                        self.live.remove(&task.count.id);
                    }
                    task.stack.clear();
                    (task.at, task.parent_at) = (NOWHERE, None);
                    (task.count.id, task.count.program) = (id, program);
                    self.live.insert(id, number);
                }
            }
            Event::Name(name) => {
                let program = self.program(name);
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.count.program = program;
                }
            }
            Event::Crash { registers, .. } => {
                self.last_line(number, registers.get(RIP).copied());
            }
            Event::End { .. } => {
                self.last_line(number, None);
                if let Some(task) = self.tasks.remove(&number) {
                    self.show_end(number, &task);
                    if self.live.get(&task.count.id) == Some(&number) {
                        self.live.remove(&task.count.id);
                    }
                    self.end(number, task.count);
                }
            }
            Event::Lost(records) => {
                self.counts.lost = self.counts.lost.saturating_add(records);
                self.lose(number);
            }
            Event::Invalid => {
                self.counts.lost = self.counts.lost.saturating_add(1);
                self.lose(number);
            }
            Event::Gap { .. } | Event::Filtered(_) => self.lose(number),
            Event::Switch {
                id, process, name, ..
            } => self.switch(number, id, process, name),
            Event::Maps { process, text } => {
                let mut map = AddressSpace::parse(&text, process, &mut self.modules);
                let space = self.spaces.remove(&process);
                if self.is_full(space.as_ref()) {
                    return;
                }
                if !self.has_room_for(&map) {
                    map = AddressSpace::default();
                }
                let mut space = space.unwrap_or_default();
                // Transfers in code that had no mapping would keep their places.
                let is_kept = space.map.is_kept_in(&map);
                if !is_kept || !space.transfers.iter().all(|t| is_mapped(&space.map, t)) {
                    self.add_up(&mut space);
                }
                space.map = map;
                self.spaces.insert(process, space);
            }
            Event::KernelCode { address, bytes } => {
                self.code.change(Modules::KERNEL, address, &bytes);
            }
            Event::Code {
                process,
                source,
                at,
                bytes,
            } => self.add_code(process, source, at, &bytes),
            Event::BuildId { id, name } => self.code.files.add_build_id(&name, id),
            Event::ProcessEnd { process } => {
                if let Some(mut space) = self.spaces.remove(&process) {
                    self.add_up(&mut space);
                }
            }
            _ => {}
        }
    }

    /// Code that is in no file. It belongs to the mappings that follow.
    fn add_code(&mut self, process: u32, source: CodeSource, at: u64, bytes: &[u8]) {
        let module = match source {
            CodeSource::Vdso => self.modules.vdso(at),
            _ => self.modules.generated(process),
        };
        let module = self.modules.get(module);
        match source {
            _ if module.id == Modules::UNMAPPED => {}
            CodeSource::Memory => self.code.change(module.id, at, bytes),
            _ => self.code.files.add_code(module, source, at, bytes),
        }
    }

    /// A processor, the stream with this number, executes another task of its kernel. Each of these
    /// has a stack of its own, and the straight line goes on.
    fn switch(&mut self, number: u64, id: u32, process: u32, name: Vec<u8>) {
        // Each processor has an idle task with thread ID 0.
        let key = |id: u32| match id {
            0 => (0, number),
            _ => (id, 0),
        };
        let program = self.program(name);
        let last = self.tasks.remove(&number).unwrap_or_default();
        let (at, transfer) = (last.at, last.last);
        if self.asleep.len() < MAX_TASKS {
            self.asleep.insert(key(last.count.id), last);
        } else {
            self.counts.too_deep += 1;
            self.end(number, last.count);
        }
        let mut next = self.asleep.remove(&key(id)).unwrap_or_default();
        next.count.id = id;
        (next.count.process, next.count.program) = (process, program);
        (next.at, next.last) = (at, transfer);
        self.tasks.insert(number, next);
    }

    fn start(&mut self, number: u64, id: u32, parent: u32, process: u32) {
        if self.tasks.len() >= MAX_TASKS {
            self.counts.too_deep += 1;
            return;
        }
        let mut task = Task {
            count: TaskCount {
                id,
                process,
                ..TaskCount::default()
            },
            ..Task::default()
        };
        let parent = self.live.get(&parent).and_then(|from| self.tasks.get(from));
        if let Some(parent) = parent {
            task.count.program = parent.count.program;
            task.parent_at = Some(parent.at).filter(|at| *at != NOWHERE);
            if parent.count.process != process {
                // A fork has the stack of its parent. A thread begins with one of its own.
                task.stack.fork(&parent.stack);
                self.added.frames += task.stack.held();
                if self.spaces.len() < MAX_TASKS
                    && !self.spaces.contains_key(&process)
                    && let Some(space) = self.spaces.get(&parent.count.process)
                {
                    let space = Space::with(space.map.clone());
                    self.spaces.insert(process, space);
                }
            }
        }
        self.live.insert(id, number);
        self.tasks.insert(number, task);
        self.make_room();
    }

    fn program(&mut self, mut name: Vec<u8>) -> u32 {
        name.truncate(MAX_PATH);
        name.shrink_to_fit();
        let known = self.programs.iter().position(|program| *program == name);
        let program = known.unwrap_or_else(|| {
            // A few hundred programs are many.
            match self.programs.len() + 1 {
                ..MAX_PROGRAMS => self.programs.push(name),
                MAX_PROGRAMS => self.programs.push(b"[other programs]".into()),
                _ => {}
            }
            self.programs.len() - 1
        });
        program as u32
    }

    fn lose(&mut self, number: u64) {
        if let Some(task) = self.tasks.get_mut(&number) {
            (task.at, task.parent_at) = (NOWHERE, None);
        }
    }

    fn show_end(&mut self, number: u64, task: &Task) {
        let none = Space::default();
        let space = self.spaces.get(&task.count.process).unwrap_or(&none);
        self.watch.end(number, &task.count, &task.stack, &space.map);
    }

    fn end(&mut self, number: u64, count: TaskCount) {
        self.counts.branches += count.branches;
        self.counts.instructions += count.instructions;
        // A run with more tasks than this has enough of them in the list.
        if self.ended.len() < MAX_ENDED {
            self.ended.push((number, count));
        }
    }

    /// Adds the counts of the transfers up, and forgets the transfers.
    fn add_up(&mut self, space: &mut Space) {
        for transfer in &space.transfers {
            self.add_counts(&space.map, transfer);
        }
        space.clear();
    }

    fn add_counts(&mut self, map: &AddressSpace, transfer: &space::Transfer) {
        if transfer.count == 0 {
            return;
        }
        if self.lines.len() + self.edges.len() >= MAX_COUNTED {
            self.counts.uncounted = self.counts.uncounted.saturating_add(transfer.count);
            return;
        }
        let from = map.place(transfer.from);
        let line = Line {
            start: map.place(transfer.start),
            last: from.offset,
            complete: transfer.complete,
        };
        if transfer.instructions == 0 && transfer.complete {
            self.counts.no_code += transfer.count;
        }
        let entry = self.lines.entry(line).or_default();
        entry.count += transfer.count;
        entry.instructions = transfer.instructions;
        if transfer.to != NOWHERE {
            let edge = Edge {
                from,
                to: map.place(transfer.to),
                is_event: !transfer.complete,
            };
            *self.edges.entry(edge).or_default() += transfer.count;
        }
    }

    /// Ends the trace: completes all counts.
    pub fn finish(&mut self) {
        let mut left: Vec<(u64, Task)> = self.tasks.drain().collect();
        // They were on several processors.
        let asleep = self
            .asleep
            .drain()
            .filter(|(_, task)| task.count.branches > 0);
        left.extend(asleep.map(|((id, processor), task)| (u64::from(id).max(processor), task)));
        left.sort_by_key(|(number, task)| (*number, task.count.id));
        for (number, task) in left {
            self.show_end(number, &task);
            self.end(number, task.count);
        }
        let mut spaces: Vec<(u32, Space)> = self.spaces.drain().collect();
        spaces.sort_by_key(|(process, _)| *process);
        for (_, mut space) in spaces {
            self.add_up(&mut space);
        }
        self.ended.sort_by_key(|(number, _)| *number);
        let only = self.only;
        self.ended
            .retain(|(_, count)| only.is_none_or(|id| id == count.id));
    }

    /// The modules whose code was executed.
    pub fn executed_modules(&self) -> Vec<ModuleId> {
        let mut ids: Vec<ModuleId> = self.lines.keys().map(|line| line.start.module).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The node of the task's program.
    fn program_node(&mut self, program: u32) -> NodeId {
        self.tree.program(program)
    }
}

fn is_mapped(map: &AddressSpace, transfer: &space::Transfer) -> bool {
    let addresses = [transfer.start, transfer.from, transfer.to];
    let mut places = addresses.iter().map(|address| map.place(*address));
    places.all(|place| place.module != Modules::UNMAPPED)
}
