//! The processor models as data: CPUID leaves, instruction-set extensions and MSRs.

pub(crate) mod cpuid;
mod derived_leaves;
mod derived_msrs;
mod features;
pub(crate) mod lbr;
mod leaves;
pub(crate) mod msr;
pub(crate) mod netburst_pmu;
pub(crate) mod pmu;
mod reset;

use iced_x86::CpuidFeature;
use vbts_bts::Microarchitecture;

pub use self::cpuid::Leaf;
use self::derived_leaves::{without_bts, without_capabilities};
use self::derived_msrs::{
    NETBURST_64_MSRS, NETBURST_MSRS, PENTIUM_M_MSRS, WITHOUT_CAPABILITIES, X86_64_V3_BASIC_MSRS,
    X86_64_V3_MSRS,
};
use self::features::{
    CORE2_FEATURES, IA32_FEATURES, MAX_FEATURES, PENTIUM4_64_FEATURES, X86_64_V2_FEATURES,
    X86_64_V3_BASIC_FEATURES, X86_64_V3_FEATURES,
};
pub use self::features::{Requirement, host_has};
use self::lbr::Lbr;
use self::leaves::{
    CORE2_LEAVES, HASWELL_LEAVES, MAX_LEAVES, NEHALEM_LEAVES, PENTIUM_M_LEAVES, PENTIUM4_64_LEAVES,
    PENTIUM4_LEAVES, SKYLAKE_LEAVES, X86_64_V2_LEAVES, X86_64_V3_BASIC_LEAVES, X86_64_V3_LEAVES,
};
use self::msr::MSRS;
pub(crate) use self::pmu::Counters;

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
#[derive(Debug, Clone, Copy)]
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
    /// F3 before BSF and BSR makes them TZCNT and LZCNT.
    pub(crate) counts_zeros: bool,
    /// Its LBR stack.
    pub(crate) lbr: Lbr,
}

/// Intel Core 2 Duo (Merom), the processor of the first Linux code for BTS, with the few later
/// features that a virtual machine needs.
const CORE2: Model = Model {
    name: "core2",
    microarchitecture: Microarchitecture::Core2,
    bts: true,
    features: CORE2_FEATURES,
    counts_zeros: false,
    lbr: Lbr::CORE,
    leaves: &CORE2_LEAVES,
    msrs: &MSRS,
};

/// Intel Pentium 4 (NetBurst) with Intel 64, with the few later features that a virtual machine
/// needs.
const PENTIUM4_64: Model = Model {
    name: "pentium4-64",
    microarchitecture: Microarchitecture::NetBurst64,
    bts: true,
    features: PENTIUM4_64_FEATURES,
    counts_zeros: false,
    lbr: Lbr::NETBURST_64,
    leaves: &PENTIUM4_64_LEAVES,
    msrs: &NETBURST_64_MSRS,
};

/// Intel Pentium 4 (NetBurst) before Intel 64: an IA-32 processor.
const PENTIUM4: Model = Model {
    name: "pentium4",
    microarchitecture: Microarchitecture::NetBurst,
    features: IA32_FEATURES,
    lbr: Lbr::NETBURST,
    leaves: &PENTIUM4_LEAVES,
    msrs: &NETBURST_MSRS,
    ..PENTIUM4_64
};

