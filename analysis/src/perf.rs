//! A trace as a file of Linux perf. Each sample is a branch stack of the next branches of its task,
//! so that all branches are in the file, each once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader};

use indicatif::ProgressBar;
use vbts_trace::maps::{self, Mapping};
use vbts_trace::profile::modules::is_kernel;
use vbts_trace::{Branch, Event, Item, Reader};

use super::perf_data::{self, About, CodeMapping, Record, STACK_SIZE, Scope, Task};
use super::{CodeFiles, Out, Range};

/// Maximum number of branches of all tasks that wait for their samples to become full.
const MAX_WAITING: usize = 1 << 20;
/// Maximum number of tasks or processes that are known at once.
const MAX_TASKS: usize = 1 << 16;

/// Why a trace cannot be written as a file of perf.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] vbts_trace::Error),
    /// The output fails.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// A stream of branches.
#[derive(Debug, Default)]
struct Stream {
    task: Task,
    /// Branches that are in no sample yet.
    waiting: Vec<Branch>,
}

/// Makes the records of a file.
struct Records<'a, 'b> {
    files: &'a mut CodeFiles,
    build_ids: HashMap<String, Option<Vec<u8>>>,
    streams: HashMap<u64, Stream>,
    /// Processes of the live tasks, by thread ID.
    processes: HashMap<u32, u32>,
    /// Mappings of the processes.
    mappings: HashMap<u32, Vec<Mapping>>,
    /// Tasks of a machine that have names.
    named: HashSet<Task>,
    waiting: usize,
    /// The time of the last record.
    time: u64,
    record: Record,
    /// Bytes so far.
    size: u64,
    /// Where they go; `None` if only their size matters.
    out: Option<&'a mut Out<'b>>,
}

impl Records<'_, '_> {
    fn put(&mut self, make: impl FnOnce(&mut Record, u64) -> &[u8]) -> io::Result<()> {
        // Samples have no time of their own. They need one, so that perf keeps their order.
        self.time += 1;
        let bytes = make(&mut self.record, self.time);
        self.size += bytes.len() as u64;
        match &mut self.out {
            Some(out) => out.write_all(bytes),
            None => Ok(()),
        }
    }

    fn at(&mut self, time: u64) {
        self.time = self.time.max(time);
    }

