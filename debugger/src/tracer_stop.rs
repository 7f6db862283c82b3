//! The stops of a task for its tracer, the agent: each is a call of the kernel's
//! `ptrace_stop(exit_code, why, message, info)`.

use vbts_cpu::Cpu;
use vbts_cpu::state::gpr;

use crate::tasks::Tasks;

/// Bytes of the kernel's form of `siginfo_t`.
const SIGNAL_INFO: usize = 48;

/// Linux's `PTRACE_EVENT_FORK` and so on, and the signal that all events have.
const EVENT_FORK: u64 = 1;
const EVENT_VFORK: u64 = 2;
const EVENT_EXEC: u64 = 4;
const EVENT_EXIT: u64 = 6;
const SIGTRAP: u64 = 5;

/// Why a task stops for its tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TracerStop {
    /// The task gets a signal: its number, and the kernel's form of its `siginfo_t`.
    Signal(u8, [u8; SIGNAL_INFO]),
    /// The task has made a process with this number by fork.
    Fork(u32),
    /// By vfork, or by another call that lets the task wait for the process.
    Vfork(u32),
    /// The task executes another program.
    Exec,
    /// The task is about to exit, with this wait status.
    Exit(u64),
}

impl TracerStop {
    /// The stop that begins where `cpu` is, at the first instruction of `ptrace_stop`. `None` for
    /// a stop of another kind.
    pub(crate) fn of(cpu: &Cpu, tasks: &Tasks<'_>) -> Option<Self> {
        let state = cpu.state();
        let [code, message, info] =
            [gpr::RDI, gpr::RDX, gpr::RCX].map(|register| state.gpr[register]);
        let code = code & 0xFFFF_FFFF;
        match (code >> 8, code & 0xFF) {
            (0, signal @ 1..=64) => {
                let mut bytes = [0; SIGNAL_INFO];
                tasks.read_kernel(info, &mut bytes);
                Some(Self::Signal(signal as u8, bytes))
            }
            (EVENT_FORK, SIGTRAP) => Some(Self::Fork(message as u32)),
            (EVENT_VFORK, SIGTRAP) => Some(Self::Vfork(message as u32)),
            (EVENT_EXEC, SIGTRAP) => Some(Self::Exec),
            (EVENT_EXIT, SIGTRAP) => Some(Self::Exit(message)),
            _ => None,
        }
    }
}
