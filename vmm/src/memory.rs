//! Guest memory: its size, its place, and the software CPU's view of it.

mod contents;
mod versions;

pub use contents::{ContentsError, MemoryContents};
pub(crate) use versions::{Page, PageVersions, ZEROS};

use std::fmt;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use vbts_cpu::{Reservation, ReservedMemory};
use vbts_devices::DmaGenerations;
use vm_memory::bitmap::NewBitmap;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap, MmapRegion};

use crate::layout::{HIGH_RAM_START, LOW_RAM_END, PHYSICAL_END};

/// Guest memory that tracks which pages devices have written.
pub type GuestMemory = vbts_devices::GuestRam;

/// Minimum memory of a machine in bytes. Linux does not fit into less.
pub const MIN_MEMORY: u64 = 16 << 20;
/// Maximum memory of a machine in bytes.
pub const MAX_MEMORY: u64 = PHYSICAL_END - (HIGH_RAM_START - LOW_RAM_END);

/// Memory in bytes up to which native code can access all of it: the rest of the reservation is for
/// the buffers of the processors' logs.
pub const MAX_RESERVED: u64 = (4 << 30) - (128 << 20);

/// Granularity of guest memory in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Why guest memory cannot be allocated.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// The size is below [`MIN_MEMORY`].
    #[error("{0} of memory is too little: a guest needs at least {min}", min = Size(MIN_MEMORY))]
    TooSmall(Size),
    /// The size is above [`MAX_MEMORY`].
    #[error("{0} of memory is too much: the processor can address {max}", max = Size(MAX_MEMORY))]
    TooLarge(Size),
    /// The size is not a multiple of a page.
    #[error("{0} of memory is not a multiple of 4K")]
    Unaligned(Size),
    /// The host cannot map the memory, for the reason in the text.
    #[error("The host cannot map {0} of guest memory: {1}")]
    Map(Size, String),
}

/// Allocates `size` bytes of guest memory, filled with zeros, with the hole for devices below 4
/// GiB. It is in huge pages if the host has any: both accelerators need fewer entries of the host's
/// TLB.
///
/// # Errors
/// The size is out of range, or the host cannot map that much.
pub fn allocate(size: Size) -> Result<GuestMemory, MemoryError> {
    let bytes = size.0;
    if bytes < MIN_MEMORY {
        return Err(MemoryError::TooSmall(size));
    }
    if bytes > MAX_MEMORY {
        return Err(MemoryError::TooLarge(size));
    }
    if !bytes.is_multiple_of(PAGE) {
        return Err(MemoryError::Unaligned(size));
    }
    let low = bytes.min(LOW_RAM_END);
    let mut ranges = vec![(GuestAddress(0), low as usize)];
    if bytes > low {
        ranges.push((GuestAddress(HIGH_RAM_START), (bytes - low) as usize));
    }
    let lens = ranges.iter().map(|(_, len)| *len);
    if lens.map(|len| len as u64).sum::<u64>() <= MAX_RESERVED {
        match reserved(&ranges) {
            Ok(memory) => return Ok(memory),
            Err(error) => tracing::debug!(%error, "no reservation for guest memory"),
        }
    }
    let memory = GuestMemory::from_ranges(&ranges)
        .map_err(|error| MemoryError::Map(size, error.to_string()))?;
    for region in memory.iter() {
        // SAFETY: the range is one mapping of this process, and the advice keeps its contents.
        let advised =
            unsafe { madvise(region.as_ptr().cast(), region.size(), Advice::LinuxHugepage) };
        if let Err(error) = advised {
            tracing::debug!(%error, "no huge pages for guest memory");
        }
    }
    Ok(memory)
}

/// Maps `ranges` in a reservation, so that native code can access them.
fn reserved(ranges: &[(GuestAddress, usize)]) -> anyhow::Result<GuestMemory> {
    let reservation = Reservation::new()?;
    let mut regions = Vec::new();
    for &(start, len) in ranges {
        let mapped = reservation.map(len)?;
        let pointer = mapped.pointer().as_ptr();
        let generations = DmaGenerations::with_len(len).with_owner(mapped);
        // The memory is mapped already: this is only what the region tells of it.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let builder = MmapRegionBuilder::new_with_bitmap(len, generations)
            .with_mmap_prot(access.bits() as i32)
            .with_mmap_flags((MapFlags::PRIVATE | MapFlags::NORESERVE).bits() as i32);
        // SAFETY: `len` bytes are mapped, and the region keeps them.
        let region = unsafe { builder.with_raw_mmap_pointer(pointer) }.build()?;
        let region = GuestRegionMmap::new(region, start).context("the address is too high")?;
        regions.push(region);
    }
    Ok(GuestMemory::from_regions(regions)?)
}

