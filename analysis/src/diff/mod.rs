//! What two runs have executed differently.
//!
//! Tasks are compared by program, by the function in which they were first in the program's own
//! file, and by how many such there were before. What they execute in other files is not compared,
//! because it depends on the environment and the amount of memory.
//!
//! | module | contents |
//! |---|---|
//! | `own` | which branches are in the program's own file |
//! | `executions` | what each task has executed: its calls, and sums of its branches |
//! | `windows` | the branches of the first run, read again where the second one differs |
//! | `part` | the first branch that differs |
//! | `branches`, `functions` | how often each branch and each function was executed |

mod branches;
mod executions;
mod functions;
mod own;
mod part;
mod windows;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use vbts_trace::profile::Watch;
use vbts_trace::profile::modules::{KERNEL, ModuleId, Modules, Place};

pub use self::executions::Executions;
pub use self::windows::Windows;

use self::executions::{Call, MAX_CALLS, Parted};
use self::part::{Difference, is_whole};
use super::bolt::find_module;
use super::names::name_places;
use super::{Loaded, Names, Out};

/// Number of calls that are shown before the first difference.
const BEFORE: usize = 5;

/// The module with this name, or whose path ends with it.
fn module_of<W: Watch>(profile: &Loaded<W>, name: &str) -> Option<ModuleId> {
    let kernel = profile.modules().get(Modules::KERNEL);
    match kernel.name == name {
        true => Some(kernel.id),
        false => find_module(profile, Some(name)),
    }
}

/// Whether code of the module with this name was executed.
pub fn was_executed(profile: &Loaded<Executions>, name: &str) -> bool {
    let executed = profile.executed_modules();
    module_of(profile, name).is_some_and(|id| executed.contains(&id))
}

/// Whether a module of the first run and one of the second run are the same file.
fn is_same_file(
    (first, a): (&mut Loaded<Executions>, ModuleId),
    (second, b): (&mut Loaded<Executions>, ModuleId),
) -> bool {
    if first.functions().symbols(a) != second.functions().symbols(b) {
        return false;
    }
    let build_id = |profile: &mut Loaded<Executions>, id| {
        let name = profile.modules().get(id).name.clone();
        let (code, _) = profile.code();
        let known = code.files.symbols.mapped().build_id(&name);
        known.map(<[u8]>::to_vec)
    };
    build_id(first, a) == build_id(second, b)
}

/// What a task has executed while it executed one program.
struct Task {
    /// The number of its stretch.
    stretch: usize,
    /// `PROGRAM, task ID`.
    label: String,
    module: Option<ModuleId>,
    calls: Vec<(Call, String)>,
    parted: Option<Parted>,
    /// Number of branches.
    executed: u64,
}

/// By what tasks of two runs are paired: the name of the program, the function in which it was
/// first in its own file, and how many such tasks there were before. The program of the command has
/// an empty name, because that of the other run may be another one.
type Role = (String, String, usize);

/// The tasks of a run, by their roles, in the order in which they begin.
fn tasks(profile: &mut Loaded<Executions>) -> Vec<(Role, Task)> {
    let names = Names::of(profile);
    let stretches = std::mem::take(&mut profile.watch().stretches);
    let command = stretches.first().map(|stretch| stretch.program);
    let mut begun: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut all = Vec::with_capacity(stretches.len());
    for (number, stretch) in stretches.into_iter().enumerate() {
        let is_command = Some(stretch.program) == command;
        let name = names.program(stretch.program);
        let label = format!("{name}, task {}", stretch.id);
        let module = profile.watch().module(&stretch);
        let function = stretch.role.map(|id| names.function(id).name.clone());
        let function = function.unwrap_or_default();
        let name = if is_command { "" } else { name }.to_owned();
        let before = (begun.entry((name.clone(), function.clone()))).or_default();
        let role = (name, function, *before);
        *before += 1;
        let calls = stretch.calls.into_iter();
        let named = calls.map(|call| (call, names.function(call.function).name.clone()));
        let task = Task {
            stretch: number,
            label,
            module,
            calls: named.collect(),
            parted: stretch.parted,
            executed: stretch.sum.count,
        };
        all.push((role, task));
    }
    all
}

/// Two runs.
struct Runs<'a> {
    first: &'a mut Loaded<Executions>,
    second: &'a mut Loaded<Executions>,
    /// The parts of the first run that were read again.
    windows: Option<&'a mut Loaded<Windows>>,
    /// The own files that are the same in both.
    same: BTreeSet<(ModuleId, ModuleId)>,
}

