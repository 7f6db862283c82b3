//! Near branches: JMP, Jcc, CALL, RET, LOOP, JCXZ.

use iced_x86::Code;

use crate::exec::address::address_mask;
use crate::exec::table::{Backend, Inlined, Table};
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::state::gpr::RCX;
use crate::state::int::Int;

/// Takes a near branch to `target`, which has been checked.
#[inline(always)]
fn take(cpu: &mut Cpu, target: u64) -> Exec {
    cpu.rip = target;
    Ok(Flow::Branch)
}

/// The target of a direct branch, truncated to the operand size.
#[inline(always)]
fn direct<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    let target = T::from_u64(cpu.gpr[reg::BLOCK as usize].wrapping_add(insn.imm)).zext();
    check::<T>(cpu, target)
}

/// #GP(0) for a target that is not canonical or lies outside the code segment (SDM Vol. 2A, JMP).
#[inline(always)]
fn check<T: Int>(cpu: &mut Cpu, target: u64) -> Result<u64, Abort> {
    let good = if T::BITS == 64 {
        canonical(target)
    } else {
        target <= u64::from(cpu.seg[1].limit)
    };
    if good { Ok(target) } else { Err(cpu.gp(0)) }
}

/// Takes the direct branch `insn`.
#[inline(always)]
pub(crate) fn jump<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let target = direct::<T>(cpu, insn)?;
    take(cpu, target)
}

struct Jmp;
impl Inlined for Jmp {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        jump::<T>(cpu, insn)
    }
}

/// Jcc with condition `C`.
struct Jcc<const C: u8>;
impl<const C: u8> Inlined for Jcc<C> {
    const KEEPS_REGISTERS: bool = true;

    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        if !cpu.flags.cond::<C>() {
            return Ok(Flow::Next);
        }
        jump::<T>(cpu, insn)
    }
}

struct Call;
impl Inlined for Call {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let target = direct::<T>(cpu, insn)?;
        cpu.push_if::<HIT, T>(T::from_u64(cpu.next_rip(insn)))?;
        take(cpu, target)
    }
}

#[inline(always)]
fn operand<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    let target = if insn.prefix & Insn::MEM != 0 {
        cpu.load_if::<HIT, T>(cpu.ea(insn))?.zext()
    } else {
        cpu.r::<T>(insn.dst).zext()
    };
    check::<T>(cpu, target)
}

struct JmpIndirect;
impl Inlined for JmpIndirect {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let target = operand::<HIT, T>(cpu, insn)?;
        take(cpu, target)
    }
}

struct CallIndirect;
impl Inlined for CallIndirect {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let target = operand::<HIT, T>(cpu, insn)?;
        cpu.push_if::<HIT, T>(T::from_u64(cpu.next_rip(insn)))?;
        take(cpu, target)
    }
}

struct Ret;
impl Inlined for Ret {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let target = cpu.peek_if::<HIT, T>(0)?.zext();
        let target = check::<T>(cpu, target)?;
        cpu.drop_stack(T::BYTES as u64 + (insn.imm & 0xFFFF));
        take(cpu, target)
    }
}

/// `Z` of [`loop_`]: the loop ends when the counter is zero, whatever ZF is.
const ANY: u8 = 2;

/// LOOP (`Z` is [`ANY`]), LOOPE (`Z` is 1) and LOOPNE (`Z` is 0).
fn loop_<const Z: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let left = cpu.index(insn, RCX).wrapping_sub(1) & address_mask(insn);
    let taken = left != 0
        && match Z {
            0 => !cpu.flags.zf(),
            1 => cpu.flags.zf(),
            _ => true,
        };
    let target = if taken {
        Some(direct::<T>(cpu, insn)?)
    } else {
        None
    };
    cpu.set_index(insn, RCX, left);
    match target {
        Some(target) => take(cpu, target),
        None => Ok(Flow::Next),
    }
}

fn jcxz<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if cpu.index(insn, RCX) != 0 {
        return Ok(Flow::Next);
    }
    let target = direct::<T>(cpu, insn)?;
    take(cpu, target)
}

