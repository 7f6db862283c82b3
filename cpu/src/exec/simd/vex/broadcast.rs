//! Broadcasts, and moves between the lanes of a register and another operand.

use iced_x86::Code;

use crate::exec::native::VectorForm;
use crate::exec::simd::{V, cast};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// VBROADCASTSS and its relatives: the lowest element, in each element.
fn broadcast<T: Int, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let element = if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))?
    } else {
        T::from_u64(cpu.xmm(insn.src) as u64)
    };
    let ones = u128::MAX / u128::from(T::from_u64(u64::MAX).zext());
    let lane = u128::from(element.zext()) * ones;
    cpu.set_lanes::<L>(insn.dst, [cast(lane); L]);
    Ok(Flow::Next)
}

/// VBROADCASTF128 and VBROADCASTI128.
fn broadcast_lane(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let lane = cpu.load128(cpu.ea(insn))?;
    cpu.set_ymm(insn.dst, lane, lane);
    Ok(Flow::Next)
}

/// VINSERTF128 and VINSERTI128.
fn insert_lane(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let lane = if insn.prefix & Insn::MEM != 0 {
        cpu.load128(cpu.ea(insn))?
    } else {
        cpu.xmm(insn.aux)
    };
    let mut r: [V; 2] = cpu.lanes(insn.src);
    r[(insn.imm & 1) as usize] = cast(lane);
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// VEXTRACTF128 and VEXTRACTI128.
fn extract_lane(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let lane = cast(cpu.lanes::<2>(insn.src)[(insn.imm & 1) as usize]);
    if insn.prefix & Insn::MEM != 0 {
        cpu.store128(cpu.ea(insn), lane)?;
    } else {
        cpu.set_ymm(insn.dst, lane, 0);
    }
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([VEX_Vpbroadcastb_xmm_xmmm8], broadcast::<u8, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpbroadcastb_ymm_xmmm8], broadcast::<u8, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpbroadcastw_xmm_xmmm16], broadcast::<u16, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpbroadcastw_ymm_xmmm16], broadcast::<u16, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpbroadcastd_xmm_xmmm32, VEX_Vbroadcastss_xmm_m32, VEX_Vbroadcastss_xmm_xmm], broadcast::<u32, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpbroadcastd_ymm_xmmm32, VEX_Vbroadcastss_ymm_m32, VEX_Vbroadcastss_ymm_xmm], broadcast::<u32, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpbroadcastq_xmm_xmmm64], broadcast::<u64, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpbroadcastq_ymm_xmmm64, VEX_Vbroadcastsd_ymm_m64, VEX_Vbroadcastsd_ymm_xmm], broadcast::<u64, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vbroadcastf128_ymm_m128, VEX_Vbroadcasti128_ymm_m128], broadcast_lane).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vinsertf128_ymm_ymm_xmmm128_imm8, VEX_Vinserti128_ymm_ymm_xmmm128_imm8], insert_lane).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vextractf128_xmmm128_ymm_imm8, VEX_Vextracti128_xmmm128_ymm_imm8], extract_lane).vector(VectorForm::UNALIGNED);
}
