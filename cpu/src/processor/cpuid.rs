//! CPUID: the leaves of the model, and what depends on the processor's state.

use crate::model::cpuid::{ecx1, edx1, edx8000_0001};
use crate::model::{Leaf, Topology};
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::state::cr4;
use crate::state::msr::{
    APIC_BASE_ENABLE, IA32_APIC_BASE, LIMITED_CPUID, MISC_ENABLE_LIMIT_CPUID,
    MISC_ENABLE_XD_DISABLE,
};

/// The first leaf that is not a basic one.
const BASIC_END: u32 = 0x4000_0000;

impl Cpu {
    /// What CPUID returns on this processor for each leaf that its model has, as it is now.
    pub fn cpuid_leaves(&self) -> impl Iterator<Item = Leaf> {
        let leaves = self.model.leaves.iter();
        leaves.map(|l| self.cpuid(l.leaf, l.subleaf))
    }

    /// CPUID as this processor executes it.
    pub(crate) fn cpuid(&self, leaf: u32, subleaf: u32) -> Leaf {
        let mut l = self.model.cpuid(leaf, subleaf);
        let misc_enable = self.msr.misc_enable;
        let limited = misc_enable & MISC_ENABLE_LIMIT_CPUID != 0;
        if limited && (LIMITED_CPUID..BASIC_END).contains(&l.leaf) {
            l = self.model.cpuid(LIMITED_CPUID, 0);
        }
        let Topology { id, count } = self.topology;
        // The number of APIC IDs that the package reserves: a power of two (Vol. 3A 8.9.1).
        let ids = u32::from(count).next_power_of_two();
        match l.leaf {
            1 => {
                l.ebx |= u32::from(id) << 24;
                if count > 1 {
                    l.ebx = l.ebx & !(0xFF << 16) | ids << 16;
                    l.edx |= edx1::HTT;
                }
            }
            // Each core has caches of its own, except for the last level.
            4 if l.eax != 0 => {
                l.eax |= (ids - 1) << 26;
                if l.eax >> 5 & 7 == 2 {
                    l.eax |= (ids - 1) << 14;
                }
            }
            0x15 => {
                if let Clock::Host(clock) = self.clock {
                    // The crystal clock stays that of the local APIC timer: one tick a nanosecond.
                    (l.eax, l.ebx) = (1_000_000, clock.tsc_khz());
                }
            }
            0xD => self.fill_xsave_leaf(&mut l),
            0 if limited => l.eax = LIMITED_CPUID,
            0x8000_0001 if misc_enable & MISC_ENABLE_XD_DISABLE != 0 => l.edx &= !edx8000_0001::XD,
            _ => {}
        }
        if l.leaf == 1 {
            if self.sys.cr4 & cr4::OSXSAVE != 0 {
                l.ecx |= ecx1::OSXSAVE;
            }
            let base = self
                .platform
                .apic_rdmsr(self.now(), IA32_APIC_BASE)
                .unwrap_or(0);
            if base & APIC_BASE_ENABLE == 0 {
                // CPUID does not report a disabled local APIC (Vol. 3A 10.4.3).
                l.edx &= !edx1::APIC;
            }
        }
        l
    }
}
