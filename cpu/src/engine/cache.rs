//! The cache of decoded blocks, by guest-physical address.

use crate::backend::interpreter::op::Op;
use crate::backend::jit::{CodeId, MappingId};
use crate::engine::block::{Block, BlockId, Branch, Extent};
use crate::insn::CodeSize;
use crate::mmu::code_map::CodeMap;
use crate::processor::jump_keys::JumpKeys;

/// Identifies a block in its page: offset, size of code, and extent.
type PageKey = (u16, CodeSize, Extent);

/// What is cached of a guest-physical page.
#[derive(Debug, Default)]
struct Page {
    /// The blocks that begin in it, sorted.
    blocks: Vec<(PageKey, BlockId)>,
    /// The linear pages for which it has native code, the oldest first.
    mappings: Vec<Mapping>,
    /// The epoch in which the native code was last compared with memory.
    epoch: u64,
}

/// Upper bound on [`Page::mappings`].
const MAX_MAPPINGS: usize = 8;

/// A linear page that is translated to a guest-physical one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinearPage {
    /// Its first address.
    pub address: u64,
    /// Jumps to it have the key of a global page.
    pub global: bool,
}

/// A linear page with native code.
#[derive(Debug, Clone, Copy)]
struct Mapping {
    page: LinearPage,
    id: MappingId,
}

impl Page {
    /// Forgets the native code of its blocks, which are of `blocks`.
    fn forget_native_code(&mut self, blocks: &mut [Block]) {
        self.mappings.clear();
        for (_, id) in &self.blocks {
            if let Some(block) = blocks.get_mut(*id as usize) {
                block.native = CodeId::NONE;
                if block.heat != Block::NEVER {
                    block.heat = 0;
                }
            }
        }
    }
}

/// Upper bound on the cached blocks of all processors of a machine. A full cache is cleared.
const MAX_BLOCKS: usize = 1 << 19;
/// Upper bound on the cached operations of all processors of a machine: 384 MiB. Linux with a few
/// programs needs far less, on each of eight processors, too. A guest that jumps to every byte of
/// its memory would need more.
const MAX_OPS: usize = if cfg!(test) { 1 << 10 } else { 1 << 23 };

/// Slots for jump targets: a power of two.
const JUMPS: usize = 1 << 16;

/// The cache of decoded blocks.
#[derive(Debug)]
pub(crate) struct BlockCache {
    /// Upper bounds on cached blocks and operations: this processor's share, so that processors
    /// on different threads need not count together.
    max_blocks: usize,
    max_ops: usize,
    blocks: Vec<Block>,
    /// Operations of all blocks.
    ops: usize,
    free: Vec<BlockId>,
    /// Guest-physical page number of each of `blocks`.
    places: Vec<u32>,
    pages: Vec<Option<Box<Page>>>,
    /// The blocks to which jumps have led, by a hash of RIP.
    jumps: Box<[BlockId; JUMPS]>,
    /// The current epoch. Blocks of an earlier epoch may be stale.
    epoch: u64,
}

impl BlockCache {
    /// The cache of one of `processors` that share `ram_end` bytes of memory.
    pub fn new(ram_end: u64, processors: usize) -> Self {
        let mut pages = Vec::new();
        pages.resize_with((ram_end >> 12) as usize, || None);
        let processors = processors.max(1);
        Self {
            max_blocks: MAX_BLOCKS / processors,
            max_ops: MAX_OPS / processors,
            blocks: Vec::new(),
            ops: 0,
            free: Vec::new(),
            places: Vec::new(),
            pages,
            jumps: Box::new([0; JUMPS]),
            epoch: 0,
        }
    }

    /// Starts an epoch: code may have changed untracked, so each block is compared with memory
    /// before its next use.
    pub fn revalidate(&mut self) {
        self.epoch += 1;
    }

    #[inline(always)]
    fn jump_slot(rip: u64) -> usize {
        (rip ^ (rip >> 12)) as usize % JUMPS
    }

    /// The block `hint`, if a jump to `rip` leads to it.
    #[inline(always)]
    pub fn linked(&self, hint: BlockId, rip: u64, keys: JumpKeys) -> Option<&Block> {
        let block = self.blocks.get(hint as usize)?;
        (block.rip() == rip && (block.key() == keys.any || block.key() == keys.global))
            .then_some(block)
    }

