//! The registers of performance monitoring of NetBurst (SDM Vol. 3B 18.15).

use serde::{Deserialize, Serialize};

/// The counters of NetBurst, and what configures them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NetBurstPmu {
    /// The performance counters.
    pub counter: [u64; Self::COUNTERS],
    /// The counter configuration control registers (CCCRs), one for each counter.
    pub cccr: [u64; Self::COUNTERS],
    /// The event selection control registers (ESCRs), in pairs by their MSR numbers. The first of a
    /// pair is for one half of the counters of a group, the second for the other.
    pub escr: [[u64; 2]; Self::ESCR_PAIRS],
}

impl NetBurstPmu {
    /// Counters.
    pub const COUNTERS: usize = 18;
    /// Pairs of ESCRs.
    pub const ESCR_PAIRS: usize = 23;

    /// A counter has overflowed, and is to interrupt until software clears OVF.
    pub(crate) fn asserts_interrupt(&self) -> bool {
        let overflown = |cccr: &u64| cccr & cccr::OVF != 0 && cccr & cccr::OVF_PMI != 0;
        self.cccr.iter().any(overflown)
    }
}

/// A CCCR (18.15.3).
pub(crate) mod cccr {
    pub(crate) const ENABLE: u64 = 1 << 12;
    pub(crate) const ESCR_SELECT: u32 = 13;
    /// Two bits: the counter counts while none (0), one (1), both (2) or any (3) of the logical
    /// processors of a core are active. Bit 0 says all that there is to say about a core of one.
    pub(crate) const ACTIVE_THREAD: u64 = 1 << 16;
    pub(crate) const COMPARE: u64 = 1 << 18;
    pub(crate) const COMPLEMENT: u64 = 1 << 19;
    pub(crate) const THRESHOLD: u32 = 20;
    pub(crate) const EDGE: u64 = 1 << 24;
    pub(crate) const FORCE_OVF: u64 = 1 << 25;
    /// OVF_PMI_T0 and OVF_PMI_T1.
    pub(crate) const OVF_PMI: u64 = 3 << 26;
    pub(crate) const CASCADE: u64 = 1 << 30;
    pub(crate) const OVF: u64 = 1 << 31;
    /// The bits that can be written.
    pub(crate) const WRITABLE: u64 = 0xCFFF_F000;
}

/// An ESCR (18.15.1).
pub(crate) mod escr {
    /// T0_USR and T1_USR.
    pub(crate) const USR: u64 = 1 << 2 | 1 << 0;
    /// T0_OS and T1_OS.
    pub(crate) const OS: u64 = 1 << 3 | 1 << 1;
    /// 16 bits.
    pub(crate) const EVENT_MASK: u32 = 9;
    /// 6 bits.
    pub(crate) const EVENT_SELECT: u32 = 25;
    /// The bits that can be written.
    pub(crate) const WRITABLE: u64 = 0x7FFF_FFFF;
}
