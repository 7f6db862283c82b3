//! Records the branches of tasks with the kernel's `PTRACE_BTS_*` requests.

use std::io;

use libc::{c_int, pid_t};
use rustix::time::{ClockId, clock_gettime};
use vbts_protocol::{
    self as protocol, ErrorKind, Extents, Follow, MAX_RECORDS, RECORD_SIZE, Scope, ToHost, Trace,
};

use crate::failure::Failure;
use crate::maps::Maps;
use crate::pagemap::{self, PAGE, PageMap};
use crate::port::Port;
use crate::ptrace::{self, BtsConfig};
use crate::segments::Segments;

/// The signal of a full buffer: the last real-time signal, which programs rarely use.
/// `BTS_O_PAUSED` distinguishes the kernel's stop from a program's signal. The stop is not queued
/// for the program.
const OVERFLOW_SIGNAL: c_int = 64;

/// Divisor of the guest's memory. The quotient is the size of the first task's virtual buffer,
/// which takes the records of a system call, in which a task does not stop. The kernel allocates as
/// much again if a system call needs it.
const VIRTUAL_BUFFER_PART: u64 = 4;

/// Divisor of the guest's memory. The quotient is shared by the buffers of all further tasks.
const BUFFERS_PART: u64 = 16;
/// Its counterpart for buffers of two segments. A full segment causes a stop, so each has the size
/// that a buffer without segments has.
const SEGMENTED_BUFFERS_PART: u64 = BUFFERS_PART / FURTHER_SEGMENTS;

/// Divisor of what is left for the buffers of further tasks. The quotient is the next one's size.
const NEXT_BUFFER_PART: u64 = 32;

/// Smallest buffer in bytes of a further task, a fraction of what the kernel needs for a task.
const MIN_BUFFER: u64 = 32 << 10;

/// Number of segments of the first task's buffer: the host reads the others while the processor
/// writes one.
const SEGMENTS: u64 = 4;
/// Number of segments of another task's buffer.
const FURTHER_SEGMENTS: u64 = 2;

/// Smallest buffer in bytes that the kernel accepts for its own branches: 4096 records.
const MIN_KERNEL_BUFFER: u64 = 4096 * RECORD_SIZE as u64;

/// The buffers of a traced task. It has none if the host records.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Size in bytes of the processor's buffer, or of one of its segments.
    size: u64,
    /// Size in bytes of the virtual buffer, or 0.
    virtual_size: u64,
    /// The segments, unless there is a virtual buffer.
    segments: Option<Segments>,
    /// The part of [`BUFFERS_PART`] that it takes, in bytes.
    share: u64,
}

impl Buffer {
    /// The number of records that it can have.
    pub fn records(&self) -> u32 {
        let records = self.size.saturating_add(self.virtual_size) / RECORD_SIZE as u64;
        u32::try_from(records).unwrap_or(u32::MAX)
    }
}

/// A task whose records are drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Its ID.
    pub pid: pid_t,
    /// The ID under which the host knows it: the one before an exec that is not reported yet.
    pub known_as: pid_t,
    /// The process that it belongs to.
    pub process: pid_t,
}

impl Source {
    fn task(self) -> u32 {
        self.known_as.unsigned_abs()
    }
}

/// The state of a task whose records are drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Stopped,
    /// Any state, except on a processor.
    Running,
}

/// What [`Recorder::drain_running`] has achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// The records have been sent.
    Done,
    /// The task is on a processor.
    Running,
}

/// Allocates the buffers of all traced tasks, and sends their records.
#[derive(Debug)]
pub struct Recorder {
    trace: Trace,
    /// The kernel moves records from the processor's buffer to a virtual buffer. Otherwise the host
    /// reads them in the processor's buffer.
    is_virtual: bool,
    /// Memory for the records of a full processor's buffer, if they are in a virtual buffer.
    records: Vec<u8>,
    /// Size in bytes of the first task's buffer, or of one of its segments.
    first_size: u64,
    /// Number of messages about mapped records.
    sent: u64,
    page_map: Option<PageMap>,
    /// Number of buffers.
    buffers: u64,
    /// Size in bytes of all buffers of further tasks.
    used: u64,
}

