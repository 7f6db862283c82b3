//! The messages of both directions.

use crate::decoder::encode;
use crate::{Error, Frame, Job, Names, WindowSize};

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
const INPUT: u8 = 0x02;
const INPUT_END: u8 = 0x03;
const SIGNAL: u8 = 0x04;
const END: u8 = 0x05;
const OUTPUT_CLOSED: u8 = 0x06;
const WINDOW_SIZE: u8 = 0x07;

const READY: u8 = 0x81;
const STARTED: u8 = 0x82;
const OUTPUT: u8 = 0x83;
const POSITION: u8 = 0x84;
const INPUT_WANT: u8 = 0x85;
const RECORDS: u8 = 0x86;
const MAPS: u8 = 0x87;
const LOST: u8 = 0x88;
const EXIT: u8 = 0x89;
const ERROR: u8 = 0x8a;
const RECORDS_VALID: u8 = 0x8b;
const TASK_START: u8 = 0x8c;
const TASK_EXEC: u8 = 0x8d;
const TASK_END: u8 = 0x8e;
const TASK_UNTRACED: u8 = 0x8f;
const DRAINED: u8 = 0x90;
const CRASH: u8 = 0x91;
const STANDING: u8 = 0x92;
const ENDED: u8 = 0x93;
const OUTLIVED: u8 = 0xa0;
const DISCARDED: u8 = 0xa1;

/// A message from the host to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToGuest<'a> {
    /// The job. It is sent once, after [`ToHost::Ready`].
    Job(Box<Job>),
    /// Input of a stream: the answer to one [`ToHost::InputWant`].
    Input {
        /// The stream.
        fd: u32,
        /// At most the requested number of bytes.
        bytes: &'a [u8],
    },
    /// The input of a stream has ended: the last answer to a [`ToHost::InputWant`].
    InputEnd {
        /// The stream.
        fd: u32,
    },
    /// The reader of an output has closed it.
    OutputClosed {
        /// The stream.
        fd: u32,
    },
    /// The terminal has another size.
    WindowSize(WindowSize),
    /// The number of a signal to send to the job.
    Signal(u32),
    /// The run is over. The guest sends the records that its buffers have and where each task
    /// stands, then [`ToHost::Ended`], and ends the machine.
    End,
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
            Self::Input { fd, bytes } => encode(out, INPUT, &[&fd.to_le_bytes(), bytes]),
            Self::InputEnd { fd } => encode(out, INPUT_END, &[&fd.to_le_bytes()]),
            Self::OutputClosed { fd } => encode(out, OUTPUT_CLOSED, &[&fd.to_le_bytes()]),
            Self::WindowSize(size) => {
                let words = [size.rows, size.columns, size.x_pixels, size.y_pixels];
                let words = words.map(|word| u32::from(word).to_le_bytes());
                encode(out, WINDOW_SIZE, &[words.as_flattened()])
            }
            Self::Signal(signal) => encode(out, SIGNAL, &[&signal.to_le_bytes()]),
            Self::End => encode(out, END, &[]),
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
            INPUT => {
                let (fd, bytes) = word("Input", payload)?;
                Self::Input { fd, bytes }
            }
            INPUT_END => {
                let [fd] = words("InputEnd", payload)?;
                Self::InputEnd { fd }
            }
            OUTPUT_CLOSED => {
                let [fd] = words("OutputClosed", payload)?;
                Self::OutputClosed { fd }
            }
            WINDOW_SIZE => {
                let size: [u32; 4] = words("WindowSize", payload)?;
                let [rows, columns, x_pixels, y_pixels] =
                    size.map(|word| u16::try_from(word).unwrap_or(u16::MAX));
                Self::WindowSize(WindowSize {
                    rows,
                    columns,
                    x_pixels,
                    y_pixels,
                })
            }
            SIGNAL => {
                let [signal] = words("Signal", payload)?;
                Self::Signal(signal)
            }
            END => {
                let [] = words("End", payload)?;
                Self::End
            }
            kind => return Err(Error::UnknownType(kind)),
        })
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It called `exit` with this status.
    Code(u8),
    /// This signal killed it.
    Signal(u8),
}

