//! Encodes the segments of a btrace file at the same time, each in a thread: one thread encodes a
//! branch in about the time in which native code records two.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::available_parallelism;

use vbts_host::Workers;
use vbts_host::sandbox::{ThreadKind, confine_thread};
use vbts_trace::{BlockEncoder, Branch, EncodeBlocks, EncodedBlock, Error, Event, Writer};

/// Threads at most. Each takes memory for the tables of a block, and for the branches that wait.
const MAX_THREADS: usize = 4;
/// Processors of the host for each thread: others run the guest, and order the records.
const PROCESSORS: usize = 2;
/// Branches of a batch: 512 KiB.
const BATCH_BRANCHES: usize = 1 << 15;
/// Entries of a batch, each of some branches or of an event.
const BATCH_ENTRIES: usize = 1 << 12;
/// Bytes of the events of a batch.
const BATCH_BYTES: usize = 1 << 20;
/// Batches of a segment that wait for its thread: 48 MiB. The one that adds more waits, too.
const QUEUED: usize = 96;

/// An entry of a batch.
#[derive(Debug)]
enum Entry {
    /// So many branches of a task.
    Branches { task: u64, count: usize },
    /// An event of a task.
    Event { task: u64, event: Event },
}

/// Branches and events on their way to a thread.
#[derive(Debug, Default)]
struct Batch {
    entries: Vec<Entry>,
    branches: Vec<Branch>,
    /// Bytes of the events.
    bytes: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.branches.len() >= BATCH_BRANCHES
            || self.entries.len() >= BATCH_ENTRIES
            || self.bytes >= BATCH_BYTES
    }

    fn encode(&self, encoder: &mut BlockEncoder) {
        let mut branches = self.branches.as_slice();
        for entry in &self.entries {
            match entry {
                Entry::Branches { task, count } => {
                    if let Some((these, rest)) = branches.split_at_checked(*count) {
                        encoder.branches(*task, these);
                        branches = rest;
                    }
                }
                Entry::Event { task, event } => encoder.event(*task, event),
            }
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.branches.clear();
        self.bytes = 0;
    }
}

/// Writes a btrace file to memory, with the threads of [`start`] or without.
pub(crate) type BtraceWriter = Writer<Vec<u8>, Box<dyn EncodeBlocks + Send>>;

/// The blocks of a segment, and the encoder that has encoded them.
type Encoded = (Vec<Result<EncodedBlock, Error>>, BlockEncoder);

/// Starts threads that encode blocks, if the host has processors for more than one. Otherwise the
/// calling thread encodes, because another one would only wait for a processor.
///
/// # Errors
/// The host starts no more threads, or has no memory for the compression.
pub(crate) fn start() -> io::Result<Box<dyn EncodeBlocks + Send>> {
    let processors = available_parallelism().map_or(1, usize::from);
    match processors / PROCESSORS {
        0 | 1 => Ok(Box::new(BlockEncoder::new().map_err(io::Error::other)?)),
        threads => Ok(Box::new(ParallelEncoder::start(threads.min(MAX_THREADS))?)),
    }
}

/// Encodes blocks in several threads.
#[derive(Debug)]
struct ParallelEncoder {
    workers: Workers,
    /// Encoders without a segment.
    idle: Vec<BlockEncoder>,
    /// The branches before the segment, and the time of the last event before it.
    start: (u64, u64),
    /// The way to the thread of the segment, if it has one.
    thread: Option<SyncSender<Batch>>,
    /// The last branches and events, which the thread does not have yet.
    batch: Batch,
    /// The segments whose blocks are not complete, oldest first.
    segments: VecDeque<Receiver<Encoded>>,
    /// Complete blocks, and errors.
    blocks: VecDeque<Result<EncodedBlock, Error>>,
    /// Batches that can be used again, and the way for those that follow.
    used: Receiver<Batch>,
    give_back: Sender<Batch>,
    /// Branches so far.
    records: u64,
    /// Time of the last event.
    time: u64,
}

impl ParallelEncoder {
    /// # Errors
    /// The host starts no more threads, or has no memory for the compression.
    fn start(threads: usize) -> io::Result<Self> {
        let idle: Result<_, Error> = (0..threads).map(|_| BlockEncoder::new()).collect();
        let (give_back, used) = channel();
        Ok(Self {
            workers: Workers::start(threads)?,
            idle: idle.map_err(io::Error::other)?,
            start: (0, 0),
            thread: None,
            batch: Batch::default(),
            segments: VecDeque::new(),
            blocks: VecDeque::new(),
            used,
            give_back,
            records: 0,
            time: 0,
        })
    }

