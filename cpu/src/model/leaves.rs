//! The CPUID leaves of each model. Sections are those of SDM Vol. 2A, "CPUID—CPU Identification",
//! and of Vol. 3B for what a leaf enumerates.

use super::cpuid::{Leaf, eaxd, ebx7, ecx1, ecx7, ecx8000_0001, edx1, edx8000_0001};
use super::derived_leaves::{Flags, and, with, with_features, without};
use super::{PHYS_BITS, TSC_HZ};
use crate::state::PmuState;
use crate::state::xsave::{XsaveArea, component};

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

/// Leaf 80000002H, 80000003H or 80000004H (`part` 0 to 2): 16 bytes of the brand string, which ends
/// with zeros.
const fn brand(part: u32, name: &str) -> Leaf {
    let name = name.as_bytes();
    let mut words = [0; 4];
    let mut i = 0;
    while i < 16 {
        let at = 16 * part as usize + i;
        if at < name.len() {
            words[i / 4] |= (name[at] as u32) << (8 * (i % 4));
        }
        i += 1;
    }
    leaf(0x8000_0002 + part, words[0], words[1], words[2], words[3])
}

const CORE2_BRAND: &str = "Intel(R) Core(TM)2 Duo CPU     @ 1.00GHz";
const PENTIUM4_64_BRAND: &str = "Intel(R) Pentium(R) 4 CPU 1.00GHz";
const PENTIUM4_BRAND: &str = "Intel(R) Pentium(R) 4 CPU 1.00GHz";
const PENTIUM_M_BRAND: &str = "Intel(R) Pentium(R) M processor 1.00GHz";
const X86_64_V2_BRAND: &str = "vbts x86-64-v2 CPU @ 1.00GHz";
const X86_64_V3_BRAND: &str = "vbts x86-64-v3 CPU @ 1.00GHz";
const X86_64_V3_BASIC_BRAND: &str = "vbts x86-64-v3-basic CPU @ 1.00GHz";
const MAX_BRAND: &str = "vbts max CPU @ 1.00GHz";
const HASWELL_BRAND: &str = "Intel(R) Core(TM) i7-4770 CPU  @ 1.00GHz";
const SKYLAKE_BRAND: &str = "Intel(R) Core(TM) i7-6700 CPU  @ 1.00GHz";
const NEHALEM_BRAND: &str = "Intel(R) Core(TM) i7 CPU       @ 1.00GHz";

/// Leaf 0AH: architectural performance monitoring version 2, with so many programmable counters and
/// all fixed ones, each of `width` bits (Vol. 3B 18.2.2). Of the 7 events a processor without
/// caches and prediction lacks references to the last level cache (3), misses of it (4), and
/// mispredicted branches (6).
const fn performance_monitoring(counters: u32, width: u32) -> Leaf {
    leaf(
        0xA,
        7 << 24 | width << 16 | counters << 8 | 2,
        1 << 3 | 1 << 4 | 1 << 6,
        0,
        width << 5 | PmuState::FIXED as u32,
    )
}

