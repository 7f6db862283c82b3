//! The last branches of a recording.

use std::collections::{BTreeMap, VecDeque};
use std::io::Cursor;

use vbts_trace::{Branch, Error, Event, Item, Reader, Run, Writer};

/// Branches of a segment, at least. Larger ones compress better.
const MIN_SEGMENT: u64 = 1 << 16;
/// Segments that hold the branches to keep.
const SEGMENTS: u64 = 8;
/// Bytes of a segment at most: the events between two branches have no bound.
const MAX_SEGMENT: usize = 64 << 20;
/// Bytes of all segments at most.
const MAX_BYTES: usize = 2 << 30;

/// Keeps the last branches in memory, encoded. Each segment is a trace of its own, which begins
/// with what is known about each processor.
#[derive(Debug)]
pub struct Last {
    limit: u64,
    /// Complete segments, oldest first, with the number of their branches.
    segments: VecDeque<(Vec<u8>, u64)>,
    current: Writer<Vec<u8>>,
    known: Known,
    /// Branches in `segments`, and their size in bytes.
    records: u64,
    bytes: usize,
    /// Branches that were dropped.
    dropped: u64,
}

/// The last [`Event::AddressSpace`] and [`Event::Switch`] of each processor.
#[derive(Debug, Default)]
struct Known(BTreeMap<u64, [Option<Event>; 2]>);

impl Known {
    /// Notes an event. Returns whether it was not known.
    fn note(&mut self, processor: u64, event: &Event) -> bool {
        let place = match event {
            Event::AddressSpace { .. } => 0,
            Event::Switch { .. } => 1,
            _ => return true,
        };
        let slot = &mut self.0.entry(processor).or_default()[place];
        let is_new = slot.as_ref() != Some(event);
        *slot = Some(event.clone());
        is_new
    }

    /// Writes all.
    fn write(&self, writer: &mut Writer<Vec<u8>>) -> Result<(), Error> {
        for (processor, events) in &self.0 {
            for event in events.iter().flatten() {
                writer.event(*processor, event)?;
            }
        }
        Ok(())
    }
}

impl Last {
    /// Keeps the last `limit` branches.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub fn new(limit: u64) -> Result<Self, Error> {
        Ok(Self {
            limit,
            segments: VecDeque::new(),
            current: segment()?,
            known: Known::default(),
            records: 0,
            bytes: 0,
            dropped: 0,
        })
    }

    /// Branches so far, with those that were dropped.
    pub fn records(&self) -> u64 {
        self.dropped + self.records + self.current.records()
    }

    /// Adds branches of a processor, oldest first.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub fn branches(&mut self, processor: u64, branches: &[Branch]) -> Result<(), Error> {
        self.current.branches(processor, branches)?;
        self.end_segment()
    }

    /// Adds an event of a processor.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub fn event(&mut self, processor: u64, event: &Event) -> Result<(), Error> {
        self.known.note(processor, event);
        self.current.event(processor, event)?;
        self.end_segment()
    }

    /// Ends the segment if it is large, and drops old ones.
    fn end_segment(&mut self) -> Result<(), Error> {
        let size = (self.limit / SEGMENTS).max(MIN_SEGMENT);
        if self.current.records() < size && self.current.output().len() < MAX_SEGMENT {
            return Ok(());
        }
        self.close_segment()?;
        while let Some((bytes, records)) = self.segments.front()
            && (self.records - records >= self.limit || self.bytes > MAX_BYTES)
        {
            self.records -= records;
            self.dropped += records;
            self.bytes -= bytes.len();
            self.segments.pop_front();
        }
        self.known.write(&mut self.current)
    }

    fn close_segment(&mut self) -> Result<(), Error> {
        let mut closed = std::mem::replace(&mut self.current, segment()?);
        let records = closed.records();
        closed.finish(&vbts_trace::Summary::default())?;
        let bytes = std::mem::take(closed.output());
        self.records += records;
        self.bytes += bytes.len();
        self.segments.push_back((bytes, records));
        Ok(())
    }

    /// Writes the branches to `writer`, and calls `drain` now and then, which may take its output.
    /// Returns the number of older branches, which are left out.
    ///
    /// # Errors
    /// `drain` fails, or there is no memory for the compression.
    pub fn finish<E: From<Error>>(
        mut self,
        writer: &mut Writer<Vec<u8>>,
        mut drain: impl FnMut(&mut Writer<Vec<u8>>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.close_segment()?;
        let mut skip = self.records.saturating_sub(self.limit);
        let left_out = self.dropped + skip;
        let (mut known, mut begun) = (Known::default(), false);
        for (bytes, _) in self.segments {
            let mut reader = Reader::new(Cursor::new(bytes))?;
            while let Some(item) = reader.next_item()? {
                match item {
                    Item::Event { task, event } => {
                        if known.note(task, &event) && begun {
                            writer.event(task, &event)?;
                        }
                    }
                    Item::Branches { task, branches } => {
                        let count = skip.min(branches.len() as u64);
                        skip -= count;
                        let kept = branches.get(count as usize..).unwrap_or_default();
                        if kept.is_empty() {
                            continue;
                        }
                        if !std::mem::replace(&mut begun, true) {
                            known.write(writer)?;
                        }
                        writer.branches(task, kept)?;
                        drain(writer)?;
                    }
                }
            }
        }
        Ok(left_out)
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
        let mut last = Last::new(limit).unwrap();
        for n in 0..count {
            if n % 1000 == 0 {
                let cr3 = n / 1_000_000;
                last.event(n % 2, &Event::AddressSpace { cr3, time: cr3 })
                    .unwrap();
            }
            last.branches(n % 2, &[branch(n)]).unwrap();
        }
        assert_eq!(last.records(), count);
        let mut writer = segment().unwrap();
        let left_out = last.finish(&mut writer, |_| Ok::<_, Error>(())).unwrap();
        writer.finish(&vbts_trace::Summary::default()).unwrap();
        let file = std::mem::take(writer.output());
        let mut reader = Reader::new(Cursor::new(file)).unwrap();
        let (mut all, mut events) = (Vec::new(), Vec::new());
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Branches { task, branches } => {
                    all.extend(branches.iter().map(|branch| (task, *branch)));
                }
                Item::Event { task, event } => events.push((task, event)),
            }
        }
        (left_out, all, events)
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
