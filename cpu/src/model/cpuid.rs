//! CPUID (SDM Vol. 2A): a leaf, the feature flags of leaf 1, and the values that a model returns.

use super::Model;
use crate::state::msr::{MISC_ENABLE_WRITABLE, MISC_ENABLE_XD_DISABLE};
use crate::state::{cr4, efer};

/// What CPUID returns for one leaf and sub-leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// EAX on entry.
    pub leaf: u32,
    /// ECX on entry, for the leaves that have sub-leaves; else 0.
    pub subleaf: u32,
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// Feature flags of leaf 1, ECX.
pub(crate) mod ecx1 {
    pub(crate) const SSE3: u32 = 1 << 0;
    pub(crate) const PCLMULQDQ: u32 = 1 << 1;
    pub(crate) const DTES64: u32 = 1 << 2;
    pub(crate) const DS_CPL: u32 = 1 << 4;
    pub(crate) const SSSE3: u32 = 1 << 9;
    pub(crate) const FMA: u32 = 1 << 12;
    pub(crate) const CMPXCHG16B: u32 = 1 << 13;
    pub(crate) const PDCM: u32 = 1 << 15;
    pub(crate) const PCID: u32 = 1 << 17;
    pub(crate) const SSE4_1: u32 = 1 << 19;
    pub(crate) const SSE4_2: u32 = 1 << 20;
    pub(crate) const MOVBE: u32 = 1 << 22;
    pub(crate) const POPCNT: u32 = 1 << 23;
    pub(crate) const TSC_DEADLINE: u32 = 1 << 24;
    pub(crate) const AES: u32 = 1 << 25;
    pub(crate) const XSAVE: u32 = 1 << 26;
    pub(crate) const OSXSAVE: u32 = 1 << 27;
    pub(crate) const AVX: u32 = 1 << 28;
    pub(crate) const F16C: u32 = 1 << 29;
    pub(crate) const RDRAND: u32 = 1 << 30;
    pub(crate) const HYPERVISOR: u32 = 1 << 31;
}

/// Feature flags of leaf 1, EDX.
pub(crate) mod edx1 {
    pub(crate) const FPU: u32 = 1 << 0;
    pub(crate) const VME: u32 = 1 << 1;
    pub(crate) const DE: u32 = 1 << 2;
    pub(crate) const PSE: u32 = 1 << 3;
    pub(crate) const TSC: u32 = 1 << 4;
    pub(crate) const MSR: u32 = 1 << 5;
    pub(crate) const PAE: u32 = 1 << 6;
    pub(crate) const MCE: u32 = 1 << 7;
    pub(crate) const CX8: u32 = 1 << 8;
    pub(crate) const APIC: u32 = 1 << 9;
    pub(crate) const SEP: u32 = 1 << 11;
    pub(crate) const MTRR: u32 = 1 << 12;
    pub(crate) const PGE: u32 = 1 << 13;
    pub(crate) const MCA: u32 = 1 << 14;
    pub(crate) const CMOV: u32 = 1 << 15;
    pub(crate) const PAT: u32 = 1 << 16;
    pub(crate) const PSE36: u32 = 1 << 17;
    pub(crate) const CLFSH: u32 = 1 << 19;
    pub(crate) const DS: u32 = 1 << 21;
    pub(crate) const MMX: u32 = 1 << 23;
    pub(crate) const FXSR: u32 = 1 << 24;
    pub(crate) const SSE: u32 = 1 << 25;
    pub(crate) const SSE2: u32 = 1 << 26;
    pub(crate) const SELF_SNOOP: u32 = 1 << 27;
    pub(crate) const HTT: u32 = 1 << 28;
}

/// Feature flags of leaf 7, EBX.
pub(super) mod ebx7 {
    pub(crate) const FSGSBASE: u32 = 1 << 0;
    pub(crate) const BMI1: u32 = 1 << 3;
    pub(crate) const AVX2: u32 = 1 << 5;
    pub(crate) const SMEP: u32 = 1 << 7;
    pub(crate) const BMI2: u32 = 1 << 8;
    pub(crate) const INVPCID: u32 = 1 << 10;
    pub(crate) const ADX: u32 = 1 << 19;
    pub(crate) const SMAP: u32 = 1 << 20;
    pub(crate) const SHA: u32 = 1 << 29;
}

/// Feature flags of leaf 7, ECX.
pub(super) mod ecx7 {
    pub(crate) const UMIP: u32 = 1 << 2;
    pub(crate) const VAES: u32 = 1 << 9;
    pub(crate) const VPCLMULQDQ: u32 = 1 << 10;
}

/// Feature flags of leaf 0DH, sub-leaf 1, EAX.
pub(super) mod eaxd {
    pub(crate) const XSAVEOPT: u32 = 1 << 0;
    pub(crate) const XSAVEC: u32 = 1 << 1;
    pub(crate) const XGETBV1: u32 = 1 << 2;
    pub(crate) const XSAVES: u32 = 1 << 3;
}

/// Feature flags of leaf 80000001H, ECX.
pub(super) mod ecx8000_0001 {
    pub(crate) const LAHF: u32 = 1 << 0;
    pub(crate) const LZCNT: u32 = 1 << 5;
}

