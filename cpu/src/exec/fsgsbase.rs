//! The bases of FS and GS as registers (SDM Vol. 2B: RDFSBASE, RDGSBASE; Vol. 2C: WRFSBASE,
//! WRGSBASE).

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn, seg};
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::state::cr4;
use crate::state::int::Int;

/// Raises #UD unless CR4.FSGSBASE is set. The instructions exist in 64-bit mode only, which the
/// decoder knows.
fn check(cpu: &mut Cpu) -> Result<(), Abort> {
    match cpu.sys.cr4 & cr4::FSGSBASE {
        0 => Err(cpu.ud()),
        _ => Ok(()),
    }
}

fn read<T: Int, const SEGMENT: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    check(cpu)?;
    let base = cpu.seg_base(SEGMENT);
    cpu.w(insn.dst, T::from_u64(base));
    Ok(Flow::Next)
}

fn write<T: Int, const SEGMENT: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    check(cpu)?;
    let base = cpu.r::<T>(insn.dst).zext();
    if !canonical(base) {
        return Err(cpu.gp(0));
    }
    cpu.set_seg_base(SEGMENT.into(), base);
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Rdfsbase_r32], read::<u32, { seg::FS }>);
    t.handler([Rdfsbase_r64], read::<u64, { seg::FS }>);
    t.handler([Rdgsbase_r32], read::<u32, { seg::GS }>);
    t.handler([Rdgsbase_r64], read::<u64, { seg::GS }>);
    t.handler([Wrfsbase_r32], write::<u32, { seg::FS }>);
    t.handler([Wrfsbase_r64], write::<u64, { seg::FS }>);
    t.handler([Wrgsbase_r32], write::<u32, { seg::GS }>);
    t.handler([Wrgsbase_r64], write::<u64, { seg::GS }>);
}
