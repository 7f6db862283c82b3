//! The run loop.

pub(crate) mod block;

use crate::backend::interpreter::dispatch::{At, Done};
use crate::backend::interpreter::lower;
use crate::backend::interpreter::op::Op;
use crate::decode::{MAX_BLOCK, MAX_INSTRUCTION};
use crate::engine::block::{Block, BlockCache, BlockId, Branch, Extent};
use crate::insn::{Abort, Flow, Insn, reg, seg};
use crate::mmu::tlb::Hit;
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::pending_work::PendingWork;
use crate::processor::platform::Signals;
use crate::processor::pmu::branches_before;
use crate::state::rflags;

/// Instructions that [`SoftCpu::run`] executes at most when time is the host's: some 50 µs.
const SLICE: u64 = 20_000;

/// Why [`SoftCpu::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The time limit was reached; when time is the host's, at times before it.
    Deadline,
    /// The machine was accessed: deadlines may have changed, and memory may have been written by a
    /// device.
    Bus,
    /// HLT, or wait-for-SIPI, with nothing to wake the processor: advance the time to the next
    /// event, if any can come.
    Halt {
        /// Maskable interrupts are off: only an NMI can wake it.
        interrupts_off: bool,
    },
    /// One of several processors seems to wait for another (see `spin`): others should run first.
    Pause,
    /// [`Signals::KICK`] was raised.
    Kick,
    /// [`Signals::INIT`] is raised.
    Init,
    /// Triple fault.
    Shutdown,
}

/// An instruction did not complete; the reason is in [`Cpu`]'s `fault`.
struct BlockFault {
    /// The memory operand was relative to SS: a non-canonical address is #SS.
    stack: bool,
}

/// The software CPU: a processor and its decoded code.
#[derive(Debug)]
pub struct SoftCpu {
    /// The processor.
    pub cpu: Cpu,
    cache: BlockCache,
}

impl SoftCpu {
    /// Runs `cpu` in software.
    pub fn new(cpu: Cpu) -> Self {
        let cache = BlockCache::new(cpu.ram.end());
        Self { cpu, cache }
    }

    /// Skips time that passes while the processor is halted, up to virtual time `now` in
    /// nanoseconds.
    pub fn advance_to(&mut self, now: u64) {
        self.cpu.skipped += now.saturating_sub(self.cpu.now());
    }

    /// A device has written the guest-physical page at `gpa`: code in it is stale, and the DS area
    /// may be.
    pub fn invalidate_page(&mut self, gpa: u64) {
        if !self.cpu.is_write_tracked(gpa) {
            return;
        }
        self.cpu.window.close();
        if self.cache.invalidate(&mut self.cpu.code_map, gpa) {
            self.cpu.update_write_tracking(gpa);
            self.cpu.new_generation();
        }
    }

    /// Code may have changed unseen, as while another accelerator ran the processor.
    pub fn revalidate(&mut self) {
        self.cache.revalidate();
        self.cpu.new_generation();
    }

    /// Takes an event, or runs one instruction.
    pub fn step(&mut self) -> Option<Exit> {
        self.enter(u64::MAX);
        let exit = self.boundary();
        self.cpu.leave_run();
        exit
    }

    /// Runs until `deadline`, a time in nanoseconds, or until something needs the caller.
    pub fn run(&mut self, deadline: u64) -> Exit {
        self.enter(match self.cpu.clock {
            Clock::Instructions => deadline.saturating_sub(self.cpu.skipped),
            Clock::Host(_) => self.cpu.icount + SLICE,
        });
        // What starts and stops counters ends the run.
        let exit = if self.cpu.pmu.branches_count {
            self.run_blocks::<true>()
        } else {
            self.run_blocks::<false>()
        };
        self.cpu.leave_run();
        exit
    }

    /// Before the first block: runs to `limit` in [`Cpu`]'s `icount`.
    fn enter(&mut self, limit: u64) {
        // Other processors, which have run in between, may have written the DS area.
        self.cpu.window.close();
        self.cpu.enter_run(limit);
    }

