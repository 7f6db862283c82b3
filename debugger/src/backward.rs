//! Execution backward: intervals of the replay run forward, the last one first, and the last stop
//! in one of them is the one that is looked for.

use vbts_cpu::{StopCause, StopPoints};
use vbts_gdb::{Stop, StopReason, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::replay::{EventKind, Outcome};

/// The vector of a system call of Linux with INT.
const INT_80: u64 = 0x80;

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
        self.drop_departure()?;
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
            && let Some(processor) = self.processor_of(*thread)
        {
            self.replay.seek(now - 1)?;
            let is_next = self.replay.now() == now - 1 && self.replay.has_turn(processor);
            if is_next && self.processor_of(*thread) == Some(processor) {
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
                Outcome::Paused | Outcome::Stepped => {}
                Outcome::Ended => return Ok(()),
            }
        }
    }

    /// The last stop at one of `points` between the first position and `from` for which `found`
    /// returns a position: that position.
    pub(crate) fn find_last(
        &mut self,
        from: u64,
        points: impl Fn(&Self) -> StopPoints,
        found: impl Fn(&Self, &[StopCause]) -> Option<u64>,
    ) -> Result<Option<u64>, Failure> {
        self.search_intervals(from, |debugger, start, search| {
            let mut last = None;
            debugger.run_interval(start, search, &points, |debugger, causes| {
                last = found(debugger, causes).or(last);
            })?;
            Ok(last)
        })
    }

    /// Calls `find` with the start of each interval before `from` and with the search so far, the
    /// last interval first, until it returns something.
    pub(crate) fn search_intervals<T>(
        &mut self,
        from: u64,
        mut find: impl FnMut(&mut Self, u64, Search) -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        let mut search = Search {
            from,
            searched: from,
        };
        while search.searched > self.begin {
            let start = self.replay.interval_before(search.searched, self.begin);
            let found = find(self, start, search)?;
            if found.is_some() {
                return Ok(found);
            }
            search.searched = start;
        }
        Ok(None)
    }

    /// The last stop in an interval: its position, the thread and the reason.
    fn last_stop(
        &mut self,
        start: u64,
        search: Search,
    ) -> Result<Option<(u64, ThreadId, StopReason)>, Failure> {
        self.replay.seek(start)?;
        let event = self.last_event(start, search.searched.min(search.from));
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
        let stops = [last, event].into_iter().flatten();
        match stops.max_by_key(|(time, ..)| *time) {
            Some((time, thread, StopReason::Exec { .. })) => {
                self.former_program(thread, time).map(Some)
            }
            stop => Ok(stop),
        }
    }

    /// A breakpoint at the present position, at which no run stops that begins here.
    fn stop_at_start(&self) -> Option<(u64, ThreadId, StopReason)> {
        let cpu = self.replay.cpu()?;
        let address = cpu.linear_ip(cpu.rip);
        let points = self.stop_points(false);
        let mut breakpoints = points.breakpoints.iter();
        breakpoints.find(|point| point.address == address)?;
        let stop = self.stop_for(&[StopCause::Breakpoint { address }])?;
        Some((self.replay.now(), stop.thread, stop.reason))
    }

    /// The position of the last instruction that `thread` has completed in an interval.
    pub(crate) fn last_instruction(
        &mut self,
        thread: ThreadId,
        start: u64,
        search: Search,
    ) -> Result<Option<u64>, Failure> {
        self.replay.seek(start)?;
        // The processor on which the present stay of the thread is, and its beginning.
        let mut stay = self
            .processor_of(thread)
            .map(|processor| (processor, start));
        let mut last = None;
        self.run_interval(start, search, Self::stay_points, |debugger, _| {
            match (stay, debugger.processor_of(thread)) {
                (None, Some(processor)) => stay = Some((processor, debugger.replay.now())),
                (Some((processor, since)), None) => {
                    let is_instruction = debugger.is_in_syscall(processor);
                    let completed = debugger.last_completed(processor, since, is_instruction);
                    last = completed.or(last);
                    stay = None;
                }
                _ => {}
            }
        })?;
        if let Some((processor, since)) = stay {
            last = self.last_completed(processor, since, true).or(last);
        }
        Ok(last.filter(|time| *time < search.from))
    }

    /// Returns whether the processor has just executed SYSCALL, or the SYSENTER or INT 0x80 of a
    /// 32-bit program: it is at the target.
    fn is_in_syscall(&self, processor: usize) -> bool {
        let Some(cpu) = self.replay.processor(processor) else {
            return false;
        };
        let mut gate = [0; 16];
        let at = cpu.sys.idtr.base.wrapping_add(gate.len() as u64 * INT_80);
        // A gate has its target in three parts (SDM Vol. 3A 7.14.1).
        let is_read = cpu.read_quietly(at, &mut gate);
        let [low, high] = [0, 8].map(|n| u64::from_le_bytes(std::array::from_fn(|i| gate[n + i])));
        let target = low & 0xFFFF | (low >> 48) << 16 | high << 32;
        let msr = &cpu.msr;
        [msr.lstar, msr.cstar, msr.sysenter_eip].contains(&cpu.rip) || is_read && target == cpu.rip
    }

    /// The position of the last instruction that a processor has completed since position `since`.
    /// The last step of the processor is an instruction, or the delivery of an event.
    fn last_completed(&self, processor: usize, since: u64, is_instruction: bool) -> Option<u64> {
        let [last, before] = self.replay.last_steps(processor);
        let completed = match is_instruction {
            true => last,
            false => before,
        };
        completed.filter(|position| *position >= since)
    }
}
