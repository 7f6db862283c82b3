//! The cache of decoded blocks, by guest-physical address.

use crate::backend::block::{Block, BlockId, Branch, Extent};
use crate::backend::blocks::Blocks;
use crate::backend::interpreter::op::Op;
use crate::backend::jit::Mappings;
use crate::insn::CodeSize;
use crate::processor::cpu::Cpu;
use crate::processor::jump_keys::JumpKeys;

/// Identifies a block in its page: offset, size of code, and extent.
type PageKey = (u16, CodeSize, Extent);

/// What is cached of a guest-physical page.
#[derive(Debug, Default)]
struct Page {
    /// The blocks that begin in it, sorted.
    blocks: Vec<(PageKey, BlockId)>,
    /// The linear pages for which it has native code.
    mappings: Mappings,
    /// The epoch in which the native code was last compared with memory.
    epoch: u64,
}

impl Page {
    /// Forgets the native code of its blocks, which are of `blocks`.
    fn forget_native_code(&mut self, blocks: &mut Blocks) {
        self.mappings.clear();
        for (_, id) in &self.blocks {
            if let Some(block) = blocks.get_mut(*id) {
                block.translation.cool_down();
            }
        }
    }
}

/// Slots for jump targets: a power of two.
const JUMPS: usize = 1 << 16;

/// The cache of decoded blocks.
#[derive(Debug)]
pub(crate) struct BlockCache {
    blocks: Blocks,
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
    pub(super) fn new(ram_end: u64, processors: usize) -> Self {
        let mut pages = Vec::new();
        pages.resize_with((ram_end >> 12) as usize, || None);
        Self {
            blocks: Blocks::new(processors),
            places: Vec::new(),
            pages,
            jumps: Box::new([0; JUMPS]),
            epoch: 0,
        }
    }

    /// Starts an epoch: code may have changed untracked, so each block is compared with memory
    /// before its next use.
    pub(super) fn revalidate(&mut self, cpu: &mut Cpu) {
        self.epoch += 1;
        cpu.new_generation();
    }

    /// The blocks, for native code.
    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    #[inline(always)]
    fn jump_slot(rip: u64) -> usize {
        (rip ^ (rip >> 12)) as usize % JUMPS
    }

    /// The block `hint`, if a jump to `rip` leads to it.
    #[inline(always)]
    pub(super) fn linked(&self, hint: BlockId, rip: u64, keys: JumpKeys) -> Option<&Block> {
        let block = self.blocks.get(hint)?;
        (block.rip() == rip && (block.key() == keys.any || block.key() == keys.global))
            .then_some(block)
    }

    /// The block to which a jump to `rip` leads, if the jump is remembered.
    #[inline(always)]
    pub(super) fn jump(&self, rip: u64, keys: JumpKeys) -> Option<&Block> {
        self.linked(self.jumps[Self::jump_slot(rip)], rip, keys)
    }

    /// The block to which the last jump to `rip` led, if it is in the page of `gpa` and memory has
    /// not changed. The jump had the mode of `keys`, and a key that need not be valid any more.
    pub(super) fn jump_before(&self, rip: u64, keys: JumpKeys, gpa: u64) -> Option<BlockId> {
        let id = self.jumps[Self::jump_slot(rip)];
        let block = self.blocks.get(id)?;
        let same = block.rip() == rip
            && block.key() != 0
            && keys.have_mode_of(block.key())
            && block.epoch == self.epoch
            && self.places.get(id as usize) == Some(&((gpa >> 12) as u32));
        same.then_some(id)
    }

    /// Remembers where a jump to `rip` leads. `key` is one of [`JumpKeys`].
    pub(super) fn remember(&mut self, rip: u64, key: u64, id: BlockId) {
        self.jumps[Self::jump_slot(rip)] = id;
        if let Some(block) = self.blocks.get_mut(id) {
            block.remember(rip, key);
        }
    }

    /// Remembers that `branch` leads to the block `to`.
    pub(super) fn link(&mut self, branch: Branch, to: BlockId) {
        if let Some(block) = self.blocks.get_mut(branch.block) {
            block.ops.link(branch.op, to);
        }
    }

    /// The block to which `branch` has led before. There may be none.
    pub(super) fn link_of(&self, branch: Branch) -> BlockId {
        let block = self.blocks.get(branch.block);
        block.map_or(Op::UNLINKED, |block| block.ops.link_of(branch.op))
    }

    /// The block at `gpa`, if it has been decoded and `unchanged` confirms that memory still has
    /// its bytes at its offset in the page.
    pub(super) fn find(
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
                let block = self.blocks.get(*id);
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
        let block = self.blocks.get_mut(id)?;
        if block.epoch != self.epoch {
            if !unchanged(key.0, block.bytes()) {
                return None;
            }
            block.epoch = self.epoch;
        }
        Some(id)
    }

    /// The linear pages for which the page of `gpa` has native code, if code of it is cached.
    pub(super) fn mappings(&self, gpa: u64) -> Option<&Mappings> {
        Some(&self.pages.get((gpa >> 12) as usize)?.as_ref()?.mappings)
    }

