//! The functions of a Python program that a thread executes. CPython has the offsets of what is
//! read here at the start of `_PyRuntime` (`_Py_DebugOffsets`), from version 3.13 on.

use std::cell::Cell;
use std::fmt::Write as _;

use vbts_gdb::{Result, TargetError};

use crate::debugger::{Debugger, fatal};
use crate::monitor::number;

/// The first bytes of `_PyRuntime`.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// The version whose table this is, as `PY_VERSION_HEX` without its lower half.
const VERSION: u64 = 0x030D;
/// Words of the table that are read.
const WORDS: usize = 73;
/// Threads and frames that are followed, at most.
const MAX_LIST: usize = 4096;
/// Bytes of a name, and of a table of lines, at most.
const MAX_NAME: u64 = 4096;
const MAX_TABLE: u64 = 1 << 20;
/// Bytes that are read for a list of frames, at most: lists may be circles.
const MAX_READ: u64 = 1 << 24;
/// `owner` of a frame that belongs to no function: a call from C to Python
/// (`FRAME_OWNED_BY_CSTACK`).
const OWNED_BY_C: u8 = 3;

/// The places of offsets in the table of version 3.13, in words.
mod word {
    pub(super) const VERSION: usize = 1;
    pub(super) const FREE_THREADED: usize = 2;
    pub(super) const INTERPRETERS_HEAD: usize = 5;
    pub(super) const INTERPRETER_NEXT: usize = 8;
    pub(super) const THREADS_HEAD: usize = 9;
    pub(super) const THREAD_NEXT: usize = 21;
    pub(super) const CURRENT_FRAME: usize = 23;
    pub(super) const NATIVE_THREAD_ID: usize = 25;
    pub(super) const FRAME_PREVIOUS: usize = 29;
    pub(super) const FRAME_EXECUTABLE: usize = 30;
    pub(super) const FRAME_INSTRUCTION: usize = 31;
    pub(super) const FRAME_OWNER: usize = 33;
    pub(super) const CODE_FILE: usize = 35;
    pub(super) const CODE_QUALIFIED_NAME: usize = 37;
    pub(super) const CODE_LINES: usize = 38;
    pub(super) const CODE_FIRST_LINE: usize = 39;
    pub(super) const CODE_INSTRUCTIONS: usize = 43;
    pub(super) const BYTES_SIZE: usize = 65;
    pub(super) const BYTES_VALUE: usize = 66;
    pub(super) const TEXT_STATE: usize = 68;
    pub(super) const TEXT_LENGTH: usize = 69;
    pub(super) const TEXT_ASCII_SIZE: usize = 70;
}

/// The memory of a Python program.
struct Python<'a> {
    read: &'a dyn Fn(u64, &mut [u8]) -> bool,
    offsets: [u64; WORDS],
    /// Bytes that may still be read.
    budget: Cell<u64>,
}

/// A function that is executed.
#[derive(Debug, PartialEq, Eq)]
struct PythonFrame {
    name: String,
    file: String,
    line: Option<u64>,
}

