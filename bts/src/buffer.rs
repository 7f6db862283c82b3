//! The BTS buffer: choosing the slot for a branch record, storing the record, and updating the DS
//! area.
//!
//! The DS area describes the buffer with four linear addresses: base, index, absolute maximum and
//! threshold (SDM Vol. 3B 17.4.9). The processor stores each record at the index and then advances
//! the index. IA32_DEBUGCTL.BTINT selects what happens towards the end of the buffer:
//!
//! * BTINT clear: the buffer is circular. When no further record fits, the index wraps to the base.
//! * BTINT set: the record that takes the index across the threshold raises a
//!   performance-monitoring interrupt (PMI), so that software can empty the buffer in time. Once
//!   the buffer is full, records are dropped.
//!
//! For example, three slots of 24 bytes from 0x1000 to 0x1048, with the threshold at 0x1030:
//!
//! ```text
//!           BTINT clear             BTINT set
//!  branch   slot      new index     slot      new index
//!  1        0x1000    0x1018        0x1000    0x1018
//!  2        0x1018    0x1030        0x1018    0x1030      crosses the threshold: PMI
//!  3        0x1030    0x1000        0x1030    0x1048      fills the buffer
//!  4        0x1000    0x1018        dropped   0x1048
//! ```
//!
//! Three cases are undefined in the manual. In each of them the recorder would rather lose a record
//! than write where software did not ask for one:
//!
//! * The end of the buffer. Linux sets the absolute maximum to `base + n * 24`, while the manual
//!   asks for one byte more (17.4.9.2). A record is stored only if it ends at or below the absolute
//!   maximum, so the buffer holds `n` records under either convention.
//! * Faults and inconsistent fields. A processor cannot take a fault while it stores a record, so a
//!   fault in the DS area or in the slot drops the record, as do misaligned or inconsistent fields.
//! * Partial updates. The recorder makes sure that the index is writable before it writes the
//!   record, and moves the index last, so that a dropped record leaves the buffer and the DS area
//!   unchanged. The only exception is a guest that maps the buffer over its own page tables.
//!
//! # The window
//!
//! Most records only fill the slot at the index and advance it. [`DsArea::window`] computes how
//! many consecutive slots are of this kind, so that the processor can fill them without reading the
//! DS area again. In the example, the window at 0x1000 covers two slots with BTINT clear, because
//! the third record wraps, and one with BTINT set, because the second record raises the PMI.

use std::mem::offset_of;

use thiserror::Error;

use crate::ds_area::{BranchRecord, BtsFields, RECORD_SIZE};
use crate::formats::{Format, Word};

/// Guest memory as the Debug Store accesses it: by linear address, through the guest's page tables,
/// and with supervisor privilege (17.4.9).
///
/// Accesses may cross a page boundary, and set the accessed and dirty flags. An access that fails
/// changes no byte and raises no exception in the guest. The recorder passes only canonical ranges
/// that do not wrap around.
pub trait DsMemory {
    /// Reads `N` words at `la`, which need not be aligned, as the first half of an update: the read
    /// fails where a write would fail, and sets the dirty flag.
    ///
    /// Implementations should load word by word. A wider load that spans the index, which the
    /// previous record has just stored, defeats the host's store-to-load forwarding and stalls
    /// until that store reaches the cache.
    fn read<W: Word, const N: usize>(&mut self, la: u64) -> Result<[W; N], DsFault>;

    /// Writes `words` at `la`, which need not be aligned.
    fn write<W: Word, const N: usize>(&mut self, la: u64, words: &[W; N]) -> Result<(), DsFault>;
}

/// Why a [`DsMemory`] access failed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DsFault {
    /// The address has no translation, or its translation faults for a reason other than write
    /// protection.
    #[error("not mapped")]
    Unmapped,
    /// The page is write-protected.
    #[error("write-protected")]
    ReadOnly,
    /// The address translates to something other than RAM, such as a device.
    #[error("not backed by memory")]
    NotRam,
}

/// Why [`DsArea::store`] dropped a record, or [`DsArea::check`] found the fields malformed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// BTINT is set, and no record fits between the index and the absolute maximum.
    #[error("the index is at the absolute maximum")]
    Full,
    /// The buffer is smaller than one record, or the absolute maximum is below the base.
    #[error("the buffer does not hold one record")]
    TooSmall,
    /// The index is below the base or above the absolute maximum.
    #[error("the index is outside of the buffer")]
    IndexOutside,
    /// The base or the index is not dword-aligned (17.4.9.2).
    #[error("the base or the index is not on a dword boundary")]
    Misaligned,
    /// The DS area or the slot includes a non-canonical address.
    #[error("an address is not canonical")]
    NonCanonical,
    /// The DS area extends past the end of the address space, which is at 2^32 in the 32-bit
    /// format.
    #[error("the area wraps around the end of the address space")]
    WrapAround,
    /// The DS area or the slot is not mapped.
    #[error("it is not mapped")]
    Unmapped,
    /// The DS area or the slot is write-protected.
    #[error("it is write-protected")]
    ReadOnly,
    /// The DS area or the slot is not in RAM.
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

