//! The names that tasks have in the kernel (`/proc/TID/comm`).

use std::fs;

use libc::pid_t;
use vbts_protocol::ToHost;

use crate::failure::Failure;
use crate::port::Port;

/// The name of a task, as far as the host knows it.
#[derive(Debug, Clone, Default)]
pub struct TaskName {
    /// The name at the last exec of the task, or of the task that it descends from.
    program: Vec<u8>,
    /// The name that the host knows.
    sent: Vec<u8>,
}

impl TaskName {
    /// The name of a task that has executed a program.
    pub fn of_program(pid: pid_t) -> Self {
        Self::known(comm(pid))
    }

    /// The name of a new task, which this one has started. The host takes it for that of the
    /// program.
    pub fn of_child(&self) -> Self {
        Self::known(self.program.clone())
    }

    fn known(program: Vec<u8>) -> Self {
        Self {
            sent: program.clone(),
            program,
        }
    }

    /// Sends the name of the task if it has changed. The task may have been killed.
    pub fn send(&mut self, port: &mut Port, pid: pid_t) -> Result<(), Failure> {
        match self.changed(comm(pid)) {
            Some(name) => port.send(&ToHost::TaskName {
                task: pid.unsigned_abs(),
                name,
            }),
            None => Ok(()),
        }
    }

    /// Returns the present name if the host has to know it. From then on, it does.
    fn changed(&mut self, name: Vec<u8>) -> Option<&[u8]> {
        if name.is_empty() || name == self.sent {
            return None;
        }
        self.sent = name;
        Some(&self.sent)
    }
}

/// The name of a task; empty if the task has been reaped.
pub fn comm(pid: pid_t) -> Vec<u8> {
    let mut name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.truncate(name.trim_ascii_end().len());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_sent_when_it_changes() {
        let mut parent = TaskName::known(b"server".to_vec());
        assert_eq!(parent.changed(b"server".to_vec()), None);
        assert_eq!(parent.changed(b"acceptor".to_vec()), Some(&b"acceptor"[..]));
        assert_eq!(parent.changed(b"acceptor".to_vec()), None);
        assert_eq!(parent.changed(Vec::new()), None);
        assert_eq!(parent.changed(b"server".to_vec()), Some(&b"server"[..]));
    }

    #[test]
    fn a_child_has_the_name_of_its_program_until_another_is_sent() {
        let mut parent = TaskName::known(b"server".to_vec());
        parent.changed(b"acceptor".to_vec());
        // The kernel gives it that of its parent.
        let mut child = parent.of_child();
        assert_eq!(child.changed(b"acceptor".to_vec()), Some(&b"acceptor"[..]));
        assert_eq!(parent.of_child().changed(b"server".to_vec()), None);
    }
}
