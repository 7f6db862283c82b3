//! The registers of performance monitoring.

use serde::{Deserialize, Serialize};

/// The registers of architectural performance monitoring, version 2 (SDM Vol. 3B 18.2). A model has
/// the first of each kind.
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
}