    /// `BRANCHES`: counts branch instructions.
    fn run_blocks<const BRANCHES: bool>(&mut self) -> Exit {
        // The branch that the last run of blocks ended with, and that is to lead to the next.
        let mut unlinked = None;
        loop {
            let branch = unlinked.take();
            if self.cpu.is_due() {
                if let Some(exit) = self.boundary() {
                    return exit;
                }
                continue;
            }
            let found = match self.cache.jump(self.cpu.rip, self.cpu.jump_keys) {
                Some(block) => Ok(Found::Cached(self.cache.id(block))),
                None => self.look_up(Extent::Whole),
            };
            let exit = match found {
                Ok(Found::Cached(id)) => {
                    if let Some(branch) = branch {
                        self.cache.link(branch, id);
                    }
                    run_linked::<BRANCHES>(&mut self.cpu, &self.cache, id)
                }
                Ok(Found::Crossing(gpa)) => match self.cache.crossing(gpa, self.cpu.code_size) {
                    Some(block) => run_alone::<BRANCHES>(&mut self.cpu, block),
                    None => BlockExit::Lookup,
                },
                Ok(Found::Single(block)) => run_alone::<BRANCHES>(&mut self.cpu, &block),
                Err(fault) => BlockExit::Fault(fault),
            };
            match exit {
                BlockExit::Lookup => {}
                BlockExit::Unlinked(branch) => unlinked = Some(branch),
                BlockExit::Fault(fault) => self.fault(fault),
            }
        }
    }

    /// What has to be seen to between two instructions (SDM Vol. 3A table 6-2, in order of
    /// priority). Runs at most one instruction.
    #[cold]
    #[inline(never)]
    fn boundary(&mut self) -> Option<Exit> {
        // Performance-monitoring interrupts come after the instruction that overflows a counter.
        if self.cpu.pending_work.contains(PendingWork::EVENTS)
            || self.cpu.icount >= self.cpu.pmu.due
        {
            self.cpu.count_events(0);
        }
        let pending = self.cpu.pending_work;
        if pending.contains(PendingWork::SHUTDOWN) {
            return Some(Exit::Shutdown);
        }
        if pending.contains(PendingWork::INVALIDATE) {
            self.cpu.pending_work.remove(PendingWork::INVALIDATE);
            for gpa in std::mem::take(&mut self.cpu.invalid_pages) {
                self.invalidate_page(gpa);
            }
            return None;
        }
        if pending.contains(PendingWork::SERIALIZE) {
            self.cpu.pending_work.remove(PendingWork::SERIALIZE);
            self.revalidate();
            return None;
        }
        if pending.contains(PendingWork::BUS) {
            self.cpu.pending_work.remove(PendingWork::BUS);
            return Some(Exit::Bus);
        }
        if pending.contains(PendingWork::SPINS) {
            self.cpu.pending_work.remove(PendingWork::SPINS);
            return Some(Exit::Pause);
        }
        let signals = self.cpu.signals.get() & self.cpu.signal_mask;
        if signals & Signals::KICK != 0 {
            self.cpu.signals.lower(Signals::KICK);
            return Some(Exit::Kick);
        }
        if signals & Signals::INIT != 0 {
            return Some(Exit::Init);
        }
        if pending.contains(PendingWork::WAIT_FOR_SIPI) {
            return Some(Exit::Halt {
                interrupts_off: true,
            });
        }
        // Before an interrupt that announces the write.
        if signals & Signals::DMA != 0 {
            self.cpu.signals.lower(Signals::DMA);
            return Some(Exit::Bus);
        }
        if pending.contains(PendingWork::ACCEPTED) {
            self.cpu.raise_accepted();
            return None;
        }
        if pending.contains(PendingWork::DEBUG) && !pending.contains(PendingWork::HOLD_TRAP) {
            self.cpu.pending_work.remove(PendingWork::DEBUG);
            self.cpu.raise_debug_trap();
            return None;
        }
        if !pending.contains(PendingWork::SHADOW) {
            if signals & Signals::NMI != 0 {
                self.cpu.pending_work.remove(PendingWork::HALTED);
                if self.cpu.platform.take_nmi() {
                    self.cpu.raise_nmi();
                }
                return None;
            }
            if signals & Signals::INTR != 0 {
                self.cpu.pending_work.remove(PendingWork::HALTED);
                let now = self.cpu.now();
                if let Some(vector) = self.cpu.platform.acknowledge_interrupt(now) {
                    self.cpu.raise_interrupt(vector);
                }
                return None;
            }
        }
        if pending.contains(PendingWork::HALTED) {
            let interrupts_off = self.cpu.eflags & rflags::IF == 0;
            return Some(Exit::Halt { interrupts_off });
        }
        if self.cpu.icount >= self.cpu.run_limit {
            return Some(Exit::Deadline);
        }
        self.run_instruction();
        None
    }

