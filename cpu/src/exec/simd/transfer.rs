//! Moves between registers and memory, single elements, masks; fences and hints.

use iced_x86::{Code, Instruction, Mnemonic, OpKind};

use super::sse2::{byte_signs, double_signs, single_signs};
use super::{V, cast};
use crate::decode::address_size;
use crate::exec::operand_size;
use crate::exec::string::source_segment;
use crate::insn::{Abort, Exec, Flow, Handler, Op};
use crate::processor::cpu::Cpu;
use crate::state::flags::Int;
use crate::state::gpr;

const LOW: u128 = u64::MAX as u128;

// Whole registers

fn mov(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.set_xmm(op.dst, cpu.xmm(op.src));
    Ok(Flow::Next)
}

fn load_unaligned(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load128(cpu.ea(op))?;
    cpu.set_xmm(op.dst, v);
    Ok(Flow::Next)
}

fn load_aligned(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load_aligned(op)?;
    cpu.set_xmm(op.dst, v);
    Ok(Flow::Next)
}

fn store_unaligned(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.store128(cpu.ea(op), cpu.xmm(op.src))?;
    Ok(Flow::Next)
}

fn store_aligned(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let la = cpu.ea(op);
    if la & 15 != 0 {
        return Err(cpu.gp(0));
    }
    cpu.store128(la, cpu.xmm(op.src))?;
    Ok(Flow::Next)
}

// Parts of registers

/// The source's low bits, those of `mask`, replace the destination's.
#[inline(always)]
fn merge(cpu: &mut Cpu, op: &Op, value: u128, mask: u128) {
    cpu.set_xmm(op.dst, cpu.xmm(op.dst) & !mask | value & mask);
}

fn movss_reg(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    merge(cpu, op, cpu.xmm(op.src), u32::MAX.into());
    Ok(Flow::Next)
}

fn movsd_reg(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    merge(cpu, op, cpu.xmm(op.src), LOW);
    Ok(Flow::Next)
}

fn movhlps(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    merge(cpu, op, cpu.xmm(op.src) >> 64, LOW);
    Ok(Flow::Next)
}

fn movlhps(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    merge(cpu, op, cpu.xmm(op.src) << 64, !LOW);
    Ok(Flow::Next)
}

fn movlps_load(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load::<u64>(cpu.ea(op))?;
    merge(cpu, op, v.into(), LOW);
    Ok(Flow::Next)
}

fn movhps_load(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load::<u64>(cpu.ea(op))?;
    merge(cpu, op, u128::from(v) << 64, !LOW);
    Ok(Flow::Next)
}

fn movhps_store(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.store(cpu.ea(op), (cpu.xmm(op.src) >> 64) as u64)?;
    Ok(Flow::Next)
}

/// MOVSS, MOVSD, MOVD and MOVQ from memory: zero above.
fn load_low<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load::<T>(cpu.ea(op))?.zext();
    cpu.set_xmm(op.dst, v.into());
    Ok(Flow::Next)
}

fn store_low<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.store(cpu.ea(op), T::from_u64(cpu.xmm(op.src) as u64))?;
    Ok(Flow::Next)
}

/// MOVQ between XMM registers: zero above.
fn movq_reg(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.set_xmm(op.dst, cpu.xmm(op.src) & LOW);
    Ok(Flow::Next)
}

fn xmm_from_gpr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let v = cpu.r::<T>(op.src).zext();
    cpu.set_xmm(op.dst, v.into());
    Ok(Flow::Next)
}

fn gpr_from_xmm<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.w(op.dst, T::from_u64(cpu.xmm(op.src) as u64));
    Ok(Flow::Next)
}

// MMX registers

fn mm_from_gpr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    let v = cpu.r::<T>(op.src).zext();
    cpu.x87.set_mm(op.dst, v);
    Ok(Flow::Next)
}

fn gpr_from_mm<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    cpu.w(op.dst, T::from_u64(cpu.x87.mm(op.src)));
    Ok(Flow::Next)
}

fn mm_load<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    let v = cpu.load::<T>(cpu.ea(op))?.zext();
    cpu.x87.set_mm(op.dst, v);
    Ok(Flow::Next)
}

fn mm_store<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    cpu.store(cpu.ea(op), T::from_u64(cpu.x87.mm(op.src)))?;
    cpu.x87.enter_mmx();
    Ok(Flow::Next)
}

fn mm_mov(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    let v = cpu.x87.mm(op.src);
    cpu.x87.set_mm(op.dst, v);
    Ok(Flow::Next)
}

fn movq2dq(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    cpu.set_xmm(op.dst, cpu.x87.mm(op.src).into());
    Ok(Flow::Next)
}

fn movdq2q(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    cpu.x87.set_mm(op.dst, cpu.xmm(op.src) as u64);
    Ok(Flow::Next)
}

