//! The registers of performance monitoring (SDM Vol. 3B chapter 18).

use serde::{Deserialize, Serialize};

use super::netburst_pmu::NetBurstPmu;

/// The registers of architectural performance monitoring, version 2 (SDM Vol. 3B 18.2), of the P6
/// family, which has some of these, and of NetBurst, which has others. A model has the first of
/// each kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PmuState {
    /// IA32_PERFEVTSELx.
    pub evtsel: [u64; Self::GENERAL],
    /// IA32_PMCx.
    pub pmc: [u64; Self::GENERAL],
    /// IA32_FIXED_CTRx.
    pub fixed_ctr: [u64; Self::FIXED],
    /// IA32_FIXED_CTR_CTRL.
    pub fixed_ctr_ctrl: u64,
    /// IA32_PERF_GLOBAL_CTRL.
    pub global_ctrl: u64,
    /// IA32_PERF_GLOBAL_STATUS.
    pub global_status: u64,
    /// The registers of NetBurst.
    pub netburst: NetBurstPmu,
}

impl PmuState {
    /// Programmable counters, at most.
    pub const GENERAL: usize = 4;
    /// Fixed-function counters, at most.
    pub const FIXED: usize = 3;
}

/// A register of the performance monitoring unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PmuRegister {
    /// IA32_PERFEVTSELx.
    EvtSel(usize),
    /// IA32_PMCx.
    Pmc(usize),
    /// IA32_FIXED_CTRx.
    FixedCtr(usize),
    /// IA32_FIXED_CTR_CTRL.
    FixedCtrCtrl,
    /// IA32_PERF_GLOBAL_STATUS.
    GlobalStatus,
    /// IA32_PERF_GLOBAL_CTRL.
    GlobalCtrl,
    /// IA32_PERF_GLOBAL_OVF_CTRL.
    GlobalOvfCtrl,
    /// A counter of NetBurst, by its number.
    Counter(usize),
    /// The CCCR of a counter of NetBurst.
    Cccr(usize),
    /// An ESCR of NetBurst: see [`NetBurstPmu::escr`].
    Escr(usize),
}

/// Types of branch instructions: the index of their numbers, where they are counted.
pub(crate) mod branch {
    /// Number of types.
    pub(crate) const TYPES: usize = 7;
    /// Jcc, LOOPcc or JrCXZ that is not taken.
    pub(crate) const NOT_TAKEN: usize = 0;
    /// Such a branch that is taken.
    pub(crate) const TAKEN: usize = 1;
    /// Near CALL of an immediate target.
    pub(crate) const DIRECT_CALL: usize = 2;
    /// Near CALL of another target.
    pub(crate) const INDIRECT_CALL: usize = 3;
    /// Near RET.
    pub(crate) const RETURN: usize = 4;
    /// Near JMP to a target that is not immediate.
    pub(crate) const INDIRECT_JUMP: usize = 5;
    /// Near JMP to an immediate target, and all far branches.
    pub(crate) const OTHER: usize = 6;
}

/// IA32_PERFEVTSELx (18.2.1.1). PC, pin control, has no effect. Version 2 has no AnyThread.
pub(crate) mod evtsel {
    pub(crate) const EVENT: u64 = 0xFFFF;
    pub(crate) const RINGS: u32 = 16;
    pub(crate) const EDGE: u64 = 1 << 18;
    pub(crate) const INT: u64 = 1 << 20;
    pub(crate) const EN: u64 = 1 << 22;
    pub(crate) const INV: u64 = 1 << 23;
    pub(crate) const CMASK: u32 = 24;
    /// The bits that can be written.
    pub(crate) const WRITABLE: u64 = 0xFFDF_FFFF;
}

/// IA32_FIXED_CTR_CTRL (18.2.2.1): four bits a counter, of which version 2 has no third.
pub(crate) mod fixed_ctrl {
    pub(crate) const WIDTH: usize = 4;
    pub(crate) const RINGS: u64 = 3;
    pub(crate) const PMI: u64 = 1 << 3;
}

/// IA32_PERF_GLOBAL_CTRL, IA32_PERF_GLOBAL_STATUS and IA32_PERF_GLOBAL_OVF_CTRL (18.2.2): a bit for
/// each counter.
pub(crate) mod global {
    /// First bit of the fixed counters.
    pub(crate) const FIXED: usize = 32;
    /// IA32_PERF_GLOBAL_OVF_CTRL: the DS buffer's bit, and that of a changed condition.
    pub(crate) const OVF_OTHERS: u64 = 3 << 62;
}
