//! A network device of the guest, and the TAP device of the host that it is connected to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use vbts_devices::tap::Tap;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::virtio::net::{MacAddress, Net};
use vbts_devices::{Shared, lock};

use crate::board::{Board, BoardError};

/// One network.
#[derive(Debug)]
pub struct Network {
    device: Shared<MmioTransport<Net>>,
    /// The device's TAP device, to wait for without the device's lock.
    tap: OwnedFd,
}

impl Network {
    /// Connects a device with this address, on `board`, to `tap`.
    ///
    /// # Errors
    /// There is no room on the board, or the host is out of file descriptors.
    pub fn attach(board: &mut Board, tap: Tap, address: MacAddress) -> Result<Self, NetworkError> {
        let fd = tap.fd().try_clone_to_owned()?;
        let device = board.add_network(Net::new(tap, address))?;
        Ok(Self { device, tap: fd })
    }

    /// Hands the guest what has come for it.
    pub fn poll(&self, board: &Board) {
        let effects = lock(&self.device).poll();
        board.apply(effects);
    }

    /// What becomes readable when there is something to hand over, if the guest could take it.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        lock(&self.device).awaits_frames().then(|| self.tap.as_fd())
    }
}

/// Why a network cannot be connected.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No room.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// Out of file descriptors.
    #[error(transparent)]
    Host(#[from] io::Error),
}
