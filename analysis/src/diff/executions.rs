//! Calls of the tasks of a run in the program's own file, and sums of its branches, by which two
//! runs are compared without the branches themselves.
//!
//! After each [`WINDOW`] own branches of a task, a sum of all that it has executed is kept. While
//! the second run is read, its sums are compared with those of the first one, and the branches
//! since the last sum are kept. So the last ones before a difference are known.

use std::collections::HashMap;

use vbts_trace::Streams;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::{ModuleId, Place};
use vbts_trace::profile::space::Effect;
use vbts_trace::profile::tree::NodeId;
use vbts_trace::profile::{Ended, New, Seen, Sees, Watch};

use super::own::{OwnCode, TaskKey};
use crate::linkage::Linkage;

/// Own branches between two sums.
pub(super) const WINDOW: u64 = 4096;
/// Maximum number of calls of a run whose order is compared.
pub(super) const MAX_CALLS: usize = 1 << 22;
/// Maximum number of sums of a run, and of branches that are kept at once.
const MAX_SUMS: usize = 1 << 23;
const MAX_STEPS: usize = 1 << 23;
/// Maximum number of tasks of which the different branches are kept.
const MAX_PARTED: usize = 16;

/// A call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub from: Place,
    pub function: FunctionId,
    /// Number of the branch.
    pub record: u64,
}

/// A sum of the own branches of a task up to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum {
    pub hash: u64,
    /// Number of own branches.
    pub count: u64,
}

impl Sum {
    /// Adds a branch with this hash.
    #[inline]
    pub(super) fn add(&mut self, hash: u64) {
        self.hash = (self.hash.rotate_left(5) ^ hash).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.count += 1;
    }
}

/// An own branch that a task has executed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub mark: u32,
    pub record: u64,
    /// The innermost node of the stack before it.
    pub node: NodeId,
}

/// The first difference of a task of the second run from its partner.
#[derive(Debug)]
pub(super) struct Parted {
    /// The partner, by its number.
    pub partner: usize,
    /// Number of the first sum that differs.
    pub window: usize,
    /// The own branches since the sum before.
    pub steps: Vec<Step>,
    /// The innermost node of the stack after them.
    pub node: NodeId,
    /// Number of executions of each straight line up to the last step, by its mark; `None` if
    /// several threads have executed them.
    pub counts: Option<Vec<(u32, u64)>>,
}

/// The part of a task's execution in one program.
#[derive(Debug)]
pub(super) struct Stretch {
    /// The thread ID of the task.
    pub id: u32,
    pub task: TaskKey,
    pub program: u32,
    /// The function in which it was first in its own file.
    pub role: Option<FunctionId>,
    pub calls: Vec<Call>,
    /// The sums, with the numbers of the branches after which they were made.
    pub sums: Vec<(Sum, u64)>,
    /// That of all.
    pub sum: Sum,
    /// Numbers of the first and the last own branch.
    pub first: u64,
    pub last: u64,
    /// The stretch of the first run that it is compared with, by its number, as long as both are
    /// the same.
    partner: Option<usize>,
    steps: Vec<Step>,
    pub parted: Option<Parted>,
    /// Threads have executed its branches, too.
    is_shared: bool,
}

/// A task that is read.
#[derive(Debug, Default)]
struct Task {
    /// The current stretch.
    stretch: Option<usize>,
    /// Calls into the linkage, by their places.
    linkage: Linkage<Place>,
}

/// Key by which tasks are paired while they are read: the program, the place where they were first
/// in their own file, and how many such there were before.
type Role = (String, u64, usize);

/// Keeps what each task has executed in the program's own file.
#[derive(Debug, Default)]
pub struct Executions {
    pub(super) own: OwnCode,
    kept: usize,
    /// Calls were left out.
    cut: bool,
    /// In the order in which they begin.
    pub(super) stretches: Vec<Stretch>,
    tasks: Vec<Task>,
    /// Number of executions of each own branch, and the first stretch that has executed it.
    counts: Vec<(u64, usize)>,
    hashes: Vec<u64>,
    /// How many stretches have begun in a role.
    begun: HashMap<(String, u64), usize>,
    /// The stretches of this run by their roles.
    roles: HashMap<Role, usize>,
    /// The first run, if this is the second one.
    against: Option<First>,
    /// Number of sums, of steps, and of stretches that have parted.
    sums: usize,
    steps: usize,
    parted: usize,
}

/// What the second run is compared with.
#[derive(Debug)]
struct First {
    roles: HashMap<Role, usize>,
    /// The sums of each stretch, and that of all.
    sums: Vec<(Vec<Sum>, Sum)>,
}

