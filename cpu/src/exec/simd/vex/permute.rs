//! Permutations across the lanes, and within them.

use std::array::from_fn;

use iced_x86::Code;

use crate::exec::native::VectorForm;
use crate::exec::simd::encoding::source;
use crate::exec::simd::packed::{Binary, Unary, UnaryInSteps, packed};
use crate::exec::simd::rows::vex;
use crate::exec::simd::shuffle::{Pshufd, Shufpd};
use crate::exec::simd::{V, cast};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

packed! {
    /// VPERMILPS by a register: two bits of each element of `b` select.
    Permilps(a, b, _) => {
        let (a, b): ([u32; 4], [u32; 4]) = (cast(a), cast(b));
        cast(b.map(|n| a[n as usize & 3]))
    },
    /// VPERMILPD by a register: bit 1 of each element of `b` selects.
    Permilpd(a, b, _) => {
        let (a, b): ([u64; 2], [u64; 2]) = (cast(a), cast(b));
        cast(b.map(|n| a[n as usize >> 1 & 1]))
    },
}

/// VPERMD and VPERMPS: three bits of each element of the first source select one of the second.
fn permute_singles(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let from: [V; 2] = source(cpu, insn, insn.aux)?;
    let from = from.map(cast::<V, [u32; 4]>);
    let by = cpu.lanes::<2>(insn.src).map(cast::<V, [u32; 4]>);
    let pick = |n: u32| from[n as usize >> 2 & 1][n as usize & 3];
    cpu.set_lanes(insn.dst, by.map(|by| cast(by.map(pick))));
    Ok(Flow::Next)
}

/// VPERMQ and VPERMPD: two bits of the immediate select each element.
fn permute_doubles(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let from: [V; 2] = source(cpu, insn, insn.src)?;
    let from = from.map(cast::<V, [u64; 2]>);
    let pick = |i: usize| {
        let n = (insn.imm >> (2 * i)) as usize;
        from[n >> 1 & 1][n & 1]
    };
    let r = [cast([pick(0), pick(1)]), cast([pick(2), pick(3)])];
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// VPERM2F128 and VPERM2I128: four bits of the immediate select each lane, or clear it.
fn permute_lanes(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; 2] = source(cpu, insn, insn.aux)?;
    let a = cpu.lanes::<2>(insn.src);
    let r = from_fn(|i| {
        let n = (insn.imm >> (4 * i)) as usize & 15;
        match n {
            8.. => cast(0u128),
            _ if n & 2 != 0 => b[n & 1],
            _ => a[n & 1],
        }
    });
    cpu.set_lanes::<2>(insn.dst, r);
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    vex::<B, Binary<Permilps>>(t, [VEX_Vpermilps_xmm_xmm_xmmm128, VEX_Vpermilps_ymm_ymm_ymmm256]);
    vex::<B, Binary<Permilpd>>(t, [VEX_Vpermilpd_xmm_xmm_xmmm128, VEX_Vpermilpd_ymm_ymm_ymmm256]);
    vex::<B, Unary<Pshufd>>(t, [VEX_Vpermilps_xmm_xmmm128_imm8, VEX_Vpermilps_ymm_ymmm256_imm8]);
    // VPERMILPD by an immediate is SHUFPD with both sources the same.
    vex::<B, UnaryInSteps<Shufpd, 2>>(t, [VEX_Vpermilpd_xmm_xmmm128_imm8, VEX_Vpermilpd_ymm_ymmm256_imm8]);
    t.handler([VEX_Vpermd_ymm_ymm_ymmm256, VEX_Vpermps_ymm_ymm_ymmm256], permute_singles).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpermq_ymm_ymmm256_imm8, VEX_Vpermpd_ymm_ymmm256_imm8], permute_doubles).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, VEX_Vperm2i128_ymm_ymm_ymmm256_imm8], permute_lanes).vector(VectorForm::UNALIGNED);
}
