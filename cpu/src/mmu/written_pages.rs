//! The pages of guest memory that processors may have written.
//!
//! A processor enters a page when it walks the page tables for a write, and when it updates an
//! entry of the page tables. Later writes to the page hit the TLB and are not noticed, so the pages
//! to which the TLBs of the processors lead are entered again each time that the set is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of pages, which all processors of a machine share: a bit for each page.
#[derive(Debug, Clone)]
pub(crate) struct WrittenPages(Arc<[AtomicU64]>);

impl WrittenPages {
    /// No page of guest memory that ends at `ram_end`.
    pub(crate) fn new(ram_end: u64) -> Self {
        let words = (ram_end >> 12).div_ceil(64);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Enters the page of `gpa`, unless it is not in RAM.
    #[inline]
    pub(crate) fn add(&self, gpa: u64) {
        let page = gpa >> 12;
        if let Some(word) = self.0.get((page / 64) as usize) {
            let bit = 1 << (page % 64);
            // Most pages have been entered before.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Removes all pages. Returns their guest-physical addresses, lowest first.
    pub(crate) fn take(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (word, first) in self.0.iter().zip((0..).step_by(64)) {
            // The word of most pages is zero.
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut left = word.swap(0, Ordering::Relaxed);
            while left != 0 {
                pages.push((first + u64::from(left.trailing_zeros())) << 12);
                left &= left - 1;
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_once() {
        let pages = WrittenPages::new(0x10_0000 - 0x1000);
        let other = pages.clone();
        for gpa in [0x5FFF, 0x5000, 0, 0xF_E000, 0xF_F000, 0x4_0000, u64::MAX] {
            pages.add(gpa);
        }
        // Pages up to a multiple of 64 have a place, and none of them is taken for another.
        assert_eq!(other.take(), [0, 0x5000, 0x4_0000, 0xF_E000, 0xF_F000]);
        assert!(pages.take().is_empty());
        other.add(0x5000);
        assert_eq!(pages.take(), [0x5000]);
    }
}
