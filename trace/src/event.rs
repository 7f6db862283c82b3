//! What happens between branches.

use std::ops::RangeInclusive;

use crate::varint::{self, Cursor};
use crate::{Error, varint::push_bytes};

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Killed(u8),
}

/// Where the bytes of [`Event::Code`] come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeSource {
    /// The memory of the process at its end, at an address: code without a file.
    Memory,
    /// The vDSO, which the kernel has mapped at an address.
    Vdso,
    /// A part of the process's `/tmp/perf-PID.map`, at an offset.
    PerfMap,
    /// A part of the process's `jit-PID.dump`, at an offset.
    JitDump,
}

impl CodeSource {
    const ALL: [Self; 4] = [Self::Memory, Self::Vdso, Self::PerfMap, Self::JitDump];
}

/// What happens to a task, or to a processor, between two of its branches. Times are
/// `CLOCK_MONOTONIC` of the guest in ns. Names and texts are bytes from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The task is traced from here on.
    Start {
        /// Thread ID in the guest. It can be used again; the number of the task is not.
        id: u32,
        /// Thread ID of the task that has started it; 0 for the first one.
        parent: u32,
        /// The process (thread group) that it belongs to.
        process: u32,
        /// When.
        time: u64,
    },
    /// The task executes a program.
    Exec {
        /// Its thread ID from here on.
        id: u32,
        /// Its thread ID before. It differs if a thread that is not the leader executes.
        former: u32,
        /// When.
        time: u64,
        /// Path of the program.
        name: Vec<u8>,
    },
    /// The path of the program that the task executes, and has executed before: the trace does not
    /// have the task that it has got it from.
    Name(Vec<u8>),
    /// The task has ended.
    End {
        /// When.
        time: u64,
        /// How.
        status: Status,
    },
    /// At least this many records of the task are missing here.
    Lost(u64),
    /// The guest's kernel has marked one record invalid.
    Invalid,
    /// The user did not want this many branches of the task, which were here.
    Filtered(u64),
    /// The task gets a signal.
    Signal {
        /// When.
        time: u64,
        /// The signal.
        signal: u32,
    },
    /// The task arrives on a processor.
    Arrive {
        /// When.
        time: u64,
    },
    /// The task departs from a processor.
    Depart {
        /// When.
        time: u64,
    },
    /// A signal kills the task for what its instruction did.
    Crash {
        /// The signal.
        signal: u32,
        /// `si_code` of the signal.
        code: i32,
        /// The address of the fault.
        address: u64,
        /// RAX, RBX, RCX, RDX, RSI, RDI, RSP, RBP, R8 to R15, RIP, RFLAGS, CS.
        registers: Vec<u64>,
        /// The bytes at RIP, as far as they can be read.
        instruction: Vec<u8>,
    },
    /// The run has ended before the task did.
    Standing {
        /// The line of `/proc/TID/syscall`.
        syscall: Vec<u8>,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
    },
    /// Another task is not traced, or not any more.
    Untraced {
        /// Its thread ID.
        id: u32,
        /// Thread ID of the task that has started it.
        parent: u32,
        /// When.
        time: u64,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
        /// The reason for the user.
        reason: Vec<u8>,
    },
    /// The mappings of a process from here on.
    Maps {
        /// The process.
        process: u32,
        /// The text of `/proc/PID/maps`.
        text: Vec<u8>,
    },
    /// The last task of a process has ended.
    ProcessEnd {
        /// The process.
        process: u32,
    },
    /// Code of the guest's kernel differs in memory from that in its file.
    KernelCode {
        /// Its linear address.
        address: u64,
        /// The bytes in memory.
        bytes: Vec<u8>,
    },
    /// Code that is in no file, or a part of what its compiler says about it.
    Code {
        /// The process.
        process: u32,
        /// Where it comes from.
        source: CodeSource,
        /// An address, or an offset: see [`CodeSource`].
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The build ID of a file that is mapped as code.
    BuildId {
        /// The build ID.
        id: Vec<u8>,
        /// The name of its mappings: a path.
        name: Vec<u8>,
    },
    /// The address space of the processor from here on. Times of processors are those of the
    /// machine since its start.
    AddressSpace {
        /// CR3.
        cr3: u64,
        /// When.
        time: u64,
    },
    /// The processor executes this task of the guest's kernel from here on.
    Switch {
        /// Its thread ID.
        id: u32,
        /// The process (thread group) that it belongs to.
        process: u32,
        /// When.
        time: u64,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
    },
    /// Another accelerator has executed the processor until here, and its branches are missing.
    Gap {
        /// For how long, in ns.
        duration: u64,
        /// When that ended.
        time: u64,
    },
}

