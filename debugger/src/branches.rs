//! The branches that a thread has executed, which a replay makes: intervals of the run are run
//! again with a log of branches.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use vbts_cpu::{BranchLog, Breakpoint, LogBuffer, LogEntry, LogScope, LogSink, StopPoints};
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

/// Branches of a thread that have been logged.
#[derive(Debug, Clone, Default)]
struct Logged {
    /// Number of the thread.
    thread: u32,
    /// The processor executes that thread.
    is_current: bool,
    /// Branches of the thread since the log has begun.
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
                LogEntry::Task { ids, .. } => logged.is_current = ids as u32 == logged.thread,
                // A return from the kernel is no branch of the program.
                LogEntry::Branch { from, to } if logged.is_current && !is_kernel(from) => {
                    logged.push(Branch { from, to });
                }
                _ => {}
            }
        }
        full
    }
}

/// Returns whether Linux has `address` for itself.
fn is_kernel(address: u64) -> bool {
    (address as i64) < 0
}

impl Logged {
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
    /// The branches that `thread` has executed from position `start` on and before the present one,
    /// the last `limit` of them. The replay is at the same position afterwards.
    pub(crate) fn branches_since(
        &mut self,
        thread: ThreadId,
        start: u64,
        limit: usize,
    ) -> Result<LastBranches, Failure> {
        let now = self.replay.now();
        let (mut branches, mut searched) = (VecDeque::new(), now);
        let mut is_cut = false;
        while searched > start && branches.len() < limit {
            let from = self.replay.interval_before(searched, start);
            let log = self.begin_log(thread, from, limit - branches.len())?;
            self.log_until(searched)?;
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

    /// Goes to `start`, and logs the branches of `thread` from there on.
    fn begin_log(
        &mut self,
        thread: ThreadId,
        start: u64,
        limit: usize,
    ) -> Result<Arc<Mutex<Logged>>, Failure> {
        self.replay.seek(start)?;
        let is_current = self.tasks()?.executed() == Some(thread);
        Ok(self.attach_log(Logged {
            thread: thread.thread,
            is_current,
            limit,
            ..Logged::default()
        }))
    }

    fn attach_log(&mut self, logged: Logged) -> Arc<Mutex<Logged>> {
        let logged = Arc::new(Mutex::new(logged));
        let probe = self.replay.task_probe();
        let sink = Box::new(Sink(logged.clone()));
        self.replay
            .begin_log(Box::new(BranchLog::new(LogScope::USER, vec![probe], sink)));
        logged
    }

    /// Runs to `until` with the log, and detaches that. A breakpoint has the processor look the
    /// probe's address up, to which there are jumps already without a look-up.
    fn log_until(&mut self, until: u64) -> Result<(), Failure> {
        let points = StopPoints {
            breakpoints: vec![Breakpoint {
                address: self.replay.task_probe().address,
                space: None,
            }],
            ..StopPoints::default()
        };
        let ran = loop {
            match self.replay.run(until, &points) {
                Ok(Outcome::Stopped(_)) => {}
                Ok(Outcome::Paused | Outcome::Ended) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        self.replay.end_log();
        ran
    }

    /// Runs to `until`, and adds the branches on the way to `logged`.
    fn add_until(&mut self, logged: Logged, until: u64) -> Result<Logged, Failure> {
        let log = self.attach_log(logged);
        self.log_until(until)?;
        let logged = lock(&log).clone();
        Ok(logged)
    }

    /// Finds the branch with number `nth`, from 1 on, of those that `thread` executes from position
    /// `start` on and before `end`. The replay is anywhere afterwards.
    pub(crate) fn find_branch(
        &mut self,
        thread: ThreadId,
        start: u64,
        end: u64,
        nth: u64,
    ) -> Result<Option<Found>, Failure> {
        self.replay.seek(start)?;
        let mut logged = Logged {
            thread: thread.thread,
            is_current: self.tasks()?.executed() == Some(thread),
            limit: 1,
            ..Logged::default()
        };
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
        let mut transfers = HashMap::new();
        let mut returns = 0_u64;
        while searched > self.begin {
            let from = self.replay.interval_before(searched, self.begin);
            let log = self.begin_log(thread, from, MAX_BRANCHES)?;
            self.log_until(searched)?;
            let logged = lock(&log).clone();
            for (n, branch) in logged.last.iter().rev().enumerate() {
                let at = branch.from;
                let transfer = transfers.entry(at).or_insert_with(|| self.transfer_at(at));
                match transfer {
                    Transfer::Return => returns += 1,
                    Transfer::Call if returns > 0 => returns -= 1,
                    Transfer::Call => {
                        let nth = logged.count - n as u64;
                        return self.find_branch(thread, from, searched, nth);
                    }
                    Transfer::Other => {}
                }
            }
            searched = from;
        }
        Ok(None)
    }

    /// What the branch instruction at `address` does with the stack.
    fn transfer_at(&self, address: u64) -> Transfer {
        let mut code = [0; MAX_INSTRUCTION];
        let space_and_tasks = self.space().zip(self.replay.tasks());
        let read =
            space_and_tasks.map_or(0, |(space, tasks)| tasks.read(space, address, &mut code));
        Transfer::of(code.get(..read).unwrap_or_default())
    }
}

/// Effect of a branch on the stack of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    Call,
    Return,
    Other,
}

impl Transfer {
    /// The transfer of the branch instruction `code` of a 64-bit program.
    fn of(code: &[u8]) -> Self {
        match Decoder::new(64, code, DecoderOptions::NONE)
            .decode()
            .mnemonic()
        {
            Mnemonic::Call => Self::Call,
            Mnemonic::Ret | Mnemonic::Retf => Self::Return,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_returns_are_told_from_jumps() {
        let of = Transfer::of;
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
            &[],
        ] {
            assert_eq!(of(other), Transfer::Other);
        }
    }

    #[test]
    fn a_log_keeps_the_last_branches_of_its_thread() {
        let mut logged = Logged {
            limit: 2,
            ..Logged::default()
        };
        let branch = |from| Branch { from, to: from + 1 };
        (1..=5).for_each(|from| logged.push(branch(from)));
        assert_eq!(
            (logged.count, logged.last),
            (5, [branch(4), branch(5)].into())
        );
        let mut none = Logged::default();
        none.push(branch(1));
        assert_eq!((none.count, none.last.len()), (1, 0));
    }
}
