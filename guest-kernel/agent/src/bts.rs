//! Recording the job's branches with the kernel's `PTRACE_BTS_*` requests.

use std::io;

use libc::{c_int, pid_t};
use vbts_protocol::{
    ErrorKind, ExitStatus, Extents, MAX_RECORDS, RECORD_SIZE, Scope, ToHost, Trace,
};

use crate::failure::Failure;
use crate::maps::Maps;
use crate::pagemap::{self, PageMap};
use crate::port::Port;
use crate::ptrace::{self, BtsConfig};

/// The signal of a full buffer: the last real-time one, so that hardly any program uses it. The
/// kernel's own stop for it is told from a program's use by `BTS_O_PAUSED`, and never enters the
/// program's signal queue.
const OVERFLOW_SIGNAL: c_int = 64;

/// The part of the guest's memory, one in so many, that may fill with the kernel's branches before
/// they are drained: a task does not stop inside a system call. The same again is kept while a
/// system call takes even more.
const VIRTUAL_BUFFER_PART: u64 = 4;

/// The recorder of one traced task.
#[derive(Debug)]
pub struct Recorder {
    pid: pid_t,
    trace: Trace,
    started: bool,
    /// There is a virtual buffer behind the one that the processor writes.
    is_virtual: bool,
    /// Room for as many records as the processor's buffer holds.
    records: Vec<u8>,
    page_map: Option<PageMap>,
    /// The task's mappings, of which the host is told.
    maps: Maps,
    /// The records up to the task's end have been sent.
    finished: bool,
}

impl Recorder {
    /// A recorder for a seized task that has not reached its program yet.
    pub fn new(pid: pid_t, trace: Trace) -> Self {
        Self {
            pid,
            trace,
            started: false,
            is_virtual: trace.scope != Scope::User,
            records: Vec::new(),
            page_map: None,
            maps: Maps::new(pid),
            finished: false,
        }
    }

