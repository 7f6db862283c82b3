//! The thread that encodes what the processors log, and writes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use indicatif::{HumanBytes, HumanCount, ProgressBar};
use vbts_cpu::{LogBuffer, LogEntry, LogScope};
use vbts_trace::profile::modules::{KERNEL_START_32, extend_32};
use vbts_trace::{Branch, Error, Event, Item};

use super::queue::{End, Queue};
use super::recording::Options;
use crate::parallel_encoder::{self, BtraceWriter};
use crate::pipeline::queue::WriterError;
use crate::pipeline::tail::TailBuffer;
use vbts_host::output::Output;
use vbts_host::sandbox::{ThreadKind, confine_thread};

/// What is known about a processor.
#[derive(Debug, Default)]
struct Processor {
    cr3: Option<u64>,
    /// Thread ID and process ID in one number, and name.
    task: Option<(u64, [u8; 16])>,
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Encoder {
    queue: Arc<Queue>,
    output: Output,
    writer: BtraceWriter,
    /// Has the branches in the place of `writer` until the end of the run.
    last: Option<TailBuffer>,
    /// Returns from the kernel are left out: they are no branches of a program.
    user_only: bool,
    /// The first address of the kernel.
    kernel_start: u64,
    /// The kernel is a 32-bit one, whose addresses are extended.
    is_32_bit: bool,
    progress: ProgressBar,
    /// The processor of the entries that follow.
    current: u64,
    processors: HashMap<u64, Processor>,
    /// The name of the task that follows.
    name: [u8; 16],
    /// Branches that the writer does not have yet.
    branches: Vec<Branch>,
}

impl Encoder {
    /// Encodes what `options` say.
    ///
    /// # Errors
    /// There is no memory for the compression, or the host starts no more threads.
    pub(super) fn new(queue: Arc<Queue>, options: Options) -> Result<Self, Error> {
        Ok(Self {
            queue,
            output: options.output,
            writer: BtraceWriter::with_encoder(
                Vec::new(),
                &options.run,
                parallel_encoder::start()?,
            )?,
            last: options.last.map(TailBuffer::new).transpose()?,
            user_only: options.scope == LogScope::USER,
            kernel_start: match options.is_32_bit {
                true => KERNEL_START_32,
                false => 1 << 63,
            },
            is_32_bit: options.is_32_bit,
            progress: options.progress,
            current: 0,
            processors: HashMap::new(),
            name: [0; 16],
            branches: Vec::new(),
        })
    }