impl Executions {
    /// For a trace with these streams. If `only` is given, the own file of each program is that.
    pub fn new(streams: Streams, only: Option<&str>) -> Self {
        Self {
            own: OwnCode::new(streams, only),
            ..Self::default()
        }
    }

    /// For a run that is compared with `first`.
    pub fn against(streams: Streams, only: Option<&str>, first: &Self) -> Self {
        let sums = first.stretches.iter().map(|stretch| {
            let sums = stretch.sums.iter().map(|(sum, _)| *sum);
            (sums.collect(), stretch.sum)
        });
        Self {
            against: Some(First {
                roles: first.roles.clone(),
                sums: sums.collect(),
            }),
            ..Self::new(streams, only)
        }
    }

    /// The current stretch of a task, if one has begun.
    #[inline]
    fn current(&self, task: usize) -> Option<usize> {
        self.tasks.get(task)?.stretch
    }

    /// The task with this number.
    #[inline]
    fn task(&mut self, number: usize) -> Option<&mut Task> {
        if number >= self.tasks.len() {
            self.tasks.resize_with(number + 1, Task::default);
        }
        self.tasks.get_mut(number)
    }

    /// The current stretch of a task. One begins with an own branch.
    #[inline]
    fn stretch(&mut self, task: usize, key: TaskKey, seen: &Seen<'_>) -> Option<usize> {
        if let Some(at) = self.current(task)
            && self.stretches.get(at)?.program == seen.count.program
        {
            return Some(at);
        }
        self.begin(task, key, seen)
    }

    #[cold]
    fn begin(&mut self, task: usize, key: TaskKey, seen: &Seen<'_>) -> Option<usize> {
        let branch = self.own.branch(seen.mark)?;
        let (_, name) = self.own.program(seen.count.program)?;
        // The program of the command can be another one in the other run.
        let command = self.stretches.first().map(|stretch| stretch.program);
        let is_command = command.is_none_or(|command| command == seen.count.program);
        let name = if is_command { "" } else { name }.to_owned();
        let function = branch.function;
        let start = function.map_or(branch.from, |id| seen.functions.get(id).start);
        let begun = (self.begun)
            .entry((name.clone(), start.offset))
            .or_default();
        let role = (name, start.offset, *begun);
        *begun += 1;
        let first = self.against.as_ref();
        let partner = first.and_then(|first| first.roles.get(&role).copied());
        if let Some(before) = self.current(task) {
            self.end_stretch(before, seen.node);
        }
        let at = self.stretches.len();
        self.roles.insert(role, at);
        self.stretches.push(Stretch {
            id: seen.count.id,
            task: key,
            program: seen.count.program,
            role: function,
            calls: Vec::new(),
            sums: Vec::new(),
            sum: Sum::default(),
            first: seen.record,
            last: seen.record,
            partner,
            steps: Vec::new(),
            parted: None,
            is_shared: false,
        });
        self.task(task)?.stretch = Some(at);
        Some(at)
    }

    /// Takes an own branch into account.
    #[inline]
    fn own_branch(&mut self, at: usize, seen: &Seen<'_>) -> Option<()> {
        let mark = seen.mark as usize - 1;
        let (count, first) = self.counts.get_mut(mark)?;
        if *count == 0 {
            *first = at;
        }
        *count += 1;
        let first = *first;
        let hash = *self.hashes.get(mark)?;
        let stretch = self.stretches.get_mut(at)?;
        stretch.sum.add(hash);
        stretch.last = seen.record;
        if first != at && !stretch.is_shared {
            stretch.is_shared = true;
            self.stretches.get_mut(first)?.is_shared = true;
        }
        let stretch = self.stretches.get_mut(at)?;
        if stretch.partner.is_some() && self.steps < MAX_STEPS {
            self.steps += 1;
            stretch.steps.push(Step {
                mark: seen.mark,
                record: seen.record,
                node: seen.node,
            });
        }
        if stretch.sum.count.is_multiple_of(WINDOW) {
            self.end_window(at, seen);
        }
        Some(())
    }

    /// Keeps the sum of a stretch, and compares it with that of the first run.
    #[cold]
    fn end_window(&mut self, at: usize, seen: &Seen<'_>) {
        let Some(stretch) = self.stretches.get_mut(at) else {
            return;
        };
        let (sum, number) = (stretch.sum, stretch.sums.len());
        if self.sums < MAX_SUMS {
            self.sums += 1;
            stretch.sums.push((sum, seen.record));
        }
        let of_partner = match (stretch.partner, &self.against) {
            (Some(partner), Some(first)) => first.sums.get(partner),
            _ => return,
        };
        match of_partner.and_then(|(sums, _)| sums.get(number)) {
            Some(same) if *same == sum => {
                self.steps -= stretch.steps.len();
                stretch.steps.clear();
            }
            _ => self.part(at, number, seen.stack.node()),
        }
    }