    /// Deals with a stop of the task and lets it run on.
    pub fn stopped(&mut self, port: &mut Port, signal: c_int, event: c_int) -> Result<(), Failure> {
        match event {
            libc::PTRACE_EVENT_EXEC if !self.started => {
                self.start()?;
                port.send(&ToHost::Started {
                    pid: self.pid.unsigned_abs(),
                })?;
                self.maps.replaced();
                self.send_maps(port)?;
                self.resume(0)
            }
            // The records are of the program before, whose mappings are gone: they must precede the
            // new ones.
            libc::PTRACE_EVENT_EXEC => {
                self.drain(port)?;
                self.maps.replaced();
                self.send_maps(port)?;
                self.resume(0)
            }
            // The last stop that can still see the mappings.
            libc::PTRACE_EVENT_EXIT => {
                if self.started {
                    self.send_maps(port)?;
                    self.drain(port)?;
                    self.finished = true;
                }
                self.resume(0)
            }
            // Not recorded: the host is told that there is more than it sees.
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let Ok(pid) = ptrace::started_task(self.pid) {
                    port.send(&ToHost::Started { pid })?;
                }
                self.resume(0)
            }
            libc::PTRACE_EVENT_STOP
                if matches!(
                    signal,
                    libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
                ) =>
            {
                self.alive(ptrace::listen(self.pid), "PTRACE_LISTEN")
            }
            0 if signal == OVERFLOW_SIGNAL && self.is_paused() => {
                self.send_maps(port)?;
                self.drain(port)?;
                self.resume(0)
            }
            0 => self.resume(signal),
            _ => self.resume(0),
        }
    }

    /// The task is gone. Tells the host if its last records could not be had.
    pub fn ended(&self, port: &mut Port, how: ExitStatus) -> Result<(), Failure> {
        if self.finished {
            return Ok(());
        }
        if !self.started {
            return Err(Failure::new(
                ErrorKind::Start,
                format_args!("the program ended before it started: {how:?}"),
            ));
        }
        // It was killed without its exit stop. How many records went with the buffer, nobody knows:
        // at least one.
        port.send(&ToHost::Lost(1))
    }

    fn start(&mut self) -> Result<(), Failure> {
        let branches = match self.trace.scope {
            Scope::User => ptrace::BTS_O_TRACE,
            Scope::Kernel => ptrace::BTS_O_KERNEL,
            Scope::All => ptrace::BTS_O_TRACE | ptrace::BTS_O_KERNEL,
        };
        let when = |condition, flag| if condition { flag } else { 0 };
        let signal = u64::from(OVERFLOW_SIGNAL.unsigned_abs()) << ptrace::BTS_O_SIGNR_SHIFT;
        let config = BtsConfig {
            size: self.trace.buffer_size,
            flags: branches
                | ptrace::BTS_O_SIGNAL
                | ptrace::BTS_O_CUT_SIZE
                | when(self.trace.sched, ptrace::BTS_O_SCHED)
                | when(self.is_virtual, ptrace::BTS_O_VIRTUAL)
                | signal,
            // Less than two of the processor's buffers would be refused.
            virtual_size: (memory() / VIRTUAL_BUFFER_PART)
                .max(self.trace.buffer_size.saturating_mul(2)),
        };
        let trace = |what: &str, error: io::Error| {
            let text = match error.raw_os_error() {
                Some(libc::EOPNOTSUPP) => {
                    "the guest's processor has no usable Branch Trace Store".to_string()
                }
                Some(libc::EIO) => "the guest's kernel has no PTRACE_BTS_CONFIG".to_string(),
                Some(libc::EINVAL) => format!(
                    "a trace buffer of {} bytes is too small, or too large for the guest's memory",
                    self.trace.buffer_size
                ),
                Some(libc::ENOMEM) => format!(
                    "the guest has too little memory for a trace buffer of {} bytes",
                    self.trace.buffer_size
                ),
                _ => format!("{what}: {error}"),
            };
            Failure {
                text,
                ..Failure::os(ErrorKind::Trace, what, error)
            }
        };
        ptrace::bts_config(self.pid, &config).map_err(|error| trace("PTRACE_BTS_CONFIG", error))?;
        let status =
            ptrace::bts_status(self.pid).map_err(|error| trace("PTRACE_BTS_STATUS", error))?;
        let size = usize::try_from(status.size).unwrap_or(usize::MAX);
        self.records = vec![0; size];
        self.page_map = Some(PageMap::open()?);
        self.started = true;
        Ok(())
    }

    fn is_paused(&self) -> bool {
        ptrace::bts_status(self.pid).is_ok_and(|status| status.flags & ptrace::BTS_O_PAUSED != 0)
    }

    /// Sends all records and empties the buffers. Tells the host if there should be more.
    fn drain(&mut self, port: &mut Port) -> Result<(), Failure> {
        let result = self.send_records(port).and_then(|()| self.send_loss(port));
        match result {
            // Killed meanwhile; `ended` deals with it.
            Err(failure) if failure.errno == libc::ESRCH.unsigned_abs() => Ok(()),
            result => result,
        }
    }

    fn send_records(&mut self, port: &mut Port) -> Result<(), Failure> {
        loop {
            let room = self.records.len() / RECORD_SIZE;
            let count = ptrace::bts_drain(self.pid, self.is_virtual, &mut self.records)
                .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_DRAIN", error))?;
            self.send_drained(port, count)?;
            // A virtual buffer can have more than there is room for.
            if !self.is_virtual || count < room {
                return Ok(());
            }
        }
    }

    /// Sends `count` records, which are in `records`.
    fn send_drained(&self, port: &mut Port, count: usize) -> Result<(), Failure> {
        let Some(page_map) = &self.page_map else {
            return Ok(());
        };
        let drained = self.records.get(..count * RECORD_SIZE).unwrap_or_default();
        for records in drained.chunks(MAX_RECORDS) {
            // Until they are read from where they are: compaction, for example, moves pages at any
            // time.
            let mut frames = page_map.frames(records)?;
            loop {
                let extents = pagemap::extents(records, &frames);
                port.send(&ToHost::Records {
                    pid: self.pid.unsigned_abs(),
                    extents: Extents::new(&extents)
                        .map_err(|error| Failure::new(ErrorKind::Internal, error))?,
                })?;
                let now = page_map.frames(records)?;
                if now == frames {
                    break;
                }
                frames = now;
            }
            port.send(&ToHost::RecordsStand)?;
        }
        Ok(())
    }

    /// Tells the host if the kernel has lost records. How many, it does not say. The buffers must
    /// be empty.
    fn send_loss(&self, port: &mut Port) -> Result<(), Failure> {
        let status = ptrace::bts_status(self.pid)
            .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_STATUS", error))?;
        if status.flags & ptrace::BTS_O_LOST == 0 {
            return Ok(());
        }
        ptrace::bts_clear(self.pid)
            .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_CLEAR", error))?;
        port.send(&ToHost::Lost(1))
    }

    /// Tells the host the mappings if they are not what they were.
    fn send_maps(&mut self, port: &mut Port) -> Result<(), Failure> {
        match self.maps.changed() {
            Some(text) => port.send(&ToHost::Maps {
                pid: self.pid.unsigned_abs(),
                text,
            }),
            None => Ok(()),
        }
    }

    fn resume(&self, signal: c_int) -> Result<(), Failure> {
        self.alive(ptrace::cont(self.pid, signal), "PTRACE_CONT")
    }

    /// A task may be killed at any time; its end is then reported by `wait`.
    fn alive(&self, result: io::Result<()>, what: &str) -> Result<(), Failure> {
        match result {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                Err(Failure::os(ErrorKind::Trace, what, error))
            }
            _ => Ok(()),
        }
    }
}

/// The guest's memory in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}
