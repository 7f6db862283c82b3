//! Terminals of the host: raw mode, settings and size.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::SpecialCodeIndex as Code;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, Termios, tcgetattr, tcgetwinsize,
    tcsetattr,
};
use vbts_protocol::WindowSize;

use super::process_group::{foreground_group, group};

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

/// What a terminal of the host does with the keys while a guest uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// They wait for a program that reads them, and are not shown until then. Some are signals,
    /// such as Ctrl-C.
    Waiting,
    /// They go to the guest, which makes lines of them.
    Lines,
    /// They go to the guest.
    All,
}

/// The mode of a terminal of the host while a guest uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// What it does with the keys.
    pub keys: Keys,
    /// Keys that are signals never go to the guest.
    pub signals: bool,
    /// It goes on to process output: each line feed then returns to the first column.
    pub processes_output: bool,
}

impl Mode {
    /// The settings of this mode for a terminal that had the settings `before`.
    fn settings(self, before: &Termios) -> Termios {
        let mut settings = before.clone();
        match self.keys {
            Keys::Waiting => settings.local_modes.remove(LocalModes::ECHO),
            Keys::Lines | Keys::All => settings.make_raw(),
        }
        if self.keys == Keys::Lines {
            // What is not read may be for a reader of lines on the host.
            let ends = InputModes::ICRNL | InputModes::INLCR | InputModes::IGNCR;
            settings.input_modes |= before.input_modes & ends;
        }
        if self.signals {
            settings.local_modes |= before.local_modes & LocalModes::ISIG;
        }
        settings.output_modes = before.output_modes;
        if !self.processes_output {
            settings.output_modes.remove(OutputModes::OPOST);
        }
        settings
    }
}

/// The characters that end a terminal's lines.
#[derive(Debug, Clone, Copy)]
pub struct LineCodes {
    /// Ends a line without being a part of it, or the input: Ctrl-D.
    eof: u8,
}

impl LineCodes {
    /// What a terminal in raw mode has at the end of a line that was typed before.
    const TYPED_EOF: u8 = 0;

    /// The characters after which a line is whole.
    pub fn ends(self) -> [u8; 4] {
        [b'\n', b'\r', self.eof, Self::TYPED_EOF]
    }

    /// What was typed, if a terminal in raw mode gives `byte`.
    pub fn typed(self, byte: u8) -> u8 {
        match byte {
            Self::TYPED_EOF => self.eof,
            byte => byte,
        }
    }
}

/// Keeps a terminal in a mode for a guest. Dropping it restores the terminal.
#[derive(Debug)]
pub struct RawTerminal {
    fd: OwnedFd,
    before: Termios,
    mode: Mode,
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
        let mode = Mode {
            keys: Keys::All,
            signals: false,
            processes_output: false,
        };
        Self::of(stdin.as_fd().try_clone_to_owned()?, mode).map(Some)
    }

    /// Puts the terminal `fd` into a mode.
    ///
    /// # Errors
    /// The terminal rejects the mode.
    pub fn of(fd: OwnedFd, mode: Mode) -> io::Result<Self> {
        let before = tcgetattr(&fd)?;
        let terminal = Self { fd, before, mode };
        terminal.apply(mode)?;
        Ok(terminal)
    }

    /// The characters that end its lines.
    pub fn line_codes(&self) -> LineCodes {
        LineCodes {
            eof: self.before.special_codes[Code::VEOF],
        }
    }

    /// Its mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Puts it into another mode.
    ///
    /// # Errors
    /// The terminal rejects the mode.
    pub fn set(&mut self, mode: Mode) -> io::Result<()> {
        self.apply(mode)?;
        self.mode = mode;
        Ok(())
    }

    fn apply(&self, mode: Mode) -> io::Result<()> {
        let settings = mode.settings(&self.before);
        Ok(tcsetattr(&self.fd, OptionalActions::Drain, &settings)?)
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

/// Stops this process as Ctrl-Z does if SIGTSTP has no handler, until a shell continues it. It has
/// no effect if no shell can do so: if the process group is orphaned.
pub fn stop() {
    // SAFETY: the calls read and write signal actions on the stack, and all-zero is the default
    // action. A SIGTSTP of the terminal meanwhile has the same effect.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let mut handler = default;
        if libc::sigaction(libc::SIGTSTP, &raw const default, &raw mut handler) == 0 {
            libc::raise(libc::SIGTSTP);
            libc::sigaction(libc::SIGTSTP, &raw const handler, std::ptr::null_mut());
        }
    }
}

/// Whether this process may use a terminal now: it is not a job in the background.
pub fn in_foreground(terminal: impl AsFd) -> bool {
    // A terminal that does not control this process's session has no background jobs of it.
    foreground_group(terminal).is_none_or(|foreground| foreground == group())
}
