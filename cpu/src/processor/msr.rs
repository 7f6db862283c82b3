//! Model-specific registers: one table of numbers and behaviours, and RDMSR and WRMSR (SDM Vol. 4,
//! and Vol. 3 where a row says so).
//!
//! A register that is not in the table does not exist: #GP(0).

use crate::insn::{Abort, seg};
use crate::mmu::access::canonical;
use crate::model::PHYS_BITS;
use crate::processor::cpu::Cpu;
use crate::processor::pmu::Register;
use crate::processor::segment::sreg;
use crate::state::MsrState;
use crate::state::msr::*;
use crate::state::{cr0, efer};

/// Selects the field of [`MsrState`] that holds the register at a position in its row.
type IndexedField = fn(&mut MsrState, usize) -> Option<&mut u64>;

/// The values that a stored register accepts; others raise #GP.
#[derive(Debug, Clone, Copy)]
enum Accepts {
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

impl Accepts {
    /// Whether the register at `position` in its row accepts `value`.
    fn accepts(self, position: usize, value: u64) -> bool {
        match self {
            Self::Bits(writable) => value & !writable == 0,
            Self::Canonical => canonical(value),
            Self::MtrrTypes => value.to_le_bytes().into_iter().all(is_mtrr_type),
            Self::PatTypes => value
                .to_le_bytes()
                .into_iter()
                .all(|t| is_mtrr_type(t) || t == UC_MINUS),
            // The masks have odd positions.
            Self::MtrrRange if position & 1 != 0 => value & !(PHYS_PAGES | 1 << 11) == 0,
            Self::MtrrRange => value & !(PHYS_PAGES | 0xFF) == 0 && is_mtrr_type(value as u8),
            Self::MtrrDefault => value & !0xCFF == 0 && is_mtrr_type(value as u8),
        }
    }
}

/// How a register behaves.
#[derive(Debug, Clone, Copy)]
enum Kind {
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
    Pmu(fn(usize) -> Register),
    MiscEnable,
    Efer,
    FsBase,
    GsBase,
    Tsc,
    TscDeadline,
    Apic,
    DebugCtl,
    DsArea,
}

/// Registers `first..=last`, which behave alike.
#[derive(Debug)]
struct Row {
    first: u32,
    last: u32,
    kind: Kind,
}

const fn row(number: u32, kind: Kind) -> Row {
    Row {
        first: number,
        last: number,
        kind,
    }
}

const fn rows(first: u32, last: u32, kind: Kind) -> Row {
    Row { first, last, kind }
}

const PHYS_PAGES: u64 = ((1 << PHYS_BITS) - 1) & !0xFFF;

/// All registers, by number.
static TABLE: &[Row] = &[
    // IA32_P5_MC_ADDR, IA32_P5_MC_TYPE: machine checks of the Pentium, never any.
    rows(0x0, 0x1, Kind::ReadOnly(0)),
    // IA32_TIME_STAMP_COUNTER (Vol. 3B 17.17).
    row(IA32_TSC, Kind::Tsc),
    // IA32_PLATFORM_ID: slot 0, for microcode updates.
    row(0x17, Kind::ReadOnly(0)),
    // IA32_APIC_BASE (Vol. 3A 10.4.4).
    row(IA32_APIC_BASE, Kind::Apic),
    // MSR_EBL_CR_POWERON: bus ratio and straps of the Core microarchitecture.
    row(
        0x2A,
        Kind::Ignored {
            reads: 0,
            writable: u64::MAX,
        },
    ),
    // IA32_FEATURE_CONTROL: locked, with VMX and SMX off.
    row(0x3A, Kind::ReadOnly(1)),
    // IA32_BIOS_SIGN_ID: software writes 0, executes CPUID and reads the microcode revision in the
    // upper half. It is always there, the last one of this part.
    row(
        0x8B,
        Kind::Ignored {
            reads: 0xBC << 32,
            writable: u64::MAX,
        },
    ),
    // IA32_PMC0 to 3, as many as there are (Vol. 3B 18.2.1.1).
    rows(0xC1, 0xC4, Kind::Pmu(Register::Pmc)),
    // MSR_FSB_FREQ: 133 MHz.
    row(0xCD, Kind::ReadOnly(1)),
    // IA32_MTRRCAP: 8 variable ranges, fixed ranges, write combining (Vol. 3A 11.11.1).
    row(0xFE, Kind::ReadOnly(0x508)),
    // IA32_ARCH_CAPABILITIES. A processor that does not speculate has none of the flaws: RDCL_NO,
    // SKIP_L1DFL, SSB_NO, MDS_NO, PSCHANGE_MC_NO, TAA_NO, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO, BHI_NO,
    // PBRSB_NO, GDS_NO, RFDS_NO, ITS_NO.
    row(
        0x10A,
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
    // IA32_PERFEVTSEL0 to 3.
    rows(0x186, 0x189, Kind::Pmu(Register::EvtSel)),
    // IA32_MISC_ENABLE.
    row(IA32_MISC_ENABLE, Kind::MiscEnable),
    // IA32_DEBUGCTL (Vol. 3B 17.4.1).
    row(IA32_DEBUGCTL, Kind::DebugCtl),
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
    rows(0x309, 0x30B, Kind::Pmu(Register::FixedCtr)),
    // IA32_FIXED_CTR_CTRL: for each counter the rings in which it counts, and PMI (Vol. 3B
    // 18.2.2.1).
    row(0x38D, Kind::Pmu(|_| Register::FixedCtrCtrl)),
    // IA32_PERF_GLOBAL_STATUS. BTS has no bit here.
    row(0x38E, Kind::Pmu(|_| Register::GlobalStatus)),
    // IA32_PERF_GLOBAL_CTRL.
    row(0x38F, Kind::Pmu(|_| Register::GlobalCtrl)),
    // IA32_PERF_GLOBAL_OVF_CTRL: clears bits of the status: also the DS buffer's (62) and the
    // condition changed (63).
    row(0x390, Kind::Pmu(|_| Register::GlobalOvfCtrl)),
    // IA32_DS_AREA (Vol. 3B 17.4.9).
    row(IA32_DS_AREA, Kind::DsArea),
    // IA32_TSC_DEADLINE (Vol. 3A 10.5.4.1).
    row(0x6E0, Kind::TscDeadline),
    // x2APIC registers: there iff the local APIC says so (Vol. 3A 10.12).
    rows(0x800, 0x8FF, Kind::Apic),
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

/// The row of a register, and its position in the row.
fn find(number: u32) -> Option<(&'static Row, usize)> {
    let i = TABLE.partition_point(|r| r.last < number);
    let row = TABLE.get(i).filter(|r| r.first <= number)?;
    Some((row, (number - row.first) as usize))
}

/// The memory type UC-, which only the PAT has.
const UC_MINUS: u8 = 7;

/// Whether `t` is a memory type that an MTRR can hold: UC, WC, WT, WP, WB (Vol. 3A table 11-8).
fn is_mtrr_type(t: u8) -> bool {
    matches!(t, 0 | 1 | 4 | 5 | 6)
}

impl Cpu {
    /// Reads an MSR for an accelerator on which the guest has executed RDMSR; `None`: #GP(0).
    pub fn read_msr(&mut self, number: u32) -> Option<u64> {
        self.rdmsr(0, number).ok()
    }

    /// Writes an MSR for an accelerator on which the guest has executed WRMSR; `None`: #GP(0).
    pub fn write_msr(&mut self, number: u32, value: u64) -> Option<()> {
        let done = self.wrmsr(0, number, value).ok();
        // The instruction itself has not run here.
        self.load_counters();
        done
    }

    /// RDMSR, `ahead` instructions into its block.
    pub(crate) fn rdmsr(&mut self, ahead: u8, number: u32) -> Result<u64, Abort> {
        let Some((row, position)) = find(number) else {
            return Err(self.gp(0));
        };
        Ok(match row.kind {
            Kind::ReadOnly(value) | Kind::Ignored { reads: value, .. } => value,
            Kind::Stored(field, _) => *field(&mut self.msr),
            Kind::StoredRow(field, _) => match field(&mut self.msr, position) {
                Some(value) => *value,
                None => return Err(self.gp(0)),
            },
            Kind::Pmu(register) => match self.read_pmu(ahead, register(position)) {
                Some(value) => value,
                None => return Err(self.gp(0)),
            },
            Kind::MiscEnable => {
                let bts = if self.model.bts {
                    0
                } else {
                    MISC_ENABLE_BTS_UNAVAILABLE
                };
                self.msr.misc_enable & MISC_ENABLE_FAST_STRINGS | MISC_ENABLE_FIXED | bts
            }
            Kind::Efer => self.sys.efer,
            Kind::FsBase => self.seg_base(seg::FS),
            Kind::GsBase => self.seg_base(seg::GS),
            Kind::Tsc => self.tsc(ahead),
            Kind::DebugCtl => self.recorder.debugctl(),
            // It exists with DS only (Vol. 3B 17.4.9).
            Kind::DsArea if !self.model.bts => return Err(self.gp(0)),
            Kind::DsArea => self.recorder.ds_area(),
            Kind::TscDeadline => match self.apic_rdmsr(number)? {
                0 => 0,
                deadline => {
                    let left = deadline.saturating_sub(self.now());
                    self.tsc(ahead).wrapping_add(self.ticks(left))
                }
            },
            Kind::Apic => self.apic_rdmsr(number)?,
        })
    }

    fn apic_rdmsr(&mut self, number: u32) -> Result<u64, Abort> {
        match self.platform.apic_rdmsr(self.now(), number) {
            Some(value) => Ok(value),
            None => Err(self.gp(0)),
        }
    }

    /// WRMSR, `ahead` instructions into its block, which it ends.
    pub(crate) fn wrmsr(&mut self, ahead: u8, number: u32, value: u64) -> Result<(), Abort> {
        let Some((row, position)) = find(number) else {
            return Err(self.gp(0));
        };
        let good = match row.kind {
            Kind::ReadOnly(_) => false,
            Kind::Ignored { writable, .. } => value & !writable == 0,
            Kind::Stored(_, accepts) | Kind::StoredRow(_, accepts) => {
                accepts.accepts(position, value)
            }
            Kind::FsBase | Kind::GsBase => canonical(value),
            Kind::MiscEnable => {
                let known =
                    MISC_ENABLE_FAST_STRINGS | MISC_ENABLE_FIXED | MISC_ENABLE_BTS_UNAVAILABLE;
                value & !known == 0
            }
            Kind::Efer => self.efer_accepts(value),
            Kind::Pmu(_) | Kind::Tsc | Kind::TscDeadline | Kind::Apic | Kind::DebugCtl => true,
            Kind::DsArea => self.model.bts,
        };
        if !good {
            return Err(self.gp(0));
        }
        match row.kind {
            Kind::ReadOnly(_) | Kind::Ignored { .. } => {}
            Kind::Stored(field, _) => *field(&mut self.msr) = value,
            Kind::StoredRow(field, _) => match field(&mut self.msr, position) {
                Some(stored) => *stored = value,
                None => return Err(self.gp(0)),
            },
            Kind::Pmu(register) => {
                if self.write_pmu(ahead, register(position), value).is_none() {
                    return Err(self.gp(0));
                }
            }
            // The flags that tell what is available are read-only.
            Kind::MiscEnable => {
                self.msr.misc_enable = value & MISC_ENABLE_FAST_STRINGS | MISC_ENABLE_FIXED
            }
            Kind::Efer => self.write_efer(value),
            Kind::FsBase => self.set_seg_base(sreg::FS, value),
            Kind::GsBase => self.set_seg_base(sreg::GS, value),
            Kind::Tsc => {
                self.tsc_offset = self
                    .tsc_offset
                    .wrapping_add(value.wrapping_sub(self.tsc(ahead)));
            }
            Kind::TscDeadline => {
                let deadline = self.deadline(ahead, value);
                self.apic_wrmsr(ahead, number, deadline)?;
            }
            Kind::Apic => self.apic_wrmsr(ahead, number, value)?,
            Kind::DebugCtl => {
                // Without a Branch Trace Store its flags cannot be set (Vol. 3B 17.4.9).
                let absent =
                    !self.model.bts && value & self.model.microarchitecture.layout().tracing() != 0;
                if absent || self.recorder.set_debugctl(value).is_err() {
                    return Err(self.gp(0));
                }
                // Which accelerator is to run may depend on it.
                self.after_bus();
                self.update_mode();
            }
            Kind::DsArea => {
                if self.recorder.set_ds_area(value).is_err() {
                    return Err(self.gp(0));
                }
                self.window.close();
            }
        }
        Ok(())
    }

    /// Time at which the TSC reaches `tsc`; 0 disarms the timer.
    fn deadline(&self, ahead: u8, tsc: u64) -> u64 {
        let now = self.now() + u64::from(ahead);
        match tsc {
            0 => 0,
            _ => {
                let ticks = tsc.saturating_sub(self.tsc(ahead));
                now.saturating_add(self.nanoseconds(ticks)).max(1)
            }
        }
    }

    fn apic_wrmsr(&mut self, ahead: u8, number: u32, value: u64) -> Result<(), Abort> {
        let now = self.now() + u64::from(ahead);
        if self.platform.apic_wrmsr(now, number, value).is_none() {
            return Err(self.gp(0));
        }
        self.after_bus();
        Ok(())
    }

    /// LMA is read-only, and LME cannot change while paging is on (Vol. 3A 2.2.1).
    fn efer_accepts(&self, value: u64) -> bool {
        let known = efer::SCE | efer::LME | efer::LMA | efer::NXE;
        let lme_changes = (value ^ self.sys.efer) & efer::LME != 0;
        value & !known == 0 && !(lme_changes && self.sys.cr0 & cr0::PG != 0)
    }

    fn write_efer(&mut self, value: u64) {
        let changed = self.sys.efer ^ value;
        self.sys.efer = value & !efer::LMA | self.sys.efer & efer::LMA;
        if changed & efer::NXE != 0 {
            self.flush_tlb(false);
        }
        self.update_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_does_not_overlap() {
        for pair in TABLE.windows(2) {
            assert!(pair[0].last < pair[1].first, "{:#x}", pair[1].first);
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
        for row in TABLE {
            for position in 0..=(row.last - row.first) as usize {
                if let Some(field) = stored(&mut state, row, position) {
                    assert!(!seen.contains(&field), "{:#x}+{position}", row.first);
                    seen.push(field);
                }
            }
        }
        assert_eq!(seen.len(), 8 + 1 + 1 + 16 + 11 + 1);
        assert!(find(0x2).is_none() && find(u32::MAX).is_none());
    }
}
