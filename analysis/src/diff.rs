//! What two runs have executed differently.

use std::collections::{BTreeMap, HashMap};
use std::io;

use vbts_trace::Streams;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::{KERNEL, ModuleId, Modules, Place};
use vbts_trace::profile::space::Effect;
use vbts_trace::profile::{Seen, Watch};

use super::bolt::find_module;
use super::functions::{Row, rows_by_function};
use super::linkage::Linkage;
use super::names::name_places;
use super::{Loaded, Names, Out};

/// Maximum number of calls of a run whose order is compared.
const MAX_CALLS: usize = 1 << 22;
/// Number of calls that are shown before the first difference.
const BEFORE: usize = 5;

/// A call.
#[derive(Debug, Clone, Copy)]
struct Call {
    from: Place,
    function: FunctionId,
    /// Number of the branch among those that were read.
    record: u64,
}

/// What a task called while it executed one program.
#[derive(Debug, Default)]
struct Stretch {
    /// The thread ID of the task.
    id: u32,
    program: u32,
    calls: Vec<Call>,
}

/// Keeps the calls of each task.
#[derive(Debug, Default)]
pub struct Calls {
    streams: Streams,
    records: u64,
    kept: usize,
    /// Whether calls were left out.
    cut: bool,
    /// In the order in which they begin.
    stretches: Vec<Stretch>,
    /// The last stretch of each task.
    last: HashMap<TaskKey, usize>,
    /// How deep the stack of a task is in an interrupt or exception.
    events: HashMap<TaskKey, usize>,
    linkage: Linkage<TaskKey>,
}

/// What tells a task from the others: its number; or, if the streams are processors, its thread ID,
/// and for idle tasks the processor.
type TaskKey = (u32, u64);

impl Calls {
    /// For a trace with these streams.
    pub fn new(streams: Streams) -> Self {
        Self {
            streams,
            ..Self::default()
        }
    }

    fn key(&self, seen: &Seen<'_>) -> TaskKey {
        match (self.streams, seen.count.id) {
            (Streams::Tasks, _) | (Streams::Processors, 0) => (0, seen.task),
            (Streams::Processors, id) => (id, 0),
        }
    }

    /// Whether this is in an interrupt or exception. When these come differs from run to run.
    fn is_in_event(&mut self, task: TaskKey, seen: &Seen<'_>) -> bool {
        let depth = seen.stack.frames().len();
        if self.events.get(&task).is_some_and(|event| depth < *event) {
            self.events.remove(&task);
        }
        if seen.is_event {
            self.events.entry(task).or_insert(depth);
        }
        self.events.contains_key(&task)
    }
}

impl Watch for Calls {
    fn record(&mut self, seen: &Seen<'_>) {
        let record = self.records;
        self.records += 1;
        if seen.effect == Effect::Jump {
            return;
        }
        let task = self.key(seen);
        let is_in_event = self.is_in_event(task, seen);
        if is_in_event || !matches!(seen.effect, Effect::Call | Effect::Tail) {
            return;
        }
        let (Some(frame), Some(joined)) = (seen.stack.top(), self.linkage.join(task, seen)) else {
            return;
        };
        // Whether a call leads through the resolver depends on what was called before.
        if joined.by_resolver {
            return;
        }
        if self.kept >= MAX_CALLS {
            self.cut = true;
            return;
        }
        let program = seen.count.program;
        let last = self.last.get(&task).copied();
        let stretch = match last.filter(|at| self.stretches[*at].program == program) {
            Some(at) => at,
            None => {
                self.stretches.push(Stretch {
                    id: seen.count.id,
                    program,
                    calls: Vec::new(),
                });
                let at = self.stretches.len() - 1;
                self.last.insert(task, at);
                at
            }
        };
        self.kept += 1;
        self.stretches[stretch].calls.push(Call {
            from: joined.from,
            function: frame.function,
            record,
        });
    }
}

/// The calls of a task while it executed one program, with the names of functions: those in one
/// file, or between it and others.
struct Own {
    /// `PROGRAM, task ID`.
    label: String,
    calls: Vec<(Call, String)>,
}

