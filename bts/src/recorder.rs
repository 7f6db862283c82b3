//! The recorder: what the processor does with a branch when IA32_DEBUGCTL says that it is to be
//! stored.
//!
//! Three things the manual leaves undefined are decided here, always in the way that loses a record
//! rather than writes where software did not ask:
//!
//! * A record is stored iff all of it lies below the absolute maximum. That is right for a maximum
//!   of `base + n * 24` (Linux) and for the manual's "plus 1" (17.4.9.2).
//! * A DS area that is inconsistent, or that faults, drops the record. A processor cannot take a
//!   fault here.
//! * The index moves only after its record is in the buffer, and the record is written only if the
//!   index can be: a dropped record leaves the buffer and the DS area as they were.

use thiserror::Error;

use crate::debugctl::Microarchitecture;
use crate::ds_area::{BranchRecord, BtsFields, DS_INDEX_OFFSET, RECORD_SIZE};

/// Access to linear addresses with supervisor privilege through the guest's page tables.
///
/// Accesses set the accessed and dirty flags and may cross a page. They are all or nothing: one
/// that fails anywhere has changed no byte. They never raise an exception in the guest. The
/// recorder passes canonical ranges that don't wrap around.
pub trait DsMemory {
    /// Reads `N` 64-bit words at `la`, which need not be aligned, that the recorder is about to
    /// update: fails where a write would fail, and sets dirty.
    ///
    /// Word by word: a wider load that covers the index, which the record before has just stored,
    /// waits for that store to reach the cache.
    fn read<const N: usize>(&mut self, la: u64) -> Result<[u64; N], DsFault>;

    /// Writes `N` 64-bit words at `la`, which need not be aligned.
    fn write<const N: usize>(&mut self, la: u64, words: &[u64; N]) -> Result<(), DsFault>;
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

/// An MSR write that raises #GP(0).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("general protection")]
pub struct Gp;

/// Why a record was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// BTINT is set and no room is left before the absolute maximum.
    Full,
    /// The buffer does not hold one record.
    TooSmall,
    /// The index is below the base or above the absolute maximum.
    IndexOutside,
    /// The base or the index is not on a dword boundary.
    Misaligned,
    /// The DS area or the slot lies at least partly outside the canonical addresses.
    NonCanonical,
    /// The DS area wraps around the end of the address space.
    WrapAround,
    /// The DS area or the slot is not mapped.
    Unmapped,
    /// The DS area or the slot is write-protected.
    ReadOnly,
    /// The DS area or the slot is not backed by memory.
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

/// IA32_DEBUGCTL, IA32_DS_AREA and what they do to a branch. One per logical processor.
#[derive(Clone, Debug)]
pub struct Recorder {
    microarchitecture: Microarchitecture,
    debugctl: u64,
    area: DsArea,
    /// Bit 0: store what arrives at CPL 0. Bit 1: store what arrives at CPL 1 to 3.
    armed: u8,
}

impl Recorder {
    /// The recorder after RESET or INIT: everything off, DS area at 0.
    #[must_use]
    pub fn new(microarchitecture: Microarchitecture) -> Self {
        Self {
            microarchitecture,
            debugctl: 0,
            area: DsArea {
                la: 0,
                btint: false,
                unusable: None,
            },
            armed: 0,
        }
    }

    /// The microarchitecture, which says what IA32_DEBUGCTL accepts.
    #[must_use]
    pub const fn microarchitecture(&self) -> Microarchitecture {
        self.microarchitecture
    }

    /// IA32_DEBUGCTL.
    #[must_use]
    pub const fn debugctl(&self) -> u64 {
        self.debugctl
    }

    /// Writes IA32_DEBUGCTL.
    ///
    /// # Errors
    /// [`Gp`] if the microarchitecture reserves a bit of `value`; the register keeps its value.
    pub fn set_debugctl(&mut self, value: u64) -> Result<(), Gp> {
        let layout = self.microarchitecture.layout();
        if value & !layout.writable != 0 {
            return Err(Gp);
        }
        let has = |mask: u64| value & mask != 0;
        let tracing = has(layout.tr) && has(layout.bts);
        self.debugctl = value;
        self.area.btint = has(layout.btint);
        self.armed = u8::from(tracing && !has(layout.bts_off_os))
            | u8::from(tracing && !has(layout.bts_off_usr)) << 1;
        Ok(())
    }

