//! Model-specific registers that are part of the architectural state: their numbers (SDM Vol. 4)
//! and their values.

use serde::{Deserialize, Serialize};

use super::{LbrState, PmuState};

/// IA32_TIME_STAMP_COUNTER.
pub const IA32_TSC: u32 = 0x10;
/// IA32_APIC_BASE.
pub const IA32_APIC_BASE: u32 = 0x1B;
/// IA32_APIC_BASE: the local APIC is enabled.
pub const APIC_BASE_ENABLE: u64 = 1 << 11;
/// IA32_SYSENTER_CS.
pub const IA32_SYSENTER_CS: u32 = 0x174;
/// IA32_SYSENTER_ESP.
pub const IA32_SYSENTER_ESP: u32 = 0x175;
/// IA32_SYSENTER_EIP.
pub const IA32_SYSENTER_EIP: u32 = 0x176;
/// IA32_MISC_ENABLE.
pub const IA32_MISC_ENABLE: u32 = 0x1A0;
/// IA32_DEBUGCTL.
pub const IA32_DEBUGCTL: u32 = 0x1D9;
/// IA32_PAT.
pub const IA32_PAT: u32 = 0x277;
/// IA32_DS_AREA.
pub const IA32_DS_AREA: u32 = 0x600;
/// IA32_EFER.
pub const IA32_EFER: u32 = 0xC000_0080;
/// IA32_STAR.
pub const IA32_STAR: u32 = 0xC000_0081;
/// IA32_LSTAR.
pub const IA32_LSTAR: u32 = 0xC000_0082;
/// IA32_CSTAR.
pub const IA32_CSTAR: u32 = 0xC000_0083;
/// IA32_FMASK.
pub const IA32_FMASK: u32 = 0xC000_0084;
/// IA32_FS_BASE.
pub const IA32_FS_BASE: u32 = 0xC000_0100;
/// IA32_GS_BASE.
pub const IA32_GS_BASE: u32 = 0xC000_0101;
/// IA32_KERNEL_GS_BASE.
pub const IA32_KERNEL_GS_BASE: u32 = 0xC000_0102;
/// IA32_TSC_AUX.
pub const IA32_TSC_AUX: u32 = 0xC000_0103;

/// IA32_PAT after reset (SDM Vol. 3A 11.12.4).
pub const PAT_RESET: u64 = 0x0007_0406_0007_0406;

/// IA32_MISC_ENABLE: fast strings are enabled.
pub const MISC_ENABLE_FAST_STRINGS: u64 = 1 << 0;
/// IA32_MISC_ENABLE: performance monitoring is available.
pub const MISC_ENABLE_PERFMON: u64 = 1 << 7;
/// IA32_MISC_ENABLE: BTS is unavailable.
pub const MISC_ENABLE_BTS_UNAVAILABLE: u64 = 1 << 11;
/// IA32_MISC_ENABLE: PEBS is unavailable.
pub const MISC_ENABLE_PEBS_UNAVAILABLE: u64 = 1 << 12;
/// IA32_MISC_ENABLE: CPUID has no basic leaf above 3.
pub const MISC_ENABLE_LIMIT_CPUID: u64 = 1 << 22;
/// IA32_MISC_ENABLE: messages about the task priority are disabled. There is no bus that has them.
pub const MISC_ENABLE_XTPR_DISABLE: u64 = 1 << 23;
/// IA32_MISC_ENABLE: CPUID does not report execute disable, and IA32_EFER does not enable it.
pub const MISC_ENABLE_XD_DISABLE: u64 = 1 << 34;
/// IA32_MISC_ENABLE: the flags that software can set and clear.
pub const MISC_ENABLE_WRITABLE: u64 = MISC_ENABLE_FAST_STRINGS
    | MISC_ENABLE_LIMIT_CPUID
    | MISC_ENABLE_XTPR_DISABLE
    | MISC_ENABLE_XD_DISABLE;
/// IA32_MISC_ENABLE: the flags that are set and that software cannot clear. Every model has
/// performance counters.
pub const MISC_ENABLE_FIXED: u64 = MISC_ENABLE_PERFMON | MISC_ENABLE_PEBS_UNAVAILABLE;
/// IA32_MISC_ENABLE after reset.
pub const MISC_ENABLE_RESET: u64 = MISC_ENABLE_FAST_STRINGS | MISC_ENABLE_FIXED;

/// The highest basic leaf of CPUID while IA32_MISC_ENABLE limits it.
pub(crate) const LIMITED_CPUID: u32 = 3;

