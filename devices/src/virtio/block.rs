//! The block device (Virtual I/O Device 1.2, section 5.2; Linux: `/dev/vda` and on).
//!
//! A request is complete before the driver's notification returns. So it takes no time on the
//! guest's clock, and the order of all events is the same on every run. Between two notifications
//! the device has no request in flight, and no state apart from the negotiated features: the
//! contents of the disk stay on the host and are not part of a saved state.

use std::fmt;
use std::io;

use super::VirtioDevice;
use super::queue::{Chain, QueueError, VirtQueue};
use crate::GuestRam;
use crate::disk::{Disk, SECTOR};

const DEVICE_ID: u32 = 2;
const QUEUE_SIZE: u16 = 128;

/// Feature bits (section 5.2.3).
mod feature {
    pub(super) const SIZE_MAX: u64 = 1 << 1;
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const RO: u64 = 1 << 5;
    pub(super) const BLK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Request types and statuses (section 5.2.6).
mod request {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;

    pub(super) const OK: u8 = 0;
    pub(super) const IOERR: u8 = 1;
    pub(super) const UNSUPP: u8 = 2;
}

/// `struct virtio_blk_req` before its data: type, reserved, sector.
const HEADER: usize = 16;
/// `struct virtio_blk_discard_write_zeroes`: sector, number of sectors, flags.
const RANGE: usize = 16;
/// Its only flag.
const UNMAP: u32 = 1 << 0;
/// Length of the identification string.
const ID: usize = 20;

/// Most segments of a request, and most bytes of a segment. With the header and the status they are
/// less than the longest chain that a queue accepts.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
const SIZE_MAX: u32 = 32 * 1024;
/// Longest range to discard, and to write zeros to. The time limit cannot interrupt the host's file
/// system, which frees the pages and blocks of a range one by one, or writes its zeros.
const MAX_DISCARD_SECTORS: u32 = 1 << 16;
const MAX_ZERO_SECTORS: u32 = 1 << 11;
/// Most ranges in a request.
const MAX_DISCARD_RANGES: u32 = 2;
const MAX_ZERO_RANGES: u32 = 1;

/// Data is moved in pieces of this size.
const PIECE: usize = 64 * 1024;

/// A disk of the host.
pub struct Block {
    disk: Disk,
    id: [u8; ID],
    config: Vec<u8>,
    /// The driver does not flush, so its writes have to reach the host's disk at once (section
    /// 5.2.6.2). Follows from the negotiated features.
    write_through: bool,
    piece: Vec<u8>,
}

impl Block {
    /// A device for `disk`. The guest can identify it by the first 20 bytes of `id`.
    pub fn new(disk: Disk, id: &str) -> Self {
        let mut bytes = [0; ID];
        for (to, from) in bytes.iter_mut().zip(id.bytes()) {
            *to = from;
        }
        Self {
            config: config(disk.sectors()),
            disk,
            id: bytes,
            write_through: false,
            piece: vec![0; PIECE],
        }
    }

    /// Serves a request. Returns how many bytes were written to the chain's writable part.
    fn serve(&mut self, chain: &Chain, ram: &GuestRam) -> Result<usize, QueueError> {
        // The status is the last byte. Without room for it there is no answer.
        let Some(room) = chain.writable_len().checked_sub(1) else {
            return Ok(0);
        };
        let mut header = [0; HEADER];
        let complete = chain.read(ram, 0, &mut header)? == HEADER;
        let mut moved = 0;
        let done = if complete {
            self.execute(&header, chain, ram, room, &mut moved)?
        } else {
            Err(request::IOERR)
        };
        let status = done.err().unwrap_or(request::OK);
        let written = chain.write(ram, room, &[status])?;
        // The status counts only if every byte before it was written.
        Ok(if moved == room { room + written } else { moved })
    }

    /// Executes the request in `header`. The inner error is the status. `moved` becomes the number
    /// of bytes in the writable part.
    fn execute(
        &mut self,
        header: &[u8; HEADER],
        chain: &Chain,
        ram: &GuestRam,
        room: usize,
        moved: &mut usize,
    ) -> Result<Result<(), u8>, QueueError> {
        let kind = u32_at(header, 0);
        let sector = u64_at(header, 8);
        let data = chain.readable_len().saturating_sub(HEADER);
        match kind {
            request::IN => self.read(chain, ram, sector, room, moved),
            request::OUT => self.write(chain, ram, sector, data),
            request::FLUSH => Ok(status(self.disk.flush())),
            request::GET_ID => {
                *moved = chain.write(ram, 0, self.id.get(..room.min(ID)).unwrap_or_default())?;
                Ok(Ok(()))
            }
            request::DISCARD | request::WRITE_ZEROES => self.ranges(chain, ram, kind, data),
            _ => Ok(Err(request::UNSUPP)),
        }
    }

