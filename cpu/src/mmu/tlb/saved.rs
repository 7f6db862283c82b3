//! The translations of the TLB as plain data, for snapshots.

use super::entry::{GLOBAL_BIT, INVALID};
use super::{Hit, Tlb};
use crate::mmu::access::Access;
use crate::mmu::ram::GuestRam;
use crate::mmu::region_filter::RegionFilter;
use crate::mmu::translations::{CLASSES, Translation, Translations};

impl Tlb {
    /// The translations as plain data.
    pub(crate) fn save(&self) -> Translations {
        let mut data = Vec::new();
        for class in CLASSES {
            let table = &self.tables[self.place(class)];
            if !table.is_used {
                continue;
            }
            for access in [Access::Read, Access::Write] {
                for index in table.filled_slots(access) {
                    let entry = &table.slots[index].0[access as usize];
                    if entry.tag != INVALID {
                        let phys = table.phys[access as usize][index];
                        let global = phys & GLOBAL_BIT != 0;
                        let la = entry.page() << 12;
                        data.push(Translation::new(la, phys, global, access, class));
                    }
                }
            }
        }
        Translations {
            data,
            fetched: self.fetched.save(),
            large: self.large.0.to_vec(),
        }
    }

    /// Replaces all translations by `saved`, none of which is watched. Returns whether `saved` can
    /// be the contents of a TLB of a machine with `ram`; otherwise, this one has a part of it.
    pub(crate) fn load(
        &mut self,
        saved: &Translations,
        ram: &GuestRam,
        is_write_tracked: impl Fn(u64) -> bool,
    ) -> bool {
        self.flush(false);
        for translation in &saved.data {
            let (Some(class), Some(host)) = (translation.class(), ram.page(translation.gpa()))
            else {
                return false;
            };
            let (gpa, access) = (translation.gpa(), translation.access());
            let hit = Hit {
                host: host.as_ptr(),
                gpa,
                write_tracked: access == Access::Write && is_write_tracked(gpa),
                global: translation.is_global(),
            };
            self.insert(translation.la, access, class, hit, false);
        }
        let Ok(large) = saved.large.as_slice().try_into() else {
            return false;
        };
        self.large = RegionFilter(large);
        self.fetched.load(&saved.fetched, ram)
    }
}
