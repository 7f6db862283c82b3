//! The descriptors that the program starts with, and the agent's side of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Gid, Mode, OFlags, SeekFrom, Uid, fchown, open, seek};
use rustix::pipe::{PipeFlags, pipe_with};
use vbts_protocol::{ErrorKind, FileAccess, Job, StreamKind, ToHost, WindowSize};

use crate::failure::Failure;
use crate::pipes::{Input, Output};
use crate::port::Port;
use crate::terminal::Terminal;

/// The descriptors of the program, by their numbers.
pub type Descriptors = BTreeMap<u32, OwnedFd>;

/// The agent's side of the program's descriptors.
#[derive(Debug, Default)]
pub struct Streams {
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    /// Regular files. Their offsets are those of the program.
    files: Vec<(u32, OwnedFd)>,
    terminal: Option<Terminal>,
}

impl Streams {
    /// Opens what `job` names. `files` is the directory where the share of the host's regular files
    /// is mounted.
    pub fn open(job: &Job, files: Option<&OwnedFd>) -> Result<(Self, Descriptors), Failure> {
        let mut streams = Self::default();
        let mut descriptors = Descriptors::new();
        for stream in &job.streams {
            let descriptor = streams
                .add(job, stream.fd, &stream.kind, files, &descriptors)
                .map_err(|error| {
                    let what = format!("descriptor {}", stream.fd);
                    Failure::os(ErrorKind::Start, what, error)
                })?;
            descriptors.insert(stream.fd, descriptor);
        }
        Ok((streams, descriptors))
    }

    fn add(
        &mut self,
        job: &Job,
        fd: u32,
        kind: &StreamKind,
        files: Option<&OwnedFd>,
        descriptors: &Descriptors,
    ) -> io::Result<OwnedFd> {
        Ok(match kind {
            StreamKind::Input => {
                let (reader, writer) = pipe(job)?;
                self.inputs.push(Input::new(fd, writer)?);
                reader
            }
            StreamKind::Output => {
                let (reader, writer) = pipe(job)?;
                self.outputs.push(Output::new(fd, reader)?);
                writer
            }
            StreamKind::Terminal => match &self.terminal {
                Some(terminal) => terminal.program_side()?,
                None => {
                    let settings = job.terminal.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
                    let terminal = Terminal::open(settings, owner(job))?;
                    self.outputs.push(Output::new(fd, terminal.agent_side()?)?);
                    self.inputs
                        .push(Input::of_terminal(fd, terminal.agent_side()?)?);
                    let side = terminal.program_side()?;
                    self.terminal = Some(terminal);
                    side
                }
            },
            StreamKind::File {
                access,
                append,
                offset,
            } => {
                let files = files.ok_or(io::ErrorKind::NotFound)?;
                let mut flags = access_flags(*access) | OFlags::NOCTTY;
                flags.set(OFlags::APPEND, *append);
                let name = fd.to_string();
                let file = rustix::fs::openat(files, name, flags, Mode::empty())?;
                seek(&file, SeekFrom::Start(*offset))?;
                self.files.push((fd, file.try_clone()?));
                file
            }
            StreamKind::Device { path, access } => {
                let path = Path::new(OsStr::from_bytes(&path.0));
                open(path, access_flags(*access) | OFlags::NOCTTY, Mode::empty())?
            }
            StreamKind::Same { fd } => descriptors
                .get(fd)
                .ok_or(io::ErrorKind::InvalidInput)?
                .try_clone()?,
        })
    }

    /// The terminal that becomes the program's controlling terminal.
    pub fn terminal(&self) -> Option<&Terminal> {
        self.terminal.as_ref()
    }

    /// Handles bytes of the host for the stream `fd`.
    pub fn push(&mut self, fd: u32, bytes: &[u8]) -> Result<(), Failure> {
        match self.inputs.iter_mut().find(|input| input.stream() == fd) {
            Some(input) => input.push(bytes),
            None => Err(unknown(fd)),
        }
    }

    /// Handles the end of the host's input for the stream `fd`.
    pub fn end_input(&mut self, fd: u32) -> Result<(), Failure> {
        let input = self.inputs.iter_mut().find(|input| input.stream() == fd);
        input.map(Input::end).ok_or_else(|| unknown(fd))
    }

    /// Closes the stream `fd`, whose reader has closed it: the program gets SIGPIPE when it writes.
    pub fn close_output(&mut self, fd: u32) {
        for output in &mut self.outputs {
            if output.stream() == fd {
                output.close();
            }
        }
    }

    /// Gives the terminal another size.
    pub fn resize(&self, size: WindowSize) {
        if let Some(terminal) = &self.terminal {
            // It fails only for a terminal that has ended.
            let _ = terminal.resize(size);
        }
    }

    /// Forwards what the program has written: one chunk of each stream.
    pub fn forward(&mut self, port: &mut Port) -> Result<bool, Failure> {
        let mut any = false;
        for output in &mut self.outputs {
            any |= output.forward(port)?;
        }
        Ok(any)
    }

    /// Forwards all that the program has written, takes no more input of a terminal, and tells the
    /// host the offsets of its files.
    pub fn finish(&mut self, port: &mut Port) -> Result<(), Failure> {
        while self.forward(port)? {}
        for input in &mut self.inputs {
            input.finish(port)?;
        }
        for (fd, file) in &self.files {
            let offset = seek(file, SeekFrom::Current(0))
                .map_err(|error| Failure::os(ErrorKind::Internal, "file offset", error))?;
            port.send(&ToHost::Position { fd: *fd, offset })?;
        }
        Ok(())
    }

    /// Writes input to the program's pipes, and asks for what it waits for.
    pub fn pump(&mut self, port: &mut Port) -> Result<(), Failure> {
        self.inputs
            .iter_mut()
            .try_for_each(|input| input.pump(port))
    }

    /// Adds the descriptors whose events matter to `fds`: those of the inputs, then those of the
    /// outputs.
    pub fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        for input in &self.inputs {
            if let Some((fd, events)) = input.awaited() {
                fds.push(PollFd::from_borrowed_fd(fd, events));
            }
        }
        for output in &self.outputs {
            if let Some(fd) = output.fd() {
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            }
        }
    }

    /// Takes the events of the inputs, which [`Self::watch`] has added in this order.
    pub fn take_events(&mut self, events: &[PollFlags]) {
        let awaited = self
            .inputs
            .iter_mut()
            .filter(|input| input.awaited().is_some());
        for (input, events) in awaited.zip(events) {
            input.take_events(*events);
        }
    }
}

fn unknown(fd: u32) -> Failure {
    Failure::new(
        ErrorKind::Protocol,
        format_args!("descriptor {fd} has no input"),
    )
}

fn owner(job: &Job) -> (Uid, Gid) {
    (
        Uid::from_raw(job.uid.unwrap_or(0)),
        Gid::from_raw(job.gid.unwrap_or(0)),
    )
}

/// A pipe that belongs to the job's user. The program can thus open it again by `/dev/stdin` or
/// `/dev/fd/N`.
fn pipe(job: &Job) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (user, group) = owner(job);
    fchown(&reader, Some(user), Some(group))?;
    Ok((reader, writer))
}

fn access_flags(access: FileAccess) -> OFlags {
    let mode = match access {
        FileAccess::Read => OFlags::RDONLY,
        FileAccess::Write => OFlags::WRONLY,
        FileAccess::Both => OFlags::RDWR,
    };
    mode | OFlags::CLOEXEC
}
