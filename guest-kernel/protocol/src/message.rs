//! The messages of both directions.

use crate::decoder::encode;
use crate::{Error, Frame, HEADER_SIZE, Job, MAX_PAYLOAD};

/// Bytes of one record in [`ToHost::Records`]: the kernel's `struct bts_struct`.
pub const RECORD_SIZE: usize = 24;

/// Bytes of a [`ToHost::Records`] frame before its records: the header and the process id.
pub const RECORDS_PREFIX_SIZE: usize = HEADER_SIZE + 4;

/// Records in the longest [`ToHost::Records`] frame.
pub const MAX_RECORDS: usize = (MAX_PAYLOAD - 4) / RECORD_SIZE;

/// What precedes `count` records in a [`ToHost::Records`] frame, for a sender that has the records in place already.
/// `count` is at most [`MAX_RECORDS`].
pub fn records_prefix(pid: u32, count: usize) -> [u8; RECORDS_PREFIX_SIZE] {
    let [p0, p1, p2, p3] = pid.to_le_bytes();
    let [l0, l1, l2, l3] = ((4 + count * RECORD_SIZE) as u32).to_le_bytes();
    [RECORDS, 0, 0, 0, l0, l1, l2, l3, p0, p1, p2, p3]
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

/// From the host to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToGuest<'a> {
    /// What to run; sent once, after [`ToHost::Ready`].
    Job(Box<Job>),
    /// Standard input of the job: answers one [`ToHost::StdinWant`], with at most as many bytes as it asked for.
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
    /// The program has been started (it has passed `execve`). If it is traced, each further one says that its task has
    /// started a process or a thread, which is not traced.
    Started {
        /// Process or thread id in the guest.
        pid: u32,
    },
    /// The job wrote to its standard output.
    Stdout(&'a [u8]),
    /// The job wrote to its standard error.
    Stderr(&'a [u8]),
    /// Answer with one [`ToGuest::Stdin`] of at most this many bytes, or with [`ToGuest::StdinEof`]. There is at most one
    /// such question without an answer.
    StdinWant(u32),
    /// Records as `PTRACE_BTS_DRAIN` returned them, oldest first: {qualifier, from or jiffies, to}, `u64` little-endian
    /// each, [`RECORD_SIZE`] bytes a record.
    Records {
        /// Whose records.
        pid: u32,
        /// Whole records.
        records: &'a [u8],
    },
    /// The text of `/proc/PID/maps`. Valid for the records that come after it.
    Maps {
        /// Whose mappings.
        pid: u32,
        /// As read, cut after a whole line if it would not fit.
        text: &'a [u8],
    },
    /// Records were lost since the last such message, at least this many: the kernel does not tell their number.
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
            Self::Records { pid, records } => encode(out, RECORDS, &[&pid.to_le_bytes(), records]),
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
                let (pid, records) = word("Records", payload)?;
                if records.len() % RECORD_SIZE != 0 {
                    let len = records.len();
                    return Err(malformed(
                        "Records",
                        format_args!("{len} bytes are not whole records"),
                    ));
                }
                Self::Records { pid, records }
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
