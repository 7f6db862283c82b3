//! The blocks of a processor, and how native code refers to them.
//!
//! Native code outlives the block from which it was translated, because code memory is cleared only
//! as a whole. So it does not contain the address of an operation but a [`BlockHandle`], which
//! finds nothing after the block has been removed. While native code or the interpreter runs, it
//! borrows the blocks, so that none can be removed during an operation.

use crate::backend::block::{Block, BlockId};
use crate::backend::interpreter::op::Op;

/// Upper bound on the memory in bytes of the cached blocks of all processors of a machine. Linux
/// with a few programs needs far less. A guest that jumps to every byte of its memory would need
/// more.
const MAX_MEMORY: usize = if cfg!(test) { 1 << 16 } else { 448 << 20 };
/// Memory of a block in bytes, beside its operations and its bytes: this is what the block cache
/// and the allocator have for it.
const OVERHEAD: usize = 2 * size_of::<Block>();

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
    /// Upper bound on the memory of the blocks in bytes: this processor's share, so that processors
    /// on different threads need not count together.
    max_memory: usize,
    blocks: Vec<Block>,
    /// [`BlockHandle::generation`] of each of `blocks`, [`Self::VACANT`] if it was removed.
    generations: Vec<u64>,
    /// The generation of the last block that was inserted.
    generation: u64,
    /// Memory of all blocks in bytes.
    memory: usize,
    free: Vec<BlockId>,
}

impl Blocks {
    const VACANT: u64 = 0;

    /// No blocks, for one of `processors` that share the bounds.
    pub(crate) fn new(processors: usize) -> Self {
        Self {
            max_memory: MAX_MEMORY / processors.max(1),
            blocks: Vec::new(),
            generations: Vec::new(),
            generation: Self::VACANT,
            memory: 0,
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
        let memory = memory_of(&block);
        if self.memory + memory > self.max_memory {
            return None;
        }
        self.memory += memory;
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
            self.memory -= memory_of(&block);
            self.free.push(id);
        }
    }

    /// Removes all blocks. Their generations do not come again.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.generations.clear();
        self.memory = 0;
        self.free.clear();
    }
}

/// Memory of a block in bytes.
fn memory_of(block: &Block) -> usize {
    OVERHEAD + block.ops.count() * size_of::<Op>() + block.bytes().len()
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
    fn memory_is_bounded() {
        let mut blocks = Blocks::new(1);
        let fill = |blocks: &mut Blocks| {
            let mut last = None;
            while let Some(id) = blocks.insert(block(8)) {
                last = Some(id);
            }
            last.unwrap()
        };
        let last = fill(&mut blocks);
        assert_eq!(blocks.memory, (last as usize + 1) * memory_of(&block(8)));
        assert!(blocks.memory <= MAX_MEMORY);
        assert!(blocks.memory + memory_of(&block(8)) > MAX_MEMORY);
        // A removed block makes room for one.
        blocks.remove(1);
        assert_eq!(blocks.insert(block(8)), Some(1));
        assert_eq!(blocks.insert(block(8)), None);
        blocks.clear();
        assert_eq!(blocks.memory, 0);
        assert_eq!(fill(&mut blocks), last);
    }

    #[test]
    fn processors_share_the_bound() {
        const PROCESSORS: usize = 8;
        let fill = |processors| {
            let mut blocks = Blocks::new(processors);
            while blocks.insert(block(8)).is_some() {}
            blocks.memory
        };
        let spare = memory_of(&block(8));
        for processors in [1, PROCESSORS] {
            let share = MAX_MEMORY / processors;
            assert!((share - spare..=share).contains(&fill(processors)));
        }
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
