//! The codec of branches: a sequence of branches as the corrections of a prediction.
//!
//! A program takes few different branches, and after one of them mostly the same one follows. The
//! encoder and the decoder build the same graph: a [`Node`] for each different branch, in the order
//! in which they first occur, with [`SLOTS`] branches that may follow it. The two branches before
//! it select the slot. The encoded form has the lengths of runs of correct predictions, and what
//! follows instead where the prediction is wrong: mostly one of the last [`RECENT`] branches that
//! have followed the node unexpectedly.
//!
//! The critical path of a correct prediction is one load, whose address is known from the node: the
//! slot does not depend on the last branch.

use rustc_hash::FxHashMap;

use crate::varint::{self, Cursor};
use crate::{Branch, Error};

/// Nodes that a graph can have.
pub const MAX_NODES: usize = 1 << 18;
/// Followers that a node has room for.
const SLOTS: usize = 16;
/// Set in a slot whose last prediction was correct. It is kept after the next wrong one: the last
/// iteration of a loop does not change the prediction of the others.
const CONFIRMED: u32 = 1 << 31;

/// Last corrections that a node keeps.
const RECENT: usize = 8;

/// Codes of wrong predictions. One in between is a position among the last corrections, from 1 on.
const CODE_KNOWN: u8 = 0;
const CODE_NEW: u8 = RECENT as u8 + 1;

/// A branch, and what may follow it.
#[derive(Debug, Clone)]
struct Node {
    branch: Branch,
    /// Indices of nodes, with [`CONFIRMED`].
    next: [u32; SLOTS],
    /// Indices of nodes that have followed when others were predicted, the last one first.
    recent: [u32; RECENT],
}

impl Node {
    /// Moves `node` to the front of the last corrections. It was at position `at`, if at all.
    #[inline]
    fn corrected_by(&mut self, node: u32, at: Option<usize>) {
        let end = at.unwrap_or(RECENT - 1);
        self.recent.copy_within(..end, 1);
        self.recent[0] = node;
    }
}

/// Before the first branch, and what an empty slot predicts.
const ORIGIN: Node = Node {
    branch: Branch { from: 0, to: 0 },
    next: [0; SLOTS],
    recent: [0; RECENT],
};

/// The last branches of one task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Context {
    /// The node of the last branch.
    last: u32,
    /// The node before it.
    before: u32,
    /// The slot of `last` that predicts.
    slot: u32,
}

impl Context {
    #[inline]
    fn advance(&mut self, node: u32) {
        // Multiplicative hashing (Knuth, TAOCP 6.4) of the two nodes before `node`.
        let hash = self.last.wrapping_mul(0x9E37_79B1) ^ self.before.wrapping_mul(0x85EB_CA77);
        *self = Self {
            last: node,
            before: self.last,
            slot: hash >> (u32::BITS - SLOTS.ilog2()),
        };
    }
}

/// Returns the slot after a prediction of `entry`, where `node` was right.
#[inline]
fn corrected(entry: u32, node: u32) -> u32 {
    if entry & CONFIRMED != 0 {
        entry & !CONFIRMED
    } else {
        node
    }
}

/// Encodes branches.
#[derive(Debug)]
pub struct Encoder {
    nodes: Vec<Node>,
    /// The node of each branch. A hash without a key is enough: a program that provokes collisions
    /// slows down its own trace only.
    known: FxHashMap<Branch, u32>,
    /// Branches so far.
    count: u64,
    /// Correct predictions since the last wrong one.
    run: u64,
    runs: Vec<u8>,
    codes: Vec<u8>,
    nodes_named: Vec<u8>,
    new: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        let mut encoder = Self {
            nodes: Vec::new(),
            known: FxHashMap::default(),
            count: 0,
            run: 0,
            runs: Vec::new(),
            codes: Vec::new(),
            nodes_named: Vec::new(),
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
        self.runs.len() + self.codes.len() + self.nodes_named.len() + self.new.len()
    }

    /// Whether `more` branches may be too many for the graph.
    pub fn is_full(&self, more: usize) -> bool {
        self.nodes.len() + more > MAX_NODES
    }

    /// Adds branches of the task of `context`.
    pub fn push(&mut self, branches: &[Branch], context: &mut Context) {
        let (mut at, mut run) = (*context, self.run);
        for branch in branches {
            let entry = self.nodes[at.last as usize].next[at.slot as usize];
            let mut node = entry & !CONFIRMED;
            if self.nodes[node as usize].branch == *branch {
                run += 1;
                if entry == node {
                    self.nodes[at.last as usize].next[at.slot as usize] = node | CONFIRMED;
                }
            } else {
                varint::push(&mut self.runs, run);
                run = 0;
                node = self.correct(*branch, at);
                let slot = &mut self.nodes[at.last as usize].next[at.slot as usize];
                *slot = corrected(entry, node);
            }
            at.advance(node);
        }
        self.count += branches.len() as u64;
        (*context, self.run) = (at, run);
    }