/// The rows of Jcc with condition `C`.
fn jcc<B: Backend, const C: u8>(t: &mut Table<B>, rel8: [Code; 3], rel: [Code; 3]) {
    t.inlined_16_to_64::<Jcc<C>>(rel8);
    t.inlined_16_to_64::<Jcc<C>>(rel);
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.inlined_16_to_64::<Jmp>([Jmp_rel8_16, Jmp_rel8_32, Jmp_rel8_64]);
    t.inlined_16_to_64::<Jmp>([Jmp_rel16, Jmp_rel32_32, Jmp_rel32_64]);
    t.inlined_16_to_64::<JmpIndirect>([Jmp_rm16, Jmp_rm32, Jmp_rm64]);
    t.inlined_memory_16_to_64::<JmpIndirect>([Jmp_rm16, Jmp_rm32, Jmp_rm64]);
    t.inlined_16_to_64::<Call>([Call_rel16, Call_rel32_32, Call_rel32_64]);
    t.inlined_16_to_64::<CallIndirect>([Call_rm16, Call_rm32, Call_rm64]);
    t.inlined_memory_16_to_64::<CallIndirect>([Call_rm16, Call_rm32, Call_rm64]);
    t.inlined_16_to_64::<Ret>([Retnw, Retnd, Retnq]);
    t.inlined_16_to_64::<Ret>([Retnw_imm16, Retnd_imm16, Retnq_imm16]);

    jcc::<B, 0>(t, [Jo_rel8_16, Jo_rel8_32, Jo_rel8_64], [Jo_rel16, Jo_rel32_32, Jo_rel32_64]);
    jcc::<B, 1>(t, [Jno_rel8_16, Jno_rel8_32, Jno_rel8_64], [Jno_rel16, Jno_rel32_32, Jno_rel32_64]);
    jcc::<B, 2>(t, [Jb_rel8_16, Jb_rel8_32, Jb_rel8_64], [Jb_rel16, Jb_rel32_32, Jb_rel32_64]);
    jcc::<B, 3>(t, [Jae_rel8_16, Jae_rel8_32, Jae_rel8_64], [Jae_rel16, Jae_rel32_32, Jae_rel32_64]);
    jcc::<B, 4>(t, [Je_rel8_16, Je_rel8_32, Je_rel8_64], [Je_rel16, Je_rel32_32, Je_rel32_64]);
    jcc::<B, 5>(t, [Jne_rel8_16, Jne_rel8_32, Jne_rel8_64], [Jne_rel16, Jne_rel32_32, Jne_rel32_64]);
    jcc::<B, 6>(t, [Jbe_rel8_16, Jbe_rel8_32, Jbe_rel8_64], [Jbe_rel16, Jbe_rel32_32, Jbe_rel32_64]);
    jcc::<B, 7>(t, [Ja_rel8_16, Ja_rel8_32, Ja_rel8_64], [Ja_rel16, Ja_rel32_32, Ja_rel32_64]);
    jcc::<B, 8>(t, [Js_rel8_16, Js_rel8_32, Js_rel8_64], [Js_rel16, Js_rel32_32, Js_rel32_64]);
    jcc::<B, 9>(t, [Jns_rel8_16, Jns_rel8_32, Jns_rel8_64], [Jns_rel16, Jns_rel32_32, Jns_rel32_64]);
    jcc::<B, 10>(t, [Jp_rel8_16, Jp_rel8_32, Jp_rel8_64], [Jp_rel16, Jp_rel32_32, Jp_rel32_64]);
    jcc::<B, 11>(t, [Jnp_rel8_16, Jnp_rel8_32, Jnp_rel8_64], [Jnp_rel16, Jnp_rel32_32, Jnp_rel32_64]);
    jcc::<B, 12>(t, [Jl_rel8_16, Jl_rel8_32, Jl_rel8_64], [Jl_rel16, Jl_rel32_32, Jl_rel32_64]);
    jcc::<B, 13>(t, [Jge_rel8_16, Jge_rel8_32, Jge_rel8_64], [Jge_rel16, Jge_rel32_32, Jge_rel32_64]);
    jcc::<B, 14>(t, [Jle_rel8_16, Jle_rel8_32, Jle_rel8_64], [Jle_rel16, Jle_rel32_32, Jle_rel32_64]);
    jcc::<B, 15>(t, [Jg_rel8_16, Jg_rel8_32, Jg_rel8_64], [Jg_rel16, Jg_rel32_32, Jg_rel32_64]);

    t.handler([Loop_rel8_16_CX, Loop_rel8_16_ECX], loop_::<ANY, u16>);
    t.handler([Loop_rel8_32_CX, Loop_rel8_32_ECX], loop_::<ANY, u32>);
    t.handler([Loop_rel8_64_ECX, Loop_rel8_64_RCX], loop_::<ANY, u64>);
    t.handler([Loope_rel8_16_CX, Loope_rel8_16_ECX], loop_::<1, u16>);
    t.handler([Loope_rel8_32_CX, Loope_rel8_32_ECX], loop_::<1, u32>);
    t.handler([Loope_rel8_64_ECX, Loope_rel8_64_RCX], loop_::<1, u64>);
    t.handler([Loopne_rel8_16_CX, Loopne_rel8_16_ECX], loop_::<0, u16>);
    t.handler([Loopne_rel8_32_CX, Loopne_rel8_32_ECX], loop_::<0, u32>);
    t.handler([Loopne_rel8_64_ECX, Loopne_rel8_64_RCX], loop_::<0, u64>);
    t.handler([Jcxz_rel8_16, Jecxz_rel8_16], jcxz::<u16>);
    t.handler([Jcxz_rel8_32, Jecxz_rel8_32], jcxz::<u32>);
    t.handler([Jecxz_rel8_64, Jrcxz_rel8_64], jcxz::<u64>);
}
