//! The model-specific registers of the other processor models: those of the default model with
//! some more, or without some.

use super::msr::{Accepts, IA32_ARCH_CAPABILITIES, Kind, MSRS, ROWS, Row, counters, row, rows};
use crate::state::msr::*;
use crate::state::{NetBurstPmu, PmuRegister};

/// Number of rows of the model x86-64-v3-basic.
const X86_64_V3_BASIC_ROWS: usize = ROWS + 1;

/// The registers of the model x86-64-v3-basic.
pub(super) const X86_64_V3_BASIC_MSRS: [Row; X86_64_V3_BASIC_ROWS] = with(
    &MSRS,
    [
        // IA32_TSC_AUX (Vol. 3B 17.17.2).
        row(
            IA32_TSC_AUX,
            Kind::Stored(|m| &mut m.tsc_aux, Accepts::Bits(0xFFFF_FFFF)),
        ),
    ],
);

/// Number of rows of the model x86-64-v3.
pub(super) const X86_64_V3_ROWS: usize = X86_64_V3_BASIC_ROWS + 1;

/// The registers of the model x86-64-v3.
pub(super) const X86_64_V3_MSRS: [Row; X86_64_V3_ROWS] = with(
    &X86_64_V3_BASIC_MSRS,
    [
        // IA32_XSS: no supervisor state components (Vol. 1 13.3).
        row(
            0xDA0,
            Kind::Ignored {
                reads: 0,
                writable: 0,
            },
        ),
    ],
);

/// `rows` with those of `more`, by number. `T` is `N + M`.
const fn with<const N: usize, const M: usize, const T: usize>(
    rows: &[Row; N],
    more: [Row; M],
) -> [Row; T] {
    assert!(N + M == T);
    let mut all = [rows[0]; T];
    let (mut i, mut j) = (0, 0);
    while i + j < T {
        if j == M || (i < N && rows[i].first < more[j].first) {
            all[i + j] = rows[i];
            i += 1;
        } else {
            all[i + j] = more[j];
            j += 1;
        }
    }
    all
}

/// IA32_FEATURE_CONTROL, which is there with VMX or SMX.
const IA32_FEATURE_CONTROL: u32 = 0x3A;
/// IA32_PERF_CAPABILITIES, which is there with PDCM.
const IA32_PERF_CAPABILITIES: u32 = 0x345;
/// MSR_FSB_FREQ, which the Core microarchitecture has.
const MSR_FSB_FREQ: u32 = 0xCD;

/// The registers of performance monitoring that NetBurst has (Vol. 3B table 18-63).
const NETBURST_PMU: [Row; 7] = [
    // MSR_BPU_COUNTER0 to MSR_IQ_COUNTER5.
    counters(0x300, NetBurstPmu::COUNTERS, PmuRegister::Counter),
    // MSR_BPU_CCCR0 to MSR_IQ_CCCR5.
    counters(0x360, NetBurstPmu::COUNTERS, PmuRegister::Cccr),
    // MSR_BSU_ESCR0 to MSR_SSU_ESCR0.
    counters(0x3A0, 31, PmuRegister::Escr),
    // MSR_MS_ESCR0 to MSR_TC_ESCR1.
    counters(0x3C0, 6, |n| PmuRegister::Escr(32 + n)),
    // MSR_IX_ESCR0 to MSR_CRU_ESCR3.
    counters(0x3C8, 6, |n| PmuRegister::Escr(38 + n)),
    // MSR_CRU_ESCR4 and 5.
    counters(0x3E0, 2, |n| PmuRegister::Escr(44 + n)),
    // MSR_PEBS_ENABLE and MSR_PEBS_MATRIX_VERT, which also select what is tagged. Nothing is.
    rows(
        0x3F1,
        0x3F2,
        Kind::Ignored {
            reads: 0,
            writable: 0xFFFF_FFFF,
        },
    ),
];

/// The first registers of the rows that only a processor with architectural performance monitoring
/// has, and a later one than NetBurst and Pentium M.
const LATER: [u32; 8] = [
    IA32_FEATURE_CONTROL,
    MSR_FSB_FREQ,
    0x309,
    IA32_PERF_CAPABILITIES,
    0x38D,
    0x38E,
    0x38F,
    0x390,
];

/// The first registers of the rows that NetBurst does not have, but the P6 family before it.
const P6_PMU: [u32; 2] = [0xC1, 0x186];

/// The first registers of the rows that only a processor with Intel 64 has.
const INTEL_64: [u32; 7] = [
    IA32_STAR,
    IA32_LSTAR,
    IA32_CSTAR,
    IA32_FMASK,
    IA32_FS_BASE,
    IA32_GS_BASE,
    IA32_KERNEL_GS_BASE,
];

/// The registers of a processor without IA32_ARCH_CAPABILITIES.
pub(super) const WITHOUT_CAPABILITIES: [Row; ROWS - 1] = without(&MSRS, [IA32_ARCH_CAPABILITIES]);

/// The registers of NetBurst and Pentium M, without those that only NetBurst has.
const OLD_MSRS: [Row; ROWS - LATER.len()] = without(&MSRS, LATER);

/// Those of them that NetBurst has.
const OLD_NETBURST_MSRS: [Row; OLD_MSRS.len() - P6_PMU.len()] = without(&OLD_MSRS, P6_PMU);

/// The registers of NetBurst with Intel 64.
pub(super) const NETBURST_64_MSRS: [Row; OLD_NETBURST_MSRS.len() + NETBURST_PMU.len()] =
    with(&OLD_NETBURST_MSRS, NETBURST_PMU);

/// The registers of NetBurst without Intel 64, and so without IA32_EFER.
pub(super) const NETBURST_MSRS: [Row; NETBURST_64_MSRS.len() - INTEL_64.len()] =
    without(&NETBURST_64_MSRS, INTEL_64);

/// The registers of Pentium M. Whether there is an IA32_EFER depends on the other features.
pub(super) const PENTIUM_M_MSRS: [Row; OLD_MSRS.len() - INTEL_64.len()] =
    without(&OLD_MSRS, INTEL_64);

/// `rows` without those that begin with the registers `absent`. `T` is `N - M`.
const fn without<const N: usize, const M: usize, const T: usize>(
    rows: &[Row; N],
    absent: [u32; M],
) -> [Row; T] {
    assert!(N - M == T);
    let mut left = [rows[0]; T];
    let (mut from, mut to) = (0, 0);
    while from < N {
        let (mut i, mut is_absent) = (0, false);
        while i < M {
            is_absent |= rows[from].first == absent[i];
            i += 1;
        }
        if !is_absent {
            left[to] = rows[from];
            to += 1;
        }
        from += 1;
    }
    left
}
