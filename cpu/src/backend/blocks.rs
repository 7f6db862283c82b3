//! The blocks of a processor, and how native code refers to them.
//!
//! Native code outlives the block from which it was translated, because code memory is cleared only
//! as a whole. So it does not contain the address of an operation but a [`BlockHandle`], which
//! finds nothing after the block has been removed. While native code or the interpreter runs, it
//! borrows the blocks, so that none can be removed during an operation.

use crate::backend::block::{Block, BlockId};
use crate::backend::interpreter::op::Op;

/// Upper bound on the cached blocks of all processors of a machine.
const MAX_BLOCKS: usize = 1 << 19;
/// Upper bound on the cached operations of all processors of a machine: 384 MiB. Linux with a few
/// programs needs far less, on each of eight processors, too. A guest that jumps to every byte of
/// its memory would need more.
const MAX_OPS: usize = if cfg!(test) { 1 << 10 } else { 1 << 23 };

/// Refers to a block, and to no later one with the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHandle {
    /// Index of the block.
    pub id: BlockId,
    /// Number of the block among all that were ever inserted, from 1 on.
    pub generation: u64,
}

/// Blocks by index. An index is used again after its block was removed.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Upper bounds on blocks and operations: this processor's share, so that processors on
    /// different threads need not count together.
    max_blocks: usize,
    max_ops: usize,
    blocks: Vec<Block>,
    /// [`BlockHandle::generation`] of each of `blocks`, [`Self::VACANT`] if it was removed.
    generations: Vec<u64>,
    /// The generation of the last block that was inserted.
    generation: u64,
    /// Operations of all blocks.
    ops: usize,
    free: Vec<BlockId>,
}

impl Blocks {
    const VACANT: u64 = 0;

    /// No blocks, for one of `processors` that share the bounds.
    pub(crate) fn new(processors: usize) -> Self {
        let processors = processors.max(1);
        Self {
            max_blocks: MAX_BLOCKS / processors,
            max_ops: MAX_OPS / processors,
            blocks: Vec::new(),
            generations: Vec::new(),
            generation: Self::VACANT,
            ops: 0,
            free: Vec::new(),
        }
    }

    /// The block with this index.
    #[inline(always)]
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id as usize)
    }

    /// The block with this index, to be changed.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks.get_mut(id as usize)
    }

    /// The index of `block`, one of these.
    pub(crate) fn id(&self, block: &Block) -> BlockId {
        let offset = std::ptr::from_ref(block) as usize - self.blocks.as_ptr() as usize;
        (offset / size_of::<Block>()) as BlockId
    }

    /// A handle of the block with this index, or `None` if the block was removed.
    pub(crate) fn handle(&self, id: BlockId) -> Option<BlockHandle> {
        let generation = *self.generations.get(id as usize)?;
        (generation != Self::VACANT).then_some(BlockHandle { id, generation })
    }

    /// The operations of a block from number `first` to its end, at least one, or `None` if the
    /// block was removed.
    #[inline(always)]
    pub(crate) fn operations(&self, handle: BlockHandle, first: usize) -> Option<&[Op]> {
        let index = handle.id as usize;
        if *self.generations.get(index)? != handle.generation {
            return None;
        }
        let ops = self.blocks.get(index)?.ops.all().get(first..)?;
        (!ops.is_empty()).then_some(ops)
    }

    /// Inserts a block. Returns its index, or `None` if there is no room.
    pub(crate) fn insert(&mut self, block: Block) -> Option<BlockId> {
        let full = self.blocks.len() >= self.max_blocks && self.free.is_empty();
        if full || self.ops + block.ops.count() > self.max_ops {
            return None;
        }
        self.ops += block.ops.count();
        self.generation += 1;
        Some(match self.free.pop() {
            Some(id) => {
                self.blocks[id as usize] = block;
                self.generations[id as usize] = self.generation;
                id
            }
            None => {
                self.blocks.push(block);
                self.generations.push(self.generation);
                (self.blocks.len() - 1) as BlockId
            }
        })
    }

    /// Removes the block with this index and frees its operations.
    pub(crate) fn remove(&mut self, id: BlockId) {
        if self.handle(id).is_some()
            && let Some(block) = self.blocks.get_mut(id as usize)
        {
            let block = std::mem::replace(block, Block::vacant());
            self.generations[id as usize] = Self::VACANT;
            self.ops -= block.ops.count();
            self.free.push(id);
        }
    }

    /// Removes all blocks. Their generations do not come again.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.generations.clear();
        self.ops = 0;
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::interpreter::lower::Lowered;
    use crate::exec;
    use crate::insn::Insn;

    /// A block of `n` operations, of which the last is its end.
    fn block(n: usize) -> Block {
        let lowered = Lowered {
            ops: vec![Op::called(exec::undefined, Insn::INVALID); n - 1],
            branches: 0,
            len: 15,
        };
        Block::new(lowered, &[0; 15])
    }

    #[test]
    fn operations_are_bounded() {
        let mut blocks = Blocks::new(1);
        let half = MAX_OPS / 2;
        assert_eq!(blocks.insert(block(half)), Some(0));
        assert_eq!(blocks.insert(block(half - 1)), Some(1));
        assert_eq!(blocks.insert(block(2)), None, "full");
        assert_eq!(blocks.insert(block(1)), Some(2));
        assert_eq!(blocks.ops, MAX_OPS);
        // Removed blocks make room.
        blocks.remove(1);
        assert_eq!(blocks.ops, half + 1);
        assert_eq!(blocks.insert(block(half - 1)), Some(1));
        blocks.clear();
        assert_eq!(blocks.ops, 0);
    }

    #[test]
    fn processors_share_the_bound() {
        const PROCESSORS: usize = 8;
        let fill = |processors| {
            let mut blocks = Blocks::new(processors);
            while blocks.insert(block(8)).is_some() {}
            blocks.ops
        };
        assert_eq!(fill(1), MAX_OPS);
        assert_eq!(fill(PROCESSORS), MAX_OPS / PROCESSORS);
    }

    #[test]
    fn the_handle_of_a_removed_block_finds_none() {
        let mut blocks = Blocks::new(1);
        let mut old = Vec::new();
        for n in 2..10 {
            let id = blocks.insert(block(n)).unwrap();
            let handle = blocks.handle(id).unwrap();
            let count = |first| blocks.operations(handle, first).map(<[Op]>::len);
            assert_eq!((count(0), count(n - 1), count(n)), (Some(n), Some(1), None));
            old.push(handle);
            // All get the same index.
            if n % 2 == 0 {
                blocks.remove(id);
                assert_eq!(blocks.handle(id), None);
                // To remove it again changes nothing.
                blocks.remove(id);
            } else {
                blocks.clear();
            }
            assert_eq!(id, 0);
            for handle in &old {
                assert!(blocks.operations(*handle, 0).is_none());
            }
        }
    }
}
