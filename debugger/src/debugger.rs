//! A process under debug.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::anyhow;
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
use crate::replay::Replay;
use crate::tasks::Tasks;

/// Words of the auxiliary vector at most.
const MAX_AUXILIARY: usize = 128;

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
    /// The process to debug, by its number or the name of its program. `None`: the first one that
    /// crashed, or else the first.
    pub process: Option<&'a str>,
    /// The distance of `main` from the entry point of the recorded program, if it is known.
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
    /// Virtual time in ns of the process's fork.
    pub(crate) start: u64,
    /// The first position: the first instruction of the program that the process executes last.
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
        let mut replay = Replay::open(
            parts.machine,
            agent,
            layout,
            parts.snapshots,
            parts.kept.as_ref(),
            parts.progress,
        )?;
        replay.agent.is_first_run = false;
        let processes = &replay.agent.processes;
        let process = processes
            .select(parts.process)
            .map_err(|error| anyhow!(error))?;
        let process = process.clone();
        let mut debugger = Self {
            process: process.id,
            start: process.start,
            begin: process.begin,
            end: 0,
            stop: Stop {
                thread: ThreadId {
                    process: process.id,
                    thread: process.id,
                },
                reason: StopReason::Signal(0),
            },
            replay,
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
        debugger.open(&process, parts.main)?;
        debugger.replay.keep(parts.kept, debugger.begin);
        Ok(debugger)
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

    /// Which process is debugged, if the run has several.
    pub fn notice(&self) -> Option<String> {
        let processes = &self.replay.agent.processes;
        let others = processes
            .count()
            .checked_sub(1)
            .filter(|count| *count > 0)?;
        Some(format!(
            "process {} is debugged, one of {}: the command processes lists them, and --process \
             PID or --process NAME selects one",
            self.process,
            others + 1
        ))
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
