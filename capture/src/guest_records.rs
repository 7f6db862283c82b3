//! Records in the guest's memory, in the layouts of the processor and of the guest's kernel.

use vbts_devices::GuestRam;
use vbts_protocol::{Extent, Extents, RECORD_SIZE};
use vbts_trace::Branch;
use vbts_trace::profile::modules::extend_32;
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use crate::branch_pool::BranchPool;
use crate::pipeline::queue::WriterError;
use crate::records::{Mark, Records};

/// Set in the flags of a record in a mapped buffer that is no branch (`BTS_MAPPED_SCHED` of the
/// kernel). The record then has a time in the place of the branch's source, and its qualifier in
/// the low bits of the flags.
const NO_BRANCH: u64 = 1 << 63;
/// Qualifiers of a record (`enum bts_qualifier` of the kernel's `struct bts_struct`).
const BRANCH: u64 = 1;
const ARRIVES: u64 = 2;
const DEPARTS: u64 = 3;

/// Bytes that are copied at a time: the host's first-level cache has them until they are parsed.
const COPIED: usize = 16 << 10;

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

    /// Copies records of a mapped buffer, which the processor has stored, to memory of `pool`.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn read(&self, pool: &BranchPool) -> Result<Records, WriterError> {
        self.copy(pool, parse_mapped)
    }

    /// Copies records that the kernel has written for a drain to memory of `pool`.
    ///
    /// # Errors
    /// There is no such memory.
    pub(crate) fn read_drained(&self, pool: &BranchPool) -> Result<Records, WriterError> {
        self.copy(pool, |all, is_32_bit, records| {
            for record in all {
                parse_drained(words(record), is_32_bit, records);
            }
        })
    }

    fn copy(
        &self,
        pool: &BranchPool,
        parse: impl Fn(&[[u8; RECORD_SIZE]], bool, &mut Records),
    ) -> Result<Records, WriterError> {
        let mut records = Records::with_capacity(self.len / RECORD_SIZE, pool);
        let mut bytes = Vec::with_capacity(COPIED.min(self.len) + RECORD_SIZE);
        for extent in &self.extents {
            let (mut address, mut left) = (extent.address, extent.len as usize);
            while left > 0 {
                let len = left.min(COPIED);
                self.memory
                    .write_all_volatile_to(GuestAddress(address), &mut bytes, len)
                    .map_err(|_| WriterError::Records(extent.address))?;
                (address, left) = (address + len as u64, left - len);
                let (whole, rest) = bytes.as_chunks();
                parse(whole, self.is_32_bit, &mut records);
                // A record may continue in the next extent.
                let parsed = bytes.len() - rest.len();
                bytes.drain(..parsed);
            }
        }
        Ok(records)
    }
}

/// The little-endian words of a record.
#[inline]
fn words(record: &[u8; RECORD_SIZE]) -> [u64; 3] {
    let words = record.as_chunks().0;
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)))
}

/// A branch. The addresses of a 32-bit guest become those that a trace has.
#[inline]
fn branch(from: u64, to: u64, is_32_bit: bool) -> Branch {
    match is_32_bit {
        true => Branch {
            from: extend_32(from),
            to: extend_32(to),
        },
        false => Branch { from, to },
    }
}

/// The mark with this qualifier.
fn mark(qualifier: u64, time: u64) -> Mark {
    match qualifier {
        ARRIVES => Mark::Arrive(time),
        DEPARTS => Mark::Depart(time),
        _ => Mark::Invalid,
    }
}

/// Appends records {source, target, flags} of a mapped buffer.
fn parse_mapped(all: &[[u8; RECORD_SIZE]], is_32_bit: bool, records: &mut Records) {
    let any_flag = all.iter().fold(0, |flags, record| flags | words(record)[2]);
    if any_flag & NO_BRANCH == 0 {
        // One test of all records and of the room for them, because there are most often no marks.
        let branches = all.iter().map(|record| {
            let [from, to, _] = words(record);
            branch(from, to, is_32_bit)
        });
        return records.extend(branches);
    }
    for record in all {
        match words(record) {
            [from, to, flags] if flags & NO_BRANCH == 0 => {
                records.push(branch(from, to, is_32_bit));
            }
            [time, _, flags] => records.mark(mark(flags & !NO_BRANCH, time)),
        }
    }
}

/// Appends a record {qualifier, source or time, target} (`struct bts_struct` of the kernel).
#[inline]
pub(crate) fn parse_drained(words: [u64; 3], is_32_bit: bool, records: &mut Records) {
    let [qualifier, from, to] = words;
    match qualifier {
        BRANCH => records.push(branch(from, to, is_32_bit)),
        _ => records.mark(mark(qualifier, from)),
    }
}
