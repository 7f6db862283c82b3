//! PID 1 of the guest: mounts the host's files, runs one job, records its branches on request, and
//! reports over a virtio-console port. It ends the machine through the exit port.

mod bts;
mod change_events;
mod code;
mod crash;
mod deadlock;
mod failure;
mod layer;
mod machine;
mod maps;
mod mounts;
mod pagemap;
mod pipes;
mod port;
mod process_group;
mod processes;
mod ptrace;
mod reader;
mod run;
mod segments;
mod spawn;
mod status;
mod streams;
mod suspension;
mod task_name;
mod tasks;
mod terminal;
mod tracer;

use vbts_protocol::{EXIT_FAILURE, ErrorKind, ExitStatus, ToGuest, ToHost, VERSION};

use crate::failure::Failure;
use crate::port::Port;
use crate::run::Outcome;

fn main() {
    let status = match start() {
        Ok(mut port) => report(&mut port),
        Err(failure) => {
            // Without the port, the console is the only way to report it.
            eprintln!("vbts-agent: {failure}");
            EXIT_FAILURE
        }
    };
    machine::exit(status)
}

fn start() -> Result<Port, Failure> {
    mounts::early()?;
    machine::enable_exit_port()?;
    Port::open()
}

/// Runs the job, sends the host its result, and returns the machine's exit status.
fn report(port: &mut Port) -> u8 {
    let outcome = serve(port);
    let (message, status) = match &outcome {
        Ok(Outcome::Ended) => (ToHost::Ended, 0),
        Ok(Outcome::Exit(status)) => {
            let code = match status {
                ExitStatus::Code(code) => *code,
                // The convention of shells. The frame has the exact status.
                ExitStatus::Signal(signal) => 128 + (signal & 0x7f),
            };
            (ToHost::Exit(*status), code)
        }
        Err(Failure { kind, errno, text }) => (
            ToHost::Error {
                kind: *kind,
                errno: *errno,
                text,
            },
            EXIT_FAILURE,
        ),
    };
    // The job's files must be complete when the host learns that the job has ended.
    rustix::fs::sync();
    match port.send(&message) {
        Ok(()) => status,
        Err(failure) => {
            eprintln!("vbts-agent: {failure}");
            EXIT_FAILURE
        }
    }
}

fn serve(port: &mut Port) -> Result<Outcome, Failure> {
    port.send(&ToHost::Ready(VERSION))?;
    let job = 'job: loop {
        port.fill()?;
        while let Some(message) = port.next_message()? {
            match message {
                ToGuest::Job(job) => break 'job *job,
                // There is no job yet for them.
                ToGuest::InputEnd { .. }
                | ToGuest::Signal(_)
                | ToGuest::OutputClosed { .. }
                | ToGuest::WindowSize(_) => {}
                ToGuest::End => return Ok(Outcome::Ended),
                ToGuest::Input { .. } => {
                    return Err(Failure::new(ErrorKind::Protocol, "input before the job"));
                }
            }
        }
    };
    let files = mounts::files(&job)?;
    let layer = mounts::enter_root(&job)?;
    machine::configure(&job)?;
    let outcome = run::run(port, &job, files.as_ref())?;
    layer.report(port)?;
    Ok(outcome)
}
