//! A target that moves along a recorded execution.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use vbts_gdb::{
    BranchHistory, Capabilities, Condition, Direction, ProcessInfo, RegisterLayout, Registers,
    Result, Resumption, Stop, StopPoint, StopReason, SyscallFilter, Target, TargetError,
    TargetFile, ThreadAction, ThreadId, ThreadInfo, WatchAccess,
};

use crate::execution::{Execution, MEMORY};

pub const MAIN: ThreadId = ThreadId {
    process: 40,
    thread: 40,
};
/// A thread that stays at its first instruction.
pub const WAITING: ThreadId = ThreadId {
    process: 40,
    thread: 41,
};
/// Instructions of a slice: few, so that a run has several.
const SLICE: usize = 100;
const SIGINT: u8 = 2;

/// The execution, and where in it the target is.
#[derive(Debug)]
pub struct RecordedTarget {
    execution: &'static Execution,
    step: usize,
    memory: Vec<u8>,
    points: HashSet<StopPoint>,
    /// Conditions of breakpoints, by address.
    conditions: HashMap<u64, Vec<Condition>>,
    /// Number of conditions that did not hold.
    pub passed_conditions: Cell<u32>,
    running: Option<(Direction, ThreadAction)>,
    /// The step at which the last resumption began.
    resumed_at: usize,
    stop: StopReason,
    traced_since: Option<usize>,
    /// Whether the branches from before the recording began are given, too.
    pub all_branches: bool,
    /// Registers that the client has written. They are dropped at the next resumption.
    written: Option<Registers>,
    /// The selections of system calls, the last one at the end.
    pub caught: Vec<SyscallFilter>,
    pub passed_signals: Option<u64>,
    pub detached: bool,
    pub killed: bool,
}

impl RecordedTarget {
    pub fn new(execution: &'static Execution) -> Self {
        let mut target = Self {
            execution,
            step: execution.states.len() - 1,
            memory: execution.final_memory.clone(),
            points: HashSet::new(),
            conditions: HashMap::new(),
            passed_conditions: Cell::new(0),
            running: None,
            resumed_at: 0,
            stop: StopReason::Signal(5),
            traced_since: None,
            all_branches: false,
            written: None,
            caught: Vec::new(),
            passed_signals: None,
            detached: false,
            killed: false,
        };
        target.seek(0);
        target
    }

    /// Moves to a step.
    pub fn seek(&mut self, step: usize) {
        while self.step > step {
            self.step -= 1;
            for &(at, old, _) in &self.execution.changes[self.step] {
                self.memory[at] = old;
            }
        }
        while self.step < step {
            for &(at, _, new) in &self.execution.changes[self.step] {
                self.memory[at] = new;
            }
            self.step += 1;
        }
    }

    fn registers(&self) -> &Registers {
        self.written
            .as_ref()
            .unwrap_or(&self.execution.states[self.step])
    }

    /// Returns the watchpoint that the instruction of `step` hits.
    fn watched(&self, step: usize) -> Option<StopReason> {
        self.points.iter().find_map(|&point| {
            let StopPoint::Watchpoint {
                address,
                length,
                access,
            } = point
            else {
                return None;
            };
            let changes = &self.execution.changes[step];
            let hit = changes.iter().find(|(at, ..)| {
                (address..address + length).contains(&(*at as u64)) && access != WatchAccess::Read
            })?;
            Some(StopReason::Watchpoint {
                access,
                address: hit.0 as u64,
            })
        })
    }

    fn breakpoint(&self) -> Option<StopReason> {
        let address = self.execution.states[self.step].rip;
        if !self.condition_holds(address) {
            self.passed_conditions.set(self.passed_conditions.get() + 1);
            None
        } else if self.points.contains(&StopPoint::Breakpoint { address }) {
            Some(StopReason::Breakpoint)
        } else if self
            .points
            .contains(&StopPoint::HardwareBreakpoint { address })
        {
            Some(StopReason::HardwareBreakpoint)
        } else {
            None
        }
    }

    fn condition_holds(&self, address: u64) -> bool {
        let Some(conditions) = self.conditions.get(&address) else {
            return true;
        };
        let mut read = |address: u64, bytes: &mut [u8]| {
            let memory = self.memory.get(address as usize..).unwrap_or_default();
            let memory = memory.get(..bytes.len());
            memory
                .inspect(|memory| bytes.copy_from_slice(memory))
                .is_some()
        };
        conditions
            .iter()
            .any(|condition| condition.holds(self.registers(), &mut read))
    }

