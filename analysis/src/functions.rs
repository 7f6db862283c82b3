//! Functions, modules, source files or tasks, with what was executed in them.

use std::collections::BTreeMap;
use std::io;

use serde_json::json;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::tree::{Label, Node, Tree};
use vbts_trace::profile::{Needs, Sees, Watch};

use super::{Loaded, Names, Out, percent};

/// Finds the tasks. Of a long trace, their instructions are not counted.
#[derive(Debug, Default)]
pub struct Tasks;

impl Watch for Tasks {
    const SEES: Sees = Sees::Nothing;
    const NEEDS: Needs = Needs::Nothing;
}

/// What a row stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A function.
    Function,
    /// A mapped file.
    Module,
    /// A source file.
    File,
    /// A task.
    Task,
}

/// What rows are sorted by. Of numbers, the largest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    /// Instructions without those of callees.
    #[default]
    Instructions,
    /// Instructions with those of callees.
    Total,
    /// Branches.
    Branches,
    /// Calls.
    Calls,
    /// The name.
    Name,
}

impl SortBy {
    /// Whether rows that stand for `by` have it.
    pub fn is_of(self, by: By) -> bool {
        match self {
            Self::Total => by == By::Function,
            Self::Calls => by != By::Task,
            Self::Instructions | Self::Branches | Self::Name => true,
        }
    }

    /// The number of a row; 0 for its name.
    fn number(self, row: &Row) -> u64 {
        match self {
            Self::Instructions => row.instructions,
            Self::Total => row.total,
            Self::Branches => row.branches,
            Self::Calls => row.calls,
            Self::Name => 0,
        }
    }
}

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Row {
    /// Number of calls; 0 for an inlined function.
    pub calls: u64,
    /// Instructions, without those of callees.
    pub instructions: u64,
    /// Branches, without those of callees.
    pub branches: u64,
    /// Instructions with those of callees. What a recursive call executes counts once.
    pub total: u64,
}

/// The rows of all functions that were executed. Inlined functions have none: what they execute
/// counts for the functions that they are inlined into.
pub(crate) fn rows_by_function<W: Watch>(profile: &Loaded<W>) -> BTreeMap<FunctionId, Row> {
    let rows = rows_by_label(&profile.tree_of_functions()).into_iter();
    let of_functions = rows.filter_map(|(label, row)| match label {
        Label::Function(function) => Some((function, row)),
        _ => None,
    });
    of_functions.collect()
}

/// The rows of all functions that were executed, and of inlined ones if these have frames.
fn of_all_functions<W: Watch>(profile: &Loaded<W>) -> BTreeMap<Label, Row> {
    match profile.shows_inlined() {
        true => rows_by_label(profile.tree()),
        false => rows_by_label(&profile.tree_of_functions()),
    }
}

/// Returns whether a node stands for a function.
fn is_function(label: Label) -> bool {
    matches!(label, Label::Function(_) | Label::Inlined(_))
}

/// The rows of all functions that were executed, also of inlined ones.
fn rows_by_label(tree: &Tree) -> BTreeMap<Label, Row> {
    let mut rows: BTreeMap<Label, Row> = BTreeMap::new();
    let totals = tree.totals();
    let is_nested = nested(tree.nodes());
    for ((node, total), is_nested) in tree.nodes().iter().zip(totals).zip(is_nested) {
        if is_function(node.label) {
            let row = rows.entry(node.label).or_default();
            row.calls += node.calls;
            row.instructions += node.instructions;
            row.branches += node.branches;
            if !is_nested {
                row.total += total.0;
            }
        }
    }
    rows
}

/// For each node, whether one of its callers has the same function.
fn nested(nodes: &[Node]) -> Vec<bool> {
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
    let mut open: Vec<(u32, bool)> = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        match children.get_mut(node.parent as usize) {
            Some(of_parent) if node.parent as usize != at => of_parent.push(at as u32),
            _ => open.push((at as u32, false)),
        }
    }
    // How often each function is on the path to the current node.
    let mut active: BTreeMap<Label, u32> = BTreeMap::new();
    let mut is_nested = vec![false; nodes.len()];
    while let Some((at, leaves)) = open.pop() {
        let label = nodes.get(at as usize).map(|node| node.label);
        let Some(function) = label.filter(|label| is_function(*label)) else {
            if !leaves {
                let below = children.get(at as usize).into_iter().flatten();
                open.extend(below.map(|child| (*child, false)));
            }
            continue;
        };
        let count = active.entry(function).or_default();
        if leaves {
            *count -= 1;
            continue;
        }
        if let Some(is_nested) = is_nested.get_mut(at as usize) {
            *is_nested = *count > 0;
        }
        *count += 1;
        open.push((at, true));
        let below = children.get(at as usize).into_iter().flatten();
        open.extend(below.map(|child| (*child, false)));
    }
    is_nested
}

/// A row with its name.
struct Named {
    name: String,
    place: String,
    /// Calls are counted.
    has_calls: bool,
    row: Row,
}

