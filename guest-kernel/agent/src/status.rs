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

    /// Whether the task ignores or handles a signal.
    pub fn ignores_or_handles(&self, signal: c_int) -> bool {
        let set = |name| u64::from_str_radix(self.field(name)?, 16).ok();
        let sets = set("SigIgn:").unwrap_or(0) | set("SigCgt:").unwrap_or(0);
        sets >> (signal - 1) & 1 != 0
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
        assert!(!Status::default().ignores_or_handles(libc::SIGTSTP));
    }
}