/// Outcome of a successful [`DsArea::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stored {
    /// The record is in the buffer.
    Stored,
    /// The record is in the buffer and, with BTINT set, has taken the index across the threshold:
    /// the caller must signal a performance-monitoring interrupt through LVTPC.
    StoredAndPmi,
}

/// The DS area that IA32_DS_AREA selects, with the bits of IA32_DEBUGCTL that affect a store.
#[derive(Clone, Copy, Debug)]
pub struct DsArea {
    pub(crate) la: u64,
    pub(crate) format: Format,
    /// The "branch predicted" flag for each record (17.4.9.1).
    pub(crate) predicted: bool,
    pub(crate) btint: bool,
    /// Why `la` cannot hold a DS area, or `None`. Determined when IA32_DS_AREA is written, so that
    /// [`Self::store`] does not check the address each time.
    pub(crate) unusable: Option<DropReason>,
}

/// The slot for the next record, and the effects of storing a record there.
struct Placement {
    /// Linear address of the record.
    slot: u64,
    new_index: u64,
    raises_pmi: bool,
}

impl DsArea {
    /// Stores the branch from `from` to `to`. Both are linear addresses; outside 64-bit mode the
    /// caller zero-extends them.
    ///
    /// # Errors
    /// The reason for dropping the record.
    #[inline]
    pub fn store<M: DsMemory>(self, mem: &mut M, from: u64, to: u64) -> Result<Stored, DropReason> {
        match self.format {
            Format::Bits64 => self.store_words::<u64, M>(mem, from, to),
            Format::Bits32 => self.store_words::<u32, M>(mem, from, to),
        }
    }

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
        let placement = self.place(&fields, self.format.record_size())?;
        let record = BranchRecord {
            from,
            to,
            predicted: self.predicted,
        };
        mem.write(placement.slot, &record.to_words::<W>())?;
        // The read above has shown that the index is writable, so this write fails only if the
        // record itself has unmapped the DS area: the guest can map the buffer over its page
        // tables.
        let index = [W::truncate(placement.new_index)];
        mem.write(self.la + self.format.index_offset(), &index)?;
        Ok(if placement.raises_pmi {
            Stored::StoredAndPmi
        } else {
            Stored::Stored
        })
    }

    /// Chooses the slot for the next record, of `record_size` bytes.
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
        // The additions below cannot overflow: the slot ends at or below the absolute maximum.
        let slot = if absolute_maximum - index >= record_size {
            index
        } else if self.btint {
            return Err(DropReason::Full);
        } else {
            // Filling the last slot of a circular buffer wraps the index, so software has put it
            // here, for example by clearing BTINT on a full buffer.
            base
        };
        let end = slot + record_size;
        if !is_canonical(slot) || !is_canonical(end - 1) {
            return Err(DropReason::NonCanonical);
        }
        let wraps = !self.btint && absolute_maximum - end < record_size;
        Ok(Placement {
            slot,
            new_index: if wraps { base } else { end },
            // The interrupt is raised on the crossing alone: records that follow before the handler
            // resets the index do not raise it again.
            raises_pmi: self.btint && slot < threshold && threshold <= end,
        })
    }

    /// Parses the fields in the first bytes of a DS management area. The 32-bit format uses only
    /// the first half of `bytes`.
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

    /// Checks the fields as the manual requires them when recording begins (17.4.9.2): the buffer
    /// holds at least one record, the base is at or below the index, and the index is below the
    /// absolute maximum. The manual leaves undefined how a processor treats other values;
    /// [`Self::store`] accepts some of them.
    ///
    /// # Errors
    /// The reason why the fields are malformed.
    pub fn check(self, fields: &BtsFields) -> Result<(), DropReason> {
        if let Some(reason) = self.unusable {
            return Err(reason);
        }
        // With BTINT clear, `place` wraps the index of a full buffer, which is malformed here.
        let interrupting = Self {
            btint: true,
            ..self
        };
        match interrupting.place(fields, self.format.record_size()) {
            // The absolute maximum is one byte higher in the manual's convention, so that the index
            // of a full buffer is below it.
            Err(DropReason::Full) if fields.index < fields.absolute_maximum => Ok(()),
            placement => placement.map(|_| ()),
        }
    }

    /// Returns whether [`Self::window`] can contain slots. Windows exist only for 64-bit records
    /// without flags.
    #[inline]
    #[must_use]
    pub const fn has_windows(self) -> bool {
        matches!(self.format, Format::Bits64) && !self.predicted
    }

    /// Returns the window at the index: the slots that consecutive calls of [`Self::store`] would
    /// fill, each doing no more than advance the index. The window is empty if the next record
    /// would be dropped, wrap the buffer or raise an interrupt.
    ///
    /// Records in the 32-bit format or with flags have no window, so that the code that fills
    /// windows has a single case to handle.
    ///
    /// The window is valid as long as the DS area keeps these `fields`, apart from the index, and
    /// the memory of the slots stays writable.
    #[inline]
    #[must_use]
    pub fn window(self, fields: &BtsFields) -> Window {
        let BtsFields {
            index,
            absolute_maximum,
            threshold,
            ..
        } = *fields;
        let placement = self.place(fields, RECORD_SIZE);
        let fits_at_index = placement.is_ok_and(|placement| placement.slot == index);
        if !self.has_windows() || self.unusable.is_some() || !fits_at_index {
            return Window::default();
        }
        // The window ends at the first slot that does more than advance the index: the last slot of
        // a circular buffer, which wraps it, or the slot whose record reaches the threshold.
        let end = if !self.btint {
            slots_end(absolute_maximum - RECORD_SIZE)
        } else if index < threshold {
            slots_end(absolute_maximum).min(threshold.saturating_sub(RECORD_SIZE))
        } else {
            slots_end(absolute_maximum)
        };
        let window = Window { index, end };
        // A window in the lower half must not run into the non-canonical addresses above it.
        if index <= LOWER_HALF_LAST {
            window.up_to(LOWER_HALF_LAST)
        } else {
            window
        }
    }
}

