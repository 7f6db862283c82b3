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
//! | `functions`, `inlined` | which function a place is in; which functions are inlined there |
//! | `space` | the transfers in one address space |
//! | `tree`, `stack` | the call tree; the call stack of a task |
//! | `execute`, `events` | takes the branches and the events of a trace |
//! | `classify` | what a transfer does to the stack |
//! | `counts`, `watch` | what is counted; what sees each record |
//! | `limits` | limits of what lives at once |
//!
//! A stream of branches can be that of a task or of a processor. What does not fit together, for
//! example after lost records, is resynchronised, and [`Counts`] says how often.

mod changes;
mod classify;
pub mod code;
mod counts;
mod events;
mod execute;
pub mod functions;
pub mod generated;
pub mod inlined;
mod limits;
pub mod modules;
pub mod space;
pub mod stack;
pub mod tree;
mod watch;

use std::collections::{BTreeSet, HashMap};

use rustc_hash::FxHashMap;

use crate::Item;
use code::{CodeReader, Files};
pub use counts::{Counts, Edge, Line, LineCount, TaskCount};
use functions::{FunctionId, Functions};
use inlined::Inlining;
use limits::{Added, MAX_TASKS};
use modules::{ModuleId, Modules, Place};
use space::Space;
use stack::{NOWHERE, Stack};
use tree::{Label, Tree};
pub use watch::{Ended, LastBranch, Needs, New, Run, Seen, Sees, Watch};

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
    /// The last branch.
    branch: Option<LastBranch>,
    /// Number of the record behind those that were left out.
    read_from: Option<u64>,
}

impl Default for Task {
    fn default() -> Self {
        Self {
            count: TaskCount::default(),
            stack: Stack::default(),
            at: NOWHERE,
            parent_at: None,
            last: 0,
            branch: None,
            read_from: None,
        }
    }
}

/// What a trace says about the code that was executed.
#[derive(Debug)]
pub struct Profile<F, W = ()> {
    code: CodeReader<F>,
    modules: Modules,
    functions: Functions,
    inlining: Inlining,
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
    /// Number of the next branch.
    records: u64,
    added: Added,
    /// Thread IDs of the tasks that count, if not all do.
    only: Option<BTreeSet<u32>>,
    /// Stacks have frames for what is between a call and the function that is meant.
    raw_frames: bool,
    /// Stacks have no frames for inlined functions.
    no_inline: bool,
    watch: W,
}

impl<F: Files, W: Watch> Profile<F, W> {
    /// Nothing so far. `program` is the program that the first task executes.
    pub fn new(files: F, program: &[u8], watch: W) -> Self {
        Self {
            code: CodeReader::new(files),
            modules: Modules::default(),
            functions: Functions::default(),
            inlining: Inlining::default(),
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
            records: 0,
            added: Added::default(),
            only: None,
            raw_frames: false,
            no_inline: false,
            watch,
        }
    }

    /// Ignores the branches of all tasks except those with these thread IDs.
    pub fn only_tasks(&mut self, ids: BTreeSet<u32>) {
        self.only = Some(ids);
    }

    /// Whether the branches of the task with this thread ID count.
    fn is_wanted(&self, id: u32) -> bool {
        self.only.as_ref().is_none_or(|ids| ids.contains(&id))
    }

    /// Whether [`Self::is_shown`] is true of what is between a call and the function that is meant.
    pub fn set_raw_frames(&mut self, raw: bool) {
        self.raw_frames = raw;
    }

    /// Whether [`Self::is_shown`] is false of inlined functions: what they execute counts for the
    /// functions that they are inlined into.
    pub fn set_no_inline(&mut self, no_inline: bool) {
        self.no_inline = no_inline;
    }

    /// Whether a frame with this label is shown to people: it is not that of a stub of the
    /// procedure linkage table, or of the dynamic linker's resolver, and not that of an inlined
    /// function if these have none.
    pub fn is_shown(&self, label: Label) -> bool {
        match label {
            Label::Function(function) => self.raw_frames || !self.functions.is_linkage(function),
            Label::Inlined(_) => !self.no_inline,
            Label::Program(_) | Label::Signal => true,
        }
    }

    /// What the instruction at `place` of `function` belongs to: the innermost function that is
    /// inlined there, if these have frames, or else the function.
    pub fn label_at(&self, function: FunctionId, place: Place) -> Label {
        let start = self.functions.get(function).start;
        let chain = self.inlining.chain(start, place.offset, place.offset);
        let innermost = chain.and_then(|chain| self.inlining.chains.innermost(chain));
        match innermost {
            Some((_, inlined)) if !self.no_inline => Label::Inlined(inlined),
            _ => Label::Function(function),
        }
    }

    /// The call tree without inlined functions: what they execute counts for the functions that
    /// they are inlined into.
    pub fn tree_of_functions(&self) -> Tree {
        self.tree
            .without(|label| matches!(label, Label::Inlined(_)))
    }

    /// Whether stacks have frames for inlined functions.
    pub fn shows_inlined(&self) -> bool {
        !self.no_inline
    }

    /// The call tree of what [`Self::is_shown`].
    pub fn shown_tree(&self) -> Tree {
        self.tree.without(|label| !self.is_shown(label))
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

    /// Paths of the executed programs, and names that tasks have given themselves.
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

    /// Passes branches of a task. Its stack has no frames of what was called before.
    pub fn pass(&mut self, number: u64, branches: u64) {
        self.records = self.records.saturating_add(branches);
        self.lose(number);
        // A processor has a task from its first record on.
        if self.tasks.len() < MAX_TASKS {
            self.tasks.entry(number).or_default();
        }
        if let Some(task) = self.tasks.get_mut(&number) {
            task.read_from = Some(self.records);
        }
    }

    /// Passes branches of a task that count as its own. What it executes there is not known.
    pub fn leave_out(&mut self, number: u64, branches: u64) {
        self.pass(number, branches);
        if let Some(task) = self.tasks.get_mut(&number)
            && self
                .only
                .as_ref()
                .is_none_or(|ids| ids.contains(&task.count.id))
        {
            task.count.branches = task.count.branches.saturating_add(branches);
            self.counts.left_out = self.counts.left_out.saturating_add(branches);
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
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain(|(_, count)| self.is_wanted(count.id));
        self.ended = ended;
    }

    /// The modules whose code was executed.
    pub fn executed_modules(&self) -> Vec<ModuleId> {
        let mut ids: Vec<ModuleId> = self.lines.keys().map(|line| line.start.module).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}