pub(super) const CORE2_LEAVES: [Leaf; 19] = [
    // Highest basic leaf, and vendor.
    leaf(0, 0x15, text(b"Genu"), text(b"ntel"), text(b"ineI")),
    // Family 6, model 15, stepping 11; CLFLUSH line of 64 bytes, one logical processor. DS, DTES64
    // and DS-CPL make the Branch Trace Store (Vol. 3B 17.4.5). PDCM: IA32_PERF_CAPABILITIES exists.
    leaf(
        1,
        0x0000_06FB,
        0x0001_0800,
        ecx1::SSE3
                | ecx1::DTES64
                | ecx1::DS_CPL
                | ecx1::SSSE3
                | ecx1::CMPXCHG16B
                | ecx1::PDCM
                // The timer needs no calibration: see leaf 15H.
                | ecx1::TSC_DEADLINE
                | ecx1::HYPERVISOR,
        edx1::FPU
            | edx1::VME
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
    // LAHF in 64-bit mode.
    leaf(
        0x8000_0001,
        0,
        0,
        ecx8000_0001::LAHF,
        edx8000_0001::SYSCALL | edx8000_0001::XD | edx8000_0001::INTEL64,
    ),
    // Brand string.
    brand(0, CORE2_BRAND),
    brand(1, CORE2_BRAND),
    brand(2, CORE2_BRAND),
    // L2: 2 MB, 8 ways, lines of 64 bytes.
    leaf(0x8000_0006, 0, 0, 0x0800_6040, 0),
    // Invariant TSC.
    leaf(0x8000_0007, 0, 0, 0, 1 << 8),
    // Physical and linear address widths.
    leaf(0x8000_0008, PHYS_BITS | 48 << 8, 0, 0, 0),
];

/// The leaves of NetBurst with Intel 64, without those of architectural performance monitoring.
/// What a virtual machine needs is as for [`CORE2_LEAVES`].
pub(super) const PENTIUM4_64_LEAVES: [Leaf; 18] = without(
    with(
        CORE2_LEAVES,
        [
            // Family 15, model 4, stepping 3. There is no SSSE3 and no IA32_PERF_CAPABILITIES.
            leaf(
                1,
                0x0000_0F43,
                0x0001_0800,
                ecx1::SSE3
                    | ecx1::DTES64
                    | ecx1::DS_CPL
                    | ecx1::CMPXCHG16B
                    | ecx1::TSC_DEADLINE
                    | ecx1::HYPERVISOR,
                CORE2_LEAVES[1].edx,
            ),
            // Cache and TLB descriptors: 50H 5BH 60H 40H 70H 7DH, as this part reports: 12K-uop
            // trace cache, 16 KB L1D, 2 MB L2.
            leaf(2, 0x605B_5001, 0, 0, 0x007D_7040),
            // L1D 16 KB, 8 ways; L2 2 MB, 8 ways, 2 lines of 64 bytes a sector.
            subleaf(4, 0, 0x0000_0121, 0x01C0_003F, 31, 0),
            subleaf(4, 1, 0x0000_0143, 0x01C0_103F, 2047, 0),
            subleaf(4, 2, 0, 0, 0, 0),
            // No LAHF in 64-bit mode.
            leaf(0x8000_0001, 0, 0, 0, CORE2_LEAVES[12].edx),
            brand(0, PENTIUM4_64_BRAND),
            brand(1, PENTIUM4_64_BRAND),
            brand(2, PENTIUM4_64_BRAND),
        ],
    ),
    &[0xA],
);

/// The leaves that a processor without Intel 64 lacks. Cache parameters are in leaf 2 alone. The
/// brand string is the last extended leaf.
const WITHOUT_INTEL_64: &[u32] = &[4, 0x8000_0006, 0x8000_0007, 0x8000_0008];

pub(super) const PENTIUM4_LEAVES: [Leaf; 12] = without(
    with(
        PENTIUM4_64_LEAVES,
        [
            // Family 15, model 2, stepping 9. There is no SSE3, DTES64 or DS-CPL.
            leaf(
                1,
                0x0000_0F29,
                0x0001_0800,
                ecx1::TSC_DEADLINE | ecx1::HYPERVISOR,
                CORE2_LEAVES[1].edx,
            ),
            // Cache and TLB descriptors: 50H 5BH 66H 40H 70H 7BH: 12K-uop trace cache, 8 KB L1D,
            // 512 KB L2.
            leaf(2, 0x665B_5001, 0, 0, 0x007B_7040),
            leaf(0x8000_0000, 0x8000_0004, 0, 0, 0),
            leaf(0x8000_0001, 0, 0, 0, 0),
            brand(0, PENTIUM4_BRAND),
            brand(1, PENTIUM4_BRAND),
            brand(2, PENTIUM4_BRAND),
        ],
    ),
    WITHOUT_INTEL_64,
);

pub(super) const PENTIUM_M_LEAVES: [Leaf; 12] = with(
    PENTIUM4_LEAVES,
    [
        // Family 6, model 13, stepping 8. There is no PSE-36.
        leaf(
            1,
            0x0000_06D8,
            0x0001_0800,
            ecx1::TSC_DEADLINE | ecx1::HYPERVISOR,
            CORE2_LEAVES[1].edx & !edx1::PSE36,
        ),
        // Cache and TLB descriptors: B0H B3H 02H F0H 7DH 30H 04H 2CH: 32 KB L1I and L1D, 2 MB L2.
        leaf(2, 0x02B3_B001, 0x0000_00F0, 0, 0x2C04_307D),
        leaf(0x8000_0001, 0, 0, 0, edx8000_0001::XD),
        brand(0, PENTIUM_M_BRAND),
        brand(1, PENTIUM_M_BRAND),
        brand(2, PENTIUM_M_BRAND),
    ],
);

pub(super) const X86_64_V2_LEAVES: [Leaf; 19] = with_features(
    with(
        CORE2_LEAVES,
        [
            brand(0, X86_64_V2_BRAND),
            brand(1, X86_64_V2_BRAND),
            brand(2, X86_64_V2_BRAND),
        ],
    ),
    Flags {
        ecx1: ecx1::SSE4_1 | ecx1::SSE4_2 | ecx1::POPCNT,
        ..Flags::NONE
    },
);

/// Leaf 0DH: the components that XSAVE manages, with the sizes after RESET, and the place of AVX
/// state (Vol. 1 13.2). There are no components for IA32_XSS. `features` are those of sub-leaf 1.
const fn xsave(features: u32) -> [Leaf; 3] {
    const COMPONENTS: u64 = component::X87 | component::SSE | component::AVX;
    let now = XsaveArea::size_of(component::X87) as u32;
    let most = XsaveArea::size_of(COMPONENTS) as u32;
    let avx = XsaveArea::ymm_high_range(16);
    // The size of the area for XSAVES.
    let compacted = if features & eaxd::XSAVES == 0 { 0 } else { now };
    [
        subleaf(0xD, 0, COMPONENTS as u32, now, most, 0),
        subleaf(0xD, 1, features, compacted, 0, 0),
        subleaf(0xD, 2, (avx.end - avx.start) as u32, avx.start as u32, 0, 0),
    ]
}

pub(super) const X86_64_V3_BASIC_LEAVES: [Leaf; 22] = with_features(
    and(
        with(
            X86_64_V2_LEAVES,
            [
                brand(0, X86_64_V3_BASIC_BRAND),
                brand(1, X86_64_V3_BASIC_BRAND),
                brand(2, X86_64_V3_BASIC_BRAND),
            ],
        ),
        xsave(eaxd::XSAVEOPT | eaxd::XGETBV1),
    ),
    Flags {
        ecx1: ecx1::PCLMULQDQ
            | ecx1::FMA
            | ecx1::MOVBE
            | ecx1::AES
            | ecx1::XSAVE
            | ecx1::AVX
            | ecx1::F16C
            | ecx1::RDRAND,
        ebx7: ebx7::FSGSBASE | ebx7::BMI1 | ebx7::AVX2 | ebx7::SMEP | ebx7::BMI2,
        ecx7: 0,
        ecx8000_0001: ecx8000_0001::LZCNT,
        edx8000_0001: edx8000_0001::RDTSCP,
    },
);

pub(super) const X86_64_V3_LEAVES: [Leaf; 22] = {
    let xsave = xsave(eaxd::XSAVEOPT | eaxd::XSAVEC | eaxd::XGETBV1 | eaxd::XSAVES);
    with_features(
        with(
            X86_64_V3_BASIC_LEAVES,
            [
                xsave[1],
                brand(0, X86_64_V3_BRAND),
                brand(1, X86_64_V3_BRAND),
                brand(2, X86_64_V3_BRAND),
            ],
        ),
        Flags {
            ecx1: ecx1::PCID,
            ebx7: ebx7::INVPCID | ebx7::SMAP,
            ecx7: ecx7::UMIP,
            ..Flags::NONE
        },
    )
};

pub(super) const MAX_LEAVES: [Leaf; 22] = with_features(
    with(
        X86_64_V3_LEAVES,
        [
            brand(0, MAX_BRAND),
            brand(1, MAX_BRAND),
            brand(2, MAX_BRAND),
        ],
    ),
    Flags {
        ebx7: ebx7::ADX | ebx7::SHA,
        ecx7: ecx7::VAES | ecx7::VPCLMULQDQ,
        ..Flags::NONE
    },
);

pub(super) const NEHALEM_LEAVES: [Leaf; 19] = with(
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
        brand(0, NEHALEM_BRAND),
        brand(1, NEHALEM_BRAND),
        brand(2, NEHALEM_BRAND),
        // L2: 256 KB, 8 ways, lines of 64 bytes.
        leaf(0x8000_0006, 0, 0, 0x0100_6040, 0),
    ],
);