    /// Writes the branches of a stream that wait.
    fn flush(&mut self, number: u64) -> io::Result<()> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Ok(());
        };
        let (task, branches) = (stream.task, std::mem::take(&mut stream.waiting));
        self.waiting -= branches.len();
        for branches in branches.chunks(STACK_SIZE) {
            self.sample(task, branches)?;
        }
        Ok(())
    }

    fn sample(&mut self, task: Task, branches: &[Branch]) -> io::Result<()> {
        let in_kernel = branches.last().is_some_and(|last| is_kernel(last.to));
        self.put(|record, time| record.sample(task, branches, in_kernel, time))
    }

    fn flush_all(&mut self) -> io::Result<()> {
        let mut numbers: Vec<u64> = self.streams.keys().copied().collect();
        numbers.sort_unstable();
        numbers
            .into_iter()
            .try_for_each(|number| self.flush(number))
    }

    fn branches(&mut self, number: u64, mut branches: &[Branch]) -> io::Result<()> {
        if self.streams.len() >= MAX_TASKS && !self.streams.contains_key(&number) {
            self.flush_all()?;
            self.streams.clear();
        }
        let stream = self.streams.entry(number).or_default();
        let task = stream.task;
        if stream.waiting.is_empty() {
            // Full samples need no copy.
            while let Some((full, rest)) = branches.split_at_checked(STACK_SIZE) {
                self.sample(task, full)?;
                branches = rest;
            }
        }
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.waiting.extend_from_slice(branches);
            self.waiting += branches.len();
            if stream.waiting.len() >= STACK_SIZE {
                self.flush(number)?;
            }
        }
        if self.waiting > MAX_WAITING {
            self.flush_all()?;
        }
        Ok(())
    }

    fn task(&self, number: u64) -> Task {
        self.streams
            .get(&number)
            .map_or(Task::default(), |s| s.task)
    }

    fn event(&mut self, number: u64, event: Event) -> io::Result<()> {
        if !matches!(event, Event::Arrive { .. } | Event::Depart { .. }) {
            self.flush(number)?;
        }
        match event {
            Event::Start {
                id,
                parent,
                process,
                time,
            } => {
                self.at(time);
                let task = Task { process, id };
                if self.processes.len() < MAX_TASKS {
                    self.processes.insert(id, process);
                }
                self.streams.entry(number).or_default().task = task;
                if let Some(of_parent) = self.processes.get(&parent).copied() {
                    let parent = Task {
                        process: of_parent,
                        id: parent,
                    };
                    self.put(|record, time| record.fork(task, parent, time))?;
                    if of_parent != process
                        && let Some(mappings) = self.mappings.get(&of_parent).cloned()
                    {
                        self.mappings.insert(process, mappings);
                    }
                }
            }
            Event::Exec { id, time, name, .. } => {
                self.at(time);
                let process = self.task(number).process;
                let task = Task { process, id };
                self.streams.entry(number).or_default().task = task;
                self.mappings.remove(&process);
                let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                self.put(|record, time| record.comm(task, name, true, time))?;
            }
            Event::Name(name) => {
                let task = self.task(number);
                let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                self.put(|record, time| record.comm(task, name, false, time))?;
            }
            Event::ThreadName(name) => {
                let task = self.task(number);
                self.put(|record, time| record.comm(task, &name, false, time))?;
            }
            Event::End { time, .. } => {
                self.at(time);
                let task = self.task(number);
                self.streams.remove(&number);
                self.processes.remove(&task.id);
                self.put(|record, time| record.exit(task, time))?;
            }
            Event::Lost(count) => {
                let task = self.task(number);
                self.put(|record, time| record.lost(task, count, time))?;
            }
            Event::Invalid => {
                let task = self.task(number);
                self.put(|record, time| record.lost(task, 1, time))?;
            }
            Event::Switch {
                id,
                process,
                time,
                name,
            } => {
                self.at(time);
                let task = Task { process, id };
                self.streams.entry(number).or_default().task = task;
                if self.named.len() < MAX_TASKS && self.named.insert(task) {
                    self.put(|record, time| record.comm(task, &name, false, time))?;
                }
            }
            Event::Arrive { time }
            | Event::Depart { time }
            | Event::Gap { time, .. }
            | Event::AddressSpace { time, .. } => self.at(time),
            Event::Maps { process, text } => self.maps(process, &text)?,
            Event::ProcessEnd { process } => {
                self.mappings.remove(&process);
            }
            _ => {}
        }
        Ok(())
    }

    /// The mappings of a process have changed.
    fn maps(&mut self, process: u32, text: &[u8]) -> io::Result<()> {
        let of_process = |stream: &Stream| stream.task.process == process;
        let streams = self.streams.iter();
        let mut numbers: Vec<u64> = streams
            .filter(|(_, stream)| of_process(stream))
            .map(|(number, _)| *number)
            .collect();
        numbers.sort_unstable();
        for number in numbers {
            self.flush(number)?;
        }
        let new = maps::parse(text);
        let old = self.mappings.remove(&process).unwrap_or_default();
        let task = Task {
            process,
            id: process,
        };
        for mapping in &new {
            if maps::find(&old, mapping.start) != Some(mapping) {
                self.map(task, mapping)?;
            }
        }
        if self.mappings.len() < MAX_TASKS {
            self.mappings.insert(process, new);
        }
        Ok(())
    }

    fn map(&mut self, task: Task, mapping: &Mapping) -> io::Result<()> {
        if !self.build_ids.contains_key(&mapping.name) && self.build_ids.len() < MAX_TASKS {
            let id = self.files.build_id(&mapping.name);
            self.build_ids.insert(mapping.name.clone(), id);
        }
        let build_id = self.build_ids.get(&mapping.name).cloned().flatten();
        let name = match mapping.name.as_str() {
            "" => "//anon",
            name => name,
        };
        let mapping = CodeMapping {
            start: mapping.start,
            size: mapping.end - mapping.start,
            offset: mapping.offset,
            name: name.as_bytes(),
            build_id: build_id.as_deref(),
        };
        self.put(|record, time| record.mmap(task, &mapping, time))
    }

    /// Maps the code of the kernel.
    fn map_kernel(&mut self) -> io::Result<()> {
        let Some((start, size)) = self.files.kernel_code() else {
            return Ok(());
        };
        let build_id = self.files.kernel_build_id();
        let mapping = CodeMapping {
            start,
            size,
            offset: start,
            name: b"[kernel.kallsyms]_text",
            build_id: build_id.as_deref(),
        };
        self.put(|record, time| record.mmap(Task::KERNEL, &mapping, time))
    }
}

