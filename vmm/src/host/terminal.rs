//! Terminals of the host: raw mode, settings and size.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::getpgrp;
use rustix::termios::SpecialCodeIndex as Code;
use rustix::termios::{
    OptionalActions, OutputModes, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};
use vbts_protocol::WindowSize;

/// The special characters, in the order of the kernel's numbers (Linux:
/// include/uapi/asm-generic/termbits.h).
const CODES: [Code; 17] = [
    Code::VINTR,
    Code::VQUIT,
    Code::VERASE,
    Code::VKILL,
    Code::VEOF,
    Code::VTIME,
    Code::VMIN,
    Code::VSWTC,
    Code::VSTART,
    Code::VSTOP,
    Code::VSUSP,
    Code::VEOL,
    Code::VREPRINT,
    Code::VDISCARD,
    Code::VWERASE,
    Code::VLNEXT,
    Code::VEOL2,
];

/// Keeps a terminal in raw mode, so that every key goes to the guest. Dropping it restores the
/// terminal.
#[derive(Debug)]
pub struct RawTerminal {
    fd: OwnedFd,
    before: Termios,
}

impl RawTerminal {
    /// Puts standard input into raw mode, if it is a terminal.
    ///
    /// # Errors
    /// The terminal rejects the mode.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        Self::of(stdin.as_fd().try_clone_to_owned()?, false).map(Some)
    }

    /// Puts the terminal `fd` into raw mode. If it `processes_output`, it goes on to do so: each
    /// line feed then returns to the first column.
    ///
    /// # Errors
    /// The terminal rejects the mode.
    pub fn of(fd: OwnedFd, processes_output: bool) -> io::Result<Self> {
        let before = tcgetattr(&fd)?;
        let mut raw = before.clone();
        raw.make_raw();
        if processes_output {
            raw.output_modes = before.output_modes;
        }
        tcsetattr(&fd, OptionalActions::Drain, &raw)?;
        Ok(Self { fd, before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.fd, OptionalActions::Drain, &self.before);
    }
}

/// The settings of a terminal, for one of the guest. If it `processes_output`, the guest's does
/// not.
///
/// # Errors
/// It is not a terminal.
pub fn settings(terminal: &File, processes_output: bool) -> io::Result<vbts_protocol::Terminal> {
    let mut modes = tcgetattr(terminal)?;
    if processes_output {
        modes.output_modes.remove(OutputModes::OPOST);
    }
    let codes = CODES.map(|code| modes.special_codes[code]);
    Ok(vbts_protocol::Terminal {
        size: size(terminal)?,
        input_modes: modes.input_modes.bits(),
        output_modes: modes.output_modes.bits(),
        control_modes: modes.control_modes.bits(),
        local_modes: modes.local_modes.bits(),
        special_codes: codes.to_vec(),
    })
}

/// The size of a terminal.
///
/// # Errors
/// It is not a terminal.
pub fn size(terminal: &File) -> io::Result<WindowSize> {
    let size = tcgetwinsize(terminal)?;
    Ok(WindowSize {
        rows: size.ws_row,
        columns: size.ws_col,
        x_pixels: size.ws_xpixel,
        y_pixels: size.ws_ypixel,
    })
}

/// Whether this process may use a terminal now: it is not a job in the background.
pub fn in_foreground(terminal: impl AsFd) -> bool {
    // A terminal that does not control this process's session has no background jobs of it.
    tcgetpgrp(terminal).map_or(true, |group| group == getpgrp())
}
