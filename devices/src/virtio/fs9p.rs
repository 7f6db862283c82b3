//! The 9P transport device (Linux: drivers of type 9; `mount -t 9p -o trans=virtio TAG DIR`).

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::queue::{QueueError, VirtQueue};
use super::{DeviceState, VirtioDevice};
use crate::ninep::{Access, MAX_MSIZE, Server, ServerState, Service};
use crate::{GuestRam, StateError};

const DEVICE_ID: u32 = 9;
const F_MOUNT_TAG: u64 = 1 << 0;
/// The size that Linux's driver uses.
const QUEUE_SIZE: u16 = 128;

/// State of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fs9pState {
    server: ServerState,
}

/// Files of the host that the guest mounts by a tag.
pub struct Fs9p {
    config: Vec<u8>,
    server: Box<dyn Service>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Fs9p {
    /// Exports `root` under `tag`.
    ///
    /// # Errors
    /// `root` cannot be opened or is not a directory, or the tag is longer than 65535 bytes.
    pub fn new(tag: &str, root: &Path, access: Access) -> std::io::Result<Self> {
        Self::with_service(tag, Box::new(Server::new(root, access)?))
    }

    /// Exports what `server` serves under `tag`.
    ///
    /// # Errors
    /// The tag is longer than 65535 bytes.
    pub fn with_service(tag: &str, server: Box<dyn Service>) -> std::io::Result<Self> {
        let len = u16::try_from(tag.len()).map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "Tag is too long")
        })?;
        let mut config = len.to_le_bytes().to_vec();
        config.extend(tag.bytes());
        Ok(Self {
            config,
            server,
            request: Vec::new(),
            reply: Vec::new(),
        })
    }

    /// The device as messages name it.
    fn name(&self) -> String {
        let tag = self.config.get(2..).unwrap_or_default();
        format!("the 9P share {}", String::from_utf8_lossy(tag))
    }
}

impl VirtioDevice for Fs9p {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn features(&self) -> u64 {
        F_MOUNT_TAG
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn advance_to(&mut self, now: u64) {
        self.server.advance_to(now);
    }

    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError> {
        let Some(queue) = queues.first_mut() else {
            return Ok(());
        };
        queue.serve(ram, |chain| {
            self.request
                .resize(chain.readable_len().min(MAX_MSIZE as usize), 0);
            let len = chain.read(ram, 0, &mut self.request)?;
            self.request.truncate(len);
            self.server.handle(&self.request, &mut self.reply);
            chain.write(ram, 0, &self.reply)
        })
    }

    fn state(&self) -> Result<DeviceState, StateError> {
        let server = self.server.state();
        let server = server.map_err(|reason| StateError::save(self.name(), reason))?;
        Ok(DeviceState::Fs9p(Fs9pState { server }))
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), StateError> {
        let DeviceState::Fs9p(Fs9pState { server }) = state else {
            return Err(state.mismatch(&self.name()));
        };
        let name = self.name();
        let restored = self.server.restore(server);
        restored.map_err(|reason| StateError::restore(name, reason))
    }

    fn reset(&mut self) {
        self.server.reset();
    }
}

impl fmt::Debug for Fs9p {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs9p")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
