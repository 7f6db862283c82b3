//! Access of the Branch Trace Store to the DS save area: through the guest's page tables, with
//! supervisor privilege (SDM Vol. 3B 17.4.9).

use vbts_bts::{DsFault, DsMemory, Word};

use crate::insn::Abort;
use crate::mmu::access::Access;
use crate::mmu::host_access::HostAccess;
use crate::mmu::paging;
use crate::mmu::tlb::Hit;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::memory::pages;
use crate::processor::translation::Target;

/// Loads a word.
///
/// # Safety
/// The bytes of the word at `p` are guest RAM.
#[inline(always)]
unsafe fn load_word<W: Word>(p: *const u8) -> W {
    // SAFETY: the caller's promise.
    unsafe {
        W::truncate(match W::SIZE {
            4 => u32::load(p).into(),
            _ => u64::load(p),
        })
    }
}

/// Stores a word.
///
/// # Safety
/// As for [`load_word`].
#[inline(always)]
unsafe fn store_word<W: Word>(p: *mut u8, word: W) {
    // SAFETY: the caller's promise.
    unsafe {
        match W::SIZE {
            4 => (word.extend() as u32).store(p),
            _ => word.extend().store(p),
        }
    }
}

impl DsMemory for Cpu {
    #[inline(always)]
    fn read<W: Word, const N: usize>(&mut self, la: u64) -> Result<[W; N], DsFault> {
        let len = W::SIZE as usize * N;
        if let Some(hit) = self.pin(la, len) {
            // SAFETY: `pin` only gives addresses of guest RAM with `len` bytes left in the page.
            return Ok(std::array::from_fn(|i| unsafe {
                load_word(hit.host.add(W::SIZE as usize * i))
            }));
        }
        self.ds_check(la, len)?;
        let mut words = [W::truncate(0); N];
        for (i, word) in words.iter_mut().enumerate() {
            let at = la.wrapping_add(W::SIZE * i as u64);
            *word = self.load_ds_word(at).map_err(|Abort| DsFault::Unmapped)?;
        }
        Ok(words)
    }

    #[inline(always)]
    fn write<W: Word, const N: usize>(&mut self, la: u64, words: &[W; N]) -> Result<(), DsFault> {
        let len = W::SIZE as usize * N;
        if let Some(hit) = self.pin(la, len) {
            for (i, word) in words.iter().enumerate() {
                // SAFETY: `pin` only gives addresses of writable guest RAM with `len` bytes left in
                // the page.
                unsafe { store_word(hit.host.add(W::SIZE as usize * i), *word) };
            }
            return Ok(());
        }
        self.ds_check(la, len)?;
        for (i, word) in words.iter().enumerate() {
            let at = la.wrapping_add(W::SIZE * i as u64);
            self.store_ds_word(at, *word)
                .map_err(|Abort| DsFault::Unmapped)?;
        }
        Ok(())
    }
}

impl Cpu {
    #[cold]
    fn load_ds_word<W: Word>(&mut self, la: u64) -> Result<W, Abort> {
        let word = match W::SIZE {
            4 => self.load_system::<u32>(la)?.into(),
            _ => self.load_system::<u64>(la)?,
        };
        Ok(W::truncate(word))
    }

    #[cold]
    fn store_ds_word<W: Word>(&mut self, la: u64, word: W) -> Result<(), Abort> {
        match W::SIZE {
            4 => self.store_system(la, word.extend() as u32),
            _ => self.store_system(la, word.extend()),
        }
    }

    /// Translates `la` if a supervisor may write `len` bytes there directly: they are in one page
    /// of RAM without decoded code and without a watchpoint. The result is valid until the next
    /// [`Self::new_generation`].
    pub(crate) fn pin(&mut self, la: u64, len: usize) -> Option<Hit> {
        if (la & 0xFFF) as usize + len > 0x1000 {
            return None;
        }
        let privilege = self.system_privilege();
        let hit = match self.tlb.find(la, Access::Write, privilege) {
            // The TLB has no page with a watchpoint.
            Some(hit) => hit,
            None if self.watched(la, Access::Write) => return None,
            // Another page may have taken its place in the TLB.
            None => match self.translate(la, Access::Write, privilege) {
                Ok(Target::Ram(hit)) => hit,
                _ => return None,
            },
        };
        (!self.ram.code_map().is_code(hit.gpa)).then_some(hit)
    }

    /// Checks that `len` bytes at `la` are writable RAM: a record must not reach a device.
    #[cold]
    fn ds_check(&mut self, la: u64, len: usize) -> Result<(), DsFault> {
        for part in pages(la, len) {
            match self.translate(part.la, Access::Write, self.system_privilege()) {
                Ok(Target::Ram(_)) => {}
                Ok(Target::Mmio(_)) => return Err(DsFault::NotRam),
                Err(Abort) => {
                    return Err(match self.fault {
                        Fault::Page { error, .. }
                            if error & (paging::pf::P | paging::pf::RSVD) == paging::pf::P =>
                        {
                            DsFault::ReadOnly
                        }
                        _ => DsFault::Unmapped,
                    });
                }
            }
        }
        Ok(())
    }
}
