//! The model-specific registers of the default processor model, as data (SDM Vol. 4, and Vol. 3
//! where a row says so). Those of the other models are in `derived_msrs`.
//!
//! A register without a row does not exist: #GP(0). The values after RESET are those of
//! `MsrState::default()`.

use super::Model;
use crate::state::msr::*;
use crate::state::{MsrState, PmuRegister, PmuState};

/// Selects the field of [`MsrState`] that holds the register at a position in its row.
pub(crate) type IndexedField = fn(&mut MsrState, usize) -> Option<&mut u64>;

/// The values that a stored register accepts; others raise #GP.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Accepts {
    /// Those without other bits.
    Bits(u64),
    /// Canonical addresses.
    Canonical,
    /// Eight memory types of an MTRR (Vol. 3A 11.11.2.2).
    MtrrTypes,
    /// Eight memory types of the PAT, which has UC- as well (Vol. 3A 11.12.4).
    PatTypes,
    /// Base and type, or mask and valid flag, of a variable range (Vol. 3A 11.11.2.3).
    MtrrRange,
    /// The default memory type and the enable flags (Vol. 3A 11.11.2.1).
    MtrrDefault,
}

/// How a register behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Holds the value that was written, in [`MsrState`].
    Stored(MsrField, Accepts),
    /// As `Stored`, for a row of several registers.
    StoredRow(IndexedField, Accepts),
    /// Reads as a constant; writing raises #GP.
    ReadOnly(u64),
    /// Reads as a constant; writes are accepted and have no effect.
    Ignored {
        reads: u64,
        writable: u64,
    },
    /// One of performance monitoring, by its position in the row.
    Pmu(fn(usize) -> PmuRegister),
    /// IA32_MISC_ENABLE.
    MiscEnable,
    Efer,
    FsBase,
    GsBase,
    Tsc,
    TscDeadline,
    /// IA32_APIC_BASE: a register of the local APIC that holds a physical address.
    ApicBase,
    /// Another register of the local APIC.
    Apic,
    /// IA32_DEBUGCTL.
    DebugCtl,
    /// IA32_DS_AREA: there iff the model has a Branch Trace Store (Vol. 3B 17.4.9).
    DsArea,
    /// One of the LBR stack, if the model has it at this number.
    Lbr,
    /// IA32_PERF_CAPABILITIES.
    PerfCapabilities,
}

/// Registers `first..=last`, which behave alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// First register.
    pub first: u32,
    /// Last register.
    pub last: u32,
    /// How they behave.
    pub kind: Kind,
}

pub(super) const fn row(number: u32, kind: Kind) -> Row {
    Row {
        first: number,
        last: number,
        kind,
    }
}

pub(super) const fn rows(first: u32, last: u32, kind: Kind) -> Row {
    Row { first, last, kind }
}

/// The registers of `n` performance counters.
pub(super) const fn counters(first: u32, n: usize, register: fn(usize) -> PmuRegister) -> Row {
    rows(first, first + n as u32 - 1, Kind::Pmu(register))
}

/// Number of rows.
pub(super) const ROWS: usize = 49;
/// What the processor is not vulnerable to, if CPUID says that the register exists.
pub(super) const IA32_ARCH_CAPABILITIES: u32 = 0x10A;