    /// Encodes a branch that was not predicted. Returns its node.
    fn correct(&mut self, branch: Branch, at: Context) -> u32 {
        let last = &self.nodes[at.last as usize];
        // Most corrections need no look at the hash table.
        let is_it = |node: &u32| self.nodes[*node as usize].branch == branch;
        if let Some(position) = last.recent.iter().position(is_it) {
            let node = last.recent[position];
            self.codes.push(position as u8 + 1);
            self.nodes[at.last as usize].corrected_by(node, Some(position));
            return node;
        }
        if let Some(&node) = self.known.get(&branch) {
            self.codes.push(CODE_KNOWN);
            varint::push(&mut self.nodes_named, node.into());
            self.nodes[at.last as usize].corrected_by(node, None);
            return node;
        }
        let difference = |a: u64, b: u64| a.wrapping_sub(b).cast_signed();
        self.codes.push(CODE_NEW);
        varint::push_signed(&mut self.new, difference(branch.from, last.branch.to));
        varint::push_signed(&mut self.new, difference(branch.to, branch.from));
        let node = self.nodes.len() as u32;
        self.nodes.push(Node { branch, ..ORIGIN });
        self.known.insert(branch, node);
        self.nodes[at.last as usize].corrected_by(node, None);
        node
    }

    /// Appends the encoded form to `out`, and starts again.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        varint::push(&mut self.runs, self.run);
        for stream in [&self.runs, &self.codes, &self.nodes_named, &self.new] {
            varint::push_bytes(out, stream);
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.nodes.push(ORIGIN);
        self.known.clear();
        self.known.insert(ORIGIN.branch, 0);
        (self.count, self.run) = (0, 0);
        for stream in [
            &mut self.runs,
            &mut self.codes,
            &mut self.nodes_named,
            &mut self.new,
        ] {
            stream.clear();
        }
    }
}

/// The streams of an encoded form, and how far they are read.
#[derive(Debug, Clone, Copy)]
struct Streams<'a> {
    runs: Cursor<'a>,
    codes: Cursor<'a>,
    nodes_named: Cursor<'a>,
    new: Cursor<'a>,
}

/// Decodes branches.
#[derive(Debug, Default)]
pub struct Decoder {
    encoded: Vec<u8>,
    nodes: Vec<Node>,
    /// Correct predictions before the next wrong one.
    run: u64,
    /// Bytes of each stream that are left, from its end: the streams are in `encoded`.
    left: [(usize, usize); 4],
}

impl Decoder {
    /// Starts to decode an encoded form.
    ///
    /// # Errors
    /// It is damaged.
    pub fn start(&mut self, encoded: Vec<u8>) -> Result<(), Error> {
        self.nodes.clear();
        self.nodes.push(ORIGIN);
        self.encoded = encoded;
        let mut cursor = Cursor(&self.encoded);
        for left in &mut self.left {
            let len = cursor.bytes()?.len();
            let end = self.encoded.len() - cursor.0.len();
            *left = (end - len, end);
        }
        let mut streams = self.streams()?;
        let (run, lengths) = (streams.runs.number()?, streams.lengths());
        self.run = run;
        self.keep(lengths);
        Ok(())
    }

    fn streams(&self) -> Result<Streams<'_>, Error> {
        let stream = |(at, end): (usize, usize)| {
            let bytes = self.encoded.get(at..end).ok_or(Error::Damaged)?;
            Ok::<_, Error>(Cursor(bytes))
        };
        let [runs, codes, nodes_named, new] = self.left;
        Ok(Streams {
            runs: stream(runs)?,
            codes: stream(codes)?,
            nodes_named: stream(nodes_named)?,
            new: stream(new)?,
        })
    }

    fn keep(&mut self, lengths: [usize; 4]) {
        for (left, length) in self.left.iter_mut().zip(lengths) {
            left.0 = left.1 - length;
        }
    }

    /// Appends the next `count` branches, which belong to the task of `context`, to `out`.
    ///
    /// # Errors
    /// The encoded form is damaged. `out` may have some of them.
    pub fn take(
        &mut self,
        count: usize,
        context: &mut Context,
        out: &mut Vec<Branch>,
    ) -> Result<(), Error> {
        let mut nodes = std::mem::take(&mut self.nodes);
        let mut streams = self.streams()?;
        let mut run = self.run;
        let taken = streams.take(count, &mut run, &mut nodes, context, out);
        let lengths = streams.lengths();
        (self.nodes, self.run) = (nodes, run);
        self.keep(lengths);
        taken
    }
}

