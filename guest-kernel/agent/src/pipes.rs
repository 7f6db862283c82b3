//! Pipes and terminals whose bytes the agent exchanges with the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, ioctl};
use vbts_protocol::{ErrorKind, ToHost};

use crate::failure::Failure;
use crate::port::Port;
use crate::reader::{Reader, Wanted};

/// Bytes that are read from the job, or requested from the host, at a time: the capacity of a pipe.
const CHUNK: usize = 64 << 10;

/// The reading end of an output of the job.
#[derive(Debug)]
pub struct Output {
    stream: u32,
    fd: Option<OwnedFd>,
    chunk: Box<[u8]>,
}

impl Output {
    /// `fd` has what the program writes to the stream.
    pub fn new(stream: u32, fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&fd)?;
        Ok(Self {
            stream,
            fd: Some(fd),
            chunk: vec![0; CHUNK].into(),
        })
    }

    /// The number of the stream.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// The descriptor, while it is open.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(OwnedFd::as_fd)
    }

    /// Closes the descriptor. What the program writes from now on fails.
    pub fn close(&mut self) {
        self.fd = None;
    }

    /// Forwards one chunk. Returns whether there was one.
    pub fn forward(&mut self, port: &mut Port) -> Result<bool, Failure> {
        let Some(fd) = &self.fd else {
            return Ok(false);
        };
        match rustix::io::read(fd, &mut *self.chunk) {
            // A terminal without a process has EIO.
            Ok(0) | Err(Errno::IO) => {
                self.fd = None;
                Ok(false)
            }
            Ok(n) => {
                port.send(&ToHost::Output {
                    fd: self.stream,
                    bytes: self.chunk.get(..n).unwrap_or_default(),
                })?;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(Failure::os(ErrorKind::Internal, "output of the job", error)),
        }
    }
}

/// The writing end of an input of the job.
///
/// The agent requests a pipe's capacity from the host when a process waits for input: when it reads
/// an empty pipe or polls it. The guest's kernel reports that as POLLPRI at the writing end, which
/// [`report_readers`] asks for. For a terminal, see [`Reader`].
#[derive(Debug)]
pub struct Input {
    stream: u32,
    fd: Option<OwnedFd>,
    /// The processes that read it, if it is a terminal.
    reader: Option<Reader>,
    /// Bytes that were received but not written.
    pending: Vec<u8>,
    /// A process waits for input of a pipe.
    wanted: bool,
    /// The last request to the host, until its answer.
    asked: Option<Wanted>,
    ended: bool,
}

impl Input {
    /// The program reads the stream from the pipe whose writing end is `fd`.
    pub fn new(stream: u32, fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&fd)?;
        report_readers(&fd)?;
        Ok(Self {
            stream,
            fd: Some(fd),
            reader: None,
            pending: Vec::new(),
            wanted: false,
            asked: Some(Wanted::Nothing),
            ended: false,
        })
    }

    /// The program reads the stream from the terminal whose other side is `fd`.
    pub fn of_terminal(stream: u32, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            reader: Some(Reader::new(fd.try_clone()?)?),
            ..Self::new(stream, fd)?
        })
    }

    /// The number of the stream.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// The descriptor and the events to wait for, while the job has it open. poll also reports the
    /// end of the reader (POLLERR), without a request.
    pub fn awaited(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let fd = self.fd.as_ref()?.as_fd();
        Some(match &self.reader {
            _ if !self.pending.is_empty() => (fd, PollFlags::OUT),
            Some(reader) => (reader.fd(), PollFlags::IN),
            None if self.asked == Some(Wanted::Any) => (fd, PollFlags::empty()),
            None => (fd, PollFlags::PRI),
        })
    }

    /// Takes events of [`Self::awaited`].
    pub fn take_events(&mut self, events: PollFlags) {
        self.wanted |= events.contains(PollFlags::PRI);
        if events.contains(PollFlags::ERR) {
            self.close();
        }
    }

    /// Adds bytes from the host.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        // The answer may have crossed another request for the keys of a terminal.
        let was_asked = self.reader.is_some() || self.asked == Some(Wanted::Any);
        if !was_asked || bytes.len() > CHUNK {
            let text = format!("{} bytes of input that were not asked for", bytes.len());
            return Err(Failure::new(ErrorKind::Protocol, text));
        }
        self.asked = None;
        if let Some(reader) = &mut self.reader {
            reader.gets(bytes).map_err(failure)?;
        }
        if self.fd.is_some() && !self.ended {
            self.pending.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Handles the end of the host's input.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Closes the pipe: the job has closed its end, or the input has ended.
    fn close(&mut self) {
        self.fd = None;
        self.pending = Vec::new();
    }

    /// Writes bytes until the pipe is full. When all are written, requests more if a process waits
    /// for them, or forwards the end.
    pub fn pump(&mut self, port: &mut Port) -> Result<(), Failure> {
        let Some(fd) = &self.fd else {
            return Ok(());
        };
        while !self.pending.is_empty() {
            match rustix::io::write(fd, &self.pending) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::PIPE | Errno::IO) => {
                    self.close();
                    return Ok(());
                }
                Err(error) => return Err(failure(error.into())),
            }
        }
        if self.ended {
            // A terminal stays open: the program may still write to it.
            if self.reader.is_none() {
                self.close();
            }
            return Ok(());
        }
        let wanted = match &mut self.reader {
            Some(reader) => {
                reader.update().map_err(failure)?;
                reader.wanted().map_err(failure)?
            }
            None if !self.wanted => return Ok(()),
            None => Wanted::Any,
        };
        if self.asked != Some(wanted) {
            (self.asked, self.wanted) = (Some(wanted), false);
            let bytes = if wanted == Wanted::Nothing { 0 } else { CHUNK };
            port.send(&ToHost::InputWant {
                fd: self.stream,
                bytes: bytes as u32,
                canonical: wanted == Wanted::Line,
            })?;
        }
        Ok(())
    }

    /// Leaves what is typed from now on to the next reader of the host's terminal.
    pub fn finish(&mut self, port: &mut Port) -> Result<(), Failure> {
        match &mut self.reader {
            Some(reader) => {
                reader.end();
                self.pump(port)
            }
            None => Ok(()),
        }
    }
}

fn failure(error: io::Error) -> Failure {
    Failure::os(ErrorKind::Internal, "input of the job", error)
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// An ioctl of the guest's kernel (guest-kernel/patches/vbts).
const FIOREADERS: Opcode = 0x5461;

/// Has the kernel report POLLPRI at this writing end of a pipe, or master of a pseudoterminal, when
/// a process has found no input.
fn report_readers(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: FIOREADERS has no argument.
    unsafe { ioctl(fd, NoArg::<FIOREADERS>::new()) }?;
    Ok(())
}