impl Recorder {
    pub fn new(trace: Trace) -> Self {
        Self {
            trace,
            is_virtual: trace.scope != Scope::User,
            records: Vec::new(),
            first_size: 0,
            sent: 0,
            page_map: None,
            buffers: 0,
            used: 0,
        }
    }

    /// Whether the host records, and this process only reports tasks and mappings.
    fn is_host(&self) -> bool {
        self.trace.recorder == protocol::Recorder::Host
    }

    /// Starts to record a stopped task, the first one of the program.
    pub fn start_first(&mut self, pid: pid_t) -> Result<Buffer, Failure> {
        if self.is_host() {
            return Ok(Buffer::default());
        }
        self.page_map = Some(PageMap::open()?);
        let size = self.trace.buffer_size;
        let more = if self.is_virtual {
            // The kernel refuses less than twice the processor's buffer.
            (memory() / VIRTUAL_BUFFER_PART).max(size.saturating_mul(2))
        } else {
            SEGMENTS
        };
        let config = self
            .configure(pid, size, more)
            .map_err(|error| self.explain(error))?;
        self.first_size = config.size;
        if self.is_virtual {
            self.records = vec![0; usize::try_from(config.size).unwrap_or(usize::MAX)];
        }
        self.buffer(pid, config, 0)
    }

    /// Starts to record a further stopped task. Its buffer is the smaller, the more there are.
    pub fn start(&mut self, pid: pid_t) -> Result<Buffer, Failure> {
        if self.is_host() {
            return Ok(Buffer::default());
        }
        let failed = |error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_CONFIG", error);
        let part = if self.is_virtual {
            BUFFERS_PART
        } else {
            SEGMENTED_BUFFERS_PART
        };
        let left = (memory() / part).saturating_sub(self.used);
        let wanted = left / NEXT_BUFFER_PART;
        if self.is_virtual {
            let size = wanted.max(MIN_KERNEL_BUFFER).min(self.first_size);
            let virtual_size = memory() / VIRTUAL_BUFFER_PART / (self.buffers + 1);
            let config = self.configure(pid, size, virtual_size.max(2 * size));
            let config = config.map_err(failed)?;
            return self.buffer(pid, config, config.size);
        }
        let size = (wanted.max(MIN_BUFFER) / FURTHER_SEGMENTS).min(self.first_size);
        let config = self.configure(pid, size, FURTHER_SEGMENTS);
        let config = config.map_err(failed)?;
        self.buffer(pid, config, FURTHER_SEGMENTS * config.size)
    }

    /// The buffer of a stopped task that was configured so.
    fn buffer(&mut self, pid: pid_t, config: BtsConfig, share: u64) -> Result<Buffer, Failure> {
        let BtsConfig { size, more, .. } = config;
        let segments = match &self.page_map {
            Some(page_map) if !self.is_virtual => {
                let mapped = Segments::map(pid, page_map, size, more);
                if mapped.is_err() {
                    // Otherwise the kernel would stop the task for a buffer that is not drained. If
                    // this fails, the task was killed.
                    let _ = ptrace::bts_config(pid, &BtsConfig::default());
                }
                Some(mapped?)
            }
            _ => None,
        };
        self.buffers += 1;
        self.used += share;
        Ok(Buffer {
            size,
            virtual_size: if self.is_virtual { more } else { 0 },
            segments,
            share,
        })
    }

    /// Makes the host read all records, so that the memory of all buffers can be freed.
    pub fn finish(&self, port: &mut Port) -> Result<(), Failure> {
        port.send(&ToHost::Reuse {
            messages: self.sent,
        })
    }