impl ExitStatus {
    /// Bytes of a status in a frame: {0 for a code and 1 for a signal, the value}, `u32` each.
    const SIZE: usize = 8;

    fn to_bytes(self) -> [u8; Self::SIZE] {
        match self {
            Self::Code(code) => [0, 0, 0, 0, code, 0, 0, 0],
            Self::Signal(signal) => [1, 0, 0, 0, signal, 0, 0, 0],
        }
    }

    fn new(name: &'static str, kind: u32, value: u32) -> Result<Self, Error> {
        match (kind, value) {
            (0, code @ 0..=255) => Ok(Self::Code(code as u8)),
            (1, signal @ 1..=127) => Ok(Self::Signal(signal as u8)),
            status => Err(malformed(name, format_args!("status {status:?}"))),
        }
    }
}

/// Names of the values of [`Crash::registers`], in order.
pub const REGISTERS: [&str; 19] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15", "rip", "rflags", "cs",
];

/// Maximum length of an instruction in bytes (SDM volume 2, section 2.3.11).
pub const MAX_INSTRUCTION: usize = 15;

/// A task that a signal of its own instruction kills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The task.
    pub task: u32,
    /// The number of the signal.
    pub signal: u32,
    /// `si_code` of the signal.
    pub code: i32,
    /// `si_addr` of the signal: the address that the instruction has accessed, or its own.
    pub address: u64,
    /// The values of [`REGISTERS`].
    pub registers: [u64; REGISTERS.len()],
    /// The bytes at `rip`, at most [`MAX_INSTRUCTION`]. They are fewer if the next page is not
    /// mapped.
    pub instruction: Vec<u8>,
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
    /// A program that is not traced was started: its `execve` has succeeded. For a traced one,
    /// the first [`Self::TaskStart`] says so.
    Started {
        /// Process ID in the guest.
        pid: u32,
    },
    /// The program wrote to a stream.
    Output {
        /// The stream.
        fd: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A request for input, because the program waits for it. The host answers with one
    /// [`ToGuest::Input`] or with [`ToGuest::InputEnd`]. At most one request of a stream is without
    /// an answer.
    InputWant {
        /// The stream.
        fd: u32,
        /// The most bytes to send.
        bytes: u32,
    },
    /// The file offset of a stream that is a regular file, at the end of the program.
    Position {
        /// The stream.
        fd: u32,
        /// The offset in bytes.
        offset: u64,
    },
    /// Records of `PTRACE_BTS_DRAIN`, oldest first: {qualifier, from or time, to}, `u64`
    /// little-endian each, [`RECORD_SIZE`] bytes a record. They are in the agent's memory, where
    /// the host reads them before the agent continues. Through the port they would be copied twice,
    /// a page at a time.
    Records {
        /// The task of the records.
        task: u32,
        /// The addresses of the records.
        extents: Extents<'a>,
    },
    /// The records of the last [`Self::Records`] are valid: the guest's kernel has not moved their
    /// pages while the host read them. If it has, [`Self::Records`] is repeated instead.
    RecordsValid,
    /// The text of `/proc/PID/maps`, valid for the records after this message.
    Maps {
        /// The process (thread group) of the mappings.
        process: u32,
        /// The text, cut after a line if it does not fit.
        text: &'a [u8],
    },
    /// At least this many records of a task were lost since the last such message. The kernel does
    /// not count them.
    Lost {
        /// The task of the records.
        task: u32,
        /// The number of records.
        records: u64,
    },
    /// A task is traced from here on, before its first instruction in user mode.
    TaskStart {
        /// Thread ID in the guest.
        task: u32,
        /// The task that has started it; 0 for the first task of the program.
        parent: u32,
        /// The process (thread group) that it belongs to.
        process: u32,
        /// The number of records that its buffers can have, which are missing if the task cannot
        /// be drained.
        records: u32,
        /// `CLOCK_MONOTONIC` in ns.
        time: u64,
    },
    /// A task executes a new program. The messages that follow are about that program. It has no
    /// other tasks.
    TaskExec {
        /// The task.
        task: u32,
        /// Its ID before the exec. It differs from `task` if a thread that is not the leader
        /// executes: the thread takes the ID of the leader, which has ended.
        former: u32,
        /// `CLOCK_MONOTONIC` in ns.
        time: u64,
        /// The path of the program.
        name: &'a [u8],
    },
    /// A traced task has ended. This is the last message about it.
    TaskEnd {
        /// The task.
        task: u32,
        /// `CLOCK_MONOTONIC` in ns.
        time: u64,
        /// How it ended.
        status: ExitStatus,
    },
    /// A task is not traced, or not any more. If another task traces it, or tasks are not followed,
    /// what it starts is not reported.
    TaskUntraced {
        /// Thread ID in the guest.
        task: u32,
        /// The task that has started it.
        parent: u32,
        /// `CLOCK_MONOTONIC` in ns.
        time: u64,
        /// Its name in the kernel (`/proc/TID/comm`).
        name: &'a [u8],
        /// The reason for the user, such as `traced by task 57`.
        reason: &'a str,
    },
    /// All records of a task before `time` have been sent. Its later records are not older.
    Drained {
        /// The task.
        task: u32,
        /// `CLOCK_MONOTONIC` in ns.
        time: u64,
    },
    /// A signal kills a task for what its instruction did. It precedes [`Self::TaskEnd`].
    Crash(Box<Crash>),
    /// Where a live task stands when [`ToGuest::End`] ends the run.
    Standing {
        /// The task.
        task: u32,
        /// The line of `/proc/TID/syscall`.
        syscall: &'a str,
        /// Its name in the kernel (`/proc/TID/comm`).
        name: &'a [u8],
    },
    /// The program's first process has ended before others that it has started.
    Outlived {
        /// The end of the run ends them. Otherwise it waits for them.
        ended: bool,
        /// The number of processes.
        count: u32,
        /// The first of them.
        names: Names<'a>,
    },
    /// The job has changed files outside of its shares. The changes are lost.
    Discarded {
        /// The number of files that were written, made or deleted, and of directories that were
        /// made.
        count: u32,
        /// There may be more than `count`.
        more: bool,
        /// The paths of some. That of a directory ends with a slash.
        names: Names<'a>,
    },
    /// The answer to [`ToGuest::End`]: nothing more can be drained. This is the last message.
    Ended,
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
            Self::Output { fd, bytes } => encode(out, OUTPUT, &[&fd.to_le_bytes(), bytes]),
            Self::InputWant { fd, bytes } => {
                encode(out, INPUT_WANT, &[&fd.to_le_bytes(), &bytes.to_le_bytes()])
            }
            Self::Position { fd, offset } => {
                encode(out, POSITION, &[&fd.to_le_bytes(), &offset.to_le_bytes()])
            }
            Self::Records { task, extents } => {
                encode(out, RECORDS, &[&task.to_le_bytes(), extents.0])
            }
            Self::RecordsValid => encode(out, RECORDS_VALID, &[]),
            Self::Maps { process, text } => encode(out, MAPS, &[&process.to_le_bytes(), text]),
            Self::Lost { task, records } => {
                encode(out, LOST, &[&task.to_le_bytes(), &records.to_le_bytes()])
            }
            Self::TaskStart {
                task,
                parent,
                process,
                records,
                time,
            } => {
                let words = [task, parent, process, records].map(u32::to_le_bytes);
                encode(
                    out,
                    TASK_START,
                    &[words.as_flattened(), &time.to_le_bytes()],
                )
            }
            Self::TaskExec {
                task,
                former,
                time,
                name,
            } => {
                let words = [task, former].map(u32::to_le_bytes);
                let time = time.to_le_bytes();
                encode(out, TASK_EXEC, &[words.as_flattened(), &time, name])
            }
            Self::TaskEnd { task, time, status } => {
                let (task, time) = (task.to_le_bytes(), time.to_le_bytes());
                encode(out, TASK_END, &[&task, &time, &status.to_bytes()])
            }
            Self::TaskUntraced {
                task,
                parent,
                time,
                name,
                reason,
            } => {
                let words = [task, parent].map(u32::to_le_bytes);
                let (time, len) = (time.to_le_bytes(), (name.len() as u32).to_le_bytes());
                let reason = reason.as_bytes();
                let parts = [words.as_flattened(), &time, &len, name, reason];
                encode(out, TASK_UNTRACED, &parts)
            }
            Self::Drained { task, time } => {
                encode(out, DRAINED, &[&task.to_le_bytes(), &time.to_le_bytes()])
            }
            Self::Crash(ref crash) => {
                let Crash {
                    task,
                    signal,
                    code,
                    address,
                    registers,
                    instruction,
                } = &**crash;
                let words = [task.to_le_bytes(), signal.to_le_bytes(), code.to_le_bytes()];
                let registers = registers.map(u64::to_le_bytes);
                let address = address.to_le_bytes();
                let parts = [
                    words.as_flattened(),
                    &address,
                    registers.as_flattened(),
                    instruction,
                ];
                encode(out, CRASH, &parts)
            }
            Self::Standing {
                task,
                syscall,
                name,
            } => {
                let (task, len) = (task.to_le_bytes(), (syscall.len() as u32).to_le_bytes());
                encode(out, STANDING, &[&task, &len, syscall.as_bytes(), name])
            }
            Self::Outlived {
                ended,
                count,
                names,
            } => {
                let words = [ended.into(), count].map(u32::to_le_bytes);
                encode(out, OUTLIVED, &[words.as_flattened(), names.bytes()])
            }
            Self::Discarded { count, more, names } => {
                let words = [more.into(), count].map(u32::to_le_bytes);
                encode(out, DISCARDED, &[words.as_flattened(), names.bytes()])
            }
            Self::Ended => encode(out, ENDED, &[]),
            Self::Exit(status) => encode(out, EXIT, &[&status.to_bytes()]),
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
            OUTPUT => {
                let (fd, bytes) = word("Output", payload)?;
                Self::Output { fd, bytes }
            }
            INPUT_WANT => {
                let [fd, bytes] = words("InputWant", payload)?;
                Self::InputWant { fd, bytes }
            }
            POSITION => {
                let (fd, rest) = word("Position", payload)?;
                let offset = last_long("Position", rest)?;
                Self::Position { fd, offset }
            }
            RECORDS => {
                let (task, extents) = word("Records", payload)?;
                let extents = Extents::new(extents)?;
                Self::Records { task, extents }
            }
            RECORDS_VALID => {
                let [] = words("RecordsValid", payload)?;
                Self::RecordsValid
            }
            MAPS => {
                let (process, text) = word("Maps", payload)?;
                Self::Maps { process, text }
            }
            LOST => {
                let (task, rest) = word("Lost", payload)?;
                let records = last_long("Lost", rest)?;
                Self::Lost { task, records }
            }
            TASK_START => {
                let ([task, parent, process, records], rest) = some_words("TaskStart", payload)?;
                Self::TaskStart {
                    task,
                    parent,
                    process,
                    records,
                    time: last_long("TaskStart", rest)?,
                }
            }
            TASK_EXEC => {
                let ([task, former], rest) = some_words("TaskExec", payload)?;
                let (time, name) = long("TaskExec", rest)?;
                Self::TaskExec {
                    task,
                    former,
                    time,
                    name,
                }
            }
            TASK_END => {
                let (task, rest) = word("TaskEnd", payload)?;
                let (time, rest) = long("TaskEnd", rest)?;
                let [kind, value] = words("TaskEnd", rest)?;
                let status = ExitStatus::new("TaskEnd", kind, value)?;
                Self::TaskEnd { task, time, status }
            }
            TASK_UNTRACED => {
                let ([task, parent], rest) = some_words("TaskUntraced", payload)?;
                let (time, rest) = long("TaskUntraced", rest)?;
                let (name, reason) = prefixed("TaskUntraced", rest)?;
                Self::TaskUntraced {
                    task,
                    parent,
                    time,
                    name,
                    reason: text("TaskUntraced", reason)?,
                }
            }
            DRAINED => {
                let (task, rest) = word("Drained", payload)?;
                let time = last_long("Drained", rest)?;
                Self::Drained { task, time }
            }
            CRASH => Self::Crash(Box::new(crash(payload)?)),
            STANDING => {
                let (task, rest) = word("Standing", payload)?;
                let (syscall, name) = prefixed("Standing", rest)?;
                Self::Standing {
                    task,
                    syscall: text("Standing", syscall)?,
                    name,
                }
            }
            OUTLIVED => {
                let ([ended, count], rest) = some_words("Outlived", payload)?;
                Self::Outlived {
                    ended: flag("Outlived", ended)?,
                    count,
                    names: Names::new(rest)?,
                }
            }
            DISCARDED => {
                let ([more, count], rest) = some_words("Discarded", payload)?;
                Self::Discarded {
                    count,
                    more: flag("Discarded", more)?,
                    names: Names::new(rest)?,
                }
            }
            ENDED => {
                let [] = words("Ended", payload)?;
                Self::Ended
            }
            EXIT => {
                let [kind, value] = words("Exit", payload)?;
                Self::Exit(ExitStatus::new("Exit", kind, value)?)
            }
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

/// A `u32` that is 0 or 1.
fn flag(name: &'static str, word: u32) -> Result<bool, Error> {
    match word {
        0 | 1 => Ok(word == 1),
        _ => Err(malformed(name, format_args!("flag {word}"))),
    }
}

/// The `u64` at the start of a payload, and the rest.
fn long<'a>(name: &'static str, payload: &'a [u8]) -> Result<(u64, &'a [u8]), Error> {
    let ([low, high], rest) = some_words(name, payload)?;
    Ok((u64::from(high) << 32 | u64::from(low), rest))
}

