//! The stack: PUSH, POP, PUSHF, POPF, ENTER, LEAVE.

use iced_x86::{Code, Instruction, Mnemonic, OpKind};

use super::operand_size;
use crate::backend::interpreter::dispatch::{Threaded, handler, memory};
use crate::exec::Handler;
use crate::insn::{Abort, Exec, Flow, Insn, seg};
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::state::flags::Int;
use crate::state::gpr::{RBP, RSP};
use crate::state::vector;
use crate::state::{SegAttr, rflags};

/// By operand size in bytes: 2, 4 or 8.
macro_rules! by_width {
    ($way:ident, $size:expr, $f:ident) => {
        match $size {
            2 => $way!($f, u16),
            4 => $way!($f, u32),
            _ => $way!($f, u64),
        }
    };
}

impl Cpu {
    /// Bits of RSP that address the stack: all in 64-bit mode, else as SS.B says (SDM Vol. 1
    /// 6.2.3).
    #[inline(always)]
    fn stack_mask(&self) -> u64 {
        if self.code64 {
            u64::MAX
        } else if self.sys.seg[2].attr.contains(SegAttr::DB) {
            0xFFFF_FFFF
        } else {
            0xFFFF
        }
    }

    /// Linear address of `T` at stack offset `sp`, which the stack segment must allow.
    #[inline(always)]
    fn stack_address<T: Int>(&mut self, sp: u64, write: bool) -> Result<u64, Abort> {
        if self.code64 {
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

    /// The same, with `HIT` only where the TLB has it.
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

    /// The same, with `HIT` only where the TLB has it.
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

    /// The same, with `HIT` only where the TLB has it.
    #[inline(always)]
    fn pop_if<const HIT: bool, T: Int>(&mut self) -> Result<T, Abort> {
        let v = self.peek_if::<HIT, T>(0)?;
        self.drop_stack(T::BYTES as u64);
        Ok(v)
    }
}

fn push_reg<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.push_if::<HIT, T>(cpu.r(insn.dst))?;
    Ok(Flow::Next)
}

fn push_imm<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.push_if::<HIT, T>(T::from_u64(insn.imm))?;
    Ok(Flow::Next)
}

fn push_mem<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.load_if::<HIT, T>(cpu.ea(insn))?;
    cpu.push_if::<HIT, T>(v)?;
    Ok(Flow::Next)
}

fn pop_reg<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.pop_if::<HIT, T>()?;
    cpu.w(insn.dst, v);
    Ok(Flow::Next)
}

/// POP to memory: an address relative to RSP uses its value after the pop (SDM Vol. 2B, POP).
fn pop_mem<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let before = cpu.gpr[RSP];
    let v = cpu.pop_if::<HIT, T>()?;
    let la = cpu.ea(insn);
    if let Err(e) = cpu.store_if::<HIT, T>(la, v) {
        cpu.gpr[RSP] = before;
        return Err(e);
    }
    Ok(Flow::Next)
}

/// Faults as the read of the top of the stack does.
fn top<T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.peek::<T>(0)?;
    Ok(Flow::Next)
}

/// The operation that precedes the address operation, if one does: POP reads the stack first.
pub(super) fn before_address(i: &Instruction) -> Option<Handler> {
    (i.mnemonic() == Mnemonic::Pop).then(|| by_width!(handler, i.memory_size().size(), top))
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
    let f = cpu.rflags() & !(rflags::VM | rflags::RF);
    cpu.push(T::from_u64(f))?;
    Ok(Flow::Next)
}

/// POPF: IOPL changes at CPL 0 only, IF if CPL <= IOPL (SDM Vol. 2B, POPF).
fn popf<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let image = cpu.pop::<T>()?.zext();
    let mut mask = rflags::ARITH | rflags::TF | rflags::DF | rflags::NT | rflags::AC | rflags::ID;
    let iopl = (cpu.eflags & rflags::IOPL) >> 12;
    if cpu.cpl == 0 {
        mask |= rflags::IOPL;
    }
    if u64::from(cpu.cpl) <= iopl {
        mask |= rflags::IF;
    }
    if T::BITS == 16 {
        mask &= 0xFFFF;
    }
    cpu.set_rflags(image, mask | rflags::RF);
    // IF and TF matter from the next instruction on.
    cpu.end_block(insn)
}

/// LEAVE.
fn leave<const HIT: bool, T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
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

fn push(i: &Instruction) -> Option<Threaded> {
    Some(match i.op0_kind() {
        OpKind::Register if i.op0_register().is_gpr() => {
            by_width!(memory, operand_size(i, 0), push_reg)
        }
        OpKind::Register => return None,
        OpKind::Memory => by_width!(memory, operand_size(i, 0), push_mem),
        _ => by_width!(memory, i.stack_pointer_increment().unsigned_abs(), push_imm),
    })
}

fn pop(i: &Instruction) -> Option<Threaded> {
    Some(match i.op0_kind() {
        OpKind::Register if i.op0_register().is_gpr() => {
            by_width!(memory, operand_size(i, 0), pop_reg)
        }
        OpKind::Memory => by_width!(memory, operand_size(i, 0), pop_mem),
        _ => return None,
    })
}

/// Selects frequent instructions.
pub(super) fn threaded(i: &Instruction, _: &Insn) -> Option<Threaded> {
    match i.code() {
        Code::Leavew => Some(memory!(leave, u16)),
        Code::Leaved => Some(memory!(leave, u32)),
        Code::Leaveq => Some(memory!(leave, u64)),
        _ => match i.mnemonic() {
            Mnemonic::Push => push(i),
            Mnemonic::Pop => pop(i),
            _ => None,
        },
    }
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction, _: &Insn) -> Option<Handler> {
    Some(match i.code() {
        Code::Pushaw => pusha::<u16>,
        Code::Pushad => pusha::<u32>,
        Code::Popaw => popa::<u16>,
        Code::Popad => popa::<u32>,
        Code::Pushfw => pushf::<u16>,
        Code::Pushfd => pushf::<u32>,
        Code::Pushfq => pushf::<u64>,
        Code::Popfw => popf::<u16>,
        Code::Popfd => popf::<u32>,
        Code::Popfq => popf::<u64>,
        Code::Enterw_imm16_imm8 | Code::Enterd_imm16_imm8 | Code::Enterq_imm16_imm8 => {
            match i.code() {
                Code::Enterw_imm16_imm8 => enter::<u16>,
                Code::Enterd_imm16_imm8 => enter::<u32>,
                _ => enter::<u64>,
            }
        }
        _ => return None,
    })
}
