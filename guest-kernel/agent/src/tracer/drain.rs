//! Drains tasks: one that has stopped, all from time to time, and all at the end.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use libc::{c_int, pid_t};
use vbts_protocol::ToHost;

use super::Tracer;
use crate::bts::{Buffer, Drain, Source, now};
use crate::change_events::ChangeEvents;
use crate::failure::Failure;
use crate::maps::Maps;
use crate::port::Port;
use crate::ptrace::{self, Wait};
use crate::task_name::comm;

/// Bytes of messages after which all tasks are drained: the host merges the records of all tasks,
/// and keeps those that are newer than what it knows of the last task.
const SWEEP_BYTES: u64 = 4 << 20;
/// More such bytes for each task, so that many tasks do not make the sweeps dominate.
const SWEEP_BYTES_PER_TASK: u64 = 128 << 10;
/// Most such bytes. The host has memory for these and for what is in the buffers of all tasks
/// (`merge_limit` in `capture/src/config.rs`).
const MAX_SWEEP_BYTES: u64 = 48 << 20;

/// Time in ns in which tasks must stop when the run ends.
const END_WITHIN: u64 = 100_000_000;
const END_CHECK: Duration = Duration::from_millis(1);

impl Tracer {
    /// Drains the tasks that are not on a processor, and stops the others to drain them, if much
    /// was recorded since the last time.
    pub fn sweep(&mut self, port: &mut Port) -> Result<(), Failure> {
        let tasks = self.tasks.len() as u64;
        let bytes = SWEEP_BYTES + tasks * SWEEP_BYTES_PER_TASK;
        if tasks > 1 && port.kept() >= bytes.min(MAX_SWEEP_BYTES) {
            port.reset_kept();
            for pid in self.drain_all(port)? {
                // A loop with few branches would not fill its buffer for long. If this fails, the
                // task has ended.
                let _ = ptrace::interrupt(pid);
            }
        }
        Ok(())
    }

    /// Sends the last records of all tasks, and where they stand, at the end of the run. Returns
    /// the tasks that the host knows. They do not continue.
    pub fn close(&mut self, port: &mut Port) -> Result<Vec<pid_t>, Failure> {
        let standing: Vec<_> = self
            .tasks
            .recorded()
            .into_iter()
            .map(|pid| {
                let syscall = fs::read_to_string(format!("/proc/{pid}/syscall"));
                (pid, syscall.unwrap_or_default(), comm(pid))
            })
            .collect();
        let mut running = self.drain_all(port)?;
        running.retain(|pid| ptrace::interrupt(*pid).is_ok());
        let deadline = now() + END_WITHIN;
        while !running.is_empty() && now() < deadline {
            match ptrace::wait_any() {
                Some((pid, Wait::Stopped { .. })) => {
                    if running.contains(&pid) && self.drain_running(port, pid)? == Drain::Done {
                        running.retain(|other| *other != pid);
                    }
                }
                Some((pid, Wait::Ended(status))) => {
                    self.ended(port, pid, status)?;
                    ptrace::reap(pid);
                    running.retain(|other| *other != pid);
                }
                None => sleep(END_CHECK),
            }
        }
        for process in self.tasks.processes() {
            self.send_code(port, process)?;
        }
        for (pid, syscall, name) in &standing {
            if !self.tasks.contains(*pid) {
                continue;
            }
            port.send(&ToHost::Standing {
                task: pid.unsigned_abs(),
                syscall: syscall.trim_end(),
                name,
            })?;
        }
        self.recorder.finish(port)?;
        Ok(self.tasks.recorded())
    }

    /// Drains a stopped task. Returns whether nothing was left.
    pub(super) fn drain(&mut self, port: &mut Port, pid: pid_t) -> Result<bool, Failure> {
        match self.tasks.with_maps(pid) {
            Some((task, maps)) => {
                let source = task.source(pid);
                let maps = due(&self.change_events, maps);
                match &mut task.buffer {
                    Some(buffer) => {
                        // The host shows the records under the name.
                        task.name.send(port, pid)?;
                        self.recorder.drain(port, source, buffer, maps)
                    }
                    None => Ok(true),
                }
            }
            None => Ok(true),
        }
    }

    /// Drains a zombie, which is in no table any more. Returns whether it had its buffer.
    pub(super) fn drain_zombie(
        &mut self,
        port: &mut Port,
        source: Source,
        buffer: &mut Buffer,
    ) -> Result<bool, Failure> {
        match self.recorder.drain_running(port, source, buffer, None) {
            Ok(drain) => Ok(drain == Drain::Done),
            Err(failure) if is_gone(&failure) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Drains a task in any state.
    pub(super) fn drain_running(&mut self, port: &mut Port, pid: pid_t) -> Result<Drain, Failure> {
        let Some((task, maps)) = self.tasks.with_maps(pid) else {
            return Ok(Drain::Done);
        };
        let source = task.source(pid);
        let buffer = match &mut task.buffer {
            Some(buffer) if !task.finished => buffer,
            _ => return Ok(Drain::Done),
        };
        task.name.send(port, pid)?;
        let maps = due(&self.change_events, maps);
        match self.recorder.drain_running(port, source, buffer, maps) {
            // It has executed a program as a thread, and will report that.
            Err(failure) if is_gone(&failure) => Ok(Drain::Done),
            result => result,
        }
    }

    /// Drains all tasks that are not on a processor. Returns the others.
    fn drain_all(&mut self, port: &mut Port) -> Result<Vec<pid_t>, Failure> {
        let mut running = Vec::new();
        for pid in self.tasks.ids() {
            if self.drain_running(port, pid)? == Drain::Running {
                running.push(pid);
            }
        }
        Ok(running)
    }
}

/// The mappings that are sent before records. If events tell of all new mappings, those that the
/// host has are kept: a library that the process has unmapped has records, too.
fn due<'a>(events: &ChangeEvents, maps: Option<&'a mut Maps>) -> Option<&'a mut Maps> {
    maps.filter(|maps| !events.have_mappings() || !maps.is_sent())
}

/// The task has been killed or reaped, or has no buffer any more.
fn is_gone(failure: &Failure) -> bool {
    [libc::ESRCH, libc::ENXIO]
        .map(c_int::unsigned_abs)
        .contains(&failure.errno)
}
