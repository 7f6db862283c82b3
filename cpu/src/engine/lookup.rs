//! Finds the block of an instruction pointer, and decodes it if it is not cached.

use crate::backend::block::{Block, BlockId, Extent};
use crate::backend::interpreter::lower;
use crate::decode::{MAX_BLOCK, MAX_INSTRUCTION};
use crate::engine::SoftCpu;
use crate::engine::run::BlockFault;
use crate::insn::{Abort, CodeSize};
use crate::mmu::host_access;
use crate::mmu::paging::pf;
use crate::mmu::tlb::Hit;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::pending_work::VmmRequests;

/// A block that can be run.
pub(super) enum Found {
    /// A block of the cache.
    Cached(BlockId),
    /// A block of the cache that each jump to it has to look up.
    Probed(BlockId),
    /// One instruction that is not cached.
    Single(Block),
    /// None: the processor returns to the VMM first.
    Stop,
}

impl SoftCpu {
    /// Finds the block at RIP.
    pub(super) fn look_up(&mut self, extent: Extent) -> Result<Found, BlockFault> {
        let hit = match self.fetch() {
            Ok(hit) => hit,
            Err(fault) => return self.look_up_unexecutable(fault),
        };
        if extent == Extent::Whole && self.cpu.has_breakpoint_near(self.linear_rip()) {
            return self.look_up_near_breakpoint(&hit);
        }
        let is_probed = self.cpu.pass_probe();
        if is_probed && self.cpu.pending_work.contains(VmmRequests::STOP) {
            return Ok(Found::Stop);
        }
        self.look_up_at(&hit, extent, is_probed)
    }

    /// Stops at a breakpoint at RIP whose page is present and not executable: a debugger has the
    /// functions that it calls return to one on the stack. The kernel maps a page that is not
    /// present, and the breakpoint is hit when the instruction begins again.
    #[cold]
    fn look_up_unexecutable(&mut self, fault: BlockFault) -> Result<Found, BlockFault> {
        let is_present = matches!(self.cpu.fault, Fault::Page { error, .. } if error & pf::P != 0);
        if is_present
            && self.cpu.pass_breakpoint(self.linear_rip())
            && self.cpu.pending_work.contains(VmmRequests::STOP)
        {
            return Ok(Found::Stop);
        }
        Err(fault)
    }

    /// Finds the block at RIP, in a page with a breakpoint. A block ends in front of a breakpoint.
    /// Nothing leads to one that begins there without a look-up, and only its first instruction is
    /// run.
    fn look_up_near_breakpoint(&mut self, hit: &Hit) -> Result<Found, BlockFault> {
        if self.cpu.enter_breakpoint_page(hit.gpa) {
            // Its jumps within the page are not looked up.
            self.cache.forget_native_code_of(hit.gpa);
        }
        let found = self.look_up_at(hit, Extent::Whole, true)?;
        let len = match &found {
            Found::Cached(id) | Found::Probed(id) => self.cache.get(*id).map_or(0, Block::len),
            Found::Single(block) => block.len(),
            Found::Stop => 0,
        };
        let len = match self.cpu.first_breakpoint_in(self.linear_rip(), len) {
            Some(before @ 1..) => self.shorten(hit, before).unwrap_or(len),
            _ => len,
        };
        // Jumps to the block may be remembered for all address spaces.
        if !self.cpu.has_any_breakpoint_in(self.linear_rip(), len) {
            let is_probed = self.cpu.pass_probe();
            return match self.cpu.pending_work.contains(VmmRequests::STOP) {
                true => Ok(Found::Stop),
                false => self.look_up_at(hit, Extent::Whole, is_probed),
            };
        }
        let found = match self.cpu.has_breakpoint_in(self.linear_rip(), len) {
            true => self.look_up_at(hit, Extent::One, true)?,
            false => found,
        };
        self.cpu.pass_probe();
        Ok(match self.cpu.pending_work.contains(VmmRequests::STOP) {
            true => Found::Stop,
            false => found,
        })
    }

    /// Replaces the block at RIP by a shorter one, of `most` bytes at most. Returns its length.
    fn shorten(&mut self, hit: &Hit, most: u64) -> Option<u64> {
        let block = decode_block(&self.cpu, hit, MAX_BLOCK, most as usize)?;
        let (len, size) = (block.len(), self.cpu.code_size);
        let (cpu, cache) = (&mut self.cpu, &mut self.cache);
        let (_, first) = cache.insert(cpu, hit.gpa, size, Extent::Whole, block)?;
        if first {
            self.track_code(hit.gpa);
        }
        Some(len)
    }

