//! Records in the guest's memory.

use vbts_devices::GuestRam;
use vbts_protocol::{Extent, Extents, RECORD_SIZE};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use super::format::BRANCH;
use super::queue::WriterError;

/// Bit of the flags of a scheduling event in a mapped record (`BTS_MAPPED_SCHED` of the kernel).
const SCHEDULING: u64 = 1 << 63;

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

    /// Copies the records.
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

    /// Copies records that the processor has stored, {from, to, flags}, into the form of the
    /// kernel, {qualifier, from or time, to}.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn read_mapped(&self) -> Result<Vec<u8>, WriterError> {
        let mut records = self.read()?;
        for record in records.as_chunks_mut::<RECORD_SIZE>().0 {
            let [first, second, third] = record.as_chunks_mut::<8>().0 else {
                continue;
            };
            let flags = u64::from_le_bytes(*third);
            let (qualifier, to) = if flags & SCHEDULING == 0 {
                (BRANCH, *second)
            } else {
                (flags & !SCHEDULING, [0; 8])
            };
            (*second, *third) = (*first, to);
            *first = qualifier.to_le_bytes();
        }
        Ok(records)
    }
}
