//! The branches that a thread or a processor has executed, which a replay makes: intervals of the
//! run are run again with a log of branches.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use vbts_cpu::{BranchLog, Breakpoint, Probe, StopPoints};
use vbts_devices::lock;
use vbts_gdb::{Branch, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::logged::{Logged, Selection, Sink};
use crate::replay::Outcome;

/// Parts into which the search for a branch divides an interval.
const PARTS: u64 = 64;
/// Virtual time in ns whose branches are counted at once.
const SLICE: u64 = 1 << 26;

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
    pub(crate) fn begin_log(
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
    pub(crate) fn log_until(&mut self, selection: Selection, until: u64) -> Result<(), Failure> {
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
}
