//! The job's standard input, output and error.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use vbts_protocol::{ErrorKind, ToHost};

use crate::failure::Failure;
use crate::port::Port;

/// Bytes that are read from the job, or requested from the host, at a time: the capacity of a pipe.
const CHUNK: usize = 64 << 10;

/// An output of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// The reading end of an output of the job.
#[derive(Debug)]
pub struct Output {
    pipe: Option<OwnedFd>,
    stream: Stream,
    chunk: Box<[u8]>,
}

impl Output {
    pub fn new(pipe: OwnedFd, stream: Stream) -> Result<Self, Failure> {
        set_nonblocking(&pipe)?;
        Ok(Self {
            pipe: Some(pipe),
            stream,
            chunk: vec![0; CHUNK].into(),
        })
    }

    /// The pipe, while it is open.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(OwnedFd::as_fd)
    }

    /// Forwards one chunk. Returns whether there was one.
    pub fn forward(&mut self, port: &mut Port) -> Result<bool, Failure> {
        let Some(pipe) = &self.pipe else {
            return Ok(false);
        };
        match rustix::io::read(pipe, &mut *self.chunk) {
            Ok(0) => {
                self.pipe = None;
                Ok(false)
            }
            Ok(n) => {
                let bytes = self.chunk.get(..n).unwrap_or_default();
                port.send(&match self.stream {
                    Stream::Stdout => ToHost::Stdout(bytes),
                    Stream::Stderr => ToHost::Stderr(bytes),
                })?;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(Failure::os(ErrorKind::Internal, "output of the job", error)),
        }
    }
}

/// The writing end of the job's standard input.
///
/// The agent requests a pipe's capacity from the host when all earlier input is in the pipe.
#[derive(Debug)]
pub struct Input {
    pipe: Option<OwnedFd>,
    /// Bytes that were received but not written.
    pending: Vec<u8>,
    /// A request to the host has no answer yet.
    asked: bool,
    ended: bool,
}

impl Input {
    pub fn new(pipe: OwnedFd) -> Result<Self, Failure> {
        set_nonblocking(&pipe)?;
        Ok(Self {
            pipe: Some(pipe),
            pending: Vec::new(),
            asked: false,
            ended: false,
        })
    }

    /// The pipe, while the job has it open.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(OwnedFd::as_fd)
    }

    /// Returns whether bytes wait for room in the pipe.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Adds bytes from the host.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if !self.asked || bytes.len() > CHUNK {
            let text = format!(
                "{} bytes of standard input that were not asked for",
                bytes.len()
            );
            return Err(Failure::new(ErrorKind::Protocol, text));
        }
        self.asked = false;
        if self.pipe.is_some() && !self.ended {
            self.pending.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Handles the end of the host's input.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Closes the pipe: the job has closed its end, or the input has ended.
    pub fn close(&mut self) {
        self.pipe = None;
        self.pending = Vec::new();
    }

    /// Writes bytes until the pipe is full. When all are written, requests more or forwards the
    /// end.
    pub fn pump(&mut self, port: &mut Port) -> Result<(), Failure> {
        let Some(pipe) = &self.pipe else {
            return Ok(());
        };
        while !self.pending.is_empty() {
            match rustix::io::write(pipe, &self.pending) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::PIPE) => {
                    self.close();
                    return Ok(());
                }
                Err(error) => {
                    return Err(Failure::os(ErrorKind::Internal, "input of the job", error));
                }
            }
        }
        if self.ended {
            self.close();
        } else if !self.asked {
            self.asked = true;
            port.send(&ToHost::StdinWant(CHUNK as u32))?;
        }
        Ok(())
    }
}

fn set_nonblocking(pipe: &OwnedFd) -> Result<(), Failure> {
    let set =
        || -> rustix::io::Result<()> { fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK) };
    set().map_err(|error| Failure::os(ErrorKind::Internal, "pipe", io::Error::from(error)))
}
