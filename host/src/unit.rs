//! What an output consists of, so that one that ends early ends with a whole line or record.

/// What the bytes of a write consist of. A write that ends early leaves whole ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Lines.
    Line,
    /// Pieces of so many bytes.
    Bytes(usize),
}

impl Unit {
    /// A byte.
    pub const BYTE: Self = Self::Bytes(1);

    /// The length of the whole units at the beginning of `bytes`.
    pub fn whole(self, bytes: &[u8]) -> usize {
        match self {
            Self::Line => bytes
                .iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |at| at + 1),
            Self::Bytes(n) => bytes.len() - bytes.len() % n.max(1),
        }
    }

    /// The end of the unit of `bytes` of which the first `written` bytes have a part.
    pub fn end(self, bytes: &[u8], written: usize) -> usize {
        let (before, rest) = bytes.split_at(written.min(bytes.len()));
        if self.whole(before) == written {
            return written;
        }
        let end = match self {
            Self::Line => rest
                .iter()
                .position(|b| *b == b'\n')
                .map(|at| written + at + 1),
            Self::Bytes(n) => Some(written.next_multiple_of(n.max(1))),
        };
        end.map_or(bytes.len(), |end| end.min(bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_lines_or_pieces_of_one_length() {
        let lines = b"one\ntwo\nthree\n";
        let text = |unit: Unit, n| (unit.whole(&lines[..n]), unit.end(lines, n));
        for (written, expected) in [(0, (0, 0)), (3, (0, 4)), (4, (4, 4)), (10, (8, 14))] {
            assert_eq!(text(Unit::Line, written), expected);
        }
        for (written, expected) in [(0, (0, 0)), (3, (0, 7)), (7, (7, 7)), (10, (7, 14))] {
            assert_eq!(text(Unit::Bytes(7), written), expected);
        }
        assert_eq!(text(Unit::BYTE, 3), (3, 3));
        // The last one has no end.
        assert_eq!(Unit::Line.end(b"a\nb", 3), 3);
        assert_eq!(Unit::Bytes(7).end(b"abc", 2), 3);
    }
}