/// The `u64` at the end of a payload.
fn last_long(name: &'static str, payload: &[u8]) -> Result<u64, Error> {
    let (value, rest) = long(name, payload)?;
    let [] = words(name, rest)?;
    Ok(value)
}

/// A byte string with its length as `u32` before it, and the rest.
fn prefixed<'a>(name: &'static str, payload: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Error> {
    let (len, rest) = word(name, payload)?;
    rest.split_at_checked(len as usize)
        .ok_or_else(|| malformed(name, format_args!("{} bytes instead of {len}", rest.len())))
}

fn crash(payload: &[u8]) -> Result<Crash, Error> {
    let ([task, signal, code], rest) = some_words("Crash", payload)?;
    let (address, mut rest) = long("Crash", rest)?;
    let mut registers = [0; REGISTERS.len()];
    for value in &mut registers {
        (*value, rest) = long("Crash", rest)?;
    }
    if rest.len() > MAX_INSTRUCTION {
        let why = format_args!("an instruction of {} bytes", rest.len());
        return Err(malformed("Crash", why));
    }
    Ok(Crash {
        task,
        signal,
        code: code.cast_signed(),
        address,
        registers,
        instruction: rest.to_vec(),
    })
}

/// The first `N` `u32` of a payload, and the rest.
fn some_words<'a, const N: usize>(
    name: &'static str,
    payload: &'a [u8],
) -> Result<([u32; N], &'a [u8]), Error> {
    let mut rest = payload;
    let mut words = [0; N];
    for value in &mut words {
        (*value, rest) = word(name, rest)?;
    }
    Ok((words, rest))
}

/// A payload of exactly `N` `u32`.
fn words<const N: usize>(name: &'static str, payload: &[u8]) -> Result<[u32; N], Error> {
    let (words, rest) = some_words(name, payload)?;
    if rest.is_empty() {
        Ok(words)
    } else {
        Err(malformed(
            name,
            format_args!("{} bytes instead of {}", payload.len(), N * 4),
        ))
    }
}
