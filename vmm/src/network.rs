//! A network device of the guest, connected to a TAP device of the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use vbts_devices::tap::Tap;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::virtio::net::{MacAddress, Net};
use vbts_devices::{Shared, lock};

use crate::board::{Board, BoardError};

/// A network device and its TAP device.
#[derive(Debug)]
pub struct Network {
    device: Shared<MmioTransport<Net>>,
    /// A copy of the TAP device's descriptor, to wait for it without the device's lock.
    tap: OwnedFd,
}

impl Network {
    /// Adds a network device with the station address `address` to `board` and connects it to
    /// `tap`.
    ///
    /// # Errors
    /// The board has no room, or the host has no more file descriptors.
    pub fn attach(board: &mut Board, tap: Tap, address: MacAddress) -> Result<Self, NetworkError> {
        let fd = tap.fd().try_clone_to_owned()?;
        let device = board.add_network(Net::new(tap, address))?;
        Ok(Self { device, tap: fd })
    }

    /// Moves frames from the TAP device to the guest.
    pub fn poll(&self, board: &Board) {
        let effects = lock(&self.device).poll();
        board.apply(effects);
    }

    /// A descriptor that becomes readable when the TAP device has a frame; `None` if the guest has
    /// no buffer for one.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        lock(&self.device).awaits_frames().then(|| self.tap.as_fd())
    }
}

/// Why a network cannot be connected.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The board has no room.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// The host has no more file descriptors.
    #[error(transparent)]
    Host(#[from] io::Error),
}
