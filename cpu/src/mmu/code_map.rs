//! The guest-physical memory that code was decoded from.

/// Bytes that one bit of [`CodeMap`] stands for.
const GRANULE: u64 = 64;

/// The guest-physical bytes that have been decoded: one word a page, one bit for each 64 bytes.
/// Writes to a page with decoded code are tracked.
#[derive(Debug)]
pub(crate) struct CodeMap {
    pages: Vec<u64>,
}

impl CodeMap {
    /// No code in guest memory that ends at `ram_end`.
    pub fn new(ram_end: u64) -> Self {
        Self {
            pages: vec![0; (ram_end >> 12) as usize],
        }
    }

    /// Whether any code was decoded from the page of `gpa`.
    pub fn is_code(&self, gpa: u64) -> bool {
        self.pages
            .get((gpa >> 12) as usize)
            .is_some_and(|&p| p != 0)
    }

    /// Whether code was decoded from a granule that overlaps the `len` bytes at `gpa`. They must
    /// not cross a page.
    pub fn overlaps(&self, gpa: u64, len: usize) -> bool {
        self.pages
            .get((gpa >> 12) as usize)
            .is_some_and(|&p| p & Self::mask(gpa, len) != 0)
    }

    fn mask(gpa: u64, len: usize) -> u64 {
        let first = (gpa & 0xFFF) / GRANULE;
        let last = ((gpa & 0xFFF) + len.max(1) as u64 - 1).min(0xFFF) / GRANULE;
        (u64::MAX >> (63 - (last - first))) << first
    }

    /// Marks bytes as decoded. Returns whether they are the first of their page.
    pub fn add(&mut self, gpa: u64, len: usize) -> bool {
        match self.pages.get_mut((gpa >> 12) as usize) {
            Some(p) => {
                let first = *p == 0;
                *p |= Self::mask(gpa, len);
                first
            }
            None => false,
        }
    }

    /// Forgets the code of the page of `gpa`. Returns whether there was any.
    pub fn clear(&mut self, gpa: u64) -> bool {
        let page = self.pages.get_mut((gpa >> 12) as usize);
        page.is_some_and(|page| std::mem::take(page) != 0)
    }

    /// Forgets all code.
    pub fn clear_all(&mut self) {
        self.pages.fill(0);
    }
}
