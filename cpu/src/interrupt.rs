//! Delivery of interrupts and exceptions through the IDT in IA-32e mode (SDM Vol. 3A 6.14), and the instructions that
//! ask for it.
//!
//! Real mode and legacy protected mode have no delivery yet: an event outside IA-32e mode shuts the processor down.

use crate::cpu::{Cpu, Fault, Special, vector};
use crate::frame::Frame;
use crate::op::{Abort, Exec, Flow, Op};
use crate::segment::{Descriptor, is_null, null_segment, sreg, system};
use crate::state::{SegAttr, efer, gpr, rflags};

/// What an event is, as far as its delivery differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// An interrupt or NMI.
    External,
    /// An exception, or INT1.
    Exception,
    /// INT n, INT3 or INTO: subject to the gate's DPL, and its faults are the program's own (EXT clear).
    Software,
}

/// An event to be delivered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub vector: u8,
    pub error: Option<u32>,
    pub source: Source,
    /// RF in the RFLAGS image that is pushed.
    pub resume: bool,
    /// Offset in the code segment that is pushed as return address.
    pub return_ip: u64,
    /// Offset in the code segment that is recorded as the origin of the transfer.
    pub from: u64,
}

/// Offset of RSP0 in a 64-bit TSS; IST1 is at offset 0x24 (SDM Vol. 3A 7.7).
const TSS_RSP0: u64 = 0x04;
const TSS_IST0: u64 = 0x1C;

impl Cpu {
    /// Enters the handler of an event, or changes nothing and says why not.
    pub(crate) fn deliver(&mut self, event: &Event) -> Result<(), Abort> {
        let result = self.enter_handler(event);
        // Faults met on the way say whether the event was external to the program (SDM Vol. 3A 6.13, EXT).
        if result.is_err()
            && event.source != Source::Software
            && let Fault::Exception {
                vector: vector::TS | vector::NP | vector::SS | vector::GP,
                error: Some(error),
            } = &mut self.fault
        {
            *error |= 1;
        }
        result
    }

    fn enter_handler(&mut self, event: &Event) -> Result<(), Abort> {
        if self.sys.efer & efer::LMA == 0 {
            return Err(self.abort(Fault::TripleFault));
        }
        let gate = self.gate(event)?;
        let selector = gate.gate_selector();
        if is_null(selector) {
            return Err(self.gp(0));
        }
        let code = self.descriptor(selector, vector::GP)?;
        if !code.is_code() || code.dpl() > self.cpl || !code.has(SegAttr::L) {
            return Err(self.selector_fault(vector::GP, selector));
        }
        self.check_code_segment(selector, code)?;
        let cpl = if code.is_conforming_code() {
            self.cpl
        } else {
            code.dpl()
        };
        let ip = gate.gate_offset();
        self.check_target(code.attr(), 0, ip)?;

        let rsp = match gate.gate_ist() {
            0 if cpl == self.cpl => self.gpr[gpr::RSP],
            0 => self.tss_stack(TSS_RSP0 + 8 * u64::from(cpl))?,
            ist => self.tss_stack(TSS_IST0 + 8 * u64::from(ist))?,
        };
        let mut image = self.rflags();
        if event.resume {
            image |= rflags::RF;
        }
        let mut frame = Frame::supervisor(rsp & !0xF);
        frame.push::<u64>(self, self.sys.seg[sreg::SS].selector.into())?;
        frame.push::<u64>(self, self.gpr[gpr::RSP])?;
        frame.push::<u64>(self, image)?;
        frame.push::<u64>(self, self.sys.seg[sreg::CS].selector.into())?;
        frame.push::<u64>(self, event.return_ip)?;
        if let Some(error) = event.error {
            frame.push::<u64>(self, error.into())?;
        }
        let mut cs = self.accessed(selector, code)?;

        let from = self.linear_ip(event.from);
        cs.selector = (selector & !3) | u16::from(cpl);
        self.sys.seg[sreg::CS] = cs;
        if cpl != self.cpl {
            self.sys.seg[sreg::SS] = null_segment(cpl.into(), cpl);
            self.cpl = cpl;
        }
        self.gpr[gpr::RSP] = frame.sp;
        self.rip = ip;
        let mut cleared = rflags::TF | rflags::NT | rflags::RF | rflags::VM;
        if gate.system_type() == Some(system::INTERRUPT_GATE) {
            cleared |= rflags::IF;
        }
        self.eflags &= !cleared;
        self.update_mode();
        self.record_far(from);
        Ok(())
    }

    /// The IDT's gate for an event.
    fn gate(&mut self, event: &Event) -> Result<Descriptor, Abort> {
        let offset = u64::from(event.vector) * 16;
        // Bit 1 of the error code: the index is one of the IDT (SDM Vol. 3A 6.13).
        let error = u32::from(event.vector) << 3 | 2;
        if offset + 15 > u64::from(self.sys.idtr.limit) {
            return Err(self.gp(error));
        }
        let la = self.sys.idtr.base.wrapping_add(offset);
        let gate = Descriptor {
            low: self.load_system(la)?,
            high: self.load_system(la.wrapping_add(8))?,
        };
        let valid = matches!(
            gate.system_type(),
            Some(system::INTERRUPT_GATE | system::TRAP_GATE)
        );
        if !valid || (event.source == Source::Software && gate.dpl() < self.cpl) {
            return Err(self.gp(error));
        }
        if !gate.has(SegAttr::P) {
            return Err(self.exception(vector::NP, Some(error)));
        }
        Ok(gate)
    }

    /// A stack pointer from the 64-bit TSS.
    pub(crate) fn tss_stack(&mut self, offset: u64) -> Result<u64, Abort> {
        let tr = self.sys.tr;
        if tr.attr.contains(SegAttr::UNUSABLE) || offset + 7 > u64::from(tr.limit) {
            return Err(self.selector_fault(vector::TS, tr.selector));
        }
        self.load_system(tr.base.wrapping_add(offset))
    }

    /// The stack pointer for privilege level `cpl`.
    pub(crate) fn inner_stack(&mut self, cpl: u8) -> Result<u64, Abort> {
        self.tss_stack(TSS_RSP0 + 8 * u64::from(cpl))
    }

    /// Delivers an interrupt from the local APIC between two instructions.
    pub(crate) fn raise_interrupt(&mut self, vector: u8) {
        self.raise_external(vector);
    }

    /// Delivers a non-maskable interrupt between two instructions. Further ones wait for IRET (SDM Vol. 3A 6.7.1).
    pub(crate) fn raise_nmi(&mut self) {
        self.nmi_blocked = true;
        self.raise_external(vector::NMI);
    }

    fn raise_external(&mut self, vector: u8) {
        self.raise(Event {
            vector,
            error: None,
            source: Source::External,
            resume: false,
            return_ip: self.rip,
            from: self.rip,
        });
    }

    /// INT n, INT3, INTO and INT1: `source` tells INT1 from the others.
    pub(crate) fn software_interrupt(&mut self, op: &Op, vector: u8, source: Source) -> Exec {
        let stepping = self.eflags & rflags::TF != 0;
        self.deliver(&Event {
            vector,
            error: None,
            source,
            resume: false,
            return_ip: self.next_rip(op),
            from: self.this_rip(op),
        })?;
        // The instruction clears TF, and does not trap (SDM Vol. 3B 17.3.1.4).
        if stepping {
            self.special |= Special::HOLD_TRAP;
        }
        Ok(Flow::Jump)
    }
}