/// Feature flags of leaf 80000001H, EDX.
pub(crate) mod edx8000_0001 {
    pub(crate) const SYSCALL: u32 = 1 << 11;
    pub(crate) const XD: u32 = 1 << 20;
    pub(crate) const RDTSCP: u32 = 1 << 27;
    pub(crate) const INTEL64: u32 = 1 << 29;
}

/// First leaves of the three ranges; the first entry of each tells its last leaf in EAX.
const RANGES: [u32; 3] = [0, 0x4000_0000, 0x8000_0000];

impl Model {
    /// It has Intel 64: IA-32e mode.
    #[must_use]
    pub fn has_intel_64(&self) -> bool {
        self.efer_flags() & efer::LME != 0
    }

    /// The flags of IA32_EFER that exist because of the model's features (SDM Vol. 3A 2.2.1). The
    /// register exists if there is one.
    pub(crate) fn efer_flags(&self) -> u64 {
        let edx = self.cpuid(0x8000_0001, 0).edx;
        let flags = [
            (edx8000_0001::SYSCALL, efer::SCE),
            (edx8000_0001::XD, efer::NXE),
            (edx8000_0001::INTEL64, efer::LME | efer::LMA),
        ];
        let there = flags.into_iter().filter(|(feature, _)| edx & feature != 0);
        there.fold(0, |all, (_, flag)| all | flag)
    }

    /// IA32_MISC_ENABLE: the flags that software can set and clear.
    pub(crate) fn misc_enable_writable(&self) -> u64 {
        match self.efer_flags() & efer::NXE {
            0 => MISC_ENABLE_WRITABLE & !MISC_ENABLE_XD_DISABLE,
            _ => MISC_ENABLE_WRITABLE,
        }
    }

    /// The flags of CR4 that exist because of the model's features (SDM Vol. 3A 2.5).
    pub(crate) fn cr4_flags(&self) -> u64 {
        let ecx1 = self.cpuid(1, 0).ecx;
        let leaf7 = self.cpuid(7, 0);
        let flags = [
            (leaf7.ecx & ecx7::UMIP, cr4::UMIP),
            (leaf7.ebx & ebx7::FSGSBASE, cr4::FSGSBASE),
            (ecx1 & ecx1::PCID, cr4::PCIDE),
            (ecx1 & ecx1::XSAVE, cr4::OSXSAVE),
            (leaf7.ebx & ebx7::SMEP, cr4::SMEP),
            (leaf7.ebx & ebx7::SMAP, cr4::SMAP),
        ];
        let there = flags.into_iter().filter(|(feature, _)| *feature != 0);
        there.fold(0, |all, (_, flag)| all | flag)
    }

    /// What CPUID returns for EAX = `leaf` and ECX = `subleaf`, for processor 0 with its local APIC
    /// enabled.
    #[must_use]
    pub fn cpuid(&self, leaf: u32, subleaf: u32) -> Leaf {
        let find = |leaf, subleaf| {
            let key = (leaf, subleaf);
            let found = self
                .leaves
                .binary_search_by_key(&key, |l| (l.leaf, l.subleaf));
            found.ok().map(|i| self.leaves[i])
        };
        let range = RANGES.into_iter().rev().find(|first| leaf >= *first);
        let last = range.and_then(|first| find(first, 0)).map_or(0, |l| l.eax);
        // A leaf beyond the end of a range returns the highest basic leaf.
        let basic = find(0, 0).map_or(0, |l| l.eax);
        let leaf = if leaf > last { basic } else { leaf };
        let has_subleaves =
            self.leaves.iter().any(|l| l.leaf == leaf && l.subleaf != 0) || leaf == 7;
        let subleaf = if has_subleaves { subleaf } else { 0 };
        let absent = Leaf {
            leaf,
            subleaf,
            eax: 0,
            ebx: 0,
            ecx: 0,
            edx: 0,
        };
        find(leaf, subleaf).unwrap_or(absent)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{MODELS, model, model_without_bts};

    #[test]
    fn leaves_are_sorted() {
        for name in MODELS {
            for m in [model(name).unwrap(), model_without_bts(name).unwrap()] {
                assert!(m.leaves.is_sorted_by_key(|l| (l.leaf, l.subleaf)), "{name}");
            }
        }
    }

    #[test]
    fn a_leaf_beyond_its_range_gives_the_highest_basic_leaf() {
        let m = model("core2").unwrap();
        let highest = m.cpuid(0x15, 0);
        for leaf in [0x16, 0x3FFF_FFFF, 0x4000_0001, 0x8000_0009, u32::MAX] {
            assert_eq!(m.cpuid(leaf, 7), highest, "{leaf:#x}");
        }
    }

    #[test]
    fn leaves_inside_a_range_that_mean_nothing_are_zero() {
        let m = model("core2").unwrap();
        for (leaf, subleaf) in [(3, 0), (0xB, 0), (0xD, 1), (4, 3), (7, 1)] {
            let l = m.cpuid(leaf, subleaf);
            assert_eq!(
                (l.eax, l.ebx, l.ecx, l.edx),
                (0, 0, 0, 0),
                "{leaf:#x}.{subleaf}"
            );
        }
    }
}
