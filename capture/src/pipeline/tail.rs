//! The last branches of a trace.

use std::collections::{HashMap, VecDeque};
use std::io::Cursor;

use vbts_trace::{Branch, Error, Event, Item, Reader, Run, Writer};

use super::queue::WriterError;
use super::snapshot::TaskSnapshot;
use crate::sink::Sink;
use crate::task::Task;

/// Branches of a segment, at least. Larger ones compress better.
const MIN_SEGMENT: u64 = 1 << 16;
/// Segments that hold the branches to keep.
const SEGMENTS: u64 = 8;
/// Bytes of a segment at most: the events between two branches have no bound.
const MAX_SEGMENT: usize = 64 << 20;
/// Bytes of all segments at most.
const MAX_BYTES: usize = 2 << 30;

/// Keeps the last branches in memory, encoded, with the events between them.
#[derive(Debug)]
pub(crate) struct TailBuffer {
    limit: u64,
    /// Complete segments, oldest first.
    segments: VecDeque<Segment>,
    current: Writer<Vec<u8>>,
    /// Branches of each stream in `current`.
    counts: HashMap<u64, u64>,
    /// The state of the tasks at the first segment.
    known: TaskSnapshot,
    /// Branches in `segments`, and their size in bytes.
    records: u64,
    bytes: usize,
    /// Branches that were dropped.
    dropped: u64,
}

/// A part of the trace, which is a trace of its own.
#[derive(Debug)]
struct Segment {
    bytes: Vec<u8>,
    records: u64,
    /// Branches of each stream.
    counts: HashMap<u64, u64>,
}

impl Segment {
    /// Updates `known` with the events and branches of this segment.
    fn pass(self, known: &mut TaskSnapshot) -> Result<(), Error> {
        let mut reader = Reader::new(Cursor::new(self.bytes))?;
        reader.events_before(u64::MAX, |number, event| known.event(number, event))?;
        for (number, count) in self.counts {
            known.left_out(number, count);
        }
        Ok(())
    }
}

impl TailBuffer {
    /// Keeps the last `limit` branches.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub(crate) fn new(limit: u64) -> Result<Self, Error> {
        Ok(Self {
            limit,
            segments: VecDeque::new(),
            current: segment()?,
            counts: HashMap::new(),
            known: TaskSnapshot::default(),
            records: 0,
            bytes: 0,
            dropped: 0,
        })
    }

    /// Branches so far, with those that were dropped.
    pub(crate) fn records(&self) -> u64 {
        self.dropped + self.records + self.current.records()
    }

    /// Adds branches of a task or processor, oldest first.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub(crate) fn branches(&mut self, number: u64, branches: &[Branch]) -> Result<(), Error> {
        *self.counts.entry(number).or_default() += branches.len() as u64;
        self.current.branches(number, branches)?;
        self.end_segment()
    }

    /// Adds an event of a task or processor.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub(crate) fn event(&mut self, number: u64, event: &Event) -> Result<(), Error> {
        self.current.event(number, event)?;
        self.end_segment()
    }

    /// Ends the segment if it is large, and drops old ones.
    fn end_segment(&mut self) -> Result<(), Error> {
        let size = (self.limit / SEGMENTS).max(MIN_SEGMENT);
        if self.current.records() < size && self.current.output().len() < MAX_SEGMENT {
            return Ok(());
        }
        self.close_segment()?;
        while let Some(first) = self.segments.front()
            && (self.records - first.records >= self.limit || self.bytes > MAX_BYTES)
            && let Some(first) = self.segments.pop_front()
        {
            self.records -= first.records;
            self.dropped += first.records;
            self.bytes -= first.bytes.len();
            first.pass(&mut self.known)?;
        }
        Ok(())
    }

    fn close_segment(&mut self) -> Result<(), Error> {
        let mut closed = std::mem::replace(&mut self.current, segment()?);
        let records = closed.records();
        closed.finish(&vbts_trace::Summary::default())?;
        let bytes = std::mem::take(closed.output());
        self.records += records;
        self.bytes += bytes.len();
        self.segments.push_back(Segment {
            bytes,
            records,
            counts: std::mem::take(&mut self.counts),
        });
        Ok(())
    }

    /// Passes the kept branches, and the events between them, to `take`. If earlier branches were
    /// dropped, the events that describe the tasks at the first kept branch come first. Returns the
    /// number of dropped branches.
    ///
    /// # Errors
    /// `take` fails, or there is no memory for the compression.
    pub(crate) fn finish<E: From<Error>>(
        mut self,
        mut take: impl FnMut(Item<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.close_segment()?;
        let mut skip = self.records.saturating_sub(self.limit);
        let left_out = self.dropped + skip;
        let mut known = (left_out > 0).then_some(self.known);
        for segment in self.segments {
            let mut reader = Reader::new(Cursor::new(segment.bytes))?;
            while let Some(item) = reader.next_item()? {
                let Some(before) = &mut known else {
                    take(item)?;
                    continue;
                };
                match item {
                    Item::Event { task, event } => before.event(task, event),
                    Item::Branches { task, branches } => {
                        let count = skip.min(branches.len() as u64);
                        skip -= count;
                        before.left_out(task, count);
                        let branches = branches.get(count as usize..).unwrap_or_default();
                        if branches.is_empty() {
                            continue;
                        }
                        for (task, event) in known.take().unwrap_or_default().into_events() {
                            take(Item::Event { task, event })?;
                        }
                        take(Item::Branches { task, branches })?;
                    }
                }
            }
        }
        Ok(left_out)
    }
}