/// Kinds of events. [`SELECT`] has no [`Event`]: it names the task of what follows.
pub(crate) const SELECT: u8 = 1;
const START: u8 = 2;
const EXEC: u8 = 3;
const END: u8 = 4;
const LOST: u8 = 5;
const INVALID: u8 = 6;
const ARRIVE: u8 = 7;
const DEPART: u8 = 8;
const CRASH: u8 = 9;
const STANDING: u8 = 10;
const UNTRACED: u8 = 11;
const MAPS: u8 = 12;
const PROCESS_END: u8 = 13;
const FILTERED: u8 = 14;
const KERNEL_CODE: u8 = 15;
const NAME: u8 = 16;
const CODE: u8 = 17;
const BUILD_ID: u8 = 18;
const ADDRESS_SPACE: u8 = 32;
const SWITCH: u8 = 33;
const GAP: u8 = 34;
const SIGNAL: u8 = 35;

/// Kinds that have a time, whether a reader knows them or not.
const TIMED: RangeInclusive<u8> = 32..=63;

impl Event {
    /// When, if the event has a time.
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::Start { time, .. }
            | Self::Exec { time, .. }
            | Self::End { time, .. }
            | Self::Arrive { time }
            | Self::Depart { time }
            | Self::Untraced { time, .. }
            | Self::AddressSpace { time, .. }
            | Self::Switch { time, .. }
            | Self::Gap { time, .. }
            | Self::Signal { time, .. } => Some(*time),
            _ => None,
        }
    }

    /// Size in bytes of its names and texts.
    pub fn size(&self) -> usize {
        match self {
            Self::Exec { name, .. } | Self::Switch { name, .. } | Self::Name(name) => name.len(),
            Self::Crash {
                registers,
                instruction,
                ..
            } => size_of_val(registers.as_slice()) + instruction.len(),
            Self::Standing { syscall, name } => syscall.len() + name.len(),
            Self::BuildId { id, name } => id.len() + name.len(),
            Self::Untraced { name, reason, .. } => name.len() + reason.len(),
            Self::Maps { text, .. } => text.len(),
            Self::KernelCode { bytes, .. } | Self::Code { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Appends the event to `out`, without its time, which stands before it. Returns its kind.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> u8 {
        let mut numbers = |numbers: &[u32]| {
            for number in numbers {
                varint::push(out, (*number).into());
            }
        };
        match self {
            Self::Start {
                id,
                parent,
                process,
                ..
            } => {
                numbers(&[*id, *parent, *process]);
                START
            }
            Self::Exec {
                id, former, name, ..
            } => {
                numbers(&[*id, *former]);
                push_bytes(out, name);
                EXEC
            }
            Self::Name(name) => {
                push_bytes(out, name);
                NAME
            }
            Self::End { status, .. } => {
                let (kind, value) = match status {
                    Status::Exited(value) => (0, value),
                    Status::Killed(value) => (1, value),
                };
                out.extend_from_slice(&[kind, *value]);
                END
            }
            Self::Lost(records) => {
                varint::push(out, *records);
                LOST
            }
            Self::Invalid => INVALID,
            Self::Filtered(branches) => {
                varint::push(out, *branches);
                FILTERED
            }
            Self::Signal { signal, .. } => {
                numbers(&[*signal]);
                SIGNAL
            }
            Self::Arrive { .. } => ARRIVE,
            Self::Depart { .. } => DEPART,
            Self::Crash {
                signal,
                code,
                address,
                registers,
                instruction,
            } => {
                numbers(&[*signal]);
                varint::push_signed(out, (*code).into());
                varint::push(out, *address);
                push_bytes(out, instruction);
                varint::push(out, registers.len() as u64);
                for register in registers {
                    varint::push(out, *register);
                }
                CRASH
            }
            Self::Standing { syscall, name } => {
                push_bytes(out, syscall);
                push_bytes(out, name);
                STANDING
            }
            Self::Untraced {
                id,
                parent,
                name,
                reason,
                ..
            } => {
                numbers(&[*id, *parent]);
                push_bytes(out, name);
                push_bytes(out, reason);
                UNTRACED
            }
            Self::Maps { process, text } => {
                numbers(&[*process]);
                push_bytes(out, text);
                MAPS
            }
            Self::ProcessEnd { process } => {
                numbers(&[*process]);
                PROCESS_END
            }
            Self::KernelCode { address, bytes } => {
                varint::push(out, *address);
                push_bytes(out, bytes);
                KERNEL_CODE
            }
            Self::Code {
                process,
                source,
                at,
                bytes,
            } => {
                numbers(&[*process, *source as u32]);
                varint::push(out, *at);
                push_bytes(out, bytes);
                CODE
            }
            Self::BuildId { id, name } => {
                push_bytes(out, id);
                push_bytes(out, name);
                BUILD_ID
            }
            Self::AddressSpace { cr3, .. } => {
                varint::push(out, *cr3);
                ADDRESS_SPACE
            }
            Self::Switch {
                id, process, name, ..
            } => {
                numbers(&[*id, *process]);
                push_bytes(out, name);
                SWITCH
            }
            Self::Gap { duration, .. } => {
                varint::push(out, *duration);
                GAP
            }
        }
    }

    /// Whether events of this kind have a time.
    pub(crate) fn has_time(kind: u8) -> bool {
        matches!(kind, START | EXEC | END | ARRIVE | DEPART | UNTRACED) || TIMED.contains(&kind)
    }

    /// Decodes an event of a kind, with its time. Returns `None` for a kind of a later version.
    pub(crate) fn decode(kind: u8, time: u64, bytes: &[u8]) -> Result<Option<Self>, Error> {
        let mut cursor = Cursor(bytes);
        Ok(Some(match kind {
            START => Self::Start {
                id: cursor.word()?,
                parent: cursor.word()?,
                process: cursor.word()?,
                time,
            },
            EXEC => Self::Exec {
                id: cursor.word()?,
                former: cursor.word()?,
                time,
                name: cursor.bytes()?.into(),
            },
            NAME => Self::Name(cursor.bytes()?.into()),
            END => {
                let &[kind, value] = cursor.take(2)? else {
                    return Err(Error::Damaged);
                };
                let status = match kind {
                    0 => Status::Exited(value),
                    1 => Status::Killed(value),
                    _ => return Err(Error::Damaged),
                };
                Self::End { time, status }
            }
            LOST => Self::Lost(cursor.number()?),
            INVALID => Self::Invalid,
            FILTERED => Self::Filtered(cursor.number()?),
            SIGNAL => Self::Signal {
                time,
                signal: cursor.word()?,
            },
            ARRIVE => Self::Arrive { time },
            DEPART => Self::Depart { time },
            CRASH => Self::Crash {
                signal: cursor.word()?,
                code: i32::try_from(cursor.signed()?).map_err(|_| Error::Damaged)?,
                address: cursor.number()?,
                instruction: cursor.bytes()?.into(),
                // Not more than there are bytes for.
                registers: {
                    let count = cursor.number()?.min(bytes.len() as u64);
                    (0..count)
                        .map(|_| cursor.number())
                        .collect::<Result<_, _>>()?
                },
            },
            STANDING => Self::Standing {
                syscall: cursor.bytes()?.into(),
                name: cursor.bytes()?.into(),
            },
            UNTRACED => Self::Untraced {
                id: cursor.word()?,
                parent: cursor.word()?,
                time,
                name: cursor.bytes()?.into(),
                reason: cursor.bytes()?.into(),
            },
            MAPS => Self::Maps {
                process: cursor.word()?,
                text: cursor.bytes()?.into(),
            },
            PROCESS_END => Self::ProcessEnd {
                process: cursor.word()?,
            },
            KERNEL_CODE => Self::KernelCode {
                address: cursor.number()?,
                bytes: cursor.bytes()?.into(),
            },
            CODE => {
                let process = cursor.word()?;
                let source = CodeSource::ALL.get(cursor.word()? as usize);
                let Some(source) = source.copied() else {
                    return Ok(None);
                };
                Self::Code {
                    process,
                    source,
                    at: cursor.number()?,
                    bytes: cursor.bytes()?.into(),
                }
            }
            BUILD_ID => Self::BuildId {
                id: cursor.bytes()?.into(),
                name: cursor.bytes()?.into(),
            },
            ADDRESS_SPACE => Self::AddressSpace {
                cr3: cursor.number()?,
                time,
            },
            SWITCH => Self::Switch {
                id: cursor.word()?,
                process: cursor.word()?,
                time,
                name: cursor.bytes()?.into(),
            },
            GAP => Self::Gap {
                duration: cursor.number()?,
                time,
            },
            _ => return Ok(None),
        }))
    }
}
