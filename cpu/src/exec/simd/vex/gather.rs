//! Gathers (SDM Vol. 2C, VPGATHERDD and its relatives).

use iced_x86::Code;

use super::mask::{Elements, effective_address};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// Size of an XMM register in bytes.
const XMM: usize = 16;

/// `I` is the type of an index, `T` that of an element, `N` their number.
///
/// The sign of each element of the mask first fills the element. Elements are loaded in their
/// order, and each has its mask cleared. A fault leaves those that were loaded, so that the
/// instruction continues with the others when it is executed again. There is no #AC.
fn gather<I: Int, T: Int, const N: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let indices = Elements::<I>::of(cpu, insn.src);
    let mut mask = Elements::<T>::of(cpu, insn.aux);
    let mut result = Elements::<T>::of(cpu, insn.dst);
    let width = XMM.max(N * I::BYTES.max(T::BYTES)) / T::BYTES;
    for i in 0..width {
        let is_set = mask.get(i).msb();
        mask.set(i, T::from_u64(if is_set { u64::MAX } else { 0 }));
    }
    mask.clear_from(width);
    let privilege = cpu.privilege.without_alignment();
    let mut was_loaded = false;
    for i in 0..N {
        if mask.get(i).msb() {
            let offset = indices.get(i).sext().wrapping_mul(insn.imm);
            let offset = effective_address(cpu, insn, offset);
            let la = cpu.linear_address(insn.seg, offset, T::BYTES as u32, false);
            match la.and_then(|la| cpu.load_as(la, privilege)) {
                Ok(element) => {
                    result.set(i, element);
                    was_loaded = true;
                }
                Err(abort) => {
                    // The manual clears the upper half at the end. Intel's processors do so with
                    // each element.
                    if was_loaded {
                        result.clear_from(width);
                    }
                    mask.put(cpu, insn.aux);
                    result.put(cpu, insn.dst);
                    return Err(abort);
                }
            }
        }
        mask.set(i, T::default());
    }
    mask.clear_from(N);
    result.clear_from(N);
    mask.put(cpu, insn.aux);
    result.put(cpu, insn.dst);
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([VEX_Vpgatherdd_xmm_vm32x_xmm, VEX_Vgatherdps_xmm_vm32x_xmm], gather::<u32, u32, 4>);
    t.handler([VEX_Vpgatherdd_ymm_vm32y_ymm, VEX_Vgatherdps_ymm_vm32y_ymm], gather::<u32, u32, 8>);
    t.handler([VEX_Vpgatherdq_xmm_vm32x_xmm, VEX_Vgatherdpd_xmm_vm32x_xmm], gather::<u32, u64, 2>);
    t.handler([VEX_Vpgatherdq_ymm_vm32x_ymm, VEX_Vgatherdpd_ymm_vm32x_ymm], gather::<u32, u64, 4>);
    t.handler([VEX_Vpgatherqd_xmm_vm64x_xmm, VEX_Vgatherqps_xmm_vm64x_xmm], gather::<u64, u32, 2>);
    t.handler([VEX_Vpgatherqd_xmm_vm64y_xmm, VEX_Vgatherqps_xmm_vm64y_xmm], gather::<u64, u32, 4>);
    t.handler([VEX_Vpgatherqq_xmm_vm64x_xmm, VEX_Vgatherqpd_xmm_vm64x_xmm], gather::<u64, u64, 2>);
    t.handler([VEX_Vpgatherqq_ymm_vm64y_ymm, VEX_Vgatherqpd_ymm_vm64y_ymm], gather::<u64, u64, 4>);
}
