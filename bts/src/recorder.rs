//! The recorder: IA32_DEBUGCTL and IA32_DS_AREA, and which branches they ask for.

use thiserror::Error;

use crate::buffer::{DropReason, DsArea, is_canonical};
use crate::debugctl::Microarchitecture;
use crate::ds_area::BtsFields;

/// An MSR write that raises #GP(0).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("general protection")]
pub struct Gp;

/// IA32_DEBUGCTL, IA32_DS_AREA and what they do to a branch. One per logical processor.
#[derive(Clone, Debug)]
pub struct Recorder {
    microarchitecture: Microarchitecture,
    debugctl: u64,
    area: DsArea,
    /// Bit 0: store what arrives at CPL 0. Bit 1: store what arrives at CPL 1 to 3.
    armed: u8,
}

impl Recorder {
    /// The recorder after RESET or INIT: everything off, DS area at 0.
    #[must_use]
    pub fn new(microarchitecture: Microarchitecture) -> Self {
        Self {
            microarchitecture,
            debugctl: 0,
            area: DsArea {
                la: 0,
                btint: false,
                unusable: None,
            },
            armed: 0,
        }
    }

    /// The microarchitecture, which says what IA32_DEBUGCTL accepts.
    #[must_use]
    pub const fn microarchitecture(&self) -> Microarchitecture {
        self.microarchitecture
    }

    /// IA32_DEBUGCTL.
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
        let layout = self.microarchitecture.layout();
        if value & !layout.writable != 0 {
            return Err(Gp);
        }
        let has = |mask: u64| value & mask != 0;
        let tracing = has(layout.tr) && has(layout.bts);
        self.debugctl = value;
        self.area.btint = has(layout.btint);
        self.armed = u8::from(tracing && !has(layout.bts_off_os))
            | u8::from(tracing && !has(layout.bts_off_usr)) << 1;
        Ok(())
    }

    /// Clears LBR and BTF, as the processor does when it generates #DB (17.4.2, 17.4.3). Tracing
    /// goes on.
    pub fn clear_on_debug_exception(&mut self) {
        self.debugctl &= !self.microarchitecture.layout().cleared_by_db;
    }

    /// IA32_DS_AREA: linear address of the DS management area.
    #[must_use]
    pub const fn ds_area(&self) -> u64 {
        self.area.la
    }

    /// Writes IA32_DS_AREA. A value that can hold no DS area is only found when a branch is to be
    /// stored.
    ///
    /// # Errors
    /// [`Gp`] if `la` is not canonical (48 bits); the register keeps its value.
    #[inline]
    pub fn set_ds_area(&mut self, la: u64) -> Result<(), Gp> {
        if !is_canonical(la) {
            return Err(Gp);
        }
        self.area.la = la;
        self.area.unusable = match la.checked_add(BtsFields::SIZE as u64 - 1) {
            None => Some(DropReason::WrapAround),
            Some(last) if !is_canonical(last) => Some(DropReason::NonCanonical),
            Some(_) => None,
        };
        Ok(())
    }

    /// Whether a transfer of control that ends at `cpl` is to be stored. The filter looks at the
    /// CPL *after* the transfer: with BTS_OFF_OS a return to user code is stored and an entry into
    /// the kernel is not.
    #[inline]
    #[must_use]
    pub const fn enabled(&self, cpl: u8) -> bool {
        self.armed & (if cpl == 0 { 1 } else { 2 }) != 0
    }

    /// Whether branches are recorded at any CPL.
    #[inline]
    #[must_use]
    pub const fn tracing(&self) -> bool {
        self.armed != 0
    }

    /// Where branches go now: what [`DsArea::store`] needs, without the rest of the recorder, so
    /// that the owner of both the recorder and the memory can use them together.
    #[inline]
    #[must_use]
    pub const fn area(&self) -> DsArea {
        self.area
    }
}
