//! The branches of the traced tasks, out of a log of the processors, which takes the place of the
//! records of the guest's kernel.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use vbts_cpu::{BranchLog, LogBuffer, LogEntry, LogScope, LogSink, Probe};
use vbts_devices::lock;
use vbts_trace::Branch;
use vbts_trace::profile::modules::extend_32;

use crate::branch_pool::BranchPool;
use crate::records::{Mark, Records};

/// Branches that a list has room for at first.
const ROOM: usize = 256;

/// Records of a task out of one buffer of the log.
#[derive(Debug)]
struct Batch {
    /// Time in ns of the machine at which the buffer begins.
    begins: u64,
    /// Time at which it ends, which the next buffer tells.
    ends: u64,
    records: Records,
}

#[derive(Debug, Default)]
struct State {
    is_32_bit: bool,
    /// Time of the machine in ns at which CLOCK_MONOTONIC of the guest was 0.
    boot: u64,
    processor: u64,
    /// The last time that the log has told.
    time: u64,
    /// The task that each processor executes.
    running: HashMap<u64, u32>,
    /// The traced tasks, and their records that are not taken.
    tasks: HashMap<u32, VecDeque<Batch>>,
    pool: BranchPool,
}

/// The records of the traced tasks. Copies are the same records.
#[derive(Debug, Clone, Default)]
pub(super) struct LoggedRecords(Arc<Mutex<State>>);

/// The end of a log at the processors.
#[derive(Debug)]
struct Sink(LoggedRecords);

impl LoggedRecords {
    /// No records yet, of a guest whose kernel is a 32-bit one if `is_32_bit`.
    pub(super) fn new(is_32_bit: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            is_32_bit,
            ..State::default()
        })))
    }

    /// A log of branches in `scope`, which `probes` tell the tasks of.
    pub(super) fn log(&self, scope: LogScope, probes: Vec<Probe>) -> Box<BranchLog> {
        Box::new(BranchLog::new(scope, probes, Box::new(Sink(self.clone()))))
    }

    /// Sets the machine's time in ns at which CLOCK_MONOTONIC of the guest was 0.
    pub(super) fn set_boot(&self, boot: u64) {
        lock(&self.0).boot = boot;
    }

    /// Has the records of a task from here on.
    pub(super) fn start(&self, task: u32) {
        lock(&self.0).tasks.insert(task, VecDeque::new());
    }

    /// The task `former` has the ID `task` from here on.
    pub(super) fn rename(&self, former: u32, task: u32) {
        let state = &mut *lock(&self.0);
        if let Some(records) = state.tasks.remove(&former) {
            state.tasks.insert(task, records);
        }
    }

    /// Has no more records of a task.
    pub(super) fn end(&self, task: u32) {
        lock(&self.0).tasks.remove(&task);
    }

    /// Takes the records of a task up to now, oldest first.
    pub(super) fn take(&self, task: u32) -> Vec<Records> {
        let state = &mut *lock(&self.0);
        let batches = state.tasks.get_mut(&task).map(std::mem::take);
        let batches = batches.unwrap_or_default().into_iter();
        batches.map(|batch| batch.records).collect()
    }

    /// Takes the records that are older than `until`, a time of the machine in ns. Returns them
    /// with their tasks, and up to when each task's records are taken.
    pub(super) fn take_until(&self, until: u64) -> Vec<(u32, Vec<Records>, u64)> {
        let state = &mut *lock(&self.0);
        let mut tasks = state.tasks.iter();
        if !tasks.any(|(_, batches)| batches.front().is_some_and(|first| first.ends <= until)) {
            return Vec::new();
        }
        let (boot, now) = (state.boot, state.time);
        let mut taken = Vec::new();
        for (task, batches) in &mut state.tasks {
            let old = batches.iter().take_while(|batch| batch.ends <= until);
            let old = old.count();
            let records = batches.drain(..old).map(|batch| batch.records).collect();
            let complete = batches.front().map_or(now, |batch| batch.begins);
            taken.push((*task, records, complete.saturating_sub(boot)));
        }
        taken.sort_unstable_by_key(|(task, ..)| *task);
        taken
    }
}

impl LogSink for Sink {
    fn exchange(&mut self, full: LogBuffer) -> LogBuffer {
        lock(&self.0.0).read(full.entries());
        full
    }
}

