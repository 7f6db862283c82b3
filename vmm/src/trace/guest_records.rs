//! Records in the guest's memory.

use vbts_devices::GuestRam;
use vbts_protocol::{Extent, Extents};
use vbts_trace::profile::modules::extend_32;
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use super::format::{from_kernel, is_branch, record, words};
use super::queue::WriterError;

/// Where records are in the guest's memory.
#[derive(Debug, Clone)]
pub struct GuestRecords {
    memory: GuestRam,
    extents: Vec<Extent>,
    len: usize,
    is_32_bit: bool,
}

impl GuestRecords {
    /// The records at `extents`. If the guest's kernel `is_32_bit`, its addresses are extended.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn new(
        memory: &GuestRam,
        extents: Extents<'_>,
        is_32_bit: bool,
    ) -> Result<Self, WriterError> {
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
            is_32_bit,
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
        let mut records = self.copy()?;
        if self.is_32_bit {
            for bytes in records.as_chunks_mut().0 {
                *bytes = record(extend(words(bytes)));
            }
        }
        Ok(records)
    }

    fn copy(&self) -> Result<Vec<u8>, WriterError> {
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
        let mut records = self.copy()?;
        for bytes in records.as_chunks_mut().0 {
            let words = from_kernel(words(bytes));
            *bytes = record(match self.is_32_bit {
                true => extend(words),
                false => words,
            });
        }
        Ok(records)
    }
}

/// The words of a record of a 32-bit guest, with the addresses that a trace has.
fn extend([from, to, flags]: [u64; 3]) -> [u64; 3] {
    match is_branch(flags) {
        true => [extend_32(from), extend_32(to), flags],
        false => [from, to, flags],
    }
}
