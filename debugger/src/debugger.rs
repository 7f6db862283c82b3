//! A process under debug.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::anyhow;
use vbts_cpu::state::gpr;
use vbts_cpu::{Breakpoint, StopPoints};
use vbts_devices::Shared;
use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_gdb::{
    Condition, Resumption, Stop, StopPoint, StopReason, TargetError, ThreadAction, ThreadId,
};
use vbts_host::exit::Failure;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::Machine;

use crate::agent::{Agent, AgentPort};
use crate::backward::Search;
use crate::kept::SnapshotFiles;
use crate::layout::Layout;
use crate::replay::{EventKind, Outcome, Replay};
use crate::tasks::Tasks;

/// The name of the entry point in an auxiliary vector.
const AT_ENTRY: u64 = 9;
/// Words of the auxiliary vector at most.
const MAX_AUXILIARY: usize = 128;
/// Bytes of the kernel's description of an address space in which that vector is looked for.
const MAX_MM: usize = 4096;
/// Arguments and variables of the environment of a program, at most.
const MAX_STRINGS: u64 = 1 << 16;
/// The longest wait for the first instruction of the program, in ns of virtual time.
const MAX_START: u64 = 10_000_000_000;

/// The number of CS, and the selector that Linux gives it in a 32-bit program (`__USER32_CS`).
const CS: usize = 1;
const USER32_CS: u16 = 0x23;

/// Parts of a replay that a debugger needs.
#[expect(missing_debug_implementations, reason = "one is a function")]
pub struct Parts<'a> {
    /// The machine, before its first run.
    pub machine: Machine,
    /// The port of the agent.
    pub port: AgentPort,
    /// The device with that port.
    pub device: Shared<MmioTransport<Console>>,
    /// The inputs of the recording.
    pub inputs: Inputs,
    /// The file of the guest's kernel.
    pub kernel: &'a [u8],
    /// Maximum size in bytes of the snapshots.
    pub snapshots: usize,
    /// The files for snapshots, which may outlast the session.
    pub kept: Option<SnapshotFiles>,
    /// Is told of the virtual time in ns and of the instructions of the first run.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// The distance of `main` from the entry point of the program, if it is known.
    pub main: Option<u64>,
    /// The client reads the program and its libraries on its own host. Another one would ask for
    /// all files if it got one.
    pub client_has_files: bool,
}

/// A process of a replay, for GDB.
#[derive(Debug)]
pub struct Debugger {
    pub(crate) replay: Replay,
    pub(crate) process: u32,
    /// The first position: the first instruction of the program.
    pub(crate) begin: u64,
    /// The last position: the end of the last thread.
    pub(crate) end: u64,
    /// Why the process is where it is.
    pub(crate) stop: Stop,
    /// Position of the failure, if the process has crashed.
    pub(crate) crash: Option<u64>,
    pub(crate) points: Vec<StopPoint>,
    /// The conditions of the breakpoints at an address, one of which must hold for a stop.
    pub(crate) conditions: BTreeMap<u64, Vec<Condition>>,
    /// The client needs no files of the program.
    pub(crate) client_has_files: bool,
    /// The client debugs no process any more.
    pub(crate) has_detached: bool,
    pub(crate) resumption: Option<Resumption>,
    /// Threads that the client has not resumed. A replay runs them all the same, but they do not
    /// stop it.
    pub(crate) stopped_threads: Vec<ThreadId>,
    /// The search backward that is under way.
    pub(crate) search: Option<Search>,
    /// The registers of the thread that executes one instruction, before an entry into the kernel
    /// in the middle of it.
    pub(crate) interrupted: Option<(u64, [u64; 16])>,
    /// Signals that do not stop the process: bit `n - 1` for signal `n`.
    pub(crate) passed_signals: u64,
    /// Offset of `saved_auxv` in the kernel's description of an address space.
    pub(crate) auxiliary: Option<u64>,
}

