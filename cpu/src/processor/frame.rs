//! The stack in far transfers. Several words are pushed or popped, and RSP is written only after
//! the last possible fault.

use crate::insn::Abort;
use crate::mmu::access::Privilege;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{SegAttr, Segment, gpr, sreg};

/// A stack with a pointer of its own, which [`Frame::commit`] writes to RSP.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// Offset in the stack segment.
    pub sp: u64,
    mask: u64,
    /// The stack segment outside 64-bit mode, where it has a base and a limit.
    segment: Option<Segment>,
    /// Error code of #SS for an access outside the segment: the selector if the stack is being
    /// switched to, else 0.
    error: u32,
    privilege: Privilege,
}

impl Frame {
    /// The stack that the current code uses.
    pub(crate) fn current(cpu: &Cpu) -> Self {
        let rsp = cpu.gpr[gpr::RSP];
        if cpu.in_64_bit_mode() {
            return Self::flat(cpu, rsp, cpu.cpl);
        }
        Self {
            error: 0,
            privilege: cpu.privilege,
            ..Self::inner(cpu, cpu.segment(sreg::SS), rsp)
        }
    }

    /// The stack at `sp` of the segment `ss`, which an inner privilege level of protected mode is
    /// about to use.
    pub(crate) fn inner(cpu: &Cpu, ss: Segment, sp: u64) -> Self {
        let mask = if ss.attr.contains(SegAttr::DB) {
            0xFFFF_FFFF
        } else {
            0xFFFF
        };
        Self {
            sp: sp & mask,
            mask,
            segment: Some(ss),
            error: u32::from(ss.selector & !3),
            privilege: cpu.supervisor_privilege(),
        }
    }

    /// The stack at `rsp` that 64-bit code at privilege level `cpl` is about to use.
    pub(crate) fn flat(cpu: &Cpu, rsp: u64, cpl: u8) -> Self {
        Self {
            sp: rsp,
            mask: u64::MAX,
            segment: None,
            error: 0,
            privilege: cpu.privilege_at(cpl),
        }
    }

    /// Pushes a word.
    pub(crate) fn push<T: Int>(&mut self, cpu: &mut Cpu, value: T) -> Result<(), Abort> {
        let sp = self.sp.wrapping_sub(T::BYTES as u64) & self.mask;
        let la = self.linear(cpu, sp, T::BYTES)?;
        let stored = cpu.store_implicit(la, value, self.privilege);
        stack_fault(cpu, stored)?;
        self.sp = sp;
        Ok(())
    }

    /// Pops a word.
    pub(crate) fn pop<T: Int>(&mut self, cpu: &mut Cpu) -> Result<T, Abort> {
        let la = self.linear(cpu, self.sp, T::BYTES)?;
        let loaded = cpu.load_as(la, self.privilege);
        let value = stack_fault(cpu, loaded)?;
        self.skip(T::BYTES as u64);
        Ok(value)
    }

    /// Releases `bytes`.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.sp = self.sp.wrapping_add(bytes) & self.mask;
    }

    /// Writes the pointer to RSP, or to the part of it that the stack segment uses.
    pub(crate) fn commit(&self, cpu: &mut Cpu) {
        let rsp = &mut cpu.gpr[gpr::RSP];
        *rsp = if self.mask == 0xFFFF {
            (*rsp & !0xFFFF) | self.sp
        } else {
            self.sp
        };
    }

    fn linear(&self, cpu: &mut Cpu, sp: u64, len: usize) -> Result<u64, Abort> {
        match &self.segment {
            None => Ok(sp),
            Some(ss) if ss.within_limit(sp, len as u64) => {
                Ok(ss.base.wrapping_add(sp) & 0xFFFF_FFFF)
            }
            Some(_) => Err(cpu.exception(vector::SS, Some(self.error))),
        }
    }
}

/// A non-canonical stack address causes #SS(0), not #GP(0).
fn stack_fault<T>(cpu: &mut Cpu, result: Result<T, Abort>) -> Result<T, Abort> {
    if result.is_err() && cpu.fault == Fault::NonCanonical {
        return Err(cpu.exception(vector::SS, Some(0)));
    }
    result
}
