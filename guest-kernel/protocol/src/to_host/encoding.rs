//! The encoded form of the guest's messages.

use super::ToHost;
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