    /// Accounts for the end of a task.
    pub fn release(&mut self, port: &mut Port, buffer: Buffer) -> Result<(), Failure> {
        if self.is_host() {
            return Ok(());
        }
        self.used = self.used.saturating_sub(buffer.share);
        self.buffers = self.buffers.saturating_sub(1);
        match buffer.segments {
            Some(segments) => segments.finish(port),
            None => Ok(()),
        }
    }

    /// Makes the kernel record a task with a buffer of `size` bytes, or less if it must.
    fn configure(&self, pid: pid_t, size: u64, more: u64) -> io::Result<BtsConfig> {
        let branches = match self.trace.scope {
            Scope::User => ptrace::BTS_O_TRACE,
            Scope::Kernel => ptrace::BTS_O_KERNEL,
            Scope::All => ptrace::BTS_O_TRACE | ptrace::BTS_O_KERNEL,
        };
        let when = |condition, flag| if condition { flag } else { 0 };
        let buffer = if self.is_virtual {
            ptrace::BTS_O_VIRTUAL
        } else {
            ptrace::BTS_O_MAPPED
        };
        let signal = u64::from(OVERFLOW_SIGNAL.unsigned_abs()) << ptrace::BTS_O_SIGNR_SHIFT;
        // The host merges the records of several tasks by these times.
        let sched = self.trace.sched || self.trace.follow != Follow::None;
        let config = BtsConfig {
            size,
            flags: branches
                | ptrace::BTS_O_SIGNAL
                | ptrace::BTS_O_CUT_SIZE
                | when(sched, ptrace::BTS_O_SCHED | ptrace::BTS_O_NSECS)
                | buffer
                | signal,
            more,
        };
        ptrace::bts_config(pid, &config)?;
        ptrace::bts_status(pid)
    }