    /// Finds the block at RIP, which is translated to `hit`. Each jump to it has to look it up if
    /// `is_probed`.
    fn look_up_at(
        &mut self,
        hit: &Hit,
        extent: Extent,
        is_probed: bool,
    ) -> Result<Found, BlockFault> {
        if extent == Extent::Whole
            && !is_probed
            && let Some(id) = self.last_target(hit)?
        {
            return Ok(Found::Cached(id));
        }
        let page = hit.host.wrapping_sub((hit.gpa & 0xFFF) as usize);
        let unchanged = |offset: u16, bytes: &[u8]| {
            let here = &bytes[..bytes.len().min(0x1000 - usize::from(offset & 0xFFF))];
            // SAFETY: the page of `hit.host` is RAM, and `here` does not leave it.
            unsafe { is_at(here, page.add(offset.into())) }
        };
        let size = self.cpu.code_size;
        for extent_of_block in [extent, Extent::Crossing] {
            if let Some(id) = self.cache.find(hit.gpa, size, extent_of_block, unchanged)
                && let Some(key) = self.key_of(id, hit)?
            {
                return Ok(self.found(extent, id, hit.gpa, key, is_probed));
            }
        }
        let longest = match extent {
            Extent::One => 1,
            _ => MAX_BLOCK,
        };
        let block = decode_block(&self.cpu, hit, longest, usize::MAX);
        let (extent_of_block, block) = match block.filter(|b| self.cpu.within_code_segment(b.len()))
        {
            Some(block) => (extent, block),
            None => (Extent::Crossing, self.decode_single()?),
        };
        if extent_of_block == Extent::Crossing && !block.crosses(hit.gpa) {
            return Ok(Found::Single(block));
        }
        let cpu = &mut self.cpu;
        let inserted = self
            .cache
            .insert(cpu, hit.gpa, size, extent_of_block, block);
        let Some((id, first)) = inserted else {
            self.cache.clear(&mut self.cpu);
            return self.decode_single().map(Found::Single);
        };
        if first {
            self.track_code(hit.gpa);
        }
        match self.key_of(id, hit)? {
            Some(key) => Ok(self.found(extent, id, hit.gpa, key, is_probed)),
            None => self.decode_single().map(Found::Single),
        }
    }

    /// Finds the block to which the last jump to RIP led, if RIP, which is translated to `hit`,
    /// still leads there. After a write to CR3 it mostly does, and this touches less of the host's
    /// memory than to look through the blocks of the page.
    fn last_target(&mut self, hit: &Hit) -> Result<Option<BlockId>, BlockFault> {
        // In other code, RIP need not be a linear address, and segments have limits.
        if self.cpu.code_size != CodeSize::Bits64 {
            return Ok(None);
        }
        let (rip, keys) = (self.cpu.rip, self.cpu.jump_keys);
        let Some(id) = self.cache.jump_before(rip, keys, hit.gpa) else {
            return Ok(None);
        };
        let Some(key) = self.key_of(id, hit)? else {
            return Ok(None);
        };
        if !self.revalidate_code(id, key) {
            return Ok(None);
        }
        self.cache.remember(rip, key, id);
        Ok(Some(id))
    }

    /// Has writes to the page of `gpa` tracked, in which the first code has been found.
    fn track_code(&mut self, gpa: u64) {
        self.cpu.update_write_tracking(gpa);
        self.cpu.window.close();
    }

    /// A block of the cache that was found at RIP, in the page of `gpa`. Jumps to it have the key
    /// `key`.
    fn found(&mut self, extent: Extent, id: BlockId, gpa: u64, key: u64, is_probed: bool) -> Found {
        if is_probed {
            return Found::Probed(id);
        }
        if extent == Extent::Whole {
            self.remember(id, gpa, key);
        }
        Found::Cached(id)
    }

    /// The key of jumps to RIP, which is translated to `hit`, and where the block `id` begins.
    /// `None`: it leaves the code segment, or it is an instruction that crosses into another page
    /// and has other bytes there now.
    fn key_of(&mut self, id: BlockId, hit: &Hit) -> Result<Option<u64>, BlockFault> {
        match self.cache.get(id) {
            Some(block) if !self.cpu.within_code_segment(block.len()) => Ok(None),
            Some(block) if block.crosses(hit.gpa) => self.key_of_crossing(id, hit),
            _ => Ok(Some(self.cpu.jump_key(self.linear_rip(), hit))),
        }
    }

    /// As [`Self::key_of`] for an instruction that crosses into another page.
    fn key_of_crossing(&mut self, id: BlockId, hit: &Hit) -> Result<Option<u64>, BlockFault> {
        let here = left_in_page(hit.gpa);
        let next = self.cpu.linear_ip(self.cpu.rip.wrapping_add(here as u64));
        let more = self
            .cpu
            .translate_fetch(next)
            .map_err(|Abort| BlockFault { stack: false })?;
        let Some(block) = self.cache.get(id) else {
            return Ok(None);
        };
        let rest = block.bytes().get(here..).unwrap_or_default();
        // SAFETY: `more.host` is the first byte of a page of RAM, and an instruction is shorter
        // than that.
        let unchanged = unsafe { is_at(rest, more.host) };
        if !unchanged {
            return Ok(None);
        }
        // The tracking of that page ends with each write to it, which the block survives.
        if self.cpu.ram.code_map().add(more.gpa, rest.len()) {
            self.track_code(more.gpa);
        }
        let key = self.cpu.jump_key(self.linear_rip(), hit);
        let key_of_rest = self.cpu.jump_key(next, &more);
        Ok(Some(match key == key_of_rest {
            true => key,
            false => self.cpu.jump_keys.any,
        }))
    }

    /// Remembers that a jump to RIP, in the page of `gpa`, leads to the block `id` while `key` is
    /// valid.
    fn remember(&mut self, id: BlockId, gpa: u64, key: u64) {
        self.cache.remember(self.cpu.rip, key, id);
        self.validate_page(id, gpa, key);
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
fn decode_block(cpu: &Cpu, hit: &Hit, longest: u8, most: usize) -> Option<Block> {
    let mut bytes = [0u8; MAX_BLOCK as usize * MAX_INSTRUCTION];
    let left = left_in_page(hit.gpa).min(usize::from(longest.min(MAX_BLOCK)) * MAX_INSTRUCTION);
    let left = left.min(most);
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
