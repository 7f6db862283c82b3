//! The processor models as data: CPUID leaves, instruction-set extensions and MSRs.
//!
//! Sections are those of SDM Vol. 2A, "CPUID—CPU Identification", and of Vol. 3B for what a leaf
//! enumerates.

pub(crate) mod msr;
mod pmu;
mod reset;

use iced_x86::CpuidFeature;
use vbts_bts::Microarchitecture;

use crate::state::PmuState;

use self::msr::MSRS;
pub(crate) use self::pmu::Counters;

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

/// Where a processor is among those of its machine. They are the cores of one package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Number of the processor, which is also its local APIC's ID.
    pub id: u8,
    /// Number of processors.
    pub count: u8,
}

impl Default for Topology {
    /// The position of a machine's only processor.
    fn default() -> Self {
        Self { id: 0, count: 1 }
    }
}

/// A CPU model: all that software can find out about the processor. It does not depend on the
/// accelerator.
#[derive(Debug)]
pub struct Model {
    /// Name on the command line.
    pub name: &'static str,
    /// The microarchitecture, which decides the bits of IA32_DEBUGCTL.
    pub microarchitecture: Microarchitecture,
    /// It has a Branch Trace Store.
    pub bts: bool,
    /// CPUID, sorted by leaf and sub-leaf, as processor 0 sees it with its local APIC enabled.
    /// Leaves that are absent below the maximum read as zero.
    pub leaves: &'static [Leaf],
    /// Model-specific registers, sorted by number.
    msrs: &'static [msr::Row],
    /// Instruction-set extensions that it has.
    features: &'static [CpuidFeature],
}

/// All models, each with its variant without a Branch Trace Store. The first is the default.
static TABLE: [(Model, Model); 3] = [
    (
        CORE2,
        CORE2.without_bts(
            &without_bts(CORE2_LEAVES),
            &msr::without_bts(&MSRS, CORE2.microarchitecture),
        ),
    ),
    (
        X86_64_V2,
        X86_64_V2.without_bts(
            &without_bts(X86_64_V2_LEAVES),
            &msr::without_bts(&MSRS, X86_64_V2.microarchitecture),
        ),
    ),
    (
        NEHALEM,
        NEHALEM.without_bts(
            &without_bts(NEHALEM_LEAVES),
            &msr::without_bts(&MSRS, NEHALEM.microarchitecture),
        ),
    ),
];

/// The names of all models. The first is the default.
pub static MODELS: &[&str] = &names(&TABLE);

const fn names<const N: usize>(table: &[(Model, Model); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut i = 0;
    while i < N {
        names[i] = table[i].0.name;
        i += 1;
    }
    names
}

/// Finds a model by name.
#[must_use]
pub fn model(name: &str) -> Option<&'static Model> {
    TABLE.iter().map(|(with, _)| with).find(|m| m.name == name)
}

/// Finds a model by name, in its variant without a Branch Trace Store: no DS area, and
/// BTS_UNAVAILABLE set.
#[must_use]
pub fn model_without_bts(name: &str) -> Option<&'static Model> {
    TABLE
        .iter()
        .map(|(_, without)| without)
        .find(|m| m.name == name)
}

/// Guest-physical address width that the CPU models advertise (CPUID.80000008H:EAX[7:0]).
pub const PHYS_BITS: u32 = 40;
/// The bits that a guest-physical address can have.
pub(crate) const PHYS_MASK: u64 = (1 << PHYS_BITS) - 1;

/// Frequency in Hz of the time-stamp counter and of the local APIC timer in virtual time: one tick
/// is one nanosecond.
pub const TSC_HZ: u32 = 1_000_000_000;

const fn leaf(leaf: u32, eax: u32, ebx: u32, ecx: u32, edx: u32) -> Leaf {
    Leaf {
        leaf,
        subleaf: 0,
        eax,
        ebx,
        ecx,
        edx,
    }
}

const fn subleaf(leaf: u32, subleaf: u32, eax: u32, ebx: u32, ecx: u32, edx: u32) -> Leaf {
    Leaf {
        leaf,
        subleaf,
        eax,
        ebx,
        ecx,
        edx,
    }
}

/// Four characters as a register holds them.
const fn text(s: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*s)
}

