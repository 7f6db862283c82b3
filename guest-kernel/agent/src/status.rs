//! What `/proc/PID/status` says of a task.

use std::fs;

use libc::{c_int, pid_t};

/// The text of the file; empty if the task has been killed.
#[derive(Debug, Default)]
pub struct Status(String);

impl Status {
    /// Of the task `pid`.
    pub fn of(pid: pid_t) -> Self {
        Self(fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
    }

    /// The field that begins with `name`.
    fn field(&self, name: &str) -> Option<&str> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    }

    /// The task ID in a field.
    pub fn task(&self, name: &str) -> Option<pid_t> {
        self.field(name)?.parse().ok()
    }

    /// Returns whether the task waits and can be interrupted. It is not stopped.
    pub fn is_sleeping(&self) -> bool {
        self.field("State:")
            .is_some_and(|state| state.starts_with('S'))
    }

    /// Number of times that the task has left its processor.
    pub fn switches(&self) -> Option<u64> {
        let number = |name| self.field(name)?.parse::<u64>().ok();
        let voluntary = number("voluntary_ctxt_switches:")?;
        voluntary.checked_add(number("nonvoluntary_ctxt_switches:")?)
    }

    /// Returns whether the task handles a signal.
    pub fn handles(&self, signal: c_int) -> bool {
        self.is_in("SigCgt:", signal)
    }

    /// Whether the task ignores or handles a signal.
    pub fn ignores_or_handles(&self, signal: c_int) -> bool {
        self.is_in("SigIgn:", signal) || self.handles(signal)
    }

    fn is_in(&self, set: &str, signal: c_int) -> bool {
        let set = self
            .field(set)
            .and_then(|set| u64::from_str_radix(set, 16).ok());
        set.is_some_and(|set| set >> (signal - 1) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_of_the_status_count() {
        let status = "Name:\ta\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000080000\n\
                      SigCgt:\t0000000000000002\n";
        let status = Status(status.to_owned());
        assert!(status.ignores_or_handles(libc::SIGTSTP));
        assert!(status.ignores_or_handles(libc::SIGINT));
        assert!(!status.ignores_or_handles(libc::SIGTTIN));
        assert!(status.handles(libc::SIGINT) && !status.handles(libc::SIGTSTP));
        assert!(!status.is_sleeping());
        assert_eq!(status.switches(), None);
        let status = "State:\tS (sleeping)\nvoluntary_ctxt_switches:\t7\n\
                      nonvoluntary_ctxt_switches:\t2\n";
        let status = Status(status.to_owned());
        assert!(status.is_sleeping());
        assert_eq!(status.switches(), Some(9));
        assert!(!Status::default().ignores_or_handles(libc::SIGTSTP));
    }
}
