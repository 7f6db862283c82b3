//! The host's side of the program's terminal: raw mode, its size, and the keys that end the run.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vbts_devices::lock;
use vbts_protocol::WindowSize;

use crate::host::RawTerminal;
use crate::host::descriptors::{Inherited, Kind};
use crate::host::terminal::{in_foreground, settings, size};

/// The key (Ctrl-]) that ends the run if it is pressed [`END_COUNT`] times within [`END_TIME`], as
/// in systemd-nspawn. All others are for the program.
const END_KEY: u8 = 0x1d;
const END_COUNT: usize = 3;
const END_TIME: Duration = Duration::from_secs(1);

/// A terminal of the host that the program uses.
#[derive(Debug)]
pub struct Terminal {
    /// The number of its stream.
    stream: u32,
    /// Which terminal it is.
    kind: Kind,
    file: File,
    /// The trace goes to the terminal, too. The host then goes on to process output.
    shared: bool,
    /// The program gets what is typed.
    reads: bool,
    raw: Restorer,
    end_keys: EndKeys,
}

impl Terminal {
    /// Finds the terminal of a program that gets the descriptors `inherited`: that of its standard
    /// output, or else of its standard error. If standard output goes elsewhere, another program
    /// may read what is typed, such as `less` at the other end of a pipe. Then the terminal is for
    /// output only. It is `shared` if the trace goes to it, too.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn find(inherited: &[Inherited], shared: bool) -> io::Result<Option<Self>> {
        let terminal = |number| {
            let is_terminal = |i: &&Inherited| matches!(i.kind, Kind::Terminal(_));
            inherited
                .iter()
                .filter(is_terminal)
                .find(|i| i.number == number)
        };
        let Some(descriptor) = terminal(1).or_else(|| terminal(2)) else {
            return Ok(None);
        };
        let mut terminal = Self {
            stream: descriptor.number,
            kind: descriptor.kind,
            file: descriptor.file()?,
            shared,
            reads: descriptor.number == 1,
            raw: Restorer::default(),
            end_keys: EndKeys::default(),
        };
        if let Some(first) = inherited.iter().find(|i| terminal.is(i)) {
            terminal.stream = first.number;
        }
        Ok(Some(terminal))
    }

    /// Whether `descriptor` is this terminal for the program.
    pub fn is(&self, descriptor: &Inherited) -> bool {
        descriptor.kind == self.kind && (self.reads || descriptor.number > 0)
    }

    /// The number of its stream.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// Whether the program gets what is typed.
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// What the program reads.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The settings for the guest's terminal.
    ///
    /// # Errors
    /// It is not a terminal any more.
    pub fn settings(&self) -> io::Result<vbts_protocol::Terminal> {
        settings(&self.file, self.shared || !self.reads)
    }

    /// The present size; `None` if it is not a terminal any more.
    pub fn size(&self) -> Option<WindowSize> {
        size(&self.file).ok()
    }

    /// Whether input may be read now. The first time, this puts the terminal into raw mode: the
    /// guest's terminal processes the keys. A job in the background reads nothing, and leaves the
    /// terminal as it is.
    pub fn is_usable(&mut self) -> bool {
        let mut raw = lock(&self.raw.0);
        if raw.is_none() && self.reads && in_foreground(&self.file) {
            let fd = self.file.try_clone().map(Into::into);
            *raw = fd.and_then(|fd| RawTerminal::of(fd, self.shared)).ok();
        }
        raw.is_some()
    }

    /// What restores the terminal after the run.
    pub fn restorer(&self) -> Restorer {
        self.raw.clone()
    }

    /// Looks for the keys that end the run in what was typed. Returns whether it has to end.
    pub fn take_keys(&mut self, typed: &[u8]) -> bool {
        self.end_keys.take(typed, Instant::now())
    }
}

/// Restores the terminal.
#[derive(Debug, Clone, Default)]
pub struct Restorer(Arc<Mutex<Option<RawTerminal>>>);

impl Restorer {
    /// Restores the terminal, if it is in raw mode.
    pub fn restore(&self) {
        drop(lock(&self.0).take());
    }
}

/// The times at which [`END_KEY`] was pressed, if nothing else was since.
#[derive(Debug, Default)]
struct EndKeys(Vec<Instant>);

impl EndKeys {
    fn take(&mut self, typed: &[u8], now: Instant) -> bool {
        for key in typed {
            if *key != END_KEY {
                self.0.clear();
                continue;
            }
            self.0
                .retain(|pressed| now.duration_since(*pressed) < END_TIME);
            self.0.push(now);
            if self.0.len() >= END_COUNT {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_keys_within_a_second_end_the_run() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut keys = EndKeys::default();
        assert!(!keys.take(&[END_KEY, END_KEY, b'x', END_KEY], at(0)));
        assert!(!keys.take(&[END_KEY], at(900)));
        // The first of three is too old.
        assert!(!keys.take(&[END_KEY], at(1000)));
        assert!(keys.take(&[END_KEY], at(1500)));
        assert!(EndKeys::default().take(&[END_KEY; 3], at(0)));
    }
}
