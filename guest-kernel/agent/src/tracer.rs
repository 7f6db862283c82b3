//! Traces the program and what it starts: handles the stops and ends of tasks.

mod drain;
mod start;
mod untraced;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use libc::{c_int, pid_t};
use vbts_protocol::{self as protocol, ErrorKind, ExitStatus, Follow, ToHost, Trace};

use crate::bts::{Recorder, Source, now, send_maps, send_text};
use crate::change_events::{ChangeEvents, Changes};
use crate::code::CodeSender;
use crate::crash;
use crate::deadlock::DeadlockDetector;
use crate::failure::Failure;
use crate::maps::Maps;
use crate::port::Port;
use crate::ptrace::{self, EVENT_PTRACE};
use crate::suspension::Suspension;
use crate::task_name::TaskName;
use crate::tasks::{Task, Tasks};
use untraced::{traced_by, traced_by_parent, untraced};

/// How a stopped task continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resume {
    /// It runs on, with this signal if not 0.
    Continue(c_int),
    /// It remains in its group-stop.
    Listen,
}

/// A new task in its first stop.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// How it continues.
    resume: Resume,
    /// The process that has started it.
    creator: pid_t,
}

/// The tracer of a program and of what it starts.
#[derive(Debug)]
pub struct Tracer {
    /// The first task of the program.
    program: pid_t,
    follow: Follow,
    /// The signal that is reported; `None` if none or all are.
    reported_signal: Option<u32>,
    /// All signals are reported.
    is_host_recorded: bool,
    change_events: ChangeEvents,
    suspension: Suspension,
    /// The program executes. Until then its task executes the agent's code.
    started: bool,
    recorder: Recorder,
    /// Sends code that the host lacks. Whether the host wants it makes no difference to the guest.
    code: CodeSender,
    tasks: Tasks,
    /// A task of the program is not traced, or was not.
    has_untraced: bool,
    deadlocks: DeadlockDetector,
    /// The parents of new tasks whose first stop has not been seen. A parent waits for it in the
    /// stop in which it has reported the task.
    announced: BTreeMap<pid_t, pid_t>,
    /// New tasks whose first stop was seen before their parents have reported them.
    waiting: BTreeMap<pid_t, Waiting>,
}

