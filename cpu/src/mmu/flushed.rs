//! The linear pages that an INVLPG flushes.

/// log2 of the size in bytes of the largest page: 4 MBytes, or two of 2 MBytes.
pub(crate) const LARGE_SHIFT: u32 = 22;

/// The linear pages that are flushed with the one of an address (SDM Vol. 3A 4.10.4.1, INVLPG).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flushed {
    /// Number of the page.
    page: u64,
    /// The page may be part of a large page, all of which is flushed.
    large: bool,
}

impl Flushed {
    /// The pages that are flushed with that of `la`, which is part of a large page if `large`.
    pub(crate) fn with(la: u64, large: bool) -> Self {
        Self {
            page: la >> 12,
            large,
        }
    }

    /// The page, if it is the only one.
    pub(crate) fn only(self) -> Option<u64> {
        (!self.large).then_some(self.page)
    }

    /// Returns whether the page of this number, which can be sign-extended, is flushed.
    pub(crate) fn has(self, page: u64) -> bool {
        let size = if self.large { LARGE_SHIFT } else { 12 };
        (page ^ self.page) << 12 >> size == 0
    }
}
