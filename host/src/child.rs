//! A child that continues this program, and its end.

use std::io::{self, PipeReader};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process,
    set_parent_process_death_signal, waitpid,
};

use super::alarm::{Alarm, Event};

/// How a child has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Killed(i32),
    /// This process has killed it because of this event.
    Interrupted(Event),
}

/// A child. The host kills it when this process ends.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    /// Its other end is open as long as the child lives.
    alive: PipeReader,
}

impl Child {
    /// Starts a child that continues here. Returns `None` in it. This process has one thread.
    ///
    /// # Errors
    /// The host starts no more processes.
    pub fn start() -> io::Result<Option<Self>> {
        let (alive, of_child) = io::pipe()?;
        let parent = getpid();
        if let Some(pid) = fork()? {
            return Ok(Some(Self { pid, alive }));
        }
        // It stays open until the end of the child.
        std::mem::forget(of_child);
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        Ok(None)
    }

    /// Waits for the end of the child. An event of `alarm` kills it.
    ///
    /// # Errors
    /// The host refuses to wait.
    pub fn wait(self, alarm: &Alarm) -> io::Result<End> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(alarm.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.alive.as_fd(), PollFlags::empty()),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let has_ended = !fds[1].revents().is_empty();
            if let Some(event) = alarm.take() {
                // It may have ended.
                let _ = kill_process(self.pid, Signal::KILL);
                wait_for(self.pid)?;
                return Ok(End::Interrupted(event));
            }
            if has_ended {
                let status = wait_for(self.pid)?;
                return Ok(match (status.exit_status(), status.terminating_signal()) {
                    (_, Some(signal)) => End::Killed(signal),
                    (status, None) => {
                        let status = status.and_then(|status| u8::try_from(status).ok());
                        End::Exited(status.unwrap_or(u8::MAX))
                    }
                });
            }
        }
    }
}

fn wait_for(pid: Pid) -> io::Result<WaitStatus> {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Starts a process that continues here. Returns its number, or `None` in it. This process has one
/// thread.
///
/// # Errors
/// The host starts no more processes.
pub fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, so that the new one has all of what other threads could
    // hold.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        number => Ok(Pid::from_raw(number)),
    }
}