    /// Describes an error of the first PTRACE_BTS_CONFIG.
    fn explain(&self, error: io::Error) -> Failure {
        let size = self.trace.buffer_size;
        let text = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => {
                "the guest's processor has no usable Branch Trace Store".to_string()
            }
            Some(libc::EIO) => "the guest's kernel has no PTRACE_BTS_CONFIG".to_string(),
            Some(libc::EINVAL) => format!(
                "a trace buffer of {size} bytes is too small, or too large for the guest's memory"
            ),
            Some(libc::ENOMEM) => {
                format!("the guest has too little memory for a trace buffer of {size} bytes")
            }
            _ => format!("PTRACE_BTS_CONFIG: {error}"),
        };
        Failure {
            text,
            ..Failure::os(ErrorKind::Trace, "PTRACE_BTS_CONFIG", error)
        }
    }

    /// Returns whether a task has stopped because its buffer is full.
    pub fn is_overflow(&self, pid: pid_t, signal: c_int) -> bool {
        signal == OVERFLOW_SIGNAL
            && !self.is_host()
            && ptrace::bts_status(pid).is_ok_and(|status| status.flags & ptrace::BTS_O_PAUSED != 0)
    }

    /// Sends all records of a stopped task, and whether some were lost. Returns whether it could: a
    /// task that was killed keeps its records until it is reaped.
    pub fn drain(
        &mut self,
        port: &mut Port,
        source: Source,
        buffer: &mut Buffer,
        maps: Option<&mut Maps>,
    ) -> Result<bool, Failure> {
        let drained = self.drain_as(port, source, buffer, maps, State::Stopped);
        match drained.and_then(|()| self.send_loss(port, source)) {
            Ok(()) => Ok(true),
            Err(failure) if failure.errno == libc::ESRCH.unsigned_abs() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Sends all records of a task in any state, except on a processor.
    pub fn drain_running(
        &mut self,
        port: &mut Port,
        source: Source,
        buffer: &mut Buffer,
        maps: Option<&mut Maps>,
    ) -> Result<Drain, Failure> {
        match self.drain_as(port, source, buffer, maps, State::Running) {
            Ok(()) => Ok(Drain::Done),
            Err(failure) if failure.errno == libc::EAGAIN.unsigned_abs() => Ok(Drain::Running),
            Err(failure) => Err(failure),
        }
    }

    fn drain_as(
        &mut self,
        port: &mut Port,
        source: Source,
        buffer: &mut Buffer,
        mut maps: Option<&mut Maps>,
        state: State,
    ) -> Result<(), Failure> {
        let time = now();
        if self.is_host() {
            if let Some(maps) = maps {
                send_maps(port, source.process, maps)?;
            }
        } else if let Some(segments) = &mut buffer.segments {
            let taken = segments.take(port, source.pid, state == State::Running)?;
            if taken.records > 0 {
                if let Some(maps) = maps {
                    send_maps(port, source.process, maps)?;
                }
                segments.send(port, source.task(), taken, &mut self.sent)?;
            }
        } else {
            loop {
                let room = self.records.len() / RECORD_SIZE;
                let count = match state {
                    State::Stopped => ptrace::bts_drain(source.pid, &mut self.records),
                    State::Running => ptrace::bts_drain_running(source.pid, &mut self.records),
                }
                .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_DRAIN", error))?;
                if count > 0
                    && let Some(maps) = maps.take()
                {
                    send_maps(port, source.process, maps)?;
                }
                self.send_records(port, source, count)?;
                if count < room {
                    break;
                }
            }
        }
        port.send(&ToHost::Drained {
            task: source.task(),
            time,
        })
    }

    /// Sends the first `count` records in `records`.
    fn send_records(
        &mut self,
        port: &mut Port,
        source: Source,
        count: usize,
    ) -> Result<(), Failure> {
        let Some(page_map) = &self.page_map else {
            return Ok(());
        };
        let drained = self.records.get(..count * RECORD_SIZE).unwrap_or_default();
        for records in drained.chunks(MAX_RECORDS) {
            // The kernel can move a page while the host reads it (compaction, for example), so the
            // message is repeated until no page has moved.
            let mut frames = page_map.frames(records)?;
            loop {
                let start = records.as_ptr().addr() % PAGE;
                let extents = pagemap::extents(&frames, start, records.len());
                port.send(&ToHost::Records {
                    task: source.task(),
                    extents: Extents::new(&extents)
                        .map_err(|error| Failure::new(ErrorKind::Internal, error))?,
                })?;
                let now = page_map.frames(records)?;
                if now == frames {
                    break;
                }
                frames = now;
            }
            port.send(&ToHost::RecordsValid)?;
        }
        Ok(())
    }

    /// Reports to the host whether the kernel has lost records, which it does not count. The
    /// buffers must be empty.
    fn send_loss(&self, port: &mut Port, source: Source) -> Result<(), Failure> {
        if self.is_host() {
            return Ok(());
        }
        let status = ptrace::bts_status(source.pid)
            .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_STATUS", error))?;
        if status.flags & ptrace::BTS_O_LOST == 0 {
            return Ok(());
        }
        ptrace::bts_clear(source.pid)
            .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_CLEAR", error))?;
        port.send(&ToHost::Lost {
            task: source.task(),
            records: 1,
        })
    }
}

/// Sends the mappings of a process if they have changed.
pub fn send_maps(port: &mut Port, process: pid_t, maps: &mut Maps) -> Result<(), Failure> {
    match maps.changed() {
        Some(text) => send_text(port, process, &text),
        None => Ok(()),
    }
}

/// Sends the text of the mappings of a process.
pub fn send_text(port: &mut Port, process: pid_t, text: &[u8]) -> Result<(), Failure> {
    port.send(&ToHost::Maps {
        process: process.unsigned_abs(),
        text,
    })
}

/// `CLOCK_MONOTONIC` in ns.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock starts at 0 when the guest boots.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The guest's memory in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}
