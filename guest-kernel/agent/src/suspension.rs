//! Stops of the program at its terminal (Ctrl-Z).
//!
//! The program's parent is PID 1, so its process group is orphaned, and the kernel discards SIGTSTP
//! there. On the host its parent is a shell, which can continue it. The agent makes the program
//! stop all the same, and the host stops with it.

use libc::{c_int, pid_t};

use crate::process_group::group_of;
use crate::status::Status;

/// The signals that the kernel discards in an orphaned process group.
const TERMINAL_STOPS: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Stops and continues the program together with the host.
#[derive(Debug)]
pub struct Suspension {
    /// The first task of the program.
    program: pid_t,
    /// Its process group.
    group: pid_t,
    /// The program has a terminal.
    on_terminal: bool,
    /// The program is stopped.
    stopped: bool,
    /// The host does not know it.
    is_new: bool,
}

impl Suspension {
    /// `program` is about to run, and may be `on_terminal`.
    pub fn new(program: pid_t, on_terminal: bool) -> Self {
        Self {
            program,
            group: group_of(program),
            on_terminal,
            stopped: false,
            is_new: false,
        }
    }

    /// The signal that a task gets which has stopped for `signal`: SIGSTOP instead of a stop signal
    /// of the terminal, if the task belongs to the program's process group and neither handles nor
    /// ignores it.
    pub fn delivered(&self, pid: pid_t, signal: c_int) -> c_int {
        if self.on_terminal
            && TERMINAL_STOPS.contains(&signal)
            && group_of(pid) == self.group
            && has_default_action(pid, signal)
        {
            return libc::SIGSTOP;
        }
        signal
    }

    /// The task `pid` is stopped, or continues.
    pub fn note(&mut self, pid: pid_t, stopped: bool) {
        if pid == self.program && self.on_terminal {
            self.is_new = stopped && (self.is_new || !self.stopped);
            self.stopped = stopped;
        }
    }

    /// Whether the program has stopped since the last call.
    pub fn take(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }
}

fn has_default_action(pid: pid_t, signal: c_int) -> bool {
    !Status::of(pid).ignores_or_handles(signal)
}