    /// Runs one instruction with everything that [`PendingWork`] may ask for.
    fn run_instruction(&mut self) {
        let before = self.cpu.pending_work;
        if before.contains(PendingWork::BREAKPOINT)
            && !before.intersects(PendingWork::RESUME | PendingWork::HOLD_TRAP)
            && self.cpu.at_breakpoint()
        {
            self.cpu.raise_breakpoint_fault();
            return;
        }
        let result = match self.look_up(Extent::One) {
            Ok(Found::Cached(id)) => match self.cache.get(id) {
                Some(block) => run_one(&mut self.cpu, block),
                None => return,
            },
            Ok(Found::Crossing(gpa)) => match self.cache.crossing(gpa, self.cpu.code_size) {
                Some(block) => run_one(&mut self.cpu, block),
                None => return,
            },
            Ok(Found::Single(block)) => run_one(&mut self.cpu, &block),
            Err(fault) => Some(fault),
        };
        if let Some(fault) = result {
            // The shadow ends with the instruction even if that faults.
            self.cpu
                .pending_work
                .remove((PendingWork::SHADOW | PendingWork::HOLD_TRAP) & before);
            self.fault(fault);
            return;
        }
        self.after_step(before);
    }

    /// An instruction that was run by itself has completed.
    fn after_step(&mut self, before: PendingWork) {
        let cpu = &mut self.cpu;
        // A second STI or MOV SS in the shadow of a first does not prolong it (SDM Vol. 2B, STI).
        cpu.pending_work
            .remove((PendingWork::SHADOW | PendingWork::HOLD_TRAP) & before);
        if before.contains(PendingWork::RESUME) {
            cpu.eflags &= !rflags::RF;
            cpu.pending_work.remove(PendingWork::RESUME);
        }
        // TF counts as it was when the instruction began (SDM Vol. 3B 17.3.1.4).
        if before.contains(PendingWork::TRAP) && !cpu.trap_suppressed() {
            cpu.pending_db |= crate::processor::debug::DR6_BS;
            cpu.pending_work |= PendingWork::DEBUG;
        }
        cpu.pending_work.remove(PendingWork::NO_STEP);
        cpu.branched = false;
    }

    /// An instruction did not complete.
    #[cold]
    fn fault(&mut self, fault: BlockFault) {
        match self.cpu.fault {
            Fault::CodeWrite { gpa } => {
                // Once the code is forgotten the write is an ordinary one. The instruction itself
                // may lie in that page: run it from a block of its own, which is not cached.
                self.invalidate_page(gpa & !0xFFF);
                let before = self.cpu.pending_work;
                match self.decode_single() {
                    Ok(block) => match run_one(&mut self.cpu, &block) {
                        None => self.after_step(before),
                        Some(fault) => self.fault(fault),
                    },
                    Err(fault) => self.fault(fault),
                }
            }
            _ => self.cpu.raise_fault(fault.stack),
        }
    }

