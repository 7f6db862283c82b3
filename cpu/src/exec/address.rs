//! Address operations: they compute the address of a memory operand where it is truncated (address
//! sizes of 16 and 32 bits) or where its segment has a limit and a type (outside 64-bit mode; SDM
//! Vol. 3A 5.3, 5.5).

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use crate::exec::table::Handler;
use crate::insn::{Abort, CodeSize, Exec, Flow, Insn, reg, seg};
use crate::processor::cpu::Cpu;
use crate::state::{SegAttr, Segment, vector};

/// [`access`]: the instruction writes its memory operand.
const WRITE: u32 = 1 << 16;

/// Size of the memory operand in bytes, and [`WRITE`] if it is written: the `imm` of an address
/// operation.
pub(crate) fn access(insn: &Instruction) -> u32 {
    let size = insn.memory_size().size().max(1) as u32;
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(insn);
    let written = (0..insn.op_count()).any(|n| {
        insn.op_kind(n) == OpKind::Memory
            && matches!(
                info.op_access(n),
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
    });
    size | if written { WRITE } else { 0 }
}

/// Selects the address operation for a memory operand.
pub(crate) fn select(insn: &Instruction, code: CodeSize) -> Handler {
    let lea = insn.mnemonic() == Mnemonic::Lea;
    match (code, lea) {
        (_, true) => effective,
        (CodeSize::Bits64, _) => long,
        _ => segmented,
    }
}

fn truncated(cpu: &Cpu, insn: &Insn) -> u64 {
    let offset = cpu.ea(insn);
    if insn.prefix & Insn::A16 != 0 {
        offset & 0xFFFF
    } else {
        offset & 0xFFFF_FFFF
    }
}

/// LEA: no segment base is added.
fn effective(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.gpr[reg::TMP as usize] = truncated(cpu, insn);
    Ok(Flow::Next)
}

/// An offset of 64 bits to which the base of a segment is added, or that has a displacement, in
/// `imm`, of more than 32 bits.
pub(crate) fn offset(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.gpr[reg::TMP as usize] = cpu.ea(insn).wrapping_add(insn.imm);
    Ok(Flow::Next)
}

/// An address of 32 bits in 64-bit mode.
fn long(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let base = cpu.seg_base(insn.seg);
    cpu.gpr[reg::TMP as usize] = truncated(cpu, insn).wrapping_add(base);
    Ok(Flow::Next)
}

/// An address outside 64-bit mode, where the segment must allow the access.
fn segmented(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let offset = truncated(cpu, insn);
    let la = cpu.segment_address(
        insn.seg,
        offset,
        insn.imm as u32 & !WRITE,
        insn.imm as u32 & WRITE != 0,
    )?;
    cpu.gpr[reg::TMP as usize] = la;
    Ok(Flow::Next)
}

/// Whether a segment allows an access outside 64-bit mode (SDM Vol. 3A 5.3, 5.5).
fn allows(s: &Segment, offset: u64, size: u32, write: bool) -> bool {
    if s.attr.intersects(SegAttr::UNUSABLE) {
        return false;
    }
    let code = s.attr.contains(SegAttr::CODE);
    let rw = s.attr.contains(SegAttr::RW);
    // Code segments are never writable; data segments are always readable.
    let allowed = if write { rw && !code } else { rw || !code };
    allowed && s.within_limit(offset, size.into())
}

/// The bits that the instruction's address size (`aux`, in bits) leaves of an index or count
/// register.
#[inline(always)]
pub(super) fn address_mask(insn: &Insn) -> u64 {
    match insn.aux {
        16 => 0xFFFF,
        32 => 0xFFFF_FFFF,
        _ => u64::MAX,
    }
}

impl Cpu {
    /// An index or count register at the instruction's address size (`aux`, in bits).
    #[inline(always)]
    pub(super) fn index(&self, insn: &Insn, id: usize) -> u64 {
        self.gpr[id] & address_mask(insn)
    }

    /// Writes an index or count register at the instruction's address size (`aux`, in bits).
    #[inline(always)]
    pub(super) fn set_index(&mut self, insn: &Insn, id: usize, v: u64) {
        match insn.aux {
            16 => self.w(id as u8, v as u16),
            32 => self.w(id as u8, v as u32),
            _ => self.gpr[id] = v,
        }
    }

    /// Linear address of `size` bytes at an offset in a segment, which must allow the access. In
    /// 64-bit mode only FS and GS have a base, and no segment has a limit (SDM Vol. 1 3.4.4).
    #[inline(always)]
    pub(super) fn linear_address(
        &mut self,
        segment: u8,
        offset: u64,
        size: u32,
        write: bool,
    ) -> Result<u64, Abort> {
        if !self.in_64_bit_mode() {
            return self.segment_address(segment, offset, size, write);
        }
        let base = match segment {
            seg::FS | seg::GS => self.seg_base(segment),
            _ => 0,
        };
        Ok(base.wrapping_add(offset))
    }

    /// Linear address of `size` bytes at an offset in a segment outside 64-bit mode; #SS(0) or
    /// #GP(0) if the segment does not allow the access.
    pub(crate) fn segment_address(
        &mut self,
        segment: u8,
        offset: u64,
        size: u32,
        write: bool,
    ) -> Result<u64, Abort> {
        let s = self.segment(segment.min(seg::GS).into());
        if !allows(&s, offset, size, write) {
            let vector = if segment == seg::SS {
                vector::SS
            } else {
                vector::GP
            };
            return Err(self.exception(vector, Some(0)));
        }
        Ok(s.base.wrapping_add(offset) & 0xFFFF_FFFF)
    }
}
