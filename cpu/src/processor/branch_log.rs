//! A log of branches for the VMM, which needs no Branch Trace Store in the guest: the processor
//! stores its branches in a buffer of the host as it stores them in a DS area.

mod buffer;
mod probes;

use std::fmt;
use std::sync::Arc;

use bitflags::bitflags;
use vbts_bts::Window;

pub use self::buffer::{LogBuffer, LogEntry};
pub use self::probes::{Probe, ProbeAction};
use crate::mmu::reservation::Reservation;
use crate::processor::cpu::Cpu;
use crate::state::cr4;

bitflags! {
    /// The branches to log, by the privilege level after the branch, as IA32_DEBUGCTL selects them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LogScope: u8 {
        /// Those that arrive at CPL 0.
        const KERNEL = 1 << 0;
        /// Those that arrive at CPL 1 to 3.
        const USER = 1 << 1;
    }
}

/// Takes the buffers of a log.
pub trait LogSink: Send + fmt::Debug {
    /// Takes a buffer, and returns one that is empty. It may block the processor.
    fn exchange(&mut self, full: LogBuffer) -> LogBuffer;
}

/// A log of branches. It is attached to one processor at a time.
#[derive(Debug)]
pub struct BranchLog {
    buffer: LogBuffer,
    sink: Box<dyn LogSink>,
    scope: LogScope,
    /// The branches are logged, not awaited.
    started: bool,
    /// How often a [`ProbeAction::Start`] was reached.
    starts_reached: u64,
    /// How often a [`ProbeAction::Stop`] was reached since the log has begun.
    stops_reached: u64,
    probes: Vec<Probe>,
    /// The processor that it is attached to.
    processor: u64,
    /// The last [`LogEntry::AddressSpace`].
    cr3: Option<u64>,
    /// When another accelerator took the processor over.
    left: Option<u64>,
    /// Where the buffers are.
    reservation: Option<Arc<Reservation>>,
}

impl BranchLog {
    /// A log of branches in `scope`, whose buffers go to `sink`. It begins at a
    /// [`ProbeAction::Start`] if `probes` have one, and else at once.
    pub fn new(scope: LogScope, probes: Vec<Probe>, sink: Box<dyn LogSink>) -> Self {
        let waits = probes.iter().any(|p| p.action.is_start());
        Self {
            buffer: LogBuffer::new(None),
            sink,
            scope,
            started: !waits,
            starts_reached: 0,
            stops_reached: 0,
            probes,
            processor: 0,
            cr3: None,
            left: None,
            reservation: None,
        }
    }

    /// Has records stored in buffers in `reservation`, if there is one: native code of the
    /// processor reaches no others.
    fn use_reservation(&mut self, reservation: Option<&Arc<Reservation>>, time: u64) {
        self.reservation = reservation.cloned();
        if self.buffer.suits(reservation) {
            return;
        }
        if self.buffer.is_empty() {
            self.buffer = LogBuffer::new(self.reservation.clone());
        } else {
            self.flush(time);
        }
    }

    /// Whether branches that arrive at `cpl` are logged.
    pub(crate) fn enabled(&self, cpl: u8) -> bool {
        let scope = match cpl {
            0 => LogScope::KERNEL,
            _ => LogScope::USER,
        };
        self.started && self.scope.contains(scope)
    }

    /// Begins with processor `id`, which has `cr3`, at `time`.
    pub(crate) fn enter_processor(&mut self, id: u64, cr3: u64, time: u64) {
        self.processor = id;
        self.cr3 = None;
        if self.started {
            self.push(LogEntry::Processor { id, time }, time);
            self.enter_address_space(cr3, time);
        }
    }

    /// Notes `cr3` if it has changed.
    pub(crate) fn enter_address_space(&mut self, cr3: u64, time: u64) {
        if self.started && self.cr3 != Some(cr3) {
            self.cr3 = Some(cr3);
            self.push(LogEntry::AddressSpace { cr3, time }, time);
        }
    }

