//! The records of one drain of a task's buffer: branches, and the marks of the guest's kernel
//! between them.

use vbts_trace::{Branch, Event};

use crate::branch_pool::{BranchList, BranchPool};
use crate::sink::Sink;
use crate::task::Task;

/// Records that a [`Sink`] receives at a time. A mark counts as one.
pub(crate) const PIECE: usize = 4096;

/// A record of the guest's kernel that is no branch. Times are `CLOCK_MONOTONIC` of the guest in
/// ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The task arrives on a processor.
    Arrive(u64),
    /// The task departs from a processor.
    Depart(u64),
    /// So many branches are left out. The kernel has no such records: a filter adds them.
    Filtered(u64),
    /// The kernel has marked the record invalid.
    Invalid,
}

impl Mark {
    /// Converts the mark to the event of a trace.
    pub fn event(self) -> Event {
        match self {
            Self::Arrive(time) => Event::Arrive { time },
            Self::Depart(time) => Event::Depart { time },
            Self::Filtered(branches) => Event::Filtered(branches),
            Self::Invalid => Event::Invalid,
        }
    }
}

/// Records of a task, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    branches: BranchList,
    /// Each with the number of branches before it.
    marks: Vec<(usize, Mark)>,
}

/// A position between two [`Records`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    branch: usize,
    mark: usize,
}

impl Records {
    /// Creates an empty list with memory of `pool` for `branches`.
    pub fn with_capacity(branches: usize, pool: &BranchPool) -> Self {
        Self {
            branches: pool.list(branches),
            marks: Vec::new(),
        }
    }

    /// Appends a branch.
    #[inline]
    pub fn push(&mut self, branch: Branch) {
        self.branches.push(branch);
    }

    /// Appends branches.
    #[inline]
    pub(crate) fn extend(&mut self, branches: impl ExactSizeIterator<Item = Branch>) {
        self.branches.extend(branches);
    }