impl Debugger {
    /// Runs a replay to its end, and goes to where its program has crashed, or else to `main`, or
    /// to the first instruction if the program has none.
    ///
    /// # Errors
    /// The replay differs from the recording, or its program has not started; or the kernel is not
    /// one that the debugger knows.
    pub fn start(parts: Parts<'_>) -> Result<Self, Failure> {
        let Some(layout) = Layout::of(parts.kernel) else {
            return Err(anyhow!(
                "the kernel of the recording has no symbols, is a 32-bit one, or is laid out in an \
                 unknown way: its tasks cannot be told from each other"
            )
            .into());
        };
        let agent = Agent::new(parts.port, parts.device, parts.inputs);
        let replay = Replay::open(
            parts.machine,
            agent,
            layout,
            parts.snapshots,
            parts.kept.as_ref(),
            parts.progress,
        )?;
        let Some(program) = replay.agent.program else {
            return Err(anyhow!("the program of the recording has not started").into());
        };
        let mut debugger = Self {
            replay,
            process: program.process,
            begin: program.time,
            end: 0,
            stop: Stop {
                thread: ThreadId {
                    process: program.process,
                    thread: program.process,
                },
                reason: StopReason::Signal(0),
            },
            crash: None,
            points: Vec::new(),
            conditions: BTreeMap::new(),
            client_has_files: parts.client_has_files,
            has_detached: false,
            resumption: None,
            stopped_threads: Vec::new(),
            search: None,
            interrupted: None,
            passed_signals: 0,
            auxiliary: None,
        };
        debugger.find_end();
        debugger.enter_program()?;
        debugger.replay.agent.shown = debugger.begin;
        debugger.go_to_crash()?;
        if let (None, Some(main)) = (debugger.crash, parts.main) {
            debugger.go_to_main(main)?;
        }
        debugger.replay.keep(parts.kept, debugger.begin);
        Ok(debugger)
    }

