//! The branches of a program's first task, out of the log of the processors. They are those that a
//! trace of the task has.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vbts_cpu::{BranchLog, LogBuffer, LogEntry, LogScope, LogSink, Probe};
use vbts_devices::lock;
use vbts_host::Unit;
use vbts_host::output::{Output, OutputError};
use vbts_protocol::RECORD_SIZE;
use vbts_trace::profile::modules::KERNEL_START_32;

/// Bytes that are kept while the program is not known. The agent's are not.
const MAX_WAITING: usize = 64 << 20;
/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// What the log has told about a task.
#[derive(Debug, Default)]
struct Task {
    /// CR3 of its first branch. It is that of a child of the agent until it executes a program.
    first: u64,
    /// It has executed a program.
    executed: bool,
    /// Records while the program is not known.
    waiting: Vec<u8>,
}

/// Writes the branches of a program's first task as records of 24 bytes.
#[derive(Debug)]
pub struct FirstTask {
    /// The ID of the task; 0 if it is not known yet.
    program: Arc<AtomicU32>,
    output: Output,
    /// The first address of the kernel.
    kernel_start: u64,
    processor: u64,
    /// Task and CR3 of each processor.
    processors: HashMap<u64, (u32, u64)>,
    tasks: HashMap<u32, Task>,
    /// Records that are not written.
    buffer: Vec<u8>,
    waiting: usize,
    records: u64,
    result: Arc<Mutex<Written>>,
}

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// Number of records.
    pub records: u64,
    /// The first error.
    pub error: Option<OutputError>,
}

impl FirstTask {
    /// A log whose records go to `output`. `probes` say when the kernel, a 32-bit one if
    /// `is_32_bit`, switches tasks. `program` becomes the ID of the task soon after it has started.
    ///
    /// The second value has what was written, once the log has ended.
    pub fn log(
        output: Output,
        probes: Vec<Probe>,
        is_32_bit: bool,
        program: Arc<AtomicU32>,
    ) -> (Box<BranchLog>, Arc<Mutex<Written>>) {
        let sink = Self::new(output, is_32_bit, program);
        let result = sink.result.clone();
        let log = BranchLog::new(LogScope::USER, probes, Box::new(sink));
        (Box::new(log), result)
    }

    fn new(output: Output, is_32_bit: bool, program: Arc<AtomicU32>) -> Self {
        Self {
            program,
            output,
            kernel_start: match is_32_bit {
                true => KERNEL_START_32,
                false => 1 << 63,
            },
            processor: 0,
            processors: HashMap::new(),
            tasks: HashMap::new(),
            buffer: Vec::new(),
            waiting: 0,
            records: 0,
            result: Arc::default(),
        }
    }

    /// Takes entries of the log, the next ones.
    fn entries(&mut self, entries: impl Iterator<Item = LogEntry>) {
        let program = self.program.load(Ordering::Relaxed);
        if program != 0 && self.waiting > 0 {
            self.settle(program);
        }
        entries.for_each(|entry| self.take(entry, program));
        self.write();
    }

    fn take(&mut self, entry: LogEntry, program: u32) {
        match entry {
            LogEntry::Processor { id, .. } => self.processor = id,
            LogEntry::AddressSpace { cr3, .. } => {
                self.processors.entry(self.processor).or_default().1 = cr3;
            }
            LogEntry::Task { ids, .. } => {
                self.processors.entry(self.processor).or_default().0 = ids as u32;
            }
            LogEntry::Name(_) | LogEntry::Gap { .. } => {}
            LogEntry::Branch { from, to } => self.branch(from, to, program),
        }
    }

    fn branch(&mut self, from: u64, to: u64, program: u32) {
        let Some((id, cr3)) = self.processors.get(&self.processor).copied() else {
            return;
        };
        // A return from the kernel is no branch of a program.
        if from >= self.kernel_start || program != 0 && id != program {
            return;
        }
        let task = self.tasks.entry(id).or_insert_with(|| Task {
            first: cr3,
            ..Task::default()
        });
        task.executed |= task.first != cr3;
        if !task.executed {
            return;
        }
        let record = [from, to, 0].map(u64::to_le_bytes);
        if program != 0 {
            self.records += 1;
            self.buffer.extend_from_slice(record.as_flattened());
        } else if self.waiting < MAX_WAITING {
            self.waiting += RECORD_SIZE;
            task.waiting.extend_from_slice(record.as_flattened());
        }
    }

    /// Takes the records that have waited for the program to be known.
    fn settle(&mut self, program: u32) {
        for (id, task) in &mut self.tasks {
            let waiting = std::mem::take(&mut task.waiting);
            if *id == program && !waiting.is_empty() {
                self.records += (waiting.len() / RECORD_SIZE) as u64;
                self.buffer = waiting;
            }
        }
        self.waiting = 0;
    }

    fn write(&mut self) {
        let mut result = lock(&self.result);
        result.records = self.records;
        for piece in self.buffer.chunks(PIECE / RECORD_SIZE * RECORD_SIZE) {
            if result.error.is_none()
                && let Err(error) = self.output.write_units(piece, Unit::Bytes(RECORD_SIZE))
            {
                result.error = Some(error);
            }
        }
        self.buffer.clear();
    }
}

impl LogSink for FirstTask {
    fn exchange(&mut self, full: LogBuffer) -> LogBuffer {
        self.entries(full.entries());
        full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read as _, Seek as _};

    const TIME: u64 = 0;

    fn task(id: u64) -> LogEntry {
        let ids = id << 32 | id;
        LogEntry::Task { ids, time: TIME }
    }

    fn address_space(cr3: u64) -> LogEntry {
        LogEntry::AddressSpace { cr3, time: TIME }
    }

    fn processor(id: u64) -> LogEntry {
        LogEntry::Processor { id, time: TIME }
    }

    fn branch(from: u64) -> LogEntry {
        LogEntry::Branch { from, to: 9 }
    }

    #[test]
    fn a_task_is_recorded_from_its_first_program_on() {
        let mut file: File = tempfile::tempfile().unwrap();
        let program = Arc::<AtomicU32>::default();
        let output = Output::new(file.try_clone().unwrap(), "records");
        let mut sink = FirstTask::new(output, false, program.clone());
        let first = [
            processor(0),
            address_space(1),
            task(7),
            branch(10), // of the agent's child
            address_space(2),
            branch(11),
            branch(1 << 63), // a return from the kernel
            processor(1),
            address_space(1),
            task(8),
            branch(12),
            address_space(3),
            branch(13), // another task that executes a program
        ];
        sink.entries(first.into_iter());
        program.store(7, Ordering::Relaxed);
        let second = [
            branch(14),
            processor(0),
            branch(15),
            // The program executes another one in the first address space again.
            address_space(1),
            branch(16),
            task(8),
            branch(17),
        ];
        sink.entries(second.into_iter());
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let records: Vec<[u64; 3]> = bytes
            .chunks(RECORD_SIZE)
            .map(|record| {
                [0, 8, 16].map(|at| u64::from_le_bytes(record[at..at + 8].try_into().unwrap()))
            })
            .collect();
        assert_eq!(records, [[11, 9, 0], [15, 9, 0], [16, 9, 0]]);
        assert_eq!(lock(&sink.result).records, 3);
    }
}