impl Tracer {
    /// A tracer for a seized task that does not execute its program yet. The program may be
    /// `on_terminal`.
    pub fn new(program: pid_t, trace: Trace, on_terminal: bool) -> Self {
        let is_host_recorded = trace.recorder == protocol::Recorder::Host;
        Self {
            program,
            follow: trace.follow,
            reported_signal: trace.reported_signal,
            is_host_recorded,
            change_events: ChangeEvents::open(),
            suspension: Suspension::new(program, on_terminal),
            started: false,
            recorder: Recorder::new(trace),
            code: CodeSender::default(),
            tasks: Tasks::default(),
            has_untraced: false,
            deadlocks: DeadlockDetector::default(),
            announced: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Handles a stop of a task and resumes it.
    pub fn stopped(
        &mut self,
        port: &mut Port,
        pid: pid_t,
        signal: c_int,
        event: c_int,
    ) -> Result<(), Failure> {
        let stop_signals = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        let resume = match event {
            0 => Resume::Continue(self.suspension.delivered(pid, signal)),
            libc::PTRACE_EVENT_STOP if stop_signals.contains(&signal) => Resume::Listen,
            _ => Resume::Continue(0),
        };
        if event == libc::PTRACE_EVENT_EXEC {
            self.executes(port, pid)?;
            return self.resume(port, pid, resume);
        }
        if !self.tasks.contains(pid) {
            // Before its exec, the program is not recorded.
            if pid == self.program && !self.started {
                return resume_task(pid, resume);
            }
            return self.first_stop(port, pid, resume);
        }
        match event {
            // The last stop at which the task has its mappings.
            libc::PTRACE_EVENT_EXIT => {
                self.exits(port, pid)?;
                return resume_task(pid, resume);
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let Ok(child) = ptrace::event_message(pid)
                    && !self.starts(port, child, pid)?
                {
                    return Ok(());
                }
            }
            EVENT_PTRACE => return self.traces(port, pid),
            // The stop of a sweep, or a group-stop.
            libc::PTRACE_EVENT_STOP => {
                self.drain(port, pid)?;
                self.suspension.note(pid, resume == Resume::Listen);
            }
            0 if self.recorder.is_overflow(pid, signal) => {
                self.drain(port, pid)?;
                return self.resume(port, pid, Resume::Continue(0));
            }
            0 => {
                let crash = crash::possible(pid, signal);
                if let Some(task) = self.tasks.get_mut(pid) {
                    task.crash = crash;
                }
                if self.is_host_recorded || self.reported_signal == Some(signal.unsigned_abs()) {
                    self.report_signal(port, pid, signal)?;
                }
            }
            _ => {}
        }
        self.resume(port, pid, resume)
    }

    /// The descriptors that are readable when [`Self::send_changes`] has something to do.
    pub fn change_events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.change_events.descriptors()
    }

    /// Sends the mappings of processes that have mapped code, and the names of tasks that have
    /// other ones.
    pub fn send_changes(&mut self, port: &mut Port) -> Result<(), Failure> {
        let Changes { mapped, renamed } = self.change_events.take();
        for pid in renamed {
            if let Some(task) = self.tasks.get_mut(pid)
                && task.is_recorded()
            {
                task.name.send(port, pid)?;
            }
        }
        for process in mapped {
            let Some(text) = self.tasks.maps(process).and_then(Maps::changed) else {
                continue;
            };
            // The records so far are those of code that was mapped before.
            for pid in self.tasks.of_process(process) {
                self.drain_running(port, pid)?;
            }
            send_text(port, process, &text)?;
        }
        Ok(())
    }

    /// Looks at all tasks of the program. Returns whether they wait for each other, and have since
    /// the last call.
    pub fn is_in_deadlock(&mut self) -> bool {
        // What is not traced can wake the others.
        self.started
            && !self.has_untraced
            && self.waiting.is_empty()
            && self.deadlocks.look(&self.tasks.unfinished())
    }

    /// Whether the program has stopped at its terminal since the last call.
    pub fn take_suspended(&mut self) -> bool {
        self.suspension.take()
    }

    /// Handles the end of a child, which is a zombie.
    pub fn ended(
        &mut self,
        port: &mut Port,
        pid: pid_t,
        status: ExitStatus,
    ) -> Result<(), Failure> {
        if pid == self.program && !self.started {
            return Err(not_started(status));
        }
        self.waiting.remove(&pid);
        if let Some(parent) = self.announced.remove(&pid) {
            self.resume(port, parent, Resume::Continue(0))?;
        }
        if let Some(mut task) = self.tasks.remove(pid) {
            // It was killed while it was in a stop, or missed its exit stop.
            let source = task.source(pid);
            if let Some(buffer) = &mut task.buffer
                && !task.finished
            {
                task.name.send(port, pid)?;
                task.finished = self.drain_zombie(port, source, buffer)?;
            }
            let process = task.process;
            self.end(port, pid, task, status)?;
            self.start_abandoned(port, process)?;
        }
        Ok(())
    }

    /// A task has executed a program. It has no other threads any more.
    fn executes(&mut self, port: &mut Port, pid: pid_t) -> Result<(), Failure> {
        if pid == self.program && !self.started {
            let time = now();
            // Not before: the agent waits until the child has closed its pipe, which a child that
            // cannot execute the program does by its exit.
            ptrace::stop_at_exit(pid)
                .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_SETOPTIONS", error))?;
            let buffer = self.recorder.start_first(pid)?;
            self.started = true;
            let records = buffer.records();
            self.tasks.add(pid, Task::new(pid, 0, Some(buffer)));
            port.send(&ToHost::TaskStart {
                task: pid.unsigned_abs(),
                parent: 0,
                process: pid.unsigned_abs(),
                records,
                time,
            })?;
            return self.send_exec(port, pid, pid);
        }
        let former = ptrace::event_message(pid).unwrap_or(pid);
        // A thread takes the place of the leader, which has ended. The kernel has reaped it, so
        // requests with its ID are for the thread.
        if former != pid {
            if let Some(leader) = self.tasks.remove(pid) {
                self.end(port, pid, leader, ExitStatus::Code(0))?;
            }
            self.tasks.rename(former, pid);
        }
        if let Some(task) = self.tasks.get_mut(pid) {
            let source = Source {
                known_as: former,
                ..task.source(pid)
            };
            if let Some(buffer) = &mut task.buffer {
                // The records belong to the old program and its mappings, which no longer exist.
                self.recorder.drain(port, source, buffer, None)?;
            }
        }
        self.send_exec(port, pid, former)
    }

    fn send_exec(&mut self, port: &mut Port, pid: pid_t, former: pid_t) -> Result<(), Failure> {
        let Some(task) = self.tasks.get_mut(pid) else {
            return Ok(());
        };
        task.name = TaskName::of_program(pid);
        let process = task.process;
        if task.is_recorded() {
            let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            port.send(&ToHost::TaskExec {
                task: pid.unsigned_abs(),
                former: former.unsigned_abs(),
                time: now(),
                name: path.as_os_str().as_bytes(),
            })?;
        }
        self.replace_maps(port, process, Maps::new(pid))
    }

    /// Sends the mappings of a process that has a new program.
    fn replace_maps(&mut self, port: &mut Port, process: pid_t, maps: Maps) -> Result<(), Failure> {
        self.tasks.set_maps(process, maps);
        match self.tasks.maps(process) {
            Some(maps) => {
                send_maps(port, process, maps)?;
                self.code.executes(port, process, maps)
            }
            None => Ok(()),
        }
    }

    /// A task has stopped for a signal that the host wants to know about.
    fn report_signal(&mut self, port: &mut Port, pid: pid_t, signal: c_int) -> Result<(), Failure> {
        self.drain(port, pid)?;
        if !self.tasks.get(pid).is_some_and(Task::is_recorded) {
            return Ok(());
        }
        port.send(&ToHost::TaskSignal {
            task: pid.unsigned_abs(),
            time: now(),
            signal: signal.unsigned_abs(),
        })
    }

    /// A task has stopped at its exit.
    fn exits(&mut self, port: &mut Port, pid: pid_t) -> Result<(), Failure> {
        let Some(task) = self.tasks.get_mut(pid) else {
            return Ok(());
        };
        let is_recorded = task.is_recorded();
        let crash = task.crash.take().filter(|crash| {
            let status = ptrace::event_message(pid);
            is_recorded && status.is_ok_and(|status| crash::is_fatal(pid, status, crash))
        });
        let drained = self.drain(port, pid)?;
        // Behind the records that lead to it.
        if let Some(crash) = crash {
            port.send(&ToHost::Crash(crash))?;
        }
        if let Some(task) = self.tasks.get_mut(pid) {
            task.finished = drained;
            // The other threads end at the same time, or have ended.
            if task.process == pid {
                self.send_code(port, pid)?;
            }
        }
        Ok(())
    }

    /// Sends the code of a process that ends.
    pub(super) fn send_code(&mut self, port: &mut Port, process: pid_t) -> Result<(), Failure> {
        let Some(maps) = self.tasks.maps(process) else {
            return Ok(());
        };
        send_maps(port, process, maps)?;
        self.code.ends(port, process, maps)
    }

    /// A task is about to trace another one, or to be traced, and waits in a stop. A task has one
    /// tracer, so this one detaches from the other.
    fn traces(&mut self, port: &mut Port, pid: pid_t) -> Result<(), Failure> {
        let target = ptrace::event_message(pid).unwrap_or(0);
        if target == pid {
            return self.release(port, pid, 0, &traced_by_parent(pid));
        }
        let Some(task) = self.tasks.get_mut(target) else {
            return resume_task(pid, Resume::Continue(0));
        };
        if task.held {
            self.release(port, target, 0, &traced_by(pid))?;
        } else if !task.finished && ptrace::interrupt(target).is_ok() {
            // It continues after the other task's next stop or end.
            task.callers.push(pid);
            if let Some(caller) = self.tasks.get_mut(pid) {
                caller.held = true;
            }
            return Ok(());
        }
        resume_task(pid, Resume::Continue(0))
    }

    /// Detaches from a stopped task, which will have another tracer. `reason` says which.
    fn release(
        &mut self,
        port: &mut Port,
        pid: pid_t,
        signal: c_int,
        reason: &str,
    ) -> Result<(), Failure> {
        self.drain(port, pid)?;
        let Some(task) = self.tasks.remove(pid) else {
            return Ok(());
        };
        self.has_untraced = true;
        if task.is_recorded() {
            untraced(port, pid, task.parent, reason)?;
        }
        ignore_killed(ptrace::detach(pid, signal), "PTRACE_DETACH")?;
        let process = task.process;
        self.forget(port, task)?;
        self.start_abandoned(port, process)
    }

    /// Reports the end of a task, which is in no table any more.
    fn end(
        &mut self,
        port: &mut Port,
        pid: pid_t,
        task: Task,
        status: ExitStatus,
    ) -> Result<(), Failure> {
        if task.is_recorded() {
            if !task.finished {
                port.send(&ToHost::Lost {
                    task: pid.unsigned_abs(),
                    records: 1,
                })?;
            }
            port.send(&ToHost::TaskEnd {
                task: pid.unsigned_abs(),
                time: now(),
                status,
            })?;
        }
        self.forget(port, task)
    }

    /// Frees what belonged to a task, and resumes the tasks that wait for it.
    fn forget(&mut self, port: &mut Port, task: Task) -> Result<(), Failure> {
        if let Some(buffer) = task.buffer {
            self.recorder.release(port, buffer)?;
        }
        for caller in task.callers {
            if let Some(caller) = self.tasks.get_mut(caller) {
                caller.held = false;
            }
            resume_task(caller, Resume::Continue(0))?;
        }
        Ok(())
    }

    /// Resumes a task from the stop that was handled, or detaches from it if another one is about
    /// to trace it.
    fn resume(&mut self, port: &mut Port, pid: pid_t, resume: Resume) -> Result<(), Failure> {
        // PTRACE_CONT ends any stop. A task that was killed meanwhile, by a thread that executes a
        // program for example, may be in its exit stop, which has to be handled first.
        if !ptrace::is_in_last_stop(pid) {
            return Ok(());
        }
        let caller = self.tasks.get(pid).and_then(|task| task.callers.first());
        match (caller, resume) {
            (None, _) => resume_task(pid, resume),
            (Some(&tracer), Resume::Continue(signal)) => {
                self.release(port, pid, signal, &traced_by(tracer))
            }
            (Some(&tracer), Resume::Listen) => self.release(port, pid, 0, &traced_by(tracer)),
        }
    }
}

fn resume_task(pid: pid_t, resume: Resume) -> Result<(), Failure> {
    match resume {
        Resume::Continue(signal) => ignore_killed(ptrace::cont(pid, signal), "PTRACE_CONT"),
        Resume::Listen => ignore_killed(ptrace::listen(pid), "PTRACE_LISTEN"),
    }
}

/// The failure of a program whose task has ended during execve. The kernel kills the task if it can
/// neither load the program nor return to the old one.
fn not_started(status: ExitStatus) -> Failure {
    let how = match status {
        ExitStatus::Signal(signal) => match c_int::from(signal) {
            libc::SIGKILL => "SIGKILL".to_string(),
            libc::SIGSEGV => "SIGSEGV".to_string(),
            other => format!("signal {other}"),
        },
        ExitStatus::Code(code) => format!("status {code}"),
    };
    Failure::new(
        ErrorKind::NotExecutable,
        format_args!(
            "the guest's kernel could not load the program ({how}): it or its interpreter is \
             damaged, or does not fit into memory"
        ),
    )
}

/// Ignores ESRCH: a task may be killed at any time, and `wait` reports its end.
fn ignore_killed(result: io::Result<()>, what: &str) -> Result<(), Failure> {
    match result {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(Failure::os(ErrorKind::Trace, what, error))
        }
        _ => Ok(()),
    }
}
