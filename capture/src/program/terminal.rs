//! The host's side of the program's terminal: its mode and size, stops of the program, and the keys
//! that end the run.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode as FileMode, OFlags, open};
use vbts_devices::lock;
use vbts_protocol::WindowSize;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::output::StreamOutput;
use vbts_host::descriptors::{Inherited, Kind};
use vbts_host::input::ReadOutcome;
use vbts_host::terminal::{Keys, Mode, in_foreground, settings, size, stop};
use vbts_host::{Input, Output, RawTerminal};

/// The key (Ctrl-]) that ends the run if it is pressed [`END_COUNT`] times within [`END_TIME`], as
/// in systemd-nspawn. All others are for the program.
const END_KEY: u8 = 0x1d;
const END_COUNT: usize = 3;
const END_TIME: Duration = Duration::from_secs(1);

/// A terminal of the host that the program uses.
///
/// While no process in the guest reads it, the terminal of the host processes the keys: it sends
/// signals, and what is typed stays there for the program or, after its end, for the shell.
/// Otherwise the guest's terminal processes them.
#[derive(Debug)]
pub struct Terminal {
    /// The number of its stream.
    stream: u32,
    /// Which terminal it is.
    kind: Kind,
    file: File,
    /// The program's standard stream by which its output arrives: 0 is none of the outputs.
    output: u32,
    /// The trace goes to the terminal, too. The host then goes on to process output.
    shared: bool,
    /// What a process in the guest waits for.
    wanted: Option<Keys>,
    /// A process in the guest has read it.
    was_read: bool,
    /// Never readable.
    pace: EventFd,
    raw: Restorer,
    end_keys: Presses,
    signals: Presses,
}

impl Terminal {
    /// Finds the terminal of a program that gets the descriptors `inherited`: that of its standard
    /// output, or else of its standard error or input. It is `shared` if the trace goes to it, too.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn find(inherited: &[Inherited], shared: bool) -> io::Result<Option<Self>> {
        let terminals = || {
            let is_terminal = |i: &&Inherited| matches!(i.kind, Kind::Terminal(_));
            inherited.iter().filter(is_terminal)
        };
        let numbers = [1, 2, 0].into_iter();
        let Some((descriptor, file)) = numbers
            .filter_map(|number| terminals().find(|i| i.number == number))
            .find_map(|i| Some((i, both_ways(i)?)))
        else {
            return Ok(None);
        };
        let first = terminals().find(|i| i.kind == descriptor.kind);
        Ok(Some(Self {
            stream: first.unwrap_or(descriptor).number,
            kind: descriptor.kind,
            file,
            output: descriptor.number,
            shared,
            wanted: None,
            was_read: false,
            pace: EventFd::new(EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
            raw: Restorer::default(),
            end_keys: Presses::default(),
            signals: Presses::default(),
        }))
    }

    /// Whether `descriptor` is this terminal.
    pub fn is(&self, descriptor: &Inherited) -> bool {
        descriptor.kind == self.kind
    }

