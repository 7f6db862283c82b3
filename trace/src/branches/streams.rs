//! The streams of an encoded form.

use super::predictor::RECENT;
use crate::varint::{self, Cursor};
use crate::{Error, chunk};

/// The branch is the one whose index follows. Smaller codes are positions among the last
/// corrections.
pub const KNOWN: u8 = RECENT as u8;
/// The branch is new.
pub const NEW: u8 = KNOWN + 1;

/// Bits of a symbol that have the code.
const CODE_BITS: u32 = 3;
/// Runs of this length have a symbol for each length. Longer ones have one for each power of two.
const SHORT_RUNS: u32 = 7;

/// Bytes of a stream for which a frame of its own pays.
const MIN_FRAME: usize = 1 << 10;

/// Bits, the lowest of a byte first.
#[derive(Debug, Clone, Default)]
pub struct Bits {
    bytes: Vec<u8>,
    /// Those that are not in `bytes` yet.
    last: u64,
    count: u32,
}

impl Bits {
    /// Adds the lowest `count` bits of `value`, at most 32.
    fn push(&mut self, value: u32, count: u32) {
        self.last |= u64::from(value) << self.count;
        self.count += count;
        if self.count >= u32::BITS {
            self.bytes.extend((self.last as u32).to_le_bytes());
            self.last >>= u32::BITS;
            self.count -= u32::BITS;
        }
    }

    /// All bytes.
    pub fn finish(&mut self) -> &[u8] {
        let rest = self.count.div_ceil(8) as usize;
        self.bytes.extend(self.last.to_le_bytes().iter().take(rest));
        (self.last, self.count) = (0, 0);
        &self.bytes
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.last, self.count) = (0, 0);
    }
}

/// Returns the symbol of a run of correct predictions and the code of what follows it. Adds the
/// lower bits of the run's length to `bits`.
#[inline]
pub fn symbol(run: u32, code: u8, bits: &mut Bits) -> u8 {
    let length = if run < SHORT_RUNS {
        run
    } else {
        let above = run - SHORT_RUNS + 1;
        let count = above.ilog2();
        bits.push(above - (1 << count), count);
        SHORT_RUNS + count
    };
    (length << CODE_BITS) as u8 | code
}

/// The symbols of a class, and their bits.
#[derive(Debug, Default)]
pub struct Symbols {
    symbols: Vec<u8>,
    at: usize,
    bits: Vec<u8>,
    /// Bits that were read.
    bit: usize,
}

impl Symbols {
    /// Symbols with their bits.
    pub fn new(symbols: Vec<u8>, mut bits: Vec<u8>) -> Self {
        // Bits are read from eight bytes at once.
        bits.extend([0; 8]);
        Self {
            symbols,
            bits,
            at: 0,
            bit: 0,
        }
    }

    /// The next run and code, if there is one.
    #[inline]
    pub fn next(&mut self) -> Option<(u32, u8)> {
        let symbol = *self.symbols.get(self.at)?;
        self.at += 1;
        let (length, code) = (
            u32::from(symbol >> CODE_BITS),
            symbol & ((1 << CODE_BITS) - 1),
        );
        let count = length.saturating_sub(SHORT_RUNS);
        let window = self.bits.get(self.bit / 8..).and_then(<[u8]>::first_chunk);
        let bits = u64::from_le_bytes(*window.unwrap_or(&[0; 8])) >> (self.bit % 8);
        self.bit += count as usize;
        let least = if length < SHORT_RUNS {
            length
        } else {
            (1 << count) + SHORT_RUNS - 1
        };
        Some((least + (bits as u32 & ((1 << count) - 1)), code))
    }
}

/// Appends a stream: its size, its size here, and its bytes, compressed if that makes it smaller.
pub fn push(
    out: &mut Vec<u8>,
    stream: &[u8],
    compressor: &mut zstd::bulk::Compressor<'_>,
) -> Result<(), Error> {
    varint::push(out, stream.len() as u64);
    if stream.len() >= MIN_FRAME {
        let frame = compressor.compress(stream)?;
        if frame.len() < stream.len() {
            varint::push_bytes(out, &frame);
            return Ok(());
        }
    }
    varint::push_bytes(out, stream);
    Ok(())
}

/// Reads a stream that has at most `limit` bytes.
pub fn take(cursor: &mut Cursor<'_>, limit: usize) -> Result<Vec<u8>, Error> {
    let size = usize::try_from(cursor.number()?).unwrap_or(usize::MAX);
    let bytes = cursor.bytes()?;
    if size > limit {
        return Err(Error::Damaged);
    }
    if bytes.len() == size {
        return Ok(bytes.to_vec());
    }
    chunk::decompress(bytes, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_make_a_round_trip(
            runs in prop::collection::vec((0..1_u32 << 25, 0..25_u32, 0..=NEW), 0..100)
        ) {
            let shift = |(run, bits, code)| (run >> bits, code);
            let runs: Vec<_> = runs.into_iter().map(shift).collect();
            let mut bits = Bits::default();
            let symbols = runs.iter().map(|(run, code)| symbol(*run, *code, &mut bits)).collect();
            let mut symbols = Symbols::new(symbols, bits.finish().to_vec());
            for run in runs {
                prop_assert_eq!(symbols.next(), Some(run));
            }
            prop_assert_eq!(symbols.next(), None);
        }
    }
}
