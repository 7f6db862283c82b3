//! Encodes branches.

use rustc_hash::FxHashMap;

use super::predictor::{
    CLASSES, Context, MAX_NODES, Nodes, RECENT, class_of, confirmed, node_of, position,
};
use super::streams::{self, Bits, KNOWN, NEW, symbol};
use crate::{Branch, Error, varint};

/// The stream of a class: a symbol for each wrong prediction, and the bits of long runs.
#[derive(Debug, Clone, Default)]
struct Class {
    symbols: Vec<u8>,
    bits: Bits,
}

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
pub struct Encoder {
    nodes: Nodes,
    /// The node of each branch. A hash without a key is enough, as for places.
    known: FxHashMap<Branch, u32>,
    /// For each [`place`], the node that was found in `known` last.
    places: Box<[u32; PLACES]>,
    /// The node whose branch is new, until its code is in the output.
    fresh: Option<u32>,
    /// Branches so far.
    count: u64,
    /// For each class: correct predictions since the last wrong one.
    runs: Box<[u32; CLASSES]>,
    classes: Vec<Class>,
    /// Number of wrong predictions.
    wrong: usize,
    named: Vec<u8>,
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
            runs: Box::new([0; CLASSES]),
            classes: vec![Class::default(); CLASSES],
            wrong: 0,
            named: Vec::new(),
            new: Vec::new(),
        };
        encoder.clear();
        encoder
    }
}

impl Encoder {
    /// Number of branches so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of the encoded form so far, about.
    pub fn len(&self) -> usize {
        self.wrong + self.named.len() + self.new.len()
    }

    /// Whether `more` branches may be too many for the tables.
    pub fn is_full(&self, more: usize) -> bool {
        self.nodes.len() + more > MAX_NODES
    }

    /// Adds branches of the task of `context`.
    pub fn push(&mut self, branches: &[Branch], context: &mut Context) {
        let mut at = *context;
        for branch in branches {
            // The host finds the nodes of several branches at once, because none of them depends
            // on a prediction.
            let place = place(branch);
            let mut node = self.places[place];
            if self.nodes.branches.get(node as usize) != Some(branch) {
                node = self.look_up(branch, place, at.last);
            }
            match self.nodes.entry(&at) {
                Some(entry) if node_of(*entry) == node => {
                    self.runs[class_of(*entry)] += 1;
                    *entry = confirmed(*entry);
                }
                Some(&mut prediction) => self.push_other(node, at, prediction),
                None => {}
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
    #[inline(never)]
    fn push_other(&mut self, node: u32, context: Context, prediction: u32) {
        let code = self.correct(node, context.last, node_of(prediction));
        let class = class_of(prediction);
        let run = std::mem::take(&mut self.runs[class]);
        let class = &mut self.classes[class];
        class.symbols.push(symbol(run, code, &mut class.bits));
        self.wrong += 1;
        self.nodes.correct_entry(&context, node);
    }

    /// The code of a node that follows `last` and is not `predicted`.
    fn correct(&mut self, node: u32, last: u32, predicted: u32) -> u8 {
        let recent = &mut self.nodes.recent[last as usize];
        let at = position(recent, node);
        if at < RECENT {
            // The prediction has no code.
            let skipped = position(recent, predicted) < at;
            recent.swap(0, at);
            return (at - usize::from(skipped)) as u8;
        }
        self.nodes.correct(last, node);
        if self.fresh.take() == Some(node) {
            return NEW;
        }
        varint::push(&mut self.named, node.into());
        KNOWN
    }

    /// Appends the encoded form to `out`, and starts again.
    ///
    /// # Errors
    /// There is no memory for zstd.
    pub fn finish(
        &mut self,
        out: &mut Vec<u8>,
        compressor: &mut zstd::bulk::Compressor<'_>,
    ) -> Result<(), Error> {
        for class in &mut self.classes {
            streams::push(out, &class.symbols, compressor)?;
            streams::push(out, class.bits.finish(), compressor)?;
        }
        streams::push(out, &self.named, compressor)?;
        streams::push(out, &self.new, compressor)?;
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.known.clear();
        self.known.insert(Branch::default(), 0);
        self.places.fill(0);
        (self.count, self.wrong) = (0, 0);
        self.runs.fill(0);
        for class in &mut self.classes {
            class.symbols.clear();
            class.bits.clear();
        }
        self.named.clear();
        self.new.clear();
    }
}
