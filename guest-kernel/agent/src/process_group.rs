//! The session and the process group of the program: it leads them exactly if it would on the host.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use libc::pid_t;
use vbts_protocol::Leads;

use crate::failure::check;
use crate::ptrace;
use crate::terminal::control;

/// The session and the process group that the program joins.
///
/// The agent leads the session. A child that has ended leads the group, which lasts until the
/// program has left it, too: the agent itself must not be in it, since no signal to a group can
/// name that of PID 1. The child exists whatever the program leads, so that task IDs do not depend
/// on it.
#[derive(Debug)]
pub struct ProcessGroup {
    leads: Leads,
    /// A zombie.
    leader: pid_t,
}

impl ProcessGroup {
    /// Prepares for a program that leads what `leads` says, and whose controlling terminal is
    /// `terminal`.
    pub fn new(leads: Leads, terminal: Option<&OwnedFd>) -> io::Result<Self> {
        // SAFETY: this process has one thread, so all functions are safe in the child. The calls
        // take no pointers, except waitid, which writes a siginfo_t.
        let leader = unsafe {
            check(libc::setsid())?;
            let leader = check(libc::fork())?;
            if leader == 0 {
                libc::setpgid(0, 0);
                libc::_exit(0);
            }
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let (id, how) = (leader.unsigned_abs(), libc::WEXITED | libc::WNOWAIT);
            check(libc::waitid(libc::P_PID, id, &raw mut info, how))?;
            leader
        };
        let group = Self { leads, leader };
        if leads != Leads::Session
            && let Some(terminal) = terminal
        {
            control(terminal.as_raw_fd())?;
        }
        Ok(group)
    }

    /// Moves this process, a child of the agent, into its session and group, which becomes the
    /// foreground group of its controlling `terminal`.
    pub fn join(&self, terminal: Option<RawFd>) -> io::Result<()> {
        // SAFETY: the calls change this process and its terminal only, and take no pointers.
        unsafe {
            match self.leads {
                Leads::Session => {
                    check(libc::setsid())?;
                    return terminal.map_or(Ok(()), control);
                }
                Leads::Group => check(libc::setpgid(0, 0))?,
                Leads::Nothing => check(libc::setpgid(0, self.leader))?,
            };
            if let Some(terminal) = terminal {
                // The kernel sends this signal to a group in the background, which it still is.
                libc::signal(libc::SIGTTOU, libc::SIG_IGN);
                check(libc::tcsetpgrp(terminal, libc::getpgrp()))?;
                libc::signal(libc::SIGTTOU, libc::SIG_DFL);
            }
        }
        Ok(())
    }
}

impl Drop for ProcessGroup {
    /// The program has joined the group, which no longer needs its leader.
    fn drop(&mut self) {
        ptrace::reap(self.leader);
    }
}

/// The process group of a process; -1 if it has ended.
pub fn group_of(pid: pid_t) -> pid_t {
    // SAFETY: getpgid takes no pointers.
    unsafe { libc::getpgid(pid) }
}
