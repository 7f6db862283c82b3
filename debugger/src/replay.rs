//! A replay that a debugger drives: it runs to stop points and to times, and knows the events of
//! the whole run.

use serde::{Deserialize, Serialize};
use vbts_cpu::{BranchLog, Breakpoint, Cpu, Probe, StopCause, StopPoints};
use vbts_gdb::ThreadId;
use vbts_host::exit::Failure;
use vbts_vmm::machine::{End, History, Machine};

use crate::agent::Agent;
use crate::departure::Departure;
use crate::kept::SnapshotFiles;
use crate::layout::Layout;
use crate::tasks::Tasks;
use crate::tracer_stop::TracerStop;

/// Bytes of `siginfo_t`.
const SIGINFO_SIZE: usize = 128;
/// Events of a run behind which signals and forks are not noted any more.
const MAX_EVENTS: usize = 1 << 20;
/// Virtual time in ns between two reports of progress.
const PROGRESS_INTERVAL: u64 = 50_000_000;
/// Number of the system call `exit_group`.
pub(crate) const EXIT_GROUP: u64 = 231;

/// An event of a thread that the agent traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskEvent {
    /// Virtual time in ns. The thread is in the kernel then, about to wait for the agent.
    pub time: u64,
    pub thread: ThreadId,
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EventKind {
    /// The thread gets a signal: its number, and its `siginfo_t`.
    Signal(u8, Vec<u8>),
    /// It has made a process with this number.
    Fork(u32),
    /// It has made a process with this number, for which it waits.
    Vfork(u32),
    /// It executes another program.
    Exec,
    /// It is about to exit, in a call of `exit_group` or in another way.
    Exit { of_process: bool },
}

/// A replay of a recording.
#[derive(Debug)]
pub(crate) struct Replay {
    pub machine: Machine,
    pub history: History,
    pub agent: Agent,
    /// `None` if the kernel tells nothing of its tasks.
    layout: Option<Layout>,
    /// Address of the kernel's function `panic`, if that is known.
    panic_function: Option<u64>,
    /// The events of all threads that the agent traces, oldest first.
    pub events: Vec<TaskEvent>,
    /// The stop points that the processors have; `None` after a jump in time.
    pub(crate) points: Option<StopPoints>,
    /// Virtual time in ns of the end of the run.
    pub end: u64,
    /// Virtual time in ns of the failure of the guest: of the first call of `panic`, or else of its
    /// end.
    pub failure: Option<u64>,
    /// The snapshots come from an earlier session.
    pub is_loaded: bool,
    /// The processor that does not stop at the breakpoint at which it is when the next run begins.
    pub(crate) leaves: Option<usize>,
    /// The program was changed, and has another future than the recorded one.
    pub departure: Option<Departure>,
}