/// The module with this name, or whose path ends with it.
fn module_of(profile: &Loaded<Calls>, name: &str) -> Option<ModuleId> {
    let kernel = profile.modules().get(Modules::KERNEL);
    match kernel.name == name {
        true => Some(kernel.id),
        false => find_module(profile, Some(name)),
    }
}

/// Whether code of the module with this name was executed.
pub fn was_executed(profile: &Loaded<Calls>, name: &str) -> bool {
    let executed = profile.executed_modules();
    module_of(profile, name).is_some_and(|id| executed.contains(&id))
}

/// What the tasks of a run called, by the name of the program and by how many tasks executed that
/// program before. The program of the command has an empty name, because that of the other run may
/// be another one. The calls are those in the program's own file, or in the file `only`.
fn own_calls(profile: &mut Loaded<Calls>, only: Option<&str>) -> BTreeMap<(String, usize), Own> {
    let fixed = only.map(|name| module_of(profile, name));
    let names = Names::of(profile);
    let stretches = std::mem::take(&mut profile.watch().stretches);
    let command = stretches.first().map(|stretch| stretch.program);
    let mut modules: HashMap<u32, Option<ModuleId>> = HashMap::new();
    let mut tasks: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeMap::new();
    for stretch in stretches {
        let is_command = Some(stretch.program) == command;
        let module = *modules.entry(stretch.program).or_insert_with(|| {
            if let Some(fixed) = fixed {
                return fixed;
            }
            let path = profile.programs().get(stretch.program as usize);
            let path = path.map(|path| String::from_utf8_lossy(path));
            let own = path.and_then(|path| find_module(profile, Some(&path)));
            // It goes through all that was executed.
            let or_first = || is_command.then(|| find_module(profile, None)).flatten();
            own.or_else(or_first)
        });
        let is_own = |call: &Call| {
            let callee = profile.functions().get(call.function).start.module;
            Some(call.from.module) == module || Some(callee) == module
        };
        let own = stretch.calls.into_iter().filter(is_own);
        let named = own.map(|call| (call, names.function(call.function).name.clone()));
        let name = names.program(stretch.program);
        let key = if is_command { "" } else { name }.to_owned();
        let before = tasks.entry(key.clone()).or_default();
        let own = Own {
            label: format!("{name}, task {}", stretch.id),
            calls: named.collect(),
        };
        all.insert((key, *before), own);
        *before += 1;
    }
    all
}

/// Shows where the runs part in each task: the first call that differs, and those before it.
fn first_differences(
    good: &mut Loaded<Calls>,
    bad: &mut Loaded<Calls>,
    only: Option<&str>,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let (ours, mut theirs) = (own_calls(good, only), own_calls(bad, only));
    let one = ours.len() <= 1 && theirs.len() <= 1;
    let mut same = 0_usize;
    let mut alone = Vec::new();
    for (key, a) in ours {
        let Some(b) = theirs.remove(&key) else {
            alone.push((a, "first"));
            continue;
        };
        let pairs = a.calls.iter().zip(&b.calls);
        let equal = pairs.take_while(|((_, a), (_, b))| a == b).count();
        if equal == a.calls.len() && equal == b.calls.len() {
            same += 1;
            continue;
        }
        if !one {
            writeln!(out, "{}, then {}:", a.label, b.label)?;
        }
        first_difference((good, &a.calls), (bad, &b.calls), equal, out)?;
    }
    alone.extend(theirs.into_values().map(|task| (task, "second")));
    for (task, run) in &alone {
        writeln!(out, "{}: only in the {run}", task.label)?;
    }
    if good.watch().cut || bad.watch().cut {
        writeln!(
            out,
            "only the first {MAX_CALLS} calls of a run were compared"
        )?;
    }
    let whose = only.unwrap_or("the program's own functions");
    let tasks = match same {
        0 => return Ok(()),
        _ if one => String::new(),
        1 => "in 1 task, ".to_owned(),
        _ => format!("in {same} tasks, "),
    };
    writeln!(out, "{tasks}the calls of {whose} are the same, in order")
}

