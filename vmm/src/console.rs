//! The guest's serial console on the host's side: its copies, its last lines, and panics.

use serde::{Deserialize, Serialize};
use vbts_devices::{ByteSink, StateError};

use vbts_host::escape::is_printable;
use vbts_host::{Output, OutputError};

/// The text that Linux prints first when it panics.
const PANIC: &[u8] = b"Kernel panic - not syncing";
/// The text that Linux prints last when it panics, unless it then resets the machine.
const PANIC_END: &[u8] = b"[ end Kernel panic";

/// The text before a process that Linux kills because there is no memory left.
const OUT_OF_MEMORY: &str = "Out of memory: Killed process ";
/// What Linux prints around a process, its name, and a number of bytes that it cannot have because
/// all memory is less (`__vm_enough_memory`).
const NOT_ENOUGH: [&str; 4] = [
    "__vm_enough_memory: pid: ",
    ", comm: ",
    ", bytes: ",
    " not enough memory",
];

/// Number of the last bytes of the console that are kept for messages.
const TAIL: usize = 8 << 10;
/// Length in bytes at which an unfinished line is copied.
const MAX_PARTIAL_LINE: usize = 4 << 10;
/// Bytes that are kept for a debugger, at most.
const MAX_KEPT: usize = 1 << 20;
/// Number of lines of the console that a message shows.
const TAIL_LINES: usize = 30;

/// Searches for a text in a stream of bytes. The first byte of the text must not occur in it again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Pattern {
    /// Number of bytes of the text that match the end of the stream.
    matched: usize,
    seen: bool,
}

impl Pattern {
    fn push(&mut self, text: &[u8], byte: u8) {
        self.matched = match self.matched {
            n if text.get(n) == Some(&byte) => n + 1,
            _ => usize::from(text.first() == Some(&byte)),
        };
        if self.matched == text.len() {
            self.seen = true;
            self.matched = 0;
        }
    }
}

/// Keeps the end of the console's output, detects a kernel panic in it, and copies it to outputs.
#[derive(Debug, Default)]
pub struct Console {
    tail: Vec<u8>,
    panic: Pattern,
    panic_end: Pattern,
    /// The outputs that receive a copy.
    copies: Vec<Output>,
    /// Number of all bytes so far.
    written: u64,
    /// Number of bytes that have been copied, or wait in `line`: those that the guest writes again
    /// after it has gone back are not copied again.
    shown: u64,
    /// Bytes that have not been copied yet.
    line: Vec<u8>,
    /// Bytes that have not been taken, if they are kept.
    kept: Option<Vec<u8>>,
    error: Option<OutputError>,
}

/// State of the console: what decides whether the guest has panicked, and what a message shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsoleState {
    tail: Vec<u8>,
    panic: Pattern,
    panic_end: Pattern,
    /// Number of bytes so far.
    written: u64,
}

impl ByteSink for Console {
    fn put(&mut self, bytes: &[u8]) -> usize {
        self.write(bytes);
        bytes.len()
    }
}

impl Console {
    /// Creates a console that is copied to each of `copies`.
    pub fn new(copies: Vec<Output>) -> Self {
        Self {
            copies,
            ..Self::default()
        }
    }

    /// Discards the former contents of the files among the copies.
    ///
    /// # Errors
    /// The host refuses it.
    pub fn truncate(&self) -> Result<(), OutputError> {
        self.copies.iter().try_for_each(Output::truncate)
    }

    /// The state of the console. An unfinished line has to be copied before.
    pub(crate) fn state(&self) -> ConsoleState {
        ConsoleState {
            tail: self.tail.clone(),
            panic: self.panic.clone(),
            panic_end: self.panic_end.clone(),
            written: self.written,
        }
    }

    /// Puts the console into `state`.
    ///
    /// # Errors
    /// The console never has such a state.
    pub(crate) fn restore(&mut self, state: &ConsoleState) -> Result<(), StateError> {
        let len = state.tail.len();
        if len > TAIL {
            let reason = format!("{len} bytes are more than it keeps");
            return Err(StateError::restore("the console", reason));
        }
        self.tail = state.tail.clone();
        self.panic = state.panic.clone();
        self.panic_end = state.panic_end.clone();
        self.written = state.written;
        Ok(())
    }

