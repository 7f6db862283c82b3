//! RDMSR and WRMSR of the registers, and RDPMC.

use crate::model::Counters;
use crate::model::netburst_pmu::EscrPair;
use crate::model::pmu::Registers;
use crate::processor::cpu::Cpu;
use crate::state::PmuRegister;
use crate::state::netburst_pmu::{cccr, escr};
use crate::state::pmu::{evtsel, global};

impl Cpu {
    /// Whether the model has the register.
    fn has_pmu_register(&self, register: PmuRegister) -> bool {
        let counters = &self.pmu.counters;
        match register {
            PmuRegister::EvtSel(n) | PmuRegister::Pmc(n) => n < counters.general,
            PmuRegister::FixedCtr(n) => n < counters.fixed,
            // Later models do not have these.
            PmuRegister::Escr(n) if n / 2 == EscrPair::Iq as usize => {
                counters.registers == Registers::NetBurst { later: false }
            }
            _ => true,
        }
    }

    /// Reads a register, `ahead` instructions into the current block. `None`: #GP(0).
    pub(crate) fn read_pmu(&mut self, ahead: u8, register: PmuRegister) -> Option<u64> {
        if !self.has_pmu_register(register) {
            return None;
        }
        if self.pmu.active {
            self.count_events(ahead);
        }
        let pmu = &self.msr.pmu;
        Some(match register {
            PmuRegister::EvtSel(n) => *pmu.evtsel.get(n)?,
            PmuRegister::Pmc(n) => *pmu.pmc.get(n)?,
            PmuRegister::FixedCtr(n) => *pmu.fixed_ctr.get(n)?,
            PmuRegister::FixedCtrCtrl => pmu.fixed_ctr_ctrl,
            PmuRegister::GlobalStatus => pmu.global_status,
            PmuRegister::GlobalCtrl => pmu.global_ctrl,
            PmuRegister::GlobalOvfCtrl => 0,
            PmuRegister::Counter(n) => *pmu.netburst.counter.get(n)?,
            PmuRegister::Cccr(n) => *pmu.netburst.cccr.get(n)?,
            PmuRegister::Escr(n) => *pmu.netburst.escr.get(n / 2)?.get(n % 2)?,
        })
    }

    /// Writes a register by a WRMSR, with which the current block begins. `None`: #GP(0).
    pub(crate) fn write_pmu(&mut self, register: PmuRegister, value: u64) -> Option<()> {
        let Counters {
            mask,
            fixed_ctrl,
            global,
            ..
        } = self.pmu.counters;
        let writable = match register {
            PmuRegister::EvtSel(_) => evtsel::WRITABLE,
            // A write takes the low 32 bits, and extends their sign (18.2.1.1). On NetBurst it
            // takes all bits of the counter.
            PmuRegister::Pmc(_) | PmuRegister::Counter(_) => u64::MAX,
            PmuRegister::Cccr(_) => cccr::WRITABLE,
            PmuRegister::Escr(_) => escr::WRITABLE,
            PmuRegister::FixedCtr(_) => mask,
            PmuRegister::FixedCtrCtrl => fixed_ctrl,
            PmuRegister::GlobalStatus => return None,
            PmuRegister::GlobalCtrl => global,
            PmuRegister::GlobalOvfCtrl => global | global::OVF_OTHERS,
        };
        if value & !writable != 0 || !self.has_pmu_register(register) {
            return None;
        }
        self.count_events(1);
        let extended = value as u32 as i32 as u64 & mask;
        let pmu = &mut self.msr.pmu;
        match register {
            PmuRegister::EvtSel(n) => *pmu.evtsel.get_mut(n)? = value,
            PmuRegister::Pmc(n) => *pmu.pmc.get_mut(n)? = extended,
            PmuRegister::FixedCtr(n) => *pmu.fixed_ctr.get_mut(n)? = value,
            PmuRegister::FixedCtrCtrl => pmu.fixed_ctr_ctrl = value,
            PmuRegister::GlobalStatus => {}
            PmuRegister::GlobalCtrl => pmu.global_ctrl = value,
            PmuRegister::GlobalOvfCtrl => pmu.global_status &= !value,
            PmuRegister::Counter(n) => *pmu.netburst.counter.get_mut(n)? = value & mask,
            PmuRegister::Cccr(n) => *pmu.netburst.cccr.get_mut(n)? = value,
            PmuRegister::Escr(n) => *pmu.netburst.escr.get_mut(n / 2)?.get_mut(n % 2)? = value,
        }
        self.configure_counters();
        // The loop that runs, and the accelerator, depend on what counts.
        self.after_bus();
        Some(())
    }

    /// RDPMC, `ahead` instructions into the current block: a programmable counter, or with bit 30 a
    /// fixed one (Vol. 2B). On NetBurst bit 31 selects the low half of a counter. `None` if there
    /// is no such counter.
    pub(crate) fn performance_counter(&mut self, ahead: u8, index: u32) -> Option<u64> {
        const FIXED_COUNTERS: u32 = 1 << 30;
        const FAST: u32 = 1 << 31;
        if let Registers::NetBurst { .. } = self.pmu.counters.registers {
            let register = PmuRegister::Counter((index & !FAST) as usize);
            let value = self.read_pmu(ahead, register)?;
            return Some(if index & FAST != 0 {
                value & 0xFFFF_FFFF
            } else {
                value
            });
        }
        let register = match index.checked_sub(FIXED_COUNTERS) {
            None => PmuRegister::Pmc(index as usize),
            Some(n) => PmuRegister::FixedCtr(n as usize),
        };
        self.read_pmu(ahead, register)
    }

    /// Whether a counter is enabled. It ignores IA32_PERF_GLOBAL_CTRL, with which system software
    /// stops all counters for short times, and what does the same in the P6 family. Only the
    /// software CPU counts events.
    pub fn uses_counters(&self) -> bool {
        self.msr.pmu.any_enabled(&self.pmu.counters)
    }
}
