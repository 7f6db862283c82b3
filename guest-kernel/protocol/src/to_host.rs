//! The messages of the guest.

use crate::decoder::encode;
use crate::payload::{flag, last_long, long, prefixed, some_words, text, word, words};
use crate::{CodeSource, Crash, Error, ErrorKind, ExitStatus, Extents, Frame, Names};

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
const STOPPED: u8 = 0x94;
const TASK_SIGNAL: u8 = 0x95;
const CODE: u8 = 0x96;
const BUILD_ID: u8 = 0x97;
const OUTLIVED: u8 = 0xa0;
const DISCARDED: u8 = 0xa1;
const MAPPED: u8 = 0xa2;
const REUSE: u8 = 0xa3;

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
    /// [`crate::ToGuest::Input`] or with [`crate::ToGuest::InputEnd`]. A further request of a
    /// stream replaces one that has no answer yet.
    InputWant {
        /// The stream.
        fd: u32,
        /// The most bytes to send. 0 withdraws the request.
        bytes: u32,
        /// The stream is a terminal that gives its reader a line at a time. What is typed after a
        /// line can be for another reader.
        canonical: bool,
    },
    /// The file offset of a stream that is a regular file, at the end of the program.
    Position {
        /// The stream.
        fd: u32,
        /// The offset in bytes.
        offset: u64,
    },
    /// Records of `PTRACE_BTS_DRAIN`, oldest first: {qualifier, from or time, to}, `u64`
    /// little-endian each, [`crate::RECORD_SIZE`] bytes a record. They are in the agent's memory,
    /// where the host reads them before the agent continues. Through the port they would be copied
    /// twice, a page at a time.
    Records {
        /// The task of the records.
        task: u32,
        /// The addresses of the records.
        extents: Extents<'a>,
    },
    /// The records of the last [`Self::Records`] are valid: the guest's kernel has not moved their
    /// pages while the host read them. If it has, [`Self::Records`] is repeated instead.
    RecordsValid,
    /// Records of `PTRACE_BTS_TAKE`, oldest first, as the processor has stored them: {from or time,
    /// to, flags}, `u64` little-endian each, [`crate::RECORD_SIZE`] bytes a record. Flags with bit
    /// 63 are a scheduling event, whose qualifier is in the other bits. They do not change before
    /// [`Self::Reuse`], so the host can read them while the guest continues.
    Mapped {
        /// The task of the records.
        task: u32,
        /// The addresses of the records.
        extents: Extents<'a>,
    },
    /// The guest is about to use the memory of the first [`Self::Mapped`] messages of the
    /// connection for other records. The host reads those records before the guest continues.
    Reuse {
        /// The number of these messages.
        messages: u64,
    },
    /// The text of `/proc/PID/maps`, valid for the records after this message.
    Maps {
        /// The process (thread group) of the mappings.
        process: u32,
        /// The text, cut after a line if it does not fit.
        text: &'a [u8],
    },
    /// Code that is in no file of the host, or a part of what its compiler says about it.
    Code {
        /// The process (thread group).
        process: u32,
        /// Where it comes from.
        source: CodeSource,
        /// An address, or an offset: see [`CodeSource`].
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The build ID of a file that is mapped as code.
    BuildId {
        /// The build ID.
        id: &'a [u8],
        /// The name of its mappings: a path.
        name: &'a [u8],
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
    /// A task gets the signal that the job names. Its records before it have been sent.
    TaskSignal {
        /// The task.
        task: u32,
        /// `CLOCK_MONOTONIC` in ns.
        time: u64,
        /// The signal.
        signal: u32,
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
    /// Where a live task stands when [`crate::ToGuest::End`] ends the run.
    Standing {
        /// The task.
        task: u32,
        /// The line of `/proc/TID/syscall`.
        syscall: &'a str,
        /// Its name in the kernel (`/proc/TID/comm`).
        name: &'a [u8],
    },
    /// A signal has stopped the program's first process, which has a terminal. The host continues
    /// it with [`crate::ToGuest::Signal`].
    Stopped,
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
    /// The answer to [`crate::ToGuest::End`]: nothing more can be drained. This is the last
    /// message.
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
            Self::InputWant {
                fd,
                bytes,
                canonical,
            } => {
                let words = [fd, bytes, canonical.into()].map(u32::to_le_bytes);
                encode(out, INPUT_WANT, &[words.as_flattened()])
            }
            Self::Position { fd, offset } => {
                encode(out, POSITION, &[&fd.to_le_bytes(), &offset.to_le_bytes()])
            }
            Self::Records { task, extents } => {
                encode(out, RECORDS, &[&task.to_le_bytes(), extents.bytes()])
            }
            Self::RecordsValid => encode(out, RECORDS_VALID, &[]),
            Self::Mapped { task, extents } => {
                encode(out, MAPPED, &[&task.to_le_bytes(), extents.bytes()])
            }
            Self::Reuse { messages } => encode(out, REUSE, &[&messages.to_le_bytes()]),
            Self::Maps { process, text } => encode(out, MAPS, &[&process.to_le_bytes(), text]),
            Self::Code {
                process,
                source,
                at,
                bytes,
            } => {
                let words = [process, source as u32].map(u32::to_le_bytes);
                encode(out, CODE, &[words.as_flattened(), &at.to_le_bytes(), bytes])
            }
            Self::BuildId { id, name } => {
                let len = (id.len() as u32).to_le_bytes();
                encode(out, BUILD_ID, &[&len, id, name])
            }
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
            Self::TaskSignal { task, time, signal } => {
                let words = [task, signal].map(u32::to_le_bytes);
                let time = time.to_le_bytes();
                encode(out, TASK_SIGNAL, &[words.as_flattened(), &time])
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
            Self::Crash(ref crash) => encode(out, CRASH, &[&crash.to_bytes()]),
            Self::Standing {
                task,
                syscall,
                name,
            } => {
                let (task, len) = (task.to_le_bytes(), (syscall.len() as u32).to_le_bytes());
                encode(out, STANDING, &[&task, &len, syscall.as_bytes(), name])
            }
            Self::Stopped => encode(out, STOPPED, &[]),
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
                let [fd, bytes, canonical] = words("InputWant", payload)?;
                let canonical = flag("InputWant", canonical)?;
                Self::InputWant {
                    fd,
                    bytes,
                    canonical,
                }
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
            MAPPED => {
                let (task, extents) = word("Mapped", payload)?;
                let extents = Extents::new(extents)?;
                Self::Mapped { task, extents }
            }
            REUSE => Self::Reuse {
                messages: last_long("Reuse", payload)?,
            },
            MAPS => {
                let (process, text) = word("Maps", payload)?;
                Self::Maps { process, text }
            }
            CODE => {
                let ([process, source], rest) = some_words("Code", payload)?;
                let (at, bytes) = long("Code", rest)?;
                Self::Code {
                    process,
                    source: CodeSource::new(source)?,
                    at,
                    bytes,
                }
            }
            BUILD_ID => {
                let (id, name) = prefixed("BuildId", payload)?;
                Self::BuildId { id, name }
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
            TASK_SIGNAL => {
                let ([task, signal], rest) = some_words("TaskSignal", payload)?;
                let time = last_long("TaskSignal", rest)?;
                Self::TaskSignal { task, time, signal }
            }
            TASK_END => {
                let (task, rest) = word("TaskEnd", payload)?;
                let (time, rest) = long("TaskEnd", rest)?;
                let status = ExitStatus::parse("TaskEnd", rest)?;
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
            CRASH => Self::Crash(Box::new(Crash::parse(payload)?)),
            STANDING => {
                let (task, rest) = word("Standing", payload)?;
                let (syscall, name) = prefixed("Standing", rest)?;
                Self::Standing {
                    task,
                    syscall: text("Standing", syscall)?,
                    name,
                }
            }
            STOPPED => {
                let [] = words("Stopped", payload)?;
                Self::Stopped
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
            EXIT => Self::Exit(ExitStatus::parse("Exit", payload)?),
            ERROR => {
                let ([kind, errno], rest) = some_words("Error", payload)?;
                Self::Error {
                    kind: ErrorKind::new(kind)?,
                    errno,
                    text: text("Error", rest)?,
                }
            }
            kind => return Err(Error::UnknownType(kind)),
        })
    }
}