    /// Processes `bytes`, which the guest has written.
    pub fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.panic.push(PANIC, byte);
            self.panic_end.push(PANIC_END, byte);
        }
        let keep = TAIL.saturating_sub(bytes.len());
        self.tail.drain(..self.tail.len().saturating_sub(keep));
        self.tail
            .extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL)..]);
        self.written = self.written.saturating_add(bytes.len() as u64);
        let is_new = self
            .written
            .saturating_sub(self.shown)
            .min(bytes.len() as u64);
        let bytes = &bytes[bytes.len() - is_new as usize..];
        self.shown = self.shown.max(self.written);
        if let Some(kept) = &mut self.kept {
            let room = MAX_KEPT.saturating_sub(kept.len());
            kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        if !self.copies.is_empty() {
            self.line.extend_from_slice(bytes);
            if bytes.contains(&b'\n') || self.line.len() >= MAX_PARTIAL_LINE {
                self.flush();
            }
        }
    }

    /// Keeps what is written from here on, to be taken: also what was written before the guest has
    /// gone back.
    pub(crate) fn keep_from_here(&mut self) {
        self.kept = Some(Vec::new());
        self.shown = self.written;
    }

    /// Takes what is kept.
    pub(crate) fn take_kept(&mut self) -> Vec<u8> {
        self.kept.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// Copies the unfinished line. To be called when the guest pauses.
    pub fn flush(&mut self) {
        if self.line.is_empty() {
            return;
        }
        for copy in &mut self.copies {
            if let Err(error) = copy.write(&self.line) {
                self.error.get_or_insert(error);
            }
        }
        self.line.clear();
    }

    /// Whether the guest kernel has panicked.
    pub fn panicked(&self) -> bool {
        self.panic.seen
    }

    /// Whether the guest kernel has panicked and has stopped.
    pub fn is_dead(&self) -> bool {
        self.panic_end.seen
    }

    /// Takes the first error that occurred while copying.
    pub fn take_error(&mut self) -> Option<OutputError> {
        self.error.take()
    }

    /// The last process that Linux has killed because it was out of memory, as `29 (sh)`, if the
    /// end of the output has that.
    pub fn killed_for_memory(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.tail);
        let (_, process) = text.rsplit_once(OUT_OF_MEMORY)?;
        // The name may have parentheses, but what follows has none.
        let (process, _) = process.lines().next()?.rsplit_once(") ")?;
        let process = process.chars().filter(|c| is_printable(*c));
        Some(process.chain([')']).collect())
    }

    /// The last process to which Linux has refused memory, as `29 (sh)`, and the number of bytes,
    /// if the end of the output has that.
    pub fn refused_memory(&self) -> Option<(String, u64)> {
        let text = String::from_utf8_lossy(&self.tail);
        let [before_pid, before_name, before_bytes, end] = NOT_ENOUGH;
        let (_, line) = text.rsplit_once(before_pid)?;
        // The name may have any characters, but what follows has no comma.
        let (pid, rest) = line.lines().next()?.split_once(before_name)?;
        let (name, bytes) = rest.rsplit_once(before_bytes)?;
        let (bytes, _) = bytes.split_once(end)?;
        let process = format!("{pid} ({name})");
        let process = process.chars().filter(|c| is_printable(*c)).collect();
        Some((process, bytes.parse().ok()?))
    }

    /// The last lines, without characters that are not printable.
    pub fn tail(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let lines: Vec<&str> = text.lines().collect();
        let shown = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        let mut tail = String::new();
        for line in shown {
            tail.extend(line.chars().filter(|c| is_printable(*c) || *c == '\t'));
            tail.push('\n');
        }
        tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_found_across_writes() {
        let mut console = Console::default();
        for part in [&b"ok KKernel pan"[..], b"ic - not ", b"sync"] {
            console.write(part);
            assert!(!console.panicked());
        }
        console.write(b"ing: no init\r\n");
        assert!(console.panicked() && !console.is_dead());
        console.write(b"---[ end Kernel panic - not syncing: no init ]---\r\n");
        assert!(console.is_dead());
    }

    #[test]
    fn the_tail_has_the_last_lines() {
        let mut console = Console::default();
        for i in 0..10_000 {
            console.write(format!("line {i}\x1b[0m\r\n").as_bytes());
        }
        let tail = console.tail();
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("line 9999[0m\n"), "{tail:?}");
        console.write(&[b'x'; 3 * TAIL]);
        assert_eq!(console.tail().len(), TAIL + 1);
    }

    #[test]
    fn a_process_that_was_killed_for_memory_has_a_name() {
        let mut console = Console::default();
        console.write(b"[ 0.5] Out of memory: nothing\r\n");
        assert_eq!(console.killed_for_memory(), None);
        for name in ["sh", "a) (b", "x\x1b[0m"] {
            let line = format!("[ 0.5] Out of memory: Killed process 29 ({name}) total-vm:1kB\r\n");
            console.write(line.as_bytes());
            let shown = name.replace('\x1b', "");
            let expected = format!("29 ({shown})");
            assert_eq!(console.killed_for_memory(), Some(expected));
        }
        console.write(b"[ 0.6] Out of memory: Killed process 30");
        assert_eq!(console.killed_for_memory(), None);
    }

    #[test]
    fn a_process_that_was_refused_memory_has_a_name() {
        let mut console = Console::default();
        for name in ["sh", "a, bytes: 7 b", "x\x1b[0m"] {
            let line = format!(
                "[ 0.5] __vm_enough_memory: pid: 29, comm: {name}, bytes: 4096 not enough memory \
                 for the allocation\r\n"
            );
            console.write(line.as_bytes());
            let expected = (format!("29 ({})", name.replace('\x1b', "")), 4096);
            assert_eq!(console.refused_memory(), Some(expected));
        }
        console.write(b"__vm_enough_memory: pid: 30, comm: x, bytes: many not enough memory");
        assert_eq!(console.refused_memory(), None);
    }

    #[test]
    fn a_full_disk_is_reported() {
        let full = Output::create(std::path::Path::new("/dev/full")).unwrap();
        let mut console = Console::new(vec![full]);
        console.write(b"x");
        assert!(
            console.take_error().is_none(),
            "an unfinished line is not written"
        );
        console.flush();
        let failure = console.take_error().unwrap().into_failure();
        assert!(failure.to_string().contains("No space left"), "{failure}");
    }

    #[test]
    fn a_restored_console_finds_a_panic_that_began_before() {
        let mut console = Console::default();
        console.write(b"Kernel panic - not");
        let mut restored = Console::default();
        restored.restore(&console.state()).unwrap();
        restored.write(b" syncing: x\n");
        assert!(restored.panicked());
        assert_eq!(restored.tail(), "Kernel panic - not syncing: x\n");
        let state = ConsoleState {
            tail: vec![0; TAIL + 1],
            ..console.state()
        };
        assert!(restored.restore(&state).is_err());
    }
}