impl Debugger {
    /// Shows the Python functions that `thread` executes. `_PyRuntime` is at `runtime`.
    pub(crate) fn show_python(
        &self,
        thread: u32,
        runtime: &str,
        output: &mut Vec<u8>,
    ) -> Result<()> {
        let Some(runtime) = number(runtime) else {
            return Err(TargetError::Refused(format!("'{runtime}' is no address")));
        };
        let tasks = self.tasks().map_err(fatal)?;
        let Some(space) = self.space() else {
            let why = "python-frames is for the view of a program that has begun";
            return Err(TargetError::Refused(why.into()));
        };
        let read = |address: u64, bytes: &mut [u8]| {
            let len = bytes.len();
            tasks.read(space, address, bytes) == len
        };
        let text = python_frames(thread, runtime, &read).map_err(TargetError::Refused)?;
        output.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Returns the Python functions that the thread with a number executes, one a line, the innermost
/// first. `_PyRuntime` is at `runtime` of the memory that `read` reads.
///
/// # Errors
/// The memory has none of a known version, or the thread executes no Python.
pub fn python_frames(
    thread: u32,
    runtime: u64,
    read: &dyn Fn(u64, &mut [u8]) -> bool,
) -> std::result::Result<String, String> {
    let python = Python::at(runtime, read)?;
    let first = python.current_frame(runtime, thread);
    let first = first.ok_or_else(|| format!("thread {thread} executes no Python"))?;
    let mut text = String::new();
    for (n, frame) in python.frames(first).iter().enumerate() {
        let line = frame.line.map(|line| format!(":{line}"));
        // Writes to a string cannot fail.
        let _ = writeln!(
            text,
            "#{n}  {} {}{}",
            frame.name,
            frame.file,
            line.unwrap_or_default()
        );
    }
    Ok(text)
}

impl<'a> Python<'a> {
    /// The program whose `_PyRuntime` is at `runtime`.
    fn at(
        runtime: u64,
        read: &'a dyn Fn(u64, &mut [u8]) -> bool,
    ) -> std::result::Result<Self, String> {
        let mut bytes = [0; 8 * WORDS];
        if !read(runtime, &mut bytes) {
            return Err("the memory of _PyRuntime cannot be read".into());
        }
        let (words, _) = bytes.as_chunks();
        let mut offsets = [0; WORDS];
        for (offset, word) in offsets.iter_mut().zip(words) {
            *offset = u64::from_le_bytes(*word);
        }
        let version = offsets[word::VERSION] >> 16;
        if offsets[0] != COOKIE || version != VERSION || offsets[word::FREE_THREADED] != 0 {
            return Err(
                "the program has no CPython 3.13 with a global interpreter lock, whose frames are \
                 known here"
                    .into(),
            );
        }
        Ok(Self {
            read,
            offsets,
            budget: Cell::new(MAX_READ),
        })
    }

    /// The word at the member of `object` whose offset is at `place` of the table.
    fn member(&self, object: u64, place: usize) -> Option<u64> {
        self.word(self.address(object, place))
    }

    fn address(&self, object: u64, place: usize) -> u64 {
        object.wrapping_add(self.offsets[place])
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let is_read = self.read(address, &mut bytes);
        is_read.then(|| u64::from_le_bytes(bytes))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let rest = self.budget.get().checked_sub(bytes.len() as u64);
        self.budget.set(rest.unwrap_or_default());
        rest.is_some() && (self.read)(address, bytes)
    }

    fn bytes(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.read(address, &mut bytes).then_some(bytes)
    }

    /// The frame that the thread with this number executes.
    fn current_frame(&self, runtime: u64, thread: u32) -> Option<u64> {
        let mut interpreter = self.member(runtime, word::INTERPRETERS_HEAD)?;
        for _ in 0..MAX_LIST {
            let mut state = self.member(interpreter, word::THREADS_HEAD)?;
            for _ in 0..MAX_LIST {
                if state == 0 {
                    break;
                }
                if self.member(state, word::NATIVE_THREAD_ID)? == u64::from(thread) {
                    let frame = self.member(state, word::CURRENT_FRAME)?;
                    return Some(frame).filter(|frame| *frame != 0);
                }
                state = self.member(state, word::THREAD_NEXT)?;
            }
            interpreter = self.member(interpreter, word::INTERPRETER_NEXT)?;
            if interpreter == 0 {
                break;
            }
        }
        None
    }

    /// The functions from `frame` on, the innermost first.
    fn frames(&self, mut frame: u64) -> Vec<PythonFrame> {
        let mut frames = Vec::new();
        for _ in 0..MAX_LIST {
            if frame == 0 {
                break;
            }
            let owner = self.bytes(self.address(frame, word::FRAME_OWNER), 1);
            if owner.is_some_and(|owner| owner != [OWNED_BY_C]) {
                frames.extend(self.function(frame));
            }
            let Some(previous) = self.member(frame, word::FRAME_PREVIOUS) else {
                break;
            };
            frame = previous;
        }
        frames
    }

    fn function(&self, frame: u64) -> Option<PythonFrame> {
        let code = self.member(frame, word::FRAME_EXECUTABLE)?;
        Some(PythonFrame {
            name: self.text(self.member(code, word::CODE_QUALIFIED_NAME)?)?,
            file: self.text(self.member(code, word::CODE_FILE)?)?,
            line: self.line(frame, code),
        })
    }

    /// The line that a frame executes.
    fn line(&self, frame: u64, code: u64) -> Option<u64> {
        let instruction = self.member(frame, word::FRAME_INSTRUCTION)?;
        let start = self.address(code, word::CODE_INSTRUCTIONS);
        let unit = instruction.checked_sub(start)? / 2;
        let first = self.member(code, word::CODE_FIRST_LINE)? as u32;
        let table = self.member(code, word::CODE_LINES)?;
        let size = self.member(table, word::BYTES_SIZE)?;
        let size = Some(size).filter(|size| *size <= MAX_TABLE)?;
        let bytes = self.bytes(self.address(table, word::BYTES_VALUE), size)?;
        line_at(&bytes, first, unit)
    }

    /// The contents of a `str`, of which one that has other than ASCII characters is in parts.
    fn text(&self, object: u64) -> Option<String> {
        let len = self.member(object, word::TEXT_LENGTH)?.min(MAX_NAME);
        let state = self.member(object, word::TEXT_STATE)? as u32;
        // Bits 2 to 4 are the size of a character, then `compact` and `ascii`.
        let (size, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1, state >> 6 & 1);
        if is_compact == 0 {
            return None;
        }
        let ascii_size = self.offsets[word::TEXT_ASCII_SIZE];
        // The length and the pointer of its UTF-8 form precede other characters.
        let header = match is_ascii {
            1 => ascii_size,
            _ => ascii_size.wrapping_add(16),
        };
        let bytes = self.bytes(object.wrapping_add(header), len * u64::from(size))?;
        let characters = bytes.chunks_exact(usize::try_from(size).ok()?.max(1));
        let characters = characters.map(|character| {
            let number = character
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u32::from(*byte));
            char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
        });
        let text: String = characters.collect();
        Some(text.replace(char::is_control, "?"))
    }
}

/// The line of the code unit `wanted` in a table of locations (CPython's
/// Objects/locations.md). A function begins in line `first`.
fn line_at(table: &[u8], first: u32, wanted: u64) -> Option<u64> {
    /// Codes of entries.
    const ONE_LINE: std::ops::RangeInclusive<u8> = 10..=12;
    const NO_COLUMNS: u8 = 13;
    const LONG: u8 = 14;
    const NONE: u8 = 15;
    let mut rest = table.iter().copied();
    let (mut line, mut unit) = (i64::from(first), 0);
    while let Some(entry) = rest.next() {
        let code = entry >> 3 & 15;
        match code {
            NONE => {}
            LONG => {
                line = line.checked_add(signed(&mut rest)?)?;
                for _ in 0..3 {
                    unsigned(&mut rest)?;
                }
            }
            NO_COLUMNS => line = line.checked_add(signed(&mut rest)?)?,
            code if ONE_LINE.contains(&code) => {
                line = line.checked_add(i64::from(code - ONE_LINE.start()))?;
                rest.nth(1)?;
            }
            _ => {
                rest.next()?;
            }
        }
        unit += u64::from(entry & 7) + 1;
        if wanted < unit {
            return u64::try_from(line).ok().filter(|_| code != NONE);
        }
    }
    None
}

/// A number of six bits a byte, the lowest first.
fn unsigned(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut number = 0;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        number |= u64::from(byte & 0x3F) << shift;
        if byte & 0x40 == 0 {
            return Some(number);
        }
    }
    None
}