/// Shows functions, modules, source files or tasks, at most `limit`, sorted by `sort`.
///
/// # Errors
/// The output fails.
pub fn functions<W: Watch>(
    profile: &mut Loaded<W>,
    by: By,
    sort: SortBy,
    limit: usize,
    as_json: bool,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let names = Names::of(profile);
    let mut rows: Vec<Named> = match by {
        By::Function => of_all_functions(profile)
            .into_iter()
            .map(|(label, row)| {
                let (module, line) = names.place(label);
                Named {
                    name: names.label(label).to_owned(),
                    place: match line {
                        Some((path, line)) => format!("{path}:{line}"),
                        None => names.short_module(module).to_owned(),
                    },
                    has_calls: label.has_calls(),
                    row,
                }
            })
            .collect(),
        By::Module | By::File => {
            let mut groups: BTreeMap<String, Row> = BTreeMap::new();
            for (id, row) in rows_by_function(profile) {
                let name = names.function(id);
                let module = names.module(name.module);
                let group = match (&name.line, by) {
                    (Some((path, _)), By::File) => path.as_str(),
                    _ => module,
                };
                let sum = groups.entry(group.to_owned()).or_default();
                sum.calls += row.calls;
                sum.instructions += row.instructions;
                sum.branches += row.branches;
            }
            let named = groups.into_iter().map(|(name, row)| Named {
                name,
                place: String::new(),
                has_calls: true,
                row,
            });
            named.collect()
        }
        By::Task => {
            let tasks = profile.tasks().iter().map(|(_, task)| Named {
                name: format!("{} {}", task.id, names.program(task.name())),
                place: String::new(),
                has_calls: false,
                row: Row {
                    instructions: task.instructions,
                    branches: task.branches,
                    ..Row::default()
                },
            });
            tasks.collect()
        }
    };
    rows.sort_by(|a, b| {
        let by_number = sort.number(&b.row).cmp(&sort.number(&a.row));
        let by_count = || match sort {
            SortBy::Name => a.name.cmp(&b.name),
            _ => (b.row.instructions, b.row.branches).cmp(&(a.row.instructions, a.row.branches)),
        };
        by_number
            .then_with(by_count)
            .then_with(|| a.name.cmp(&b.name))
    });
    let left = rows.len().saturating_sub(limit);
    rows.truncate(limit);
    let whole = profile.counts().instructions;
    // Only a report of tasks does without instructions.
    let has_instructions = profile.counts().left_out == 0;
    if as_json {
        for named in &rows {
            let row = &named.row;
            let mut object = json!({
                "name": named.name,
                "instructions": has_instructions.then_some(row.instructions),
                "branches": row.branches,
            });
            if by != By::Task {
                object["calls"] = named.has_calls.then_some(row.calls).into();
            }
            if by == By::Function {
                object["total"] = row.total.into();
                object["place"] = named.place.as_str().into();
            }
            writeln!(out, "{object}")?;
        }
        return Ok(());
    }
    if !has_instructions {
        return branches_of_tasks(&rows, left, profile.counts().branches, out);
    }
    let has = (by != By::Task, by == By::Function);
    write!(out, "{:>14} {:>6} ", "instructions", "self")?;
    if has.1 {
        write!(out, "{:>14} {:>6} ", "with callees", "")?;
    }
    write!(out, "{:>12} ", "branches")?;
    if has.0 {
        write!(out, "{:>10}  ", "calls")?;
    }
    writeln!(out)?;
    for named in &rows {
        let (name, row) = (&named.name, &named.row);
        let share = percent(row.instructions, whole);
        write!(out, "{:>14} {share:>5.1}% ", row.instructions)?;
        if has.1 {
            let share = percent(row.total, whole);
            write!(out, "{:>14} {share:>5.1}% ", row.total)?;
        }
        write!(out, "{:>12} ", row.branches)?;
        match has.0 {
            true if named.has_calls => write!(out, "{:>10}  ", row.calls)?,
            true => write!(out, "{:>10}  ", "")?,
            false => {}
        }
        match named.place.as_str() {
            "" => writeln!(out, "{name}")?,
            place => writeln!(out, "{name} ({place})")?,
        }
    }
    if left > 0 {
        writeln!(out, "{left} more: --limit shows them")?;
    }
    Ok(())
}

/// Shows tasks whose instructions are not known, and that `left` more are left out.
fn branches_of_tasks(rows: &[Named], left: usize, whole: u64, out: &mut Out<'_>) -> io::Result<()> {
    writeln!(out, "{:>14} {:>6} ", "branches", "self")?;
    for Named { name, row, .. } in rows {
        let share = percent(row.branches, whole);
        writeln!(out, "{:>14} {share:>5.1}% {name}", row.branches)?;
    }
    if left > 0 {
        writeln!(out, "{left} more: --limit shows them")?;
    }
    writeln!(
        out,
        "the trace is long: --sort instructions reads all of it, and counts instructions"
    )
}
