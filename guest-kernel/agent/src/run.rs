//! Runs one job. After each event it handles, in this order: children, output, messages of the
//! host, and input.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vbts_protocol::{ErrorKind, ExitStatus, Job, StreamKind, ToGuest, ToHost};

use crate::bts::now;
use crate::failure::Failure;
use crate::port::Port;
use crate::process_group::group_of;
use crate::processes;
use crate::ptrace::{self, Wait};
use crate::spawn::spawn;
use crate::streams::Streams;
use crate::terminal::Terminal;
use crate::tracer::Tracer;

/// How the run of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its program ended.
    Exit(ExitStatus),
    /// The host asked for the end.
    Ended,
}

/// The end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The host has sent something.
    Host,
    /// Something else has happened.
    Other,
    /// Nothing has happened within the limit.
    Nothing,
}

/// Time without an event after which the tasks are looked at.
const DEADLOCK_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Runs the job and returns how that ended. `files` has the regular files among its descriptors.
pub fn run(port: &mut Port, job: &Job, files: Option<&OwnedFd>) -> Result<Outcome, Failure> {
    let children =
        child_events().map_err(|error| Failure::os(ErrorKind::Internal, "signalfd", error))?;
    let (mut streams, descriptors) = Streams::open(job, files)?;
    let terminal = job
        .streams
        .iter()
        .find(|stream| stream.kind == StreamKind::Terminal)
        .map(|stream| stream.fd);
    let pid = spawn(job, &descriptors, terminal, job.trace.is_some())?;
    // A pipe ends when the program's processes have closed it.
    drop(descriptors);
    let on_terminal = streams.terminal().is_some();
    let mut tracer = job.trace.map(|trace| Tracer::new(pid, trace, on_terminal));
    if tracer.is_some() {
        urgent();
    }
    if tracer.is_none() {
        port.send(&ToHost::Started {
            pid: pid.unsigned_abs(),
        })?;
    }
    let mut watches_deadlocks = tracer.is_some() && job.ends_at_deadlock;
    // How the first process has ended, if the run waits for others.
    let mut ended = None;

    loop {
        discard_events(&children);
        while let Some((child, wait)) = ptrace::wait_any() {
            match (wait, &mut tracer) {
                (Wait::Stopped { signal, event }, Some(tracer)) => {
                    tracer.stopped(port, child, signal, event)?;
                    tracer.sweep(port)?;
                }
                (Wait::Stopped { .. }, None) => {}
                // It may also be an orphan that PID 1 has inherited.
                (Wait::Ended(status), tracer) => {
                    if let Some(tracer) = tracer {
                        tracer.ended(port, child, status)?;
                    }
                    ptrace::reap(child);
                    if child == pid {
                        if !job.wait_all {
                            return finish(port, &mut streams, tracer, status);
                        }
                        ended = Some(status);
                        if ptrace::has_children() {
                            processes::report_left(port, false)?;
                        }
                    }
                }
            }
        }
        if let Some(status) = ended
            && !ptrace::has_children()
        {
            return finish(port, &mut streams, &mut tracer, status);
        }
        streams.forward(port)?;
        if tracer.as_mut().is_some_and(Tracer::take_suspended) {
            // The terminal shows the key (^Z) before the host's shell has it.
            streams.forward(port)?;
            port.send(&ToHost::Stopped)?;
        }
        while let Some(message) = port.next_message()? {
            match message {
                ToGuest::Input { fd, bytes } => streams.push(fd, bytes)?,
                ToGuest::InputEnd { fd } => streams.end_input(fd)?,
                ToGuest::OutputClosed { fd } => streams.close_output(fd),
                ToGuest::WindowSize(size) => streams.resize(size),
                ToGuest::Signal(signal) => match ended {
                    None => send_signal(pid, signal, streams.terminal()),
                    // The user does not want to wait for the others.
                    Some(status) => return finish(port, &mut streams, &mut tracer, status),
                },
                ToGuest::End => {
                    streams.finish(port)?;
                    if let Some(tracer) = &mut tracer {
                        tracer.close(port)?;
                    }
                    return Ok(Outcome::Ended);
                }
                ToGuest::Job(_) => return Err(Failure::new(ErrorKind::Protocol, "a second job")),
            }
        }
        if let Some(tracer) = &mut tracer {
            tracer.send_changes(port)?;
        }
        streams.pump(port)?;
        let limit = watches_deadlocks.then_some(DEADLOCK_INTERVAL);
        match wait_for_events(port, &children, tracer.as_ref(), &mut streams, limit)? {
            Event::Host => port.fill()?,
            Event::Other => {}
            Event::Nothing => {
                if tracer.as_mut().is_some_and(Tracer::is_in_deadlock) {
                    watches_deadlocks = false;
                    port.send(&ToHost::Deadlock)?;
                }
            }
        }
    }
}