/// A number whose lowest bit is the sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let number = unsigned(bytes)?;
    let size = i64::try_from(number >> 1).ok()?;
    Some(match number & 1 {
        0 => size,
        _ => -size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_a_table_of_locations() {
        // def f(x):            of python3.13, in line 7:
        //     y = x + 1
        //     return y
        let entry = |code: u8, len: u8| 0x80 | code << 3 | (len - 1);
        let table = [
            entry(14, 1),
            0,
            0,
            1,
            1, // RESUME, line 7
            entry(11, 4),
            8,
            9, // line 8
            entry(0, 2),
            0x40, // line 8
            entry(13, 1),
            2,            // line 9
            entry(15, 1), // none
            entry(13, 1),
            5, // line 7
        ];
        let line = |unit| line_at(&table, 7, unit);
        assert_eq!(line(0), Some(7));
        assert_eq!((line(1), line(4), line(6)), (Some(8), Some(8), Some(8)));
        assert_eq!((line(7), line(8), line(9)), (Some(9), None, Some(7)));
        assert_eq!(line(10), None);
        assert_eq!(line_at(&[entry(14, 8)], 1, 0), None);
    }

    #[test]
    fn lists_that_are_circles_end() {
        let count = Cell::new(0);
        // All members are at the same address, and lead there.
        let read = |_: u64, bytes: &mut [u8]| {
            count.set(count.get() + bytes.len() as u64);
            let table = [COOKIE, VERSION << 16, 0].map(u64::to_le_bytes);
            match bytes.len() {
                8 => bytes.copy_from_slice(&0x1000_u64.to_le_bytes()),
                _ => bytes[..24].copy_from_slice(table.as_flattened()),
            }
            true
        };
        assert!(python_frames(7, 0, &read).is_err());
        assert!(count.get() <= MAX_READ + 8 * WORDS as u64, "{count:?}");
    }

    #[test]
    fn other_memory_is_refused() {
        let read = |address: u64, bytes: &mut [u8]| {
            bytes.fill(1);
            address < 0x1000
        };
        assert!(Python::at(0, &read).is_err());
        assert!(Python::at(0x2000, &read).is_err());
    }
}