/// The registers of the default model, by number.
pub(super) const MSRS: [Row; ROWS] = [
    // IA32_P5_MC_ADDR, IA32_P5_MC_TYPE: machine checks of the Pentium, never any.
    rows(0x0, 0x1, Kind::ReadOnly(0)),
    // IA32_TIME_STAMP_COUNTER (Vol. 3B 17.17).
    row(IA32_TSC, Kind::Tsc),
    // IA32_PLATFORM_ID: slot 0, for microcode updates.
    row(0x17, Kind::ReadOnly(0)),
    // IA32_APIC_BASE (Vol. 3A 10.4.4).
    row(IA32_APIC_BASE, Kind::ApicBase),
    // MSR_EBL_CR_POWERON, MSR_EBC_HARD_POWERON of NetBurst: bus ratio and straps.
    row(
        0x2A,
        Kind::Ignored {
            reads: 0,
            writable: u64::MAX,
        },
    ),
    // IA32_FEATURE_CONTROL: locked, with VMX and SMX off.
    row(0x3A, Kind::ReadOnly(1)),
    // MSR_LASTBRANCH_n_FROM_IP and MSR_LASTBRANCH_n_TO_IP of the Core microarchitecture (Vol. 3B
    // 17.5), MSR_LASTBRANCH_0 to 7 of Pentium M (17.13).
    rows(0x40, 0x47, Kind::Lbr),
    rows(0x60, 0x63, Kind::Lbr),
    // IA32_BIOS_SIGN_ID: software writes 0, executes CPUID and reads the microcode revision in the
    // upper half. It is always there, the last one of this part.
    row(
        0x8B,
        Kind::Ignored {
            reads: 0xBC << 32,
            writable: u64::MAX,
        },
    ),
    // IA32_PMC0 to 3, as many as there are (Vol. 3B 18.2.1.1). PerfCtr0 and 1 of the P6 family.
    counters(0xC1, PmuState::GENERAL, PmuRegister::Pmc),
    // MSR_FSB_FREQ: 133 MHz.
    row(0xCD, Kind::ReadOnly(1)),
    // IA32_MTRRCAP: 8 variable ranges, fixed ranges, write combining (Vol. 3A 11.11.1).
    row(0xFE, Kind::ReadOnly(0x508)),
    // IA32_ARCH_CAPABILITIES. A processor that does not speculate has none of the flaws: RDCL_NO,
    // SKIP_L1DFL, SSB_NO, MDS_NO, PSCHANGE_MC_NO, TAA_NO, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO, BHI_NO,
    // PBRSB_NO, GDS_NO, RFDS_NO, ITS_NO.
    row(
        IA32_ARCH_CAPABILITIES,
        Kind::ReadOnly(
            1 << 0
                | 1 << 3
                | 1 << 4
                | 1 << 5
                | 1 << 6
                | 1 << 8
                | 1 << 13
                | 1 << 14
                | 1 << 15
                | 1 << 20
                | 1 << 24
                | 1 << 26
                | 1 << 27
                | 1 << 62,
        ),
    ),
    // IA32_SYSENTER_CS, _ESP, _EIP (Vol. 3A 5.8.7).
    row(
        IA32_SYSENTER_CS,
        Kind::Stored(
            system_call_field(IA32_SYSENTER_CS),
            Accepts::Bits(0xFFFF_FFFF),
        ),
    ),
    row(
        IA32_SYSENTER_ESP,
        Kind::Stored(system_call_field(IA32_SYSENTER_ESP), Accepts::Canonical),
    ),
    row(
        IA32_SYSENTER_EIP,
        Kind::Stored(system_call_field(IA32_SYSENTER_EIP), Accepts::Canonical),
    ),
    // IA32_MCG_CAP: no banks, no MCG_CTL. IA32_MCG_STATUS (Vol. 3B 15.3.1).
    row(0x179, Kind::ReadOnly(0)),
    row(
        0x17A,
        Kind::Stored(|m| &mut m.mcg_status, Accepts::Bits(0x7)),
    ),
    // IA32_PERFEVTSEL0 to 3. PerfEvtSel0 and 1 of the P6 family.
    counters(0x186, PmuState::GENERAL, PmuRegister::EvtSel),
    // IA32_MISC_ENABLE.
    row(IA32_MISC_ENABLE, Kind::MiscEnable),
    // MSR_LBR_SELECT (Vol. 3B 17.7.2) and MSR_LASTBRANCH_TOS.
    rows(0x1C8, 0x1C9, Kind::Lbr),
    // IA32_DEBUGCTL (Vol. 3B 17.4.1).
    row(IA32_DEBUGCTL, Kind::DebugCtl),
    // MSR_LASTBRANCH_TOS and MSR_LASTBRANCH_0 to 3 of NetBurst (Vol. 3B 17.11.2).
    rows(0x1DA, 0x1DE, Kind::Lbr),
    // IA32_MTRR_PHYSBASEn and IA32_MTRR_PHYSMASKn, in turn.
    rows(
        0x200,
        0x20F,
        Kind::StoredRow(
            |m, n| {
                let range = m.mtrr.variable.get_mut(n / 2)?;
                Some(if n & 1 == 0 {
                    &mut range.base
                } else {
                    &mut range.mask
                })
            },
            Accepts::MtrrRange,
        ),
    ),
    // IA32_MTRR_FIX64K_00000, FIX16K_80000, FIX16K_A0000, FIX4K_C0000 to FIX4K_F8000.
    row(
        0x250,
        Kind::StoredRow(|m, _| m.mtrr.fixed.first_mut(), Accepts::MtrrTypes),
    ),
    rows(
        0x258,
        0x259,
        Kind::StoredRow(|m, n| m.mtrr.fixed.get_mut(1 + n), Accepts::MtrrTypes),
    ),
    rows(
        0x268,
        0x26F,
        Kind::StoredRow(|m, n| m.mtrr.fixed.get_mut(3 + n), Accepts::MtrrTypes),
    ),
    // IA32_PAT (Vol. 3A 11.12.2).
    row(IA32_PAT, Kind::Stored(|m| &mut m.pat, Accepts::PatTypes)),
    // IA32_MTRR_DEF_TYPE.
    row(
        0x2FF,
        Kind::Stored(|m| &mut m.mtrr.default_type, Accepts::MtrrDefault),
    ),
    // IA32_FIXED_CTR0 to 2.
    counters(0x309, PmuState::FIXED, PmuRegister::FixedCtr),
    // IA32_PERF_CAPABILITIES (Vol. 3B 17.4.8.1).
    row(0x345, Kind::PerfCapabilities),
    // IA32_FIXED_CTR_CTRL: for each counter the rings in which it counts, and PMI (Vol. 3B
    // 18.2.2.1).
    row(0x38D, Kind::Pmu(|_| PmuRegister::FixedCtrCtrl)),
    // IA32_PERF_GLOBAL_STATUS. BTS has no bit here.
    row(0x38E, Kind::Pmu(|_| PmuRegister::GlobalStatus)),
    // IA32_PERF_GLOBAL_CTRL.
    row(0x38F, Kind::Pmu(|_| PmuRegister::GlobalCtrl)),
    // IA32_PERF_GLOBAL_OVF_CTRL: clears bits of the status: also the DS buffer's (62) and the
    // condition changed (63).
    row(0x390, Kind::Pmu(|_| PmuRegister::GlobalOvfCtrl)),
    // IA32_DS_AREA (Vol. 3B 17.4.9).
    row(IA32_DS_AREA, Kind::DsArea),
    // MSR_LASTBRANCH_n_FROM_IP and MSR_LASTBRANCH_n_TO_IP from Nehalem on (Vol. 3B 17.7), and of
    // NetBurst (17.11.2).
    rows(0x680, 0x69F, Kind::Lbr),
    rows(0x6C0, 0x6DF, Kind::Lbr),
    // IA32_TSC_DEADLINE (Vol. 3A 10.5.4.1).
    row(0x6E0, Kind::TscDeadline),
    // x2APIC registers: there iff the local APIC says so (Vol. 3A 10.12).
    rows(0x800, 0x8FF, Kind::Apic),
    // MSR_LBR_INFO_n (Vol. 3B 17.10).
    rows(0xDC0, 0xDDF, Kind::Lbr),
    // IA32_EFER (Vol. 3A 2.2.1).
    row(IA32_EFER, Kind::Efer),
    // IA32_STAR, LSTAR, CSTAR, FMASK (Vol. 3A 5.8.8).
    row(
        IA32_STAR,
        Kind::Stored(system_call_field(IA32_STAR), Accepts::Bits(u64::MAX)),
    ),
    row(
        IA32_LSTAR,
        Kind::Stored(system_call_field(IA32_LSTAR), Accepts::Canonical),
    ),
    row(
        IA32_CSTAR,
        Kind::Stored(system_call_field(IA32_CSTAR), Accepts::Canonical),
    ),
    row(
        IA32_FMASK,
        Kind::Stored(system_call_field(IA32_FMASK), Accepts::Bits(0xFFFF_FFFF)),
    ),
    // IA32_FS_BASE, GS_BASE, KERNEL_GS_BASE (Vol. 3A 3.4.4.1).
    row(IA32_FS_BASE, Kind::FsBase),
    row(IA32_GS_BASE, Kind::GsBase),
    row(
        IA32_KERNEL_GS_BASE,
        Kind::Stored(system_call_field(IA32_KERNEL_GS_BASE), Accepts::Canonical),
    ),
];

