//! The own branches of the first run, read again where the second one differs from it.

use std::collections::HashMap;
use std::mem;

use vbts_trace::profile::{New, Seen, Sees, Watch};

use super::executions::{Executions, Sum, WINDOW};
use super::own::{Branch, OwnCode, TaskKey};
use crate::Range;

/// What is wanted of a task.
#[derive(Debug)]
struct Wanted {
    /// The number of its stretch.
    stretch: usize,
    /// Numbers of the first and the last branch.
    first: u64,
    last: u64,
    /// The sum before the first one, and that of the last one.
    sum: Sum,
    expected: Sum,
    branches: Vec<(Branch, u64)>,
}

/// Reads the own branches of tasks again.
#[derive(Debug)]
pub struct Windows {
    own: OwnCode,
    wanted: HashMap<TaskKey, Vec<Wanted>>,
}

impl Windows {
    /// Those where the tasks of `second` differ from their partners in `first`, and the branches to
    /// read. `None` if there are none.
    pub fn of(first: &Executions, second: &Executions) -> Option<(Self, Range)> {
        let mut wanted: HashMap<TaskKey, Vec<Wanted>> = HashMap::new();
        let mut range: Option<Range> = None;
        for parted in second.stretches.iter().filter_map(|s| s.parted.as_ref()) {
            let Some(stretch) = first.stretches.get(parted.partner) else {
                continue;
            };
            if stretch.sum.count <= parted.window as u64 * WINDOW {
                continue;
            }
            let before = parted.window.checked_sub(1);
            let before = before.and_then(|before| stretch.sums.get(before).copied());
            let after = stretch.sums.get(parted.window).copied();
            let (expected, last) = after.unwrap_or((stretch.sum, stretch.last));
            let (sum, first, from) = match before {
                // The branch before it tells where the line begins.
                Some((sum, record)) => (sum, record + 1, record),
                None => (Sum::default(), stretch.first, stretch.first),
            };
            wanted.entry(stretch.task).or_default().push(Wanted {
                stretch: parted.partner,
                first,
                last,
                sum,
                expected,
                branches: Vec::new(),
            });
            let to = last + 1;
            let range = range.get_or_insert(Range {
                from,
                to,
                whole: true,
            });
            (range.from, range.to) = (range.from.min(from), range.to.max(to));
        }
        let range = range?;
        let windows = Self {
            own: first.own.again(),
            wanted,
        };
        Some((windows, range))
    }

    /// The branches with their numbers, by the number of the stretch: only those that were found.
    pub(super) fn take(&mut self) -> HashMap<usize, Vec<(Branch, u64)>> {
        let all = mem::take(&mut self.wanted).into_values().flatten();
        let found = all.filter(|wanted| wanted.sum == wanted.expected);
        found
            .map(|wanted| (wanted.stretch, wanted.branches))
            .collect()
    }
}

impl Watch for Windows {
    const SEES: Sees = Sees::All;

    fn mark(&mut self, new: &New<'_>) -> u32 {
        self.own.mark(new)
    }

    fn record(&mut self, seen: &Seen<'_>) {
        let Some((_, key)) = self.own.task(seen) else {
            return;
        };
        let (Some(all), Some(branch)) = (self.wanted.get_mut(&key), self.own.branch(seen.mark))
        else {
            return;
        };
        for wanted in all {
            if (wanted.first..=wanted.last).contains(&seen.record) {
                wanted.sum.add(branch.hash());
                wanted.branches.push((*branch, seen.record));
            }
        }
    }
}
