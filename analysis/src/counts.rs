//! How often each instruction of a module was executed.

use std::collections::HashMap;

use vbts_trace::profile::Watch;
use vbts_trace::profile::modules::ModuleId;

use super::Loaded;

/// Counts of the instructions of a module, and of its branches.
#[derive(Debug, Default)]
pub(crate) struct ModuleCounts {
    /// Offsets at which the count changes, sorted.
    starts: Vec<u64>,
    /// The largest counts of 2^n neighbours, for each n.
    largest: Vec<Vec<u64>>,
    /// How often the branch at an offset was taken.
    taken: HashMap<u64, u64>,
}

/// The counts of all modules.
#[derive(Debug, Default)]
pub(crate) struct AllCounts(HashMap<ModuleId, ModuleCounts>);

impl AllCounts {
    /// The counts of all modules.
    pub(crate) fn of<W: Watch>(profile: &Loaded<W>) -> Self {
        let mut changes: HashMap<ModuleId, Vec<(u64, bool, u64)>> = HashMap::new();
        for (line, count) in profile.lines().filter(|(_, count)| count.instructions > 0) {
            let after = line.last.wrapping_add(u64::from(line.complete));
            if after > line.start.offset {
                let changes = changes.entry(line.start.module).or_default();
                changes.push((line.start.offset, true, count.count));
                changes.push((after, false, count.count));
            }
        }
        let mut all = Self::default();
        for (module, mut changes) in changes {
            changes.sort_unstable();
            all.0.insert(module, ModuleCounts::new(&changes));
        }
        for (edge, count) in profile.edges().filter(|(edge, _)| !edge.is_event) {
            if let Some(counts) = all.0.get_mut(&edge.from.module) {
                *counts.taken.entry(edge.from.offset).or_default() += count;
            }
        }
        all
    }

    /// The counts of a module, if its code was executed.
    pub(crate) fn module(&self, module: ModuleId) -> Option<&ModuleCounts> {
        self.0.get(&module)
    }
}

impl ModuleCounts {
    /// `changes` are sorted: an offset, whether the count becomes larger there, and by how much.
    fn new(changes: &[(u64, bool, u64)]) -> Self {
        let (mut starts, mut values) = (Vec::<u64>::new(), Vec::<u64>::new());
        let mut value = 0_u64;
        for (offset, adds, count) in changes {
            value = match adds {
                true => value.wrapping_add(*count),
                false => value.wrapping_sub(*count),
            };
            if starts.last() == Some(offset) {
                values.pop();
            } else {
                starts.push(*offset);
            }
            values.push(value);
        }
        let mut largest = vec![values];
        while let Some(last) = largest.last()
            && let width = 1_usize << (largest.len() - 1)
            && last.len() > width
        {
            let pairs = last.iter().zip(last.iter().skip(width));
            let next = pairs.map(|(a, b)| *a.max(b)).collect();
            largest.push(next);
        }
        Self {
            starts,
            largest,
            taken: HashMap::new(),
        }
    }

    /// How often the instruction at `offset` was executed.
    pub(crate) fn at(&self, offset: u64) -> u64 {
        let after = self.starts.partition_point(|start| *start <= offset);
        let at = after.checked_sub(1);
        let value = at.and_then(|at| self.largest.first()?.get(at));
        value.copied().unwrap_or(0)
    }

    /// How often the instruction in the code from `start` to `end` was executed that was executed
    /// most.
    pub(crate) fn most(&self, start: u64, end: u64) -> u64 {
        let first = self.starts.partition_point(|at| *at <= start);
        let last = self.starts.partition_point(|at| *at < end);
        let inside = match last.checked_sub(first) {
            Some(count @ 1..) => {
                let level = count.ilog2() as usize;
                let row = self.largest.get(level);
                let of = |at: usize| row.and_then(|row| row.get(at)).copied().unwrap_or(0);
                of(first).max(of(last - (1 << level)))
            }
            _ => 0,
        };
        self.at(start).max(inside)
    }

    /// How often the branch at `offset` was taken.
    pub(crate) fn taken(&self, offset: u64) -> u64 {
        self.taken.get(&offset).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_lines() {
        let lines = [
            (10, 20, 5),
            (10, 15, 2),
            (30, 31, 7),
            (20, 25, 1),
            (12, 13, 100),
        ];
        let mut changes = Vec::new();
        for (start, end, count) in lines {
            changes.push((start, true, count));
            changes.push((end, false, count));
        }
        changes.sort_unstable();
        let counts = ModuleCounts::new(&changes);
        let at = |offset: u64| -> u64 {
            let inside = lines
                .iter()
                .filter(|line| (line.0..line.1).contains(&offset));
            inside.map(|line| line.2).sum()
        };
        for start in 0..40 {
            assert_eq!(counts.at(start), at(start), "{start}");
            for end in start + 1..40 {
                let most = (start..end).map(at).max().unwrap();
                assert_eq!(counts.most(start, end), most, "{start}..{end}");
            }
        }
        assert_eq!(ModuleCounts::default().most(0, 10), 0);
    }
}