    /// Clears LBR and BTF, as the processor does when it generates #DB (17.4.2, 17.4.3). Tracing
    /// goes on.
    pub fn clear_on_debug_exception(&mut self) {
        self.debugctl &= !self.microarchitecture.layout().cleared_by_db;
    }

    /// IA32_DS_AREA: linear address of the DS management area.
    #[must_use]
    pub const fn ds_area(&self) -> u64 {
        self.area.la
    }

    /// Writes IA32_DS_AREA. A value that can hold no DS area is only found when a branch is to be
    /// stored.
    ///
    /// # Errors
    /// [`Gp`] if `la` is not canonical (48 bits); the register keeps its value.
    pub fn set_ds_area(&mut self, la: u64) -> Result<(), Gp> {
        if !is_canonical(la) {
            return Err(Gp);
        }
        self.area.la = la;
        self.area.unusable = match la.checked_add(BtsFields::SIZE as u64 - 1) {
            None => Some(DropReason::WrapAround),
            Some(last) if !is_canonical(last) => Some(DropReason::NonCanonical),
            Some(_) => None,
        };
        Ok(())
    }

    /// Whether a transfer of control that ends at `cpl` is to be stored. The filter looks at the
    /// CPL *after* the transfer: with BTS_OFF_OS a return to user code is stored and an entry into
    /// the kernel is not.
    #[inline]
    #[must_use]
    pub const fn enabled(&self, cpl: u8) -> bool {
        self.armed & (if cpl == 0 { 1 } else { 2 }) != 0
    }

    /// Whether branches are recorded at any CPL.
    #[inline]
    #[must_use]
    pub const fn tracing(&self) -> bool {
        self.armed != 0
    }

    /// Where branches go now: what [`DsArea::store`] needs, without the rest of the recorder, so
    /// that the owner of both the recorder and the memory can use them together.
    #[inline]
    #[must_use]
    pub const fn area(&self) -> DsArea {
        self.area
    }
}

/// The DS area as IA32_DS_AREA and IA32_DEBUGCTL select it.
#[derive(Clone, Copy, Debug)]
pub struct DsArea {
    la: u64,
    /// BTINT is set.
    btint: bool,
    /// Set when no record can be stored at `la`.
    unusable: Option<DropReason>,
}

impl DsArea {
    /// Stores a branch. Both addresses are linear; outside 64-bit mode the caller zero-extends
    /// them.
    ///
    /// # Errors
    /// Why there is no record.
    #[inline]
    pub fn store<M: DsMemory>(self, mem: &mut M, from: u64, to: u64) -> Result<Stored, DropReason> {
        if let Some(reason) = self.unusable {
            return Err(reason);
        }
        let [base, index, absolute_maximum, threshold] = mem.read(self.la)?;

        if (base | index) & 3 != 0 {
            return Err(DropReason::Misaligned);
        }
        if absolute_maximum < base || absolute_maximum - base < RECORD_SIZE {
            return Err(DropReason::TooSmall);
        }
        if index < base || index > absolute_maximum {
            return Err(DropReason::IndexOutside);
        }
        // No addition below overflows: what fits ends at or below the absolute maximum.
        let slot = if absolute_maximum - index >= RECORD_SIZE {
            index
        } else if self.btint {
            return Err(DropReason::Full);
        } else {
            // Software cleared BTINT on a full buffer and left the index where it was.
            base
        };
        let end = slot + RECORD_SIZE;
        if !is_canonical(slot) || !is_canonical(end - 1) {
            return Err(DropReason::NonCanonical);
        }
        let wrap = !self.btint && absolute_maximum - end < RECORD_SIZE;
        let next = if wrap { base } else { end };

        mem.write(slot, &BranchRecord { from, to }.to_words())?;
        // Cannot fail after the read above, unless the guest maps the buffer over its own page
        // tables.
        mem.write(self.la + DS_INDEX_OFFSET, &[next])?;
        Ok(if self.btint && slot < threshold && threshold <= end {
            Stored::StoredAndPmi
        } else {
            Stored::Stored
        })
    }
}

/// Whether bits 63 to 47 of a linear address are equal.
#[inline]
const fn is_canonical(la: u64) -> bool {
    (((la << 16) as i64) >> 16) as u64 == la
}
