//! The process with the replay, which serves the client. It accepts no connection in its sandbox:
//! gdb is connected before, and another client by a relay.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vbts_debugger::{Debugger, Parts, ProgramFiles, View};
use vbts_gdb::Connection;
use vbts_host::exit::{Failure, say};
use vbts_host::{Alarm, Event};

use super::client::Connecting;
use super::{DebugArgs, snapshots};
use crate::progress::progress;
use crate::recording::OldRecording;
use crate::replay::ObservedMachine;

/// A connection that uses the system calls of files, which the sandbox allows. A signal to this
/// process ends it.
struct Stream {
    file: File,
    alarm: Arc<Alarm>,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut descriptors = [
            PollFd::new(&self.file, PollFlags::IN),
            PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN),
        ];
        poll(&mut descriptors, None)?;
        match self.alarm.has_pending() {
            true => Ok(0),
            false => self.file.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Connection for Stream {
    fn is_readable(&mut self) -> io::Result<bool> {
        let mut descriptors = [PollFd::new(&self.file, PollFlags::IN)];
        loop {
            match poll(&mut descriptors, Some(&Timespec::default())) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result? > 0),
            }
        }
    }
}

/// Serves the client that connects, until it ends the session. It gets `files` of the program.
///
/// # Errors
/// The recording cannot be debugged, or the connection fails.
pub(super) fn serve(
    args: &DebugArgs,
    file: &Path,
    client: Connecting,
    files: Option<ProgramFiles>,
) -> Result<u8, Failure> {
    let recording = OldRecording::open(file)?;
    let is_kernel_view = args.is_kernel_view(recording.facts.is_machine)?;
    if recording.facts.is_32_bit {
        return Err(anyhow!(
            "{}: only recordings of a 64-bit kernel can be debugged",
            file.display()
        )
        .into());
    }
    // A temporary recording has no other session.
    let kept = match &args.file {
        Some(file) => snapshots::open(file)?,
        None => None,
    };
    // gdb that is started here has them at `set sysroot`.
    let client_has_files = args.listen.is_none();
    let connect: Box<dyn FnOnce() -> io::Result<File>> = match client {
        // It waits for its answers as long as that takes.
        Connecting::Gdb(listener) => {
            let connection = OwnedFd::from(listener.accept()?.0);
            Box::new(|| Ok(connection.into()))
        }
        Connecting::Other(relay) => Box::new(|| relay.connect()),
    };
    let view = match is_kernel_view {
        true => View::Kernel,
        false => View::Program {
            process: args.process.as_deref(),
        },
    };
    let ObservedMachine {
        machine,
        connection: guest,
        memory,
        alarm,
    } = ObservedMachine::of(&recording, &args.machine.config())?;
    let bar = progress("{elapsed} {msg}", !args.quiet);
    let started = Debugger::start(Parts {
        machine,
        connection: guest,
        memory,
        inputs: recording.inputs.clone(),
        kernel: recording.kernel.image(),
        snapshots: usize::try_from(args.snapshots.0).unwrap_or(usize::MAX),
        kept,
        progress: &mut |time, instructions| {
            let seconds = time as f64 / 1e9;
            let millions = instructions / 1_000_000;
            bar.set_message(format!(
                "replaying: {seconds:.1} s of virtual time, {millions} million instructions"
            ));
        },
        view,
        client_has_files,
        files,
    });
    bar.finish_and_clear();
    let mut debugger = started?;
    if let Some(notice) = debugger.notice().filter(|_| !args.quiet) {
        say(format_args!("{notice}"));
    }
    let file = connect()?;
    let served = debugger.serve(Stream {
        file,
        alarm: alarm.clone(),
    });
    match alarm.take() {
        Some(Event::Signal(signal)) => Err(Failure::Signal(signal)),
        _ => served.map(|_| 0),
    }
}