    /// As [`Self::mappings`] for the page of the block `id`, to be changed.
    pub(super) fn mappings_of(&mut self, id: BlockId) -> Option<&mut Mappings> {
        let page = *self.places.get(id as usize)?;
        Some(&mut self.pages.get_mut(page as usize)?.as_mut()?.mappings)
    }

    /// The blocks of 64-bit code that begin inside the block `id`, in its page, each with its
    /// distance in bytes from the start of that block.
    pub(super) fn inside(&self, id: BlockId) -> impl Iterator<Item = (u16, &Block)> {
        let page = self.places.get(id as usize);
        let page = page.and_then(|page| self.pages.get(*page as usize)?.as_ref());
        let (start, len) = self.blocks.get(id).map_or((0, 0), |block| {
            ((block.rip() & 0xFFF) as u16, block.len() as u16)
        });
        let blocks = page.map_or(&[][..], |page| &page.blocks);
        let first = blocks.partition_point(|(key, _)| key.0 <= start);
        blocks[first..]
            .iter()
            .take_while(move |(key, _)| key.0 < start + len)
            .filter(|(key, _)| (key.1, key.2) == (CodeSize::Bits64, Extent::Whole))
            .filter_map(move |(key, id)| Some((key.0 - start, self.blocks.get(*id)?)))
    }

    /// The block with this index, to be changed.
    pub(super) fn get_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks.get_mut(id)
    }

    /// Forgets the native code of all blocks.
    pub(super) fn forget_native_code(&mut self) {
        for page in self.pages.iter_mut().flatten() {
            page.forget_native_code(&mut self.blocks);
        }
    }

    /// Forgets the native code of the blocks of the page of `gpa`.
    pub(super) fn forget_native_code_of(&mut self, gpa: u64) {
        if let Some(Some(page)) = self.pages.get_mut((gpa >> 12) as usize) {
            page.forget_native_code(&mut self.blocks);
        }
    }

    /// The block with this index.
    pub(super) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// Enters a block that was decoded from `gpa`. It replaces the one that was there before, whose
    /// bytes have changed. Returns its index and whether it is the first of its page, or `None` if
    /// the cache is full and has to be cleared first.
    pub(super) fn insert(
        &mut self,
        cpu: &mut Cpu,
        gpa: u64,
        size: CodeSize,
        extent: Extent,
        mut block: Block,
    ) -> Option<(BlockId, bool)> {
        let page = self.pages.get_mut((gpa >> 12) as usize)?;
        block.epoch = self.epoch;
        let len = block.bytes().len();
        let id = self.blocks.insert(block)?;
        let first = cpu.ram.code_map().add(gpa, len);
        self.places
            .resize(self.places.len().max(id as usize + 1), 0);
        self.places[id as usize] = (gpa >> 12) as u32;
        let page = page.get_or_insert_default();
        let key = ((gpa & 0xFFF) as u16, size, extent);
        match page.blocks.binary_search_by_key(&key, |e| e.0) {
            Ok(i) => {
                let old = std::mem::replace(&mut page.blocks[i].1, id);
                page.forget_native_code(&mut self.blocks);
                self.remove(cpu, &[(key, old)]);
            }
            Err(i) => page.blocks.insert(i, (key, id)),
        }
        Some((id, first))
    }

    /// The index of `block`, one of this cache.
    pub(super) fn id(&self, block: &Block) -> BlockId {
        self.blocks.id(block)
    }

    /// Removes the blocks of the page of `gpa`, and returns whether it had any. The caller advances
    /// the processor's keys, as [`Self::remove`] does. An instruction that begins in the page
    /// before stays: it is compared with memory at each look-up.
    pub(super) fn invalidate(&mut self, gpa: u64) -> bool {
        let page = self.pages.get_mut((gpa >> 12) as usize);
        let page = page.and_then(Option::take).unwrap_or_default();
        page.blocks
            .iter()
            .for_each(|(_, id)| self.blocks.remove(*id));
        !page.blocks.is_empty()
    }

    /// Removes blocks that are in no page any more. The processor's keys advance: no jump of
    /// before, neither a link nor one of native code, leads to a block without a look-up. Native
    /// code of the page that held them does not become valid again, because the page has forgotten
    /// it.
    fn remove(&mut self, cpu: &mut Cpu, removed: &[(PageKey, BlockId)]) {
        removed.iter().for_each(|(_, id)| self.blocks.remove(*id));
        cpu.new_generation();
    }

    /// Clears the cache, and advances the processor's keys. Writes to the pages stay tracked until
    /// one overwrites what was code. The TLB stays: a guest could observe a flush.
    pub(super) fn clear(&mut self, cpu: &mut Cpu) {
        self.blocks.clear();
        self.places.clear();
        self.pages.fill_with(|| None);
        self.jumps.fill(0);
        cpu.new_generation();
    }
}