/// Feature flags of leaf 1, ECX.
mod ecx1 {
    pub const SSE3: u32 = 1 << 0;
    pub const DTES64: u32 = 1 << 2;
    pub const DS_CPL: u32 = 1 << 4;
    pub const SSSE3: u32 = 1 << 9;
    pub const CMPXCHG16B: u32 = 1 << 13;
    pub const SSE4_1: u32 = 1 << 19;
    pub const SSE4_2: u32 = 1 << 20;
    pub const POPCNT: u32 = 1 << 23;
    pub const TSC_DEADLINE: u32 = 1 << 24;
    pub const HYPERVISOR: u32 = 1 << 31;
}

/// Feature flags of leaf 1, EDX.
pub(crate) mod edx1 {
    pub const FPU: u32 = 1 << 0;
    pub const DE: u32 = 1 << 2;
    pub const PSE: u32 = 1 << 3;
    pub const TSC: u32 = 1 << 4;
    pub const MSR: u32 = 1 << 5;
    pub const PAE: u32 = 1 << 6;
    pub const MCE: u32 = 1 << 7;
    pub const CX8: u32 = 1 << 8;
    pub const APIC: u32 = 1 << 9;
    pub const SEP: u32 = 1 << 11;
    pub const MTRR: u32 = 1 << 12;
    pub const PGE: u32 = 1 << 13;
    pub const MCA: u32 = 1 << 14;
    pub const CMOV: u32 = 1 << 15;
    pub const PAT: u32 = 1 << 16;
    pub const PSE36: u32 = 1 << 17;
    pub const CLFSH: u32 = 1 << 19;
    pub const DS: u32 = 1 << 21;
    pub const MMX: u32 = 1 << 23;
    pub const FXSR: u32 = 1 << 24;
    pub const SSE: u32 = 1 << 25;
    pub const SSE2: u32 = 1 << 26;
    pub const SELF_SNOOP: u32 = 1 << 27;
    pub const HTT: u32 = 1 << 28;
}

/// Leaf 0AH: architectural performance monitoring version 2, with so many programmable counters and
/// all fixed ones, each of `width` bits (Vol. 3B 18.2.2). Of the 7 events a processor without caches
/// and prediction lacks references to the last level cache (3), misses of it (4), and mispredicted
/// branches (6).
const fn performance_monitoring(counters: u32, width: u32) -> Leaf {
    leaf(
        0xA,
        7 << 24 | width << 16 | counters << 8 | 2,
        1 << 3 | 1 << 4 | 1 << 6,
        0,
        width << 5 | PmuState::FIXED as u32,
    )
}

/// What every processor with Intel 64 executes.
const BASE: &[CpuidFeature] = &[
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL286,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CPUID,
    CpuidFeature::FPU,
    CpuidFeature::FPU287,
    CpuidFeature::FPU387,
    CpuidFeature::CMOV,
    CpuidFeature::CX8,
    CpuidFeature::MSR,
    CpuidFeature::TSC,
    CpuidFeature::RDPMC,
    CpuidFeature::SEP,
    CpuidFeature::SYSCALL,
    CpuidFeature::CLFSH,
    CpuidFeature::FXSR,
    CpuidFeature::MMX,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::PAUSE,
    CpuidFeature::MULTIBYTENOP,
];

/// Intel Core 2 Duo (Merom), the processor of the first Linux code for BTS, with the few later
/// features that a virtual machine needs.
const CORE2: Model = Model {
    name: "core2",
    microarchitecture: Microarchitecture::Core2,
    bts: true,
    features: CORE2_FEATURES,
    leaves: &CORE2_LEAVES,
    msrs: &MSRS,
};

/// [`CORE2`] with the instructions that distributions for x86-64-v2 require. No such part exists.
/// The first real parts with those instructions have errata in their Branch Trace Stores, which
/// Linux and GDB know.
const X86_64_V2: Model = Model {
    name: "x86-64-v2",
    features: X86_64_V2_FEATURES,
    leaves: &X86_64_V2_LEAVES,
    ..CORE2
};

/// Intel Core i7 (Nehalem), the first stepping.
const NEHALEM: Model = Model {
    name: "nehalem",
    microarchitecture: Microarchitecture::Nehalem,
    bts: true,
    features: X86_64_V2_FEATURES,
    leaves: &NEHALEM_LEAVES,
    msrs: &MSRS,
};

