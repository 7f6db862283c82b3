//! The branches that a thread or a processor has executed, which a replay makes: intervals of the
//! run are run again with a log of branches.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use vbts_cpu::{BranchLog, Breakpoint, LogBuffer, LogEntry, LogScope, LogSink, Probe, StopPoints};
use vbts_devices::lock;
use vbts_gdb::{Branch, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::replay::Outcome;

/// Parts into which the search for a branch divides an interval.
const PARTS: u64 = 64;
/// Virtual time in ns whose branches are counted at once.
const SLICE: u64 = 1 << 26;
/// Branches between two snapshots at most among which a call is looked for.
const MAX_BRANCHES: usize = 1 << 24;
/// Bytes of an instruction (SDM Vol. 2 2.3.11).
const MAX_INSTRUCTION: usize = 15;

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
    fn thread(self) -> Option<u32> {
        match self {
            Self::Thread(thread) | Self::Task(thread) => Some(thread),
            Self::Program | Self::Processor(_) | Self::Machine => None,
        }
    }

    fn scope(self) -> LogScope {
        match self {
            Self::Thread(_) | Self::Program => LogScope::USER,
            _ => LogScope::all(),
        }
    }
}

/// Branches that have been logged.
#[derive(Debug, Clone)]
struct Logged {
    selection: Selection,
    /// The numbers of all tasks, if they are selected.
    tasks: BTreeSet<u32>,
    /// Which processors execute the thread.
    is_current: Vec<bool>,
    /// The processor of the present entry.
    processor: usize,
    /// Branches since the log has begun.
    count: u64,
    /// The last ones, `limit` at most, oldest first.
    last: VecDeque<Branch>,
    limit: usize,
}

/// The end of a log.
#[derive(Debug)]
struct Sink(Arc<Mutex<Logged>>);

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
    fn has(&self, thread: u32) -> bool {
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

/// The last branches of a thread.
#[derive(Debug)]
pub(crate) struct LastBranches {
    /// Oldest first.
    pub last: Vec<Branch>,
    /// There may be earlier ones.
    pub are_more: bool,
}

/// A branch of a thread, and where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub branch: Branch,
    /// Position behind the branch: its target is executed next.
    pub time: u64,
}

impl Debugger {
    /// The branches of `thread`, where the client sees it.
    pub(crate) fn selection_of(&self, thread: ThreadId) -> Selection {
        match self.processor_of(thread).filter(|_| self.is_kernel_view) {
            Some(processor) => Selection::Processor(processor),
            None => Selection::Thread(thread.thread),
        }
    }

    /// The branches among which the call of the function is in which `thread` is now. In the
    /// kernel's view, they are those of the task that the processor executes, unless it is idle.
    fn selection_of_calls(&self, thread: ThreadId) -> Selection {
        let selection = self.selection_of(thread);
        let Selection::Processor(processor) = selection else {
            return selection;
        };
        let executed = self.replay.tasks().map(|tasks| tasks.executed());
        let task = executed.and_then(|executed| *executed.get(processor)?);
        match task.filter(|task| task.thread != 0) {
            Some(task) => Selection::Task(task.thread),
            None => selection,
        }
    }

    /// The branches from position `start` on and before the present one, the last `limit` of them.
    /// The replay is at the same position afterwards.
    pub(crate) fn branches_since(
        &mut self,
        selection: Selection,
        start: u64,
        limit: usize,
    ) -> Result<LastBranches, Failure> {
        let now = self.replay.now();
        let (mut branches, mut searched) = (VecDeque::new(), now);
        let mut is_cut = false;
        while searched > start && branches.len() < limit {
            let from = self.replay.interval_before(searched, start);
            let log = self.begin_log(selection, from, limit - branches.len())?;
            self.log_until(selection, searched)?;
            let logged = lock(&log);
            is_cut = logged.count > logged.last.len() as u64;
            for branch in logged.last.iter().rev() {
                branches.push_front(*branch);
            }
            searched = from;
        }
        if self.replay.now() != now {
            self.replay.seek(now)?;
        }
        Ok(LastBranches {
            last: branches.into(),
            are_more: is_cut || searched > start,
        })
    }