    /// Executes an instruction, and returns why the target stops after it.
    fn advance(&mut self, action: &ThreadAction) -> Option<StopReason> {
        if self.step + 1 == self.execution.states.len() {
            return Some(StopReason::HistoryEnd);
        }
        let reason = self.watched(self.step);
        self.seek(self.step + 1);
        reason
            .or_else(|| self.breakpoint())
            .or_else(|| self.action_ends(action))
    }

    /// Goes back by an instruction.
    fn retreat(&mut self, action: &ThreadAction) -> Option<StopReason> {
        if self.step == 0 {
            return Some(StopReason::HistoryBegin);
        }
        self.seek(self.step - 1);
        let reason = self.watched(self.step);
        reason
            .or_else(|| self.breakpoint())
            .or_else(|| self.action_ends(action))
    }

    fn action_ends(&self, action: &ThreadAction) -> Option<StopReason> {
        let is_inside = |range: &Range<u64>| range.contains(&self.execution.states[self.step].rip);
        match action {
            ThreadAction::Continue { .. } => None,
            ThreadAction::Step { .. } => Some(StopReason::Step),
            ThreadAction::StepRange(range) => (!is_inside(range)).then_some(StopReason::Step),
        }
    }

    fn check(thread: ThreadId) -> Result<()> {
        if thread == MAIN || thread == WAITING {
            Ok(())
        } else {
            Err(TargetError::Errno(3))
        }
    }
}

impl Target for RecordedTarget {
    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn register_layout(&mut self, _: u32) -> Result<RegisterLayout> {
        Ok(RegisterLayout {
            is_32_bit: false,
            is_linux: true,
            has_avx: true,
            has_control: true,
        })
    }

    fn threads(&mut self) -> Result<Vec<ThreadInfo>> {
        if self.detached || self.killed {
            return Ok(Vec::new());
        }
        let thread = |id, name: &str, processor, state: &str| ThreadInfo {
            id,
            name: name.to_owned(),
            processor: Some(processor),
            state: state.to_owned(),
        };
        Ok(vec![
            thread(MAIN, "tour", 0, "running"),
            thread(WAITING, "<&>", 1, "waiting"),
        ])
    }

    fn current_stop(&mut self) -> Result<Stop> {
        Ok(Stop {
            thread: MAIN,
            reason: self.stop.clone(),
        })
    }

    fn read_registers(&mut self, thread: ThreadId) -> Result<Registers> {
        Self::check(thread)?;
        if thread == WAITING {
            let mut registers = self.execution.states[0].clone();
            (registers.fxsave, registers.avx, registers.control) = (None, None, None);
            return Ok(registers);
        }
        Ok(self.registers().clone())
    }

    fn write_registers(&mut self, thread: ThreadId, registers: &Registers) -> Result<()> {
        if thread == WAITING {
            return Err(TargetError::Refused(
                "this thread cannot be changed".to_owned(),
            ));
        }
        self.written = Some(registers.clone());
        Ok(())
    }

