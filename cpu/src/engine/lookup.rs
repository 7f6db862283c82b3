//! Finds the block of an instruction pointer, and decodes it if it is not cached.

use crate::backend::interpreter::lower;
use crate::backend::jit::CodeId;
use crate::decode::{MAX_BLOCK, MAX_INSTRUCTION};
use crate::engine::SoftCpu;
use crate::engine::block::{Block, BlockId, Extent, LinearPage};
use crate::engine::run::BlockFault;
use crate::insn::{Abort, CodeSize};
use crate::mmu::host_access;
use crate::mmu::tlb::Hit;
use crate::processor::cpu::Cpu;

/// A block that can be run.
pub(super) enum Found {
    /// A block of the cache.
    Cached(BlockId),
    /// A block of the cache that each jump to it has to look up.
    Probed(BlockId),
    /// One instruction that begins at this guest-physical address, and crosses into another page.
    Crossing(u64),
    /// One instruction that is not cached.
    Single(Block),
}

impl SoftCpu {
    /// Finds the block at RIP.
    pub(super) fn look_up(&mut self, extent: Extent) -> Result<Found, BlockFault> {
        let hit = self.fetch()?;
        let is_probed = self.cpu.pass_probe();
        let page = hit.host.wrapping_sub((hit.gpa & 0xFFF) as usize);
        // SAFETY: the page of `hit.host` is RAM, and a cached block does not leave its page.
        let unchanged =
            |offset: u16, bytes: &[u8]| unsafe { is_at(bytes, page.add(offset.into())) };
        if let Some(id) = self
            .cache
            .find(hit.gpa, self.cpu.code_size, extent, unchanged)
            && let Some(block) = self.cache.get(id)
        {
            if !self.cpu.within_code_segment(block.len()) {
                return self.decode_single().map(Found::Single);
            }
            return Ok(self.found(extent, id, &hit, is_probed));
        }
        if self.finds_crossing(&hit)? {
            return Ok(Found::Crossing(hit.gpa));
        }
        let longest = match extent {
            Extent::Whole => MAX_BLOCK,
            Extent::One => 1,
        };
        let block = decode_block(&self.cpu, &hit, longest);
        let size = self.cpu.code_size;
        let Some(block) = block.filter(|b| self.cpu.within_code_segment(b.len())) else {
            let block = self.decode_single()?;
            if block.len() <= left_in_page(hit.gpa) as u64 {
                return Ok(Found::Single(block));
            }
            self.cache.insert_crossing(hit.gpa, size, block);
            return Ok(Found::Crossing(hit.gpa));
        };
        let inserted = match self
            .cache
            .insert(&mut self.cpu.code_map, hit.gpa, size, extent, block)
        {
            Some(inserted) => inserted,
            None => {
                self.cache.clear(&mut self.cpu.code_map);
                self.cpu.flush_tlb(false);
                return self.decode_single().map(Found::Single);
            }
        };
        let (id, first) = inserted;
        if first {
            self.cpu.update_write_tracking(hit.gpa);
            self.cpu.window.close();
        }
        Ok(self.found(extent, id, &hit, is_probed))
    }

    /// A block of the cache that was found at RIP.
    fn found(&mut self, extent: Extent, id: BlockId, hit: &Hit, is_probed: bool) -> Found {
        if is_probed {
            return Found::Probed(id);
        }
        self.remember(extent, id, hit);
        Found::Cached(id)
    }

    /// Whether the cache has the instruction at RIP, which is translated to `hit`, as one that
    /// crosses into another page, and its bytes have not changed.
    fn finds_crossing(&mut self, hit: &Hit) -> Result<bool, BlockFault> {
        let Some(block) = self.cache.crossing(hit.gpa, self.cpu.code_size) else {
            return Ok(false);
        };
        let here = left_in_page(hit.gpa);
        let Some((first, rest)) = block.bytes().split_at_checked(here) else {
            return Ok(false);
        };
        // SAFETY: `hit.host` is RAM with `here` bytes left in its page.
        if !unsafe { is_at(first, hit.host) } {
            return Ok(false);
        }
        let next = self.cpu.linear_ip(self.cpu.rip.wrapping_add(here as u64));
        let more = self
            .cpu
            .translate_fetch(next)
            .map_err(|Abort| BlockFault { stack: false })?;
        // SAFETY: `more.host` is the first byte of a page of RAM, and an instruction is shorter
        // than that.
        let unchanged = unsafe { is_at(rest, more.host) };
        Ok(unchanged && self.cpu.within_code_segment(block.len()))
    }

    /// Remembers that a jump to RIP, which is translated to `hit`, leads to the block `id`, if it
    /// is a whole one.
    fn remember(&mut self, extent: Extent, id: BlockId, hit: &Hit) {
        if extent == Extent::Whole {
            let key = self.cpu.jump_key(self.linear_rip(), hit);
            self.cache.remember(self.cpu.rip, key, id);
            if self.jit.is_some() && self.cpu.code_size == CodeSize::Bits64 {
                self.remember_page(id, hit.gpa, key);
            }
        }
    }

