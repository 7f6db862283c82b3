//! RDMSR and WRMSR: what the registers of the model do.

use crate::insn::{Abort, seg};
use crate::mmu::access::canonical;
use crate::model::PHYS_MASK;
use crate::model::msr::{Accepts, Kind};
use crate::processor::cpu::Cpu;
use crate::state::msr::*;
use crate::state::{cr0, efer, sreg};

/// The address bits of a range, which consists of whole pages.
const PHYS_PAGES: u64 = PHYS_MASK & !0xFFF;

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

/// The memory type UC-, which only the PAT has.
const UC_MINUS: u8 = 7;

/// Whether `t` is a memory type that an MTRR can hold: UC, WC, WT, WP, WB (Vol. 3A table 11-8).
fn is_mtrr_type(t: u8) -> bool {
    matches!(t, 0 | 1 | 4 | 5 | 6)
}

impl Cpu {
    /// Reads an MSR for an accelerator on which the guest has executed RDMSR; `None`: #GP(0).
    pub fn read_msr(&mut self, number: u32) -> Option<u64> {
        self.rdmsr(number).ok()
    }

    /// Writes an MSR for an accelerator on which the guest has executed WRMSR; `None`: #GP(0).
    pub fn write_msr(&mut self, number: u32, value: u64) -> Option<()> {
        let done = self.wrmsr(number, value).ok();
        // The instruction itself has not run here.
        self.load_counters();
        done
    }

    /// RDMSR, with which a block begins.
    pub(crate) fn rdmsr(&mut self, number: u32) -> Result<u64, Abort> {
        let Some((row, position)) = self.model.msr(number) else {
            return Err(self.gp(0));
        };
        Ok(match row.kind {
            Kind::ReadOnly(value) | Kind::Ignored { reads: value, .. } => value,
            Kind::Stored(field, _) => *field(&mut self.msr),
            Kind::StoredRow(field, _) => match field(&mut self.msr, position) {
                Some(value) => *value,
                None => return Err(self.gp(0)),
            },
            Kind::Pmu(register) => match self.read_pmu(0, register(position)) {
                Some(value) => value,
                None => return Err(self.gp(0)),
            },
            Kind::MiscEnable => {
                let unavailable = if self.model.bts {
                    0
                } else {
                    MISC_ENABLE_BTS_UNAVAILABLE
                };
                let flags = self.msr.misc_enable & self.model.misc_enable_writable();
                flags | MISC_ENABLE_FIXED | unavailable
            }
            Kind::Lbr => match self.read_lbr(number) {
                Some(value) => value,
                None => return Err(self.gp(0)),
            },
            Kind::PerfCapabilities => self.model.lbr.format as u64,
            Kind::Efer => self.sys.efer,
            Kind::FsBase => self.seg_base(seg::FS),
            Kind::GsBase => self.seg_base(seg::GS),
            Kind::Tsc => self.tsc(0),
            Kind::DebugCtl => self.recorder.debugctl(),
            Kind::DsArea => self.recorder.ds_area(),
            Kind::TscDeadline => match self.apic_rdmsr(number)? {
                0 => 0,
                deadline => {
                    let left = deadline.saturating_sub(self.now());
                    self.tsc(0).wrapping_add(self.ticks(left))
                }
            },
            Kind::ApicBase | Kind::Apic => self.apic_rdmsr(number)?,
        })
    }

    fn apic_rdmsr(&mut self, number: u32) -> Result<u64, Abort> {
        match self.platform.apic_rdmsr(self.now(), number) {
            Some(value) => Ok(value),
            None => Err(self.gp(0)),
        }
    }

