//! The program's terminal: a pseudoterminal whose other side the agent connects to the host.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open};
use vbts_protocol::{Terminal as Settings, WindowSize};

use crate::failure::check;

/// A pseudoterminal.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    /// Kept open, so that the master is not hung up while no process has the terminal open.
    slave: OwnedFd,
}

impl Terminal {
    /// Opens a terminal with these settings that belongs to `owner`.
    pub fn open(settings: &Settings, owner: (Uid, Gid)) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let master = open("/dev/ptmx", flags, Mode::empty())?;
        let unlocked: libc::c_int = 0;
        // SAFETY: TIOCSPTLCK reads an int.
        check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) })?;
        let peer = (libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) as libc::c_long;
        // SAFETY: TIOCGPTPEER takes flags, not a pointer.
        let slave = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, peer) })?;
        // SAFETY: the call has returned a new descriptor.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        fchown(&slave, Some(owner.0), Some(owner.1))?;
        let terminal = Self { master, slave };
        terminal.set_modes(settings)?;
        terminal.resize(settings.size)?;
        Ok(terminal)
    }

    fn set_modes(&self, settings: &Settings) -> io::Result<()> {
        let mut modes = modes(&self.slave)?;
        modes.c_iflag = settings.input_modes;
        modes.c_oflag = settings.output_modes;
        modes.c_cflag = settings.control_modes;
        modes.c_lflag = settings.local_modes;
        for (code, value) in modes.c_cc.iter_mut().zip(&settings.special_codes) {
            *code = *value;
        }
        let slave = self.slave.as_raw_fd();
        // SAFETY: tcsetattr reads a termios.
        check(unsafe { libc::tcsetattr(slave, libc::TCSANOW, &raw const modes) }).map(drop)
    }

    /// Changes the size, of which the kernel tells the foreground process group.
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        let size = libc::winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: size.x_pixels,
            ws_ypixel: size.y_pixels,
        };
        // SAFETY: TIOCSWINSZ reads a winsize.
        check(unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })
            .map(drop)
    }

    /// Sends a signal to the foreground process group: types its key, which is shown then, if there
    /// is one.
    pub fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        if let Some(key) = self.key(signal)? {
            return Ok(rustix::io::write(&self.master, &[key]).map(drop)?);
        }
        const TIOCSIG: libc::Ioctl = 0x4004_5436;
        // SAFETY: TIOCSIG takes the number of a signal, not a pointer.
        check(unsafe { libc::ioctl(self.master.as_raw_fd(), TIOCSIG, libc::c_long::from(signal)) })
            .map(drop)
    }

    /// The key that sends a signal now.
    fn key(&self, signal: libc::c_int) -> io::Result<Option<u8>> {
        let code = match signal {
            libc::SIGINT => libc::VINTR,
            libc::SIGQUIT => libc::VQUIT,
            libc::SIGTSTP => libc::VSUSP,
            _ => return Ok(None),
        };
        let modes = modes(&self.slave)?;
        let key = modes.c_cc.get(code).copied();
        Ok(key.filter(|key| modes.c_lflag & libc::ISIG != 0 && *key != 0))
    }

    /// The side that the program has open.
    pub fn program_side(&self) -> io::Result<OwnedFd> {
        self.slave.as_fd().try_clone_to_owned()
    }

    /// The side that has what the program writes, and takes what it reads.
    pub fn agent_side(&self) -> io::Result<OwnedFd> {
        self.master.as_fd().try_clone_to_owned()
    }
}

/// The modes of the program's side of a terminal, one of whose sides is `terminal`.
pub fn modes(terminal: &OwnedFd) -> io::Result<libc::termios> {
    // SAFETY: all-zero is a valid termios, and the call writes one.
    unsafe {
        let mut modes: libc::termios = std::mem::zeroed();
        check(libc::tcgetattr(terminal.as_raw_fd(), &raw mut modes))?;
        Ok(modes)
    }
}

/// Makes the terminal `fd` the controlling terminal of the session that this process leads.
pub fn control(fd: RawFd) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number, not a pointer.
    check(unsafe { libc::ioctl(fd, libc::TIOCSCTTY, 0) }).map(drop)
}
