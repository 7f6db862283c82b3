//! CMOVcc and SETcc. Jcc is in [`branch`](super::branch).

use iced_x86::Code;

use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Inlined, Registers, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// CMOVcc with condition `C`.
struct Cmov<const C: u8>;

impl<const C: u8> Registers for Cmov<C> {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        // A 32-bit destination is zero-extended even if nothing is moved (SDM Vol. 2A, CMOVcc).
        let v = if cpu.flags.cond::<C>() {
            cpu.second::<N, T>(insn.src, forwarded)
        } else {
            cpu.first::<N, T>(insn.dst, forwarded)
        };
        cpu.set(insn.dst, v)
    }
}

/// Memory is read even if the condition is not met.
impl<const C: u8> Inlined for Cmov<C> {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let m = cpu.load_if::<HIT, T>(cpu.ea(insn))?;
        let v = if cpu.flags.cond::<C>() {
            m
        } else {
            cpu.r::<T>(insn.dst)
        };
        cpu.w(insn.dst, v);
        Ok(Flow::Next)
    }
}

/// SETcc with condition `C`, to a register.
struct SetRegister<const C: u8>;

impl<const C: u8> Inlined for SetRegister<C> {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let v = u8::from(cpu.flags.cond::<C>());
        cpu.w(insn.dst, v);
        Ok(Flow::Next)
    }
}

/// SETcc with condition `C`, to memory.
struct SetMemory<const C: u8>;

impl<const C: u8> Inlined for SetMemory<C> {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let v = u8::from(cpu.flags.cond::<C>());
        cpu.store_if::<HIT, u8>(cpu.ea(insn), v)?;
        Ok(Flow::Next)
    }
}

/// The rows of CMOVcc and SETcc with condition `C`.
fn condition<B: Backend, const C: u8>(t: &mut Table<B>, cmov: [Code; 3], set: Code) {
    t.registers_16_to_64::<Cmov<C>>(cmov);
    t.inlined_memory_16_to_64::<Cmov<C>>(cmov);
    t.inlined::<SetRegister<C>, u8>(set);
    t.inlined_memory::<SetMemory<C>, u8>(set);
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    condition::<B, 0>(t, [Cmovo_r16_rm16, Cmovo_r32_rm32, Cmovo_r64_rm64], Seto_rm8);
    condition::<B, 1>(t, [Cmovno_r16_rm16, Cmovno_r32_rm32, Cmovno_r64_rm64], Setno_rm8);
    condition::<B, 2>(t, [Cmovb_r16_rm16, Cmovb_r32_rm32, Cmovb_r64_rm64], Setb_rm8);
    condition::<B, 3>(t, [Cmovae_r16_rm16, Cmovae_r32_rm32, Cmovae_r64_rm64], Setae_rm8);
    condition::<B, 4>(t, [Cmove_r16_rm16, Cmove_r32_rm32, Cmove_r64_rm64], Sete_rm8);
    condition::<B, 5>(t, [Cmovne_r16_rm16, Cmovne_r32_rm32, Cmovne_r64_rm64], Setne_rm8);
    condition::<B, 6>(t, [Cmovbe_r16_rm16, Cmovbe_r32_rm32, Cmovbe_r64_rm64], Setbe_rm8);
    condition::<B, 7>(t, [Cmova_r16_rm16, Cmova_r32_rm32, Cmova_r64_rm64], Seta_rm8);
    condition::<B, 8>(t, [Cmovs_r16_rm16, Cmovs_r32_rm32, Cmovs_r64_rm64], Sets_rm8);
    condition::<B, 9>(t, [Cmovns_r16_rm16, Cmovns_r32_rm32, Cmovns_r64_rm64], Setns_rm8);
    condition::<B, 10>(t, [Cmovp_r16_rm16, Cmovp_r32_rm32, Cmovp_r64_rm64], Setp_rm8);
    condition::<B, 11>(t, [Cmovnp_r16_rm16, Cmovnp_r32_rm32, Cmovnp_r64_rm64], Setnp_rm8);
    condition::<B, 12>(t, [Cmovl_r16_rm16, Cmovl_r32_rm32, Cmovl_r64_rm64], Setl_rm8);
    condition::<B, 13>(t, [Cmovge_r16_rm16, Cmovge_r32_rm32, Cmovge_r64_rm64], Setge_rm8);
    condition::<B, 14>(t, [Cmovle_r16_rm16, Cmovle_r32_rm32, Cmovle_r64_rm64], Setle_rm8);
    condition::<B, 15>(t, [Cmovg_r16_rm16, Cmovg_r32_rm32, Cmovg_r64_rm64], Setg_rm8);
}