    /// Goes to `start`, and logs the branches from there on.
    fn begin_log(
        &mut self,
        selection: Selection,
        start: u64,
        limit: usize,
    ) -> Result<Arc<Mutex<Logged>>, Failure> {
        self.replay.seek(start)?;
        let logged = self.empty_log(selection, limit);
        Ok(self.attach_log(logged))
    }

    /// An empty log that begins here.
    fn empty_log(&self, selection: Selection, limit: usize) -> Logged {
        let tasks = self.replay.tasks();
        let executed = tasks.map_or_else(Vec::new, |tasks| tasks.executed());
        let mut logged = Logged {
            selection,
            tasks: match selection {
                Selection::Program => self.replay.agent.processes.tasks(),
                _ => BTreeSet::new(),
            },
            is_current: Vec::new(),
            processor: 0,
            count: 0,
            last: VecDeque::new(),
            limit,
        };
        let executed = executed.iter();
        logged.is_current = executed
            .map(|executed| executed.is_some_and(|id| logged.has(id.thread)))
            .collect();
        logged
    }

    /// The probe that notes threads, if the branches are those of one.
    fn probe_for(&self, selection: Selection) -> Option<Probe> {
        let is_of_tasks = selection.thread().is_some() || selection == Selection::Program;
        is_of_tasks.then(|| self.replay.task_probe()).flatten()
    }

    fn attach_log(&mut self, logged: Logged) -> Arc<Mutex<Logged>> {
        let (selection, logged) = (logged.selection, Arc::new(Mutex::new(logged)));
        let probes = self.probe_for(selection).into_iter().collect();
        let sink = Box::new(Sink(logged.clone()));
        let log = BranchLog::new(selection.scope(), probes, sink);
        self.replay.begin_log(Box::new(log));
        logged
    }