impl Model {
    /// The row of a register, and its position in the row.
    pub(crate) fn msr(&self, number: u32) -> Option<(&'static Row, usize)> {
        let i = self.msrs.partition_point(|r| r.last < number);
        let row = self.msrs.get(i).filter(|r| r.first <= number)?;
        let exists = match row.kind {
            Kind::DsArea => self.bts,
            Kind::Efer => self.efer_flags() != 0,
            _ => true,
        };
        if !exists {
            return None;
        }
        Some((row, (number - row.first) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::derived_msrs::X86_64_V3_MSRS;
    use crate::model::{MODELS, model, model_without_bts};

    #[test]
    fn the_table_is_sorted_and_does_not_overlap() {
        for pair in X86_64_V3_MSRS.windows(2) {
            assert!(pair[0].last < pair[1].first, "{:#x}", pair[1].first);
        }
    }

    #[test]
    fn each_model_has_the_registers_of_its_features() {
        // The model, and registers that it has and that it does not have.
        let cases: [(&str, &[u32], &[u32]); 4] = [
            (
                "core2",
                &[0x3A, 0xC1, 0xCD, 0x345, IA32_EFER, IA32_STAR],
                &[],
            ),
            (
                "pentium4-64",
                &[
                    0x2A,
                    0x10A,
                    IA32_PAT,
                    IA32_EFER,
                    IA32_STAR,
                    IA32_GS_BASE,
                    0x309,
                ],
                &[0x3A, 0xC1, 0xCD, 0x186, 0x312, 0x345, 0x38D, 0x38F, 0x390],
            ),
            (
                "pentium4",
                &[
                    0x2A,
                    0x10A,
                    IA32_SYSENTER_EIP,
                    IA32_PAT,
                    0x300,
                    0x371,
                    0x3F2,
                ],
                &[
                    0x3A,
                    0xC1,
                    0x186,
                    0x345,
                    0x372,
                    IA32_EFER,
                    IA32_STAR,
                    IA32_FS_BASE,
                ],
            ),
            (
                "pentium-m",
                &[
                    0x2A,
                    0x10A,
                    IA32_SYSENTER_EIP,
                    IA32_PAT,
                    IA32_EFER,
                    0xC1,
                    0x187,
                ],
                &[
                    0x3A,
                    0x300,
                    0x309,
                    0x345,
                    0x360,
                    0x38F,
                    IA32_STAR,
                    IA32_KERNEL_GS_BASE,
                ],
            ),
        ];
        for (name, there, absent) in cases {
            let m = model(name).unwrap();
            assert!(m.msrs.is_sorted_by(|a, b| a.last < b.first), "{name}");
            for number in there {
                assert!(m.msr(*number).is_some(), "{name} {number:#x}");
            }
            for number in absent {
                assert!(m.msr(*number).is_none(), "{name} {number:#x}");
            }
        }
    }

    #[test]
    fn each_stored_register_has_a_field_of_its_own() {
        let mut state = MsrState::default();
        let stored = |state: &mut MsrState, row: &Row, position| match row.kind {
            Kind::Stored(field, _) => Some(field(state) as *mut u64),
            Kind::StoredRow(field, _) => Some(field(state, position).unwrap() as *mut u64),
            _ => None,
        };
        let mut seen = Vec::new();
        for row in &X86_64_V3_MSRS {
            for position in 0..=(row.last - row.first) as usize {
                if let Some(field) = stored(&mut state, row, position) {
                    assert!(!seen.contains(&field), "{:#x}+{position}", row.first);
                    seen.push(field);
                }
            }
        }
        assert_eq!(seen.len(), 8 + 1 + 1 + 16 + 11 + 1 + 1);
    }

    #[test]
    fn only_a_model_with_bts_has_its_registers() {
        for name in MODELS {
            let (with, without) = (model(name).unwrap(), model_without_bts(name).unwrap());
            assert!(with.msr(IA32_DS_AREA).is_some() && without.msr(IA32_DS_AREA).is_none());
            for m in [with, without] {
                assert!(m.msr(0x2).is_none() && m.msr(u32::MAX).is_none());
                let counter = (!name.starts_with("pentium4")).then_some((0xC1, 2));
                assert_eq!(m.msr(0xC3).map(|(row, n)| (row.first, n)), counter);
            }
        }
    }
}
