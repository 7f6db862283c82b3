//! A log of branches for the VMM, which needs no Branch Trace Store in the guest: the processor
//! stores its branches in a buffer of the host as it stores them in a DS area.

use std::fmt;

use bitflags::bitflags;
use vbts_bts::{BranchRecord, RECORD_SIZE, Window};

use crate::processor::cpu::Cpu;
use crate::state::{cr4, gpr};

/// Words of a record.
const WORDS: usize = RECORD_SIZE as usize / 8;
/// Records of a buffer: 768 KiB, so that handing one over is rare, and several are in the cache.
const CAPACITY: usize = 1 << 15;

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

/// What a record of the log says. Times are the processor's, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEntry {
    /// A taken branch.
    Branch {
        /// Linear address of the branch.
        from: u64,
        /// Linear address of its target.
        to: u64,
    },
    /// What follows is of this processor. Each buffer begins with it.
    Processor {
        /// Its number.
        id: u64,
        /// When.
        time: u64,
    },
    /// The processor's address space from here on.
    AddressSpace {
        /// CR3.
        cr3: u64,
        /// When.
        time: u64,
    },
    /// The next entry is [`LogEntry::Task`], and this the name of the task.
    Name([u8; 16]),
    /// The processor executes this task of the guest's kernel from here on.
    Task {
        /// Thread ID (low half) and process ID (high half).
        ids: u64,
        /// When.
        time: u64,
    },
    /// Another accelerator has run the processor, and its branches are missing here.
    Gap {
        /// For how long, in ns.
        duration: u64,
        /// When that ended.
        time: u64,
    },
}

/// Values of the third word of a record. Others are the flags of a branch.
const PROCESSOR: u64 = 1;
const ADDRESS_SPACE: u64 = 2;
const NAME: u64 = 3;
const TASK: u64 = 4;
const GAP: u64 = 5;

impl LogEntry {
    fn to_words(self) -> [u64; WORDS] {
        match self {
            Self::Branch { from, to } => BranchRecord::new(from, to).to_words(),
            Self::Processor { id, time } => [id, time, PROCESSOR],
            Self::AddressSpace { cr3, time } => [cr3, time, ADDRESS_SPACE],
            Self::Name(name) => {
                let (words, _) = name.as_chunks();
                let word = |at: usize| words.get(at).map_or(0, |w| u64::from_le_bytes(*w));
                [word(0), word(1), NAME]
            }
            Self::Task { ids, time } => [ids, time, TASK],
            Self::Gap { duration, time } => [duration, time, GAP],
        }
    }

    /// The entry of a record.
    #[inline(always)]
    fn from_words([first, second, kind]: [u64; WORDS]) -> Self {
        match kind {
            PROCESSOR => Self::Processor {
                id: first,
                time: second,
            },
            ADDRESS_SPACE => Self::AddressSpace {
                cr3: first,
                time: second,
            },
            NAME => {
                let mut name = [0; 16];
                name[..8].copy_from_slice(&first.to_le_bytes());
                name[8..].copy_from_slice(&second.to_le_bytes());
                Self::Name(name)
            }
            TASK => Self::Task {
                ids: first,
                time: second,
            },
            GAP => Self::Gap {
                duration: first,
                time: second,
            },
            _ => Self::Branch {
                from: first,
                to: second,
            },
        }
    }
}

/// Records of a log, oldest first.
pub struct LogBuffer {
    /// The host address of the next record, which is in the place of the BTS index, and then the
    /// records.
    words: Vec<u64>,
}

impl Default for LogBuffer {
    fn default() -> Self {
        let mut buffer = Self {
            words: vec![0; 1 + WORDS * CAPACITY],
        };
        buffer.clear();
        buffer
    }
}

impl fmt::Debug for LogBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogBuffer({} records)", self.len())
    }
}

impl LogBuffer {
    /// Host address of the first record.
    fn start(&self) -> u64 {
        self.words.as_ptr() as u64 + 8
    }

    /// Number of records.
    fn len(&self) -> usize {
        let bytes = self.words[0].wrapping_sub(self.start());
        (bytes / RECORD_SIZE) as usize
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.words[0] = self.start();
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = LogEntry> {
        let (records, _) = self.words[1..].as_chunks();
        let records = records.get(..self.len()).unwrap_or_default();
        records.iter().map(|record| LogEntry::from_words(*record))
    }

    /// Adds an entry. Returns whether there was room.
    fn push(&mut self, entry: LogEntry) -> bool {
        let at = 1 + WORDS * self.len();
        let Some(record) = self.words.get_mut(at..at + WORDS) else {
            return false;
        };
        record.copy_from_slice(&entry.to_words());
        self.words[0] += RECORD_SIZE;
        true
    }

    /// The free records, and the host address of the word that has the address of the next one.
    fn window(&mut self) -> (Window, u64) {
        let field = self.words.as_mut_ptr() as u64;
        let end = self.start() + (CAPACITY as u64) * RECORD_SIZE;
        (Window::over(self.words[0], end), field)
    }
}

/// Takes the buffers of a log.
pub trait LogSink: Send + fmt::Debug {
    /// Takes a buffer, and returns one that is empty. It may block the processor.
    fn exchange(&mut self, full: LogBuffer) -> LogBuffer;
}

/// An address at which the log does something before the instruction there, when a branch has led
/// to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Linear address of an instruction.
    pub address: u64,
    /// What happens there.
    pub action: ProbeAction,
}

