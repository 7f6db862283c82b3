//! The transfers in one address space.

use rustc_hash::FxHashMap;

use super::functions::FunctionId;
use super::inlined::Piece;
use super::modules::AddressSpace;
use super::tree::NodeId;

/// What a transfer does to the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it stays in its function.
    Jump,
    /// It calls a function.
    Call,
    /// It returns.
    Return,
    /// It jumps to the beginning of another function.
    Tail,
    /// It jumps into the middle of another function, directly.
    Far,
    /// It jumps there indirectly.
    FarIndirect,
    /// An indirect jump there, between two functions that the process has made.
    FarGenerated,
    /// It continues on another stack.
    Switch,
    /// It enters the kernel.
    Enter,
    /// It leaves the kernel, or an event in it.
    Leave,
    /// The code is not known.
    Blind,
}

/// What [`Transfer::inlined`] has if the line belongs to several chains.
pub const PIECES: u32 = 1 << 31;

/// A straight line and the branch at its end.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Where the line begins.
    pub start: u64,
    /// The branch.
    pub from: u64,
    /// Its target.
    pub to: u64,
    /// Where a call returns to.
    pub ret: u64,
    /// How often it was executed since the counts were added up.
    pub count: u64,
    /// Instructions of the line, with the branch.
    pub instructions: u32,
    /// The chain of inlined functions of the line, or [`PIECES`] and the number of its pieces.
    pub inlined: u32,
    /// The transfer that has followed most recently, of those that are not in [`Space::second`].
    pub next: u32,
    /// The function of the target.
    pub function: FunctionId,
    /// The function begins there.
    pub is_entry: bool,
    /// The last instruction was executed: not if an event came before it.
    pub complete: bool,
    /// What it does to the stack.
    pub effect: Effect,
    /// The last node from which it has called, and the node of the call.
    pub cache: (NodeId, NodeId),
}

/// The transfers in one address space.
#[derive(Debug, Default)]
pub struct Space {
    /// Its mappings.
    pub map: AddressSpace,
    /// The transfers.
    pub transfers: Vec<Transfer>,
    /// For each, the transfer that has followed before the last one that differs from it. A
    /// conditional branch has two successors.
    pub second: Vec<u32>,
    /// The pieces of lines, by their numbers.
    pub pieces: Vec<Box<[Piece]>>,
    /// What the watch has marked each with.
    pub marks: Vec<u32>,
    /// Their numbers.
    index: FxHashMap<(u64, u64, u64), u32>,
}

impl Space {
    /// With these mappings, and no transfers.
    pub fn with(map: AddressSpace) -> Self {
        Self {
            map,
            ..Self::default()
        }
    }

    /// The number of a transfer.
    pub fn find(&self, start: u64, from: u64, to: u64) -> Option<u32> {
        self.index.get(&(start, from, to)).copied()
    }

    /// The number of the transfer that follows `last`, if it has followed it before.
    #[inline]
    pub fn expected(&self, last: u32, start: u64, from: u64, to: u64) -> Option<u32> {
        let fits = |number: u32| {
            let transfer = self.transfers.get(number as usize);
            transfer.is_some_and(|t| t.to == to && t.from == from && t.start == start)
        };
        let first = self.transfers.get(last as usize).map_or(0, |t| t.next);
        if fits(first) {
            return Some(first);
        }
        let second = self.second.get(last as usize).copied()?;
        fits(second).then_some(second)
    }

    /// Notes that `this` has followed `last`, which was not expected.
    pub fn expect(&mut self, last: u32, this: u32) {
        if let Some(last_transfer) = self.transfers.get_mut(last as usize)
            && let Some(second) = self.second.get_mut(last as usize)
        {
            *second = std::mem::replace(&mut last_transfer.next, this);
        }
    }

    /// Adds a transfer with the mark of the watch. Returns its number.
    pub fn add(&mut self, transfer: Transfer, mark: u32) -> u32 {
        let number = self.transfers.len() as u32;
        let key = (transfer.start, transfer.from, transfer.to);
        self.index.insert(key, number);
        self.transfers.push(transfer);
        self.second.push(0);
        self.marks.push(mark);
        number
    }

    /// Keeps the pieces of a line. Returns what [`Transfer::inlined`] is for it.
    pub fn add_pieces(&mut self, pieces: Vec<Piece>) -> u32 {
        let number = self.pieces.len() as u32;
        self.pieces.push(pieces.into());
        PIECES | number
    }

    /// Drops the transfers.
    pub fn clear(&mut self) {
        self.pieces = Vec::new();
        self.transfers = Vec::new();
        self.second = Vec::new();
        self.marks = Vec::new();
        self.index = FxHashMap::default();
    }
}
