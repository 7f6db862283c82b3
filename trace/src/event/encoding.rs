//! The encoded form of an event, without its time.

use std::ops::RangeInclusive;

use super::{CodeSource, Crash, Event, Status};
use crate::varint::{self, Cursor};
use crate::{Error, varint::push_bytes};

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
const KERNEL_FILE: u8 = 19;
const THREAD_NAME: u8 = 20;
const ADDRESS_SPACE: u8 = 32;
const SWITCH: u8 = 33;
const GAP: u8 = 34;
const SIGNAL: u8 = 35;

/// Kinds that have a time, whether a reader knows them or not.
const TIMED: RangeInclusive<u8> = 32..=63;

impl Event {
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
            Self::ThreadName(name) => {
                push_bytes(out, name);
                THREAD_NAME
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
            Self::Crash(crash) => {
                let Crash {
                    signal,
                    code,
                    address,
                    registers,
                    instruction,
                } = &**crash;
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
            Self::KernelFile { at, bytes } => {
                varint::push(out, *at);
                push_bytes(out, bytes);
                KERNEL_FILE
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
            THREAD_NAME => Self::ThreadName(cursor.bytes()?.into()),
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
            CRASH => Self::Crash(Box::new(Crash {
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
            })),
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
            KERNEL_FILE => Self::KernelFile {
                at: cursor.number()?,
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