fn emms(cpu: &mut Cpu, _: &Op) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.leave_mmx();
    Ok(Flow::Next)
}

// Words, and masks of signs

fn pinsrw(old: u128, word: u16, n: u64) -> u128 {
    let shift = 16 * (n & 7) as u32;
    old & !(0xFFFF << shift) | u128::from(word) << shift
}

fn pinsrw_xmm_reg(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    cpu.set_xmm(op.dst, pinsrw(cpu.xmm(op.dst), cpu.r(op.src), op.imm));
    Ok(Flow::Next)
}

fn pinsrw_xmm_mem(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let word = cpu.load(cpu.ea(op))?;
    cpu.set_xmm(op.dst, pinsrw(cpu.xmm(op.dst), word, op.imm));
    Ok(Flow::Next)
}

fn pinsrw_mm_reg(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    let r = pinsrw(cpu.x87.mm(op.dst).into(), cpu.r(op.src), op.imm & 3);
    cpu.x87.set_mm(op.dst, r as u64);
    Ok(Flow::Next)
}

fn pinsrw_mm_mem(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    let word = cpu.load(cpu.ea(op))?;
    let r = pinsrw(cpu.x87.mm(op.dst).into(), word, op.imm & 3);
    cpu.x87.set_mm(op.dst, r as u64);
    Ok(Flow::Next)
}

fn pextrw_xmm(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    let word = (cpu.xmm(op.src) >> (16 * (op.imm & 7))) as u16;
    cpu.w(op.dst, u64::from(word));
    Ok(Flow::Next)
}

fn pextrw_mm(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    let word = (cpu.x87.mm(op.src) >> (16 * (op.imm & 3))) as u16;
    cpu.w(op.dst, u64::from(word));
    Ok(Flow::Next)
}

fn pmovmskb_mm(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    cpu.w(op.dst, byte_signs(cast(u128::from(cpu.x87.mm(op.src)))));
    Ok(Flow::Next)
}

#[inline(always)]
fn xmm_signs(cpu: &mut Cpu, op: &Op, signs: impl Fn(V) -> u64) -> Exec {
    cpu.need_sse()?;
    cpu.w(op.dst, signs(cpu.v(op.src)));
    Ok(Flow::Next)
}

fn pmovmskb_xmm(cpu: &mut Cpu, op: &Op) -> Exec {
    xmm_signs(cpu, op, byte_signs)
}

fn movmskps(cpu: &mut Cpu, op: &Op) -> Exec {
    xmm_signs(cpu, op, single_signs)
}

fn movmskpd(cpu: &mut Cpu, op: &Op) -> Exec {
    xmm_signs(cpu, op, double_signs)
}

/// Linear address of byte `n` at rDI; the address size is in `dst`.
fn at_rdi(cpu: &mut Cpu, op: &Op, n: u64) -> Result<u64, Abort> {
    let size = u64::MAX >> (64 - u32::from(op.dst));
    let offset = (cpu.gpr[gpr::RDI] & size).wrapping_add(n) & size;
    if cpu.code64 {
        return Ok(offset.wrapping_add(cpu.seg_base(op.seg)));
    }
    cpu.segment_address(op.seg, offset, 1, true)
}

/// Stores the bytes of `value` whose byte of `mask` has its sign set, all or none.
fn masked_store<const N: usize>(cpu: &mut Cpu, op: &Op, value: u128, mask: u128) -> Exec {
    let (value, mask): ([u8; 16], [u8; 16]) = (cast(value), cast(mask));
    let mut selected = [(0, 0); N];
    let mut count = 0;
    for (i, (&byte, _)) in value
        .iter()
        .zip(&mask)
        .enumerate()
        .take(N)
        .filter(|(_, (_, m))| **m & 0x80 != 0)
    {
        let la = at_rdi(cpu, op, i as u64)?;
        cpu.check_writable(la, 1)?;
        selected[count] = (la, byte);
        count += 1;
    }
    for &(la, byte) in &selected[..count] {
        cpu.store(la, byte)?;
    }
    Ok(Flow::Next)
}

fn maskmovdqu(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_sse()?;
    masked_store::<16>(cpu, op, cpu.xmm(op.src), cpu.xmm(op.aux))
}

fn maskmovq(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.need_mmx()?;
    let (value, mask) = (cpu.x87.mm(op.src), cpu.x87.mm(op.aux));
    masked_store::<8>(cpu, op, value.into(), mask.into())?;
    cpu.x87.enter_mmx();
    Ok(Flow::Next)
}

// No vector registers

fn movnti<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    cpu.store(cpu.ea(op), cpu.r::<T>(op.src))?;
    Ok(Flow::Next)
}

