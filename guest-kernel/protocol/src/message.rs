//! The messages of both directions.

use crate::decoder::encode;
use crate::{Error, Frame, Job};

/// Bytes of one record: the kernel's `struct bts_struct`.
pub const RECORD_SIZE: usize = 24;

/// Maximum size in bytes of the records of one [`ToHost::Records`], a multiple of [`RECORD_SIZE`].
pub const MAX_RECORDS: usize = (4 << 20) / RECORD_SIZE * RECORD_SIZE;

/// A contiguous range of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Bytes of an [`Extent`] in a frame.
const EXTENT_SIZE: usize = 16;

/// A list of extents: {address, length}, `u64` little-endian each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extents<'a>(&'a [u8]);

impl<'a> Extents<'a> {
    /// Appends an extent to `bytes`, from which [`Self::new`] can make a list.
    pub fn push(bytes: &mut Vec<u8>, extent: Extent) {
        bytes.extend_from_slice(&extent.address.to_le_bytes());
        bytes.extend_from_slice(&extent.len.to_le_bytes());
    }

    /// The list in `bytes`.
    ///
    /// # Errors
    /// The total length is not a multiple of [`RECORD_SIZE`], or is more than [`MAX_RECORDS`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let wrong = |why: &dyn std::fmt::Display| Err(malformed("Records", why));
        if !bytes.len().is_multiple_of(EXTENT_SIZE) {
            return wrong(&format_args!("{} bytes are no extents", bytes.len()));
        }
        let extents = Self(bytes);
        let len = extents
            .iter()
            .try_fold(0u64, |sum, extent| sum.checked_add(extent.len))
            .unwrap_or(u64::MAX);
        if !len.is_multiple_of(RECORD_SIZE as u64) {
            return wrong(&format_args!("{len} bytes are not whole records"));
        }
        if len > MAX_RECORDS as u64 {
            return wrong(&format_args!("{len} bytes of records are too many"));
        }
        Ok(extents)
    }

    /// The extents in order.
    pub fn iter(self) -> impl Iterator<Item = Extent> + 'a {
        self.0.as_chunks::<EXTENT_SIZE>().0.iter().map(|bytes| {
            let (address, len) = bytes.split_at(8);
            let word = |bytes: &[u8]| {
                bytes
                    .iter()
                    .rev()
                    .fold(0, |word, b| word << 8 | u64::from(*b))
            };
            Extent {
                address: word(address),
                len: word(len),
            }
        })
    }
}

const JOB: u8 = 0x01;
const STDIN: u8 = 0x02;
const STDIN_EOF: u8 = 0x03;
const SIGNAL: u8 = 0x04;

const READY: u8 = 0x81;
const STARTED: u8 = 0x82;
const STDOUT: u8 = 0x83;
const STDERR: u8 = 0x84;
const STDIN_WANT: u8 = 0x85;
const RECORDS: u8 = 0x86;
const MAPS: u8 = 0x87;
const LOST: u8 = 0x88;
const EXIT: u8 = 0x89;
const ERROR: u8 = 0x8a;
const RECORDS_VALID: u8 = 0x8b;

/// A message from the host to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToGuest<'a> {
    /// The job. It is sent once, after [`ToHost::Ready`].
    Job(Box<Job>),
    /// Standard input of the job: the answer to one [`ToHost::StdinWant`], with at most the
    /// requested number of bytes.
    Stdin(&'a [u8]),
    /// Standard input has ended: the last answer to a [`ToHost::StdinWant`].
    StdinEof,
    /// The number of a signal to send to the job.
    Signal(u32),
}

impl<'a> ToGuest<'a> {
    /// Appends the message to `out` as a frame.
    ///
    /// # Errors
    /// The message is longer than [`crate::MAX_PAYLOAD`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Job(job) => {
                let json = serde_json::to_vec(job).map_err(|error| malformed("Job", error))?;
                encode(out, JOB, &[&json])
            }
            Self::Stdin(bytes) => encode(out, STDIN, &[bytes]),
            Self::StdinEof => encode(out, STDIN_EOF, &[]),
            Self::Signal(signal) => encode(out, SIGNAL, &[&signal.to_le_bytes()]),
        }
    }

    /// Reads a frame that the host sent.
    ///
    /// # Errors
    /// The type is unknown or the payload does not fit it.
    pub fn parse(frame: Frame<'a>) -> Result<Self, Error> {
        let payload = frame.payload;
        Ok(match frame.kind {
            JOB => {
                Self::Job(serde_json::from_slice(payload).map_err(|error| malformed("Job", error))?)
            }
            STDIN => Self::Stdin(payload),
            STDIN_EOF => {
                let [] = words("StdinEof", payload)?;
                Self::StdinEof
            }
            SIGNAL => {
                let [signal] = words("Signal", payload)?;
                Self::Signal(signal)
            }
            kind => return Err(Error::UnknownType(kind)),
        })
    }
}

