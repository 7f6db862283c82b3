//! The registers of the LBR stack (SDM Vol. 3B 17.4.8).

use serde::{Deserialize, Serialize};

/// The LBR stack. A model has the first entries, and not all of the registers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LbrState {
    /// MSR_LASTBRANCH_n_FROM_IP, in the format of the model.
    pub from: [u64; Self::DEPTH],
    /// MSR_LASTBRANCH_n_TO_IP.
    pub to: [u64; Self::DEPTH],
    /// MSR_LBR_INFO_n.
    pub info: [u64; Self::DEPTH],
    /// MSR_LASTBRANCH_TOS: the entry of the most recent branch.
    pub tos: u64,
    /// MSR_LBR_SELECT: the branches that are not recorded.
    pub select: u64,
    /// Instructions that had retired when the last entry was recorded. MSR_LBR_INFO_n counts from
    /// there.
    pub recorded_at: u64,
}

impl LbrState {
    /// Entries, at most.
    pub const DEPTH: usize = 32;
}

/// MSR_LBR_SELECT (SDM Vol. 3B 17.7.2, 17.9.1). Except for the last, each bit suppresses
/// branches.
pub(crate) mod select {
    /// Those that end at CPL 0.
    pub(crate) const CPL_EQ_0: u64 = 1 << 0;
    /// Those that end at CPL 1 to 3.
    pub(crate) const CPL_NEQ_0: u64 = 1 << 1;
    pub(crate) const JCC: u64 = 1 << 2;
    pub(crate) const NEAR_REL_CALL: u64 = 1 << 3;
    pub(crate) const NEAR_IND_CALL: u64 = 1 << 4;
    pub(crate) const NEAR_RET: u64 = 1 << 5;
    pub(crate) const NEAR_IND_JMP: u64 = 1 << 6;
    pub(crate) const NEAR_REL_JMP: u64 = 1 << 7;
    pub(crate) const FAR_BRANCH: u64 = 1 << 8;
    /// A near return removes the entry of its call.
    pub(crate) const EN_CALLSTACK: u64 = 1 << 9;
}