    /// Passes the batch to the thread of the segment, which begins with it if it has none.
    fn send(&mut self) {
        if self.thread.is_none() {
            self.thread = self.begin_segment();
        }
        let next = self.used.try_recv().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, next);
        if let Some(thread) = &self.thread {
            // A thread that has panicked takes nothing. Its blocks are missed later.
            let _ = thread.send(batch);
        }
    }

    /// Lets a thread encode a segment. Returns the way for its batches.
    fn begin_segment(&mut self) -> Option<SyncSender<Batch>> {
        // Each of the segments before has one of the encoders.
        while self.idle.is_empty() && self.receive(true) {}
        let Some(mut encoder) = self.idle.pop() else {
            self.blocks.push_back(Err(lost()));
            return None;
        };
        let (first, time) = self.start;
        encoder.begin_segment(first, time);
        let (thread, batches) = sync_channel(QUEUED);
        let (encoded, segment) = sync_channel(1);
        let give_back = self.give_back.clone();
        self.workers.run(move || {
            // Without a filter of its own, the thread has that of the process.
            let _ = confine_thread(ThreadKind::Record);
            let blocks = encode(&batches, &mut encoder, &give_back);
            // The trace may have failed meanwhile.
            let _ = encoded.send((blocks, encoder));
        });
        self.segments.push_back(segment);
        Some(thread)
    }

    /// Takes the blocks of the oldest segment, if they are complete, or waits for them. Returns
    /// whether it was complete.
    fn receive(&mut self, wait: bool) -> bool {
        let Some(segment) = self.segments.front() else {
            return false;
        };
        let encoded = match wait {
            true => segment.recv().map_err(|_| lost()),
            false => match segment.try_recv() {
                Err(TryRecvError::Empty) => return false,
                encoded => encoded.map_err(|_| lost()),
            },
        };
        match encoded {
            Ok((blocks, encoder)) => {
                self.blocks.extend(blocks);
                self.idle.push(encoder);
            }
            Err(error) => self.blocks.push_back(Err(error)),
        }
        self.segments.pop_front();
        true
    }
}

/// A thread has ended without the blocks of its segment.
fn lost() -> Error {
    Error::Io(io::Error::other(
        "a thread that encodes the trace has failed",
    ))
}

/// Encodes a segment.
fn encode(
    batches: &Receiver<Batch>,
    encoder: &mut BlockEncoder,
    give_back: &Sender<Batch>,
) -> Vec<Result<EncodedBlock, Error>> {
    for mut batch in batches {
        batch.encode(encoder);
        batch.clear();
        // The trace may have failed meanwhile.
        let _ = give_back.send(batch);
    }
    encoder.end_segment();
    std::iter::from_fn(|| encoder.next_block(true)).collect()
}

impl EncodeBlocks for ParallelEncoder {
    fn branches(&mut self, task: u64, branches: &[Branch]) {
        let count = branches.len();
        self.records += count as u64;
        self.batch.branches.extend_from_slice(branches);
        self.batch.entries.push(Entry::Branches { task, count });
        if self.batch.is_full() {
            self.send();
        }
    }

    fn event(&mut self, task: u64, event: &Event) {
        self.time = event.time().unwrap_or(self.time);
        self.batch.bytes += event.size();
        let event = event.clone();
        self.batch.entries.push(Entry::Event { task, event });
        if self.batch.is_full() {
            self.send();
        }
    }

    fn end_segment(&mut self) {
        if !self.batch.entries.is_empty() {
            self.send();
        }
        self.thread = None;
        self.start = (self.records, self.time);
    }

    fn next_block(&mut self, wait: bool) -> Option<Result<EncodedBlock, Error>> {
        // The thread of a segment that has not ended waits for more of it.
        let unended = usize::from(self.thread.is_some());
        while self.blocks.is_empty() && self.segments.len() > unended && self.receive(wait) {}
        self.blocks.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vbts_trace::{Run, Summary};

    /// A trace of several segments, with small pieces of several tasks and events among them.
    fn trace(encoder: Box<dyn EncodeBlocks + Send>) -> Vec<u8> {
        let mut writer = Writer::with_encoder(Vec::new(), &Run::default(), encoder).unwrap();
        let mut state = 1_u64;
        let mut branches = Vec::new();
        for time in 0..3000 {
            branches.clear();
            for _ in 0..7 * (time % 1000) {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let from = 0x40_1000 + (state >> 52);
                branches.push(Branch { from, to: from + 8 });
            }
            let task = time % 5;
            writer.branches(task, &branches).unwrap();
            writer.event(task, &Event::Arrive { time }).unwrap();
            assert!(writer.kept() <= writer.records());
        }
        writer.flush().unwrap();
        assert_eq!(writer.kept(), 0);
        writer.branches(1, &branches).unwrap();
        writer.finish(&Summary::default()).unwrap();
        assert!(writer.records() > 10_000_000);
        std::mem::take(writer.output())
    }

    #[test]
    fn threads_write_the_same_bytes() {
        let one = trace(Box::new(BlockEncoder::new().unwrap()));
        for threads in 1..=3 {
            let several = trace(Box::new(ParallelEncoder::start(threads).unwrap()));
            assert!(
                one == several,
                "{threads} threads: {} and {}",
                one.len(),
                several.len()
            );
        }
    }

    #[test]
    fn an_event_that_is_too_large_is_an_error_and_no_more() {
        let encoder = ParallelEncoder::start(2).unwrap();
        let mut writer = Writer::with_encoder(Vec::new(), &Run::default(), encoder).unwrap();
        writer.event(0, &Event::Name(vec![0; 33 << 20])).unwrap();
        writer.branches(0, &[Branch { from: 1, to: 2 }]).unwrap();
        let error = writer.flush().unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
        writer.flush().unwrap();
        assert_eq!(writer.kept(), 0);
    }
}
