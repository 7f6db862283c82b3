//! When native code of a block may run: the owner of its validity and of its links.
//!
//! Other files look blocks up, run them and remove them, and call the methods here. The rules:
//!
//! 1. Native code belongs to a RIP and to a mapping, a linear page as it is translated to a
//!    guest-physical one. A block knows its code, by a
//!    [`Translation`](crate::backend::jit::Translation), and a page of the cache its mappings, by
//!    [`Mappings`](crate::backend::jit::Mappings).
//! 2. The code of a mapping runs while the key of the mapping is one of the processor's. Only a
//!    look-up of RIP, which compares the page with the guest's page tables, gives a mapping a key
//!    ([`SoftCpu::validate_page`], [`SoftCpu::revalidate_code`], [`SoftCpu::start_of`]). The
//!    processor's keys advance with each change after which a look-up can have another result.
//! 3. The code of an instruction that crosses into another page has a mapping of its own, because
//!    its key depends on that page, too.
//! 4. If bytes of a page have changed, the page forgets its mappings, and its blocks their code
//!    (`Page::forget_native_code` in [`cache`](super::cache)): nothing gives these mappings a key
//!    any more. A block that is removed takes its code with it, and the processor's keys advance.
//! 5. A link leads to code that fits the block to which the jump has led just now. The code checks
//!    its key, unless the jump is in the same mapping (`CodeStore::link`).
//! 6. When code memory is full, all code, mappings and links are forgotten
//!    ([`SoftCpu::forget_code`]).

use crate::backend::block::BlockId;
use crate::backend::jit::{CodeId, LinearPage, Start};
use crate::engine::SoftCpu;
use crate::engine::run::Origin;
use crate::insn::CodeSize;

/// Instructions from which on a block continues in another one: for fewer, the end of the block
/// would take longer than they do.
const MIN_SHARED: u64 = 4;

impl SoftCpu {
    /// The native code of the block `id` for a jump to the RIP that the block remembers, if it has
    /// some for a processor that records as this one does. Its mapping is valid if the block's key
    /// is.
    #[inline]
    pub(super) fn fitting_code(&self, id: BlockId) -> Option<CodeId> {
        let (jit, block) = (self.jit.as_ref()?, self.cache.get(id)?);
        let code = block.translation.code();
        let fits = jit.code.fits(code, block.rip(), self.cpu.recording);
        fits.then_some(code)
    }

    /// Makes the native code of the page of RIP valid with `key`, after a look-up. The page is that
    /// of `gpa`, and of the block `id`, which a jump to RIP leads to. If the block goes on in the
    /// next page, only its own code becomes valid.
    pub(super) fn validate_page(&mut self, id: BlockId, gpa: u64, key: u64) {
        if self.cpu.code_size != CodeSize::Bits64 {
            return;
        }
        let rip = self.cpu.rip;
        let page = self.linear_page(rip, key);
        let (Some(jit), Some(block)) = (&mut self.jit, self.cache.get(id)) else {
            return;
        };
        let code = block.translation.code();
        let is_of_other = if block.crosses(rip) {
            !jit.code.revalidate(code, rip, page.global, key)
        } else {
            let mapping = self.cache.mappings(gpa).and_then(|m| m.find(page));
            if let Some(mapping) = mapping {
                jit.code.validate(mapping, key);
            }
            jit.code.is_of_other(code, rip, mapping)
        };
        if is_of_other && let Some(block) = self.cache.get_mut(id) {
            block.translation.forget();
        }
    }

    /// Makes the mapping of the code of the block `id` valid with `key`, after RIP was translated
    /// to the same place in the same page as when the block was looked up there. Returns whether
    /// that suffices: the block has no code, or code for this RIP.
    pub(super) fn revalidate_code(&mut self, id: BlockId, key: u64) -> bool {
        let page = self.linear_page(self.cpu.rip, key);
        let (Some(jit), Some(block)) = (&mut self.jit, self.cache.get(id)) else {
            return true;
        };
        let code = block.translation.code();
        jit.code.revalidate(code, self.cpu.rip, page.global, key)
    }

    /// Where native code of the block `id` starts, in a mapping that is valid now. The block
    /// remembers a jump that was looked up, and its key is one of the processor's. `None`: only
    /// 64-bit code becomes native code.
    pub(super) fn start_of(&mut self, id: BlockId) -> Option<Start> {
        if self.cpu.code_size != CodeSize::Bits64 {
            return None;
        }
        let block = self.cache.get(id)?;
        let (rip, key, crosses) = (block.rip(), block.key(), block.crosses(block.rip()));
        let page = self.linear_page(rip, key);
        let jit = self.jit.as_mut()?;
        let mapping = if crosses {
            jit.code.new_mapping()
        } else {
            let mappings = self.cache.mappings_of(id)?;
            mappings.find_or_insert(page, || jit.code.new_mapping())
        };
        jit.code.validate(mapping, key);
        Some(Start {
            rip,
            mapping,
            global: page.global,
        })
    }

    /// How many bytes and operations of the block `id` become native code at `start`: those up to
    /// an instruction where a block with native code in the same mapping begins, which continues
    /// there. Where blocks end changes nothing that a guest observes, so native code of a block may
    /// end before the block does.
    pub(super) fn own_part(&self, id: BlockId, start: Start) -> Option<(usize, usize)> {
        let (jit, block) = (self.jit.as_ref()?, self.cache.get(id)?);
        let ops = block.ops.all();
        let shared = self.cache.inside(id).find_map(|(at, other)| {
            let rip = start.rip + u64::from(at);
            let code = other.translation.code();
            let first = ops.iter().position(|op| op.insn.offset == at)?;
            let count = block.ops.instructions() - u64::from(ops[first].insn.ordinal);
            let is_there =
                jit.code.fits(code, rip, self.cpu.recording) && jit.code.is_in(code, start.mapping);
            (count >= MIN_SHARED && is_there).then_some((usize::from(at), first))
        });
        // The check needs whole blocks.
        let whole = (block.bytes().len(), ops.len());
        Some(shared.filter(|_| !jit.checks).unwrap_or(whole))
    }

    /// Links the end of the last block to the block `id`, to which it has led.
    pub(super) fn link(&mut self, origin: Origin, id: BlockId) {
        if let Origin::Branch(branch) = origin {
            self.cache.link(branch, id);
            return;
        }
        let Some(code) = self.fitting_code(id) else {
            return;
        };
        let Some(jit) = &mut self.jit else {
            return;
        };
        match origin {
            Origin::None | Origin::Branch(_) => {}
            Origin::Edge(edge) => jit.code.link(edge, code),
            Origin::Indirect => jit.code.remember_jump(code),
            Origin::Stale => jit.code.update_jump(code),
        }
    }

    /// Forgets all native code, to make room.
    pub(super) fn forget_code(&mut self) {
        if let Some(jit) = &mut self.jit {
            jit.flush();
            self.cache.forget_native_code();
        }
    }

    /// The page of `rip`, jumps to which have the key `key`.
    fn linear_page(&self, rip: u64, key: u64) -> LinearPage {
        LinearPage {
            address: rip & !0xFFF,
            global: key == self.cpu.jump_keys.global,
        }
    }
}