/// The leaves without the flags of the Debug Store.
const fn without_bts<const N: usize>(mut leaves: [Leaf; N]) -> [Leaf; N] {
    let mut i = 0;
    while i < N {
        if leaves[i].leaf == 1 {
            leaves[i].ecx &= !(ecx1::DTES64 | ecx1::DS_CPL);
            leaves[i].edx &= !edx1::DS;
        }
        i += 1;
    }
    leaves
}

const CORE2_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::CMPXCHG16B,
];

const X86_64_V2_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::CMPXCHG16B,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
];

/// The leaves with other values for some of them.
const fn with<const N: usize, const M: usize>(
    mut leaves: [Leaf; N],
    others: [Leaf; M],
) -> [Leaf; N] {
    let mut i = 0;
    while i < M {
        let mut at = 0;
        while leaves[at].leaf != others[i].leaf || leaves[at].subleaf != others[i].subleaf {
            at += 1;
        }
        leaves[at] = others[i];
        i += 1;
    }
    leaves
}

/// The leaves with these feature flags in leaf 1, ECX, as well.
const fn with_features<const N: usize>(mut leaves: [Leaf; N], ecx: u32) -> [Leaf; N] {
    let mut i = 0;
    while i < N {
        if leaves[i].leaf == 1 {
            leaves[i].ecx |= ecx;
        }
        i += 1;
    }
    leaves
}

const X86_64_V2_LEAVES: [Leaf; 19] = with_features(
    with(
        CORE2_LEAVES,
        [
            leaf(
                0x8000_0002,
                text(b"vbts"),
                text(b" x86"),
                text(b"-64-"),
                text(b"v2 C"),
            ),
            leaf(0x8000_0003, text(b"PU @"), text(b" 1.0"), text(b"0GHz"), 0),
            leaf(0x8000_0004, 0, 0, 0, 0),
        ],
    ),
    ecx1::SSE4_1 | ecx1::SSE4_2 | ecx1::POPCNT,
);

const NEHALEM_LEAVES: [Leaf; 19] = with(
    X86_64_V2_LEAVES,
    [
        // Family 6, model 26, stepping 5.
        leaf(
            1,
            0x0001_06A5,
            0x0001_0800,
            X86_64_V2_LEAVES[1].ecx,
            X86_64_V2_LEAVES[1].edx,
        ),
        // Cache and TLB descriptors: 5AH 03H 55H B2H F0H 2CH 21H CAH 09H. There is no L3.
        leaf(2, 0x5503_5A01, 0x00F0_B200, 0, 0x09CA_212C),
        // L1D 32 KB, 8 ways; L1I 32 KB, 4 ways; L2 256 KB, 8 ways.
        subleaf(4, 0, 0x0000_0121, 0x01C0_003F, 63, 0),
        subleaf(4, 1, 0x0000_0122, 0x00C0_003F, 127, 0),
        subleaf(4, 2, 0x0000_0143, 0x01C0_003F, 511, 0),
        // The part has version 3, which counts for its twin threads, too.
        performance_monitoring(4, 48),
        leaf(
            0x8000_0002,
            text(b"Inte"),
            text(b"l(R)"),
            text(b" Cor"),
            text(b"e(TM"),
        ),
        leaf(
            0x8000_0003,
            text(b") i7"),
            text(b" CPU"),
            text(b"    "),
            text(b"   @"),
        ),
        leaf(0x8000_0004, text(b" 1.0"), text(b"0GHz"), 0, 0),
        // L2: 256 KB, 8 ways, lines of 64 bytes.
        leaf(0x8000_0006, 0, 0, 0x0100_6040, 0),
    ],
);

