//! Runs one job. After each event it handles, in this order: children, output, messages of the
//! host, and input.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, poll};
use vbts_protocol::{ErrorKind, ExitStatus, Job, ToGuest, ToHost};

use crate::bts::now;
use crate::failure::Failure;
use crate::pipes::{Input, Output, Stream};
use crate::port::Port;
use crate::processes;
use crate::ptrace::{self, Wait};
use crate::spawn::{Child, spawn};
use crate::tracer::Tracer;

/// How the run of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its program ended.
    Exit(ExitStatus),
    /// The host asked for the end.
    Ended,
}

/// Runs the job and returns how that ended.
pub fn run(port: &mut Port, job: &Job) -> Result<Outcome, Failure> {
    let children =
        child_events().map_err(|error| Failure::os(ErrorKind::Internal, "signalfd", error))?;
    let Child {
        pid,
        stdin,
        stdout,
        stderr,
    } = spawn(job, job.trace.is_some())?;
    let mut tracer = job.trace.map(|trace| Tracer::new(pid, trace));
    if tracer.is_none() {
        port.send(&ToHost::Started {
            pid: pid.unsigned_abs(),
        })?;
    }
    let mut outputs = [
        Output::new(stdout, Stream::Stdout)?,
        Output::new(stderr, Stream::Stderr)?,
    ];
    let mut input = Input::new(stdin)?;
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
                            return finish(port, &mut outputs, tracer, status);
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
            return finish(port, &mut outputs, &mut tracer, status);
        }
        for output in &mut outputs {
            output.forward(port)?;
        }
        while let Some(message) = port.next_message()? {
            match message {
                ToGuest::Stdin(bytes) => input.push(bytes)?,
                ToGuest::StdinEof => input.end(),
                ToGuest::Signal(signal) => match ended {
                    None => send_signal(pid, signal),
                    // The user does not want to wait for the others.
                    Some(status) => return finish(port, &mut outputs, &mut tracer, status),
                },
                ToGuest::End => {
                    forward_all(port, &mut outputs)?;
                    if let Some(tracer) = &mut tracer {
                        tracer.close(port)?;
                    }
                    return Ok(Outcome::Ended);
                }
                ToGuest::Job(_) => return Err(Failure::new(ErrorKind::Protocol, "a second job")),
            }
        }
        input.pump(port)?;

        let ready = wait_for_events(port, &children, &outputs, &input)?;
        if ready.host {
            port.fill()?;
        }
        if ready.input_closed {
            input.close();
        }
    }
}

/// Ends the run after the program's first process, which has ended with `status`.
fn finish(
    port: &mut Port,
    outputs: &mut [Output; 2],
    tracer: &mut Option<Tracer>,
    status: ExitStatus,
) -> Result<Outcome, Failure> {
    forward_all(port, outputs)?;
    if ptrace::has_children() {
        processes::report_left(port, true)?;
    }
    end_others(port, tracer)?;
    Ok(Outcome::Exit(status))
}

/// Forwards what is in the pipes.
fn forward_all(port: &mut Port, outputs: &mut [Output; 2]) -> Result<(), Failure> {
    for output in outputs {
        while output.forward(port)? {}
    }
    Ok(())
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

/// Events that the loop does not detect itself.
struct Ready {
    host: bool,
    input_closed: bool,
}

fn wait_for_events(
    port: &Port,
    children: &OwnedFd,
    outputs: &[Output; 2],
    input: &Input,
) -> Result<Ready, Failure> {
    let mut fds = vec![
        PollFd::new(port, PollFlags::IN),
        PollFd::new(children, PollFlags::IN),
    ];
    let input_at = input.fd().map(|fd| {
        // poll reports the end of the reader (POLLERR) without a request.
        let flags = if input.is_pending() {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        fds.push(PollFd::from_borrowed_fd(fd, flags));
        fds.len() - 1
    });
    fds.extend(
        outputs
            .iter()
            .filter_map(Output::fd)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
    );
    loop {
        match poll(&mut fds, None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::os(ErrorKind::Internal, "poll", error)),
        }
    }
    let events = |at: usize| fds.get(at).map_or(PollFlags::empty(), PollFd::revents);
    Ok(Ready {
        host: !events(0).is_empty(),
        input_closed: input_at.is_some_and(|at| events(at).contains(PollFlags::ERR)),
    })
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
/// to its process group, as a terminal would.
fn send_signal(pid: libc::pid_t, signal: u32) {
    let Ok(signal) = libc::c_int::try_from(signal) else {
        return;
    };
    let target = if signal == libc::SIGTERM { pid } else { -pid };
    // SAFETY: kill takes no pointers. It fails if the signal is invalid or the process or group has
    // ended, and then nothing has to be done.
    unsafe { libc::kill(target, signal) };
}