impl Replay {
    /// Begins a replay that knows the events and the end of the whole run: from the snapshots of an
    /// earlier session in `kept`, or because it runs to the end once and tells `progress`.
    ///
    /// # Errors
    /// The replay differs from the recording.
    pub(crate) fn open(
        machine: Machine,
        agent: Agent,
        layout: Option<Layout>,
        panic_function: Option<u64>,
        snapshots: usize,
        kept: Option<&SnapshotFiles>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Failure> {
        let mut replay = Self {
            machine,
            history: History::new(snapshots),
            agent,
            layout,
            panic_function,
            events: Vec::new(),
            points: None,
            end: u64::MAX,
            failure: None,
            is_loaded: false,
            leaves: None,
            departure: None,
        };
        replay.machine.enter_sandbox()?;
        if let Some(files) = kept
            && let Some(old) = &files.old
            && replay.load(old, &files.key)?
        {
            return Ok(replay);
        }
        replay.run_through(progress)?;
        Ok(replay)
    }

    /// Runs the replay to its end, and notes the events on the way.
    fn run_through(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let ptrace_stop = self.layout.as_ref().map(|layout| layout.ptrace_stop);
        let addresses = ptrace_stop.into_iter().chain(self.panic_function);
        let points = StopPoints {
            breakpoints: addresses
                .map(|address| Breakpoint {
                    address,
                    space: None,
                })
                .collect(),
            ..StopPoints::default()
        };
        loop {
            let until = self.now().saturating_add(PROGRESS_INTERVAL);
            match self.run(until, &points) {
                Ok(Outcome::Stopped(_)) => self.note_event(),
                Ok(Outcome::Paused | Outcome::Stepped) => {
                    progress(self.now(), self.instructions());
                }
                Ok(Outcome::Ended) => break,
                Err(failure) => return Err(failure),
            }
        }
        self.end = self.now();
        Ok(())
    }

    /// Notes why the current task waits for its tracer, or that the kernel panics.
    fn note_event(&mut self) {
        let Some(cpu) = self.cpu() else {
            return;
        };
        if self.panic_function == Some(cpu.rip) {
            self.failure.get_or_insert(self.machine.now());
            return;
        }
        let Some(tasks) = self.tasks() else {
            return;
        };
        let thread = tasks.current().and_then(|task| tasks.id(task));
        let kind = match TracerStop::of(cpu, &tasks) {
            Some(TracerStop::Signal(signal, info)) => {
                let mut bytes = info.to_vec();
                bytes.resize(SIGINFO_SIZE, 0);
                EventKind::Signal(signal, bytes)
            }
            Some(TracerStop::Fork(child)) => EventKind::Fork(child),
            Some(TracerStop::Vfork(child)) => EventKind::Vfork(child),
            Some(TracerStop::Exec) => EventKind::Exec,
            Some(TracerStop::Exit(_)) => EventKind::Exit {
                of_process: tasks.current_call() == Some(EXIT_GROUP),
            },
            None => return,
        };
        let is_needed = matches!(kind, EventKind::Exec | EventKind::Exit { .. });
        if !is_needed && self.events.len() >= MAX_EVENTS {
            return;
        }
        if let Some(thread) = thread {
            let time = self.now();
            self.events.push(TaskEvent { time, thread, kind });
        }
    }

    /// The present position: virtual time in ns.
    pub(crate) fn now(&self) -> u64 {
        self.machine.now()
    }

    /// Instructions of all processors up to now.
    pub(crate) fn instructions(&self) -> u64 {
        self.machine.instructions()
    }

    /// The kernel's view of its tasks now.
    pub(crate) fn tasks(&self) -> Option<Tasks<'_>> {
        Tasks::new(&self.machine, self.layout.as_ref()?)
    }

    /// The processor that has its turn.
    pub(crate) fn cpu(&self) -> Option<&Cpu> {
        self.machine.current_processor().map(|(_, cpu)| cpu)
    }

    /// The number of the processor that has its turn.
    pub(crate) fn current_number(&self) -> Option<usize> {
        self.machine.current_processor().map(|(number, _)| number)
    }

    /// The processor with this number.
    pub(crate) fn processor(&self, number: usize) -> Option<&Cpu> {
        self.machine.processors().nth(number)
    }

    /// Runs up to virtual time `until` in ns, or to one of `points` before. A processor stops at a
    /// breakpoint at which it is, unless it has stopped there before or is told to leave it.
    pub(crate) fn run(&mut self, until: u64, points: &StopPoints) -> Result<Outcome, Failure> {
        self.step(until, points, None)
    }

    /// Does what [`Self::run`] does, up to the next step of `processor` at most: an instruction, or
    /// the delivery of an event.
    pub(crate) fn step(
        &mut self,
        until: u64,
        points: &StopPoints,
        processor: Option<usize>,
    ) -> Result<Outcome, Failure> {
        if self.is_at_end() {
            return Ok(Outcome::Ended);
        }
        if self.points.as_ref() != Some(points) {
            self.machine.set_stop_points(points);
            self.points = Some(points.clone());
        }
        if let Some(processor) = self.leaves.take() {
            self.machine.leave_stop(processor);
        }
        self.machine.set_step(processor);
        let ended = self
            .history
            .run_until(&mut self.machine, until, &mut self.agent);
        self.machine.set_step(None);
        let ended = match (ended, &mut self.departure) {
            (Err(failure), Some(departure)) => {
                departure.end = Some(failure.to_string());
                return Ok(Outcome::Ended);
            }
            // A guest that crashed has reached its end, too.
            (Err(Failure::Guest { .. }), None) => {
                self.failure.get_or_insert(self.machine.now());
                return Ok(Outcome::Ended);
            }
            (ended, _) => ended?,
        };
        Ok(match ended {
            Some(End::Stop) => {
                let causes = self.machine.take_stop_causes();
                let is_breakpoint =
                    |cause: &StopCause| matches!(cause, StopCause::Breakpoint { .. });
                if causes.iter().any(is_breakpoint) {
                    self.leaves = self.machine.current_processor().map(|(number, _)| number);
                }
                match causes.is_empty() {
                    true => Outcome::Stepped,
                    false => Outcome::Stopped(causes),
                }
            }
            Some(_) => Outcome::Ended,
            None => Outcome::Paused,
        })
    }