    /// The kernel switches to a task.
    pub(crate) fn enter_task(&mut self, ids: u64, name: [u8; 16], time: u64) {
        if self.started {
            self.push(LogEntry::Name(name), time);
            self.push(LogEntry::Task { ids, time }, time);
        }
    }

    /// Adds an entry at `time`.
    pub(crate) fn push(&mut self, entry: LogEntry, time: u64) {
        if !self.buffer.push(entry) {
            self.flush(time);
            self.buffer.push(entry);
        }
    }

    /// Hands over what there is at `time`.
    pub(crate) fn flush(&mut self, time: u64) {
        let full = self.buffer.take();
        let empty = self.sink.exchange(full);
        self.buffer = match empty.suits(self.reservation.as_ref()) {
            true => empty,
            false => LogBuffer::new(self.reservation.clone()),
        };
        self.buffer.clear();
        let id = self.processor;
        self.buffer.push(LogEntry::Processor { id, time });
    }

    /// The free records of the buffer, and the host address of the word that has the address of the
    /// next one.
    pub(crate) fn window(&mut self) -> (Window, u64) {
        self.buffer.window()
    }

    /// Another accelerator takes the processor over at `time`.
    pub(crate) fn leave(&mut self, time: u64) {
        self.left = Some(time);
    }

    /// The processor comes back at `time`.
    pub(crate) fn come_back(&mut self, time: u64) {
        if let Some(left) = self.left.take()
            && self.started
        {
            let duration = time.saturating_sub(left);
            self.push(LogEntry::Gap { duration, time }, time);
        }
    }

    /// The log begins if this is the `nth` time.
    pub(crate) fn start(&mut self, nth: u64, cr3: u64, time: u64) {
        if self.started {
            return;
        }
        self.starts_reached += 1;
        if self.starts_reached >= nth {
            self.started = true;
            self.probes.retain(|p| !p.action.is_start());
            self.enter_processor(self.processor, cr3, time);
        }
    }

    /// Counts a [`ProbeAction::Stop`]. Returns whether the processor stops, which is so from the
    /// `nth` time on.
    pub(crate) fn stops(&mut self, nth: u64) -> bool {
        self.stops_reached += u64::from(self.started);
        self.stops_reached >= nth
    }
}

impl Cpu {
    /// Logs branches in `log` from now on.
    pub fn attach_log(&mut self, mut log: Box<BranchLog>) {
        log.use_reservation(self.ram.reservation(), self.now());
        self.log = Some(log);
        let (id, cr3, time) = (self.topology.id.into(), self.address_space(), self.now());
        if let Some(log) = &mut self.log {
            log.enter_processor(id, cr3, time);
        }
        self.update_mode();
    }

    /// Logs no more branches. Returns the log.
    pub fn detach_log(&mut self) -> Option<Box<BranchLog>> {
        let log = self.log.take()?;
        self.update_mode();
        Some(log)
    }

    /// Hands over what the log has.
    pub fn flush_log(&mut self) {
        self.window.close();
        let time = self.now();
        if let Some(log) = &mut self.log {
            log.flush(time);
        }
    }

    /// Notes that another accelerator takes the processor over.
    pub fn leave_log(&mut self) {
        let time = self.now();
        if let Some(log) = &mut self.log {
            log.leave(time);
        }
    }

    /// Notes that the processor is back from another accelerator.
    pub fn come_back_to_log(&mut self) {
        self.window.close();
        let time = self.now();
        if let Some(log) = &mut self.log {
            log.come_back(time);
        }
    }

    /// Notes the address space in the log if it has changed.
    pub(crate) fn log_address_space(&mut self) {
        let (cr3, time) = (self.address_space(), self.now());
        if let Some(log) = &mut self.log {
            self.window.close();
            log.enter_address_space(cr3, time);
        }
    }

    /// CR3 without a PCID.
    pub fn address_space(&self) -> u64 {
        match self.sys.cr4 & cr4::PCIDE {
            0 => self.sys.cr3,
            _ => self.sys.cr3 & !0xFFF,
        }
    }
}
