//! The job: the program that the guest runs, and its environment.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stream::{Stream, Terminal};

/// Arguments, paths and environment entries: bytes that need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Bytes(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// The program to run and its environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Job {
    /// Program and arguments. A program without `/` is looked up in the `PATH` of `envp`.
    pub argv: Vec<Bytes>,
    /// The whole environment, `NAME=value` each.
    pub envp: Vec<Bytes>,
    /// Working directory, absolute, inside the new root.
    pub cwd: Bytes,
    /// User id; `None` is 0.
    pub uid: Option<u32>,
    /// Group id; `None` is 0.
    pub gid: Option<u32>,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// File mode creation mask; `None` is 022.
    pub umask: Option<u32>,
    /// Resource limits. The guest's kernel has its own defaults for the others.
    pub limits: Vec<Limit>,
    /// Signals that the program ignores from its start, as `SigIgn` in proc_pid_status(5): bit
    /// n - 1 is signal n.
    pub ignored_signals: u64,
    /// The program's open descriptors. A stream that shares the open file of another one comes
    /// after it.
    pub streams: Vec<Stream>,
    /// What the program's first process leads.
    pub leads: Leads,
    /// The program's controlling terminal, if it has one.
    pub terminal: Option<Terminal>,
    /// How to record branches; `None` does not record.
    pub trace: Option<Trace>,
    /// Directories to mount read-write over the root, in this order.
    pub shares: Vec<Share>,
    /// Host name; `None` keeps the kernel's.
    pub hostname: Option<Bytes>,
    /// Wall-clock time in seconds since 1970 at the zero of `CLOCK_MONOTONIC`, the boot; `None`
    /// keeps the time that the kernel has read from the RTC.
    pub epoch: Option<i64>,
    /// The run goes on until all processes of the program have ended, not only the first one.
    pub wait_all: bool,
    /// The host gets [`crate::ToHost::Deadlock`]. A job that is not traced has none.
    pub ends_at_deadlock: bool,
}

/// What a process leads: see credentials(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Leads {
    /// A session, and its first process group.
    #[default]
    Session,
    /// A process group of a session that has another leader.
    Group,
    /// Neither.
    Nothing,
}

/// A resource limit of setrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The resource.
    pub resource: Resource,
    /// The soft limit, in the resource's unit; `None` is unlimited.
    pub soft: Option<u64>,
    /// The hard limit; `None` is unlimited.
    pub hard: Option<u64>,
}

/// Resources of a [`Limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resource {
    /// RLIMIT_NOFILE, in descriptors.
    Nofile,
    /// RLIMIT_STACK, in bytes.
    Stack,
    /// RLIMIT_CORE, in bytes.
    Core,
    /// RLIMIT_FSIZE, in bytes.
    Fsize,
}

/// How to record branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Size of the kernel's trace buffer in bytes. The kernel reduces it to its limit.
    pub buffer_size: u64,
    /// Whether to record when the task is scheduled and descheduled.
    pub sched: bool,
    /// The branches to record.
    pub scope: Scope,
    /// The tasks to trace.
    pub follow: Follow,
    /// A signal that is reported when a task gets it ([`crate::ToHost::TaskSignal`]). Without
    /// records of the guest, all signals are reported.
    pub reported_signal: Option<u32>,
    /// What records the branches.
    pub recorder: Recorder,
}

/// What records the branches of traced tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recorder {
    /// The guest's kernel, with the Branch Trace Store.
    Kernel,
    /// The host, outside of the guest, which may do so later in a replay. The guest reports the
    /// tasks, their mappings as soon as they change, and no records.
    Host,
}

/// Tasks to trace in addition to the program's first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Follow {
    /// All processes and threads that it starts, and those that they start.
    All,
    /// The threads of its process.
    Threads,
    /// None.
    None,
}

/// Privilege level of the branches to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// CPL 3.
    User,
    /// CPL 0.
    Kernel,
    /// Both.
    All,
}

/// A host directory that the guest may write to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// 9P mount tag.
    pub tag: String,
    /// Absolute path inside the new root where it is mounted. It is created if it does not exist.
    pub path: Bytes,
}
