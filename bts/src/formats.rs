//! One table of the Debug Stores: for each microarchitecture the bits of IA32_DEBUGCTL, the format
//! of the DS management area and branch records (SDM Vol. 3B 17.4.9), and the flags of a record.

use crate::debugctl::{Layout, Microarchitecture};

/// A word of the Debug Store in memory: four or eight little-endian bytes.
pub trait Word: sealed::Sealed + Copy {
    /// Size in bytes.
    const SIZE: u64;

    /// Returns the low [`Self::SIZE`] bytes of `value`.
    #[must_use]
    fn truncate(value: u64) -> Self;

    /// Zero-extends the word.
    #[must_use]
    fn extend(self) -> u64;
}

mod sealed {
    /// Restricts [`super::Word`] to integers, for which every content of memory is a valid value.
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

impl Word for u32 {
    const SIZE: u64 = 4;

    #[inline(always)]
    fn truncate(value: u64) -> Self {
        value as Self
    }

    #[inline(always)]
    fn extend(self) -> u64 {
        self.into()
    }
}

impl Word for u64 {
    const SIZE: u64 = 8;

    #[inline(always)]
    fn truncate(value: u64) -> Self {
        value
    }

    #[inline(always)]
    fn extend(self) -> u64 {
        self
    }
}

/// The size of the words of the DS management area and of the branch record. The area begins with
/// the base, index, absolute maximum and threshold of the BTS buffer; a record consists of source,
/// target and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Words of four bytes (figures "DS Save Area" and "32-bit Branch Trace Record Format").
    Bits32,
    /// Words of eight bytes (figures "Layout of 64-bit DS Save Area" and "64-bit Branch Trace
    /// Record Format").
    Bits64,
}

impl Format {
    /// Size of a word in bytes.
    #[must_use]
    pub const fn word_size(self) -> u64 {
        match self {
            Self::Bits32 => u32::SIZE,
            Self::Bits64 => u64::SIZE,
        }
    }

    /// Size of the part of the DS management area that BTS uses, in bytes.
    #[must_use]
    pub const fn fields_size(self) -> u64 {
        4 * self.word_size()
    }

    /// Offset of the BTS index in the DS management area, in bytes.
    #[must_use]
    pub const fn index_offset(self) -> u64 {
        self.word_size()
    }

    /// Size of a branch record in bytes.
    #[must_use]
    pub const fn record_size(self) -> u64 {
        3 * self.word_size()
    }
}

/// The "branch predicted" flag of a record (17.4.9.1). The manual leaves the other flags undefined;
/// the recorder stores them as 0.
pub(crate) const PREDICTED: u64 = 1 << 4;

/// The Debug Store of a microarchitecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugStore {
    /// The bits of IA32_DEBUGCTL.
    pub layout: Layout,
    /// The format of the DS area and of records. CPUID.DTES64 selects the 64-bit format in every
    /// mode. Processors without DTES64 use the 32-bit format outside IA-32e mode (17.4.9), and the
    /// ones modelled here without it have no IA-32e mode.
    pub format: Format,
    /// Records contain the "branch predicted" flag. The recorder sets it in every record, because a
    /// software processor never mispredicts.
    pub has_predicted: bool,
}

impl Microarchitecture {
    /// Returns the Debug Store of this microarchitecture.
    #[must_use]
    pub const fn debug_store(self) -> &'static DebugStore {
        match self {
            // MSR_DEBUGCTLA (17.11.1). 17.4.9.1 denies the "branch predicted" flag to Core and Atom
            // only. The manual does not name the format; the Linux patches of 2007 read 32-bit
            // words from these processors in 32-bit mode.
            Self::NetBurst => &DebugStore {
                layout: Layout::NETBURST,
                format: Format::Bits32,
                has_predicted: true,
            },
            // NetBurst with DTES64 and DS-CPL (17.4.6, 17.4.9).
            Self::NetBurst64 => &DebugStore {
                layout: Layout::NETBURST_64,
                format: Format::Bits64,
                has_predicted: true,
            },
            // MSR_DEBUGCTLB (17.13), without DTES64. 17.4.9.1 does not deny the flag to these
            // processors, and the patches of 2007 read the same records from them as from NetBurst.
            Self::PentiumM => &DebugStore {
                layout: Layout::PENTIUM_M,
                format: Format::Bits32,
                has_predicted: true,
            },
            // IA32_DEBUGCTL (17.4.1). 17.4.9.1 denies the "branch predicted" flag.
            Self::Core2 => &DebugStore {
                layout: Layout::CORE2,
                format: Format::Bits64,
                has_predicted: false,
            },
            // The manual does not mention the flag here; the recorder leaves it clear as on Core 2.
            Self::Nehalem => &DebugStore {
                layout: Layout::NEHALEM,
                format: Format::Bits64,
                has_predicted: false,
            },
        }
    }
}
