//! Allocates code memory, by sections.

/// Most bytes of a piece of memory that one kind of code gets at once.
const LARGEST_PIECE: usize = 1 << 20;

/// Kinds of code, which are apart, so that hot code is dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hot,
    Cold,
}

/// A piece of memory that is partly in use.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    /// Offset of the first free byte.
    next: usize,
    end: usize,
}

/// Gives memory to the code of blocks, one after the other. All of it is taken back at once.
#[derive(Debug)]
pub(crate) struct Allocator {
    /// Where the memory begins and ends.
    start: usize,
    end: usize,
    /// Offset of the memory that belongs to no piece.
    free: usize,
    /// Bytes that a request may take.
    longest: usize,
    /// Size of a piece.
    piece: usize,
    /// The pieces in use, by [`Kind`].
    pieces: [Piece; 2],
}

impl Allocator {
    /// An allocator of the bytes from `start` to `end`, for code of at most `longest` bytes.
    pub(crate) fn new(start: usize, end: usize, longest: usize) -> Self {
        let piece = (end.saturating_sub(start) / 8).clamp(longest, LARGEST_PIECE.max(longest));
        Self {
            start,
            end,
            free: start,
            longest,
            piece,
            pieces: [Piece::default(); 2],
        }
    }

    /// Takes all memory back.
    pub(crate) fn clear(&mut self) {
        self.free = self.start;
        self.pieces = [Piece::default(); 2];
    }

    /// Has room for code of both kinds, if there is some. Returns whether there is.
    pub(crate) fn make_room(&mut self) -> bool {
        for piece in &mut self.pieces {
            if piece.next + self.longest > piece.end {
                if self.free + self.piece > self.end {
                    return false;
                }
                *piece = Piece {
                    next: self.free,
                    end: self.free + self.piece,
                };
                self.free += self.piece;
            }
        }
        true
    }

    /// Offset of the next code of a kind. At least `longest` bytes are free there after
    /// [`Self::make_room`].
    pub(crate) fn next(&self, kind: Kind) -> usize {
        self.pieces[kind as usize].next
    }

    /// Takes `len` bytes, at most `longest`, from [`Self::next`] on, and as many as `alignment`
    /// needs.
    pub(crate) fn take(&mut self, kind: Kind, len: usize, alignment: usize) {
        let piece = &mut self.pieces[kind as usize];
        piece.next = (piece.next + len).next_multiple_of(alignment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_does_not_overlap_and_fills_the_memory() {
        const START: usize = 100;
        const END: usize = 100_000;
        const LONGEST: usize = 1000;
        // Of one kind, there is three times as much as of the other.
        let mut allocator = Allocator::new(START, END, LONGEST);
        for _ in 0..2 {
            let mut used = Vec::new();
            while allocator.make_room() {
                for (kind, len) in [(Kind::Hot, 300), (Kind::Cold, 100)] {
                    let at = allocator.next(kind);
                    assert!(at >= START && at + LONGEST <= END);
                    used.push(at..at + len);
                    allocator.take(kind, len, 4);
                }
            }
            used.sort_by_key(|range| range.start);
            assert!(used.windows(2).all(|two| two[0].end <= two[1].start));
            let bytes: usize = used.iter().map(|range| range.len()).sum();
            assert!(bytes > (END - START) * 3 / 4, "{bytes}");
            allocator.clear();
        }
    }

    #[test]
    fn the_least_memory_has_room_for_a_block() {
        let mut allocator = Allocator::new(10, 40, 10);
        assert!(allocator.make_room());
        allocator.take(Kind::Hot, 10, 1);
        allocator.take(Kind::Cold, 1, 1);
        assert!(!allocator.make_room());
        allocator.clear();
        assert!(allocator.make_room());
    }
}