/// Writes the branches in `range`, only those of tasks with the thread IDs `only` if these are
/// given.
///
/// # Errors
/// The trace cannot be read, or the output fails.
pub fn perf(
    reader: &mut Reader<BufReader<File>>,
    range: Range,
    only: Option<&BTreeSet<u32>>,
    files: &mut CodeFiles,
    progress: &ProgressBar,
    out: &mut Out<'_>,
) -> Result<(), PerfError> {
    let run = reader.run().clone();
    let about = About {
        scope: Scope {
            user: run.scope != "kernel",
            kernel: run.scope != "user",
        },
        command: &run.command,
        writer: concat!("vbts ", env!("CARGO_PKG_VERSION")),
    };
    // The head of the file has the size of the records, which is known after them.
    progress.set_length(2 * range.to.saturating_sub(range.from));
    let size = records(reader, range, only, files, progress, None)?;
    perf_data::begin(&about, size, out)?;
    records(reader, range, only, files, progress, Some(out))?;
    perf_data::end(&about, size, out)?;
    progress.finish_and_clear();
    Ok(())
}

/// Makes the records. Returns their size in bytes.
fn records(
    reader: &mut Reader<BufReader<File>>,
    range: Range,
    only: Option<&BTreeSet<u32>>,
    files: &mut CodeFiles,
    progress: &ProgressBar,
    out: Option<&mut Out<'_>>,
) -> Result<u64, PerfError> {
    let mut records = Records {
        files,
        build_ids: HashMap::new(),
        streams: HashMap::new(),
        processes: HashMap::new(),
        mappings: HashMap::new(),
        named: HashSet::new(),
        waiting: 0,
        time: 0,
        record: Record::default(),
        size: 0,
        out,
    };
    records.map_kernel()?;
    let mut skipped = Ok(());
    reader.events_before(range.from, |task, event| {
        if skipped.is_ok() {
            skipped = records.event(task, event);
        }
    })?;
    skipped?;
    reader.seek(range.from)?;
    let whole = range.to >= reader.records();
    let mut left = range.to.saturating_sub(range.from);
    while left > 0 || whole {
        match reader.next_item()? {
            None => break,
            Some(Item::Branches { task, branches }) => {
                let size = usize::try_from(left).unwrap_or(usize::MAX);
                let branches = branches.get(..size).unwrap_or(branches);
                left -= branches.len() as u64;
                progress.inc(branches.len() as u64);
                if only.is_none_or(|ids| ids.contains(&records.task(task).id)) {
                    records.branches(task, branches)?;
                }
            }
            Some(Item::Event { task, event }) => records.event(task, event)?,
        }
    }
    records.flush_all()?;
    Ok(records.size)
}
