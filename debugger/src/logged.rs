//! Branches that a replay logs: which ones, and the last of them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use vbts_cpu::{LogBuffer, LogEntry, LogScope, LogSink};
use vbts_devices::lock;
use vbts_gdb::Branch;

/// The branches to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Those of the thread with this number, in user mode.
    Thread(u32),
    /// Those of the thread with this number, also in the kernel.
    Task(u32),
    /// Those of all tasks of the program, in user mode.
    Program,
    /// Those of a processor.
    Processor(usize),
    /// Those of all processors.
    Machine,
}

impl Selection {
    /// The number of the thread.
    pub(crate) fn thread(self) -> Option<u32> {
        match self {
            Self::Thread(thread) | Self::Task(thread) => Some(thread),
            Self::Program | Self::Processor(_) | Self::Machine => None,
        }
    }

    pub(crate) fn scope(self) -> LogScope {
        match self {
            Self::Thread(_) | Self::Program => LogScope::USER,
            _ => LogScope::all(),
        }
    }
}

/// Branches that have been logged.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    pub selection: Selection,
    /// The numbers of all tasks, if they are selected.
    pub tasks: BTreeSet<u32>,
    /// Which processors execute the thread.
    pub is_current: Vec<bool>,
    /// The processor of the present entry.
    pub processor: usize,
    /// Branches since the log has begun.
    pub count: u64,
    /// The last ones, `limit` at most, oldest first.
    pub last: VecDeque<Branch>,
    pub limit: usize,
}

/// The end of a log.
#[derive(Debug)]
pub(crate) struct Sink(pub Arc<Mutex<Logged>>);

impl LogSink for Sink {
    fn exchange(&mut self, full: LogBuffer) -> LogBuffer {
        let mut logged = lock(&self.0);
        for entry in full.entries() {
            match entry {
                LogEntry::Processor { id, .. } => {
                    logged.processor = usize::try_from(id).unwrap_or(usize::MAX);
                }
                LogEntry::Task { ids, .. } => logged.note_task(ids as u32),
                LogEntry::Branch { from, to } if logged.is_selected(from) => {
                    logged.push(Branch { from, to });
                }
                _ => {}
            }
        }
        full
    }
}

/// Returns whether Linux has `address` for itself.
pub(crate) fn is_kernel(address: u64) -> bool {
    (address as i64) < 0
}

impl Logged {
    pub(crate) fn has(&self, thread: u32) -> bool {
        self.selection.thread() == Some(thread) || self.tasks.contains(&thread)
    }

    /// The processor of the present entry executes this thread from here on.
    fn note_task(&mut self, thread: u32) {
        let is_thread = self.has(thread);
        if let Some(is_current) = self.is_current.get_mut(self.processor) {
            *is_current = is_thread;
        }
    }

    /// Returns whether a branch of the present processor from `from` is one to log.
    fn is_selected(&self, from: u64) -> bool {
        let is_current = self.is_current.get(self.processor) == Some(&true);
        match self.selection {
            // A return from the kernel is no branch of the program.
            Selection::Thread(_) | Selection::Program => is_current && !is_kernel(from),
            Selection::Task(_) => is_current,
            Selection::Processor(processor) => processor == self.processor,
            Selection::Machine => true,
        }
    }

    fn push(&mut self, branch: Branch) {
        self.count += 1;
        if self.last.len() >= self.limit {
            self.last.pop_front();
        }
        if self.limit > 0 {
            self.last.push_back(branch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_the_last_branches_of_its_thread() {
        let empty = |limit| Logged {
            selection: Selection::Machine,
            tasks: BTreeSet::new(),
            is_current: Vec::new(),
            processor: 0,
            count: 0,
            last: VecDeque::new(),
            limit,
        };
        let mut logged = empty(2);
        let branch = |from| Branch { from, to: from + 1 };
        (1..=5).for_each(|from| logged.push(branch(from)));
        assert_eq!(
            (logged.count, logged.last),
            (5, [branch(4), branch(5)].into())
        );
        let mut none = empty(0);
        none.push(branch(1));
        assert_eq!((none.count, none.last.len()), (1, 0));
    }

    #[test]
    fn branches_are_those_of_the_thread_or_of_the_processor() {
        let (user, kernel) = (0x1000, 0xFFFF_FFFF_8100_0000);
        let logged = |selection, processor| Logged {
            selection,
            tasks: BTreeSet::new(),
            is_current: vec![false, true],
            processor,
            count: 0,
            last: VecDeque::new(),
            limit: 0,
        };
        let selects = |selection| {
            [(0, user), (1, user), (1, kernel)]
                .map(|(processor, from)| logged(selection, processor).is_selected(from))
        };
        assert_eq!(selects(Selection::Thread(7)), [false, true, false]);
        assert_eq!(selects(Selection::Task(7)), [false, true, true]);
        assert_eq!(selects(Selection::Processor(0)), [true, false, false]);
        assert_eq!(selects(Selection::Machine), [true; 3]);
        let mut logged = logged(Selection::Task(7), 0);
        logged.note_task(7);
        assert_eq!(logged.is_current, [true, true]);
        logged.note_task(8);
        assert_eq!(logged.is_current, [false, true]);
    }
}
