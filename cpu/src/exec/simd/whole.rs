//! Moves of whole vector registers.
//!
//! Non-temporal moves are ordinary ones: this processor has no cache.

use iced_x86::Code;

use super::encoding::source;
use super::rows::{Form, Handlers, WideForm, ymm};
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

fn mov(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.set_xmm(insn.dst, cpu.xmm(insn.src));
    Ok(Flow::Next)
}

fn load_unaligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load128(cpu.ea(insn))?;
    cpu.set_xmm(insn.dst, v);
    Ok(Flow::Next)
}

fn load_aligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load_aligned(insn)?;
    cpu.set_xmm(insn.dst, v);
    Ok(Flow::Next)
}

fn store_unaligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.store128(cpu.ea(insn), cpu.xmm(insn.src))?;
    Ok(Flow::Next)
}

fn store_aligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let la = cpu.ea(insn);
    if la & 15 != 0 {
        return Err(cpu.gp(0));
    }
    cpu.store128(la, cpu.xmm(insn.src))?;
    Ok(Flow::Next)
}

fn load_lanes<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let v: [V; L] = source(cpu, insn, insn.src)?;
    cpu.set_lanes(insn.dst, v);
    Ok(Flow::Next)
}

fn load_aligned_lanes<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let la = cpu.aligned::<L>(insn)?;
    let v = cpu.load::<[u128; L]>(la)?;
    cpu.set_lanes(insn.dst, v.map(cast));
    Ok(Flow::Next)
}

#[inline(always)]
fn store_at<const L: usize>(cpu: &mut Cpu, insn: &Insn, la: u64) -> Exec {
    let v = cpu.lanes::<L>(insn.src).map(cast::<V, u128>);
    cpu.store(la, v)?;
    Ok(Flow::Next)
}

fn store_lanes<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let la = cpu.ea(insn);
    store_at::<L>(cpu, insn, la)
}

fn store_aligned_lanes<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let la = cpu.aligned::<L>(insn)?;
    store_at::<L>(cpu, insn, la)
}

/// To a register, from one or from memory that need not be aligned.
struct Load;

impl Form for Load {
    const NATIVE: Option<VectorForm> = Some(VectorForm::UNALIGNED);

    fn sse() -> Handlers {
        [mov, load_unaligned]
    }
    fn vex() -> Handlers {
        [load_lanes::<1>; 2]
    }
}

impl WideForm for Load {
    fn ymm() -> Handlers {
        [load_lanes::<2>; 2]
    }
}

/// From a register, to one or to memory that need not be aligned.
struct Store;

impl Form for Store {
    const NATIVE: Option<VectorForm> = Some(VectorForm::UNALIGNED);

    fn sse() -> Handlers {
        [mov, store_unaligned]
    }
    fn vex() -> Handlers {
        [load_lanes::<1>, store_lanes::<1>]
    }
}

impl WideForm for Store {
    fn ymm() -> Handlers {
        [load_lanes::<2>, store_lanes::<2>]
    }
}

/// To a register, from one or from memory that must be aligned.
struct LoadAligned;

impl Form for LoadAligned {
    const NATIVE_VEX: Option<VectorForm> = Some(VectorForm::ALIGNED);

    fn sse() -> Handlers {
        [mov, load_aligned]
    }
    fn vex() -> Handlers {
        [load_lanes::<1>, load_aligned_lanes::<1>]
    }
}

impl WideForm for LoadAligned {
    fn ymm() -> Handlers {
        [load_lanes::<2>, load_aligned_lanes::<2>]
    }
}

/// From a register, to one or to memory that must be aligned.
struct StoreAligned;

impl Form for StoreAligned {
    const NATIVE_VEX: Option<VectorForm> = Some(VectorForm::ALIGNED);

    fn sse() -> Handlers {
        [mov, store_aligned]
    }
    fn vex() -> Handlers {
        [load_lanes::<1>, store_aligned_lanes::<1>]
    }
}