impl Streams<'_> {
    fn lengths(&self) -> [usize; 4] {
        [self.runs, self.codes, self.nodes_named, self.new].map(|cursor| cursor.0.len())
    }

    fn take(
        &mut self,
        mut count: usize,
        run: &mut u64,
        nodes: &mut Vec<Node>,
        context: &mut Context,
        out: &mut Vec<Branch>,
    ) -> Result<(), Error> {
        let mut at = *context;
        while count > 0 {
            let hits = (*run).min(count as u64) as usize;
            for _ in 0..hits {
                let next = &mut nodes.get_mut(at.last as usize).ok_or(Error::Damaged)?.next;
                let entry = next[at.slot as usize];
                let node = entry & !CONFIRMED;
                next[at.slot as usize] = node | CONFIRMED;
                out.push(nodes.get(node as usize).ok_or(Error::Damaged)?.branch);
                at.advance(node);
            }
            count -= hits;
            *run -= hits as u64;
            if count == 0 {
                break;
            }
            let node = self.correction(nodes, at)?;
            let slot = &mut nodes[at.last as usize].next[at.slot as usize];
            *slot = corrected(*slot, node);
            out.push(nodes.get(node as usize).ok_or(Error::Damaged)?.branch);
            at.advance(node);
            count -= 1;
            *run = self.runs.number()?;
        }
        *context = at;
        Ok(())
    }

    /// Decodes the node of a branch that was not predicted.
    fn correction(&mut self, nodes: &mut Vec<Node>, at: Context) -> Result<u32, Error> {
        let last = nodes.get(at.last as usize).ok_or(Error::Damaged)?;
        let &[code] = self.codes.take(1)? else {
            return Err(Error::Damaged);
        };
        let (node, position) = match code {
            CODE_KNOWN => {
                let node = self.nodes_named.word()?;
                let exists = (node as usize) < nodes.len();
                (exists.then_some(node).ok_or(Error::Damaged)?, None)
            }
            CODE_NEW if nodes.len() < MAX_NODES => {
                let from = last.branch.to.wrapping_add_signed(self.new.signed()?);
                let to = from.wrapping_add_signed(self.new.signed()?);
                let branch = Branch { from, to };
                nodes.push(Node { branch, ..ORIGIN });
                (nodes.len() as u32 - 1, None)
            }
            code if code < CODE_NEW => {
                let position = usize::from(code) - 1;
                (last.recent[position], Some(position))
            }
            _ => return Err(Error::Damaged),
        };
        if let Some(last) = nodes.get_mut(at.last as usize) {
            last.corrected_by(node, position);
        }
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn branch(n: u64) -> Branch {
        let from = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Branch { from, to: !from }
    }

    fn round_trip(tasks: &[(usize, Vec<Branch>)]) -> Vec<u8> {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let mut contexts = [Context::default(); 4];
        for (task, branches) in tasks {
            encoder.push(branches, &mut contexts[*task]);
        }
        let mut encoded = Vec::new();
        encoder.finish(&mut encoded);
        decoder.start(encoded.clone()).unwrap();
        let mut contexts = [Context::default(); 4];
        for (task, branches) in tasks {
            let mut out = Vec::new();
            // Parts of any size give the same.
            let (first, second) = (branches.len() / 3, branches.len() - branches.len() / 3);
            decoder.take(first, &mut contexts[*task], &mut out).unwrap();
            decoder
                .take(second, &mut contexts[*task], &mut out)
                .unwrap();
            assert_eq!(&out, branches);
        }
        encoded
    }

    proptest! {
        #[test]
        fn branches_make_a_round_trip(
            parts in prop::collection::vec(
                (0..4_usize, prop::collection::vec(0..40_u64, 0..200)),
                0..8,
            )
        ) {
            let tasks: Vec<(usize, Vec<Branch>)> = parts
                .into_iter()
                .map(|(task, numbers)| (task, numbers.into_iter().map(branch).collect()))
                .collect();
            round_trip(&tasks);
        }

        #[test]
        fn damaged_forms_are_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            count in 0..5000_usize,
        ) {
            // Half of them begin like a good one.
            if bytes.len() % 2 == 0 {
                let numbers: Vec<Branch> = (0..50).map(|n| branch(n % 7)).collect();
                let mut good = round_trip(&[(0, numbers)]);
                for (byte, change) in good.iter_mut().zip(&bytes) {
                    if change % 8 == 0 {
                        *byte ^= change;
                    }
                }
                bytes = good;
            }
            let mut decoder = Decoder::default();
            let mut out = Vec::new();
            if decoder.start(bytes).is_ok() {
                let _ = decoder.take(count, &mut Context::default(), &mut out);
                prop_assert!(out.len() <= count);
            }
        }
    }

    #[test]
    fn a_loop_takes_no_room() {
        let numbers = (0..1_000_000).map(|n| branch(if n % 1000 == 999 { 1 } else { 0 }));
        let encoded = round_trip(&[(0, numbers.collect())]);
        assert!(encoded.len() < 6000, "{}", encoded.len());
    }
}