impl State {
    /// Reads the entries of a buffer.
    fn read(&mut self, entries: impl Iterator<Item = LogEntry>) {
        let mut batches: HashMap<u32, Records> = HashMap::new();
        let mut begins = None;
        // The traced task that the processor executes, and its records.
        let mut task = self.traced();
        let mut records = self.list();
        for entry in entries {
            match entry {
                LogEntry::Branch { from, to } => {
                    if task.is_some() {
                        let (from, to) = match self.is_32_bit {
                            true => (extend_32(from), extend_32(to)),
                            false => (from, to),
                        };
                        records.push(Branch { from, to });
                    }
                }
                LogEntry::Processor { id, time } => {
                    self.put(&mut batches, task, &mut records);
                    (self.processor, self.time) = (id, time);
                    begins.get_or_insert(time);
                    task = self.traced();
                    self.resume(&mut batches, task, &mut records);
                }
                LogEntry::Task { ids, time } => {
                    let next = ids as u32;
                    let time_of_guest = time.saturating_sub(self.boot);
                    if task.is_some() {
                        records.mark(Mark::Depart(time_of_guest));
                    }
                    self.put(&mut batches, task, &mut records);
                    self.time = time;
                    self.running.insert(self.processor, next);
                    task = self.traced();
                    self.resume(&mut batches, task, &mut records);
                    if task.is_some() {
                        records.mark(Mark::Arrive(time_of_guest));
                    }
                }
                LogEntry::AddressSpace { time, .. } | LogEntry::Gap { time, .. } => {
                    self.time = time;
                }
                LogEntry::Name(_) => {}
            }
        }
        self.put(&mut batches, task, &mut records);
        let begins = begins.unwrap_or(self.time);
        for queue in self.tasks.values_mut() {
            if let Some(last) = queue.back_mut() {
                last.ends = last.ends.min(begins);
            }
        }
        for (task, records) in batches {
            if let Some(queue) = self.tasks.get_mut(&task) {
                queue.push_back(Batch {
                    begins,
                    ends: u64::MAX,
                    records,
                });
            }
        }
    }

    /// The task that the processor executes, if it is traced.
    fn traced(&self) -> Option<u32> {
        let task = self.running.get(&self.processor)?;
        self.tasks.contains_key(task).then_some(*task)
    }

    fn list(&self) -> Records {
        Records::with_capacity(ROOM, &self.pool)
    }

    /// Puts the records of `task` back, before another one follows.
    fn put(&self, batches: &mut HashMap<u32, Records>, task: Option<u32>, records: &mut Records) {
        if let Some(task) = task
            && !records.is_empty()
        {
            batches.insert(task, std::mem::replace(records, self.list()));
        }
    }

    /// Continues with the records of `task`.
    fn resume(
        &self,
        batches: &mut HashMap<u32, Records>,
        task: Option<u32>,
        records: &mut Records,
    ) {
        if let Some(before) = task.and_then(|task| batches.remove(&task)) {
            *records = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: u64 = 0;

    fn task(id: u64, time: u64) -> LogEntry {
        LogEntry::Task {
            ids: id << 32 | id,
            time,
        }
    }

    fn branch(from: u64) -> LogEntry {
        LogEntry::Branch { from, to: from + 1 }
    }

    /// The records of `task`: branches by their first addresses, and times.
    fn taken(records: &LoggedRecords, task: u32) -> Vec<Result<u64, vbts_trace::Event>> {
        let lists = records.take(task);
        let contents = lists.iter().flat_map(crate::records::tests::contents);
        contents.map(|one| one.map(|branch| branch.from)).collect()
    }

    fn arrive(time: u64) -> Result<u64, vbts_trace::Event> {
        Err(vbts_trace::Event::Arrive { time })
    }

    fn depart(time: u64) -> Result<u64, vbts_trace::Event> {
        Err(vbts_trace::Event::Depart { time })
    }

    #[test]
    fn branches_belong_to_the_task_of_their_processor() {
        let records = LoggedRecords::new(false);
        let processor = |id| LogEntry::Processor { id, time: TIME };
        let read = |entries: &[LogEntry]| lock(&records.0).read(entries.iter().copied());
        // Before a task is traced, it has no records.
        read(&[processor(0), task(9, 1), branch(1), task(5, 2), branch(2)]);
        records.start(5);
        records.set_boot(100);
        read(&[
            processor(0),
            branch(3),
            task(9, 110),
            branch(4),
            task(5, 120),
            branch(5),
            processor(1),
            branch(6),
            processor(0),
            branch(7),
        ]);
        assert_eq!(taken(&records, 9), []);
        assert_eq!(
            taken(&records, 5),
            [Ok(3), depart(10), arrive(20), Ok(5), Ok(7)]
        );
        records.rename(5, 6);
        read(&[processor(1), task(6, 130), branch(8)]);
        assert_eq!(taken(&records, 6), [arrive(30), Ok(8)]);
        records.end(6);
        read(&[processor(1), branch(9)]);
        assert_eq!(taken(&records, 6), []);
    }

    #[test]
    fn old_records_are_taken_with_the_time_up_to_which_they_are_complete() {
        let records = LoggedRecords::new(false);
        records.start(5);
        let read = |time, from| {
            let entries = [
                LogEntry::Processor { id: 0, time },
                task(5, time),
                branch(from),
            ];
            lock(&records.0).read(entries.into_iter());
        };
        [10, 20, 30, 40]
            .into_iter()
            .for_each(|time| read(time, time));
        assert!(records.take_until(19).is_empty());
        let taken = records.take_until(30);
        let [(5, lists, 30)] = taken.as_slice() else {
            panic!("{taken:?}");
        };
        assert_eq!(lists.len(), 2);
        assert!(records.take_until(39).is_empty());
        let rest = records.take_until(u64::MAX);
        assert!(matches!(rest.as_slice(), [(5, lists, 40)] if lists.len() == 2));
    }

    #[test]
    fn addresses_of_a_32_bit_kernel_are_extended() {
        let records = LoggedRecords::new(true);
        records.start(5);
        let entries = [task(5, 0), branch(0xC000_0000), branch(0x1000)];
        lock(&records.0).read(entries.into_iter());
        assert_eq!(
            taken(&records, 5),
            [arrive(0), Ok(0xFFFF_FFFF_C000_0000), Ok(0x1000)]
        );
    }
}