/// IA32_MTRR_DEF_TYPE: the ranges are enabled.
const MTRR_ENABLE: u64 = 1 << 11;
/// The memory type write-back (SDM Vol. 3A table 11-8).
const MTRR_WRITE_BACK: u64 = 6;

/// Selects the field of [`MsrState`] that holds an MSR.
pub type MsrField = fn(&mut MsrState) -> &mut u64;

/// The MSRs of system calls and of SWAPGS: their numbers and the fields that hold them. Each is
/// plain storage on every accelerator.
pub const SYSTEM_CALL_MSRS: [(u32, MsrField); 8] = [
    (IA32_SYSENTER_CS, |m| &mut m.sysenter_cs),
    (IA32_SYSENTER_ESP, |m| &mut m.sysenter_esp),
    (IA32_SYSENTER_EIP, |m| &mut m.sysenter_eip),
    (IA32_STAR, |m| &mut m.star),
    (IA32_LSTAR, |m| &mut m.lstar),
    (IA32_CSTAR, |m| &mut m.cstar),
    (IA32_FMASK, |m| &mut m.fmask),
    (IA32_KERNEL_GS_BASE, |m| &mut m.kernel_gs_base),
];

/// The field of [`SYSTEM_CALL_MSRS`] for an MSR, found at compile time.
///
/// # Panics
/// The MSR is not in the table, which stops the build.
pub(crate) const fn system_call_field(number: u32) -> MsrField {
    let mut i = 0;
    while SYSTEM_CALL_MSRS[i].0 != number {
        i += 1;
    }
    SYSTEM_CALL_MSRS[i].1
}

/// The MSRs that are storage: those that instructions and events consult, and those that software
/// reads back. IA32_DEBUGCTL and IA32_DS_AREA are beside it in [`ArchState`](super::ArchState).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsrState {
    /// IA32_STAR.
    pub star: u64,
    /// IA32_LSTAR.
    pub lstar: u64,
    /// IA32_CSTAR.
    pub cstar: u64,
    /// IA32_FMASK.
    pub fmask: u64,
    /// IA32_KERNEL_GS_BASE.
    pub kernel_gs_base: u64,
    /// IA32_TSC_AUX.
    pub tsc_aux: u64,
    /// IA32_SYSENTER_CS.
    pub sysenter_cs: u64,
    /// IA32_SYSENTER_ESP.
    pub sysenter_esp: u64,
    /// IA32_SYSENTER_EIP.
    pub sysenter_eip: u64,
    /// IA32_PAT.
    pub pat: u64,
    /// IA32_MISC_ENABLE.
    pub misc_enable: u64,
    /// IA32_MCG_STATUS.
    pub mcg_status: u64,
    /// Memory type ranges.
    pub mtrr: MtrrState,
    /// Performance monitoring.
    pub pmu: PmuState,
    /// The last branches.
    pub lbr: LbrState,
}

impl Default for MsrState {
    /// As after reset.
    fn default() -> Self {
        Self {
            star: 0,
            lstar: 0,
            cstar: 0,
            fmask: 0,
            kernel_gs_base: 0,
            tsc_aux: 0,
            sysenter_cs: 0,
            sysenter_esp: 0,
            sysenter_eip: 0,
            pat: PAT_RESET,
            misc_enable: MISC_ENABLE_RESET,
            mcg_status: 0,
            mtrr: MtrrState::default(),
            pmu: PmuState::default(),
            lbr: LbrState::default(),
        }
    }
}

/// A variable range of the MTRRs (SDM Vol. 3A 11.11.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MtrrRange {
    /// IA32_MTRR_PHYSBASEn: base and type.
    pub base: u64,
    /// IA32_MTRR_PHYSMASKn: mask and valid flag.
    pub mask: u64,
}

/// The memory type range registers (SDM Vol. 3A 11.11). No memory type has an effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MtrrState {
    /// IA32_MTRR_DEF_TYPE.
    pub default_type: u64,
    /// IA32_MTRR_FIX64K_00000, FIX16K_80000, FIX16K_A0000, FIX4K_C0000 to FIX4K_F8000.
    pub fixed: [u64; 11],
    /// The variable ranges.
    pub variable: [MtrrRange; 8],
}

impl Default for MtrrState {
    /// As firmware sets them up: enabled, everything write-back. After RESET they are all clear,
    /// but a kernel expects firmware's values, and treats a processor without any write-back memory
    /// as broken.
    fn default() -> Self {
        Self {
            default_type: MTRR_ENABLE | MTRR_WRITE_BACK,
            fixed: [0; 11],
            variable: [MtrrRange::default(); 8],
        }
    }
}