impl Runs<'_> {
    /// Finds the own files that are the same in both runs, and shows which are not.
    fn compare_files(&mut self, out: &mut Out<'_>) -> io::Result<()> {
        let own = |profile: &mut Loaded<Executions>| -> BTreeMap<String, ModuleId> {
            let ids: BTreeSet<ModuleId> = profile.watch().own.modules().collect();
            let name = |id| profile.modules().get(id).name.clone();
            ids.into_iter().map(|id| (name(id), id)).collect()
        };
        let (ours, theirs) = (own(self.first), own(self.second));
        for (name, a) in ours {
            let Some(b) = theirs.get(&name) else {
                continue;
            };
            if is_same_file((self.first, a), (self.second, *b)) {
                self.same.insert((a, *b));
            } else {
                writeln!(
                    out,
                    "{} is another file in the second run: its calls are compared, not its branches",
                    super::names::shown(&name)
                )?;
            }
        }
        Ok(())
    }

    /// Shows where the runs part in each task.
    fn first_differences(&mut self, whose: &str, out: &mut Out<'_>) -> io::Result<()> {
        let (ours, theirs) = (tasks(self.first), tasks(self.second));
        let mut windows = match &mut self.windows {
            Some(profile) => profile.watch().take(),
            None => HashMap::new(),
        };
        let one = ours.len() <= 1 && theirs.len() <= 1;
        let mut theirs_by_role: BTreeMap<Role, Task> = theirs.into_iter().collect();
        let (mut same, mut what, mut alone) = (0_usize, "the branches and the calls", Vec::new());
        for (role, a) in ours {
            let Some(b) = theirs_by_role.remove(&role) else {
                alone.push((a, "first"));
                continue;
            };
            let branch = self.different_branch(&a, &b, &mut windows);
            let pairs = a.calls.iter().zip(&b.calls);
            let equal = pairs.take_while(|((_, a), (_, b))| a == b).count();
            let has_same_calls = equal == a.calls.len() && equal == b.calls.len();
            if has_same_calls && branch.is_none() {
                same += 1;
                if !self.has_same_file(&a, &b) {
                    what = "the calls";
                }
                continue;
            }
            if !one {
                writeln!(out, "{}, then {}:", a.label, b.label)?;
            }
            if let (Some(branch), Some(windows)) = (branch, &mut self.windows) {
                branch.write(windows, self.second, out)?;
            }
            if has_same_calls {
                writeln!(out, "  the calls of {whose} are the same, in order")?;
            } else {
                self.first_call(&a.calls, &b.calls, equal, out)?;
            }
        }
        let mut rest: Vec<Task> = theirs_by_role.into_values().collect();
        rest.sort_by_key(|task| task.stretch);
        alone.extend(rest.into_iter().map(|task| (task, "second")));
        for (task, run) in &alone {
            writeln!(out, "{}: only in the {run}", task.label)?;
        }
        if self.first.watch().is_cut() || self.second.watch().is_cut() {
            writeln!(
                out,
                "not everything was compared: at most {MAX_CALLS} calls of a run are"
            )?;
        }
        let tasks = match same {
            0 => return Ok(()),
            _ if one => String::new(),
            1 => "in 1 task, ".to_owned(),
            _ => format!("in {same} tasks, "),
        };
        writeln!(out, "{tasks}{what} of {whose} are the same, in order")
    }

    /// Whether the own files of two tasks are the same.
    fn has_same_file(&self, a: &Task, b: &Task) -> bool {
        let files = a.module.zip(b.module);
        files.is_some_and(|files| self.same.contains(&files))
    }

    /// The first branch of a task that differs from that of its partner, if their file is the same
    /// and it was found.
    fn different_branch(
        &mut self,
        a: &Task,
        b: &Task,
        windows: &mut HashMap<usize, Vec<(own::Branch, u64)>>,
    ) -> Option<Difference> {
        let parted = b.parted.as_ref()?;
        let is_known = parted.partner == a.stretch && is_whole(parted, b.executed);
        if !is_known || !self.has_same_file(a, b) {
            return None;
        }
        let first = windows.remove(&a.stretch);
        let has_ended = a.executed <= parted.window as u64 * executions::WINDOW;
        let first = first.or_else(|| has_ended.then(Vec::new))?;
        Difference::find(&first, parted, self.second.watch())
    }

    /// Shows the call after the first `equal` ones, and those before it.
    fn first_call(
        &mut self,
        ours: &[(Call, String)],
        theirs: &[(Call, String)],
        equal: usize,
        out: &mut Out<'_>,
    ) -> io::Result<()> {
        let mut show = |run: &str, profile: &mut Loaded<Executions>, list: &[(Call, String)]| {
            let places: Vec<Place> = list.iter().map(|(call, _)| call.from).collect();
            let labels = name_places(profile, &places);
            for ((call, name), label) in list.iter().zip(&labels) {
                let record = call.record;
                writeln!(out, "  {run:<6} branch {record:>10}  {label} -> {name}")?;
            }
            match list.is_empty() {
                true => writeln!(out, "  {run:<6} no further call"),
                false => Ok(()),
            }
        };
        let before = equal.saturating_sub(BEFORE);
        if let Some(before @ [_, ..]) = ours.get(before..equal) {
            show("both", self.first, before)?;
        }
        let next = equal..equal + 1;
        let (a, b) = (ours.get(next.clone()), theirs.get(next));
        show("first", self.first, a.unwrap_or_default())?;
        show("second", self.second, b.unwrap_or_default())
    }
}

/// Shows where two runs part: in each task, the first branch and the first call in the program's
/// own file, or in the file `only`, that differ. Then the branches that went a way more often, less
/// often, or in one run only, and such functions: at most `limit` of each, those first that differ
/// most. `windows` has the parts of the first run that [`Windows::of`] has named.
///
/// # Errors
/// The output fails.
pub fn diff(
    first: &mut Loaded<Executions>,
    second: &mut Loaded<Executions>,
    windows: Option<&mut Loaded<Windows>>,
    only: Option<&str>,
    limit: usize,
    out: &mut Out<'_>,
) -> io::Result<()> {
    // In the recording of a machine, no files are known.
    let only = only.or_else(|| find_module(first, None).is_none().then_some(KERNEL));
    let whose = only.unwrap_or("the program's own functions");
    let mut runs = Runs {
        first,
        second,
        windows,
        same: BTreeSet::new(),
    };
    runs.compare_files(out)?;
    runs.first_differences(whose, out)?;
    for (a, b) in std::mem::take(&mut runs.same) {
        branches::branches((runs.first, a), (runs.second, b), limit, out)?;
    }
    functions::functions(runs.first, runs.second, limit, out)
}
