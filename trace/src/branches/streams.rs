//! The streams of an encoded form.

use std::vec::IntoIter;

use super::corrections::KEPT;
use crate::Error;
use crate::chunk::{self, Compressor};
use crate::varint::{self, Cursor};

/// The branch is the one whose index follows. Smaller codes are positions among the last
/// corrections.
pub(super) const KNOWN: u8 = KEPT as u8;
/// The branch is new.
pub(super) const NEW: u8 = KNOWN + 1;

/// Bytes of the index of a branch. Each has a stream of its own.
pub(super) const INDEX_BYTES: usize = 3;

/// Bits of a symbol that have the code.
const CODE_BITS: u32 = 3;
/// Runs of this length have a symbol for each length. Longer ones have one for each power of two.
const SHORT_RUNS: u32 = 10;
/// Lengths that a symbol has room for.
const LENGTHS: u32 = 1 << (u8::BITS - CODE_BITS);
/// The longest run that a symbol can say.
pub(crate) const MAX_RUN: u64 = (1 << (LENGTHS - SHORT_RUNS)) + SHORT_RUNS as u64 - 2;

/// Streams of symbols. How long a run is depends on where it begins.
pub(super) const STREAMS: usize = 32;

/// The stream of the symbol after a correction of the node `last`.
#[inline]
pub(super) fn stream_after(last: u32) -> usize {
    last as usize % STREAMS
}

/// Bytes of a stream for which a frame of its own pays.
const MIN_FRAME: usize = 1 << 10;

/// Bits, the lowest of a byte first.
#[derive(Debug, Default)]
pub(super) struct Bits {
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
    pub(super) fn finish(&mut self) -> &[u8] {
        let rest = self.count.div_ceil(8) as usize;
        self.bytes.extend(self.last.to_le_bytes().iter().take(rest));
        (self.last, self.count) = (0, 0);
        &self.bytes
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.last, self.count) = (0, 0);
    }
}

/// Returns the symbol of a run of correct predictions and the code of what follows it. Adds the
/// lower bits of the run's length to `bits`.
#[inline]
pub(super) fn symbol(run: u32, code: u8, bits: &mut Bits) -> u8 {
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

/// The symbols of all streams, and their bits.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    streams: [IntoIter<u8>; STREAMS],
    bits: Vec<u8>,
    /// Bits that were read.
    bit: usize,
}

impl Symbols {
    /// Symbols with their bits.
    pub(super) fn new(streams: [IntoIter<u8>; STREAMS], mut bits: Vec<u8>) -> Self {
        // Bits are read from eight bytes at once.
        bits.extend([0; 8]);
        Self {
            streams,
            bits,
            bit: 0,
        }
    }

    /// The next run and code of a stream, if there is one.
    #[inline]
    pub(super) fn next(&mut self, stream: usize) -> Option<(u32, u8)> {
        let symbol = self.streams[stream].next()?;
        let length = u32::from(symbol >> CODE_BITS);
        let run = if length < SHORT_RUNS {
            length
        } else {
            self.long_run(length - SHORT_RUNS)
        };
        Some((run, symbol & ((1 << CODE_BITS) - 1)))
    }

    /// The run whose length has `count` bits.
    #[inline]
    fn long_run(&mut self, count: u32) -> u32 {
        let window = self.bits.get(self.bit / 8..self.bit / 8 + 8);
        let window = window.and_then(<[u8]>::first_chunk);
        let bits = u64::from_le_bytes(*window.unwrap_or(&[0; 8])) >> (self.bit % 8);
        self.bit += count as usize;
        let above = (1 << count) + (bits as u32 & ((1 << count) - 1));
        above + SHORT_RUNS - 1
    }
}

/// Appends a stream: its size, its size here, and its bytes, compressed if that makes it smaller.
pub(super) fn push(
    out: &mut Vec<u8>,
    stream: &[u8],
    compressor: &mut Compressor,
) -> Result<(), Error> {
    varint::push(out, stream.len() as u64);
    if stream.len() >= MIN_FRAME {
        let frame = compressor.frame(stream)?;
        if frame.len() < stream.len() {
            varint::push_bytes(out, &frame);
            return Ok(());
        }
    }
    varint::push_bytes(out, stream);
    Ok(())
}

/// Reads a stream that has at most `limit` bytes.
pub(super) fn take(cursor: &mut Cursor<'_>, limit: usize) -> Result<Vec<u8>, Error> {
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
            runs in prop::collection::vec((0..=MAX_RUN as u32, 0..22_u32, 0..=NEW), 0..100)
        ) {
            let shift = |(run, bits, code)| (run >> bits, code);
            let runs: Vec<_> = runs.into_iter().map(shift).collect();
            let mut bits = Bits::default();
            let mut streams = [const { Vec::new() }; STREAMS];
            for (at, (run, code)) in runs.iter().enumerate() {
                streams[at % STREAMS].push(symbol(*run, *code, &mut bits));
            }
            let streams = streams.map(Vec::into_iter);
            let mut symbols = Symbols::new(streams, bits.finish().to_vec());
            for (at, run) in runs.into_iter().enumerate() {
                prop_assert_eq!(symbols.next(at % STREAMS), Some(run));
            }
            for stream in 0..STREAMS {
                prop_assert_eq!(symbols.next(stream), None);
            }
        }
    }

    #[test]
    fn the_longest_run_fits() {
        let mut bits = Bits::default();
        let symbol = symbol(MAX_RUN as u32, NEW, &mut bits);
        assert_eq!(u32::from(symbol >> CODE_BITS), LENGTHS - 1);
        let mut streams = [const { Vec::new() }; STREAMS];
        streams[0].push(symbol);
        let bits = bits.finish().to_vec();
        let mut symbols = Symbols::new(streams.map(Vec::into_iter), bits);
        assert_eq!(symbols.next(0), Some((MAX_RUN as u32, NEW)));
    }
}