    fn read(
        &mut self,
        chain: &Chain,
        ram: &GuestRam,
        sector: u64,
        room: usize,
        moved: &mut usize,
    ) -> Result<Result<(), u8>, QueueError> {
        let Some(start) = self.disk.locate(sector, room as u64) else {
            return Ok(Err(request::IOERR));
        };
        while *moved < room {
            let piece = room.min(*moved + PIECE) - *moved;
            let piece = self.piece.get_mut(..piece).unwrap_or_default();
            if let Err(error) = status(self.disk.read(start + *moved as u64, piece)) {
                return Ok(Err(error));
            }
            let written = chain.write(ram, *moved, piece)?;
            if written == 0 {
                return Ok(Err(request::IOERR));
            }
            *moved += written;
        }
        Ok(Ok(()))
    }

    fn write(
        &mut self,
        chain: &Chain,
        ram: &GuestRam,
        sector: u64,
        len: usize,
    ) -> Result<Result<(), u8>, QueueError> {
        let Some(start) = self.disk.locate(sector, len as u64) else {
            return Ok(Err(request::IOERR));
        };
        if !self.disk.is_writable() {
            return Ok(Err(request::IOERR));
        }
        let mut done = 0;
        while done < len {
            let n = chain.read(ram, HEADER + done, &mut self.piece)?;
            let piece = self.piece.get(..n.min(len - done)).unwrap_or_default();
            if piece.is_empty() {
                return Ok(Err(request::IOERR));
            }
            if let Err(error) = status(self.disk.write(start + done as u64, piece)) {
                return Ok(Err(error));
            }
            done += piece.len();
        }
        Ok(self.settle())
    }

    /// Discards the ranges in the request, or writes zeros to them.
    fn ranges(
        &mut self,
        chain: &Chain,
        ram: &GuestRam,
        kind: u32,
        len: usize,
    ) -> Result<Result<(), u8>, QueueError> {
        let zeros = kind == request::WRITE_ZEROES;
        let (most, longest) = if zeros {
            (MAX_ZERO_RANGES, MAX_ZERO_SECTORS)
        } else {
            (MAX_DISCARD_RANGES, MAX_DISCARD_SECTORS)
        };
        if !self.disk.is_writable()
            || len == 0
            || !len.is_multiple_of(RANGE)
            || len / RANGE > most as usize
        {
            return Ok(Err(request::IOERR));
        }
        for n in 0..len / RANGE {
            let mut range = [0; RANGE];
            chain.read(ram, HEADER + n * RANGE, &mut range)?;
            let (sectors, flags) = (u32_at(&range, 8), u32_at(&range, 12));
            let known = if zeros { UNMAP } else { 0 };
            if flags & !known != 0 {
                return Ok(Err(request::UNSUPP));
            }
            let bytes = u64::from(sectors) * SECTOR;
            let Some(offset) = self
                .disk
                .locate(u64_at(&range, 0), bytes)
                .filter(|_| sectors <= longest)
            else {
                return Ok(Err(request::IOERR));
            };
            let done = if zeros {
                self.disk.write_zeros(offset, bytes, flags & UNMAP != 0)
            } else {
                self.disk.discard(offset, bytes)
            };
            if let Err(error) = status(done) {
                return Ok(Err(error));
            }
        }
        Ok(self.settle())
    }

    /// Flushes the disk if the driver relies on it.
    fn settle(&self) -> Result<(), u8> {
        if self.write_through {
            status(self.disk.flush())
        } else {
            Ok(())
        }
    }
}

impl VirtioDevice for Block {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn features(&self) -> u64 {
        let common = feature::SIZE_MAX | feature::SEG_MAX | feature::BLK_SIZE | feature::FLUSH;
        common
            | if self.disk.is_writable() {
                feature::DISCARD | feature::WRITE_ZEROES
            } else {
                feature::RO
            }
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
        queue.serve(ram, |chain| self.serve(chain, ram))
    }

    fn start(&mut self, features: u64) {
        self.write_through = features & feature::FLUSH == 0;
    }

    fn reset(&mut self) {}
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("disk", &self.disk)
            .field("id", &self.id.escape_ascii().to_string())
            .finish_non_exhaustive()
    }
}

/// `struct virtio_blk_config` (section 5.2.4).
fn config(sectors: u64) -> Vec<u8> {
    let mut config = Vec::new();
    config.extend(sectors.to_le_bytes()); // capacity
    config.extend(SIZE_MAX.to_le_bytes());
    config.extend(SEG_MAX.to_le_bytes());
    config.extend([0; 4]); // geometry
    config.extend((SECTOR as u32).to_le_bytes()); // blk_size
    config.extend([0; 8]); // topology
    config.extend([0; 4]); // writeback, unused, num_queues
    config.extend(MAX_DISCARD_SECTORS.to_le_bytes());
    config.extend(MAX_DISCARD_RANGES.to_le_bytes());
    config.extend(1u32.to_le_bytes()); // discard_sector_alignment
    config.extend(MAX_ZERO_SECTORS.to_le_bytes());
    config.extend(MAX_ZERO_RANGES.to_le_bytes());
    config.extend([1, 0, 0, 0]); // write_zeroes_may_unmap, unused
    config
}

/// The status for a result of the host.
fn status(done: io::Result<()>) -> Result<(), u8> {
    done.map_err(|_| request::IOERR)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|b| b.first_chunk());
    bytes.copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(|b| b.first_chunk());
    bytes.copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
