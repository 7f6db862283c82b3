//! Moves of the elements that the signs of a mask select (SDM Vol. 2C, VMASKMOV and VPMASKMOV).

use std::marker::PhantomData;

use iced_x86::Code;

use crate::exec::native::VectorForm;
use crate::exec::simd::{V, cast};
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// The elements of type `T` of a YMM register.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elements<T>([u64; 4], PhantomData<T>);

impl<T: Int> Elements<T> {
    const IN_WORD: usize = 64 / T::BITS as usize;

    #[inline(always)]
    pub(super) fn of(cpu: &Cpu, register: u8) -> Self {
        let [lower, upper] = cpu.lanes::<2>(register).map(cast::<V, [u64; 2]>);
        Self([lower[0], lower[1], upper[0], upper[1]], PhantomData)
    }

    #[inline(always)]
    pub(super) fn zero() -> Self {
        Self([0; 4], PhantomData)
    }

    #[inline(always)]
    fn shift(i: usize) -> u32 {
        T::BITS * (i % Self::IN_WORD) as u32
    }

    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> T {
        T::from_u64(self.0[i / Self::IN_WORD] >> Self::shift(i))
    }

    #[inline(always)]
    pub(super) fn set(&mut self, i: usize, element: T) {
        let ones = T::from_u64(u64::MAX).zext() << Self::shift(i);
        let word = &mut self.0[i / Self::IN_WORD];
        *word = *word & !ones | element.zext() << Self::shift(i);
    }

    /// Clears the elements from the `n`th on.
    #[inline(always)]
    pub(super) fn clear_from(&mut self, n: usize) {
        for i in n..4 * Self::IN_WORD {
            self.set(i, T::default());
        }
    }

    #[inline(always)]
    pub(super) fn put(self, cpu: &mut Cpu, register: u8) {
        let [a, b, c, d] = self.0;
        cpu.set_lanes(register, [cast([a, b]), cast([c, d])]);
    }
}

// Only what is selected can fault, and there is no #AC.

/// The effective address of the memory operand, and `offset`.
pub(super) fn effective_address(cpu: &mut Cpu, insn: &Insn, offset: u64) -> u64 {
    let relative = match insn.base {
        reg::BLOCK => insn.next_offset(),
        _ => 0,
    };
    let offset = cpu.ea(insn).wrapping_add(relative).wrapping_add(offset);
    match insn.prefix & (Insn::A16 | Insn::A32) {
        0 => offset,
        Insn::A32 => offset & 0xFFFF_FFFF,
        _ => offset & 0xFFFF,
    }
}

/// Linear address of the `i`th of elements that follow each other. As in other operands, their
/// addresses do not wrap around at the address size.
fn at<T: Int>(cpu: &mut Cpu, insn: &Insn, i: usize, write: bool) -> Result<u64, Abort> {
    let offset = effective_address(cpu, insn, 0).wrapping_add((i * T::BYTES) as u64);
    cpu.linear_address(insn.seg, offset, T::BYTES as u32, write)
}

/// Loads the selected ones of `N` elements, and zeros for the others.
fn masked_load<T: Int, const N: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let mask = Elements::<T>::of(cpu, insn.src);
    let mut result = Elements::<T>::zero();
    for i in (0..N).filter(|i| mask.get(*i).msb()) {
        let la = at::<T>(cpu, insn, i, false)?;
        result.set(i, cpu.load_as(la, cpu.privilege.without_alignment())?);
    }
    result.put(cpu, insn.dst);
    Ok(Flow::Next)
}

/// Stores the selected ones of `N` elements, all or none.
fn masked_store<T: Int, const N: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let mask = Elements::<T>::of(cpu, insn.src);
    let values = Elements::<T>::of(cpu, insn.aux);
    let selected = || (0..N).filter(|i| mask.get(*i).msb());
    let privilege = cpu.privilege.without_alignment();
    for i in selected() {
        let la = at::<T>(cpu, insn, i, true)?;
        cpu.check_writable_as(la, T::BYTES, T::BYTES, privilege)?;
    }
    for i in selected() {
        let la = at::<T>(cpu, insn, i, true)?;
        cpu.store_as(la, values.get(i), privilege)?;
    }
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([VEX_Vmaskmovps_xmm_xmm_m128, VEX_Vpmaskmovd_xmm_xmm_m128], masked_load::<u32, 4>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovps_ymm_ymm_m256, VEX_Vpmaskmovd_ymm_ymm_m256], masked_load::<u32, 8>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_xmm_xmm_m128, VEX_Vpmaskmovq_xmm_xmm_m128], masked_load::<u64, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_ymm_ymm_m256, VEX_Vpmaskmovq_ymm_ymm_m256], masked_load::<u64, 4>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovps_m128_xmm_xmm, VEX_Vpmaskmovd_m128_xmm_xmm], masked_store::<u32, 4>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovps_m256_ymm_ymm, VEX_Vpmaskmovd_m256_ymm_ymm], masked_store::<u32, 8>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_m128_xmm_xmm, VEX_Vpmaskmovq_m128_xmm_xmm], masked_store::<u64, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_m256_ymm_ymm, VEX_Vpmaskmovq_m256_ymm_ymm], masked_store::<u64, 4>).vector(VectorForm::UNALIGNED);
}
