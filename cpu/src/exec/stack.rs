//! The stack: PUSH, POP, PUSHF, POPF, ENTER, LEAVE.

use iced_x86::Code;

use crate::exec::table::{Backend, Inlined, Table};
use crate::insn::{Abort, Exec, Flow, Insn, seg};
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::virtual_8086::InterruptFlag;
use crate::state::gpr::{RBP, RSP};
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{SegAttr, rflags};

impl Cpu {
    /// Bits of RSP that address the stack: all in 64-bit mode, else as SS.B says (SDM Vol. 1
    /// 6.2.3).
    #[inline(always)]
    fn stack_mask(&self) -> u64 {
        if self.in_64_bit_mode() {
            u64::MAX
        } else if self.seg[2].attr.contains(SegAttr::DB) {
            0xFFFF_FFFF
        } else {
            0xFFFF
        }
    }

    /// Linear address of `T` at stack offset `sp`, which the stack segment must allow.
    #[inline(always)]
    fn stack_address<T: Int>(&mut self, sp: u64, write: bool) -> Result<u64, Abort> {
        if self.in_64_bit_mode() {
            Ok(sp)
        } else {
            self.segment_address(seg::SS, sp & self.stack_mask(), T::BYTES as u32, write)
        }
    }

    /// The stack pointer moved by `delta` bytes.
    #[inline(always)]
    fn stack_moved(&self, delta: u64) -> u64 {
        let mask = self.stack_mask();
        let sp = self.gpr[RSP];
        // A 16-bit stack pointer wraps and keeps the upper bits of ESP.
        (sp & !mask & 0xFFFF_FFFF) | (sp.wrapping_add(delta) & mask)
    }

    /// Non-canonical stack addresses are #SS(0).
    #[cold]
    fn stack_fault(&mut self, Abort: Abort) -> Abort {
        if self.fault == Fault::NonCanonical {
            self.exception(vector::SS, Some(0))
        } else {
            Abort
        }
    }

    /// Pushes a value; the stack pointer moves only if that succeeds.
    #[inline(always)]
    pub(crate) fn push<T: Int>(&mut self, value: T) -> Result<(), Abort> {
        self.push_into::<false, T, T>(value)
    }

    /// As [`Self::push`]. With `HIT` it aborts where the TLB alone does not find the stack.
    #[inline(always)]
    pub(crate) fn push_if<const HIT: bool, T: Int>(&mut self, value: T) -> Result<(), Abort> {
        self.push_into::<HIT, T, T>(value)
    }

    /// Pushes a value into the low bytes of a slot of another size.
    #[inline(always)]
    pub(crate) fn push_into<const HIT: bool, S: Int, T: Int>(
        &mut self,
        value: T,
    ) -> Result<(), Abort> {
        let sp = self.stack_moved((S::BYTES as u64).wrapping_neg());
        let la = self.stack_address::<T>(sp, true)?;
        match self.store_if::<HIT, T>(la, value) {
            Ok(()) => {
                self.gpr[RSP] = sp;
                Ok(())
            }
            Err(Abort) if HIT => Err(Abort),
            Err(e) => Err(self.stack_fault(e)),
        }
    }

    /// The value `at` bytes above the top of the stack.
    #[inline(always)]
    pub(crate) fn peek<T: Int>(&mut self, at: u64) -> Result<T, Abort> {
        self.peek_if::<false, T>(at)
    }

    /// As [`Self::peek`]. With `HIT` it aborts where the TLB alone does not find the stack.
    #[inline(always)]
    pub(crate) fn peek_if<const HIT: bool, T: Int>(&mut self, at: u64) -> Result<T, Abort> {
        let sp = self.gpr[RSP].wrapping_add(at);
        let la = self.stack_address::<T>(sp, false)?;
        match self.load_if::<HIT, T>(la) {
            Ok(v) => Ok(v),
            Err(Abort) if HIT => Err(Abort),
            Err(e) => Err(self.stack_fault(e)),
        }
    }

    /// Drops `bytes` from the stack.
    #[inline(always)]
    pub(crate) fn drop_stack(&mut self, bytes: u64) {
        self.gpr[RSP] = self.stack_moved(bytes);
    }

