//! The 9P transport device (Linux: drivers of type 9; `mount -t 9p -o trans=virtio TAG DIR`).

use std::fmt;
use std::path::Path;

use super::VirtioDevice;
use super::queue::{QueueError, VirtQueue};
use crate::GuestRam;
use crate::ninep::{Access, MAX_MSIZE, Server};

const DEVICE_ID: u32 = 9;
const F_MOUNT_TAG: u64 = 1 << 0;
/// What Linux's driver uses.
const QUEUE_SIZE: u16 = 128;

/// A host directory that the guest mounts by its tag.
pub struct Fs9p {
    config: Vec<u8>,
    server: Server,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Fs9p {
    /// Exports `root` under `tag`.
    ///
    /// # Errors
    /// `root` cannot be opened or is not a directory, or the tag is longer than 65535 bytes.
    pub fn new(tag: &str, root: &Path, access: Access) -> std::io::Result<Self> {
        let len = u16::try_from(tag.len()).map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "Tag is too long")
        })?;
        let mut config = len.to_le_bytes().to_vec();
        config.extend(tag.bytes());
        let server = Server::new(root, access)?;
        Ok(Self {
            config,
            server,
            request: Vec::new(),
            reply: Vec::new(),
        })
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
