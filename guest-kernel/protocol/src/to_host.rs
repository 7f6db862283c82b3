//! The messages of the guest.

use serde::{Deserialize, Serialize};

use crate::decoder::{encode, parse};
use crate::{CodeSource, Crash, Error, ErrorKind, ExitStatus, Extents, Names};

/// A message from the guest to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
        #[serde(with = "serde_bytes")]
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
        #[serde(borrow)]
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
        #[serde(borrow)]
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
        #[serde(with = "serde_bytes")]
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
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The build ID of a file that is mapped as code.
    BuildId {
        /// The build ID.
        #[serde(with = "serde_bytes")]
        id: &'a [u8],
        /// The name of its mappings: a path.
        #[serde(with = "serde_bytes")]
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
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// A task has another name in the kernel (`/proc/TID/comm`) than the host knows: than its
    /// program at its last exec, of which that of its process is meant for a new task, or than the
    /// last such message says. Records that are sent later can be older than the name.
    TaskName {
        /// The task.
        task: u32,
        /// The name.
        #[serde(with = "serde_bytes")]
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
        #[serde(with = "serde_bytes")]
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
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// A signal has stopped the program's first process, which has a terminal. The host continues
    /// it with [`crate::ToGuest::Signal`].
    Stopped,
    /// All tasks of the program are traced, and wait for each other for ever. The host may end the
    /// run with [`crate::ToGuest::End`].
    Deadlock,
    /// The program's first process has ended before others that it has started.
    Outlived {
        /// The end of the run ends them. Otherwise it waits for them.
        ended: bool,
        /// The number of processes.
        count: u32,
        /// The first of them.
        #[serde(borrow)]
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
        #[serde(borrow)]
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
        encode(self, out)
    }

    /// Reads the payload of a frame that the guest sent.
    ///
    /// # Errors
    /// The payload is no such message.
    pub fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        parse(payload)
    }
}
