//! The recorder of a logical processor: IA32_DEBUGCTL and IA32_DS_AREA, and the decision which
//! branches are stored.
//!
//! A write of either MSR precomputes what depends on its bits, so that the test after each transfer
//! of control ([`Recorder::enabled`]) is one AND.

use thiserror::Error;

use crate::buffer::{DropReason, DsArea, is_canonical};
use crate::debugctl::{Layout, Microarchitecture};
use crate::formats::Format;

/// The MSR write raises #GP(0).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("general protection")]
pub struct Gp;

/// IA32_DEBUGCTL and IA32_DS_AREA of a logical processor.
#[derive(Clone, Debug)]
pub struct Recorder {
    microarchitecture: Microarchitecture,
    debugctl: u64,
    area: DsArea,
    /// Bit 0: branches to CPL 0 are stored. Bit 1: branches to CPL 1 to 3 are stored.
    armed: u8,
    lbr: bool,
    btf: bool,
}

impl Recorder {
    /// Creates the recorder in its state after RESET or INIT: IA32_DEBUGCTL and IA32_DS_AREA are 0.
    #[inline]
    #[must_use]
    pub fn new(microarchitecture: Microarchitecture) -> Self {
        Self {
            microarchitecture,
            debugctl: 0,
            area: DsArea {
                la: 0,
                format: microarchitecture.debug_store().format,
                predicted: microarchitecture.debug_store().has_predicted,
                btint: false,
                unusable: None,
            },
            armed: 0,
            lbr: false,
            btf: false,
        }
    }

    /// Returns the microarchitecture, which defines the bits of IA32_DEBUGCTL.
    #[must_use]
    pub const fn microarchitecture(&self) -> Microarchitecture {
        self.microarchitecture
    }

    #[inline]
    const fn layout(&self) -> &'static Layout {
        self.microarchitecture.layout()
    }

    /// Returns IA32_DEBUGCTL.
    #[must_use]
    pub const fn debugctl(&self) -> u64 {
        self.debugctl
    }

    /// Writes IA32_DEBUGCTL.
    ///
    /// # Errors
    /// [`Gp`] if the microarchitecture reserves a bit of `value`; the register keeps its value.
    #[inline]
    pub fn set_debugctl(&mut self, value: u64) -> Result<(), Gp> {
        let layout = self.layout();
        if value & !layout.writable != 0 {
            return Err(Gp);
        }
        self.load_debugctl(value);
        Ok(())
    }

    /// Sets IA32_DEBUGCTL, without a check of reserved bits, and all state derived from it.
    #[inline(always)]
    fn load_debugctl(&mut self, value: u64) {
        let layout = self.layout();
        let has = |mask: u64| value & mask != 0;
        let tracing = has(layout.tr) && has(layout.bts);
        self.debugctl = value;
        self.area.btint = has(layout.btint);
        self.armed = u8::from(tracing && !has(layout.bts_off_os))
            | u8::from(tracing && !has(layout.bts_off_usr)) << 1;
        (self.lbr, self.btf) = (has(layout.lbr), has(layout.btf));
    }

    /// Clears LBR and BTF, as the processor does when it generates #DB (17.4.2, 17.4.3). TR is not
    /// affected, so branches are still stored.
    pub fn clear_on_debug_exception(&mut self) {
        self.load_debugctl(self.debugctl & !self.layout().cleared_by_db());
    }

    /// Applies the freeze controls on a performance-monitoring interrupt (17.4.7): clears LBR if
    /// FREEZE_LBRS_ON_PMI is set. Returns whether FREEZE_PERFMON_ON_PMI is set, in which case the
    /// caller must stop the performance counters.
    pub fn freeze_on_pmi(&mut self) -> bool {
        let layout = self.layout();
        if self.debugctl & layout.freeze_lbrs_on_pmi != 0 {
            self.load_debugctl(self.debugctl & !layout.lbr);
        }
        self.debugctl & layout.freeze_perfmon_on_pmi != 0
    }

    /// Returns whether branches are recorded in the LBR stack (LBR is set).
    #[inline]
    #[must_use]
    pub const fn records_last_branches(&self) -> bool {
        self.lbr
    }

    /// Returns whether RFLAGS.TF steps on branches instead of instructions (BTF is set).
    #[inline]
    #[must_use]
    pub const fn steps_on_branches(&self) -> bool {
        self.btf
    }

    /// Returns IA32_DS_AREA, the linear address of the DS management area.
    #[must_use]
    pub const fn ds_area(&self) -> u64 {
        self.area.la
    }

    /// Writes IA32_DS_AREA. A canonical address at which no DS area fits is accepted, as by a
    /// processor; [`DsArea::store`] then drops each record.
    ///
    /// # Errors
    /// [`Gp`] if `la` is not canonical (48 bits), or if it has more than 32 bits and the DS area is
    /// in the 32-bit format (17.4.9); the register keeps its value.
    #[inline]
    pub fn set_ds_area(&mut self, la: u64) -> Result<(), Gp> {
        let highest = match self.area.format {
            Format::Bits32 => u32::MAX.into(),
            Format::Bits64 => u64::MAX,
        };
        if !is_canonical(la) || la > highest {
            return Err(Gp);
        }
        self.area.la = la;
        self.area.unusable = match la.checked_add(self.area.format.fields_size() - 1) {
            None => Some(DropReason::WrapAround),
            Some(last) if last > highest => Some(DropReason::WrapAround),
            Some(last) if !is_canonical(last) => Some(DropReason::NonCanonical),
            Some(_) => None,
        };
        Ok(())
    }

    /// Returns whether a transfer of control that ends at `cpl` is stored. BTS_OFF_OS and
    /// BTS_OFF_USR filter by the CPL *after* the transfer: with BTS_OFF_OS, a return to user code
    /// is stored and an entry into the kernel is not.
    #[inline]
    #[must_use]
    pub const fn enabled(&self, cpl: u8) -> bool {
        self.armed & (if cpl == 0 { 1 } else { 2 }) != 0
    }

    /// Returns whether branches are stored at any CPL.
    #[inline]
    #[must_use]
    pub const fn tracing(&self) -> bool {
        self.armed != 0
    }

    /// Returns a copy of the DS area's state for [`DsArea::store`], so that the owner of both the
    /// recorder and the guest memory can borrow the memory mutably meanwhile.
    #[inline]
    #[must_use]
    pub const fn area(&self) -> DsArea {
        self.area
    }
}
