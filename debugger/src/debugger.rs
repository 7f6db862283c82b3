//! What is debugged: a process, or the processors of a machine.

use std::ops::Range;

use anyhow::anyhow;
use vbts_capture::machine::kernel::Kernel;
use vbts_gdb::{Resumption, Stop, StopReason, SyscallFilter, TargetError, ThreadAction, ThreadId};
use vbts_host::exit::Failure;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::Machine;
use vbts_vmm::memory::GuestMemory;

use crate::agent::{Agent, Connection};
use crate::backward::Search;
use crate::branch_trace::BranchTraces;
use crate::client_points::ClientPoints;
use crate::follow::Forked;
use crate::kept::SnapshotFiles;
use crate::kernel_code::KernelCode;
use crate::layout::Layout;
use crate::program_files::ProgramFiles;
use crate::replay::Replay;
use crate::tasks::Tasks;
use crate::view::{MACHINE, View, thread_of};

/// EFAULT and ESRCH of Linux.
pub(crate) const EFAULT: u8 = 14;
pub(crate) const ESRCH: u8 = 3;
/// Words of the auxiliary vector at most.
const MAX_AUXILIARY: usize = 128;

/// Parts of a replay that a debugger needs.
#[expect(missing_debug_implementations, reason = "one is a function")]
pub struct Parts<'a> {
    /// The machine, before its first run.
    pub machine: Machine,
    /// The connection to the guest.
    pub connection: Connection,
    /// The memory of the machine.
    pub memory: GuestMemory,
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
    /// The view of the replay that the client has.
    pub view: View<'a>,
    /// The client reads the program and its libraries on its own host. Another one would ask for
    /// all files if it got one.
    pub client_has_files: bool,
    /// The program's files in the recording, for a client whose host does not have them.
    pub files: Option<ProgramFiles>,
}

/// A process of a replay, or its machine, for GDB.
#[derive(Debug)]
pub struct Debugger {
    pub(crate) replay: Replay,
    /// Threads are the processors.
    pub(crate) is_kernel_view: bool,
    /// The program has 32 bits.
    pub(crate) is_32_bit: bool,
    /// The number of the process, or [`MACHINE`](crate::view::MACHINE).
    pub(crate) process: u32,
    /// Virtual time in ns of the process's fork.
    pub(crate) start: u64,
    /// The first position: the first instruction of the program that the process executes last, or
    /// that of the machine.
    pub(crate) begin: u64,
    /// The last position: the end of the last thread.
    pub(crate) end: u64,
    /// Why the process is where it is.
    pub(crate) stop: Stop,
    /// Position of the failure, if the process has crashed, or the kernel has panicked.
    pub(crate) crash: Option<u64>,
    /// The stop points of the client in the process.
    pub(crate) points: ClientPoints,
    /// Watchpoints for accesses stop at writes alone.
    pub(crate) writes_alone: bool,
    /// RIP of the instruction at which a watchpoint has stopped the process last.
    pub(crate) accessed_by: Option<u64>,
    /// The branch traces of the client.
    pub(crate) branch_traces: BranchTraces,
    /// The client needs no files of the program.
    pub(crate) client_has_files: bool,
    /// The files that it gets from the recording.
    pub(crate) files: Option<ProgramFiles>,
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
    /// The system calls that stop the process.
    pub(crate) caught_calls: SyscallFilter,
    /// The child of the fork for which the process has stopped, until the client detaches from it.
    pub(crate) forked: Option<Forked>,
    /// The parent of a vfork whose child the client has followed, until it detaches from it.
    pub(crate) parent: Option<ThreadId>,
    /// The paths of the programs that the process executes from the first position on.
    pub(crate) programs: Vec<Vec<u8>>,
    /// The index of the one that the client knows.
    pub(crate) program: usize,
    /// Offset of `saved_auxv` in the kernel's description of an address space.
    pub(crate) auxiliary: Option<u64>,
    /// The file of the kernel, in the kernel's view: one that is made from its memory if it has no
    /// symbols. And its code.
    pub(crate) kernel_file: Vec<u8>,
    pub(crate) kernel_code: KernelCode,
}