impl Sink for TailBuffer {
    type Error = WriterError;

    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> Result<(), WriterError> {
        Ok(Self::branches(self, task.number, branches)?)
    }

    fn event(&mut self, task: &Task, event: &Event) -> Result<(), WriterError> {
        Ok(Self::event(self, task.number, event)?)
    }
}

/// A trace without facts about the run.
fn segment() -> Result<Writer<Vec<u8>>, Error> {
    Writer::new(Vec::new(), &Run::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Things, each with its processor.
    type Of<T> = Vec<(u64, T)>;

    fn branch(n: u64) -> Branch {
        Branch {
            from: n,
            to: n.wrapping_mul(3),
        }
    }

    /// What is left of `count` branches, of two processors in turn, where the address space is the
    /// number of the branch that follows, in millions.
    fn kept(limit: u64, count: u64) -> (u64, Of<Branch>, Of<Event>) {
        let mut last = TailBuffer::new(limit).unwrap();
        for n in 0..count {
            if n % 1_000_000 == 0 {
                let cr3 = n / 1_000_000;
                last.event(n % 2, &Event::AddressSpace { cr3, time: cr3 })
                    .unwrap();
            }
            last.branches(n % 2, &[branch(n)]).unwrap();
        }
        assert_eq!(last.records(), count);
        let (mut all, mut events) = (Vec::new(), Vec::new());
        let left_out = last.finish(|item| {
            match item {
                Item::Branches { task, branches } => {
                    all.extend(branches.iter().map(|branch| (task, *branch)));
                }
                Item::Event { task, event } => events.push((task, event)),
            }
            Ok::<_, Error>(())
        });
        (left_out.unwrap(), all, events)
    }

    #[test]
    fn the_last_branches_are_kept_with_what_was_known_before() {
        const COUNT: u64 = 1_500_000;
        for limit in [1, 100, 70_000, 600_000, COUNT, COUNT + 1] {
            let (left_out, all, events) = kept(limit, COUNT);
            let first = COUNT.saturating_sub(limit);
            assert_eq!(left_out, first, "{limit}");
            let expected = (first..COUNT).map(|n| (n % 2, branch(n)));
            assert!(all.into_iter().eq(expected), "{limit}");
            let space = |cr3| (0, Event::AddressSpace { cr3, time: cr3 });
            let expected = match first < 1_000_000 {
                true => vec![space(0), space(1)],
                false => vec![space(1)],
            };
            assert_eq!(events, expected, "{limit}");
        }
    }
}
