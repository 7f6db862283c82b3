//! PID 1 of the guest: mounts the host's files, runs one job, with its branches recorded if asked,
//! and reports over a virtio-console port. Ends the machine through its exit port; never returns.

mod bts;
mod failure;
mod machine;
mod maps;
mod mounts;
mod pagemap;
mod pipes;
mod port;
mod ptrace;
mod run;
mod spawn;

use vbts_protocol::{EXIT_FAILURE, ErrorKind, ExitStatus, ToGuest, ToHost, VERSION};

use crate::failure::Failure;
use crate::port::Port;

fn main() {
    let status = match start() {
        Ok(mut port) => report(&mut port),
        Err(failure) => {
            // Nobody can be told but whoever reads the console.
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

/// Runs the job, tells the host how that ended, and returns the machine's exit status.
fn report(port: &mut Port) -> u8 {
    let outcome = serve(port);
    let (message, status) = match &outcome {
        Ok(status @ ExitStatus::Code(code)) => (ToHost::Exit(*status), *code),
        // The shell's convention; the host has the exact status from the frame.
        Ok(status @ ExitStatus::Signal(signal)) => (ToHost::Exit(*status), 128 + (signal & 0x7f)),
        Err(Failure { kind, errno, text }) => (
            ToHost::Error {
                kind: *kind,
                errno: *errno,
                text,
            },
            EXIT_FAILURE,
        ),
    };
    // Files of the job first: the host may act on them as soon as it knows that the job has ended.
    rustix::fs::sync();
    match port.send(&message) {
        Ok(()) => status,
        Err(failure) => {
            eprintln!("vbts-agent: {failure}");
            EXIT_FAILURE
        }
    }
}

fn serve(port: &mut Port) -> Result<ExitStatus, Failure> {
    port.send(&ToHost::Ready(VERSION))?;
    let job = 'job: loop {
        port.fill()?;
        while let Some(message) = port.next_message()? {
            match message {
                ToGuest::Job(job) => break 'job *job,
                // These are for a job; there is none yet.
                ToGuest::StdinEof | ToGuest::Signal(_) => {}
                ToGuest::Stdin(_) => {
                    return Err(Failure::new(
                        ErrorKind::Protocol,
                        "standard input before the job",
                    ));
                }
            }
        }
    };
    mounts::enter_root(&job)?;
    machine::configure(&job)?;
    run::run(port, &job)
}
