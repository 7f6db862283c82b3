//! The formats of the Debug Store: how a processor lays out the DS management area and the branch
//! records (SDM Vol. 3B 17.4.9), as one table.

use crate::debugctl::{Layout, Microarchitecture};

/// A word of the Debug Store in memory: four or eight little-endian bytes.
pub trait Word: sealed::Sealed + Copy {
    /// Size in bytes.
    const SIZE: u64;

    /// The low bytes of `value`.
    #[must_use]
    fn truncate(value: u64) -> Self;

    /// The word, zero-extended.
    #[must_use]
    fn extend(self) -> u64;
}

mod sealed {
    /// Keeps [`super::Word`] to plain integers, which memory of any content holds.
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

/// A format of the DS management area and of the branch record. Both consist of words of one size:
/// the area begins with the base, the index, the absolute maximum and the threshold of the buffer,
/// and a record has the source, the target and flags.
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

/// The flag "branch predicted" in the flags of a record (17.4.9.1). The other bits are undefined,
/// and 0 here.
pub(crate) const PREDICTED: u64 = 1 << 4;

/// The Debug Store of a microarchitecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugStore {
    /// The bits of DEBUGCTL.
    pub layout: Layout,
    /// The layout of the DS area. DTES64 selects the 64-bit format in every mode. Without it, a
    /// processor outside IA-32e mode uses the 32-bit one (17.4.9), as those do that lack Intel 64.
    pub format: Format,
    /// Records have the flag "branch predicted". It is set in each record: this processor does not
    /// predict, and so never mispredicts.
    pub has_predicted: bool,
}

impl Microarchitecture {
    /// Its Debug Store.
    #[must_use]
    pub const fn debug_store(self) -> &'static DebugStore {
        match self {
            // MSR_DEBUGCTLA (17.11.1), and the flag "branch predicted", which 17.4.9.1 only denies
            // to Core and Atom. The manual does not say which format these processors use. The
            // Linux patches of 2007 use pointers of 32 bits in 32-bit mode.
            Self::NetBurst => &DebugStore {
                layout: Layout::NETBURST,
                format: Format::Bits32,
                has_predicted: true,
            },
            // As above, with DTES64 and DS-CPL (17.4.6, 17.4.9).
            Self::NetBurst64 => &DebugStore {
                layout: Layout::NETBURST_64,
                format: Format::Bits64,
                has_predicted: true,
            },
            // MSR_DEBUGCTLB (17.13). There is no DTES64. The patches of 2007 use the records that
            // they use for NetBurst, and 17.4.9.1 does not deny the flag.
            Self::PentiumM => &DebugStore {
                layout: Layout::PENTIUM_M,
                format: Format::Bits32,
                has_predicted: true,
            },
            // IA32_DEBUGCTL (17.4.1). "Branch predicted" is not supported (17.4.9.1).
            Self::Core2 => &DebugStore {
                layout: Layout::CORE2,
                format: Format::Bits64,
                has_predicted: false,
            },
            // As Core 2. The manual is silent about the flag.
            Self::Nehalem => &DebugStore {
                layout: Layout::NEHALEM,
                format: Format::Bits64,
                has_predicted: false,
            },
        }
    }
}
