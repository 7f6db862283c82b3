//! Pipes and terminals whose bytes the agent exchanges with the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use vbts_protocol::{ErrorKind, ToHost};

use crate::failure::Failure;
use crate::port::Port;

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
/// an empty pipe or polls it. The guest's kernel reports that as POLLPRI at the writing end. A
/// terminal is read ahead from then on, since keys such as Ctrl-C act at once.
#[derive(Debug)]
pub struct Input {
    stream: u32,
    fd: Option<OwnedFd>,
    terminal: bool,
    reads_ahead: bool,
    /// Bytes that were received but not written.
    pending: Vec<u8>,
    /// A process waits for input.
    wanted: bool,
    /// A request to the host has no answer yet.
    asked: bool,
    ended: bool,
}

impl Input {
    /// The program reads the stream from the pipe whose writing end is `fd`.
    pub fn new(stream: u32, fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&fd)?;
        Ok(Self {
            stream,
            fd: Some(fd),
            terminal: false,
            reads_ahead: false,
            pending: Vec::new(),
            wanted: false,
            asked: false,
            ended: false,
        })
    }

    /// The program reads the stream from the terminal whose other side is `fd`.
    pub fn of_terminal(stream: u32, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            terminal: true,
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
        let events = if !self.pending.is_empty() {
            PollFlags::OUT
        } else if self.asked || self.reads_ahead {
            PollFlags::empty()
        } else {
            PollFlags::PRI
        };
        Some((fd, events))
    }

    /// Takes events of [`Self::awaited`].
    pub fn take_events(&mut self, events: PollFlags) {
        self.wanted |= events.contains(PollFlags::PRI);
        self.reads_ahead |= self.terminal && self.wanted;
        if events.contains(PollFlags::ERR) {
            self.close();
        }
    }

    /// Adds bytes from the host.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if !self.asked || bytes.len() > CHUNK {
            let text = format!("{} bytes of input that were not asked for", bytes.len());
            return Err(Failure::new(ErrorKind::Protocol, text));
        }
        self.asked = false;
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
                Err(error) => {
                    return Err(Failure::os(ErrorKind::Internal, "input of the job", error));
                }
            }
        }
        if self.ended {
            // A terminal stays open: the program may still write to it.
            if !self.terminal {
                self.close();
            }
        } else if !self.asked && (self.wanted || self.reads_ahead) {
            (self.asked, self.wanted) = (true, false);
            port.send(&ToHost::InputWant {
                fd: self.stream,
                bytes: CHUNK as u32,
            })?;
        }
        Ok(())
    }
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}
