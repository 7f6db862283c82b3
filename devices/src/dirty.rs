//! Which pages of guest memory devices have written.

use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::bitmap::{Bitmap, NewBitmap, RefSlice, WithBitmapSlice};

const PAGE_SHIFT: u32 = 12;
const WORD: usize = 64;

/// A bitmap of written pages in two levels, so that it is quick to find that few pages are in it.
#[derive(Debug, Default)]
pub struct DirtyPages {
    /// Bit *n* of word *i*: page 64*i*+*n* has been written.
    pages: Vec<AtomicU64>,
    /// Bit *n* of word *i*: word 64*i*+*n* of `pages` is not zero.
    words: Vec<AtomicU64>,
}

impl DirtyPages {
    fn page_word(&self, page: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.pages.get(page / WORD)?, 1 << (page % WORD)))
    }

    /// Calls `dirty` with the number of each page that has been written since the last call, lowest
    /// first.
    pub fn take(&self, mut dirty: impl FnMut(u64)) {
        for (i, summary) in self.words.iter().enumerate() {
            // Mostly zero: look before taking.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for word in bits(summary.swap(0, Ordering::AcqRel)) {
                let word = i * WORD + word;
                let pages = self
                    .pages
                    .get(word)
                    .map_or(0, |w| w.swap(0, Ordering::AcqRel));
                bits(pages).for_each(|page| dirty((word * WORD + page) as u64));
            }
        }
    }
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit as usize)
    })
}

impl<'a> WithBitmapSlice<'a> for DirtyPages {
    type S = RefSlice<'a, Self>;
}

impl Bitmap for DirtyPages {
    fn mark_dirty(&self, offset: usize, len: usize) {
        let Some(last) = len.checked_sub(1).map(|l| offset.saturating_add(l)) else {
            return;
        };
        for page in offset >> PAGE_SHIFT..=last >> PAGE_SHIFT {
            let Some((word, bit)) = self.page_word(page) else {
                return;
            };
            if word.fetch_or(bit, Ordering::AcqRel) == 0
                && let Some(summary) = self.words.get(page / WORD / WORD)
            {
                summary.fetch_or(1 << (page / WORD % WORD), Ordering::AcqRel);
            }
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.page_word(offset >> PAGE_SHIFT)
            .is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn slice_at(&self, offset: usize) -> RefSlice<'_, Self> {
        RefSlice::new(self, offset)
    }
}

impl NewBitmap for DirtyPages {
    fn with_len(len: usize) -> Self {
        let pages = len.div_ceil(1 << PAGE_SHIFT);
        let zeros = |n| std::iter::repeat_with(AtomicU64::default).take(n).collect();
        Self {
            pages: zeros(pages.div_ceil(WORD)),
            words: zeros(pages.div_ceil(WORD * WORD)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pages: &DirtyPages) -> Vec<u64> {
        let mut taken = Vec::new();
        pages.take(|page| taken.push(page));
        taken
    }

    #[test]
    fn written_pages_are_reported_once() {
        let pages = DirtyPages::with_len(1 << 30);
        pages.mark_dirty(0x1FFF, 2);
        pages.mark_dirty(0x1FFF, 1);
        pages.mark_dirty((1 << 30) - 1, 1);
        pages.mark_dirty(63 << PAGE_SHIFT, 2 << PAGE_SHIFT);
        pages.mark_dirty(0x5000, 0);
        assert!(pages.dirty_at(0x2ABC) && !pages.dirty_at(0x5000));
        assert_eq!(taken(&pages), [1, 2, 63, 64, (1 << 18) - 1]);
        assert!(taken(&pages).is_empty());
        assert!(!pages.dirty_at(0x2ABC));
    }

    #[test]
    fn slices_count_from_their_start() {
        let pages = DirtyPages::with_len(1 << 20);
        pages.slice_at(0x3000).slice_at(0x800).mark_dirty(0x900, 1);
        assert_eq!(taken(&pages), [4]);
    }

    #[test]
    fn what_lies_outside_is_ignored() {
        let pages = DirtyPages::with_len(0x2001);
        pages.mark_dirty(0x1000, usize::MAX);
        pages.mark_dirty(usize::MAX, 5);
        assert!(!pages.dirty_at(usize::MAX));
        assert_eq!(taken(&pages).len(), 63, "to the end of the bitmap's word");
        assert!(taken(&DirtyPages::default()).is_empty());
    }
}