    fn read_memory(&mut self, thread: ThreadId, address: u64, buffer: &mut [u8]) -> Result<usize> {
        Self::check(thread)?;
        let start = usize::try_from(address)
            .ok()
            .filter(|&start| start < MEMORY);
        let rest = &self.memory[start.ok_or(TargetError::Errno(14))?..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_memory(&mut self, _: ThreadId, address: u64, bytes: &[u8]) -> Result<()> {
        let end = address
            .checked_add(bytes.len() as u64)
            .filter(|&end| end <= MEMORY as u64);
        end.ok_or(TargetError::Errno(14))?;
        self.memory[address as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn add_stop_point(&mut self, _: u32, point: StopPoint) -> Result<()> {
        self.points.insert(point);
        Ok(())
    }

    fn set_conditions(&mut self, _: u32, address: u64, conditions: Vec<Condition>) -> Result<()> {
        self.conditions.remove(&address);
        if !conditions.is_empty() {
            self.conditions.insert(address, conditions);
        }
        Ok(())
    }

    fn remove_stop_point(&mut self, _: u32, point: StopPoint) -> Result<()> {
        if let StopPoint::Breakpoint { address } | StopPoint::HardwareBreakpoint { address } = point
        {
            self.conditions.remove(&address);
        }
        self.points.remove(&point);
        Ok(())
    }

    fn catch_syscalls(&mut self, _: u32, filter: SyscallFilter) -> Result<()> {
        self.caught.push(filter);
        Ok(())
    }

    fn pass_signals(&mut self, signals: u64) -> Result<()> {
        self.passed_signals = Some(signals);
        Ok(())
    }

    fn report_threads(&mut self, _: bool) -> Result<()> {
        Ok(())
    }

    fn resume(&mut self, resumption: &Resumption) -> Result<()> {
        let action = resumption
            .threads
            .iter()
            .find(|(thread, _)| *thread == MAIN);
        let action = action.map_or(ThreadAction::Continue { signal: 0 }, |(_, action)| {
            action.clone()
        });
        self.running = Some((resumption.direction, action));
        self.resumed_at = self.step;
        self.written = None;
        Ok(())
    }

    fn run(&mut self, console: &mut Vec<u8>) -> Result<Option<Stop>> {
        let (direction, action) = self.running.clone().unwrap();
        if self.step == self.resumed_at && action == (ThreadAction::Continue { signal: 0 }) {
            console.extend(b"[continuing]\n");
        }
        for _ in 0..SLICE {
            let reason = match direction {
                Direction::Forward => self.advance(&action),
                Direction::Backward => self.retreat(&action),
            };
            if let Some(reason) = reason {
                self.stop = reason.clone();
                return Ok(Some(Stop {
                    thread: MAIN,
                    reason,
                }));
            }
        }
        Ok(None)
    }

    fn interrupt(&mut self) -> Result<Stop> {
        self.stop = StopReason::Signal(SIGINT);
        self.current_stop()
    }

    fn detach(&mut self, _: Option<u32>) -> Result<()> {
        self.detached = true;
        Ok(())
    }

    fn kill(&mut self, _: Option<u32>) -> Result<()> {
        self.killed = true;
        Ok(())
    }

    fn restart(&mut self, arguments: &[Vec<u8>]) -> Result<Stop> {
        let step = match arguments {
            [step] => String::from_utf8_lossy(step).parse().unwrap(),
            _ => 0,
        };
        self.seek(step);
        self.current_stop()
    }

    fn monitor(&mut self, _: ThreadId, command: &str, output: &mut Vec<u8>) -> Result<()> {
        match command {
            "when" => output.extend(format!("step {}\n", self.step).into_bytes()),
            "fail" => return Err(TargetError::Refused("no such place".to_owned())),
            _ => return Err(TargetError::Unsupported),
        }
        Ok(())
    }

    fn auxiliary_vector(&mut self, _: u32) -> Result<Vec<u8>> {
        // AT_PAGESZ, AT_ENTRY, AT_NULL.
        let entry = self.execution.states[0].rip;
        Ok([6, 4096, 9, entry, 0, 0]
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect())
    }

    fn executable(&mut self, _: u32) -> Result<Vec<u8>> {
        Ok(b"/guest/tour".to_vec())
    }

    fn signal_information(&mut self, _: ThreadId) -> Result<Vec<u8>> {
        // SIGSEGV, SEGV_MAPERR at 0x1234.
        let mut information = vec![0; 128];
        information[0] = 11;
        information[8] = 1;
        information[16..18].copy_from_slice(&[0x34, 0x12]);
        Ok(information)
    }

    fn processes(&mut self) -> Result<Vec<ProcessInfo>> {
        Ok(vec![ProcessInfo {
            process: 40,
            user: "root".to_owned(),
            command: "tour \"a\" <b>".to_owned(),
            processors: vec![0, 1],
        }])
    }

    fn open_file(&mut self, _: Option<u32>, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        match path {
            b"/guest/tour" => Ok(Box::new(std::fs::read(&self.execution.file).unwrap())),
            b"/proc/40/maps" => {
                let maps = "00010000-00011000 r-xp 00000000 00:01 7 /guest/tour\n";
                Ok(Box::new(maps.as_bytes().to_vec()))
            }
            _ => Err(TargetError::Errno(2)),
        }
    }

    fn read_link(&mut self, _: Option<u32>, path: &[u8]) -> Result<Vec<u8>> {
        match path {
            b"/proc/40/exe" => Ok(b"/guest/tour".to_vec()),
            _ => Err(TargetError::Errno(2)),
        }
    }

    fn trace_branches(&mut self, _: ThreadId, enable: bool) -> Result<()> {
        self.traced_since = enable.then_some(if self.all_branches { 0 } else { self.step });
        Ok(())
    }

    fn branches(&mut self, _: ThreadId, since: Option<u64>, limit: usize) -> Result<BranchHistory> {
        let start = match since {
            Some(since) => since as usize,
            None => self.traced_since.unwrap(),
        };
        if start > self.step && since.is_some() {
            return Err(TargetError::Refused(
                "the thread is before that place".to_owned(),
            ));
        }
        let mut branches = self.execution.branches(start.min(self.step), self.step);
        if branches.len() > limit && since.is_some() {
            return Err(TargetError::Refused("too many branches".to_owned()));
        }
        branches.drain(..branches.len().saturating_sub(limit));
        Ok(BranchHistory {
            branches,
            first: None,
            position: self.step as u64,
        })
    }
}
