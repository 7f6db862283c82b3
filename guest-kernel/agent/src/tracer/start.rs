//! New tasks.

use std::path::Path;

use libc::pid_t;
use vbts_protocol::{Follow, ToHost};

use super::{Resume, Tracer, Waiting, ignore_killed, resume_task, untraced::untraced};
use crate::bts::now;
use crate::failure::Failure;
use crate::maps::Maps;
use crate::port::Port;
use crate::ptrace;
use crate::status::Status;
use crate::task_name::TaskName;
use crate::tasks::Task;

impl Tracer {
    /// The first stop of a new task, before its first instruction. Its parent's stop may come
    /// before or after it.
    pub(super) fn first_stop(
        &mut self,
        port: &mut Port,
        pid: pid_t,
        resume: Resume,
    ) -> Result<(), Failure> {
        if let Some(parent) = self.announced.remove(&pid) {
            self.start(port, pid, parent, resume)?;
            return self.resume(port, parent, Resume::Continue(0));
        }
        let creator = creator(pid);
        // The parent may have been killed before its stop.
        if !self.tasks.has_process(creator) {
            return self.start(port, pid, creator, resume);
        }
        self.waiting.insert(pid, Waiting { resume, creator });
        Ok(())
    }

    /// A task has started a child. Returns whether it may continue. Otherwise it does so when the
    /// child has stopped or ended, so that what it does next is behind the child's start.
    pub(super) fn starts(
        &mut self,
        port: &mut Port,
        child: pid_t,
        parent: pid_t,
    ) -> Result<bool, Failure> {
        if let Some(waiting) = self.waiting.remove(&child) {
            self.start(port, child, parent, waiting.resume)?;
            return Ok(true);
        }
        // The child may have ended, or have another tracer.
        let tracer = Status::of(child).task("TracerPid:");
        if self.tasks.contains(child) || tracer != pid_t::try_from(std::process::id()).ok() {
            return Ok(true);
        }
        self.announced.insert(child, parent);
        Ok(false)
    }

    /// Starts the waiting tasks of process `ended`, whose task may have been killed before it could
    /// report them.
    pub(super) fn start_abandoned(&mut self, port: &mut Port, ended: pid_t) -> Result<(), Failure> {
        let abandoned: Vec<_> = (self.waiting.iter())
            .filter(|(_, waiting)| waiting.creator == ended)
            .map(|(&pid, waiting)| (pid, waiting.resume))
            .collect();
        for (pid, resume) in abandoned {
            self.waiting.remove(&pid);
            self.start(port, pid, creator(pid), resume)?;
        }
        Ok(())
    }

    /// Starts to record a new task, and resumes it.
    fn start(
        &mut self,
        port: &mut Port,
        pid: pid_t,
        parent: pid_t,
        resume: Resume,
    ) -> Result<(), Failure> {
        let parents = self.tasks.get(parent).map_or(parent, |task| task.process);
        let is_thread = Path::new(&format!("/proc/{parents}/task/{pid}")).exists();
        let process = if is_thread { parents } else { pid };
        let followed = match self.follow {
            Follow::All => true,
            Follow::Threads => process == self.program,
            Follow::None => false,
        };
        if !followed {
            self.has_untraced = true;
            untraced(port, pid, parent, "not followed")?;
            return ignore_killed(ptrace::detach(pid, 0), "PTRACE_DETACH");
        }
        let time = now();
        let buffer = match self.recorder.start(pid) {
            Ok(buffer) => {
                port.send(&ToHost::TaskStart {
                    task: pid.unsigned_abs(),
                    parent: parent.unsigned_abs(),
                    process: process.unsigned_abs(),
                    records: buffer.records(),
                    time,
                })?;
                Some(buffer)
            }
            // It was killed before its first instruction.
            Err(failure) if failure.errno == libc::ESRCH.unsigned_abs() => return Ok(()),
            Err(failure) => {
                let reason = if failure.errno == libc::ENOMEM.unsigned_abs() {
                    "the guest has too little memory for its trace buffer".to_string()
                } else {
                    failure.text
                };
                untraced(port, pid, parent, &reason)?;
                None
            }
        };
        let name = self.tasks.get(parent).map(|parent| parent.name.of_child());
        let mut task = Task {
            name: name.unwrap_or_else(|| TaskName::of_program(pid)),
            ..Task::new(process, parent, buffer)
        };
        if task.is_recorded() {
            task.name.send(port, pid)?;
        }
        self.tasks.add(pid, task);
        if process == pid {
            let maps = match self.tasks.maps(parents) {
                Some(parents) => parents.child(pid),
                None => Maps::new(pid),
            };
            self.replace_maps(port, process, maps)?;
        }
        resume_task(pid, resume)
    }
}

/// The process of the task that has started a new one: of a thread its own, else its parent. 1 if
/// the new task has been killed.
fn creator(pid: pid_t) -> pid_t {
    let status = Status::of(pid);
    match status.task("Tgid:") {
        Some(process) if process != pid => process,
        _ => status.task("PPid:").unwrap_or(1),
    }
}
