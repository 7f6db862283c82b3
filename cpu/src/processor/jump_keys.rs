//! Keys of cached jump targets.
//!
//! A jump target is cached with a key of the mode and of a generation. Each change that may lead an
//! instruction pointer to other code advances a generation, so that the targets before it no longer
//! match.

use crate::mmu::region_filter::PageFilter;
use crate::mmu::tlb::Hit;
use crate::processor::cpu::Cpu;

/// The keys that are valid now. A cached target is valid while its key is one of these. Never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JumpKeys {
    /// For a jump to any page.
    pub any: u64,
    /// For a jump to a global page, whose translation a write to CR3 keeps.
    pub global: u64,
}

/// Bits of a key that have the mode. One for global pages and the generation follow.
const MODE: u64 = 7;
const GLOBAL: u64 = 8;
const GENERATION_SHIFT: u32 = 4;

impl JumpKeys {
    /// Whether `key` is one of the same mode, of any generation.
    pub(crate) fn have_mode_of(self, key: u64) -> bool {
        key & MODE == self.any & MODE
    }
}

impl Cpu {
    pub(crate) fn update_jump_keys(&mut self) {
        let mode = (self.code_size as u64) << 1 | u64::from(self.cpl == 3);
        self.jump_keys = JumpKeys {
            any: self.generation << GENERATION_SHIFT | mode,
            global: self.global_generation << GENERATION_SHIFT | GLOBAL | mode,
        };
    }

    /// The key to cache a jump to the linear address `la` with, which is translated to `hit`.
    pub(crate) fn jump_key(&mut self, la: u64, hit: &Hit) -> u64 {
        if !is_upper(la) {
            self.jumped.add(la);
        } else if hit.global {
            return self.jump_keys.global;
        }
        self.jump_keys.any
    }

    /// Invalidates all cached jump targets.
    pub(crate) fn new_generation(&mut self) {
        self.global_generation += 1;
        self.new_local_generation();
    }

    /// Invalidates the cached jump targets outside global pages of the upper half.
    pub(super) fn new_local_generation(&mut self) {
        self.window.close();
        self.jumped = PageFilter::default();
        self.generation += 1;
        self.update_jump_keys();
    }

    /// Invalidates the cached jump targets in the page of `la`, which is part of a large page if
    /// `large` is set.
    pub(super) fn invalidate_jumps(&mut self, la: u64, large: bool) {
        if is_upper(la) {
            self.new_generation();
        } else if large || self.jumped.may_have(la) {
            self.new_local_generation();
        } else {
            self.window.close();
        }
    }
}

/// Whether a linear address is in the upper half of the canonical ones.
fn is_upper(la: u64) -> bool {
    (la as i64) < 0
}