    /// The number of its stream.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// Whether it is the program's standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        self.output == 1
    }

    /// Where its output goes.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn output(&self) -> io::Result<StreamOutput> {
        Ok(match self.output {
            1 => StreamOutput::Stdout,
            2 => StreamOutput::Stderr,
            _ => StreamOutput::Other(Output::new(self.file()?, "the terminal")),
        })
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
        settings(&self.file, self.host_processes_output())
    }

    /// The present size; `None` if it is not a terminal any more.
    pub fn size(&self) -> Option<WindowSize> {
        size(&self.file).ok()
    }

    /// The host's terminal processes output if that of others is there, too.
    fn host_processes_output(&self) -> bool {
        self.shared || !self.is_stdout()
    }

    /// The mode that the terminal needs now. In a pipeline other programs use it, too (`less`), and
    /// signals are for all of them.
    fn mode(&self) -> Option<Mode> {
        let keys = match self.wanted {
            Some(keys) => keys,
            None if self.is_stdout() || self.was_read => Keys::Waiting,
            None => return None,
        };
        Some(Mode {
            keys,
            signals: !self.is_stdout(),
            processes_output: self.host_processes_output(),
        })
    }

    /// Puts the terminal into the mode that it needs, if `vbts` is not a job in the background:
    /// that leaves the terminal as it is.
    pub fn update(&mut self) {
        let mut raw = lock(&self.raw.0);
        let Some(mode) = self.mode() else {
            return;
        };
        let is_set = raw.as_ref().is_some_and(|raw| raw.mode() == mode);
        if is_set || !in_foreground(&self.file) {
            return;
        }
        // It fails only for a terminal that has ended.
        match &mut *raw {
            Some(raw) => {
                let _ = raw.set(mode);
            }
            None => {
                let fd = self.file.try_clone().map(Into::into);
                *raw = fd.and_then(|fd| RawTerminal::of(fd, mode)).ok();
            }
        }
    }

    /// Notes what the guest wants to read: lines, any keys, or nothing.
    pub fn want(&mut self, wanted: Option<Keys>) {
        self.wanted = wanted;
        self.was_read |= wanted.is_some();
        self.update();
    }

    /// Reads `input`, which is this terminal, unless it cannot be read now.
    pub fn read(&mut self, input: &mut Input, buffer: &mut [u8]) -> ReadOutcome {
        self.update();
        if !self.is_readable() {
            return ReadOutcome::NotReady;
        }
        let codes = lock(&self.raw.0).as_ref().map(RawTerminal::line_codes);
        let (Some(Keys::Lines), Some(codes)) = (self.wanted, codes) else {
            return input.read(buffer);
        };
        let outcome = input.read_to(&codes.ends(), buffer);
        if let ReadOutcome::Bytes(n) = outcome {
            let read = buffer.iter_mut().take(n);
            read.for_each(|byte| *byte = codes.typed(*byte));
        }
        outcome
    }

    /// Whether what is typed is for the guest: a job in the background reads nothing.
    pub fn is_readable(&self) -> bool {
        let raw = lock(&self.raw.0);
        self.wanted.is_some() && raw.as_ref().map(RawTerminal::mode) == self.mode()
    }

    /// What an idle guest waits for before the program reads the terminal. It is never readable,
    /// but lets the guest's time pass with that of the user, who watches the program and may press
    /// Ctrl-C.
    pub(crate) fn pace(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: `pace` keeps the descriptor open as long as `self` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(self.pace.as_raw_fd()) };
        (self.is_stdout() && !self.is_readable()).then_some(fd)
    }

    /// Restores the terminal and stops `vbts` until a shell continues it.
    pub fn suspend(&mut self) {
        self.raw.restore();
        stop();
        self.update();
    }

    /// What restores the terminal after the run.
    pub fn restorer(&self) -> Restorer {
        self.raw.clone()
    }

    /// Looks for the keys that end the run in what was typed. Returns whether it has to end.
    pub(crate) fn take_keys(&mut self, typed: &[u8]) -> bool {
        self.end_keys.take(typed, END_KEY, Instant::now())
    }

    /// Notes a signal of the terminal (Ctrl-C). Returns whether the run has to end: after
    /// three within a second.
    pub(crate) fn take_signal(&mut self) -> bool {
        self.signals.press(Instant::now())
    }
}

/// A descriptor of a terminal for reading and writing; `None` if there is none.
fn both_ways(descriptor: &Inherited) -> Option<File> {
    if descriptor.flags.contains(OFlags::RDWR) {
        return descriptor.file().ok();
    }
    let path = format!("/proc/self/fd/{}", descriptor.number);
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, FileMode::empty()).ok().map(File::from)
}

/// Restores the terminal.
#[derive(Debug, Clone, Default)]
pub struct Restorer(Arc<Mutex<Option<RawTerminal>>>);

impl Restorer {
    /// Restores a terminal that is in raw mode.
    pub fn of(terminal: Option<RawTerminal>) -> Self {
        Self(Arc::new(Mutex::new(terminal)))
    }

    /// Restores the terminal, if it is in raw mode.
    pub fn restore(&self) {
        drop(lock(&self.0).take());
    }
}

/// The times within [`END_TIME`] at which a key was pressed.
#[derive(Debug, Default)]
struct Presses(Vec<Instant>);

impl Presses {
    /// Notes one at `now`. Returns whether there are [`END_COUNT`].
    fn press(&mut self, now: Instant) -> bool {
        self.0
            .retain(|pressed| now.duration_since(*pressed) < END_TIME);
        self.0.push(now);
        self.0.len() >= END_COUNT
    }

    /// Looks for `key` in what was typed. Another key in between begins anew.
    fn take(&mut self, typed: &[u8], key: u8, now: Instant) -> bool {
        for typed in typed {
            if *typed != key {
                self.0.clear();
            } else if self.press(now) {
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
        let mut keys = Presses::default();
        assert!(!keys.take(&[END_KEY, END_KEY, b'x', END_KEY], END_KEY, at(0)));
        assert!(!keys.take(&[END_KEY], END_KEY, at(900)));
        // The first of three is too old.
        assert!(!keys.press(at(1000)));
        assert!(keys.press(at(1500)));
        assert!(Presses::default().take(&[END_KEY; 3], END_KEY, at(0)));
    }
}
