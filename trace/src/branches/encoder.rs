//! Encodes branches.

use rustc_hash::FxHashMap;

use super::predictor::{Context, MAX_NODES, Nodes, confirmed, node_of};
use super::streams::{self, Bits, KNOWN, MAX_RUN, NEW, STREAMS, stream_after, symbol};
use crate::chunk::Compressor;
use crate::{Branch, Error, varint};

/// Number of places.
const PLACES: usize = 1 << 15;

/// The place of a branch. A program that provokes collisions slows down its own trace only.
#[inline]
fn place(branch: &Branch) -> usize {
    let both = branch.from ^ branch.to.rotate_left(u32::BITS);
    (both.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACES.ilog2())) as usize
}

/// Encodes branches.
#[derive(Debug)]
pub(crate) struct Encoder {
    nodes: Nodes,
    /// The node of each branch. A hash without a key is enough, as for places.
    known: FxHashMap<Branch, u32>,
    /// For each [`place`], the node that was found in `known` last.
    places: Box<[u32; PLACES]>,
    /// The node whose branch is new, until its code is in the output.
    fresh: Option<u32>,
    /// Branches so far.
    count: u64,
    /// Right predictions since the last wrong one.
    run: u32,
    /// The branch before the last wrong prediction.
    corrected: u32,
    /// A symbol for each wrong prediction.
    symbols: [Vec<u8>; STREAMS],
    /// The bits of long runs.
    bits: Bits,
    named: Vec<u32>,
    new: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        let mut encoder = Self {
            nodes: Nodes::default(),
            known: FxHashMap::default(),
            places: Box::new([0; PLACES]),
            fresh: None,
            count: 0,
            run: 0,
            corrected: 0,
            symbols: [const { Vec::new() }; STREAMS],
            bits: Bits::default(),
            named: Vec::new(),
            new: Vec::new(),
        };
        encoder.clear();
        encoder
    }
}

impl Encoder {
    /// Number of branches so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of the encoded form so far, about.
    pub(crate) fn len(&self) -> usize {
        let symbols: usize = self.symbols.iter().map(Vec::len).sum();
        symbols + 2 * self.named.len() + self.new.len()
    }

    /// Whether `more` branches may be too many for the tables, or for a block.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.nodes.len() + more > MAX_NODES || self.count + more as u64 > MAX_RUN
    }

    /// Adds branches of the task of `context`.
    pub(crate) fn push(&mut self, branches: &[Branch], context: &mut Context) {
        let mut at = *context;
        for branch in branches {
            // The host finds the nodes of several branches at once, because none of them depends
            // on a prediction.
            let place = place(branch);
            let mut node = self.places[place];
            if self.nodes.branches.get(node as usize) != Some(branch) {
                node = self.look_up(branch, place, at.last);
            }
            let Some(entry) = self.nodes.entry(&at) else {
                break;
            };
            let prediction = *entry;
            if node_of(prediction) == node {
                *entry = confirmed(prediction);
                self.run += 1;
            } else {
                self.push_other(node, &at, node_of(prediction));
            }
            at.advance(node);
        }
        self.count += branches.len() as u64;
        *context = at;
    }

    /// Returns the node of a branch that its place does not have. It may be new.
    #[cold]
    #[inline(never)]
    fn look_up(&mut self, branch: &Branch, place: usize, last: u32) -> u32 {
        let node = *self.known.entry(*branch).or_insert_with(|| {
            let difference = |a: u64, b: u64| a.wrapping_sub(b).cast_signed();
            let before = self.nodes.branches[last as usize].to;
            varint::push_signed(&mut self.new, difference(branch.from, before));
            varint::push_signed(&mut self.new, difference(branch.to, branch.from));
            *self.fresh.insert(self.nodes.push(*branch))
        });
        self.places[place] = node;
        node
    }

    /// Adds a branch that is not the predicted one.
    #[inline(always)]
    fn push_other(&mut self, node: u32, context: &Context, predicted: u32) {
        let corrections = &mut self.nodes.corrections[context.last as usize];
        let code = corrections.encode(node, predicted);
        let code = code.unwrap_or_else(|| {
            if self.fresh == Some(node) {
                self.fresh = None;
                return NEW;
            }
            self.named.push(node);
            KNOWN
        });
        let run = std::mem::take(&mut self.run);
        let symbols = &mut self.symbols[stream_after(self.corrected)];
        symbols.push(symbol(run, code, &mut self.bits));
        self.corrected = context.last;
        self.nodes.correct_entry(context, node);
    }

    /// Appends the encoded form to `out`, and starts again, also after an error.
    ///
    /// # Errors
    /// There is no memory for zstd.
    pub(crate) fn finish(
        &mut self,
        out: &mut Vec<u8>,
        compressor: &mut Compressor,
    ) -> Result<(), Error> {
        let written = self.write(out, compressor);
        self.clear();
        written
    }

    fn write(&mut self, out: &mut Vec<u8>, compressor: &mut Compressor) -> Result<(), Error> {
        for symbols in &self.symbols {
            streams::push(out, symbols, compressor)?;
        }
        streams::push(out, self.bits.finish(), compressor)?;
        for byte in 0..streams::INDEX_BYTES {
            let bytes: Vec<u8> = self
                .named
                .iter()
                .map(|node| node.to_le_bytes()[byte])
                .collect();
            streams::push(out, &bytes, compressor)?;
        }
        streams::push(out, &self.new, compressor)
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.known.clear();
        self.known.insert(Branch::default(), 0);
        self.places.fill(0);
        (self.count, self.run, self.corrected) = (0, 0, 0);
        for symbols in &mut self.symbols {
            symbols.clear();
        }
        self.bits.clear();
        self.named.clear();
        self.new.clear();
    }
}
