//! The bits of IA32_DEBUGCTL (MSR 0x1D9) on each microarchitecture.

use bitflags::bitflags;

bitflags! {
    /// IA32_DEBUGCTL of the P6 family from Core Solo on (SDM Vol. 3B 17.4.1 "IA32_DEBUGCTL MSR").
    ///
    /// NetBurst places some of these controls at other bits: see [`Layout`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DebugCtl: u64 {
        /// Record branches in the LBR stack. Cleared when the processor generates #DB (17.4.2).
        const LBR = 1 << 0;
        /// RFLAGS.TF single-steps on branches. Cleared when the processor generates #DB (17.4.3).
        const BTF = 1 << 1;
        /// Send branch trace messages (17.4.4). Not cleared by #DB.
        const TR = 1 << 6;
        /// Store branch trace messages in the BTS buffer instead of sending them on the bus
        /// (17.4.5).
        const BTS = 1 << 7;
        /// Interrupt at the threshold and do not wrap. If clear, the buffer is circular (17.4.5).
        const BTINT = 1 << 8;
        /// Skip branches to CPL 0 (17.4.5). Requires CPUID.DS-CPL.
        const BTS_OFF_OS = 1 << 9;
        /// Skip branches to CPL 1 to 3 (17.4.5). Requires CPUID.DS-CPL.
        const BTS_OFF_USR = 1 << 10;
        /// Stop the LBR stack on a performance-monitoring interrupt (17.4.7).
        const FREEZE_LBRS_ON_PMI = 1 << 11;
        /// Stop the counters on a performance-monitoring interrupt (17.4.7).
        const FREEZE_PERFMON_ON_PMI = 1 << 12;
        /// Let the uncore signal its counter overflows (17.4.1; Nehalem).
        const ENABLE_UNCORE_PMI = 1 << 13;
        /// Stop tracing and counting inside SMM (17.4.1).
        const FREEZE_WHILE_SMM = 1 << 14;
    }
}

/// Microarchitectures whose Debug Stores differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Microarchitecture {
    /// Pentium 4 and its Xeons, without Intel 64: MSR_DEBUGCTLA (17.11.1).
    NetBurst,
    /// Pentium 4 and its Xeons with Intel 64, DTES64 and DS-CPL.
    NetBurst64,
    /// Pentium M and Core Solo/Duo: MSR_DEBUGCTLB, no filter by CPL (17.13).
    PentiumM,
    /// Core 2, the processor of the first Linux BTS code.
    Core2,
    /// Nehalem and its successors.
    Nehalem,
}

/// The masks of the controls in the IA32_DEBUGCTL of a microarchitecture. A control that it lacks
/// has the mask 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Record branches in the LBR stack.
    pub lbr: u64,
    /// RFLAGS.TF single-steps on branches.
    pub btf: u64,
    /// Send branch trace messages.
    pub tr: u64,
    /// Store branch trace messages in the BTS buffer.
    pub bts: u64,
    /// Interrupt at the threshold and do not wrap.
    pub btint: u64,
    /// Skip branches to CPL 0.
    pub bts_off_os: u64,
    /// Skip branches to CPL 1 to 3.
    pub bts_off_usr: u64,
    /// Stop the LBR stack on a performance-monitoring interrupt.
    pub freeze_lbrs_on_pmi: u64,
    /// Stop the counters on a performance-monitoring interrupt.
    pub freeze_perfmon_on_pmi: u64,
    /// All bits that are not reserved. A write that sets another bit raises #GP(0).
    pub writable: u64,
}

impl Layout {
    /// Returns the controls of the branch trace: TR, BTS, BTINT and the filters by CPL.
    #[must_use]
    pub const fn tracing(&self) -> u64 {
        self.tr | self.bts | self.btint | self.bts_off_os | self.bts_off_usr
    }

    /// Returns the controls that #DB clears: LBR and BTF (17.4.2, 17.4.3).
    #[must_use]
    pub const fn cleared_by_db(&self) -> u64 {
        self.lbr | self.btf
    }

    /// MSR_DEBUGCTLA without DS-CPL, which the filters by CPL require (17.4.6).
    pub(crate) const NETBURST: Self = Self {
        bts_off_os: 0,
        bts_off_usr: 0,
        writable: 0x1F,
        ..Self::NETBURST_64
    };

    /// MSR_DEBUGCTLA (17.11.1).
    pub(crate) const NETBURST_64: Self = Self {
        lbr: 1 << 0,
        btf: 1 << 1,
        tr: 1 << 2,
        bts: 1 << 3,
        btint: 1 << 4,
        bts_off_os: 1 << 5,
        bts_off_usr: 1 << 6,
        freeze_lbrs_on_pmi: 0,
        freeze_perfmon_on_pmi: 0,
        writable: 0x7F,
    };

    /// MSR_DEBUGCTLB (17.13). Bits 2 to 5 are the performance-monitoring pins PB0 to PB3.
    pub(crate) const PENTIUM_M: Self = Self {
        bts_off_os: 0,
        bts_off_usr: 0,
        freeze_lbrs_on_pmi: 0,
        freeze_perfmon_on_pmi: 0,
        writable: 0x1FF,
        ..Self::CORE2
    };

    /// IA32_DEBUGCTL (17.4.1).
    pub(crate) const CORE2: Self = Self {
        lbr: DebugCtl::LBR.bits(),
        btf: DebugCtl::BTF.bits(),
        tr: DebugCtl::TR.bits(),
        bts: DebugCtl::BTS.bits(),
        btint: DebugCtl::BTINT.bits(),
        bts_off_os: DebugCtl::BTS_OFF_OS.bits(),
        bts_off_usr: DebugCtl::BTS_OFF_USR.bits(),
        freeze_lbrs_on_pmi: DebugCtl::FREEZE_LBRS_ON_PMI.bits(),
        freeze_perfmon_on_pmi: DebugCtl::FREEZE_PERFMON_ON_PMI.bits(),
        writable: DebugCtl::all()
            .difference(DebugCtl::ENABLE_UNCORE_PMI)
            .bits(),
    };

    /// IA32_DEBUGCTL with the bit of the uncore (17.4.1).
    pub(crate) const NEHALEM: Self = Self {
        writable: DebugCtl::all().bits(),
        ..Self::CORE2
    };
}

impl Microarchitecture {
    /// Returns the layout of IA32_DEBUGCTL.
    #[must_use]
    pub const fn layout(self) -> &'static Layout {
        &self.debug_store().layout
    }
}