/// Shows the call after the first `equal` ones, and those before it.
fn first_difference(
    (good, ours): (&mut Loaded<Calls>, &[(Call, String)]),
    (bad, theirs): (&mut Loaded<Calls>, &[(Call, String)]),
    equal: usize,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let mut show = |run: &str, profile: &mut Loaded<Calls>, list: &[(Call, String)]| {
        let places: Vec<Place> = list.iter().map(|(call, _)| call.from).collect();
        let labels = name_places(profile, &places);
        for ((call, name), label) in list.iter().zip(&labels) {
            writeln!(
                out,
                "  {run:<6} branch {:>10}  {label} -> {name}",
                call.record
            )?;
        }
        match list.is_empty() {
            true => writeln!(out, "  {run:<6} no further call"),
            false => Ok(()),
        }
    };
    let first = equal.saturating_sub(BEFORE);
    if let Some(before @ [_, ..]) = ours.get(first..equal) {
        show("both", good, before)?;
    }
    show(
        "first",
        good,
        ours.get(equal..equal + 1).unwrap_or_default(),
    )?;
    show(
        "second",
        bad,
        theirs.get(equal..equal + 1).unwrap_or_default(),
    )
}

/// The rows of all functions, by module and name.
fn rows<W: Watch>(profile: &mut Loaded<W>) -> BTreeMap<(String, String), Row> {
    let names = Names::of(profile);
    let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
    for (id, row) in rows_by_function(profile.tree()) {
        let name = names.function(id);
        let module = names.short_module(name.module).to_owned();
        let sum = rows.entry((module, name.name.clone())).or_default();
        sum.calls += row.calls;
        sum.instructions += row.instructions;
    }
    rows
}

/// Shows where two runs part: in each task, the first different call in the program's own file, or
/// in the file `only`. The tasks are compared by program, in the order in which they begin. Then
/// the functions that were called more often, less often, or in one run only: at most `limit`,
/// those first whose number of instructions differs most.
///
/// # Errors
/// The output fails.
pub fn diff(
    good: &mut Loaded<Calls>,
    bad: &mut Loaded<Calls>,
    only: Option<&str>,
    limit: usize,
    out: &mut Out<'_>,
) -> io::Result<()> {
    // In the recording of a machine, no files are known.
    let only = only.or_else(|| find_module(good, None).is_none().then_some(KERNEL));
    first_differences(good, bad, only, out)?;
    let (good, mut bad) = (rows(good), rows(bad));
    let mut all: Vec<((String, String), Row, Row)> = Vec::new();
    for (key, row) in good {
        let other = bad.remove(&key).unwrap_or_default();
        all.push((key, row, other));
    }
    all.extend(bad.into_iter().map(|(key, row)| (key, Row::default(), row)));
    all.retain(|(_, a, b)| (a.calls, a.instructions) != (b.calls, b.instructions));
    let distance = |a: &Row, b: &Row| a.instructions.abs_diff(b.instructions);
    all.sort_by(|(name, a, b), (other, c, d)| {
        distance(c, d)
            .cmp(&distance(a, b))
            .then_with(|| name.cmp(other))
    });
    if all.is_empty() {
        return writeln!(out, "the two runs have the same calls and instructions");
    }
    writeln!(
        out,
        "{:>10} {:>10}  {:>14} {:>14} {:>15}",
        "calls", "then", "instructions", "then", "difference"
    )?;
    for ((module, name), a, b) in all.iter().take(limit) {
        let difference = i128::from(b.instructions) - i128::from(a.instructions);
        let only = match (a.calls, b.calls) {
            (0, _) => "  only in the second",
            (_, 0) => "  only in the first",
            _ => "",
        };
        writeln!(
            out,
            "{:>10} {:>10}  {:>14} {:>14} {difference:>+15}  {name} ({module}){only}",
            a.calls, b.calls, a.instructions, b.instructions
        )?;
    }
    match all.len().saturating_sub(limit) {
        0 => Ok(()),
        left => writeln!(out, "{left} more: --limit shows them"),
    }
}
