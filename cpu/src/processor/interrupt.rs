//! Delivery of interrupts and exceptions (SDM Vol. 3A 6.12, 6.14; in real-address mode 20.1.4), and
//! the instructions that raise them.

use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::frame::Frame;
use crate::processor::pending_work::ArchEvents;
use crate::processor::task_switch::{Cause, OldTask, Switched};
use crate::state::descriptor::{Descriptor, is_null, system};
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{PendingEvent, SegAttr, Segment, gpr, rflags, sreg};

/// The source of an event, as far as its delivery depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// An interrupt or NMI.
    External,
    /// An exception, or INT1.
    Exception,
    /// INT n, INT3 or INTO: the gate's DPL is checked, and faults during delivery have EXT clear.
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
/// Offset of ESP0 in a 32-bit TSS and of SP0 in one of 16 bits; SS0 follows (SDM Vol. 3A 7.2.1,
/// 7.6).
const TSS_32_ESP0: u64 = 0x04;
const TSS_16_SP0: u64 = 0x02;

impl Cpu {
    /// Enters the handler of an event. If it cannot, it sets a fault and changes nothing else. The
    /// new task of a handler behind a task gate can begin with a fault, too.
    pub(crate) fn deliver(&mut self, event: &Event) -> Result<Switched, Abort> {
        let result = self.with_devices(|cpu| cpu.enter_handler(event));
        // The error code of a fault during delivery has EXT set if the event was external to the
        // program (SDM Vol. 3A 6.13).
        if result != Ok(Ok(()))
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

    fn enter_handler(&mut self, event: &Event) -> Result<Switched, Abort> {
        if !self.is_protected() {
            return self.enter_real_handler(event).map(Ok);
        }
        let gate = self.gate(event)?;
        if gate.system_type() == Some(system::TASK_GATE) {
            return self.enter_task(event, gate);
        }
        self.enter_gate(event, gate).map(Ok)
    }

    /// Switches to the task behind a task gate (SDM Vol. 3A 6.12.2).
    fn enter_task(&mut self, event: &Event, gate: Descriptor) -> Result<Switched, Abort> {
        let task = self.available_task(gate.gate_selector())?;
        let old = OldTask {
            ip: event.return_ip,
            flags: self.flags_image(event),
            from: self.event_source(event.from),
        };
        self.switch_task(&task, Cause::Nest(event.error), &old)
    }

    /// Enters the handler behind an interrupt or trap gate.
    fn enter_gate(&mut self, event: &Event, gate: Descriptor) -> Result<(), Abort> {
        let ia32e = self.is_ia32e();
        let selector = gate.gate_selector();
        if is_null(selector) {
            return Err(self.gp(0));
        }
        let code = self.descriptor(selector, vector::GP)?;
        if !code.is_code() || code.dpl() > self.cpl || (ia32e && !code.has(SegAttr::L)) {
            return Err(self.selector_fault(vector::GP, selector));
        }
        self.check_code_segment(selector, code)?;
        let cpl = if code.is_conforming_code() {
            self.cpl
        } else {
            code.dpl()
        };
        let virtual_8086 = self.is_virtual_8086();
        if virtual_8086 && cpl != 0 {
            return Err(self.selector_fault(vector::GP, selector));
        }
        let ip = gate.gate_offset();
        self.check_target(code.attr(), code.limit(), ip)?;

        let (stack, mut frame) = match gate.gate_ist() {
            ist @ 1.. if ia32e => {
                let rsp = self.tss_word::<u64>(TSS_IST0 + 8 * u64::from(ist))?;
                (None, Frame::flat(self, rsp & !0xF, cpl))
            }
            _ if cpl != self.cpl => {
                let (ss, mut frame) = self.inner_stack(cpl)?;
                if ia32e {
                    frame.sp &= !0xF;
                }
                (Some(ss), frame)
            }
            _ if ia32e => (None, Frame::flat(self, self.gpr[gpr::RSP] & !0xF, cpl)),
            _ => (None, Frame::current(self)),
        };
        // IA-32e mode pushes the stack pointer even if it keeps the stack.
        let whole = ia32e || stack.is_some();
        match gate.is_16_bit() {
            _ if ia32e => self.push_event::<u64>(&mut frame, event, whole)?,
            true => self.push_event::<u16>(&mut frame, event, whole)?,
            false => self.push_event::<u32>(&mut frame, event, whole)?,
        }
        let mut cs = self.accessed(selector, code)?;

        let from = self.event_source(event.from);
        cs.selector = (selector & !3) | u16::from(cpl);
        self.set_segment(sreg::CS, cs);
        if cpl != self.cpl {
            self.set_segment(sreg::SS, stack.unwrap_or(Segment::null(cpl.into(), cpl)));
            self.cpl = cpl;
        }
        if virtual_8086 {
            for register in Self::PUSHED_SEGMENTS {
                self.set_segment(register, Segment::null(0, 0));
            }
        }
        frame.commit(self);
        self.rip = ip;
        let mut cleared = rflags::TF | rflags::NT | rflags::RF | rflags::VM;
        if matches!(
            gate.system_type(),
            Some(system::INTERRUPT_GATE | system::INTERRUPT_GATE_16)
        ) {
            cleared |= rflags::IF;
        }
        self.eflags &= !cleared;
        self.update_mode();
        self.record_far(from);
        Ok(())
    }

    /// RFLAGS as the handler of an event finds it.
    fn flags_image(&self, event: &Event) -> u64 {
        match event.resume {
            true => self.rflags() | rflags::RF,
            false => self.rflags(),
        }
    }

    /// Pushes the return frame of a handler in words of `T`. `whole`: with SS and stack pointer. In
    /// virtual-8086 mode the data segments come first (SDM Vol. 3A 20.3.1.1).
    fn push_event<T: Int>(
        &mut self,
        frame: &mut Frame,
        event: &Event,
        whole: bool,
    ) -> Result<(), Abort> {
        let image = self.flags_image(event);
        if self.is_virtual_8086() {
            for register in Self::PUSHED_SEGMENTS {
                frame.push(self, T::from_u64(self.seg[register].selector.into()))?;
            }
        }
        if whole {
            frame.push(self, T::from_u64(self.seg[sreg::SS].selector.into()))?;
            frame.push(self, T::from_u64(self.gpr[gpr::RSP]))?;
        }
        frame.push(self, T::from_u64(image))?;
        frame.push(self, T::from_u64(self.seg[sreg::CS].selector.into()))?;
        frame.push(self, T::from_u64(event.return_ip))?;
        if let Some(error) = event.error {
            frame.push(self, T::from_u64(error.into()))?;
        }
        Ok(())
    }

    /// Real-address mode: a far pointer at four bytes a vector, and no error codes (SDM Vol. 3A
    /// 20.1.4).
    fn enter_real_handler(&mut self, event: &Event) -> Result<(), Abort> {
        let offset = u64::from(event.vector) * 4;
        if offset + 3 > u64::from(self.sys.idtr.limit) {
            return Err(self.gp(0));
        }
        let pointer: u32 = self.load_system(self.sys.idtr.base.wrapping_add(offset))?;
        let (ip, selector) = (u64::from(pointer & 0xFFFF), (pointer >> 16) as u16);
        let cs = self.segment(sreg::CS).in_real_mode(selector);
        let mut frame = Frame::current(self);
        let without_error = Event {
            error: None,
            ..*event
        };
        self.push_event::<u16>(&mut frame, &without_error, false)?;
        self.check_target(cs.attr, cs.limit, ip)?;

        let from = self.event_source(event.from);
        self.set_segment(sreg::CS, cs);
        frame.commit(self);
        self.rip = ip;
        self.eflags &= !(rflags::TF | rflags::RF | rflags::AC | rflags::IF);
        self.update_mode();
        self.record_far(from);
        Ok(())
    }

    /// Loads and checks the IDT's gate for an event.
    fn gate(&mut self, event: &Event) -> Result<Descriptor, Abort> {
        let ia32e = self.is_ia32e();
        let size = if ia32e { 16 } else { 8 };
        let offset = u64::from(event.vector) * size;
        // Bit 1 of the error code: the index refers to the IDT (SDM Vol. 3A 6.13).
        let error = u32::from(event.vector) << 3 | 2;
        if offset + size - 1 > u64::from(self.sys.idtr.limit) {
            return Err(self.gp(error));
        }
        let la = self.sys.idtr.base.wrapping_add(offset);
        let mut gate = Descriptor {
            low: self.load_system(la)?,
            high: 0,
        };
        if ia32e {
            gate.high = self.load_system(la.wrapping_add(8))?;
        }
        let valid = match gate.system_type() {
            Some(system::INTERRUPT_GATE | system::TRAP_GATE) => true,
            Some(system::INTERRUPT_GATE_16 | system::TRAP_GATE_16 | system::TASK_GATE) => !ia32e,
            _ => false,
        };
        if !valid || (event.source == Source::Software && gate.dpl() < self.cpl) {
            return Err(self.gp(error));
        }
        if !gate.has(SegAttr::P) {
            return Err(self.exception(vector::NP, Some(error)));
        }
        Ok(gate)
    }

    /// Loads a word of the TSS. Raises #TS if the TSS is unusable or the word is outside its limit.
    pub(crate) fn tss_word<T: Int>(&mut self, offset: u64) -> Result<T, Abort> {
        let tr = self.sys.tr;
        let last = offset + T::BYTES as u64 - 1;
        if tr.attr.contains(SegAttr::UNUSABLE) || last > u64::from(tr.limit) {
            return Err(self.selector_fault(vector::TS, tr.selector));
        }
        self.load_system(tr.base.wrapping_add(offset))
    }

    /// The stack segment and the stack that a transfer to privilege level `cpl` switches to.
    pub(crate) fn inner_stack(&mut self, cpl: u8) -> Result<(Segment, Frame), Abort> {
        let level = u64::from(cpl);
        if self.is_ia32e() {
            let rsp = self.tss_word::<u64>(TSS_RSP0 + 8 * level)?;
            return Ok((Segment::null(cpl.into(), cpl), Frame::flat(self, rsp, cpl)));
        }
        let (sp, selector) = match self.sys.tr.ty() {
            system::TSS_16_AVAILABLE | system::TSS_16_BUSY => {
                let both: u32 = self.tss_word(TSS_16_SP0 + 4 * level)?;
                (u64::from(both & 0xFFFF), (both >> 16) as u16)
            }
            _ => {
                let selector: u16 = self.tss_word(TSS_32_ESP0 + 8 * level + 4)?;
                let esp: u32 = self.tss_word(TSS_32_ESP0 + 8 * level)?;
                (esp.into(), selector)
            }
        };
        let ss = self.stack_segment(selector, cpl, false, vector::TS)?;
        Ok((ss, Frame::inner(self, ss, sp)))
    }

    /// Delivers an interrupt from the local APIC between two instructions.
    pub(crate) fn raise_interrupt(&mut self, vector: u8) {
        self.raise_external(vector);
    }

    /// Delivers a non-maskable interrupt between two instructions. Further ones wait for IRET (SDM
    /// Vol. 3A 6.7.1).
    pub(crate) fn raise_nmi(&mut self) {
        self.nmi_blocked = true;
        self.raise_external(vector::NMI);
    }

    /// Delivers the event that was accepted before, by this processor or another accelerator.
    pub(crate) fn raise_accepted(&mut self) {
        self.pending_work
            .remove(ArchEvents::ACCEPTED | ArchEvents::HALTED);
        match self.accepted.take() {
            Some(PendingEvent::Interrupt(vector)) => self.raise_interrupt(vector),
            Some(PendingEvent::Nmi) => self.raise_nmi(),
            Some(PendingEvent::Exception { vector, error }) => self.raise_exception(vector, error),
            Some(PendingEvent::Debug(_)) | None => {}
        }
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

    /// Executes INT n, INT3, INTO or INT1. `source` distinguishes INT1 from the others.
    pub(crate) fn software_interrupt(&mut self, insn: &Insn, vector: u8, source: Source) -> Exec {
        let stepping = self.eflags & rflags::TF != 0;
        let delivered = self.deliver(&Event {
            vector,
            error: None,
            source,
            resume: false,
            return_ip: self.next_rip(insn),
            from: self.this_rip(insn),
        })?;
        // The instruction clears TF, and does not trap (SDM Vol. 3B 17.3.1.4).
        if stepping {
            self.pending_work.insert(ArchEvents::NO_STEP);
        }
        if let Err(Abort) = delivered {
            self.raise_fault(false);
        }
        Ok(Flow::Jump)
    }
}
