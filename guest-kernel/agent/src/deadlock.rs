//! Deadlocks: all tasks of the program wait, without a time limit, for what only they can do.
//!
//! A task that waits for a lock (`futex`) waits for another task of the program, if all of these
//! are traced. So does one that waits for the end of a child. A task that waits for anything else,
//! such as a file, a pipe or a time, may be woken from outside.

use std::fs;

use libc::{c_int, pid_t};

use crate::status::Status;

/// Signals that come from timers, files and other processes. A process that handles one of them may
/// be woken by it. SIGINT is none of them: it is what ends a program that hangs.
const WAKING: [c_int; 8] = [
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
];
/// The first signal that programs give to their timers: the C library keeps those before it.
const FIRST_RT_SIGNAL: c_int = 34;
const LAST_RT_SIGNAL: c_int = 64;

/// Finds that nothing has happened between two looks at the tasks.
#[derive(Debug, Default)]
pub struct DeadlockDetector {
    /// The tasks of the last look, if all have waited for each other, each with the number of times
    /// that it has left its processor.
    last: Option<Vec<(pid_t, u64)>>,
}

/// A kind of wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// A lock or a condition, with which another task wakes it.
    Futex,
    /// The end of a child.
    Child,
}

impl DeadlockDetector {
    /// Looks at all tasks of the program. Returns whether they are in a deadlock: they wait for
    /// each other, as they did at the last look, and none has run in between.
    pub fn look(&mut self, tasks: &[pid_t]) -> bool {
        let mut waits = Vec::new();
        let mut any_futex = false;
        for pid in tasks {
            let Some((wait, switches)) = waiting(*pid) else {
                self.last = None;
                return false;
            };
            any_futex |= wait == Wait::Futex;
            waits.push((*pid, switches));
        }
        let now = any_futex.then_some(waits);
        let found = now.is_some() && self.last == now;
        self.last = now;
        found
    }
}

/// Returns the kind of a task's wait, if only another task of the program can wake it, and how
/// often it has left its processor.
fn waiting(pid: pid_t) -> Option<(Wait, u64)> {
    let status = Status::of(pid);
    let signals = WAKING.into_iter().chain(FIRST_RT_SIGNAL..=LAST_RT_SIGNAL);
    if !status.is_sleeping() || signals.into_iter().any(|signal| status.handles(signal)) {
        return None;
    }
    let syscall = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    Some((wait(&syscall)?, status.switches()?))
}

/// The kind of the wait that a line of `/proc/TID/syscall` shows.
fn wait(line: &str) -> Option<Wait> {
    let mut words = line.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let arguments: Vec<u64> = words
        .map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    let argument = |index: usize| arguments.get(index).copied();
    match number {
        libc::SYS_futex => {
            let waits = [
                libc::FUTEX_WAIT,
                libc::FUTEX_WAIT_BITSET,
                libc::FUTEX_LOCK_PI,
                libc::FUTEX_LOCK_PI2,
                libc::FUTEX_WAIT_REQUEUE_PI,
            ];
            let operation = argument(1)? as c_int & libc::FUTEX_CMD_MASK;
            (waits.contains(&operation) && argument(3)? == 0).then_some(Wait::Futex)
        }
        libc::SYS_wait4 | libc::SYS_waitid => Some(Wait::Child),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_without_a_limit_are_known() {
        for (line, expected) in [
            // pthread_mutex_lock, pthread_cond_wait, sem_wait.
            (
                "202 0x7ffe 0x80 0x2 0x0 0x0 0x0 0x7f 0x7f",
                Some(Wait::Futex),
            ),
            (
                "202 0x7ffe 0x189 0x2 0x0 0x0 0xffffffff 0x7f 0x7f",
                Some(Wait::Futex),
            ),
            (
                "202 0x7ffe 0x86 0x0 0x0 0x0 0x0 0x7f 0x7f",
                Some(Wait::Futex),
            ),
            // A wait with a limit, and a call that wakes.
            ("202 0x7ffe 0x80 0x2 0x7ffd 0x0 0x0 0x7f 0x7f", None),
            ("202 0x7ffe 0x81 0x2 0x0 0x0 0x0 0x7f 0x7f", None),
            (
                "61 0xffffffff 0x7ffe 0x0 0x0 0x0 0x0 0x7f 0x7f",
                Some(Wait::Child),
            ),
            ("0 0x3 0x7ffe 0x1 0x0 0x0 0x0 0x7f 0x7f", None),
            ("running", None),
            ("-1 0x7f 0x7f", None),
            ("", None),
            ("202", None),
        ] {
            assert_eq!(wait(line), expected, "{line}");
        }
    }

    #[test]
    fn a_program_that_runs_is_in_no_deadlock() {
        let mut detector = DeadlockDetector::default();
        let own = std::process::id() as pid_t;
        assert!(!detector.look(&[own]));
        assert!(!detector.look(&[own]));
        assert!(!detector.look(&[]));
        assert!(!detector.look(&[]));
    }

    #[test]
    fn the_same_waits_twice_are_a_deadlock() {
        let mut pipe = [0; 2];
        // SAFETY: the call writes two descriptors. The child calls async-signal-safe functions.
        let child = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            match libc::fork() {
                0 => {
                    let word = 0_u32;
                    libc::write(pipe[1], [0_u8].as_ptr().cast(), 1);
                    libc::syscall(libc::SYS_futex, &word, libc::FUTEX_WAIT, 0, 0_usize);
                    libc::_exit(0)
                }
                child => child,
            }
        };
        let mut detector = DeadlockDetector::default();
        let mut byte = [0_u8];
        // SAFETY: the buffer has room for the byte.
        let read = unsafe { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) };
        assert_eq!(read, 1);
        while waiting(child).is_none() {
            std::thread::yield_now();
        }
        let found = [detector.look(&[child]), detector.look(&[child])];
        // SAFETY: the calls take no pointers that are written.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        assert_eq!(found, [false, true]);
    }
}