    /// Pops a value.
    #[inline(always)]
    pub(crate) fn pop<T: Int>(&mut self) -> Result<T, Abort> {
        self.pop_if::<false, T>()
    }

    /// As [`Self::pop`]. With `HIT` it aborts where the TLB alone does not find the stack.
    #[inline(always)]
    fn pop_if<const HIT: bool, T: Int>(&mut self) -> Result<T, Abort> {
        let v = self.peek_if::<HIT, T>(0)?;
        self.drop_stack(T::BYTES as u64);
        Ok(v)
    }
}

struct PushRegister;
impl Inlined for PushRegister {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        cpu.push_if::<HIT, T>(cpu.r(insn.dst))?;
        Ok(Flow::Next)
    }
}

struct PushImmediate;
impl Inlined for PushImmediate {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        cpu.push_if::<HIT, T>(T::from_u64(insn.imm))?;
        Ok(Flow::Next)
    }
}

struct PushMemory;
impl Inlined for PushMemory {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let v = cpu.load_if::<HIT, T>(cpu.ea(insn))?;
        cpu.push_if::<HIT, T>(v)?;
        Ok(Flow::Next)
    }
}

struct PopRegister;
impl Inlined for PopRegister {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let v = cpu.pop_if::<HIT, T>()?;
        cpu.w(insn.dst, v);
        Ok(Flow::Next)
    }
}

/// POP to memory: an address relative to RSP uses its value after the pop (SDM Vol. 2B, POP).
struct PopMemory;
impl Inlined for PopMemory {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let before = cpu.gpr[RSP];
        let v = cpu.pop_if::<HIT, T>()?;
        let la = cpu.ea(insn);
        if let Err(e) = cpu.store_if::<HIT, T>(la, v) {
            cpu.gpr[RSP] = before;
            return Err(e);
        }
        Ok(Flow::Next)
    }
}

/// Faults as POP does if it cannot read the top of the stack. POP reads it before it computes the
/// address of its memory operand.
fn top<T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.peek::<T>(0)?;
    Ok(Flow::Next)
}

fn pusha<T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
    let before = cpu.gpr[RSP];
    for id in 0..8u8 {
        let v = if usize::from(id) == RSP {
            T::from_u64(before)
        } else {
            cpu.r::<T>(id)
        };
        if let Err(e) = cpu.push(v) {
            cpu.gpr[RSP] = before;
            return Err(e);
        }
    }
    Ok(Flow::Next)
}

fn popa<T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
    let mut values = [T::default(); 8];
    for (i, v) in values.iter_mut().enumerate() {
        *v = cpu.peek((i * T::BYTES) as u64)?;
    }
    cpu.drop_stack(8 * T::BYTES as u64);
    for (id, v) in (0..8u8).rev().zip(values) {
        if usize::from(id) != RSP {
            cpu.w(id, v);
        }
    }
    Ok(Flow::Next)
}

/// PUSHF: VM and RF read as clear.
fn pushf<T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
    let f = match cpu.interrupt_flag(T::BYTES)? {
        InterruptFlag::Real => cpu.rflags() & !(rflags::VM | rflags::RF),
        InterruptFlag::Virtual => cpu.virtual_flags(),
    };
    cpu.push(T::from_u64(f))?;
    Ok(Flow::Next)
}

/// POPF: IOPL changes at CPL 0 only, IF if CPL <= IOPL (SDM Vol. 2B, POPF).
fn popf<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if cpu.interrupt_flag(T::BYTES)? == InterruptFlag::Virtual {
        let image = cpu.peek::<T>(0)?.zext();
        cpu.set_virtual_flags(image)?;
        cpu.drop_stack(T::BYTES as u64);
        return cpu.end_block(insn);
    }
    let image = cpu.pop::<T>()?.zext();
    let mut mask = rflags::ARITH | rflags::TF | rflags::DF | rflags::NT | rflags::AC | rflags::ID;
    if cpu.cpl == 0 {
        mask |= rflags::IOPL;
    }
    if cpu.cpl <= cpu.iopl() {
        mask |= rflags::IF;
    }
    if T::BITS == 16 {
        mask &= 0xFFFF;
    }
    cpu.set_rflags(image, mask | rflags::RF);
    // IF and TF matter from the next instruction on.
    cpu.end_block(insn)
}

