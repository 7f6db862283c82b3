//! The state of a local APIC.

use serde::{Deserialize, Serialize};

use super::registers::{
    DFR_FIXED, ICR_HIGH_WRITABLE, ICR_LOW_WRITABLE, LDR_WRITABLE, LVT_MASKED, Lvt, SVR_WRITABLE,
};
use super::timer::TimerState;
use super::vectors::Vectors;
use super::{APIC_BASE_BITS, APIC_BASE_BSP};
use crate::StateError;
use crate::state::{check, check_bits};

const DEVICE: &str = "a local APIC";

/// State of a local APIC. The mode of its timer follows from its LVT entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LapicState {
    pub(super) id: u8,
    pub(super) apic_base: u64,
    pub(super) tpr: u8,
    pub(super) ldr: u32,
    pub(super) dfr: u32,
    pub(super) svr: u32,
    pub(super) icr: u64,
    pub(super) lvt: [u32; 6],
    pub(super) isr: Vectors,
    pub(super) tmr: Vectors,
    pub(super) irr: Vectors,
    /// Errors since software last wrote the ESR.
    pub(super) errors: u32,
    /// The errors that software reads in the ESR.
    pub(super) esr: u32,
    pub(super) timer: TimerState,
    /// An NMI waits for the processor.
    pub(super) nmi: bool,
    /// INIT waits for the processor.
    pub(super) init: bool,
    /// A start-up IPI with this vector waits for the processor.
    pub(super) startup: Option<u8>,
}

impl LapicState {
    /// The state after power-up, with this ID and this value of IA32_APIC_BASE.
    pub(super) fn new(id: u8, apic_base: u64) -> Self {
        Self {
            id,
            apic_base,
            tpr: 0,
            ldr: 0,
            dfr: 0xFFFF_FFFF,
            svr: 0xFF,
            icr: 0,
            lvt: [LVT_MASKED; 6],
            isr: Vectors::default(),
            tmr: Vectors::default(),
            irr: Vectors::default(),
            errors: 0,
            esr: 0,
            timer: TimerState::default(),
            nmi: false,
            init: false,
            startup: None,
        }
    }

    /// Refuses a state that a local APIC with this BSP flag and this feature never has.
    pub(super) fn check(&self, bsp: u64, tsc_deadline: bool) -> Result<(), StateError> {
        let bits = |field, value, mask| check_bits(DEVICE, field, value, mask);
        bits("IA32_APIC_BASE", self.apic_base, APIC_BASE_BITS)?;
        let same_role = self.apic_base & APIC_BASE_BSP == bsp;
        check(DEVICE, "IA32_APIC_BASE", self.apic_base, same_role)?;
        bits("LDR", self.ldr.into(), LDR_WRITABLE.into())?;
        let fixed = self.dfr & DFR_FIXED == DFR_FIXED;
        check(DEVICE, "DFR", self.dfr, fixed)?;
        bits("SVR", self.svr.into(), SVR_WRITABLE.into())?;
        let icr = u64::from(ICR_HIGH_WRITABLE) << 32 | u64::from(ICR_LOW_WRITABLE);
        bits("ICR", self.icr, icr)?;
        for (entry, value) in Lvt::ALL.into_iter().zip(self.lvt) {
            bits(
                "LVT entry",
                value.into(),
                entry.writable(tsc_deadline).into(),
            )?;
        }
        bits("errors", self.errors.into(), 0xFF)?;
        bits("ESR", self.esr.into(), 0xFF)?;
        self.timer.check(DEVICE)
    }
}
