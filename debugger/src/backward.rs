//! Execution backward: intervals of the replay run forward, the last one first, and the last stop
//! in one of them is the one that is looked for.

use vbts_cpu::{StopCause, StopPoints};
use vbts_gdb::{Stop, StopReason, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::replay::{EventKind, Outcome};

/// A search that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Search {
    /// Position from which the search began.
    pub from: u64,
    /// The positions from here on are searched.
    pub searched: u64,
}

impl Debugger {
    /// Searches an interval backward, for the stop that is before the present position.
    pub(crate) fn run_backward(&mut self) -> Result<Option<Stop>, Failure> {
        let now = self.replay.now();
        let search = self.search.unwrap_or(Search {
            from: now,
            searched: now,
        });
        if search.searched <= self.begin {
            return self.reach_begin().map(Some);
        }
        let step = self.stepped();
        if let Some((thread, _)) = &step
            && self.search.is_none()
            && self.tasks()?.in_user_mode() == Some(*thread)
        {
            self.replay.seek(now - 1)?;
            if self.tasks()?.in_user_mode() == Some(*thread) {
                return Ok(Some(Stop {
                    thread: *thread,
                    reason: StopReason::Step,
                }));
            }
        }
        let start = self.replay.interval_before(search.searched, self.begin);
        let found = match step {
            Some((thread, _)) => self
                .last_instruction(thread, start, search)?
                .map(|time| (time, thread, StopReason::Step)),
            None => self.last_stop(start, search)?,
        };
        if let Some((time, thread, reason)) = found {
            self.search = None;
            self.replay.seek(time)?;
            return Ok(Some(Stop { thread, reason }));
        }
        self.search = Some(Search {
            searched: start,
            ..search
        });
        if start <= self.begin {
            return self.reach_begin().map(Some);
        }
        Ok(None)
    }

    fn reach_begin(&mut self) -> Result<Stop, Failure> {
        self.search = None;
        self.replay.seek(self.begin)?;
        Ok(self.stop_here(StopReason::HistoryBegin))
    }

    /// Runs from `start` to where `search` has been, with stop points that `points` makes. Calls
    /// `stopped` at each stop.
    pub(crate) fn run_interval(
        &mut self,
        start: u64,
        search: Search,
        points: impl Fn(&Self) -> StopPoints,
        mut stopped: impl FnMut(&Self, &[StopCause]),
    ) -> Result<(), Failure> {
        self.replay.seek(start)?;
        loop {
            let now = self.replay.now();
            if now >= search.searched {
                return Ok(());
            }
            // An exec exchanges the address space.
            let exec = self.replay.events.iter().find(|event| {
                event.time > now
                    && event.thread.process == self.process
                    && event.kind == EventKind::Exec
            });
            let until = exec.map_or(search.searched, |event| event.time.min(search.searched));
            let wanted = points(self);
            match self.replay.run(until, &wanted)? {
                Outcome::Stopped(causes) => stopped(self, &causes),
                Outcome::Paused => {}
                Outcome::Ended => return Ok(()),
            }
        }
    }

    /// The last stop in an interval: its position, the thread and the reason.
    fn last_stop(
        &mut self,
        start: u64,
        search: Search,
    ) -> Result<Option<(u64, ThreadId, StopReason)>, Failure> {
        self.replay.seek(start)?;
        let mut last = self.stop_at_start();
        self.run_interval(
            start,
            search,
            |debugger| debugger.stop_points(false),
            |debugger, causes| {
                let now = debugger.replay.now();
                let Some(stop) = debugger.stop_for(causes) else {
                    return;
                };
                // The state before the access.
                let time = match stop.reason {
                    StopReason::Watchpoint { .. } => now.saturating_sub(1),
                    _ => now,
                };
                if time < search.from {
                    last = Some((time, stop.thread, stop.reason));
                }
            },
        )?;
        Ok(last)
    }

    /// A breakpoint at the present position, at which no run stops that begins here.
    fn stop_at_start(&self) -> Option<(u64, ThreadId, StopReason)> {
        let tasks = self.replay.tasks()?;
        let address = self.replay.cpu()?.rip;
        tasks.in_user_mode()?;
        let points = self.stop_points(false);
        let mut breakpoints = points.breakpoints.iter();
        breakpoints.find(|point| point.address == address)?;
        let stop = self.stop_for(&[StopCause::Breakpoint { address }])?;
        Some((self.replay.now(), stop.thread, stop.reason))
    }

    /// The position of the last instruction that `thread` has completed in an interval.
    fn last_instruction(
        &mut self,
        thread: ThreadId,
        start: u64,
        search: Search,
    ) -> Result<Option<u64>, Failure> {
        self.replay.seek(start)?;
        let is_there = |debugger: &Self| {
            let tasks = debugger.replay.tasks();
            tasks.and_then(|tasks| tasks.in_user_mode()) == Some(thread)
        };
        // Where the present stay in user mode has begun.
        let mut entered = is_there(self).then_some(start);
        let mut last = None;
        self.run_interval(
            start,
            search,
            |debugger| StopPoints {
                user_mode_of: debugger.space(),
                ..StopPoints::default()
            },
            |debugger, _| {
                let now = debugger.replay.now();
                if is_there(debugger) {
                    entered = Some(now);
                } else if let Some(since) = entered.take() {
                    last = last_completed(since, now, debugger.is_in_syscall()).or(last);
                }
            },
        )?;
        if let Some(since) = entered {
            let now = self.replay.now();
            last = last_completed(since, now, true).or(last);
        }
        Ok(last.filter(|time| *time < search.from))
    }

    /// Returns whether the processor has just executed SYSCALL: it is at its target.
    fn is_in_syscall(&self) -> bool {
        let cpu = self.replay.cpu();
        cpu.is_some_and(|cpu| cpu.rip == cpu.msr.lstar)
    }
}

/// The position of the last instruction of a stay in user mode that was completed. The stay lasts
/// from `since` to `until`, and the last ns of it is an instruction, or the delivery of an event.
fn last_completed(since: u64, until: u64, is_instruction: bool) -> Option<u64> {
    let last = until.checked_sub(if is_instruction { 1 } else { 2 })?;
    (last >= since).then_some(last)
}