struct Leave;
impl Inlined for Leave {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
        let before = cpu.gpr[RSP];
        let mask = cpu.stack_mask();
        cpu.gpr[RSP] = (before & !mask) | (cpu.gpr[RBP] & mask);
        match cpu.pop_if::<HIT, T>() {
            Ok(v) => {
                cpu.w(RBP as u8, v);
                Ok(Flow::Next)
            }
            Err(e) => {
                cpu.gpr[RSP] = before;
                Err(e)
            }
        }
    }
}

/// ENTER: `imm` is the size of the frame, `aux` the nesting level, 0 to 31 (SDM Vol. 2A, ENTER).
fn enter<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let before = cpu.gpr[RSP];
    match build_frame::<T>(cpu, insn) {
        Ok(frame) => {
            cpu.w(RBP as u8, frame);
            Ok(Flow::Next)
        }
        Err(e) => {
            cpu.gpr[RSP] = before;
            Err(e)
        }
    }
}

fn build_frame<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<T, Abort> {
    let mut bp = cpu.gpr[RBP];
    cpu.push(cpu.r::<T>(RBP as u8))?;
    let frame = cpu.gpr[RSP];
    for _ in 1..insn.aux {
        bp = bp.wrapping_sub(T::BYTES as u64);
        let la = cpu.stack_address::<T>(bp, false)?;
        let v = cpu.load::<T>(la).map_err(|e| cpu.stack_fault(e))?;
        cpu.push(v)?;
    }
    if insn.aux > 0 {
        cpu.push(T::from_u64(frame))?;
    }
    cpu.drop_stack((insn.imm & 0xFFFF).wrapping_neg());
    // The new top of the stack must be writable.
    let la = cpu.stack_address::<T>(cpu.gpr[RSP], true)?;
    cpu.check_writable(la, T::BYTES)
        .map_err(|e| cpu.stack_fault(e))?;
    Ok(T::from_u64(frame))
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.inlined_16_to_64::<PushRegister>([Push_r16, Push_r32, Push_r64]);
    t.inlined_16_to_64::<PushImmediate>([Push_imm16, Pushd_imm32, Pushq_imm32]);
    t.inlined_16_to_64::<PushImmediate>([Pushw_imm8, Pushd_imm8, Pushq_imm8]);
    let push_rm = [Push_rm16, Push_rm32, Push_rm64];
    t.inlined_16_to_64::<PushRegister>(push_rm);
    t.inlined_memory_16_to_64::<PushMemory>(push_rm);
    t.inlined_16_to_64::<PopRegister>([Pop_r16, Pop_r32, Pop_r64]);
    let pop_rm = [Pop_rm16, Pop_rm32, Pop_rm64];
    t.inlined_16_to_64::<PopRegister>(pop_rm);
    t.inlined_memory_16_to_64::<PopMemory>(pop_rm);
    t.set_before_address([Pop_rm16], top::<u16>);
    t.set_before_address([Pop_rm32], top::<u32>);
    t.set_before_address([Pop_rm64], top::<u64>);
    t.handler([Pushaw], pusha::<u16>);
    t.handler([Pushad], pusha::<u32>);
    t.handler([Popaw], popa::<u16>);
    t.handler([Popad], popa::<u32>);
    t.handler([Pushfw], pushf::<u16>);
    t.handler([Pushfd], pushf::<u32>);
    t.handler([Pushfq], pushf::<u64>);
    t.handler([Popfw], popf::<u16>);
    t.handler([Popfd], popf::<u32>);
    t.handler([Popfq], popf::<u64>);
    t.inlined_16_to_64::<Leave>([Leavew, Leaved, Leaveq]);
    t.handler([Enterw_imm16_imm8], enter::<u16>);
    t.handler([Enterd_imm16_imm8], enter::<u32>);
    t.handler([Enterq_imm16_imm8], enter::<u64>);
}