    /// Finds where the process ends: at its call of `exit_group`, at the end of the thread that has
    /// crashed, or when its last thread ends.
    fn find_end(&mut self) {
        let crash = self.replay.agent.crash.map(|crash| crash.thread);
        let exits = self
            .replay
            .events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Exit { of_process } if event.thread.process == self.process => {
                    let is_first = of_process || crash == Some(event.thread.thread);
                    Some((event.time, is_first))
                }
                _ => None,
            });
        let exits: Vec<(u64, bool)> = exits.collect();
        let first = exits.iter().find(|(_, is_first)| *is_first);
        let end = first.or(exits.last()).map(|(time, _)| *time);
        self.end = end.unwrap_or(self.replay.end);
    }

    /// Goes to the first instruction of the program, and looks at its stack.
    fn enter_program(&mut self) -> Result<(), Failure> {
        self.replay.seek(self.begin)?;
        let limit = self.begin.saturating_add(MAX_START);
        loop {
            let entered = self.tasks()?.in_user_mode();
            if entered.is_some_and(|thread| thread.process == self.process) {
                break;
            }
            let points = StopPoints {
                user_mode_of: self.space(),
                ..StopPoints::default()
            };
            let outcome = self.replay.run(limit, &points)?;
            if !matches!(outcome, Outcome::Stopped(_)) {
                return Err(anyhow!("the program of the recording has executed nothing").into());
            }
        }
        let cpu = self.replay.cpu();
        if cpu.is_some_and(|cpu| cpu.state().seg[CS].selector == USER32_CS) {
            return Err(anyhow!(
                "the program of the recording has 32 bits: only programs of 64 bits can be debugged"
            )
            .into());
        }
        self.begin = self.replay.now();
        self.auxiliary = self.find_auxiliary();
        Ok(())
    }

    /// Goes to the signal that has ended the program, if its last instruction has caused one.
    fn go_to_crash(&mut self) -> Result<(), Failure> {
        let Some(crash) = self.replay.agent.crash else {
            return Ok(());
        };
        let mut signals = self
            .replay
            .events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Signal(signal, _) => Some((event.time, event.thread, signal)),
                _ => None,
            });
        let last =
            signals.rfind(|(time, thread, _)| *time <= crash.time && thread.thread == crash.thread);
        let Some((time, thread, signal)) = last else {
            return Ok(());
        };
        if thread.process != self.process {
            // A child has crashed.
            self.process = thread.process;
            self.find_end();
        }
        self.crash = Some(time);
        self.replay.seek(time)?;
        self.stop = Stop {
            thread,
            reason: StopReason::Signal(signal),
        };
        Ok(())
    }

    /// Goes to `main`, which is `distance` from the entry point.
    fn go_to_main(&mut self, distance: u64) -> Result<(), Failure> {
        let auxiliary = self.read_auxiliary().unwrap_or_default();
        let mut pairs = auxiliary.chunks_exact(16);
        let entry = pairs.find_map(|pair| {
            let (name, value) = pair.split_first_chunk()?;
            let value = value.first_chunk()?;
            (u64::from_le_bytes(*name) == AT_ENTRY).then_some(u64::from_le_bytes(*value))
        });
        let (Some(entry), Some(space)) = (entry, self.space()) else {
            return Ok(());
        };
        let points = StopPoints {
            breakpoints: vec![Breakpoint {
                address: entry.wrapping_add(distance),
                space: Some(space),
            }],
            ..StopPoints::default()
        };
        if !matches!(self.replay.run(self.end, &points)?, Outcome::Stopped(_)) {
            self.replay.seek(self.begin)?;
        }
        Ok(())
    }

    /// The file that the process executes, by the first of its mappings.
    pub(crate) fn executable_path(&self) -> Option<Vec<u8>> {
        let maps = self.replay.agent.maps.get(&self.process)?;
        let lines = maps.split(|byte| *byte == b'\n');
        let mut paths = lines.filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b'/')?;
            Some(line[at..].to_vec())
        });
        paths.next()
    }

    /// The kernel's view of its tasks now.
    pub(crate) fn tasks(&self) -> Result<Tasks<'_>, Failure> {
        let tasks = self.replay.tasks();
        tasks.ok_or_else(|| anyhow!("the machine has no processor").into())
    }

    /// The address space of the process now.
    pub(crate) fn space(&self) -> Option<u64> {
        let tasks = self.replay.tasks()?;
        let mut threads = tasks.threads(self.process).into_iter();
        threads.find_map(|task| tasks.space(task))
    }

    /// Offset of `saved_auxv` in `struct mm_struct`: the auxiliary vector is on the stack of a
    /// program that begins, behind its arguments and its environment, and there once more.
    fn find_auxiliary(&self) -> Option<u64> {
        let tasks = self.replay.tasks()?;
        let space = self.space()?;
        let current = tasks.current()?;
        let word = |address: u64| {
            let mut bytes = [0; 8];
            let read = tasks.read(space, address, &mut bytes);
            (read == 8).then(|| u64::from_le_bytes(bytes))
        };
        let mut at = tasks.registers(current)?.general[gpr::RSP];
        let arguments = word(at)?.min(MAX_STRINGS);
        at = at.wrapping_add(8 * (arguments + 2));
        for _ in 0..MAX_STRINGS {
            let variable = word(at)?;
            at = at.wrapping_add(8);
            if variable == 0 {
                break;
            }
        }
        let mut vector = [0; 64];
        if tasks.read(space, at, &mut vector) != vector.len() {
            return None;
        }
        let mut mm = vec![0; MAX_MM];
        tasks.read_kernel(tasks.mm(current)?, &mut mm);
        let found = mm.chunks_exact(8).enumerate().find(|(n, _)| {
            let here = mm.get(8 * n..8 * n + vector.len());
            here == Some(&vector[..])
        });
        found.map(|(n, _)| 8 * n as u64)
    }

    /// The auxiliary vector of the process.
    pub(crate) fn read_auxiliary(&self) -> Option<Vec<u8>> {
        let tasks = self.replay.tasks()?;
        let mut threads = tasks.threads(self.process).into_iter();
        let mm = threads.find_map(|task| tasks.mm(task))?;
        let mut bytes = vec![0; 8 * MAX_AUXILIARY];
        tasks.read_kernel(mm.wrapping_add(self.auxiliary?), &mut bytes);
        // The last pair is AT_NULL.
        let pairs = bytes.chunks_exact(16);
        let len = pairs.take_while(|pair| pair[..8] != [0; 8]).count();
        bytes.truncate(16 * (len + 1));
        Some(bytes)
    }

    /// The thread that the client steps, with the range of addresses in which it goes on.
    pub(crate) fn stepped(&self) -> Option<(ThreadId, Option<Range<u64>>)> {
        let threads = &self.resumption.as_ref()?.threads;
        threads.iter().find_map(|(thread, action)| match action {
            ThreadAction::Continue { .. } => None,
            ThreadAction::Step { .. } => Some((*thread, None)),
            ThreadAction::StepRange(range) => Some((*thread, Some(range.clone()))),
        })
    }

    /// A thread to name in a stop that none has caused: the current one, or the first.
    pub(crate) fn any_thread(&self) -> ThreadId {
        let Some(tasks) = self.replay.tasks() else {
            return self.stop.thread;
        };
        let threads = tasks.threads(self.process);
        let ids: Vec<ThreadId> = threads.iter().filter_map(|task| tasks.id(*task)).collect();
        let current = tasks.current().and_then(|task| tasks.id(task));
        let candidates = current.into_iter().chain([self.stop.thread]);
        candidates
            .chain(ids.first().copied())
            .find(|thread| ids.contains(thread))
            .unwrap_or(self.stop.thread)
    }

    /// Stops here for `reason`, which no thread has caused.
    pub(crate) fn stop_here(&self, reason: StopReason) -> Stop {
        Stop {
            thread: self.any_thread(),
            reason,
        }
    }
}

/// The failure of a replay ends the session.
pub(crate) fn fatal(failure: Failure) -> TargetError {
    TargetError::Fatal(failure.to_string())
}