/// The last canonical linear address of the lower half (48-bit addresses).
const LOWER_HALF_LAST: u64 = (1 << 47) - 1;

/// Returns the exclusive upper bound for the start of a record that ends at or below `limit`.
const fn slots_end(limit: u64) -> u64 {
    limit.saturating_sub(RECORD_SIZE - 1)
}

/// Consecutive slots that records can fill without another check of the DS area (see
/// [`DsArea::window`]).
///
/// `end` bounds the start of a slot, not its last byte, so that one comparison with the index tells
/// whether a whole record fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Window {
    /// The BTS index: linear address of the next slot.
    index: u64,
    /// Slots that start below this address are in the window.
    end: u64,
}

impl Window {
    /// Offset in bytes of the index, a `u64`, for native code. Native code may advance the index by
    /// one record while it is below the end.
    pub const INDEX_OFFSET: usize = offset_of!(Self, index);
    /// Offset in bytes of the end, a `u64`, for native code.
    pub const END_OFFSET: usize = offset_of!(Self, end);

    /// Creates a window over a buffer that no DS area describes, such as a log in host memory: the
    /// slots between `index` and `end`.
    #[inline]
    #[must_use]
    pub const fn over(index: u64, end: u64) -> Self {
        Self {
            index,
            end: slots_end(end),
        }
    }

    /// Returns the address of the next slot, which is also the BTS index.
    #[inline(always)]
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// Returns whether no slot is left.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.index >= self.end
    }

    /// Returns whether all slots are claimed, and the window was not closed before.
    #[inline]
    #[must_use]
    pub const fn is_used_up(&self) -> bool {
        self.end != 0 && self.is_empty()
    }

    /// Claims the next slot: returns its address, and advances the index by one record.
    #[inline(always)]
    pub fn take(&mut self) -> Option<u64> {
        let slot = self.index;
        if self.is_empty() {
            return None;
        }
        self.index += RECORD_SIZE;
        Some(slot)
    }

    /// Removes the remaining slots.
    #[inline]
    pub fn close(&mut self) {
        self.end = 0;
    }

    /// Keeps only the slots whose last byte is at or below `last`.
    #[inline]
    #[must_use]
    pub fn up_to(self, last: u64) -> Self {
        Self {
            // `slots_end(last + 1)`, without its overflow at the end of the address space.
            end: self.end.min(last.saturating_sub(RECORD_SIZE - 2)),
            ..self
        }
    }
}

/// Returns whether `la` is canonical for 48-bit linear addresses: bits 63 to 47 are equal.
#[inline]
pub(crate) const fn is_canonical(la: u64) -> bool {
    (((la << 16) as i64) >> 16) as u64 == la
}