    /// The block at RIP.
    fn look_up(&mut self, extent: Extent) -> Result<Found, BlockFault> {
        let hit = self.fetch()?;
        // SAFETY: `hit.host` is RAM, and a cached block does not leave its page.
        let unchanged = |bytes: &[u8]| unsafe { is_at(bytes, hit.host) };
        if let Some(id) = self
            .cache
            .find(hit.gpa, self.cpu.code_size, extent, unchanged)
            && let Some(block) = self.cache.get(id)
        {
            if !self.cpu.within_code_segment(block.len()) {
                return self.decode_single().map(Found::Single);
            }
            self.remember(extent, id, &hit);
            return Ok(Found::Cached(id));
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
        self.remember(extent, id, &hit);
        Ok(Found::Cached(id))
    }

    /// Whether the instruction at RIP, which is translated to `hit`, has been decoded as one that
    /// crosses into another page, and has not changed since.
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
        }
    }

    /// Decodes the one instruction at RIP, which may cross into another page, and must not leave
    /// its segment.
    fn decode_single(&mut self) -> Result<Block, BlockFault> {
        let block = self.decode_anywhere()?;
        if self.cpu.within_code_segment(block.len()) {
            return Ok(block);
        }
        let _ = self.cpu.gp(0);
        Err(BlockFault { stack: false })
    }

    fn decode_anywhere(&mut self) -> Result<Block, BlockFault> {
        let hit = self.fetch()?;
        let mut bytes = [0u8; MAX_INSTRUCTION];
        let here = left_in_page(hit.gpa).min(bytes.len());
        // SAFETY: `hit.host` is RAM with at least `here` bytes left in its page.
        unsafe { std::ptr::copy_nonoverlapping(hit.host, bytes.as_mut_ptr(), here) };
        if let Some(single) = lower::single(&self.cpu, &bytes[..here]) {
            return Ok(Block::new(single, &bytes));
        }
        let next = self.cpu.linear_ip(self.cpu.rip.wrapping_add(here as u64));
        let more = self
            .cpu
            .translate_fetch(next)
            .map_err(|Abort| BlockFault { stack: false })?;
        let rest = bytes.len() - here;
        // SAFETY: `more.host` is the first byte of a page of RAM.
        unsafe { std::ptr::copy_nonoverlapping(more.host, bytes[here..].as_mut_ptr(), rest) };
        let single = lower::single(&self.cpu, &bytes);
        Ok(Block::new(
            single.unwrap_or_else(|| lower::too_long(&bytes)),
            &bytes,
        ))
    }

    fn linear_rip(&self) -> u64 {
        self.cpu.linear_ip(self.cpu.rip)
    }

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

/// A block that can be run now.
enum Found {
    Cached(BlockId),
    /// One instruction that begins at this guest-physical address, and crosses into another page.
    Crossing(u64),
    /// One instruction that is not cached.
    Single(Block),
}

