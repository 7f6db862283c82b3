//! Encodes branches.

use rustc_hash::FxHashMap;

use super::predictor::{CLASSES, Context, MAX_NODES, Nodes, RECENT, confirm, entry, prediction};
use super::streams::{self, Bits, KNOWN, NEW, symbol};
use crate::{Branch, Error, varint};

/// The stream of a class: a symbol for each wrong prediction, and the bits of long runs.
#[derive(Debug, Clone, Default)]
struct Class {
    symbols: Vec<u8>,
    bits: Bits,
}

/// Encodes branches.
#[derive(Debug)]
pub struct Encoder {
    nodes: Nodes,
    /// The node of each branch. A hash without a key is enough: a program that provokes collisions
    /// slows down its own trace only.
    known: FxHashMap<Branch, u32>,
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
            let known_branches = self.nodes.branches.as_slice();
            let entry = entry(&at, &mut self.nodes.slots);
            match entry.and_then(|entry| Some((prediction(*entry)?, entry))) {
                Some((next, entry)) if known_branches.get(next.node as usize) == Some(branch) => {
                    self.runs[next.class] += 1;
                    confirm(entry);
                    at.advance(next.node);
                }
                _ => at = self.push_other(*branch, at),
            }
        }
        self.count += branches.len() as u64;
        *context = at;
    }

    /// Adds a branch that has no entry, or another one. Returns the context after it.
    #[inline(never)]
    fn push_other(&mut self, branch: Branch, mut context: Context) -> Context {
        let prediction = self.nodes.predict(&context);
        let mut node = prediction.node;
        if self.nodes.branches[node as usize] == branch {
            self.runs[prediction.class] += 1;
        } else {
            let code;
            (node, code) = self.correct(branch, context.last, node);
            let run = std::mem::take(&mut self.runs[prediction.class]);
            let class = &mut self.classes[prediction.class];
            class.symbols.push(symbol(run, code, &mut class.bits));
            self.wrong += 1;
        }
        self.nodes.update(&context, node);
        context.advance(node);
        context
    }

    /// The node of a branch that follows `last` and is not `predicted`, and its code.
    fn correct(&mut self, branch: Branch, last: u32, predicted: u32) -> (u32, u8) {
        let recent = &mut self.nodes.recent[last as usize];
        let mut code = 0;
        for at in 0..RECENT {
            let node = recent[at];
            if self.nodes.branches[node as usize] == branch {
                recent.swap(0, at);
                return (node, code);
            }
            code += u8::from(node != predicted);
        }
        let (node, code) = match self.known.get(&branch) {
            Some(&node) => {
                varint::push(&mut self.named, node.into());
                (node, KNOWN)
            }
            None => {
                let difference = |a: u64, b: u64| a.wrapping_sub(b).cast_signed();
                let before = self.nodes.branches[last as usize].to;
                varint::push_signed(&mut self.new, difference(branch.from, before));
                varint::push_signed(&mut self.new, difference(branch.to, branch.from));
                let node = self.nodes.push(branch);
                self.known.insert(branch, node);
                (node, NEW)
            }
        };
        self.nodes.correct(last, node);
        (node, code)
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
