//! Translation of linear addresses, and what is forgotten with a translation.

use crate::insn::Abort;
use crate::mmu::access::{Access, Privilege, canonical};
use crate::mmu::paging;
use crate::mmu::tlb::Hit;
use crate::mmu::translations::Translations;
use crate::processor::branch_trace::is_write_tracked;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::state::SystemState;

/// What is at a linear address.
pub(super) enum Target {
    Ram(Hit),
    /// A device, at this guest-physical address.
    Mmio(u64),
}

impl Cpu {
    /// Translates the address of an instruction fetch.
    pub(crate) fn translate_fetch(&mut self, la: u64) -> Result<Hit, Abort> {
        let privilege = if self.cpl == 3 {
            Privilege::User
        } else {
            Privilege::Supervisor
        };
        match self.translate(la, Access::Execute, privilege)? {
            Target::Ram(hit) => Ok(hit),
            // No hardware executes device registers usefully; a machine check would be the closest
            // match.
            Target::Mmio(_) => Err(self.abort(Fault::Unexecutable)),
        }
    }

    /// The guest-physical address of `la`, for a privileged reader such as a debugger, which the
    /// guest does not observe: it sets neither a fault nor accessed flags.
    pub fn translate_quietly(&self, la: u64) -> Option<u64> {
        let la = la & self.linear_mask;
        if !canonical(la) {
            return None;
        }
        paging::peek(&self.ram, &self.sys, la)
    }

    /// Reads memory at `la` as [`Self::translate_quietly`] translates. Returns whether all of it is
    /// RAM.
    pub fn read_quietly(&self, la: u64, bytes: &mut [u8]) -> bool {
        self.read_with(&self.sys, la, bytes)
    }

    /// [`Self::read_quietly`] in the state `sys`, which can have another CR3.
    pub(super) fn read_with(&self, sys: &SystemState, la: u64, bytes: &mut [u8]) -> bool {
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = la.wrapping_add(done as u64) & self.linear_mask;
            let here = rest.len().min(0x1000 - (at & 0xFFF) as usize);
            let gpa = canonical(at).then(|| paging::peek(&self.ram, sys, at));
            let is_ram = gpa.flatten().is_some_and(|gpa| {
                rest.iter_mut().take(here).zip(gpa..).all(|(byte, gpa)| {
                    let word = self.ram.read_u64(gpa & !7);
                    word.is_some_and(|word| {
                        *byte = word.to_le_bytes()[(gpa & 7) as usize];
                        true
                    })
                })
            });
            if !is_ram {
                return false;
            }
            done += here;
        }
        true
    }

    /// Translates `la` through the TLB, or through the page tables, and enters the result into the
    /// TLB unless a watchpoint is in the page.
    pub(super) fn translate(
        &mut self,
        la: u64,
        access: Access,
        privilege: Privilege,
    ) -> Result<Target, Abort> {
        let class = privilege.without_alignment();
        let la = la & self.linear_mask;
        if let Some(hit) = self.tlb.find(la, access, class) {
            return Ok(Target::Ram(hit));
        }
        if access == Access::Execute
            && let Some(hit) = self.tlb.find_fetched(la, class)
        {
            return Ok(Target::Ram(hit));
        }
        if !canonical(la) {
            return Err(self.abort(Fault::NonCanonical));
        }
        let walk = match paging::walk(&self.ram, &self.sys, la, access, class) {
            Ok(w) => w,
            Err(error) => return Err(self.abort(Fault::Page { la, error })),
        };
        let Some(page) = self.ram.page(walk.gpa) else {
            return Ok(Target::Mmio(walk.gpa));
        };
        let hit = Hit {
            // SAFETY: `page` is the start of a page of RAM.
            host: unsafe { page.as_ptr().add((la & 0xFFF) as usize) },
            gpa: walk.gpa,
            write_tracked: access == Access::Write && self.is_write_tracked(walk.gpa),
            global: walk.global,
        };
        if access == Access::Write {
            self.ram.written().add(walk.gpa);
        }
        if access == Access::Execute {
            if self.tlb.insert_fetched(la, class, hit) {
                self.new_generation();
            }
        } else if self.watched(la, access) {
            return Ok(Target::Ram(hit));
        } else {
            let is_watched = self.is_watched(la, access);
            self.tlb.insert(la, access, class, hit, is_watched);
        }
        if walk.large {
            self.tlb.insert_large(la);
        }
        Ok(Target::Ram(hit))
    }

    /// Replaces the translations in the TLB. Returns whether `saved` can be the contents of one.
    pub(crate) fn load_translations(&mut self, saved: &Translations) -> bool {
        let (map, ds_page) = (self.ram.code_map(), self.ds_page);
        let tracked = |gpa| is_write_tracked(map, ds_page, gpa);
        let loaded = self.tlb.load(saved, &self.ram, tracked);
        self.update_watched_pages();
        self.new_generation();
        loaded
    }

    /// Enters the pages that this processor can write without a walk of the page tables into the
    /// written ones.
    pub(crate) fn note_writable_pages(&mut self) {
        self.window.close();
        self.tlb.writable_pages(|gpa| self.ram.written().add(gpa));
    }

    /// Flushes the TLB; with `keep_global` all but global pages.
    pub fn flush_tlb(&mut self, keep_global: bool) {
        self.tlb.flush(keep_global);
        // CR3 does not change without a flush.
        self.log_address_space();
        if keep_global {
            self.new_local_generation();
        } else {
            self.new_generation();
        }
    }

    /// Flushes the translation of one page.
    pub fn flush_tlb_page(&mut self, la: u64) {
        let large = self.tlb.flush_page(la);
        self.invalidate_jumps(la, large);
    }

    /// The PDPTE registers after a load of CR3 in the state `sys`, for an accelerator that does not
    /// report them. Zero where PAE paging does not use them.
    pub fn pdptes(&self, sys: &SystemState) -> [u64; 4] {
        let loaded = paging::is_pae(sys).then(|| paging::pdptes(&self.ram, sys.cr3));
        loaded.flatten().unwrap_or_default()
    }
}
