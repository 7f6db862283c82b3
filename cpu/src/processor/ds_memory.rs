//! Access of the Branch Trace Store to the DS save area: through the guest's page tables, with
//! supervisor privilege (SDM Vol. 3B 17.4.9).

use vbts_bts::{DsFault, DsMemory};

use crate::insn::Abort;
use crate::mmu::access::Access;
use crate::mmu::paging;
use crate::mmu::tlb::Hit;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::memory::pages;
use crate::processor::translation::Target;

impl DsMemory for Cpu {
    #[inline(always)]
    fn read<const N: usize>(&mut self, la: u64) -> Result<[u64; N], DsFault> {
        if let Some(hit) = self.pin(la, 8 * N) {
            // SAFETY: `pin` only gives addresses of guest RAM with `8 * N` bytes left in the page.
            return Ok(std::array::from_fn(|i| unsafe {
                hit.host.cast::<u64>().add(i).read_unaligned()
            }));
        }
        self.ds_check(la, 8 * N)?;
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self
                .load_system(la.wrapping_add(8 * i as u64))
                .map_err(|Abort| DsFault::Unmapped)?;
        }
        Ok(words)
    }

    #[inline(always)]
    fn write<const N: usize>(&mut self, la: u64, words: &[u64; N]) -> Result<(), DsFault> {
        if let Some(hit) = self.pin(la, 8 * N) {
            for (i, word) in words.iter().enumerate() {
                // SAFETY: `pin` only gives addresses of writable guest RAM with `8 * N` bytes left
                // in the page.
                unsafe { hit.host.cast::<u64>().add(i).write_unaligned(*word) };
            }
            return Ok(());
        }
        self.ds_check(la, 8 * N)?;
        for (i, word) in words.iter().enumerate() {
            self.store_system(la.wrapping_add(8 * i as u64), *word)
                .map_err(|Abort| DsFault::Unmapped)?;
        }
        Ok(())
    }
}

impl Cpu {
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
        (!self.code_map.is_code(hit.gpa)).then_some(hit)
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