    /// The last two steps of a processor: the positions from which they began, the latest first.
    pub(crate) fn last_steps(&self, processor: usize) -> [Option<u64>; 2] {
        self.machine.last_steps(processor)
    }

    /// Returns whether the next step is certain to be one of this processor.
    pub(crate) fn has_turn(&self, processor: usize) -> bool {
        self.machine.has_turn(processor)
    }

    /// Goes to virtual time `time` in ns, or to the next one at which the machine is if it is idle
    /// then.
    ///
    /// What the program does after a change of it is dropped.
    pub(crate) fn seek(&mut self, time: u64) -> Result<(), Failure> {
        self.end_departure();
        self.machine.set_stop_points(&StopPoints::default());
        self.points = None;
        match self.history.seek(&mut self.machine, time, &mut self.agent) {
            Err(Failure::Guest { .. }) if self.now() >= self.end => {}
            sought => sought?,
        }
        self.leaves = self.machine.current_processor().map(|(number, _)| number);
        Ok(())
    }

    /// The address of the kernel's function in which a task waits for its tracer.
    pub(crate) fn ptrace_stop(&self) -> u64 {
        self.layout.as_ref().map_or(0, |layout| layout.ptrace_stop)
    }

    /// The addresses at which the kernel begins and ends a system call, if they are known.
    pub(crate) fn system_call(&self) -> Option<[u64; 2]> {
        self.layout.as_ref()?.system_call
    }

    /// The address of the page of zeros that programs share.
    pub(crate) fn zero_page(&self) -> u64 {
        self.layout.as_ref().map_or(0, |layout| layout.zero_page)
    }

    /// The probe that notes in a log which task the kernel executes.
    pub(crate) fn task_probe(&self) -> Option<Probe> {
        Some(self.layout.as_ref()?.task_probe)
    }

    /// Logs the branches that the machine executes from here on.
    pub(crate) fn begin_log(&mut self, log: Box<BranchLog>) {
        self.machine.record_in(log);
    }

    /// Hands over what the log has, and logs no more.
    pub(crate) fn end_log(&mut self) {
        self.machine.end_recording();
    }

    /// The time in ns, not before `first`, from which a run to `time` is short: that of the last
    /// snapshot before it.
    pub(crate) fn interval_before(&self, time: u64, first: u64) -> u64 {
        let snapshot = self.history.times().rfind(|at| *at < time);
        snapshot.unwrap_or(first).max(first)
    }

    /// The first position: that of the first snapshot.
    pub(crate) fn first(&self) -> u64 {
        self.history.times().next().unwrap_or(0)
    }

    /// The next event of `process` behind the present position.
    pub(crate) fn next_event(&self, process: u32) -> Option<&TaskEvent> {
        let now = self.now();
        let first = self.events.partition_point(|event| event.time <= now);
        let mut events = self.events.iter().skip(first);
        events.find(|event| event.thread.process == process)
    }

    /// The program does not repeat instructions that have faulted.
    pub(crate) fn forget_faults(&mut self) {
        self.machine.forget_faults();
    }
}

/// End of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// At a stop point.
    Stopped(Vec<StopCause>),
    /// Behind the step of a processor.
    Stepped,
    /// At the time that was asked for.
    Paused,
    /// At the end of the recording.
    Ended,
}
