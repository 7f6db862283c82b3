//! Code that differs in memory from that in its file. While it runs, the kernel patches
//! alternatives for the processor's features, static keys, returns, and calls of functions. Code
//! that a program has made may be in no file, or in the place of that of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::modules::{InMemory, ModuleId};

/// Size of the parts in which code is read, a power of two.
pub(super) const PAGE: u64 = 4096;
/// Maximum number of different bytes, and of pieces of them. Further ones are ignored.
const MAX_BYTES: usize = 64 << 20;
const MAX_PIECES: usize = 1 << 20;

/// The offset of bytes in their part, and the bytes.
type Piece = (usize, Box<[u8]>);

/// Bytes in memory, in the place of those in the file.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Pieces by the module and the part that they are in. Later ones come last.
    pages: BTreeMap<(ModuleId, u64), Vec<Piece>>,
    modules: BTreeSet<ModuleId>,
    bytes: usize,
    pieces: usize,
}

impl Changes {
    /// Whether code of the module has changed.
    pub(super) fn has(&self, module: ModuleId) -> bool {
        self.modules.contains(&module)
    }

    /// Adds the bytes at `address` of a module.
    pub(super) fn add(&mut self, module: ModuleId, address: u64, bytes: &[u8]) {
        self.modules.insert(module);
        let mut rest = bytes;
        let mut offset = (address % PAGE) as usize;
        for page in pages(address, bytes) {
            let size = rest.len().min(PAGE as usize - offset);
            let (piece, left) = rest.split_at(size);
            if self.bytes + size > MAX_BYTES || self.pieces >= MAX_PIECES {
                return;
            }
            let pieces = self.pages.entry((module, page)).or_default();
            pieces.push((offset, piece.into()));
            self.bytes += size;
            self.pieces += 1;
            (rest, offset) = (left, 0);
        }
    }

    /// Adds the bytes that memory has in the place of those of a mapped file. Returns where the
    /// parts of the file begin that have new ones.
    pub(super) fn copy(&mut self, mapped: &InMemory) -> Vec<u64> {
        let Range { start, end } = mapped.addresses;
        // The text of the mappings is the guest's.
        if start >= end {
            return Vec::new();
        }
        let written = self
            .pages
            .range((mapped.memory, start)..(mapped.memory, end));
        let written: Vec<(u64, Vec<Piece>)> = written
            .map(|((_, page), pieces)| ((page - start).wrapping_add(mapped.offset), pieces.clone()))
            .filter(|(page, pieces)| self.pages.get(&(mapped.module, *page)) != Some(pieces))
            .collect();
        for (page, pieces) in &written {
            for (offset, piece) in pieces {
                self.add(mapped.module, page.wrapping_add(*offset as u64), piece);
            }
        }
        written.into_iter().map(|(page, _)| page).collect()
    }

    /// Changes `bytes`, which are those of the file from `page` on.
    pub(super) fn apply(&self, module: ModuleId, page: u64, bytes: &mut [u8]) {
        for (offset, piece) in self.pages.get(&(module, page)).into_iter().flatten() {
            // The file may have less.
            for (byte, changed) in bytes.iter_mut().skip(*offset).zip(piece) {
                *byte = *changed;
            }
        }
    }

    /// Where the changed bytes from `page` on end.
    pub(super) fn end(&self, module: ModuleId, page: u64) -> usize {
        let pieces = self.pages.get(&(module, page)).into_iter().flatten();
        let ends = pieces.map(|(offset, piece)| offset + piece.len());
        ends.max().unwrap_or(0)
    }
}

/// Where the parts begin that have the bytes at `address`.
pub(super) fn pages(address: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
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
    fn a_file_has_the_code_that_memory_has() {
        let (memory, module) = (1, 2);
        let mut changes = Changes::default();
        changes.add(memory, 7 * PAGE + 5, &[3, 4]);
        changes.add(memory, 9 * PAGE, &[5]);
        let mapped = InMemory {
            memory,
            addresses: 6 * PAGE..9 * PAGE,
            module,
            offset: PAGE,
        };
        assert_eq!(changes.copy(&mapped), [2 * PAGE]);
        assert!(changes.has(module));
        let mut bytes = [0; 8];
        changes.apply(module, 2 * PAGE, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 3, 4, 0]);
        // The mappings are the same again.
        assert!(changes.copy(&mapped).is_empty());
    }

    #[test]
    fn a_change_can_cross_pages() {
        let mut changes = Changes::default();
        assert!(!changes.has(1));
        changes.add(1, PAGE - 2, &[1, 2, 3]);
        changes.add(1, PAGE, &[4]);
        let page = |at| {
            let mut bytes = vec![0; PAGE as usize];
            changes.apply(1, at, &mut bytes);
            bytes
        };
        assert_eq!(page(0)[PAGE as usize - 3..], [0, 1, 2]);
        assert_eq!(page(PAGE)[..2], [4, 0]);
        assert_eq!(page(2 * PAGE), vec![0; PAGE as usize]);
        assert_eq!(
            (changes.end(1, 0), changes.end(1, PAGE)),
            (PAGE as usize, 1)
        );
        assert_eq!(changes.end(2, 0), 0);
        let mut short = [0];
        changes.apply(1, 0, &mut short);
        assert_eq!(short, [0]);
    }

    #[test]
    fn changes_are_limited() {
        let mut changes = Changes::default();
        for at in 0..100 {
            changes.add(1, at << 20, &[1; 1 << 20]);
        }
        changes.add(1, u64::MAX, &[1, 2]);
        assert!(changes.bytes <= MAX_BYTES, "{}", changes.bytes);
        let mut changes = Changes::default();
        changes.add(1, u64::MAX, &[1, 2]);
        assert_eq!(changes.pieces, 2);
    }
}
