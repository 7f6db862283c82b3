//! A block: instructions that were decoded together.

use crate::backend::interpreter::dispatch::Ops;
use crate::backend::interpreter::lower::Lowered;
use crate::backend::jit::Translation;

const _: () = assert!(size_of::<Block>() == 64);

/// A run of instructions that were decoded together.
#[derive(Debug)]
pub(crate) struct Block {
    /// RIP and key of the last jump to this block. Another jump to this RIP leads here while the
    /// key is one of `JumpKeys`. The key is zero if no jump is remembered.
    rip: u64,
    key: u64,
    pub ops: Ops,
    /// Its native code.
    pub translation: Translation,
    /// The bytes that it was decoded from.
    bytes: Box<[u8]>,
    /// See `BlockCache::revalidate`.
    pub epoch: u64,
}

impl Block {
    /// A block that was decoded from the start of `bytes`.
    pub(crate) fn new(lowered: Lowered, bytes: &[u8]) -> Self {
        Self {
            rip: 0,
            key: 0,
            ops: Ops::new(lowered.ops, lowered.len as u16, lowered.branches),
            translation: Translation::NONE,
            bytes: bytes[..lowered.len].into(),
            epoch: 0,
        }
    }

    /// The block at an index that is not in use.
    pub(crate) fn vacant() -> Self {
        Self::new(Lowered::default(), &[])
    }

    /// RIP of the last jump to it that was remembered.
    #[inline(always)]
    pub(crate) fn rip(&self) -> u64 {
        self.rip
    }

    /// The key with which that jump was remembered.
    #[inline(always)]
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Remembers that a jump to `rip` with this key leads here.
    pub(crate) fn remember(&mut self, rip: u64, key: u64) {
        (self.rip, self.key) = (rip, key);
    }

    /// The bytes that it was decoded from.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether a jump to linear address `la` leads to code that goes on in the next page.
    pub(crate) fn crosses(&self, la: u64) -> bool {
        self.len() > 0x1000 - (la & 0xFFF)
    }
}

/// How far a block goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// Up to an instruction that never continues with the next, or to the end of the page.
    Whole,
    /// One instruction.
    One,
    /// One instruction that goes on in the next page.
    Crossing,
}

/// Index of a block in the cache.
pub(crate) type BlockId = u32;

/// A branch: an operation of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Branch {
    pub block: BlockId,
    pub op: usize,
}