    /// Runs to `until` with the log, and detaches that. A breakpoint has the processor look the
    /// probe's address up, to which there are jumps already without a look-up.
    fn log_until(&mut self, selection: Selection, until: u64) -> Result<(), Failure> {
        let probe = self.probe_for(selection).into_iter();
        let points = StopPoints {
            breakpoints: probe
                .map(|probe| Breakpoint {
                    address: probe.address,
                    space: None,
                })
                .collect(),
            ..StopPoints::default()
        };
        let ran = loop {
            match self.replay.run(until, &points) {
                Ok(Outcome::Stopped(_) | Outcome::Stepped) => {}
                Ok(Outcome::Paused | Outcome::Ended) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        self.replay.end_log();
        ran
    }

    /// Runs to `until`, and adds the branches on the way to `logged`.
    fn add_until(&mut self, logged: Logged, until: u64) -> Result<Logged, Failure> {
        let selection = logged.selection;
        let log = self.attach_log(logged);
        self.log_until(selection, until)?;
        let logged = lock(&log).clone();
        Ok(logged)
    }

    /// Finds the branch with number `nth`, from 1 on, of those that are executed from position
    /// `start` on and before `end`. The replay is anywhere afterwards.
    pub(crate) fn find_branch(
        &mut self,
        selection: Selection,
        start: u64,
        end: u64,
        nth: u64,
    ) -> Result<Option<Found>, Failure> {
        self.replay.seek(start)?;
        let mut logged = self.empty_log(selection, 1);
        let (mut low, mut high, mut step) = (self.replay.now(), end, SLICE);
        while low < high {
            let until = low.saturating_add(step).min(high);
            let after = self.add_until(logged.clone(), until)?;
            let now = self.replay.now();
            if after.count < nth {
                if now <= low {
                    break;
                }
                (logged, low) = (after, now);
            } else if step == 1 {
                let branch = after.last.back().copied();
                return Ok(branch.map(|branch| Found { branch, time: now }));
            } else {
                high = now;
                step = ((high - low) / PARTS).max(1);
                self.replay.seek(low)?;
            }
        }
        Ok(None)
    }

    /// Finds the call of the function in which `thread` is now, by the calls and returns that it
    /// has executed: the contents of its stack do not matter. The replay is anywhere afterwards.
    pub(crate) fn find_caller(&mut self, thread: ThreadId) -> Result<Option<Found>, Failure> {
        let mut searched = self.replay.now();
        let selection = self.selection_of_calls(thread);
        let mut transfers = HashMap::new();
        let mut returns = 0_u64;
        while searched > self.begin {
            let from = self.replay.interval_before(searched, self.begin);
            let log = self.begin_log(selection, from, MAX_BRANCHES)?;
            self.log_until(selection, searched)?;
            let logged = lock(&log).clone();
            for (n, branch) in logged.last.iter().rev().enumerate() {
                let at = branch.from;
                let transfer = transfers
                    .entry(at)
                    .or_insert_with(|| self.transfer_at(thread, at));
                match transfer {
                    Transfer::Return => returns += 1,
                    Transfer::Call if returns > 0 => returns -= 1,
                    Transfer::Call => {
                        let nth = logged.count - n as u64;
                        return self.find_branch(selection, from, searched, nth);
                    }
                    Transfer::Jump | Transfer::None => {}
                }
            }
            searched = from;
        }
        Ok(None)
    }

    /// What the branch instruction at `address` does with the stack. The kernel frees the code of
    /// its start, which its file still has, and patches code, so that its memory comes first.
    pub(crate) fn transfer_at(&self, thread: ThreadId, address: u64) -> Transfer {
        let mut code = [0; MAX_INSTRUCTION];
        let read = self.read_as(thread, address, &mut code);
        let bits = if self.is_32_bit { 32 } else { 64 };
        let transfer = Transfer::of(bits, code.get(..read).unwrap_or_default());
        match transfer {
            Transfer::None => Transfer::of(bits, self.kernel_code.at(address)),
            transfer => transfer,
        }
    }
}

/// Effect of a branch on the stack of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    Call,
    Return,
    Jump,
    /// The instruction is no branch: an event has come there, or other code was there.
    None,
}

impl Transfer {
    /// The transfer of the branch instruction `code` of a program of `bits` bits.
    fn of(bits: u32, code: &[u8]) -> Self {
        let instruction = Decoder::new(bits, code, DecoderOptions::NONE).decode();
        match (instruction.mnemonic(), instruction.flow_control()) {
            (Mnemonic::Call, _) => Self::Call,
            (Mnemonic::Ret | Mnemonic::Retf, _) => Self::Return,
            (Mnemonic::INVALID | Mnemonic::Int3, _) | (_, FlowControl::Next) => Self::None,
            _ => Self::Jump,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_returns_are_told_from_jumps() {
        let of = |code| Transfer::of(64, code);
        assert_eq!(of(&[0xE8, 1, 2, 3, 4]), Transfer::Call);
        // call *%rax, call *%r10, bnd call, call *8(%rip)
        assert_eq!(of(&[0xFF, 0xD0]), Transfer::Call);
        assert_eq!(of(&[0x41, 0xFF, 0xD2]), Transfer::Call);
        assert_eq!(of(&[0xF2, 0xE8, 0, 0, 0, 0]), Transfer::Call);
        assert_eq!(of(&[0xFF, 0x15, 8, 0, 0, 0]), Transfer::Call);
        assert_eq!(of(&[0xF3, 0xC3]), Transfer::Return);
        assert_eq!(of(&[0xC2, 8, 0]), Transfer::Return);
        // jmp *%rax, jmp, jne, syscall
        for other in [
            &[0xFF, 0xE0][..],
            &[0xEB, 2],
            &[0x0F, 0x85, 0, 0, 0, 0],
            &[0x0F, 5],
        ] {
            assert_eq!(of(other), Transfer::Jump);
        }
        // nop, int3 of freed code
        for none in [&[0x90][..], &[0xCC, 0xCC], &[]] {
            assert_eq!(of(none), Transfer::None);
        }
    }

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