    /// The block to which a jump to `rip` leads, if the jump is remembered.
    #[inline(always)]
    pub fn jump(&self, rip: u64, keys: JumpKeys) -> Option<&Block> {
        self.linked(self.jumps[Self::jump_slot(rip)], rip, keys)
    }

    /// The block to which the last jump to `rip` led, if it is in the page of `gpa` and memory has
    /// not changed. The jump had the mode of `keys`, and a key that need not be valid any more.
    pub fn jump_before(&self, rip: u64, keys: JumpKeys, gpa: u64) -> Option<BlockId> {
        let id = self.jumps[Self::jump_slot(rip)];
        let block = self.blocks.get(id as usize)?;
        let same = block.rip() == rip
            && block.key() != 0
            && keys.have_mode_of(block.key())
            && block.epoch == self.epoch
            && self.places.get(id as usize) == Some(&((gpa >> 12) as u32));
        same.then_some(id)
    }

    /// Remembers where a jump to `rip` leads. `key` is one of [`JumpKeys`].
    pub fn remember(&mut self, rip: u64, key: u64, id: BlockId) {
        self.jumps[Self::jump_slot(rip)] = id;
        if let Some(block) = self.blocks.get_mut(id as usize) {
            block.remember(rip, key);
        }
    }

    /// Remembers that `branch` leads to the block `to`.
    pub fn link(&mut self, branch: Branch, to: BlockId) {
        if let Some(block) = self.blocks.get_mut(branch.block as usize) {
            block.ops.link(branch.op, to);
        }
    }

    /// The block to which `branch` has led before. There may be none.
    pub fn link_of(&self, branch: Branch) -> BlockId {
        let block = self.blocks.get(branch.block as usize);
        block.map_or(Op::UNLINKED, |block| block.ops.link_of(branch.op))
    }

    /// The block at `gpa`, if it has been decoded and `unchanged` confirms that memory still has
    /// its bytes at its offset in the page.
    pub fn find(
        &mut self,
        gpa: u64,
        size: CodeSize,
        extent: Extent,
        unchanged: impl Fn(u16, &[u8]) -> bool,
    ) -> Option<BlockId> {
        let page = self.pages.get_mut((gpa >> 12) as usize)?.as_mut()?;
        if page.epoch != self.epoch {
            // Native code of a page becomes valid as a whole.
            let same = |(key, id): &(PageKey, BlockId)| {
                let block = self.blocks.get(*id as usize);
                block.is_some_and(|block| unchanged(key.0, block.bytes()))
            };
            if !page.mappings.is_empty() && !page.blocks.iter().all(same) {
                page.forget_native_code(&mut self.blocks);
            }
            page.epoch = self.epoch;
        }
        let key = ((gpa & 0xFFF) as u16, size, extent);
        let i = page.blocks.binary_search_by_key(&key, |e| e.0).ok()?;
        let id = page.blocks[i].1;
        let block = self.blocks.get_mut(id as usize)?;
        if block.epoch != self.epoch {
            if !unchanged(key.0, block.bytes()) {
                return None;
            }
            block.epoch = self.epoch;
        }
        Some(id)
    }

    /// The linear page as one for which the guest-physical page of `gpa` has native code.
    pub fn mapping(&self, gpa: u64, page: LinearPage) -> Option<MappingId> {
        let mappings = &self.pages.get((gpa >> 12) as usize)?.as_ref()?.mappings;
        mappings.iter().find(|m| m.page == page).map(|m| m.id)
    }

    /// As [`Self::mapping`] for the page of the block `id`. If it is not one yet, it becomes `new`.
    pub fn mapping_of(
        &mut self,
        id: BlockId,
        page: LinearPage,
        new: impl FnOnce() -> MappingId,
    ) -> Option<MappingId> {
        let gpa = u64::from(*self.places.get(id as usize)?) << 12;
        if let Some(known) = self.mapping(gpa, page) {
            return Some(known);
        }
        let cached = self.pages.get_mut((gpa >> 12) as usize)?.as_mut()?;
        if cached.mappings.len() >= MAX_MAPPINGS {
            cached.mappings.remove(0);
        }
        let id = new();
        cached.mappings.push(Mapping { page, id });
        Some(id)
    }