/// Ends the run after the program's first process, which has ended with `status`.
fn finish(
    port: &mut Port,
    streams: &mut Streams,
    tracer: &mut Option<Tracer>,
    status: ExitStatus,
) -> Result<Outcome, Failure> {
    streams.finish(port)?;
    if ptrace::has_children() {
        processes::report_left(port, true)?;
    }
    end_others(port, tracer)?;
    Ok(Outcome::Exit(status))
}

/// Reports the end of the tasks that have outlived the program: the end of the machine kills them.
fn end_others(port: &mut Port, tracer: &mut Option<Tracer>) -> Result<(), Failure> {
    let Some(tracer) = tracer else {
        return Ok(());
    };
    for task in tracer.close(port)? {
        port.send(&ToHost::TaskEnd {
            task: task.unsigned_abs(),
            time: now(),
            status: ExitStatus::Signal(libc::SIGKILL as u8),
        })?;
    }
    Ok(())
}

/// Waits for an event, for `limit` at most.
fn wait_for_events(
    port: &Port,
    children: &OwnedFd,
    tracer: Option<&Tracer>,
    streams: &mut Streams,
    limit: Option<Timespec>,
) -> Result<Event, Failure> {
    let mut fds = vec![
        PollFd::new(port, PollFlags::IN),
        PollFd::new(children, PollFlags::IN),
    ];
    for events in tracer.iter().flat_map(|tracer| tracer.change_events()) {
        fds.push(PollFd::from_borrowed_fd(events, PollFlags::IN));
    }
    let first_stream = fds.len();
    streams.watch(&mut fds);
    loop {
        match poll(&mut fds, limit.as_ref()) {
            Ok(0) => return Ok(Event::Nothing),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::os(ErrorKind::Internal, "poll", error)),
        }
    }
    let host = fds.first().map_or(PollFlags::empty(), PollFd::revents);
    // Those of children and of changes are for the loop, which looks after them in each turn.
    let of_streams = fds.iter().skip(first_stream).map(PollFd::revents);
    let of_streams: Vec<PollFlags> = of_streams.collect();
    streams.take_events(&of_streams);
    Ok(match host.is_empty() {
        true => Event::Other,
        false => Event::Host,
    })
}

/// Gives this process a real-time priority: it preempts the program as soon as a mapping is
/// reported, before code in it runs. A lower nice value would not do: the scheduler lets a task
/// end its slice, in which a short program ends or executes another one.
fn urgent() {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the parameter. If it fails, the reports come later.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
}

/// Blocks SIGCHLD and returns a file descriptor that becomes readable when it is pending.
fn child_events() -> io::Result<OwnedFd> {
    // SAFETY: the calls read and write a signal set on the stack. The result of signalfd is a new
    // descriptor.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Discards pending SIGCHLDs. One signal can stand for several children, so its contents are not
/// used.
fn discard_events(children: &OwnedFd) {
    let mut events = [0u8; 8 * size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(children.as_fd(), &mut events).is_ok() {}
}

/// Sends a signal to the job: SIGTERM to its first process, as `kill` on the host would, and others
/// as a terminal would, to the foreground process group, or without a terminal to the process group
/// of the job.
fn send_signal(pid: libc::pid_t, signal: u32, terminal: Option<&Terminal>) {
    let Ok(signal) = libc::c_int::try_from(signal) else {
        return;
    };
    let target = match terminal {
        // It fails if the kernel does not let terminals send the signal.
        Some(terminal) if signal != libc::SIGTERM && terminal.signal(signal).is_ok() => return,
        _ if signal == libc::SIGTERM => pid,
        _ => match group_of(pid) {
            -1 => return,
            group => -group,
        },
    };
    // SAFETY: kill takes no pointers. It fails if the signal is invalid or the process or group has
    // ended, and then nothing has to be done.
    unsafe { libc::kill(target, signal) };
}
