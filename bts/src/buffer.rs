//! The buffer: where a record goes, and what its storing changes in the DS area.
//!
//! The manual leaves three things undefined. Each decision here loses a record rather than write
//! where software did not ask:
//!
//! * A record is stored iff all of it lies below the absolute maximum. That is right for a maximum
//!   of `base + n * 24` (Linux) and for the manual's "plus 1" (17.4.9.2).
//! * A DS area that is inconsistent, or that faults, drops the record. A processor cannot take a
//!   fault here.
//! * The index moves only after its record is in the buffer, and the record is written only if the
//!   index can be: a dropped record leaves the buffer and the DS area as they were.

use std::mem::offset_of;

use thiserror::Error;

use crate::ds_area::{BranchRecord, BtsFields, RECORD_SIZE};
use crate::formats::{Format, Word};

/// Access to linear addresses with supervisor privilege through the guest's page tables.
///
/// Accesses set the accessed and dirty flags and may cross a page. They are all or nothing: one
/// that fails anywhere has changed no byte. They never raise an exception in the guest. The
/// recorder passes canonical ranges that don't wrap around.
pub trait DsMemory {
    /// Reads `N` words at `la`, which need not be aligned, that the recorder is about to
    /// update: fails where a write would fail, and sets dirty.
    ///
    /// Word by word: a wider load that covers the index, which the record before has just stored,
    /// waits for that store to reach the cache.
    fn read<W: Word, const N: usize>(&mut self, la: u64) -> Result<[W; N], DsFault>;

    /// Writes `N` words at `la`, which need not be aligned.
    fn write<W: Word, const N: usize>(&mut self, la: u64, words: &[W; N]) -> Result<(), DsFault>;
}

/// Why [`DsMemory`] could not make an access.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DsFault {
    /// No translation, or one that faults for another reason than write protection.
    #[error("not mapped")]
    Unmapped,
    /// The page may not be written.
    #[error("write-protected")]
    ReadOnly,
    /// Translated to an address that is not RAM.
    #[error("not backed by memory")]
    NotRam,
}

/// Why a record was dropped, or a DS area is malformed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// BTINT is set and no room is left before the absolute maximum.
    #[error("the index is at the absolute maximum")]
    Full,
    /// The buffer does not hold one record.
    #[error("the buffer does not hold one record")]
    TooSmall,
    /// The index is below the base or above the absolute maximum.
    #[error("the index is outside of the buffer")]
    IndexOutside,
    /// The base or the index is not on a dword boundary.
    #[error("the base or the index is not on a dword boundary")]
    Misaligned,
    /// The DS area or the slot lies at least partly outside the canonical addresses.
    #[error("an address is not canonical")]
    NonCanonical,
    /// The DS area wraps around the end of the address space.
    #[error("the area wraps around the end of the address space")]
    WrapAround,
    /// The DS area or the slot is not mapped.
    #[error("it is not mapped")]
    Unmapped,
    /// The DS area or the slot is write-protected.
    #[error("it is write-protected")]
    ReadOnly,
    /// The DS area or the slot is not backed by memory.
    #[error("it is not backed by memory")]
    NotRam,
}

impl From<DsFault> for DropReason {
    fn from(fault: DsFault) -> Self {
        match fault {
            DsFault::Unmapped => Self::Unmapped,
            DsFault::ReadOnly => Self::ReadOnly,
            DsFault::NotRam => Self::NotRam,
        }
    }
}

/// What became of a record that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stored {
    /// It is in the buffer.
    Stored,
    /// It is in the buffer and took the index across the threshold with BTINT set: signal a
    /// performance-monitoring interrupt through LVTPC.
    StoredAndPmi,
}

/// The DS area as IA32_DS_AREA and IA32_DEBUGCTL select it.
#[derive(Clone, Copy, Debug)]
pub struct DsArea {
    pub(crate) la: u64,
    pub(crate) format: Format,
    /// The flag "branch predicted" of each record.
    pub(crate) predicted: bool,
    /// BTINT is set.
    pub(crate) btint: bool,
    /// Set when no record can be stored at `la`.
    pub(crate) unusable: Option<DropReason>,
}

