//! The functions that one of two runs has called more often.

use std::collections::BTreeMap;
use std::io;

use vbts_trace::profile::Watch;

use crate::functions::{Row, rows_by_function};
use crate::{Loaded, Names, Out};

/// The rows of all functions, by module and name.
fn rows<W: Watch>(profile: &mut Loaded<W>) -> BTreeMap<(String, String), Row> {
    let names = Names::of(profile);
    let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
    for (id, row) in rows_by_function(profile) {
        let name = names.function(id);
        let module = names.short_module(name.module).to_owned();
        let sum = rows.entry((module, name.name.clone())).or_default();
        sum.calls += row.calls;
        sum.instructions += row.instructions;
    }
    rows
}

/// Shows the functions that were called more often, less often, or in one run only: at most
/// `limit`, those first whose number of instructions differs most.
pub(super) fn functions<W: Watch>(
    first: &mut Loaded<W>,
    second: &mut Loaded<W>,
    limit: usize,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let (first, mut second) = (rows(first), rows(second));
    let mut all: Vec<((String, String), Row, Row)> = Vec::new();
    for (key, row) in first {
        let other = second.remove(&key).unwrap_or_default();
        all.push((key, row, other));
    }
    all.extend(
        second
            .into_iter()
            .map(|(key, row)| (key, Row::default(), row)),
    );
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
