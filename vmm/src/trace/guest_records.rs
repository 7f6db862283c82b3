//! Records in the guest's memory.

use vbts_devices::GuestRam;
use vbts_protocol::{Extent, Extents};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use super::format::{from_kernel, record, words};
use super::queue::WriterError;

/// Where records are in the guest's memory.
#[derive(Debug, Clone)]
pub struct GuestRecords {
    memory: GuestRam,
    extents: Vec<Extent>,
    len: usize,
}

impl GuestRecords {
    /// The records at `extents`.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn new(memory: &GuestRam, extents: Extents<'_>) -> Result<Self, WriterError> {
        let extents: Vec<_> = extents.iter().collect();
        let mut len = 0;
        for extent in &extents {
            // `Extents` has checked that all are at most MAX_RECORDS bytes.
            let bytes = extent.len as usize;
            if !memory.check_range(GuestAddress(extent.address), bytes, Permissions::Read) {
                return Err(WriterError::Records(extent.address));
            }
            len += bytes;
        }
        Ok(Self {
            memory: memory.clone(),
            extents,
            len,
        })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies records that the processor has stored.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn read(&self) -> Result<Vec<u8>, WriterError> {
        let mut records = Vec::with_capacity(self.len);
        for extent in &self.extents {
            let (at, len) = (GuestAddress(extent.address), extent.len as usize);
            self.memory
                .write_all_volatile_to(at, &mut records, len)
                .map_err(|_| WriterError::Records(extent.address))?;
        }
        Ok(records)
    }

    /// Copies records that the kernel has written.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn read_drained(&self) -> Result<Vec<u8>, WriterError> {
        let mut records = self.read()?;
        for bytes in records.as_chunks_mut().0 {
            *bytes = record(from_kernel(words(bytes)));
        }
        Ok(records)
    }
}