/// Where the next record goes, and what storing it does.
struct Placement {
    /// Linear address of the record.
    slot: u64,
    /// The new index.
    next: u64,
    /// The index crosses the threshold with BTINT set.
    interrupts: bool,
}

impl DsArea {
    /// Stores a branch. Both addresses are linear; outside 64-bit mode the caller zero-extends
    /// them.
    ///
    /// # Errors
    /// Why there is no record.
    #[inline]
    pub fn store<M: DsMemory>(self, mem: &mut M, from: u64, to: u64) -> Result<Stored, DropReason> {
        match self.format {
            Format::Bits64 => self.store_words::<u64, M>(mem, from, to),
            Format::Bits32 => self.store_words::<u32, M>(mem, from, to),
        }
    }

    /// [`Self::store`] in the format with these words.
    #[inline(always)]
    fn store_words<W: Word, M: DsMemory>(
        self,
        mem: &mut M,
        from: u64,
        to: u64,
    ) -> Result<Stored, DropReason> {
        if let Some(reason) = self.unusable {
            return Err(reason);
        }
        let fields = BtsFields::from_words(mem.read::<W, 4>(self.la)?);
        let place = self.place(&fields, self.format.record_size())?;
        let record = BranchRecord {
            from,
            to,
            predicted: self.predicted,
        };
        mem.write(place.slot, &record.to_words::<W>())?;
        // Cannot fail after the read above, unless the guest maps the buffer over its own page
        // tables.
        let index = [W::truncate(place.next)];
        mem.write(self.la + self.format.index_offset(), &index)?;
        Ok(if place.interrupts {
            Stored::StoredAndPmi
        } else {
            Stored::Stored
        })
    }

    /// Finds the place of the next record, which has this size.
    #[inline(always)]
    fn place(self, fields: &BtsFields, record_size: u64) -> Result<Placement, DropReason> {
        let BtsFields {
            base,
            index,
            absolute_maximum,
            threshold,
        } = *fields;
        if (base | index) & 3 != 0 {
            return Err(DropReason::Misaligned);
        }
        if absolute_maximum < base || absolute_maximum - base < record_size {
            return Err(DropReason::TooSmall);
        }
        if index < base || index > absolute_maximum {
            return Err(DropReason::IndexOutside);
        }
        // No addition below overflows: a record that fits ends at or below the absolute maximum.
        let slot = if absolute_maximum - index >= record_size {
            index
        } else if self.btint {
            return Err(DropReason::Full);
        } else {
            // Software cleared BTINT on a full buffer and left the index where it was.
            base
        };
        let end = slot + record_size;
        if !is_canonical(slot) || !is_canonical(end - 1) {
            return Err(DropReason::NonCanonical);
        }
        let wraps = !self.btint && absolute_maximum - end < record_size;
        Ok(Placement {
            slot,
            next: if wraps { base } else { end },
            interrupts: self.btint && slot < threshold && threshold <= end,
        })
    }

    /// The fields in the first bytes of a DS management area. The 32-bit format uses half of them.
    #[must_use]
    pub fn fields(self, bytes: &[u8; BtsFields::SIZE]) -> BtsFields {
        match self.format {
            Format::Bits64 => BtsFields::from_bytes(bytes),
            Format::Bits32 => {
                let [w0, w1, w2, w3, ..] = *bytes.as_chunks::<4>().0 else {
                    return BtsFields::default();
                };
                BtsFields::from_words([w0, w1, w2, w3].map(u32::from_le_bytes))
            }
        }
    }

    /// Size of the fields in bytes.
    #[must_use]
    pub const fn fields_size(self) -> usize {
        self.format.fields_size() as usize
    }

    /// Checks what the manual requires of the fields when recording begins (17.4.9.2): the buffer
    /// holds a record, and the base is at or below the index, which is below the absolute maximum.
    /// The manual leaves undefined how a processor handles another index. [`Self::store`] accepts
    /// more of them.
    ///
    /// # Errors
    /// The reason why the fields are malformed.
    pub fn check(self, fields: &BtsFields) -> Result<(), DropReason> {
        if let Some(reason) = self.unusable {
            return Err(reason);
        }
        // The place of a record exists in all these cases but the last, in which software has left
        // the index of a full buffer where it was.
        let interrupting = Self {
            btint: true,
            ..self
        };
        match interrupting.place(fields, self.format.record_size()) {
            // The manual's maximum is a byte higher, so that the index of a full buffer is below.
            Err(DropReason::Full) if fields.index < fields.absolute_maximum => Ok(()),
            place => place.map(|_| ()),
        }
    }

