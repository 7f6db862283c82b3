//! The prediction of the next branch, which the encoder and the decoder make alike.
//!
//! After most branches the same one always follows: one entry is enough to predict that. A branch
//! that others have followed, too, has [`SLOTS`] entries, and the branches before it select one of
//! them. The critical path of a prediction is one load, whose address is known from the node: the
//! slot does not depend on the last branch, and the host predicts how many entries there are.

use std::hint::select_unpredictable;

use super::corrections::Corrections;
use crate::Branch;

/// Nodes that there can be. Entries have room for the index of one.
pub(super) const MAX_NODES: usize = 1 << NODE_BITS;
const NODE_BITS: u32 = 18;
/// Entries of a node that different ones have followed.
const SLOTS: usize = 32;

/// The confidence in an entry is above its node. It counts right predictions, minus wrong ones.
const CONFIDENCE: u32 = 1 << NODE_BITS;
const MAX_CONFIDENCE: u32 = 7;

/// In the place of the single entry of a node that has [`SLOTS`] of them.
const MANY: u32 = u32::MAX;

/// The last branches of one task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Context {
    /// The node of the last branch.
    pub last: u32,
    /// A hash of about five branches before it.
    path: u32,
}

impl Context {
    /// Takes the node of the next branch.
    #[inline]
    pub(crate) fn advance(&mut self, node: u32) {
        // Multiplicative hashing (Knuth, TAOCP 6.4). Older branches leave at the top.
        let last = self.last.wrapping_mul(0x9E37_79B1);
        *self = Self {
            last: node,
            path: (self.path << 6).wrapping_add(last),
        };
    }

    #[inline]
    fn slot(&self) -> usize {
        (self.path >> (u32::BITS - SLOTS.ilog2())) as usize
    }
}

/// The different branches so far. Their indices name them; the first one is (0, 0).
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// The branches.
    pub branches: Vec<Branch>,
    /// For each, the entry for what follows it, or [`MANY`].
    single: Vec<u32>,
    /// For each, the entries for what follows it, if there are many.
    slots: Vec<[u32; SLOTS]>,
    /// For each, what has followed when another was predicted.
    pub corrections: Vec<Corrections>,
}

/// The node that an entry predicts.
#[inline(always)]
pub(super) fn node_of(entry: u32) -> u32 {
    entry & (CONFIDENCE - 1)
}

/// What an entry becomes when its prediction is right.
#[inline(always)]
pub(super) fn confirmed(entry: u32) -> u32 {
    let more = entry / CONFIDENCE < MAX_CONFIDENCE;
    entry + if more { CONFIDENCE } else { 0 }
}

/// What an entry becomes when `node` follows, which it does not predict.
#[inline(always)]
fn corrected(entry: u32, node: u32) -> u32 {
    // A branch here would be mispredicted by the host.
    let doubted = entry.wrapping_sub(CONFIDENCE);
    select_unpredictable(entry < 2 * CONFIDENCE, node | CONFIDENCE, doubted)
}

impl Nodes {
    /// Forgets all but the first one.
    pub(super) fn clear(&mut self) {
        self.branches.clear();
        self.single.clear();
        self.slots.clear();
        self.corrections.clear();
        self.push(Branch::default());
    }

    /// Adds a branch, and returns its index.
    pub(super) fn push(&mut self, branch: Branch) -> u32 {
        self.branches.push(branch);
        self.single.push(0);
        self.slots.push([0; SLOTS]);
        self.corrections.push(Corrections::default());
        self.branches.len() as u32 - 1
    }

    /// Number of branches.
    pub(super) fn len(&self) -> usize {
        self.branches.len()
    }

    /// The entry that predicts what follows.
    #[inline(always)]
    pub(super) fn entry(&mut self, context: &Context) -> Option<&mut u32> {
        let last = context.last as usize;
        let single = self.single.get_mut(last)?;
        if *single != MANY {
            return Some(single);
        }
        Some(&mut self.slots.get_mut(last)?[context.slot()])
    }

    /// Takes that `node` has followed, which was not predicted.
    #[inline(always)]
    pub(super) fn correct_entry(&mut self, context: &Context, node: u32) {
        let last = context.last as usize;
        let (Some(single), Some(slots)) = (self.single.get_mut(last), self.slots.get_mut(last))
        else {
            return;
        };
        let entry = &mut slots[context.slot()];
        if *single == MANY {
            *entry = corrected(*entry, node);
        } else if *single < CONFIDENCE {
            *single = node | CONFIDENCE;
        } else {
            *slots = [node_of(*single) | CONFIDENCE; SLOTS];
            slots[context.slot()] = node | CONFIDENCE;
            *single = MANY;
        }
    }
}