/// [`X86_64_V3_LEAVES`] of another processor. Its caches are those of Core 2.
const fn later(signature: u32, name: &str) -> [Leaf; 22] {
    with(
        X86_64_V3_LEAVES,
        [
            leaf(
                1,
                signature,
                0x0001_0800,
                X86_64_V3_LEAVES[1].ecx,
                X86_64_V3_LEAVES[1].edx,
            ),
            // The parts have later versions, which count for their twin threads, too.
            performance_monitoring(4, 48),
            brand(0, name),
            brand(1, name),
            brand(2, name),
        ],
    )
}

/// Family 6, model 60, stepping 3.
pub(super) const HASWELL_LEAVES: [Leaf; 22] = later(0x0003_06C3, HASWELL_BRAND);

/// Family 6, model 94, stepping 3.
pub(super) const SKYLAKE_LEAVES: [Leaf; 22] = later(0x0005_06E3, SKYLAKE_BRAND);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brand_string_fills_three_leaves() {
        for (leaves, name) in [
            (&CORE2_LEAVES[..], CORE2_BRAND),
            (&PENTIUM4_64_LEAVES, PENTIUM4_64_BRAND),
            (&PENTIUM4_LEAVES, PENTIUM4_BRAND),
            (&PENTIUM_M_LEAVES, PENTIUM_M_BRAND),
            (&X86_64_V2_LEAVES, X86_64_V2_BRAND),
            (&X86_64_V3_BASIC_LEAVES, X86_64_V3_BASIC_BRAND),
            (&X86_64_V3_LEAVES, X86_64_V3_BRAND),
            (&MAX_LEAVES, MAX_BRAND),
            (&NEHALEM_LEAVES, NEHALEM_BRAND),
            (&HASWELL_LEAVES, HASWELL_BRAND),
            (&SKYLAKE_LEAVES, SKYLAKE_BRAND),
        ] {
            let parts = leaves
                .iter()
                .filter(|l| (0x8000_0002..=0x8000_0004).contains(&l.leaf));
            let words = parts.flat_map(|l| [l.eax, l.ebx, l.ecx, l.edx]);
            let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
            assert_eq!(bytes.len(), 48);
            assert!(bytes.starts_with(name.as_bytes()), "{name}");
            assert!(bytes[name.len()..].iter().all(|byte| *byte == 0), "{name}");
        }
        assert_eq!(
            CORE2_LEAVES
                .iter()
                .find(|l| l.leaf == 0x8000_0002)
                .unwrap()
                .eax,
            0x6574_6E49
        );
    }
}
