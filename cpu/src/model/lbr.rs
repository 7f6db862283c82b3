//! The LBR stacks of the models (SDM Vol. 3B 17.4.8, 17.5 to 17.10).

use crate::state::LbrState;
use crate::state::lbr::select;

/// How an entry holds the addresses of a branch: IA32_PERF_CAPABILITIES.LBR_FMT (Vol. 3B 17.4.8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LbrFormat {
    /// One register has the linear addresses of the source, in its low half, and of the target
    /// (17.11.2, 17.13). A processor with such entries has no IA32_PERF_CAPABILITIES.
    Pair = 0,
    /// Linear addresses.
    Lip = 1,
    /// Offsets in CS. Bit 63 of the source is the misprediction flag.
    EipFlags = 3,
    /// As `EipFlags`, and bits 62 and 61 are those of transactions.
    EipFlags2 = 4,
    /// Offsets in CS. MSR_LBR_INFO_n has the flags, and the cycles since the entry before.
    Info = 5,
}

impl LbrFormat {
    /// The flags in the upper bits of a source.
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::Pair | Self::Lip | Self::Info => 0,
            Self::EipFlags => 1,
            Self::EipFlags2 => 3,
        }
    }
}

/// A register of the LBR stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LbrRegister {
    From(usize),
    To(usize),
    Info(usize),
    Tos,
    Select,
}

/// The LBR stack of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lbr {
    /// Entries: a power of two.
    pub depth: usize,
    /// What they hold.
    pub format: LbrFormat,
    /// The bits of MSR_LBR_SELECT. 0: the register does not exist.
    pub select: u64,
    /// MSR_LASTBRANCH_0_FROM_IP, or MSR_LASTBRANCH_0.
    from: u32,
    /// MSR_LASTBRANCH_0_TO_IP, where an entry has two registers.
    to: Option<u32>,
    /// MSR_LASTBRANCH_TOS.
    tos: u32,
}

/// MSR_LBR_SELECT.
const LBR_SELECT: u32 = 0x1C8;
/// MSR_LASTBRANCH_TOS of the P6 family.
const LASTBRANCH_TOS: u32 = 0x1C9;
/// MSR_LASTBRANCH_TOS of NetBurst.
const NETBURST_TOS: u32 = 0x1DA;
/// MSR_LBR_INFO_0.
const LBR_INFO: u32 = 0xDC0;

impl Lbr {
    /// NetBurst, models 0 to 2 (Vol. 3B 17.11.2).
    pub(crate) const NETBURST: Self = Self {
        depth: 4,
        format: LbrFormat::Pair,
        select: 0,
        from: 0x1DB,
        to: None,
        tos: NETBURST_TOS,
    };

    /// NetBurst from model 3 on (Vol. 3B 17.11.2).
    pub(crate) const NETBURST_64: Self = Self {
        depth: 16,
        format: LbrFormat::Lip,
        from: 0x680,
        to: Some(0x6C0),
        ..Self::NETBURST
    };

    /// Pentium M (Vol. 3B 17.13).
    pub(crate) const PENTIUM_M: Self = Self {
        depth: 8,
        from: 0x40,
        tos: LASTBRANCH_TOS,
        ..Self::NETBURST
    };

    /// The Core microarchitecture (Vol. 3B 17.5).
    pub(crate) const CORE: Self = Self {
        depth: 4,
        format: LbrFormat::Lip,
        select: 0,
        from: 0x40,
        to: Some(0x60),
        tos: LASTBRANCH_TOS,
    };

    /// Nehalem (Vol. 3B 17.7).
    pub(crate) const NEHALEM: Self = Self {
        depth: 16,
        format: LbrFormat::EipFlags,
        select: select::EN_CALLSTACK - 1,
        from: 0x680,
        to: Some(0x6C0),
        tos: LASTBRANCH_TOS,
    };

    /// Haswell: with a call stack (Vol. 3B 17.9).
    pub(crate) const HASWELL: Self = Self {
        format: LbrFormat::EipFlags2,
        select: Self::NEHALEM.select | select::EN_CALLSTACK,
        ..Self::NEHALEM
    };

