//! The branches that one of two runs has taken, or not taken, more often.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

use vbts_trace::profile::Watch;
use vbts_trace::profile::code::Transfer;
use vbts_trace::profile::modules::{ModuleId, Place};

use crate::names::name_places;
use crate::{Loaded, Out};

/// One outcome of a branch: not taken, or taken to an offset in its file or to another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    NotTaken,
    To(u64),
    Elsewhere,
}

/// Counts of the outcomes of branches, by the offset of the branch.
type Ways = BTreeMap<(u64, Way), u64>;

/// Counts the outcomes of the branches of a file that are at `offsets`.
fn ways<W: Watch>(profile: &Loaded<W>, module: ModuleId, offsets: &BTreeSet<u64>) -> Ways {
    let mut ways = Ways::new();
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    for (edge, count) in profile.edges() {
        if edge.from.module != module || edge.is_event || !offsets.contains(&edge.from.offset) {
            continue;
        }
        let way = match edge.to.module == module {
            true => Way::To(edge.to.offset),
            false => Way::Elsewhere,
        };
        *ways.entry((edge.from.offset, way)).or_default() += count;
        *taken.entry(edge.from.offset).or_default() += count;
    }
    // The number of lines that contain an offset is the sum of these up to it.
    let mut changes: BTreeMap<u64, i128> = BTreeMap::new();
    for (line, count) in profile.lines() {
        if line.start.module == module && count.instructions > 0 {
            let end = line.last.saturating_add(u64::from(line.complete));
            *changes.entry(line.start.offset).or_default() += i128::from(count.count);
            *changes.entry(end).or_default() -= i128::from(count.count);
        }
    }
    let mut changes = changes.into_iter().peekable();
    let mut executed = 0_i128;
    for offset in offsets {
        while let Some((_, change)) = changes.next_if(|(at, _)| at <= offset) {
            executed += change;
        }
        let taken = taken.get(offset).copied().unwrap_or(0);
        if let Ok(not_taken @ 1..) = u64::try_from(executed - i128::from(taken)) {
            ways.insert((*offset, Way::NotTaken), not_taken);
        }
    }
    ways
}

/// The branches of a file that were taken.
fn offsets<W: Watch>(profile: &Loaded<W>, module: ModuleId) -> impl Iterator<Item = u64> {
    let functions = profile.functions();
    let edges = profile.edges();
    let of_it = edges.filter(move |(edge, _)| {
        edge.from.module == module && !edge.is_event && !functions.is_linkage_at(edge.from)
    });
    of_it.map(|(edge, _)| edge.from.offset)
}

/// Returns whether the branch is a jump or a call. The target of a return is that of its call.
fn decides<W: Watch>(profile: &mut Loaded<W>, module: ModuleId, offset: u64) -> bool {
    let (code, modules) = profile.code();
    let line = code.line(modules, module, offset, offset, offset);
    line.is_ok_and(|line| matches!(line.transfer, Transfer::Jump { .. } | Transfer::Call))
}

/// Shows the branches of a file that went a way more often in one run: at most `limit` ways, those
/// first that differ most. The file has these numbers in the two profiles, and is the same.
pub(super) fn branches<W: Watch, V: Watch>(
    (first, a): (&mut Loaded<W>, ModuleId),
    (second, b): (&mut Loaded<V>, ModuleId),
    limit: usize,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let all: BTreeSet<u64> = offsets(first, a).chain(offsets(second, b)).collect();
    let (mut ours, theirs) = (ways(first, a, &all), ways(second, b, &all));
    let mut rows: Vec<(u64, Way, u64, u64)> = Vec::new();
    let (mut once, mut several) = (HashSet::new(), HashSet::new());
    let keys: BTreeSet<(u64, Way)> = ours.keys().chain(theirs.keys()).copied().collect();
    for (offset, way) in keys {
        if !once.insert(offset) {
            several.insert(offset);
        }
        let count = ours.remove(&(offset, way)).unwrap_or(0);
        let then = theirs.get(&(offset, way)).copied().unwrap_or(0);
        if count != then {
            rows.push((offset, way, count, then));
        }
    }
    rows.retain(|(offset, ..)| several.contains(offset));
    rows.sort_by_key(|(offset, way, count, then)| {
        (std::cmp::Reverse(count.abs_diff(*then)), *offset, *way)
    });
    rows.retain(|(offset, ..)| decides(second, b, *offset) || decides(first, a, *offset));
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{:>14} {:>14} {:>15}  branch",
        "executed", "then", "difference"
    )?;
    let place = |offset| Place { module: b, offset };
    for (offset, way, count, then) in rows.iter().take(limit) {
        let to = match way {
            Way::To(to) => Some(place(*to)),
            Way::NotTaken | Way::Elsewhere => None,
        };
        let places: Vec<Place> = [place(*offset)].into_iter().chain(to).collect();
        let names = name_places(second, &places);
        let difference = i128::from(*then) - i128::from(*count);
        let from = names.first().map_or("", String::as_str);
        let way = match (way, names.get(1)) {
            (Way::To(_), Some(to)) => format!("-> {to}"),
            (Way::NotTaken, _) => "not taken".to_owned(),
            _ => "-> another file".to_owned(),
        };
        writeln!(
            out,
            "{count:>14} {then:>14} {difference:>+15}  {from} {way}"
        )?;
    }
    match rows.len().saturating_sub(limit) {
        0 => Ok(()),
        left => writeln!(out, "{left} more: --limit shows them"),
    }
}