    /// Whether [`Self::window`] can have a slot: the format is the 64-bit one, and records have no
    /// flags.
    #[inline]
    #[must_use]
    pub const fn has_windows(self) -> bool {
        matches!(self.format, Format::Bits64) && !self.predicted
    }

    /// The window that begins at the index: all slots that [`Self::store`] would fill one after the
    /// other, only advancing the index each time. It is empty if the next record would be dropped,
    /// wrap the buffer or cause an interrupt.
    ///
    /// Only records of the 64-bit format without flags have windows, so that what fills them needs
    /// no other case. A window for others is empty.
    ///
    /// The window is valid as long as the DS area keeps these `fields`, apart from the index, and
    /// as long as the memory of the slots can be written.
    #[inline]
    #[must_use]
    pub fn window(self, fields: &BtsFields) -> Window {
        let BtsFields {
            index,
            absolute_maximum,
            threshold,
            ..
        } = *fields;
        let place = self.place(fields, RECORD_SIZE);
        let plain = place.is_ok_and(|place| place.slot == index);
        if !self.has_windows() || self.unusable.is_some() || !plain {
            return Window::default();
        }
        // The end is the index of the first record that is not plain. A circular buffer wraps with
        // its last record, and one with BTINT interrupts with the record that reaches the
        // threshold.
        let end = if !self.btint {
            above_last_fit(absolute_maximum - RECORD_SIZE)
        } else if index < threshold {
            above_last_fit(absolute_maximum).min(threshold.saturating_sub(RECORD_SIZE))
        } else {
            above_last_fit(absolute_maximum)
        };
        let window = Window { index, end };
        // Slots follow each other up to the non-canonical addresses, but not across them.
        if index <= LOWER_HALF_LAST {
            window.up_to(LOWER_HALF_LAST)
        } else {
            window
        }
    }
}

/// The last canonical linear address (48 bits) of the lower half.
const LOWER_HALF_LAST: u64 = (1 << 47) - 1;

/// The lowest index at which a record does not fit below `limit`.
const fn above_last_fit(limit: u64) -> u64 {
    limit.saturating_sub(RECORD_SIZE - 1)
}

/// A run of slots that records can fill without another check of the DS area's fields (see
/// [`DsArea::window`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Window {
    /// The BTS index: linear address of the next slot.
    index: u64,
    /// Slots below this address are in the window.
    end: u64,
}

impl Window {
    /// Offset of the index in this type in bytes, for code that is made at run time. Such code may
    /// advance the index by a record while it is below the end.
    pub const INDEX_OFFSET: usize = offset_of!(Self, index);
    /// Offset of the end in this type in bytes.
    pub const END_OFFSET: usize = offset_of!(Self, end);

    /// The slots of a buffer that no DS area describes: from `index` up to `end`.
    #[inline]
    #[must_use]
    pub const fn over(index: u64, end: u64) -> Self {
        Self {
            index,
            end: above_last_fit(end),
        }
    }

    /// Linear address of the next slot, which is also the BTS index.
    #[inline(always)]
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// Whether no slot is left.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.index >= self.end
    }

    /// Takes the next slot and returns its linear address. The index advances by a record.
    #[inline(always)]
    pub fn take(&mut self) -> Option<u64> {
        let slot = self.index;
        if self.is_empty() {
            return None;
        }
        self.index += RECORD_SIZE;
        Some(slot)
    }

    /// Removes the slots that are left.
    #[inline]
    pub fn close(&mut self) {
        self.end = 0;
    }

    /// Keeps the slots whose last byte is at or below `last`.
    #[inline]
    #[must_use]
    pub fn up_to(self, last: u64) -> Self {
        Self {
            end: self.end.min(last.saturating_sub(RECORD_SIZE - 2)),
            ..self
        }
    }
}

/// Whether bits 63 to 47 of a linear address are equal.
#[inline]
pub(crate) const fn is_canonical(la: u64) -> bool {
    (((la << 16) as i64) >> 16) as u64 == la
}