    /// Makes the native code of the page of RIP valid with `key`. The page is that of `gpa`, and
    /// of the block `id`, which a jump to RIP leads to.
    fn remember_page(&mut self, id: BlockId, gpa: u64, key: u64) {
        let page = self.linear_page(self.cpu.rip, key);
        let mapping = self.cache.mapping(gpa, page);
        let (Some(jit), Some(block)) = (&mut self.jit, self.cache.get_mut(id)) else {
            return;
        };
        if let Some(mapping) = mapping {
            jit.validate(mapping, key);
        }
        if jit.is_of_other(block.native, self.cpu.rip, mapping) {
            block.native = CodeId::NONE;
        }
    }

    /// The page of `rip`, jumps to which have the key `key`.
    pub(super) fn linear_page(&self, rip: u64, key: u64) -> LinearPage {
        LinearPage {
            address: rip & !0xFFF,
            global: key == self.cpu.jump_keys.global,
        }
    }

    /// Decodes the instruction at RIP, which may cross into another page. Raises #GP(0) if it ends
    /// outside the code segment.
    pub(super) fn decode_single(&mut self) -> Result<Block, BlockFault> {
        let block = self.decode_anywhere()?;
        if self.cpu.within_code_segment(block.len()) {
            return Ok(block);
        }
        let _ = self.cpu.gp(0);
        Err(BlockFault { stack: false })
    }

    /// Decodes the instruction at RIP without a check of the segment's limit at its end.
    fn decode_anywhere(&mut self) -> Result<Block, BlockFault> {
        let hit = self.fetch()?;
        let mut bytes = [0u8; MAX_INSTRUCTION];
        let here = left_in_page(hit.gpa).min(bytes.len());
        // SAFETY: `hit.host` is RAM with at least `here` bytes left in its page.
        unsafe { host_access::load_bytes(hit.host, &mut bytes[..here]) };
        if let Some(single) = lower::single(&self.cpu, &bytes[..here]) {
            return Ok(Block::new(single, &bytes));
        }
        let next = self.cpu.linear_ip(self.cpu.rip.wrapping_add(here as u64));
        let more = self
            .cpu
            .translate_fetch(next)
            .map_err(|Abort| BlockFault { stack: false })?;
        // SAFETY: `more.host` is the first byte of a page of RAM.
        unsafe { host_access::load_bytes(more.host, &mut bytes[here..]) };
        let single = lower::single(&self.cpu, &bytes);
        Ok(Block::new(
            single.unwrap_or_else(|| lower::too_long(&bytes)),
            &bytes,
        ))
    }

    fn linear_rip(&self) -> u64 {
        self.cpu.linear_ip(self.cpu.rip)
    }

    /// Translates RIP.
    fn fetch(&mut self) -> Result<Hit, BlockFault> {
        let la = self.linear_rip();
        if !self.cpu.within_code_segment(1) {
            let _ = self.cpu.gp(0);
            return Err(BlockFault { stack: false });
        }
        self.cpu
            .translate_fetch(la)
            .map_err(|Abort| BlockFault { stack: false })
    }
}

/// Decodes a block of at most `longest` instructions at `hit`, up to the end of the page. Returns
/// `None` if its first instruction crosses the page or is invalid.
fn decode_block(cpu: &Cpu, hit: &Hit, longest: u8) -> Option<Block> {
    let mut bytes = [0u8; MAX_BLOCK as usize * MAX_INSTRUCTION];
    let left = left_in_page(hit.gpa).min(usize::from(longest.min(MAX_BLOCK)) * MAX_INSTRUCTION);
    // SAFETY: `hit.host` is RAM, and `left` bytes from there on are in its page.
    unsafe { host_access::load_bytes(hit.host, &mut bytes[..left]) };
    let block = lower::block(cpu, &bytes[..left], longest)?;
    Some(Block::new(block, &bytes))
}

/// Bytes from `gpa` to the end of its page.
fn left_in_page(gpa: u64) -> usize {
    0x1000 - (gpa & 0xFFF) as usize
}

/// Whether memory at `host` holds `bytes`.
///
/// # Safety
/// As many bytes as `bytes` has are in RAM from `host` on.
unsafe fn is_at(bytes: &[u8], host: *const u8) -> bool {
    // In small steps: most blocks are short, and there are many after a hand-over.
    const STEP: usize = 32;
    bytes.chunks(STEP).enumerate().all(|(i, chunk)| {
        let mut now = [0; STEP];
        let now = &mut now[..chunk.len()];
        // SAFETY: the caller's promise.
        unsafe { host_access::load_bytes(host.add(STEP * i), now) };
        chunk == now
    })
}
