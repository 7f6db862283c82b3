//! The prediction of the next branch, which the encoder and the decoder make alike.
//!
//! Each branch has [`SLOTS`] entries for what follows it. The branches before it select the entry.
//! The critical path of a prediction is one load, whose address is known from the node: the slot
//! does not depend on the last branch.

use crate::Branch;

/// Nodes that there can be. Entries have room for the index of one.
pub const MAX_NODES: usize = 1 << NODE_BITS;
const NODE_BITS: u32 = 18;
/// Last corrections that a node keeps.
pub const RECENT: usize = 6;
/// Entries of a node.
pub const SLOTS: usize = 32;

/// The confidence in an entry is above its node.
const CONFIDENCE: u32 = 1 << NODE_BITS;
const MAX_CONFIDENCE: u32 = 63;

/// Classes of predictions: levels of confidence.
pub const CLASSES: usize = 13;
/// The class of the highest confidence.
pub const SUREST: usize = CLASSES - 1;

/// The level of each confidence.
const LEVEL: [u8; 64] = {
    let mut levels = [0; 64];
    let starts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63];
    let mut confidence = 0;
    while confidence < 64 {
        let mut level = 0;
        while level < starts.len() && confidence >= starts[level] {
            level += 1;
        }
        levels[confidence] = level as u8;
        confidence += 1;
    }
    levels
};

/// The last branches of one task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Context {
    /// The node of the last branch.
    pub last: u32,
    /// A hash of about four branches before it.
    path: u32,
}

impl Context {
    /// Takes the node of the next branch.
    #[inline]
    pub fn advance(&mut self, node: u32) {
        // Multiplicative hashing (Knuth, TAOCP 6.4). Older branches leave at the top.
        let last = self.last.wrapping_mul(0x9E37_79B1);
        *self = Self {
            last: node,
            path: (self.path << 7).wrapping_add(last),
        };
    }

    #[inline]
    fn slot(&self) -> usize {
        (self.path >> (u32::BITS - SLOTS.ilog2())) as usize
    }
}

/// The different branches so far. Their indices name them; the first one is (0, 0).
#[derive(Debug, Default)]
pub struct Nodes {
    /// The branches.
    pub branches: Vec<Branch>,
    /// For each, what follows it.
    pub slots: Vec<[u32; SLOTS]>,
    /// For each, what has followed when another was predicted, the last one mostly first.
    pub recent: Vec<[u32; RECENT]>,
}

/// The first position of `node` among the last corrections, or [`RECENT`]. There is no branch that
/// the host could mispredict.
#[inline]
pub fn position(recent: &[u32; RECENT], node: u32) -> usize {
    let equal = |at: usize| u32::from(recent[at] == node) << at;
    let all = (0..RECENT).fold(1 << RECENT, |all, at| all | equal(at));
    all.trailing_zeros() as usize
}

impl Nodes {
    /// Forgets all but the first one.
    pub fn clear(&mut self) {
        self.branches.clear();
        self.slots.clear();
        self.recent.clear();
        self.push(Branch::default());
    }

    /// Adds a branch, and returns its index.
    pub fn push(&mut self, branch: Branch) -> u32 {
        self.branches.push(branch);
        self.slots.push([0; SLOTS]);
        self.recent.push([0; RECENT]);
        self.branches.len() as u32 - 1
    }

    /// Puts `node` in front of what has followed `last`.
    pub fn correct(&mut self, last: u32, node: u32) {
        if let Some(recent) = self.recent.get_mut(last as usize) {
            recent.copy_within(..RECENT - 1, 1);
            recent[0] = node;
        }
    }

    /// Number of branches.
    pub fn len(&self) -> usize {
        self.branches.len()
    }
}

/// A prediction.
#[derive(Debug, Clone, Copy)]
pub struct Prediction {
    /// The node that is expected.
    pub node: u32,
    /// How sure that is, of [`CLASSES`].
    pub class: usize,
}

#[inline(always)]
fn node_of(entry: u32) -> u32 {
    entry & (CONFIDENCE - 1)
}

/// Whether an entry predicts `node` with the highest confidence.
#[inline(always)]
pub fn is_surest(entry: u32, node: u32) -> bool {
    entry == node | (MAX_CONFIDENCE * CONFIDENCE)
}

/// The prediction of an entry, if it has one.
#[inline(always)]
pub fn prediction(entry: u32) -> Option<Prediction> {
    let confidence = (entry / CONFIDENCE) & MAX_CONFIDENCE;
    (entry > 0).then(|| Prediction {
        node: node_of(entry),
        class: usize::from(LEVEL[confidence as usize]),
    })
}

/// What an entry becomes when `node` follows.
#[inline]
fn updated(entry: u32, node: u32) -> u32 {
    let confidence = entry / CONFIDENCE;
    let same = node_of(entry) == node;
    let (node, confidence) = if !same && confidence < 2 {
        (node, 1)
    } else if same {
        (node, (confidence + 1).min(MAX_CONFIDENCE))
    } else {
        (node_of(entry), confidence / 2)
    };
    node | (confidence * CONFIDENCE)
}

/// The entry that predicts what follows.
#[inline(always)]
pub fn entry<'a>(context: &Context, slots: &'a mut [[u32; SLOTS]]) -> Option<&'a mut u32> {
    let slots = slots.get_mut(context.last as usize)?;
    Some(&mut slots[context.slot()])
}

/// Takes that the prediction of an entry was right.
#[inline(always)]
pub fn confirm(entry: &mut u32) {
    *entry += if *entry / CONFIDENCE < MAX_CONFIDENCE {
        CONFIDENCE
    } else {
        0
    };
}

impl Nodes {
    /// Predicts what follows.
    pub fn predict(&self, context: &Context) -> Prediction {
        let slots = self.slots.get(context.last as usize);
        let entry = slots.map_or(0, |slots| slots[context.slot()]);
        prediction(entry).unwrap_or_else(|| {
            let recent = self.recent.get(context.last as usize);
            let node = recent.map_or(0, |recent| recent[0]);
            Prediction { node, class: 0 }
        })
    }

    /// Takes what has followed.
    pub fn update(&mut self, context: &Context, node: u32) {
        if let Some(slots) = self.slots.get_mut(context.last as usize) {
            let entry = &mut slots[context.slot()];
            *entry = updated(*entry, node);
        }
    }
}