/// The reservation that has `memory`.
fn reservation(memory: &GuestMemory) -> Option<&Arc<Reservation>> {
    let region: &MmapRegion<DmaGenerations> = memory.iter().next()?;
    let mapped = region.bitmap().owner::<ReservedMemory>()?;
    Some(mapped.reservation())
}

/// The RAM ranges of `memory` as (guest-physical start, length), lowest first.
pub fn ranges(memory: &GuestMemory) -> Vec<(u64, u64)> {
    memory.iter().map(|r| (r.start_addr().0, r.len())).collect()
}

/// First guest-physical address above the RAM below 4 GiB.
pub fn low_end(memory: &GuestMemory) -> u64 {
    memory
        .iter()
        .next()
        .map_or(0, |r| r.start_addr().0 + r.len())
}

/// The software CPU's view of `memory`.
///
/// # Safety
/// `memory` or a clone of it must live as long as the view.
pub unsafe fn cpu_view(memory: &GuestMemory) -> vbts_cpu::GuestRam {
    let ranges: Vec<(u64, u64, NonNull<u8>)> = memory
        .iter()
        .filter_map(|r| Some((r.start_addr().0, r.len(), NonNull::new(r.as_ptr())?)))
        .collect();
    // SAFETY: each range is a mapping of that length, which the caller keeps alive. All accesses to
    // guest memory in this process use pointers or `VolatileSlice`s, never references.
    let ram = unsafe { vbts_cpu::GuestRam::new(&ranges) };
    match reservation(memory) {
        Some(reservation) => ram.in_reservation(reservation),
        None => ram,
    }
}

/// A number of bytes. Its text has an optional suffix: `256M`, `1G`, `64K`, `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Size(pub u64);

/// The text is not a size.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a size: write a whole number with an optional suffix K, M, G or T, such as 256M"
)]
pub struct SizeError(String);

/// Suffixes and their powers of two, largest first.
const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let upper = text.trim().to_ascii_uppercase();
        let short = upper
            .strip_suffix("IB")
            .or(upper.strip_suffix('B'))
            .unwrap_or(&upper);
        let (digits, shift) = SUFFIXES
            .iter()
            .find_map(|&(suffix, shift)| Some((short.strip_suffix(suffix)?, shift)))
            .unwrap_or((short, 0));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        let number: u64 = digits.parse().map_err(|_| error())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SUFFIXES
            .iter()
            .find(|&&(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift))
        {
            Some((suffix, shift)) => write!(f, "{}{suffix}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [
            ("256M", 256 << 20),
            ("1g", 1 << 30),
            ("64KiB", 64 << 10),
            ("2MB", 2 << 20),
            ("4096", 4096),
            ("0", 0),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "M", "-1M", "1.5G", "12Q", "0x10", "99999999999T", "１M"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_survive_a_round_trip_through_text() {
        for text in ["256M", "3G", "64K", "4097", "0"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn memory_has_limits() {
        assert_eq!(
            allocate(Size(1 << 20)).unwrap_err(),
            MemoryError::TooSmall(Size(1 << 20))
        );
        let huge = Size(MAX_MEMORY + PAGE);
        assert_eq!(allocate(huge).unwrap_err(), MemoryError::TooLarge(huge));
        let odd = Size(MIN_MEMORY + 1);
        assert_eq!(allocate(odd).unwrap_err(), MemoryError::Unaligned(odd));
    }

    #[test]
    fn large_memory_leaves_the_hole_for_devices() {
        let small = allocate(Size(64 << 20)).unwrap();
        assert_eq!(ranges(&small), [(0, 64 << 20)]);
        let large = allocate(Size(4 << 30)).unwrap();
        assert_eq!(
            ranges(&large),
            [(0, LOW_RAM_END), (HIGH_RAM_START, 1 << 30)]
        );
        assert_eq!(low_end(&large), LOW_RAM_END);
    }
}
