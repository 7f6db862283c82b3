//! What two runs have executed differently.

use std::collections::BTreeMap;
use std::io;

use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::Place;
use vbts_trace::profile::space::Effect;
use vbts_trace::profile::{Seen, Watch};

use super::bolt::find_module;
use super::functions::{Row, rows_by_function};
use super::names::name_places;
use super::{Loaded, Names, Out};

/// Maximum number of calls whose order is compared.
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

/// Keeps the calls of the first task.
#[derive(Debug, Default)]
pub struct Calls {
    task: Option<u64>,
    records: u64,
    calls: Vec<Call>,
}

impl Watch for Calls {
    fn record(&mut self, seen: &Seen<'_>) {
        let record = self.records;
        self.records += 1;
        if !matches!(seen.effect, Effect::Call | Effect::Tail)
            || *self.task.get_or_insert(seen.task) != seen.task
            || self.calls.len() >= MAX_CALLS
        {
            return;
        }
        if let Some(frame) = seen.stack.top() {
            self.calls.push(Call {
                from: seen.map.place(seen.from),
                function: frame.function,
                record,
            });
        }
    }
}

/// The calls in the program's own file, or between it and others, with the names of functions.
fn own_calls(profile: &mut Loaded<Calls>) -> Vec<(Call, String)> {
    let module = find_module(profile, None);
    let names = Names::of(profile);
    let calls = std::mem::take(&mut profile.watch().calls);
    let own = calls.into_iter().filter(|call| {
        let callee = profile.functions().get(call.function).start.module;
        Some(call.from.module) == module || Some(callee) == module
    });
    own.map(|call| (call, names.function(call.function).name.clone()))
        .collect()
}

/// Shows the first call of the programs that differs, and those before it.
fn first_difference(
    good: &mut Loaded<Calls>,
    bad: &mut Loaded<Calls>,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let (ours, theirs) = (own_calls(good), own_calls(bad));
    let pairs = ours.iter().zip(&theirs);
    let same = pairs.take_while(|((_, a), (_, b))| a == b).count();
    if same == ours.len() && same == theirs.len() {
        return writeln!(
            out,
            "the calls of the program's own functions are the same, in order"
        );
    }
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
    let first = same.saturating_sub(BEFORE);
    if let Some(before @ [_, ..]) = ours.get(first..same) {
        show("both", good, before)?;
    }
    show("first", good, ours.get(same..same + 1).unwrap_or_default())?;
    show(
        "second",
        bad,
        theirs.get(same..same + 1).unwrap_or_default(),
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

/// Shows where two runs part: the first different call of the first task in the program's own file.
/// Then the functions that were called more often, less often, or in one run only: at most `limit`,
/// those first whose number of instructions differs most.
///
/// # Errors
/// The output fails.
pub fn diff(
    good: &mut Loaded<Calls>,
    bad: &mut Loaded<Calls>,
    limit: usize,
    out: &mut Out<'_>,
) -> io::Result<()> {
    first_difference(good, bad, out)?;
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