/// How the job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It called `exit` with this status.
    Code(u8),
    /// This signal killed it.
    Signal(u8),
}

/// The kind of an error inside the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorKind {
    /// The program, its interpreter or a directory of the job does not exist.
    NotFound = 1,
    /// The program may not be executed.
    PermissionDenied = 2,
    /// The file is not a program that this kernel can run.
    NotExecutable = 3,
    /// Another error while the program was started.
    Start = 4,
    /// The working directory cannot be entered.
    WorkingDirectory = 5,
    /// The root or a share cannot be mounted.
    Mount = 6,
    /// The kernel or the processor cannot record branches as the job requires.
    Trace = 7,
    /// The host sent something that is not a message of this protocol.
    Protocol = 8,
    /// Any other error.
    Internal = 9,
}

impl ErrorKind {
    const ALL: [Self; 9] = [
        Self::NotFound,
        Self::PermissionDenied,
        Self::NotExecutable,
        Self::Start,
        Self::WorkingDirectory,
        Self::Mount,
        Self::Trace,
        Self::Protocol,
        Self::Internal,
    ];
}

/// A message from the guest to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHost<'a> {
    /// The agent waits for a job. The text is [`crate::VERSION`].
    Ready(&'a str),
    /// The program was started: its `execve` has succeeded. If it is traced, each further message
    /// reports that its task has started a process or thread, which is not traced.
    Started {
        /// Process or thread ID in the guest.
        pid: u32,
    },
    /// The job wrote to its standard output.
    Stdout(&'a [u8]),
    /// The job wrote to its standard error.
    Stderr(&'a [u8]),
    /// A request for standard input. The host answers with one [`ToGuest::Stdin`] of at most this
    /// many bytes, or with [`ToGuest::StdinEof`]. At most one request is without an answer.
    StdinWant(u32),
    /// Records of `PTRACE_BTS_DRAIN`, oldest first: {qualifier, from or jiffies, to}, `u64`
    /// little-endian each, [`RECORD_SIZE`] bytes a record. They are in the agent's memory, where
    /// the host reads them before the agent continues. Through the port they would be copied twice,
    /// a page at a time.
    Records {
        /// The task of the records.
        pid: u32,
        /// The addresses of the records.
        extents: Extents<'a>,
    },
    /// The records of the last [`Self::Records`] are valid: the guest's kernel has not moved their
    /// pages while the host read them. If it has, [`Self::Records`] is repeated instead.
    RecordsValid,
    /// The text of `/proc/PID/maps`, valid for the records after this message.
    Maps {
        /// The task of the mappings.
        pid: u32,
        /// The text, cut after a line if it does not fit.
        text: &'a [u8],
    },
    /// At least this many records were lost since the last such message. The kernel does not count
    /// them.
    Lost(u64),
    /// The job has ended. This is the last message.
    Exit(ExitStatus),
    /// The agent has failed. This is the last message.
    Error {
        /// The kind of the error.
        kind: ErrorKind,
        /// `errno`, or 0.
        errno: u32,
        /// The message for the user.
        text: &'a str,
    },
}

impl<'a> ToHost<'a> {
    /// Appends the message to `out` as a frame.
    ///
    /// # Errors
    /// The message is longer than [`crate::MAX_PAYLOAD`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        match *self {
            Self::Ready(version) => encode(out, READY, &[version.as_bytes()]),
            Self::Started { pid } => encode(out, STARTED, &[&pid.to_le_bytes()]),
            Self::Stdout(bytes) => encode(out, STDOUT, &[bytes]),
            Self::Stderr(bytes) => encode(out, STDERR, &[bytes]),
            Self::StdinWant(n) => encode(out, STDIN_WANT, &[&n.to_le_bytes()]),
            Self::Records { pid, extents } => {
                encode(out, RECORDS, &[&pid.to_le_bytes(), extents.0])
            }
            Self::RecordsValid => encode(out, RECORDS_VALID, &[]),
            Self::Maps { pid, text } => encode(out, MAPS, &[&pid.to_le_bytes(), text]),
            Self::Lost(n) => encode(out, LOST, &[&n.to_le_bytes()]),
            Self::Exit(ExitStatus::Code(code)) => {
                encode(out, EXIT, &[&[0, 0, 0, 0, code, 0, 0, 0]])
            }
            Self::Exit(ExitStatus::Signal(signal)) => {
                encode(out, EXIT, &[&[1, 0, 0, 0, signal, 0, 0, 0]])
            }
            Self::Error { kind, errno, text } => encode(
                out,
                ERROR,
                &[
                    &(kind as u32).to_le_bytes(),
                    &errno.to_le_bytes(),
                    text.as_bytes(),
                ],
            ),
        }
    }

    /// Reads a frame that the guest sent.
    ///
    /// # Errors
    /// The type is unknown or the payload does not fit it.
    pub fn parse(frame: Frame<'a>) -> Result<Self, Error> {
        let payload = frame.payload;
        Ok(match frame.kind {
            READY => Self::Ready(text("Ready", payload)?),
            STARTED => {
                let [pid] = words("Started", payload)?;
                Self::Started { pid }
            }
            STDOUT => Self::Stdout(payload),
            STDERR => Self::Stderr(payload),
            STDIN_WANT => {
                let [n] = words("StdinWant", payload)?;
                Self::StdinWant(n)
            }
            RECORDS => {
                let (pid, extents) = word("Records", payload)?;
                let extents = Extents::new(extents)?;
                Self::Records { pid, extents }
            }
            RECORDS_VALID => {
                let [] = words("RecordsValid", payload)?;
                Self::RecordsValid
            }
            MAPS => {
                let (pid, text) = word("Maps", payload)?;
                Self::Maps { pid, text }
            }
            LOST => {
                let [low, high] = words("Lost", payload)?;
                Self::Lost(u64::from(high) << 32 | u64::from(low))
            }
            EXIT => match words("Exit", payload)? {
                [0, code @ 0..=255] => Self::Exit(ExitStatus::Code(code as u8)),
                [1, signal @ 1..=127] => Self::Exit(ExitStatus::Signal(signal as u8)),
                status => return Err(malformed("Exit", format_args!("status {status:?}"))),
            },
            ERROR => {
                let (kind, rest) = word("Error", payload)?;
                let (errno, rest) = word("Error", rest)?;
                let kind = ErrorKind::ALL
                    .into_iter()
                    .find(|known| *known as u32 == kind)
                    .ok_or_else(|| malformed("Error", format_args!("kind {kind}")))?;
                Self::Error {
                    kind,
                    errno,
                    text: text("Error", rest)?,
                }
            }
            kind => return Err(Error::UnknownType(kind)),
        })
    }
}

fn malformed(name: &'static str, why: impl std::fmt::Display) -> Error {
    Error::Malformed {
        name,
        why: why.to_string(),
    }
}

fn text<'a>(name: &'static str, payload: &'a [u8]) -> Result<&'a str, Error> {
    std::str::from_utf8(payload).map_err(|error| malformed(name, error))
}

/// The `u32` at the start of a payload, and the rest.
fn word<'a>(name: &'static str, payload: &'a [u8]) -> Result<(u32, &'a [u8]), Error> {
    let (word, rest) = payload
        .split_first_chunk::<4>()
        .ok_or_else(|| malformed(name, format_args!("{} bytes are too few", payload.len())))?;
    Ok((u32::from_le_bytes(*word), rest))
}

/// A payload of exactly `N` `u32`.
fn words<const N: usize>(name: &'static str, payload: &[u8]) -> Result<[u32; N], Error> {
    let mut rest = payload;
    let mut words = [0; N];
    for value in &mut words {
        (*value, rest) = word(name, rest)?;
    }
    if rest.is_empty() {
        Ok(words)
    } else {
        Err(malformed(
            name,
            format_args!("{} bytes instead of {}", payload.len(), N * 4),
        ))
    }
}