    /// The block with this index, to be changed.
    pub fn get_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks.get_mut(id as usize)
    }

    /// Forgets the native code of all blocks.
    pub fn forget_native_code(&mut self) {
        for page in self.pages.iter_mut().flatten() {
            page.forget_native_code(&mut self.blocks);
        }
    }

    /// The block with this index.
    pub fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id as usize)
    }

    /// Enters a block that was decoded from `gpa`. Returns its index and whether it is the first of
    /// its page, or `None` if the cache is full and has to be cleared first.
    pub fn insert(
        &mut self,
        map: &mut CodeMap,
        gpa: u64,
        size: CodeSize,
        extent: Extent,
        mut block: Block,
    ) -> Option<(BlockId, bool)> {
        let full = self.blocks.len() >= self.max_blocks && self.free.is_empty();
        if full || self.ops + block.ops.count() > self.max_ops {
            return None;
        }
        self.ops += block.ops.count();
        block.epoch = self.epoch;
        let first = map.add(gpa, block.bytes().len());
        let id = match self.free.pop() {
            Some(id) => {
                self.blocks[id as usize] = block;
                id
            }
            None => {
                self.blocks.push(block);
                self.places.push(0);
                (self.blocks.len() - 1) as BlockId
            }
        };
        self.places[id as usize] = (gpa >> 12) as u32;
        let page = self
            .pages
            .get_mut((gpa >> 12) as usize)?
            .get_or_insert_default();
        let key = ((gpa & 0xFFF) as u16, size, extent);
        match page.blocks.binary_search_by_key(&key, |e| e.0) {
            Ok(i) => {
                let old = std::mem::replace(&mut page.blocks[i].1, id);
                // Its native code must not become valid with that of the page.
                page.forget_native_code(&mut self.blocks);
                self.forget(old);
            }
            Err(i) => page.blocks.insert(i, (key, id)),
        }
        Some((id, first))
    }

    /// The index of `block`, one of this cache.
    pub fn id(&self, block: &Block) -> BlockId {
        let offset = std::ptr::from_ref(block) as usize - self.blocks.as_ptr() as usize;
        (offset / size_of::<Block>()) as BlockId
    }

    /// Invalidates the code of the page of `gpa`. Returns whether there was any. An instruction
    /// that begins in the page before stays: it is compared with memory at each look-up.
    pub fn invalidate(&mut self, map: &mut CodeMap, gpa: u64) -> bool {
        let page = self.pages.get_mut((gpa >> 12) as usize);
        for (_, id) in page
            .and_then(Option::take)
            .iter()
            .flat_map(|page| &page.blocks)
        {
            self.forget(*id);
        }
        map.clear(gpa)
    }

    fn forget(&mut self, id: BlockId) {
        if let Some(block) = self.blocks.get_mut(id as usize) {
            let block = std::mem::replace(block, Block::vacant());
            self.ops -= block.ops.count();
            self.free.push(id);
        }
    }

    /// Clears the cache.
    pub fn clear(&mut self, map: &mut CodeMap) {
        map.clear_all();
        self.blocks.clear();
        self.ops = 0;
        self.free.clear();
        self.places.clear();
        self.pages.fill_with(|| None);
        self.jumps.fill(0);
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
        const PAGES: u64 = 2;
        let end = PAGES << 12;
        let (mut cache, mut map) = (BlockCache::new(end, 1), CodeMap::new(end));
        let half = MAX_OPS / 2;
        let mut insert = |gpa, n| {
            let inserted = cache.insert(&mut map, gpa, CodeSize::Bits64, Extent::Whole, block(n));
            (inserted.is_some(), cache.ops)
        };
        assert_eq!(insert(0, half), (true, half));
        assert_eq!(insert(0x1000, half - 1), (true, MAX_OPS - 1));
        assert_eq!(insert(0x1010, 2), (false, MAX_OPS - 1), "full");
        assert_eq!(insert(0x1010, 1), (true, MAX_OPS));
        // Invalidated blocks make room.
        assert!(cache.invalidate(&mut map, 0x1000));
        assert_eq!(cache.ops, half);
        cache.clear(&mut map);
        assert_eq!(cache.ops, 0);
    }
    #[test]
    fn processors_share_the_bound() {
        const PROCESSORS: usize = 8;
        let end = 1 << 12;
        let fill = |processors| {
            let (mut cache, mut map) = (BlockCache::new(end, processors), CodeMap::new(end));
            let size = CodeSize::Bits64;
            let mut insert = |gpa| cache.insert(&mut map, gpa, size, Extent::Whole, block(8));
            (0..end).take_while(|gpa| insert(*gpa).is_some()).count() * 8
        };
        assert_eq!(fill(1), MAX_OPS);
        assert_eq!(fill(PROCESSORS), MAX_OPS / PROCESSORS);
    }
}
