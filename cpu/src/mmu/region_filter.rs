//! Sets of regions of linear addresses, by hash.

const FILTER_BITS: usize = 1024;

/// A set of regions of 2^`SHIFT` bytes of linear addresses, by hash. It may contain regions that
/// were not added.
#[derive(Debug)]
pub(crate) struct RegionFilter<const SHIFT: u32>(pub [u64; FILTER_BITS / 64]);

/// A filter of pages.
pub(crate) type PageFilter = RegionFilter<12>;

impl<const SHIFT: u32> Default for RegionFilter<SHIFT> {
    fn default() -> Self {
        Self([0; FILTER_BITS / 64])
    }
}

impl<const SHIFT: u32> RegionFilter<SHIFT> {
    fn bit(la: u64) -> (usize, u64) {
        let n = (la >> SHIFT) as usize % FILTER_BITS;
        (n / 64, 1 << (n % 64))
    }

    /// Adds the region of `la`.
    pub(crate) fn add(&mut self, la: u64) {
        let (word, bit) = Self::bit(la);
        self.0[word] |= bit;
    }

    /// Whether the region of `la` may have been added.
    pub(crate) fn may_have(&self, la: u64) -> bool {
        let (word, bit) = Self::bit(la);
        self.0[word] & bit != 0
    }
}