/// Decodes the block at `hit` as far as its page goes, of at most `longest` instructions. `None` if
/// its first instruction crosses the page or is invalid.
fn decode_block(cpu: &Cpu, hit: &Hit, longest: u8) -> Option<Block> {
    let mut bytes = [0u8; MAX_BLOCK as usize * MAX_INSTRUCTION];
    let left = left_in_page(hit.gpa).min(usize::from(longest.min(MAX_BLOCK)) * MAX_INSTRUCTION);
    // SAFETY: `hit.host` is RAM, and `left` bytes from there on are in its page.
    unsafe { std::ptr::copy_nonoverlapping(hit.host, bytes.as_mut_ptr(), left) };
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
/// `host` is in RAM, and so are as many bytes from there on.
unsafe fn is_at(bytes: &[u8], host: *const u8) -> bool {
    // Little by little: most blocks are short, and there are many after a hand-over.
    const STEP: usize = 32;
    bytes.chunks(STEP).enumerate().all(|(i, chunk)| {
        let mut now = [0; STEP];
        let now = &mut now[..chunk.len()];
        // SAFETY: the caller's promise. Guest memory and `now` are distinct.
        unsafe { std::ptr::copy_nonoverlapping(host.add(STEP * i), now.as_mut_ptr(), now.len()) };
        chunk == now
    })
}

impl BlockFault {
    fn at(insn: &Insn) -> Self {
        Self {
            stack: matches!(insn.seg, seg::SS | seg::FLAT_SS),
        }
    }
}

/// Why a run of blocks ended.
enum BlockExit {
    /// Nothing links the last block to the next: look it up.
    Lookup,
    /// The last branch has no link to the block of its target yet.
    Unlinked(Branch),
    /// An instruction did not complete.
    Fault(BlockFault),
}

/// Runs the block `id`, and others as long as each leads to the next and nothing else is due.
fn run_linked<const BRANCHES: bool>(cpu: &mut Cpu, cache: &BlockCache, id: BlockId) -> BlockExit {
    let Some(mut block) = cache.get(id) else {
        return BlockExit::Lookup;
    };
    loop {
        let at = match run_block::<BRANCHES>(cpu, block, block.rip()) {
            Ok(at) => at,
            Err(fault) => return BlockExit::Fault(fault),
        };
        if cpu.is_due() {
            return BlockExit::Lookup;
        }
        let (rip, keys, link) = (cpu.rip, cpu.jump_keys, at.op().link);
        let linked = if link == Op::INDIRECT {
            cache.jump(rip, keys)
        } else {
            cache.linked(link, rip, keys)
        };
        block = match linked {
            Some(next) => next,
            None => {
                return BlockExit::Unlinked(Branch {
                    block: cache.id(block),
                    op: block.ops.position(at),
                });
            }
        };
    }
}

/// Runs a block that none leads to, nor from.
fn run_alone<const BRANCHES: bool>(cpu: &mut Cpu, block: &Block) -> BlockExit {
    match run_block::<BRANCHES>(cpu, block, cpu.rip) {
        Ok(_) => BlockExit::Lookup,
        Err(fault) => BlockExit::Fault(fault),
    }
}

/// Runs the operations of a block to its end, or to where they jump or stop; tells the last. `rip`
/// is RIP, from where it is known without waiting for the jump to it. `BRANCHES`: counts branch
/// instructions.
#[inline(always)]
fn run_block<'a, const BRANCHES: bool>(
    cpu: &mut Cpu,
    block: &'a Block,
    rip: u64,
) -> Result<At<'a>, BlockFault> {
    debug_assert_eq!(rip, cpu.rip);
    cpu.gpr[reg::BLOCK as usize] = rip;
    if BRANCHES {
        cpu.pmu.block = block.branches;
    }
    let retired = |cpu: &mut Cpu, n: u64| {
        cpu.icount += n;
        if BRANCHES {
            cpu.pmu.branches += branches_before(block.branches, n);
        }
    };
    let first = block.ops.first();
    let Done { at, how } = (first.op().run)(cpu, first, 0);
    let insn = at.insn();
    match how {
        Ok(flow) => {
            if flow == Flow::Branch && cpu.recording {
                cpu.record_near(cpu.this_rip(insn), cpu.rip);
            }
            retired(cpu, u64::from(insn.ordinal) + 1);
            Ok(at)
        }
        Err(Abort) => {
            cpu.rip = cpu.this_rip(insn);
            retired(cpu, insn.ordinal.into());
            Err(BlockFault::at(insn))
        }
    }
}

/// Runs a block of one instruction.
fn run_one(cpu: &mut Cpu, block: &Block) -> Option<BlockFault> {
    if let Err(fault) = run_block::<false>(cpu, block, cpu.rip) {
        return Some(fault);
    }
    if cpu.pmu.branches_count {
        cpu.pmu.branches += block.branches & 1;
    }
    None
}