    /// Appends a mark.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.push((self.branches.len(), mark));
    }

    /// Removes all records and keeps their memory.
    pub fn clear(&mut self) {
        self.branches.clear();
        self.marks.clear();
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty() && self.marks.is_empty()
    }

    /// Returns the memory of the records in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.branches.as_slice()) + size_of_val(self.marks.as_slice())
    }

    /// Returns the position after the last record.
    pub fn end(&self) -> Position {
        Position {
            branch: self.branches.len(),
            mark: self.marks.len(),
        }
    }

    /// Returns the record at `position` if it is a mark.
    fn mark_at(&self, position: Position) -> Option<Mark> {
        let (branch, mark) = self.marks.get(position.mark)?;
        (*branch == position.branch).then_some(*mark)
    }

    /// Returns the time of the segment at `position`, if its first record is an arrival.
    pub fn arrival(&self, position: Position) -> Option<u64> {
        match self.mark_at(position)? {
            Mark::Arrive(time) => Some(time),
            _ => None,
        }
    }

    /// Returns the time up to which the task's records are complete, if the last is a departure.
    pub(crate) fn departure(&self) -> Option<u64> {
        match self.marks.last()? {
            (at, Mark::Depart(time)) if *at == self.branches.len() => Some(*time),
            _ => None,
        }
    }

    /// Returns the end of the segment at `position` and of all after it that begin before `time`.
    pub(crate) fn segments_before(&self, position: Position, time: u64) -> Position {
        let first = position.mark + usize::from(self.mark_at(position).is_some());
        let later = self.marks.iter().enumerate().skip(first);
        let mut later = later
            .filter(|(_, (_, mark))| matches!(mark, Mark::Arrive(arrival) if *arrival >= time));
        match later.next() {
            Some((mark, (branch, _))) => Position {
                branch: *branch,
                mark,
            },
            None => self.end(),
        }
    }

    /// Passes the records from `start` to `end` to `sink`, at most [`PIECE`] at a time.
    ///
    /// # Errors
    /// The sink fails.
    pub fn give<S: Sink>(
        &self,
        start: Position,
        end: Position,
        task: &mut Task,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let marks = self.marks.get(start.mark..end.mark).unwrap_or_default();
        // Records up to the end of the piece.
        let mut room = PIECE;
        let mut at = start.branch;
        for (to, mark) in marks {
            self.give_branches(at..*to, &mut room, task, sink)?;
            sink.event(task, &mark.event())?;
            room = room
                .checked_sub(1)
                .filter(|room| *room > 0)
                .unwrap_or(PIECE);
            at = *to;
        }
        self.give_branches(at..end.branch, &mut room, task, sink)
    }

    /// Passes branches to `sink`. The piece has `room` for more records.
    fn give_branches<S: Sink>(
        &self,
        range: std::ops::Range<usize>,
        room: &mut usize,
        task: &mut Task,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let mut rest = self.branches.get(range).unwrap_or_default();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*room));
            sink.branches(task, piece)?;
            rest = after;
            *room -= piece.len();
            if *room == 0 {
                *room = PIECE;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::guest_records::parse_drained;

    /// Records whose words are in the order of those that the kernel writes.
    pub(crate) fn records(words: &[[u64; 3]]) -> Records {
        let mut records = Records::default();
        words
            .iter()
            .for_each(|words| parse_drained(*words, false, &mut records));
        records
    }

    /// The branches of `records`, and the events between them.
    pub(crate) fn contents(records: &Records) -> Vec<Result<Branch, Event>> {
        struct Contents(Vec<Result<Branch, Event>>);
        impl Sink for Contents {
            type Error = std::convert::Infallible;

            fn branches(&mut self, _: &mut Task, all: &[Branch]) -> Result<(), Self::Error> {
                self.0.extend(all.iter().copied().map(Ok));
                Ok(())
            }

            fn event(&mut self, _: &Task, event: &Event) -> Result<(), Self::Error> {
                self.0.push(Err(event.clone()));
                Ok(())
            }
        }
        let mut contents = Contents(Vec::new());
        let (start, end) = (Position::default(), records.end());
        let Ok(()) = records.give(start, end, &mut Task::default(), &mut contents);
        contents.0
    }

    /// The calls that a sink has received: the number of branches of each call, and events.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Calls(Vec<Result<usize, Event>>);

    impl Sink for Calls {
        type Error = std::convert::Infallible;

        fn branches(&mut self, _: &mut Task, branches: &[Branch]) -> Result<(), Self::Error> {
            self.0.push(Ok(branches.len()));
            Ok(())
        }

        fn event(&mut self, _: &Task, event: &Event) -> Result<(), Self::Error> {
            self.0.push(Err(event.clone()));
            Ok(())
        }
    }

    #[test]
    fn marks_divide_branches_into_segments_and_count_as_records() {
        let mut records = Records::default();
        records.mark(Mark::Arrive(5));
        (0..5000).for_each(|_| records.push(Branch::default()));
        records.mark(Mark::Depart(6));
        records.mark(Mark::Arrive(9));
        records.push(Branch::default());
        let start = Position::default();
        assert_eq!(records.arrival(start), Some(5));
        assert_eq!(records.departure(), None);
        let middle = records.segments_before(start, 9);
        assert_eq!(records.segments_before(start, 5), middle);
        assert_eq!(records.segments_before(start, 10), records.end());
        assert_eq!(records.arrival(middle), Some(9));
        assert_eq!(records.arrival(records.end()), None);
        assert_eq!(records.segments_before(middle, 1), records.end());
        let mut calls = Calls::default();
        let mut task = Task::default();
        let Ok(()) = records.give(start, middle, &mut task, &mut calls);
        let Ok(()) = records.give(middle, records.end(), &mut task, &mut calls);
        let expected = [
            Err(Event::Arrive { time: 5 }),
            Ok(4095),
            Ok(905),
            Err(Event::Depart { time: 6 }),
            Err(Event::Arrive { time: 9 }),
            Ok(1),
        ];
        assert_eq!(calls.0, expected);
        records.mark(Mark::Depart(10));
        assert_eq!(records.departure(), Some(10));
    }
}
