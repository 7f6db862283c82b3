//! The LBR stack: the last branches, in registers (SDM Vol. 3B 17.4.8).
//!
//! * A branch that ends at a privilege level is recorded as the Branch Trace Store would record it
//!   there, with the same addresses, unless MSR_LBR_SELECT suppresses its kind.
//! * This processor does not predict: no entry has the misprediction flag, and none those of
//!   transactions.
//! * A cycle is an instruction, as for the performance counters.
//! * The stack works while TR is set. On the Core microarchitecture its contents are undefined then
//!   (17.4.4).
//! * A performance-monitoring interrupt clears IA32_DEBUGCTL.LBR if FREEZE_LBRS_ON_PMI is set
//!   (17.4.7), and #DB always does (17.4.2).

use crate::insn::{BranchKind, Insn};
use crate::mmu::access::canonical;
use crate::model::lbr::{LbrFormat, LbrRegister};
use crate::processor::cpu::Cpu;
use crate::state::lbr::select;

/// Where a transfer of control comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BranchSource {
    /// Linear address.
    pub la: u64,
    /// Offset in the code segment.
    pub ip: u64,
    /// What else the LBR stack has to know.
    pub class: BranchClass,
}

/// What the LBR stack has to know of a branch instruction, in one word for native code: in the low
/// half how MSR_LBR_SELECT suppresses it, in the upper one the instructions in the block before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BranchClass(pub u32);

impl BranchClass {
    /// A relative call of the next instruction. It reads RIP, and has no return.
    const ZERO_LENGTH: u32 = 1 << 15;
    const SUPPRESSED_BY: u32 = Self::ZERO_LENGTH - 1;
    const AHEAD: u32 = 16;

    /// That of a near branch.
    pub(crate) fn of(insn: &Insn) -> Self {
        let direct = insn.prefix & Insn::DIRECT != 0;
        let suppressed_by = match insn.branch {
            BranchKind::Conditional => select::JCC,
            BranchKind::NearCall if direct => select::NEAR_REL_CALL,
            BranchKind::NearCall => select::NEAR_IND_CALL,
            BranchKind::NearReturn => select::NEAR_RET,
            BranchKind::NearJump if direct => select::NEAR_REL_JMP,
            BranchKind::NearJump => select::NEAR_IND_JMP,
            _ => select::FAR_BRANCH,
        };
        let calls = insn.branch == BranchKind::NearCall && direct;
        let zero_length = if calls && insn.imm == insn.next_offset() {
            Self::ZERO_LENGTH
        } else {
            0
        };
        Self(suppressed_by as u32 | zero_length | u32::from(insn.ordinal) << Self::AHEAD)
    }

    fn suppressed_by(self) -> u64 {
        (self.0 & Self::SUPPRESSED_BY).into()
    }

    fn is_zero_length(self) -> bool {
        self.0 & Self::ZERO_LENGTH != 0
    }

    /// Instructions in the block before it.
    pub(crate) fn ahead(self) -> u8 {
        (self.0 >> Self::AHEAD) as u8
    }

    /// A far transfer, an event or a return from one, after so many instructions of the block.
    fn far(ahead: u8) -> Self {
        Self(select::FAR_BRANCH as u32 | u32::from(ahead) << Self::AHEAD)
    }
}

impl Cpu {
    /// The source of a far transfer by an instruction, which still has its code segment.
    pub(crate) fn far_source(&self, insn: &Insn) -> BranchSource {
        self.source(self.this_rip(insn), BranchClass::far(insn.ordinal))
    }

    /// The source of an event at an offset in the code segment, which is still the one before.
    pub(crate) fn event_source(&self, ip: u64) -> BranchSource {
        self.source(ip, BranchClass::far(0))
    }

    /// A source in the code segment.
    pub(crate) fn source(&self, ip: u64, class: BranchClass) -> BranchSource {
        let la = self.linear_ip(ip);
        BranchSource { la, ip, class }
    }

    /// Whether IA32_DEBUGCTL asks for the last branches.
    pub fn uses_last_branches(&self) -> bool {
        self.recorder.records_last_branches()
    }

    /// Whether branches that end at this CPL can get into the LBR stack.
    pub(crate) fn records_last_branches(&self) -> bool {
        let suppressed = match self.cpl {
            0 => select::CPL_EQ_0,
            _ => select::CPL_NEQ_0,
        };
        self.uses_last_branches() && self.msr.lbr.select & suppressed == 0
    }