const CORE2_LEAVES: [Leaf; 19] = [
    // Highest basic leaf, and vendor.
    leaf(0, 0x15, text(b"Genu"), text(b"ntel"), text(b"ineI")),
    // Family 6, model 15, stepping 11; CLFLUSH line of 64 bytes, one logical processor. DS, DTES64
    // and DS-CPL make the Branch Trace Store (Vol. 3B 17.4.5). PDCM, SYSENTER's PERF_CAPABILITIES,
    // is absent.
    leaf(
        1,
        0x0000_06FB,
        0x0001_0800,
        ecx1::SSE3
                | ecx1::DTES64
                | ecx1::DS_CPL
                | ecx1::SSSE3
                | ecx1::CMPXCHG16B
                // The timer needs no calibration: see leaf 15H.
                | ecx1::TSC_DEADLINE
                | ecx1::HYPERVISOR,
        edx1::FPU
            | edx1::DE
            | edx1::PSE
            | edx1::TSC
            | edx1::MSR
            | edx1::PAE
            | edx1::MCE
            | edx1::CX8
            | edx1::APIC
            | edx1::SEP
            | edx1::MTRR
            | edx1::PGE
            | edx1::MCA
            | edx1::CMOV
            | edx1::PAT
            | edx1::PSE36
            | edx1::CLFSH
            | edx1::DS
            | edx1::MMX
            | edx1::FXSR
            | edx1::SSE
            | edx1::SSE2
            | edx1::SELF_SNOOP,
    ),
    // Cache and TLB descriptors: 05H B1H B0H 56H 57H F0H 2CH B4H 30H 7DH (2 MB L2), as this part
    // reports.
    leaf(2, 0x05B0_B101, 0x0056_57F0, 0, 0x2CB4_307D),
    // Deterministic cache parameters: L1D and L1I 32 KB, 8 ways; L2 2 MB, 8 ways. Lines of 64
    // bytes.
    subleaf(4, 0, 0x0000_0121, 0x01C0_003F, 63, 0x0000_0001),
    subleaf(4, 1, 0x0000_0122, 0x01C0_003F, 63, 0x0000_0001),
    subleaf(4, 2, 0x0000_0143, 0x01C0_003F, 4095, 0x0000_0001),
    // ARAT: the local APIC timer runs in every idle state.
    leaf(6, 0x0000_0004, 0, 0, 0),
    // ARCH_CAPABILITIES: RDCL_NO lets the guest leave its page tables unsplit, without which it has
    // no BTS. ERMS and FSRM: REP MOVSB and STOSB are the fastest way to copy and fill, of whatever
    // length. They are no instructions of their own, so that a guest may have them on any
    // processor.
    leaf(7, 0, 1 << 9, 0, 1 << 29 | 1 << 4),
    performance_monitoring(2, 40),
    // TSC frequency: crystal * 1/1. Also that of the local APIC timer (Vol. 3B 17.17.4).
    leaf(0x15, 1, 1, TSC_HZ, 0),
    // Hypervisor leaves: a signature, and no paravirtual feature.
    leaf(
        0x4000_0000,
        0x4000_0000,
        text(b"vbts"),
        text(b"vbts"),
        text(b"vbts"),
    ),
    leaf(0x8000_0000, 0x8000_0008, 0, 0, 0),
    // LAHF in 64-bit mode; SYSCALL, execute disable, Intel 64.
    leaf(0x8000_0001, 0, 0, 1 << 0, 1 << 11 | 1 << 20 | 1 << 29),
    // Brand string.
    leaf(
        0x8000_0002,
        text(b"Inte"),
        text(b"l(R)"),
        text(b" Cor"),
        text(b"e(TM"),
    ),
    leaf(
        0x8000_0003,
        text(b")2 D"),
        text(b"uo C"),
        text(b"PU  "),
        text(b"   @"),
    ),
    leaf(0x8000_0004, text(b" 1.0"), text(b"0GHz"), 0, 0),
    // L2: 2 MB, 8 ways, lines of 64 bytes.
    leaf(0x8000_0006, 0, 0, 0x0800_6040, 0),
    // Invariant TSC.
    leaf(0x8000_0007, 0, 0, 0, 1 << 8),
    // Physical and linear address widths.
    leaf(0x8000_0008, PHYS_BITS | 48 << 8, 0, 0, 0),
];

/// First leaves of the three ranges; the first entry of each tells its last leaf in EAX.
const RANGES: [u32; 3] = [0, 0x4000_0000, 0x8000_0000];

impl Model {
    const fn without_bts(&self, leaves: &'static [Leaf], msrs: &'static [msr::Row]) -> Self {
        Self {
            name: self.name,
            microarchitecture: self.microarchitecture,
            bts: false,
            leaves,
            msrs,
            features: self.features,
        }
    }

