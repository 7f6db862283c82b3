//! Records the job's branches with the kernel's `PTRACE_BTS_*` requests.

use std::os::unix::ffi::OsStrExt;
use std::{fs, io};

use libc::{c_int, pid_t};
use vbts_protocol::{
    ErrorKind, ExitStatus, Extents, MAX_RECORDS, RECORD_SIZE, Scope, ToHost, Trace,
};

use crate::failure::Failure;
use crate::maps::Maps;
use crate::pagemap::{self, PageMap};
use crate::port::Port;
use crate::ptrace::{self, BtsConfig};

/// The signal of a full buffer: the last real-time signal, which programs rarely use.
/// `BTS_O_PAUSED` distinguishes the kernel's stop from a program's signal. The stop is not queued
/// for the program.
const OVERFLOW_SIGNAL: c_int = 64;

/// Divisor of the guest's memory. The quotient is the size of the virtual buffer, which takes the
/// records of a system call, in which a task does not stop. The kernel allocates as much again if a
/// system call needs it.
const VIRTUAL_BUFFER_PART: u64 = 4;

/// The recorder of one traced task.
#[derive(Debug)]
pub struct Recorder {
    pid: pid_t,
    trace: Trace,
    started: bool,
    /// The kernel moves records from the processor's buffer to a virtual buffer.
    is_virtual: bool,
    /// Memory for the records of a full processor's buffer.
    records: Vec<u8>,
    page_map: Option<PageMap>,
    /// The task's mappings, which are sent to the host.
    maps: Maps,
    /// The records up to the task's end have been sent.
    finished: bool,
}

impl Recorder {
    /// A recorder for a seized task that does not execute its program yet.
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

    /// Handles a stop of the task and resumes it.
    pub fn stopped(&mut self, port: &mut Port, signal: c_int, event: c_int) -> Result<(), Failure> {
        match event {
            libc::PTRACE_EVENT_EXEC if !self.started => {
                let task = self.task();
                let time = now();
                port.send(&ToHost::TaskStart {
                    task,
                    parent: 0,
                    process: task,
                    records: self.start()?,
                    time,
                })?;
                self.send_exec(port, time)?;
                self.maps.replaced();
                self.send_maps(port)?;
                self.resume(0)
            }
            // The records belong to the old program and its mappings, so they are sent before the
            // new mappings.
            libc::PTRACE_EVENT_EXEC => {
                self.drain(port)?;
                self.send_exec(port, now())?;
                self.maps.replaced();
                self.send_maps(port)?;
                self.resume(0)
            }
            // The last stop at which the task has its mappings.
            libc::PTRACE_EVENT_EXIT => {
                if self.started {
                    self.send_maps(port)?;
                    self.drain(port)?;
                    self.finished = true;
                }
                self.resume(0)
            }
            // The new task is not recorded. The host counts it.
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let Ok(task) = ptrace::started_task(self.pid) {
                    let name = fs::read(format!("/proc/{task}/comm")).unwrap_or_default();
                    port.send(&ToHost::TaskUntraced {
                        task,
                        parent: self.task(),
                        time: now(),
                        name: name.strip_suffix(b"\n").unwrap_or(&name),
                        reason: "not followed",
                    })?;
                }
                self.resume(0)
            }
            libc::PTRACE_EVENT_STOP
                if matches!(
                    signal,
                    libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
                ) =>
            {
                self.ignore_killed(ptrace::listen(self.pid), "PTRACE_LISTEN")
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

    /// Handles the end of the task. Reports lost records if the last ones could not be drained.
    pub fn ended(&self, port: &mut Port, how: ExitStatus) -> Result<(), Failure> {
        if !self.started {
            return Err(Failure::new(
                ErrorKind::Start,
                format_args!("the program ended before it started: {how:?}"),
            ));
        }
        if !self.finished {
            // It was killed without its exit stop. The number of records in its buffer is unknown,
            // but at least one is lost.
            self.report_loss(port)?;
        }
        port.send(&ToHost::TaskEnd {
            task: self.task(),
            time: now(),
            status: how,
        })
    }

    /// Starts to record. Returns the number of records that the buffers can have.
    fn start(&mut self) -> Result<u32, Failure> {
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
            // The kernel refuses less than twice the processor's buffer.
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
        let virtual_size = if self.is_virtual {
            config.virtual_size
        } else {
            0
        };
        let records = status.size.saturating_add(virtual_size) / RECORD_SIZE as u64;
        Ok(u32::try_from(records).unwrap_or(u32::MAX))
    }

    /// Reports the program that the task executes.
    fn send_exec(&self, port: &mut Port, time: u64) -> Result<(), Failure> {
        let name = fs::read_link(format!("/proc/{}/exe", self.pid)).unwrap_or_default();
        port.send(&ToHost::TaskExec {
            task: self.task(),
            former: self.task(),
            time,
            name: name.as_os_str().as_bytes(),
        })
    }

    fn task(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    fn report_loss(&self, port: &mut Port) -> Result<(), Failure> {
        port.send(&ToHost::Lost {
            task: self.task(),
            records: 1,
        })
    }

    fn is_paused(&self) -> bool {
        ptrace::bts_status(self.pid).is_ok_and(|status| status.flags & ptrace::BTS_O_PAUSED != 0)
    }

    /// Sends all records, empties the buffers, and reports lost records.
    fn drain(&mut self, port: &mut Port) -> Result<(), Failure> {
        let result = self.send_records(port).and_then(|()| self.send_loss(port));
        match result {
            // The task was killed meanwhile. `ended` handles that.
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
            // A virtual buffer can have more records than fit.
            if !self.is_virtual || count < room {
                return Ok(());
            }
        }
    }

    /// Sends the first `count` records in `records`.
    fn send_drained(&self, port: &mut Port, count: usize) -> Result<(), Failure> {
        let Some(page_map) = &self.page_map else {
            return Ok(());
        };
        let drained = self.records.get(..count * RECORD_SIZE).unwrap_or_default();
        for records in drained.chunks(MAX_RECORDS) {
            // The kernel can move a page while the host reads it (compaction, for example), so the
            // message is repeated until no page has moved.
            let mut frames = page_map.frames(records)?;
            loop {
                let extents = pagemap::extents(records, &frames);
                port.send(&ToHost::Records {
                    task: self.task(),
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
    fn send_loss(&self, port: &mut Port) -> Result<(), Failure> {
        let status = ptrace::bts_status(self.pid)
            .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_STATUS", error))?;
        if status.flags & ptrace::BTS_O_LOST == 0 {
            return Ok(());
        }
        ptrace::bts_clear(self.pid)
            .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_CLEAR", error))?;
        self.report_loss(port)
    }

    /// Sends the mappings if they have changed.
    fn send_maps(&mut self, port: &mut Port) -> Result<(), Failure> {
        let process = self.task();
        match self.maps.changed() {
            Some(text) => port.send(&ToHost::Maps { process, text }),
            None => Ok(()),
        }
    }

    fn resume(&self, signal: c_int) -> Result<(), Failure> {
        self.ignore_killed(ptrace::cont(self.pid, signal), "PTRACE_CONT")
    }

    /// Ignores ESRCH: a task may be killed at any time, and `wait` reports its end.
    fn ignore_killed(&self, result: io::Result<()>, what: &str) -> Result<(), Failure> {
        match result {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                Err(Failure::os(ErrorKind::Trace, what, error))
            }
            _ => Ok(()),
        }
    }
}

/// `CLOCK_MONOTONIC` in ns.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock starts at 0 when the guest boots.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The guest's memory in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}