/// What happens at a [`Probe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAction {
    /// The log begins, when probes with this action have been reached so often.
    Start {
        /// The number of times, from 1 on.
        nth: u64,
    },
    /// The second argument is the address of the task that the kernel switches to (`__switch_to` of
    /// Linux). It is in RSI in 64-bit mode, else in EDX. The fields are at these offsets.
    SwitchTask {
        /// Thread ID (32 bits), followed by the process ID.
        ids: u64,
        /// Name (16 bytes).
        name: u64,
    },
}

impl ProbeAction {
    fn is_start(self) -> bool {
        matches!(self, Self::Start { .. })
    }
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
    reached: u64,
    probes: Vec<Probe>,
    /// The processor that it is attached to.
    processor: u64,
    /// The last [`LogEntry::AddressSpace`].
    cr3: Option<u64>,
    /// When another accelerator took the processor over.
    left: Option<u64>,
}

impl BranchLog {
    /// A log of branches in `scope`, whose buffers go to `sink`. It begins at a
    /// [`ProbeAction::Start`] if `probes` have one, and else at once.
    pub fn new(scope: LogScope, probes: Vec<Probe>, sink: Box<dyn LogSink>) -> Self {
        let waits = probes.iter().any(|p| p.action.is_start());
        Self {
            buffer: LogBuffer::default(),
            sink,
            scope,
            started: !waits,
            reached: 0,
            probes,
            processor: 0,
            cr3: None,
            left: None,
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
        let full = std::mem::take(&mut self.buffer.words);
        self.buffer = self.sink.exchange(LogBuffer { words: full });
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

    /// Whether there is a probe at `rip`.
    #[inline]
    fn has_probe(&self, rip: u64) -> bool {
        self.probes.iter().any(|p| p.address == rip)
    }

    /// What happens at `rip`. A log that begins there notes what else happens.
    fn actions(&self, rip: u64) -> Vec<ProbeAction> {
        let here = self.probes.iter().filter(|p| p.address == rip);
        let mut actions: Vec<ProbeAction> = here.map(|p| p.action).collect();
        actions.sort_by_key(|action| !action.is_start());
        actions
    }

    /// The log begins if this is the `nth` time.
    pub(crate) fn start(&mut self, nth: u64, cr3: u64, time: u64) {
        if self.started {
            return;
        }
        self.reached += 1;
        if self.reached >= nth {
            self.started = true;
            self.probes.retain(|p| !p.action.is_start());
            self.enter_processor(self.processor, cr3, time);
        }
    }
}

impl Cpu {
    /// Logs branches in `log` from now on.
    pub fn attach_log(&mut self, log: Box<BranchLog>) {
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
    fn address_space(&self) -> u64 {
        match self.sys.cr4 & cr4::PCIDE {
            0 => self.sys.cr3,
            _ => self.sys.cr3 & !0xFFF,
        }
    }

    /// Does what the probes at RIP ask for. Returns whether there are some.
    #[inline]
    pub(crate) fn pass_probe(&mut self) -> bool {
        let rip = self.linear_ip(self.rip);
        let has_probe = self.log.as_ref().is_some_and(|log| log.has_probe(rip));
        if has_probe {
            self.act_at(rip);
        }
        has_probe
    }

    #[cold]
    fn act_at(&mut self, rip: u64) {
        let actions = self.log.as_ref().map(|log| log.actions(rip));
        for action in actions.unwrap_or_default() {
            self.act(action);
        }
    }

    fn act(&mut self, action: ProbeAction) {
        self.window.close();
        let (cr3, time) = (self.address_space(), self.now());
        match action {
            ProbeAction::Start { nth } => {
                if let Some(log) = &mut self.log {
                    log.start(nth, cr3, time);
                }
                self.update_mode();
            }
            ProbeAction::SwitchTask { ids, name } => {
                // Linux passes the second argument so: to 64-bit code by the System V ABI, and
                // within a 32-bit kernel with regparm(3).
                let wide = self.in_64_bit_mode();
                let task = self.gpr[if wide { gpr::RSI } else { gpr::RDX }];
                let mask = if wide { u64::MAX } else { u32::MAX.into() };
                let field = |offset| task.wrapping_add(offset) & mask;
                let (mut numbers, mut text) = ([0; 8], [0; 16]);
                if self.read_quietly(field(ids), &mut numbers)
                    && self.read_quietly(field(name), &mut text)
                    && let Some(log) = &mut self.log
                {
                    let ids = u64::from_le_bytes(numbers);
                    log.enter_task(ids, text, time);
                }
            }
        }
    }
}