impl WideForm for StoreAligned {
    fn ymm() -> Handlers {
        [load_lanes::<2>, store_aligned_lanes::<2>]
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, Load>(t, [Movups_xmm_xmmm128, VEX_Vmovups_xmm_xmmm128, VEX_Vmovups_ymm_ymmm256]);
    ymm::<B, Store>(t, [Movups_xmmm128_xmm, VEX_Vmovups_xmmm128_xmm, VEX_Vmovups_ymmm256_ymm]);
    ymm::<B, Load>(t, [Movupd_xmm_xmmm128, VEX_Vmovupd_xmm_xmmm128, VEX_Vmovupd_ymm_ymmm256]);
    ymm::<B, Store>(t, [Movupd_xmmm128_xmm, VEX_Vmovupd_xmmm128_xmm, VEX_Vmovupd_ymmm256_ymm]);
    ymm::<B, Load>(t, [Movdqu_xmm_xmmm128, VEX_Vmovdqu_xmm_xmmm128, VEX_Vmovdqu_ymm_ymmm256]);
    ymm::<B, Store>(t, [Movdqu_xmmm128_xmm, VEX_Vmovdqu_xmmm128_xmm, VEX_Vmovdqu_ymmm256_ymm]);
    ymm::<B, Load>(t, [Lddqu_xmm_m128, VEX_Vlddqu_xmm_m128, VEX_Vlddqu_ymm_m256]);
    ymm::<B, LoadAligned>(t, [Movaps_xmm_xmmm128, VEX_Vmovaps_xmm_xmmm128, VEX_Vmovaps_ymm_ymmm256]);
    ymm::<B, StoreAligned>(t, [Movaps_xmmm128_xmm, VEX_Vmovaps_xmmm128_xmm, VEX_Vmovaps_ymmm256_ymm]);
    ymm::<B, LoadAligned>(t, [Movapd_xmm_xmmm128, VEX_Vmovapd_xmm_xmmm128, VEX_Vmovapd_ymm_ymmm256]);
    ymm::<B, StoreAligned>(t, [Movapd_xmmm128_xmm, VEX_Vmovapd_xmmm128_xmm, VEX_Vmovapd_ymmm256_ymm]);
    ymm::<B, LoadAligned>(t, [Movdqa_xmm_xmmm128, VEX_Vmovdqa_xmm_xmmm128, VEX_Vmovdqa_ymm_ymmm256]);
    ymm::<B, StoreAligned>(t, [Movdqa_xmmm128_xmm, VEX_Vmovdqa_xmmm128_xmm, VEX_Vmovdqa_ymmm256_ymm]);
    ymm::<B, LoadAligned>(t, [Movntdqa_xmm_m128, VEX_Vmovntdqa_xmm_m128, VEX_Vmovntdqa_ymm_m256]);
    ymm::<B, StoreAligned>(t, [Movntps_m128_xmm, VEX_Vmovntps_m128_xmm, VEX_Vmovntps_m256_ymm]);
    ymm::<B, StoreAligned>(t, [Movntpd_m128_xmm, VEX_Vmovntpd_m128_xmm, VEX_Vmovntpd_m256_ymm]);
    ymm::<B, StoreAligned>(t, [Movntdq_m128_xmm, VEX_Vmovntdq_m128_xmm, VEX_Vmovntdq_m256_ymm]);
    // Native code executes them without the hint.
    t.native_as([Movntdqa_xmm_m128, VEX_Vmovntdqa_xmm_m128, VEX_Vmovntdqa_ymm_m256], [Movdqa_xmm_xmmm128, VEX_Vmovdqa_xmm_xmmm128, VEX_Vmovdqa_ymm_ymmm256]);
    t.native_as([Movntps_m128_xmm, VEX_Vmovntps_m128_xmm, VEX_Vmovntps_m256_ymm], [Movaps_xmmm128_xmm, VEX_Vmovaps_xmmm128_xmm, VEX_Vmovaps_ymmm256_ymm]);
    t.native_as([Movntpd_m128_xmm, VEX_Vmovntpd_m128_xmm, VEX_Vmovntpd_m256_ymm], [Movapd_xmmm128_xmm, VEX_Vmovapd_xmmm128_xmm, VEX_Vmovapd_ymmm256_ymm]);
    t.native_as([Movntdq_m128_xmm, VEX_Vmovntdq_m128_xmm, VEX_Vmovntdq_m256_ymm], [Movdqa_xmmm128_xmm, VEX_Vmovdqa_xmmm128_xmm, VEX_Vmovdqa_ymmm256_ymm]);
}