    /// Records a branch from `from` to RIP in the LBR stack, which is enabled at this CPL.
    pub(crate) fn record_last_branch(&mut self, from: BranchSource) {
        let class = from.class;
        let selected = self.msr.lbr.select;
        if selected & class.suppressed_by() != 0 {
            return;
        }
        let mask = self.model.lbr.depth as u64 - 1;
        if selected & select::EN_CALLSTACK != 0 {
            // The call stack has the calls that have not returned (17.9.1).
            if class.suppressed_by() == select::NEAR_RET {
                let top = self.msr.lbr.tos;
                self.write_entry(top, 0, 0, 0);
                self.msr.lbr.tos = top.wrapping_sub(1) & mask;
                return;
            }
            if class.is_zero_length() {
                return;
            }
        }
        let format = self.model.lbr.format;
        let (source, target) = match format {
            LbrFormat::Pair => {
                let target = self.linear_ip(self.rip) << 32;
                (from.la & u64::from(u32::MAX) | target, 0)
            }
            LbrFormat::Lip => (from.la, self.linear_ip(self.rip)),
            LbrFormat::EipFlags | LbrFormat::EipFlags2 | LbrFormat::Info => (from.ip, self.rip),
        };
        let now = self.icount + u64::from(class.ahead());
        let cycles = now.wrapping_sub(self.msr.lbr.recorded_at);
        let info = match format {
            LbrFormat::Info => cycles.min(u16::MAX.into()),
            _ => 0,
        };
        let top = self.msr.lbr.tos.wrapping_add(1) & mask;
        self.write_entry(top, source & u64::MAX >> format.flags(), target, info);
        self.msr.lbr.tos = top;
        self.msr.lbr.recorded_at = now;
    }

    fn write_entry(&mut self, n: u64, from: u64, to: u64, info: u64) {
        let lbr = &mut self.msr.lbr;
        // The depth is a power of two, and not greater than the arrays.
        let n = n as usize % lbr.from.len();
        (lbr.from[n], lbr.to[n], lbr.info[n]) = (from, to, info);
    }

    /// The value of a register of the model.
    fn lbr_register(&mut self, number: u32) -> Option<(LbrRegister, &mut u64)> {
        let register = self.model.lbr.register(number)?;
        let lbr = &mut self.msr.lbr;
        let value = match register {
            LbrRegister::From(n) => lbr.from.get_mut(n)?,
            LbrRegister::To(n) => lbr.to.get_mut(n)?,
            LbrRegister::Info(n) => lbr.info.get_mut(n)?,
            LbrRegister::Tos => &mut lbr.tos,
            LbrRegister::Select => &mut lbr.select,
        };
        Some((register, value))
    }

    /// Reads a register. `None`: #GP(0).
    pub(crate) fn read_lbr(&mut self, number: u32) -> Option<u64> {
        self.lbr_register(number).map(|(_, value)| *value)
    }

    /// Writes a register. `None`: #GP(0).
    pub(crate) fn write_lbr(&mut self, number: u32, value: u64) -> Option<()> {
        let lbr = &self.model.lbr;
        let register = lbr.register(number)?;
        let accepted = match (lbr.writable(register), register) {
            (Some(writable), _) => value & !writable == 0,
            // The sign is that of the bit below the flags.
            (None, LbrRegister::From(_)) => {
                let flags = lbr.format.flags();
                canonical(((value << flags) as i64 >> flags) as u64)
            }
            (None, _) => canonical(value),
        };
        if !accepted {
            return None;
        }
        let (register, stored) = self.lbr_register(number)?;
        *stored = value;
        if register == LbrRegister::Select {
            // It decides whether branches are recorded at this CPL.
            self.update_mode();
        }
        Some(())
    }

    /// Makes the registers those of the model after a state has been loaded.
    pub(crate) fn limit_last_branches(&mut self) {
        let lbr = &self.model.lbr;
        self.msr.lbr.tos &= lbr.depth as u64 - 1;
        self.msr.lbr.select &= lbr.select;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_what_suppresses_it_and_what_is_before_it() {
        let call = Insn {
            branch: BranchKind::NearCall,
            prefix: Insn::DIRECT,
            imm: 12,
            offset: 7,
            len: 5,
            ordinal: 3,
            ..Insn::INVALID
        };
        let class = BranchClass::of(&call);
        assert_eq!(class.suppressed_by(), select::NEAR_REL_CALL);
        assert!(class.is_zero_length());
        assert_eq!(class.ahead(), 3);
        let longer = Insn { imm: 13, ..call };
        assert!(!BranchClass::of(&longer).is_zero_length());
        assert_eq!(BranchClass::far(9).suppressed_by(), select::FAR_BRANCH);
        assert_eq!(BranchClass::far(9).ahead(), 9);
    }
}