    /// Encodes until the end of the run, or until the first error.
    pub(super) fn run(&mut self) {
        /// Ends the queue if the thread panics.
        struct Guard(Arc<Queue>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.end(Some(WriterError::Failed));
                }
            }
        }
        let guard = Guard(self.queue.clone());
        let error = self.work().err();
        self.progress.finish_and_clear();
        self.queue.end(error);
        drop(guard);
    }

    fn work(&mut self) -> Result<(), WriterError> {
        loop {
            let mut state = self.queue.lock();
            while state.full.is_empty() && state.end.is_none() {
                state = self.queue.wait(state);
            }
            let buffer = state.full.pop_front();
            let end = match buffer {
                Some(_) => None,
                None => state.end.take(),
            };
            drop(state);
            // The process enters its sandbox before the guest starts, and so before any entry.
            confine_thread(ThreadKind::Record)
                .map_err(|failure| WriterError::Sandbox(failure.to_string()))?;
            if let Some(mut buffer) = buffer {
                self.encode(&buffer)?;
                self.write()?;
                buffer.clear();
                self.queue.lock().free.push(buffer);
                self.queue.notify();
                self.show_progress();
            }
            if let Some(End {
                mut summary,
                kernel,
            }) = end
            {
                if let Some(last) = self.last.take() {
                    let (writer, output) = (&mut self.writer, &mut self.output);
                    let left_out = last.finish(|item| {
                        match item {
                            Item::Event { task, event } => writer.event(task, &event)?,
                            Item::Branches { task, branches } => writer.branches(task, branches)?,
                        }
                        write(writer, output, &self.queue)
                    })?;
                    summary.filtered = Some(left_out);
                }
                for event in kernel {
                    self.writer.event(0, &event)?;
                }
                summary.records = self.writer.records();
                self.writer.finish(&summary)?;
                return self.write();
            }
        }
    }

    /// Writes what is encoded.
    fn write(&mut self) -> Result<(), WriterError> {
        write(&mut self.writer, &mut self.output, &self.queue)?;
        let records = match &self.last {
            Some(last) => last.records(),
            None => self.writer.records(),
        };
        self.queue.records.store(records, Ordering::Relaxed);
        Ok(())
    }

    fn show_progress(&self) {
        if self.progress.is_hidden() {
            return;
        }
        let records = self.queue.records.load(Ordering::Relaxed);
        let bytes = self.queue.bytes.load(Ordering::Relaxed);
        let seconds = self.progress.elapsed().as_secs_f64().max(0.001);
        self.progress.set_message(format!(
            "{} branches, {}, {} branches/s",
            HumanCount(records),
            HumanBytes(bytes),
            HumanCount((records as f64 / seconds) as u64)
        ));
    }

    fn encode(&mut self, buffer: &LogBuffer) -> Result<(), Error> {
        for entry in buffer.entries() {
            let event = match entry {
                LogEntry::Branch { from, to } => {
                    if !(self.user_only && from >= self.kernel_start) {
                        self.branches.push(Branch { from, to });
                    }
                    continue;
                }
                LogEntry::Processor { id, .. } => {
                    self.add_branches()?;
                    self.current = id;
                    continue;
                }
                LogEntry::Name(name) => {
                    self.name = name;
                    continue;
                }
                entry => entry,
            };
            self.add_branches()?;
            if let Some(event) = self.event(event) {
                match &mut self.last {
                    Some(last) => last.event(self.current, &event)?,
                    None => self.writer.event(self.current, &event)?,
                }
            }
        }
        self.add_branches()
    }

    /// The event of an entry, unless it says what is known.
    fn event(&mut self, entry: LogEntry) -> Option<Event> {
        let processor = self.processors.entry(self.current).or_default();
        match entry {
            LogEntry::AddressSpace { cr3, time } => {
                let before = processor.cr3.replace(cr3);
                (before != Some(cr3)).then_some(Event::AddressSpace { cr3, time })
            }
            LogEntry::Task { ids, time } => {
                let before = processor.task.replace((ids, self.name));
                let name = self.name.split(|byte| *byte == 0).next();
                (before != Some((ids, self.name))).then(|| Event::Switch {
                    id: ids as u32,
                    process: (ids >> 32) as u32,
                    time,
                    name: name.unwrap_or_default().into(),
                })
            }
            LogEntry::Gap { duration, time } => Some(Event::Gap { duration, time }),
            LogEntry::Branch { .. } | LogEntry::Processor { .. } | LogEntry::Name(_) => None,
        }
    }

    fn add_branches(&mut self) -> Result<(), Error> {
        if !self.branches.is_empty() {
            if self.is_32_bit {
                for Branch { from, to } in &mut self.branches {
                    (*from, *to) = (extend_32(*from), extend_32(*to));
                }
            }
            match &mut self.last {
                Some(last) => last.branches(self.current, &self.branches)?,
                None => self.writer.branches(self.current, &self.branches)?,
            }
            self.branches.clear();
        }
        Ok(())
    }
}

/// Writes what `writer` has encoded to `output`.
fn write(writer: &mut BtraceWriter, output: &mut Output, queue: &Queue) -> Result<(), WriterError> {
    let bytes = writer.output();
    if !bytes.is_empty() {
        output.write(bytes)?;
        let len = bytes.len() as u64;
        queue.bytes.fetch_add(len, Ordering::Relaxed);
        bytes.clear();
    }
    Ok(())
}