impl Debugger {
    /// Runs a replay to its end, and goes to where its program has crashed, or else to `main`, or
    /// to the first instruction if the program has none. In the kernel's view, that is where the
    /// kernel has panicked, or `start_kernel`.
    ///
    /// # Errors
    /// The replay differs from the recording, or its program has not started; or the kernel is not
    /// one that the debugger knows.
    pub fn start(parts: Parts<'_>) -> Result<Self, Failure> {
        let layout = Layout::of(parts.kernel);
        if layout.is_none() && matches!(parts.view, View::Program { .. }) {
            return Err(anyhow!(
                "the kernel of the recording has no symbols, is a 32-bit one, or is laid out in an \
                 unknown way: its tasks cannot be told from each other"
            )
            .into());
        }
        let symbols = Kernel::parse(parts.kernel);
        let symbol = |name| symbols.as_ref()?.symbol(name);
        let mut replay = Replay::open(
            parts.machine,
            Agent::new(parts.connection, parts.inputs),
            layout,
            symbol("panic"),
            parts.snapshots,
            parts.kept.as_ref(),
            parts.progress,
        )?;
        replay.agent.is_first_run = false;
        let mut debugger = Self {
            is_kernel_view: false,
            is_32_bit: false,
            process: MACHINE,
            start: 0,
            begin: 0,
            end: replay.end,
            stop: Stop {
                thread: thread_of(0),
                reason: StopReason::Signal(0),
            },
            replay,
            crash: None,
            points: ClientPoints::default(),
            writes_alone: false,
            accessed_by: None,
            branch_traces: BranchTraces::default(),
            client_has_files: parts.client_has_files,
            files: parts.files,
            has_detached: false,
            resumption: None,
            stopped_threads: Vec::new(),
            search: None,
            interrupted: None,
            passed_signals: 0,
            caught_calls: SyscallFilter::None,
            forked: None,
            parent: None,
            programs: Vec::new(),
            program: 0,
            auxiliary: None,
            kernel_file: Vec::new(),
            kernel_code: KernelCode::default(),
        };
        match parts.view {
            View::Program { process } => debugger.open_process(process)?,
            View::Kernel => {
                let start_kernel = symbol("start_kernel");
                debugger.open_machine(parts.kernel, start_kernel, &parts.memory)?;
            }
        }
        debugger.replay.keep(parts.kept, debugger.begin);
        Ok(debugger)
    }

    /// Which process is debugged, if the run has several.
    pub fn notice(&self) -> Option<String> {
        if self.is_kernel_view {
            return None;
        }
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
        tasks.ok_or_else(|| anyhow!("the kernel tells nothing of its tasks").into())
    }

    /// The address space of the process now.
    pub(crate) fn space(&self) -> Option<u64> {
        self.space_of(self.process)
    }

    /// The address space of a process now.
    pub(crate) fn space_of(&self, process: u32) -> Option<u64> {
        let tasks = self.replay.tasks()?;
        let mut threads = tasks.threads(process).into_iter();
        threads.find_map(|task| tasks.space(task))
    }

    /// The auxiliary vector of the process.
    pub(crate) fn read_auxiliary(&self) -> Option<Vec<u8>> {
        let tasks = self.replay.tasks()?;
        let mut threads = tasks.threads(self.process).into_iter();
        let mm = threads.find_map(|task| tasks.mm(task))?;
        let word = self.word_size();
        let mut bytes = vec![0; word * MAX_AUXILIARY];
        tasks.read_kernel(mm.wrapping_add(self.auxiliary?), &mut bytes);
        // The last pair is AT_NULL.
        let mut pairs = bytes.chunks_exact(2 * word);
        let is_last = |pair: &[u8]| pair.iter().take(word).all(|byte| *byte == 0);
        let len = pairs.position(is_last)?;
        bytes.truncate(2 * word * (len + 1));
        Some(bytes)
    }

    /// Bytes of a pointer of the program.
    pub(crate) fn word_size(&self) -> usize {
        if self.is_32_bit { 4 } else { 8 }
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