/// Intel Pentium M: an IA-32 processor.
const PENTIUM_M: Model = Model {
    name: "pentium-m",
    microarchitecture: Microarchitecture::PentiumM,
    lbr: Lbr::PENTIUM_M,
    leaves: &PENTIUM_M_LEAVES,
    msrs: &PENTIUM_M_MSRS,
    ..PENTIUM4
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

/// Intel Core 2 Duo (Conroe) as it was sold: [`CORE2`] without IA32_ARCH_CAPABILITIES. Kernels take
/// it for vulnerable to Meltdown and isolate their page tables.
const CONROE: Model = Model {
    name: "conroe",
    leaves: &without_capabilities(CORE2_LEAVES),
    msrs: &WITHOUT_CAPABILITIES,
    ..CORE2
};

/// Intel Core i7 (Nehalem), the first stepping.
const NEHALEM: Model = Model {
    name: "nehalem",
    microarchitecture: Microarchitecture::Nehalem,
    bts: true,
    features: X86_64_V2_FEATURES,
    counts_zeros: false,
    lbr: Lbr::NEHALEM,
    leaves: &NEHALEM_LEAVES,
    msrs: &MSRS,
};

/// [`X86_64_V2`] with instructions of later parts. No such part exists. Most hosts that have the
/// instructions of x86-64-v3 can run it on KVM: AMD's have PCID since Zen 3, Intel's UMIP since Ice
/// Lake.
const X86_64_V3_BASIC: Model = Model {
    name: "x86-64-v3-basic",
    features: X86_64_V3_BASIC_FEATURES,
    counts_zeros: true,
    leaves: &X86_64_V3_BASIC_LEAVES,
    msrs: &X86_64_V3_BASIC_MSRS,
    ..CORE2
};

/// [`X86_64_V3_BASIC`] with more system features of later parts.
const X86_64_V3: Model = Model {
    name: "x86-64-v3",
    features: X86_64_V3_FEATURES,
    leaves: &X86_64_V3_LEAVES,
    msrs: &X86_64_V3_MSRS,
    ..X86_64_V3_BASIC
};

/// Intel Core of the 4th generation (Haswell), with the few later features of [`X86_64_V3`].
const HASWELL: Model = Model {
    name: "haswell",
    microarchitecture: Microarchitecture::Nehalem,
    leaves: &HASWELL_LEAVES,
    lbr: Lbr::HASWELL,
    ..X86_64_V3
};

/// Intel Core of the 6th generation (Skylake), with the few later features of [`X86_64_V3`].
const SKYLAKE: Model = Model {
    name: "skylake",
    leaves: &SKYLAKE_LEAVES,
    lbr: Lbr::SKYLAKE,
    ..HASWELL
};

/// [`X86_64_V3`] with all other instructions that the software CPU has. No such part exists.
const MAX: Model = Model {
    name: "max",
    features: MAX_FEATURES,
    leaves: &MAX_LEAVES,
    ..X86_64_V3
};

/// All models, each with its variant without a Branch Trace Store. The first is the default.
static TABLE: [(Model, Model); 12] = [
    (CORE2, CORE2.without_bts(&without_bts(CORE2_LEAVES))),
    (
        PENTIUM_M,
        PENTIUM_M.without_bts(&without_bts(PENTIUM_M_LEAVES)),
    ),
    (
        PENTIUM4,
        PENTIUM4.without_bts(&without_bts(PENTIUM4_LEAVES)),
    ),
    (
        PENTIUM4_64,
        PENTIUM4_64.without_bts(&without_bts(PENTIUM4_64_LEAVES)),
    ),
    (
        CONROE,
        CONROE.without_bts(&without_bts(without_capabilities(CORE2_LEAVES))),
    ),
    (
        X86_64_V2,
        X86_64_V2.without_bts(&without_bts(X86_64_V2_LEAVES)),
    ),
    (NEHALEM, NEHALEM.without_bts(&without_bts(NEHALEM_LEAVES))),
    (
        X86_64_V3_BASIC,
        X86_64_V3_BASIC.without_bts(&without_bts(X86_64_V3_BASIC_LEAVES)),
    ),
    (
        X86_64_V3,
        X86_64_V3.without_bts(&without_bts(X86_64_V3_LEAVES)),
    ),
    (HASWELL, HASWELL.without_bts(&without_bts(HASWELL_LEAVES))),
    (SKYLAKE, SKYLAKE.without_bts(&without_bts(SKYLAKE_LEAVES))),
    (MAX, MAX.without_bts(&without_bts(MAX_LEAVES))),
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

/// Guest-physical address width that the CPU models advertise (`CPUID.80000008H:EAX[7:0]`).
pub const PHYS_BITS: u32 = 40;
/// The bits that a guest-physical address can have.
pub(crate) const PHYS_MASK: u64 = (1 << PHYS_BITS) - 1;

/// Frequency in Hz of the time-stamp counter and of the local APIC timer in virtual time: one tick
/// is one nanosecond.
pub const TSC_HZ: u32 = 1_000_000_000;

impl Model {
    /// The model without a Branch Trace Store. IA32_MISC_ENABLE and IA32_DEBUGCTL depend on `bts`.
    const fn without_bts(&self, leaves: &'static [Leaf]) -> Self {
        Self {
            bts: false,
            leaves,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cpuid::{ecx1, edx1};
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
    fn the_processors_of_2007_are_what_they_report() {
        // Model, signature, the flags of leaf 1 that the parts have and that are executed here, and
        // of leaf 80000001H in EDX. The parts report ECX and EDX 0000649DH BFEBFBFFH, 00004400H
        // BFEBFBFFH, and 00000180H AFE9FBFFH.
        let cases = [
            ("pentium4-64", 0xF43, 0x0000_2015, 0x0FAB_FBFF, 0x2010_0800),
            ("pentium4", 0xF29, 0, 0x0FAB_FBFF, 0),
            ("pentium-m", 0x6D8, 0, 0x0FA9_FBFF, 0x0010_0000),
        ];
        for (name, signature, ecx, edx, extended) in cases {
            let m = model(name).unwrap();
            let l = m.cpuid(1, 0);
            let virtual_machine = ecx1::TSC_DEADLINE | ecx1::HYPERVISOR;
            assert_eq!(l.eax, signature, "{name}");
            assert_eq!(l.ecx, ecx | virtual_machine, "{name}");
            assert_eq!(l.edx, edx, "{name}");
            assert_eq!(m.cpuid(0x8000_0001, 0).edx, extended, "{name}");
            assert_eq!(m.has_intel_64(), name == "pentium4-64");
            assert_eq!(m.cpuid(0xA, 0).eax, 0, "{name}");
            // TSC frequency, and RDCL_NO.
            assert_eq!(m.cpuid(0x15, 0).ecx, TSC_HZ, "{name}");
        }
        let leaves = |name| model(name).unwrap().leaves;
        for name in ["pentium4", "pentium-m"] {
            assert_eq!(leaves(name).last().map(|l| l.leaf), Some(0x8000_0004));
            assert_eq!(model(name).unwrap().cpuid(4, 0).eax, 0);
        }
    }

    #[test]
    fn only_conroe_is_vulnerable_to_meltdown() {
        for name in MODELS {
            let m = model(name).unwrap();
            let capabilities = m.cpuid(7, 0).edx >> 29 & 1 != 0;
            assert_eq!(capabilities, *name != "conroe");
            assert_eq!(m.msr(0x10A).is_some(), capabilities, "{name}");
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
}