/// Fences: memory is in order. Prefetches: hints, which do not fault.
fn nothing(_: &mut Cpu, _: &Op) -> Exec {
    Ok(Flow::Next)
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let load = i.op1_kind() == OpKind::Memory;
    let store = i.op0_kind() == OpKind::Memory;
    macro_rules! form {
        ($reg:expr, $load:expr) => {
            if load { $load as Handler } else { $reg }
        };
        ($reg:expr, $load:expr, $store:expr) => {
            if store { $store } else { form!($reg, $load) }
        };
    }
    Some(match i.code() {
        // These share mnemonics with other families, or with each other.
        Code::Movsd_xmm_xmmm64 | Code::Movsd_xmmm64_xmm => {
            form!(movsd_reg, load_low::<u64>, store_low::<u64>)
        }
        Code::Movd_xmm_rm32 => form!(xmm_from_gpr::<u32>, load_low::<u32>),
        Code::Movq_xmm_rm64 => form!(xmm_from_gpr::<u64>, load_low::<u64>),
        Code::Movd_rm32_xmm => form!(gpr_from_xmm::<u32>, gpr_from_xmm::<u32>, store_low::<u32>),
        Code::Movq_rm64_xmm => form!(gpr_from_xmm::<u64>, gpr_from_xmm::<u64>, store_low::<u64>),
        Code::Movq_xmm_xmmm64 | Code::Movq_xmmm64_xmm => {
            form!(movq_reg, load_low::<u64>, store_low::<u64>)
        }
        Code::Movd_mm_rm32 => form!(mm_from_gpr::<u32>, mm_load::<u32>),
        Code::Movq_mm_rm64 => form!(mm_from_gpr::<u64>, mm_load::<u64>),
        Code::Movd_rm32_mm => form!(gpr_from_mm::<u32>, gpr_from_mm::<u32>, mm_store::<u32>),
        Code::Movq_rm64_mm => form!(gpr_from_mm::<u64>, gpr_from_mm::<u64>, mm_store::<u64>),
        Code::Movq_mm_mmm64 | Code::Movq_mmm64_mm => {
            form!(mm_mov, mm_load::<u64>, mm_store::<u64>)
        }
        _ => match i.mnemonic() {
            Mnemonic::Movaps | Mnemonic::Movapd | Mnemonic::Movdqa => {
                form!(mov, load_aligned, store_aligned)
            }
            Mnemonic::Movups | Mnemonic::Movupd | Mnemonic::Movdqu => {
                form!(mov, load_unaligned, store_unaligned)
            }
            Mnemonic::Lddqu => load_unaligned,
            Mnemonic::Movntps | Mnemonic::Movntpd | Mnemonic::Movntdq => store_aligned,
            Mnemonic::Movss => form!(movss_reg, load_low::<u32>, store_low::<u32>),
            Mnemonic::Movhlps => movhlps,
            Mnemonic::Movlhps => movlhps,
            Mnemonic::Movlps | Mnemonic::Movlpd => {
                if store {
                    store_low::<u64>
                } else {
                    movlps_load
                }
            }
            Mnemonic::Movhps | Mnemonic::Movhpd => {
                if store {
                    movhps_store
                } else {
                    movhps_load
                }
            }
            Mnemonic::Movntq => mm_store::<u64>,
            Mnemonic::Movq2dq => movq2dq,
            Mnemonic::Movdq2q => movdq2q,
            Mnemonic::Emms => emms,
            Mnemonic::Pinsrw if i.op0_register().is_mm() => form!(pinsrw_mm_reg, pinsrw_mm_mem),
            Mnemonic::Pinsrw => form!(pinsrw_xmm_reg, pinsrw_xmm_mem),
            Mnemonic::Pextrw if i.op1_register().is_mm() => pextrw_mm,
            Mnemonic::Pextrw => pextrw_xmm,
            Mnemonic::Pmovmskb if i.op1_register().is_mm() => pmovmskb_mm,
            Mnemonic::Pmovmskb => pmovmskb_xmm,
            Mnemonic::Movmskps => movmskps,
            Mnemonic::Movmskpd => movmskpd,
            Mnemonic::Maskmovq => {
                op.dst = address_size(i) as u8;
                op.seg = source_segment(i);
                maskmovq
            }
            Mnemonic::Maskmovdqu => {
                op.dst = address_size(i) as u8;
                op.seg = source_segment(i);
                maskmovdqu
            }
            Mnemonic::Movnti if operand_size(i, 1) == 4 => movnti::<u32>,
            Mnemonic::Movnti => movnti::<u64>,
            Mnemonic::Lfence | Mnemonic::Mfence | Mnemonic::Sfence => nothing,
            Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2 => {
                // No address is computed, for that could fault.
                op.prefix &= !Op::MEM;
                nothing
            }
            _ => return None,
        },
    })
}