    /// WRMSR, with which a block begins and ends.
    pub(crate) fn wrmsr(&mut self, number: u32, value: u64) -> Result<(), Abort> {
        let Some((row, position)) = self.model.msr(number) else {
            return Err(self.gp(0));
        };
        let good = match row.kind {
            Kind::ReadOnly(_) | Kind::PerfCapabilities => false,
            Kind::Ignored { writable, .. } => value & !writable == 0,
            Kind::Stored(_, accepts) | Kind::StoredRow(_, accepts) => {
                accepts.accepts(position, value)
            }
            Kind::FsBase | Kind::GsBase => canonical(value),
            Kind::MiscEnable => {
                let known = self.model.misc_enable_writable() | MISC_ENABLE_FIXED;
                value & !(known | MISC_ENABLE_BTS_UNAVAILABLE) == 0
            }
            // The local APIC checks the flags.
            Kind::ApicBase => value & !PHYS_MASK == 0,
            Kind::Efer => self.efer_accepts(value),
            // The flags of tracing do not exist without a Branch Trace Store.
            Kind::DebugCtl => {
                let tracing = self.model.microarchitecture.layout().tracing();
                self.model.bts || value & tracing == 0
            }
            Kind::Lbr
            | Kind::Pmu(_)
            | Kind::Tsc
            | Kind::TscDeadline
            | Kind::Apic
            | Kind::DsArea => true,
        };
        if !good {
            return Err(self.gp(0));
        }
        match row.kind {
            Kind::ReadOnly(_) | Kind::PerfCapabilities | Kind::Ignored { .. } => {}
            Kind::Stored(field, _) => *field(&mut self.msr) = value,
            Kind::StoredRow(field, _) => match field(&mut self.msr, position) {
                Some(stored) => *stored = value,
                None => return Err(self.gp(0)),
            },
            Kind::Pmu(register) => {
                if self.write_pmu(register(position), value).is_none() {
                    return Err(self.gp(0));
                }
            }
            Kind::Lbr => {
                if self.write_lbr(number, value).is_none() {
                    return Err(self.gp(0));
                }
            }
            // The flags that tell what is available are read-only.
            Kind::MiscEnable => {
                let flags = value & self.model.misc_enable_writable();
                self.msr.misc_enable = flags | MISC_ENABLE_FIXED;
            }
            Kind::Efer => self.write_efer(value),
            Kind::FsBase => self.set_seg_base(sreg::FS, value),
            Kind::GsBase => self.set_seg_base(sreg::GS, value),
            Kind::Tsc => {
                self.tsc_offset = self
                    .tsc_offset
                    .wrapping_add(value.wrapping_sub(self.tsc(0)));
            }
            Kind::TscDeadline => {
                let deadline = self.deadline(value);
                self.apic_wrmsr(number, deadline)?;
            }
            Kind::ApicBase | Kind::Apic => self.apic_wrmsr(number, value)?,
            Kind::DebugCtl => {
                let before = self.recorder.tracing();
                if self.recorder.set_debugctl(value).is_err() {
                    return Err(self.gp(0));
                }
                self.armed |= !before && self.recorder.tracing();
                // Which accelerator is to run may depend on it.
                self.after_bus();
                self.update_mode();
            }
            Kind::DsArea => {
                if self.recorder.set_ds_area(value).is_err() {
                    return Err(self.gp(0));
                }
                if self.recorder.tracing() {
                    self.armed = true;
                    // The run loop checks the area before a branch is recorded with it.
                    self.after_bus();
                }
                self.window.close();
            }
        }
        Ok(())
    }

    /// Time at which the TSC reaches `tsc`; 0 disarms the timer.
    fn deadline(&self, tsc: u64) -> u64 {
        match tsc {
            0 => 0,
            _ => {
                let ticks = tsc.saturating_sub(self.tsc(0));
                self.now().saturating_add(self.nanoseconds(ticks)).max(1)
            }
        }
    }

    fn apic_wrmsr(&mut self, number: u32, value: u64) -> Result<(), Abort> {
        if self
            .platform
            .apic_wrmsr(self.now(), number, value)
            .is_none()
        {
            return Err(self.gp(0));
        }
        self.after_bus();
        Ok(())
    }

    /// A flag exists with its feature. LMA is read-only, LME cannot change while paging is on (Vol.
    /// 3A 2.2.1), and IA32_MISC_ENABLE can disable execute disable.
    fn efer_accepts(&self, value: u64) -> bool {
        let known = match self.msr.misc_enable & MISC_ENABLE_XD_DISABLE {
            0 => self.model.efer_flags(),
            _ => self.model.efer_flags() & !efer::NXE,
        };
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
