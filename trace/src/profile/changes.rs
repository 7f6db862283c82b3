//! Code of the kernel that differs in memory from that in its file. While it runs, the kernel
//! patches alternatives for the processor's features, static keys, returns, and calls of
//! functions.

use std::collections::BTreeMap;

/// Size of the parts in which code is read, a power of two.
pub const PAGE: u64 = 4096;
/// Maximum number of different bytes, and of pieces of them. Further ones are ignored.
const MAX_BYTES: usize = 16 << 20;
const MAX_PIECES: usize = 1 << 20;

/// The offset of bytes in their part, and the bytes.
type Piece = (usize, Box<[u8]>);

/// Bytes in memory, in the place of those in the file.
#[derive(Debug, Default)]
pub struct Changes {
    /// Pieces by the part that they are in. Later ones come last.
    pages: BTreeMap<u64, Vec<Piece>>,
    bytes: usize,
    pieces: usize,
}

impl Changes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Adds the bytes at `address`.
    pub fn add(&mut self, address: u64, bytes: &[u8]) {
        let mut rest = bytes;
        let mut offset = (address % PAGE) as usize;
        for page in pages(address, bytes) {
            let size = rest.len().min(PAGE as usize - offset);
            let (piece, left) = rest.split_at(size);
            if self.bytes + size > MAX_BYTES || self.pieces >= MAX_PIECES {
                return;
            }
            let pieces = self.pages.entry(page).or_default();
            pieces.push((offset, piece.into()));
            self.bytes += size;
            self.pieces += 1;
            (rest, offset) = (left, 0);
        }
    }

    /// Changes `bytes`, which are those of the file from `page` on.
    pub fn apply(&self, page: u64, bytes: &mut [u8]) {
        for (offset, piece) in self.pages.get(&page).into_iter().flatten() {
            // The file may have less.
            for (byte, changed) in bytes.iter_mut().skip(*offset).zip(piece) {
                *byte = *changed;
            }
        }
    }
}

/// Where the parts begin that have the bytes at `address`.
pub fn pages(address: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let offset = address % PAGE;
    let count = (offset + bytes.len() as u64).div_ceil(PAGE);
    let count = if bytes.is_empty() { 0 } else { count };
    let first = address - offset;
    (0..count).map(move |page| first.wrapping_add(page * PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_can_cross_pages() {
        let mut changes = Changes::default();
        assert!(changes.is_empty());
        changes.add(PAGE - 2, &[1, 2, 3]);
        changes.add(PAGE, &[4]);
        let page = |at| {
            let mut bytes = vec![0; PAGE as usize];
            changes.apply(at, &mut bytes);
            bytes
        };
        assert_eq!(page(0)[PAGE as usize - 3..], [0, 1, 2]);
        assert_eq!(page(PAGE)[..2], [4, 0]);
        assert_eq!(page(2 * PAGE), vec![0; PAGE as usize]);
        let mut short = [0];
        changes.apply(0, &mut short);
        assert_eq!(short, [0]);
    }

    #[test]
    fn changes_are_limited() {
        let mut changes = Changes::default();
        for at in 0..40 {
            changes.add(at << 20, &[1; 1 << 20]);
        }
        changes.add(u64::MAX, &[1, 2]);
        assert!(changes.bytes <= MAX_BYTES, "{}", changes.bytes);
        let mut changes = Changes::default();
        changes.add(u64::MAX, &[1, 2]);
        assert_eq!(changes.pieces, 2);
    }
}