    /// Skylake (Vol. 3B 17.10).
    pub(crate) const SKYLAKE: Self = Self {
        depth: 32,
        format: LbrFormat::Info,
        ..Self::HASWELL
    };

    /// The register with this number.
    pub(crate) fn register(&self, number: u32) -> Option<LbrRegister> {
        let entry = |first: u32| {
            let n = number.checked_sub(first)? as usize;
            (n < self.depth).then_some(n)
        };
        match number {
            LBR_SELECT => (self.select != 0).then_some(LbrRegister::Select),
            _ if number == self.tos => Some(LbrRegister::Tos),
            LBR_INFO.. if self.format != LbrFormat::Info => None,
            LBR_INFO.. => entry(LBR_INFO).map(LbrRegister::Info),
            _ => (self.to.and_then(entry).map(LbrRegister::To))
                .or_else(|| entry(self.from).map(LbrRegister::From)),
        }
    }

    /// What the register can hold. `None`: an address, with flags above it.
    pub(crate) fn writable(&self, register: LbrRegister) -> Option<u64> {
        match register {
            LbrRegister::From(_) if self.format == LbrFormat::Pair => Some(u64::MAX),
            LbrRegister::From(_) | LbrRegister::To(_) => None,
            LbrRegister::Info(_) => Some(u64::MAX),
            LbrRegister::Tos => Some(self.depth as u64 - 1),
            LbrRegister::Select => Some(self.select),
        }
    }
}

const _: () = assert!(Lbr::SKYLAKE.depth == LbrState::DEPTH);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_each_stack() {
        use LbrRegister::{From, Info, Select, To, Tos};
        let cases = [
            (Lbr::CORE, 0x40, Some(From(0))),
            (Lbr::CORE, 0x43, Some(From(3))),
            (Lbr::CORE, 0x44, None),
            (Lbr::CORE, 0x63, Some(To(3))),
            (Lbr::CORE, 0x680, None),
            (Lbr::CORE, 0x1C8, None),
            (Lbr::CORE, 0x1C9, Some(Tos)),
            (Lbr::NETBURST, 0x1C9, None),
            (Lbr::NETBURST, 0x1DA, Some(Tos)),
            (Lbr::NETBURST, 0x1DB, Some(From(0))),
            (Lbr::NETBURST, 0x1DE, Some(From(3))),
            (Lbr::NETBURST, 0x1DF, None),
            (Lbr::NETBURST, 0x680, None),
            (Lbr::NETBURST_64, 0x1DA, Some(Tos)),
            (Lbr::NETBURST_64, 0x1DB, None),
            (Lbr::NETBURST_64, 0x68F, Some(From(15))),
            (Lbr::NETBURST_64, 0x6CF, Some(To(15))),
            (Lbr::PENTIUM_M, 0x47, Some(From(7))),
            (Lbr::PENTIUM_M, 0x48, None),
            (Lbr::PENTIUM_M, 0x60, None),
            (Lbr::PENTIUM_M, 0x1C9, Some(Tos)),
            (Lbr::PENTIUM_M, 0x1DA, None),
            (Lbr::CORE, 0x1DA, None),
            (Lbr::NEHALEM, 0x40, None),
            (Lbr::NEHALEM, 0x68F, Some(From(15))),
            (Lbr::NEHALEM, 0x690, None),
            (Lbr::NEHALEM, 0x6CF, Some(To(15))),
            (Lbr::NEHALEM, 0x1C8, Some(Select)),
            (Lbr::HASWELL, 0xDC0, None),
            (Lbr::SKYLAKE, 0x69F, Some(From(31))),
            (Lbr::SKYLAKE, 0x6DF, Some(To(31))),
            (Lbr::SKYLAKE, 0xDDF, Some(Info(31))),
        ];
        for (lbr, number, expected) in cases {
            assert_eq!(lbr.register(number), expected, "{number:#x}");
        }
        assert_eq!(Lbr::NEHALEM.writable(Select), Some(0x1FF));
        assert_eq!(Lbr::SKYLAKE.writable(Select), Some(0x3FF));
    }
}