    /// A stretch has ended: compares the sum of all.
    fn end_stretch(&mut self, at: usize, node: NodeId) {
        let Some(stretch) = self.stretches.get_mut(at) else {
            return;
        };
        let of_partner = match (stretch.partner, &self.against) {
            (Some(partner), Some(first)) => first.sums.get(partner),
            _ => return,
        };
        if of_partner.is_some_and(|(_, all)| *all == stretch.sum) {
            self.steps -= stretch.steps.len();
            stretch.steps = Vec::new();
            stretch.partner = None;
        } else {
            let window = stretch.sum.count / WINDOW;
            self.part(at, usize::try_from(window).unwrap_or(usize::MAX), node);
        }
    }

    /// A stretch has executed something else than its partner, in the window with this number.
    fn part(&mut self, at: usize, window: usize, node: NodeId) {
        let counts = &self.counts;
        let Some(stretch) = self.stretches.get_mut(at) else {
            return;
        };
        let steps = std::mem::take(&mut stretch.steps);
        self.steps -= steps.len();
        let Some(partner) = stretch.partner.take().filter(|_| self.parted < MAX_PARTED) else {
            return;
        };
        self.parted += 1;
        let executed = || {
            let all = counts.iter().zip(1..);
            let of_it = all.filter(|((count, first), _)| *count > 0 && *first == at);
            of_it.map(|((count, _), mark)| (mark, *count)).collect()
        };
        stretch.parted = Some(Parted {
            partner,
            window,
            steps,
            node,
            counts: (!stretch.is_shared).then(executed),
        });
    }

    /// Whether calls or branches were left out.
    pub(super) fn is_cut(&self) -> bool {
        self.cut || self.own.cut
    }

    /// The own file of a stretch.
    pub(super) fn module(&self, stretch: &Stretch) -> Option<ModuleId> {
        let (module, _) = self.own.program(stretch.program)?;
        Some(module)
    }
}

impl Watch for Executions {
    const SEES: Sees = Sees::All;

    fn mark(&mut self, new: &New<'_>) -> u32 {
        let mark = self.own.mark(new);
        if self.own.len() > self.hashes.len()
            && let Some(branch) = self.own.branch(mark)
        {
            self.hashes.push(branch.hash());
            self.counts.push((0, 0));
        }
        mark
    }

    #[inline]
    fn record(&mut self, seen: &Seen<'_>) {
        if seen.mark != 0 || seen.effect != Effect::Jump {
            self.see(seen);
        }
    }

    fn end(&mut self, ended: &Ended<'_>) {
        let (task, stack) = (self.own.ended(ended.task, ended.count), ended.stack);
        if let Some(at) = task.and_then(|task| self.current(task)) {
            self.end_stretch(at, stack.node());
        }
    }
}

impl Executions {
    fn see(&mut self, seen: &Seen<'_>) {
        let Some((task, key)) = self.own.task(seen) else {
            return;
        };
        if seen.mark != 0
            && let Some(at) = self.stretch(task, key, seen)
        {
            self.own_branch(at, seen);
        }
        if matches!(seen.effect, Effect::Call | Effect::Tail) {
            self.call(task, seen);
        }
    }

    fn call(&mut self, task: usize, seen: &Seen<'_>) {
        let [from, to] = [seen.from, seen.to].map(|address| seen.map.place(address));
        let in_linkage = [from, to]
            .map(|place| seen.functions.is_linkage_at(place))
            .into();
        let joined = self.task(task);
        let joined = joined.and_then(|task| task.linkage.join(in_linkage, seen.effect, from));
        let (Some(frame), Some(joined)) = (seen.stack.top(), joined) else {
            return;
        };
        let current = self.current(task);
        let Some((module, _)) = self.own.program(seen.count.program) else {
            return;
        };
        let callee = seen.functions.get(frame.function).start.module;
        // Whether a call leads through the resolver depends on what was called before.
        if joined.by_resolver || (joined.first.module != module && callee != module) {
            return;
        }
        let Some(stretch) = current.and_then(|at| self.stretches.get_mut(at)) else {
            return;
        };
        if self.kept >= MAX_CALLS {
            self.cut = true;
            return;
        }
        self.kept += 1;
        stretch.calls.push(Call {
            from: joined.first,
            function: frame.function,
            record: seen.record,
        });
    }
}
