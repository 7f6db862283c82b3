//! The messages of both directions.

use crate::decoder::encode;
use crate::{Error, Frame, Job};

/// Bytes of one record: the kernel's `struct bts_struct`.
pub const RECORD_SIZE: usize = 24;

/// Bytes of records that one [`ToHost::Records`] tells of at most: whole records.
pub const MAX_RECORDS: usize = (4 << 20) / RECORD_SIZE * RECORD_SIZE;

/// A piece of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Bytes of an [`Extent`] in a frame.
const EXTENT_SIZE: usize = 16;

/// Pieces of guest memory, one after the other: {address, length}, `u64` little-endian each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extents<'a>(&'a [u8]);

impl<'a> Extents<'a> {
    /// Appends an extent to `bytes`, which [`Self::new`] takes.
    pub fn push(bytes: &mut Vec<u8>, extent: Extent) {
        bytes.extend_from_slice(&extent.address.to_le_bytes());
        bytes.extend_from_slice(&extent.len.to_le_bytes());
    }

    /// Those that `bytes` list.
    ///
    /// # Errors
    /// They are not whole records, or more than [`MAX_RECORDS`] bytes.
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

    /// One after the other.
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
const RECORDS_STAND: u8 = 0x8b;

/// From the host to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToGuest<'a> {
    /// What to run; sent once, after [`ToHost::Ready`].
    Job(Box<Job>),
    /// Standard input of the job: answers one [`ToHost::StdinWant`], with at most as many bytes as
    /// it asked for.
    Stdin(&'a [u8]),
    /// Standard input has ended: answers a [`ToHost::StdinWant`] for good.
    StdinEof,
    /// Send this signal number to the job.
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

/// What kind of thing went wrong inside the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorKind {
    /// The program, its interpreter or a directory of the job does not exist.
    NotFound = 1,
    /// The program may not be executed.
    PermissionDenied = 2,
    /// The file is not a program that this kernel can run.
    NotExecutable = 3,
    /// Some other error while starting the program.
    Start = 4,
    /// The working directory cannot be entered.
    WorkingDirectory = 5,
    /// The root or a share cannot be mounted.
    Mount = 6,
    /// The kernel or the processor cannot record branches as asked.
    Trace = 7,
    /// The host sent something that is not a message of this protocol.
    Protocol = 8,
    /// Anything else.
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

/// From the guest to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHost<'a> {
    /// The agent runs and waits for a job; the text is [`crate::VERSION`].
    Ready(&'a str),
    /// The program has been started (it has passed `execve`). If it is traced, each further one
    /// says that its task has started a process or a thread, which is not traced.
    Started {
        /// Process or thread id in the guest.
        pid: u32,
    },
    /// The job wrote to its standard output.
    Stdout(&'a [u8]),
    /// The job wrote to its standard error.
    Stderr(&'a [u8]),
    /// Answer with one [`ToGuest::Stdin`] of at most this many bytes, or with
    /// [`ToGuest::StdinEof`]. There is at most one such question without an answer.
    StdinWant(u32),
    /// Records as `PTRACE_BTS_DRAIN` returned them, oldest first: {qualifier, from or jiffies, to},
    /// `u64` little-endian each, [`RECORD_SIZE`] bytes a record. They are in the agent's memory,
    /// where the host reads them before the agent goes on: through the port they would be copied
    /// twice, a page at a time.
    Records {
        /// Whose records.
        pid: u32,
        /// Where they are.
        extents: Extents<'a>,
    },
    /// While the host read the records of the last [`Self::Records`], the guest's kernel had moved
    /// none of their pages: they count. Else the same records are sent again.
    RecordsStand,
    /// The text of `/proc/PID/maps`. Valid for the records that come after it.
    Maps {
        /// Whose mappings.
        pid: u32,
        /// As read, cut after a whole line if it would not fit.
        text: &'a [u8],
    },
    /// Records were lost since the last such message, at least this many: the kernel does not tell
    /// their number.
    Lost(u64),
    /// The job ended; the last message.
    Exit(ExitStatus),
    /// The guest gave up; the last message.
    Error {
        /// What kind of error.
        kind: ErrorKind,
        /// `errno`, or 0.
        errno: u32,
        /// For people.
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
            Self::RecordsStand => encode(out, RECORDS_STAND, &[]),
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
            RECORDS_STAND => {
                let [] = words("RecordsStand", payload)?;
                Self::RecordsStand
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

/// The `u32` at the start of a payload, and what follows it.
fn word<'a>(name: &'static str, payload: &'a [u8]) -> Result<(u32, &'a [u8]), Error> {
    let (word, rest) = payload
        .split_first_chunk::<4>()
        .ok_or_else(|| malformed(name, format_args!("{} bytes are too few", payload.len())))?;
    Ok((u32::from_le_bytes(*word), rest))
}

/// A payload that is exactly `N` `u32`.
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
