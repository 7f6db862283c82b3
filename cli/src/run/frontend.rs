//! The console of a guest on standard input and output, and its networks.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use signal_hook::consts::SIGTERM;

use vbts_capture::machine::Recording;
use vbts_host::exit::Failure;
use vbts_host::input::ReadOutcome;
use vbts_host::{Event, Input};
use vbts_vmm::board::Board;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::RunObserver;
use vbts_vmm::network::Network;

/// Ctrl-A: the next key is a command to vbts.
const ESCAPE: u8 = 0x01;
/// Command after [`ESCAPE`]: ends the guest.
const QUIT: u8 = b'x';
/// Command after [`ESCAPE`]: sends Ctrl-A to the guest, as a second Ctrl-A does.
const SEND: u8 = b'a';
/// Maximum number of bytes that are read from standard input at a time.
const PIECE: usize = 4096;
/// Interval in virtual time, in ns, at which input that was not available and frames from networks
/// are read.
const INPUT_CHECK_INTERVAL: u64 = 1_000_000;

/// Connects the guest's serial console to standard input, and its networks to TAP devices.
#[derive(Debug)]
pub(super) struct ConsoleFrontend {
    /// Receives the branches of the processors.
    pub recording: Option<Recording>,
    /// The guest's networks.
    pub networks: Vec<Network>,
    /// Records what is typed.
    pub log: Inputs,
    next_poll: u64,
    input: Input,
    /// Ctrl-A is a command to vbts: standard input is a terminal.
    interactive: bool,
    escaped: bool,
    /// Input for which the serial port had no room yet.
    pending: VecDeque<u8>,
    /// The guest has read all input and its receiver is on.
    wanted: bool,
    next_check: u64,
    button_pressed: bool,
}

impl ConsoleFrontend {
    /// A console whose input is `input`, a terminal if `interactive`.
    pub(super) fn new(input: Input, interactive: bool) -> Self {
        Self {
            recording: None,
            networks: Vec::new(),
            log: Inputs::default(),
            next_poll: 0,
            input,
            interactive,
            escaped: false,
            pending: VecDeque::new(),
            wanted: false,
            next_check: 0,
            button_pressed: false,
        }
    }

    /// Queues input for the guest, except Ctrl-A and the command after it.
    fn type_in(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for &byte in bytes {
            match byte {
                QUIT if self.escaped => return Err(Failure::Quit),
                SEND if self.escaped => self.pending.push_back(ESCAPE),
                ESCAPE if self.interactive && !self.escaped => {
                    self.escaped = true;
                    continue;
                }
                byte => self.pending.push_back(byte),
            }
            self.escaped = false;
        }
        Ok(())
    }
}

impl RunObserver for ConsoleFrontend {
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        if let Some(recording) = &self.recording {
            recording.check()?;
        }
        let wanted = board.serial_wants_input();
        let due = !self.wanted || now >= self.next_check;
        self.wanted = wanted;
        if wanted && due && self.pending.is_empty() {
            self.next_check = now.saturating_add(INPUT_CHECK_INTERVAL);
            let mut bytes = [0; PIECE];
            if let ReadOutcome::Bytes(n) = self.input.read(&mut bytes) {
                self.type_in(bytes.get(..n).unwrap_or_default())?;
            }
        }
        if wanted && !self.pending.is_empty() {
            let bytes = self.pending.make_contiguous();
            let taken = board.push_serial_input(bytes);
            if taken > 0 {
                self.log
                    .record_input(bytes.get(..taken).unwrap_or_default());
            }
            self.pending.drain(..taken);
        }
        if !self.networks.is_empty() && now >= self.next_poll {
            self.next_poll = now.saturating_add(INPUT_CHECK_INTERVAL);
            self.networks.iter().for_each(|network| network.poll(board));
        }
        Ok(())
    }

    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure> {
        match event {
            // The first SIGTERM lets the guest shut itself down. The second one ends it, and the
            // first one does if the run is recorded: a recording has no power button.
            Event::Signal(SIGTERM)
                if !self.log.is_logged() && !self.button_pressed && board.press_power_button() =>
            {
                self.button_pressed = true;
                Ok(())
            }
            Event::Signal(signal) => Err(Failure::Signal(signal)),
            Event::Timeout => Ok(()),
        }
    }

    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        let input = (self.wanted && self.input.is_open()).then(|| self.input.fd());
        let frames = self.networks.iter().filter_map(Network::awaited);
        input.into_iter().chain(frames).collect()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.next_check = 0;
        self.next_poll = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn frontend(interactive: bool) -> ConsoleFrontend {
        ConsoleFrontend::new(Input::new(File::open("/dev/null").unwrap()), interactive)
    }

    #[test]
    fn control_a_x_ends_the_guest() {
        let mut o = frontend(true);
        o.type_in(b"ab\x01").unwrap();
        assert!(matches!(o.type_in(b"x"), Err(Failure::Quit)));
        assert_eq!(o.pending, b"ab");
    }

    #[test]
    fn control_a_twice_sends_one_to_the_guest() {
        let mut o = frontend(true);
        o.type_in(b"\x01\x01x\x01ab\x01b").unwrap();
        assert_eq!(o.pending, b"\x01x\x01bb");
    }

    #[test]
    fn a_file_is_passed_unchanged() {
        let mut o = frontend(false);
        o.type_in(b"\x01x").unwrap();
        assert_eq!(o.pending, b"\x01x");
    }
}
