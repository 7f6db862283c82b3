//! A TAP device of the host: an Ethernet between the host's kernel and the guest.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use thiserror::Error;

/// The device file of all TAP devices.
pub const DEVICE: &str = "/dev/net/tun";

/// Room for a name and its terminating zero (IFNAMSIZ).
const NAME_SIZE: usize = 16;
/// `_IOW('T', 202, int)`, whose argument is a `struct ifreq` nevertheless.
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
/// Ethernet frames without a header of the host.
const IFF_TAP_NO_PI: i16 = 0x0002 | 0x1000;

/// `struct ifreq`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_SIZE],
    flags: i16,
    rest: [u8; 22],
}

/// Why a TAP device cannot be opened.
#[derive(Debug, Error)]
pub enum TapError {
    /// The host has no TAP devices, or the user has no access to them.
    #[error("{DEVICE} cannot be opened: {0}")]
    Unsupported(io::Error),
    /// No network device can have this name.
    #[error("{0:?} is no name of a network device")]
    Name(String),
    /// There is no network device of this name.
    #[error("there is no network device {0}: `ip tuntap add dev {0} mode tap user $USER` makes it")]
    Missing(String),
    /// It is another kind of network device.
    #[error("{0} is no TAP device, or one with several queues")]
    Kind(String),
    /// Another program has opened it.
    #[error("another program is using {0}")]
    Busy(String),
    /// It belongs to another user.
    #[error("{0} belongs to another user")]
    Permission(String),
    /// Another error of the host.
    #[error(transparent)]
    Other(#[from] io::Error),
}

/// An open TAP device. No other process can open it meanwhile.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    gone: bool,
}

impl Tap {
    /// Opens the TAP device `name`. It has to exist: its creator decides what it is connected to.
    ///
    /// # Errors
    /// It does not exist, is not a TAP device, or this process may not use it.
    pub fn open(name: &str) -> Result<Self, TapError> {
        Self::open_at(Path::new(DEVICE), name)
    }

    fn open_at(device: &Path, name: &str) -> Result<Self, TapError> {
        let mut request = InterfaceRequest {
            name: [0; NAME_SIZE],
            flags: IFF_TAP_NO_PI,
            rest: [0; 22],
        };
        // The kernel would replace %d in a name.
        let possible = !name.is_empty()
            && name.len() < NAME_SIZE
            && name
                .bytes()
                .all(|b| b.is_ascii_graphic() && b != b'/' && b != b'%');
        if !possible {
            return Err(TapError::Name(name.into()));
        }
        for (to, from) in request.name.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let fd: OwnedFd = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(device)
            .map_err(TapError::Unsupported)?
            .into();
        // TUNSETIFF would create a missing device.
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(io::Error::from)?;
        match name_to_index(&socket, name) {
            Ok(_) => {}
            Err(Errno::NODEV) => return Err(TapError::Missing(name.into())),
            Err(error) => return Err(TapError::Other(error.into())),
        }
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which `request` is.
        let attached = unsafe { ioctl(&fd, Updater::<TUNSETIFF, _>::new(&mut request)) };
        match attached {
            Ok(()) => Ok(Self::from_fd(fd)),
            Err(Errno::BUSY) => Err(TapError::Busy(name.into())),
            Err(Errno::PERM) => Err(TapError::Permission(name.into())),
            Err(Errno::INVAL) => Err(TapError::Kind(name.into())),
            Err(error) => Err(TapError::Other(error.into())),
        }
    }

    /// Uses an open TAP device, or another file that transfers whole frames and does not block.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, gone: false }
    }

    /// The file descriptor, which is readable when [`receive`](Self::receive) has a frame.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the device has been deleted, so that no frame will arrive.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Sends a frame. A frame that the host does not accept is lost, as on any Ethernet.
    pub fn send(&self, frame: &[u8]) {
        let _ = rustix::io::write(&self.fd, frame);
    }

    /// Copies the next frame, if there is one, to `buffer`, and returns its length. Bytes for which
    /// there is no room are lost.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(n @ 1..) => Some(n),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Ok(0) | Err(_) => {
                self.gone = true;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn impossible_names_are_refused() {
        for name in ["", "sixteen-letters.", "a b", "a/b", "tap%d", "t\0p", "täp"] {
            let error = Tap::open(name).unwrap_err();
            assert!(matches!(error, TapError::Name(_)), "{name}: {error}");
        }
    }

    #[test]
    fn a_host_without_tap_devices_is_reported() {
        for path in ["/nonexistent", "/"] {
            let error = Tap::open_at(Path::new(path), "tap0").unwrap_err();
            assert!(matches!(error, TapError::Unsupported(_)), "{error}");
        }
    }

    #[test]
    fn other_devices_are_refused() {
        let Err(error) = Tap::open("vbts-none") else {
            panic!("there is one");
        };
        // Without access to /dev/net/tun, that is the error.
        assert!(
            matches!(error, TapError::Missing(_) | TapError::Unsupported(_)),
            "{error}"
        );
        let error = Tap::open("lo").unwrap_err();
        assert!(
            matches!(
                error,
                TapError::Kind(_) | TapError::Permission(_) | TapError::Unsupported(_)
            ),
            "{error}"
        );
    }

    #[test]
    fn frames_stay_apart_until_the_other_end_goes() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut tap = Tap::from_fd(ours.into());
        let mut buffer = [0; 4];
        assert_eq!(tap.receive(&mut buffer), None);
        theirs.send(b"abc").unwrap();
        theirs.send(b"defghi").unwrap();
        assert_eq!(tap.receive(&mut buffer), Some(3));
        assert_eq!(tap.receive(&mut buffer), Some(4));
        assert_eq!(&buffer, b"defg");
        assert_eq!(tap.receive(&mut buffer), None);
        tap.send(b"xyz");
        assert_eq!(theirs.recv(&mut buffer).unwrap(), 3);
        assert!(!tap.is_gone());
        // A frame without a receiver is lost.
        drop(theirs);
        tap.send(b"xyz");
        let mut null = Tap::from_fd(std::fs::File::open("/dev/null").unwrap().into());
        assert_eq!(null.receive(&mut buffer), None);
        assert!(null.is_gone());
    }
}