    /// The extensions that the software CPU executes on the host's processor, and that the host's
    /// processor lacks.
    #[must_use]
    pub fn unsupported(&self) -> Option<&'static str> {
        let sse41 = self.features.contains(&CpuidFeature::SSE4_1);
        (sse41 && !is_x86_feature_detected!("sse4.1")).then_some("SSE4.1")
    }

    /// The model's instruction-set extensions that the host's processor lacks. Such a host cannot
    /// execute the guest.
    #[must_use]
    pub fn missing_on_host(&self) -> Vec<&'static str> {
        let host = [
            (CpuidFeature::SSE3, "SSE3", is_x86_feature_detected!("sse3")),
            (
                CpuidFeature::SSSE3,
                "SSSE3",
                is_x86_feature_detected!("ssse3"),
            ),
            (
                CpuidFeature::CMPXCHG16B,
                "CMPXCHG16B",
                is_x86_feature_detected!("cmpxchg16b"),
            ),
            (
                CpuidFeature::SSE4_1,
                "SSE4.1",
                is_x86_feature_detected!("sse4.1"),
            ),
            (
                CpuidFeature::SSE4_2,
                "SSE4.2",
                is_x86_feature_detected!("sse4.2"),
            ),
            (
                CpuidFeature::POPCNT,
                "POPCNT",
                is_x86_feature_detected!("popcnt"),
            ),
        ];
        let lacks = host.into_iter().filter(|(_, _, there)| !there);
        lacks
            .filter(|(feature, ..)| self.features.contains(feature))
            .map(|(_, name, _)| name)
            .collect()
    }

    /// Whether the model has this instruction-set extension.
    #[must_use]
    pub fn executes(&self, feature: CpuidFeature) -> bool {
        BASE.contains(&feature) || self.features.contains(&feature)
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
    use super::*;

    #[test]
    fn the_default_model_has_the_branch_trace_store() {
        let m = model(MODELS[0]).unwrap();
        let l = m.cpuid(1, 0);
        assert_ne!(l.edx & edx1::DS, 0);
        assert_eq!(
            l.ecx & (ecx1::DTES64 | ecx1::DS_CPL),
            ecx1::DTES64 | ecx1::DS_CPL
        );
        assert_eq!(m.cpuid(0xA, 0).eax & 0xFF, 2);
    }

    #[test]
    fn leaves_are_sorted() {
        for name in MODELS {
            for m in [model(name).unwrap(), model_without_bts(name).unwrap()] {
                assert!(m.leaves.is_sorted_by_key(|l| (l.leaf, l.subleaf)), "{name}");
            }
        }
    }

    #[test]
    fn a_model_without_bts_differs_in_nothing_else() {
        for name in MODELS {
            let (with, without) = (model(name).unwrap(), model_without_bts(name).unwrap());
            assert_eq!((with.name, with.bts), (*name, true));
            assert_eq!((without.name, without.bts), (*name, false));
            for (a, b) in with.leaves.iter().zip(without.leaves) {
                let ds = ecx1::DTES64 | ecx1::DS_CPL;
                let expected = match a.leaf {
                    1 => Leaf {
                        ecx: a.ecx & !ds,
                        edx: a.edx & !edx1::DS,
                        ..*a
                    },
                    _ => *a,
                };
                assert_eq!(*b, expected, "{name}");
            }
        }
    }

    #[test]
    fn what_cpuid_advertises_is_executed() {
        let flags = [
            (ecx1::SSE3, CpuidFeature::SSE3),
            (ecx1::SSSE3, CpuidFeature::SSSE3),
            (ecx1::CMPXCHG16B, CpuidFeature::CMPXCHG16B),
            (ecx1::SSE4_1, CpuidFeature::SSE4_1),
            (ecx1::SSE4_2, CpuidFeature::SSE4_2),
            (ecx1::POPCNT, CpuidFeature::POPCNT),
        ];
        for name in MODELS {
            let m = model(name).unwrap();
            for (flag, feature) in flags {
                let advertised = m.cpuid(1, 0).ecx & flag != 0;
                assert_eq!(m.executes(feature), advertised, "{name}: {feature:?}");
            }
        }
        let later = model("x86-64-v2").unwrap();
        assert!(flags.iter().all(|(_, feature)| later.executes(*feature)));
        assert_eq!(later.cpuid(1, 0).eax, 0x6FB);
        assert_eq!(model("nehalem").unwrap().cpuid(1, 0).eax, 0x1_06A5);
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
