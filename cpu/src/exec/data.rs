//! Data transfer: MOV and its relatives, conversions, exchanges, LEA and XLAT.

use std::marker::PhantomData;

use iced_x86::Code;

use crate::exec::alu::{Immediate, Register, Source};
use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Inlined, Memory, Registers, Table};
use crate::insn::operand::NONE;
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::processor::cpu::Cpu;
use crate::state::gpr;
use crate::state::int::Int;

const AX: u8 = gpr::RAX as u8;
const DX: u8 = gpr::RDX as u8;

/// MOV of `S` to a register or memory.
struct Mov<S>(PhantomData<S>);

impl<S: Source> Registers for Mov<S> {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        let v = S::read::<N, T>(cpu, insn, forwarded);
        cpu.set(insn.dst, v)
    }
}

impl<S: Source> Memory for Mov<S> {
    const WRITES: bool = false;
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let v = S::read::<NONE, T>(cpu, insn, 0);
        cpu.store_if::<HIT, T>(cpu.ea_of::<N>(insn, forwarded), v)?;
        Ok(forwarded)
    }
}

/// MOV from memory to a register.
struct MovFromMemory;

impl Memory for MovFromMemory {
    const WRITES: bool = true;
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let v = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, forwarded))?;
        Ok(cpu.set(insn.dst, v))
    }
}

/// How a source of another size becomes 64 bits wide.
trait Extension {
    fn extend<S: Int>(v: S) -> u64;
}

struct Zero;
impl Extension for Zero {
    #[inline(always)]
    fn extend<S: Int>(v: S) -> u64 {
        v.zext()
    }
}

struct Sign;
impl Extension for Sign {
    #[inline(always)]
    fn extend<S: Int>(v: S) -> u64 {
        v.sext()
    }
}

/// MOVZX, MOVSX and MOVSXD from a source of the size of `S`.
struct Extend<E, S>(PhantomData<(E, S)>);

impl<E: Extension, S: Int> Registers for Extend<E, S> {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        let v = cpu.second::<N, S>(insn.src, forwarded);
        cpu.set(insn.dst, T::from_u64(E::extend(v)))
    }
}

impl<E: Extension, S: Int> Memory for Extend<E, S> {
    const WRITES: bool = true;
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let v = cpu.load_if::<HIT, S>(cpu.ea_of::<N>(insn, forwarded))?;
        Ok(cpu.set(insn.dst, T::from_u64(E::extend(v))))
    }
}

/// LEA, which does not access the memory operand.
struct Lea;

impl Memory for Lea {
    const WRITES: bool = true;
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Keeps);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let v = cpu.ea_of::<N>(insn, forwarded);
        Ok(cpu.set(insn.dst, T::from_u64(v)))
    }
}

fn xchg_reg_reg<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (a, b) = (cpu.r::<T>(insn.dst), cpu.r::<T>(insn.src));
    cpu.w(insn.dst, b);
    cpu.w(insn.src, a);
    Ok(Flow::Next)
}

/// XCHG with memory, which is always locked. `aux` is the register operand.
fn xchg_mem<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.r::<T>(insn.aux);
    let mut old = T::default();
    cpu.modify(insn, cpu.ea(insn), |_, m| {
        old = m;
        v
    })?;
    cpu.w(insn.aux, old);
    Ok(Flow::Next)
}

fn bswap<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.r::<T>(insn.dst).zext();
    let r = match T::BITS {
        // The manual leaves the result undefined. Processors give zero.
        16 => 0,
        32 => u64::from((v as u32).swap_bytes()),
        _ => v.swap_bytes(),
    };
    cpu.w(insn.dst, T::from_u64(r));
    Ok(Flow::Next)
}

/// The bytes of `v` in reverse order.
fn swapped<T: Int>(v: T) -> T {
    T::from_u64(v.zext().swap_bytes() >> (64 - T::BITS))
}

/// MOVBE from memory.
fn movbe_load<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.load::<T>(cpu.ea(insn))?;
    cpu.w(insn.dst, swapped(v));
    Ok(Flow::Next)
}

/// MOVBE to memory.
fn movbe_store<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = swapped(cpu.r::<T>(insn.src));
    cpu.store(cpu.ea(insn), v)?;
    Ok(Flow::Next)
}

/// CBW, CWDE, CDQE: the accumulator's lower half, of the size of `S`, sign-extended into all of it.
struct SignExtendAccumulator<S>(PhantomData<S>);

impl<S: Int> Inlined for SignExtendAccumulator<S> {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
        let v = cpu.r::<S>(AX);
        cpu.w(AX, T::from_u64(v.sext()));
        Ok(Flow::Next)
    }
}

/// CWD, CDQ, CQO: every bit of rDX becomes the accumulator's sign.
struct SignToDx;

impl Inlined for SignToDx {
    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
        let sign = cpu.r::<T>(AX).msb();
        cpu.w(DX, T::from_u64(if sign { !0 } else { 0 }));
        Ok(Flow::Next)
    }
}

/// XLAT. `add_al` has added AL to the address.
fn xlat(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.load::<u8>(cpu.ea(insn))?;
    cpu.w(AX, v);
    Ok(Flow::Next)
}

/// What XLAT adds to its address.
fn add_al(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let al = u64::from(cpu.r::<u8>(AX));
    cpu.gpr[usize::from(reg::TMP)] = cpu.ea(insn).wrapping_add(al);
    Ok(Flow::Next)
}

/// The rows of MOVZX (`E` is [`Zero`]) or MOVSX, from 8 and from 16 bits.
fn extend<B: Backend, E: Extension>(t: &mut Table<B>, from_8: [Code; 3], from_16: [Code; 3]) {
    t.registers_16_to_64::<Extend<E, u8>>(from_8);
    t.memory_16_to_64::<Extend<E, u8>>(from_8);
    t.registers_16_to_64::<Extend<E, u16>>(from_16);
    t.memory_16_to_64::<Extend<E, u16>>(from_16);
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    mov(t);
    extend::<B, Zero>(t, [Movzx_r16_rm8, Movzx_r32_rm8, Movzx_r64_rm8], [Movzx_r16_rm16, Movzx_r32_rm16, Movzx_r64_rm16]);
    extend::<B, Sign>(t, [Movsx_r16_rm8, Movsx_r32_rm8, Movsx_r64_rm8], [Movsx_r16_rm16, Movsx_r32_rm16, Movsx_r64_rm16]);
    t.registers::<Mov<Register>, u16>(Movsxd_r16_rm16);
    t.memory::<MovFromMemory, u16>(Movsxd_r16_rm16);
    t.registers::<Mov<Register>, u32>(Movsxd_r32_rm32);
    t.memory::<MovFromMemory, u32>(Movsxd_r32_rm32);
    t.registers::<Extend<Sign, u32>, u64>(Movsxd_r64_rm32);
    t.memory::<Extend<Sign, u32>, u64>(Movsxd_r64_rm32);
    t.memory_16_to_64::<Lea>([Lea_r16_m, Lea_r32_m, Lea_r64_m]);

    t.handlers([Xchg_rm8_r8], xchg_reg_reg::<u8>, xchg_mem::<u8>).integer(FlagEffect::Keeps);
    t.handlers([Xchg_rm16_r16, Xchg_r16_AX], xchg_reg_reg::<u16>, xchg_mem::<u16>).integer(FlagEffect::Keeps);
    t.handlers([Xchg_rm32_r32, Xchg_r32_EAX], xchg_reg_reg::<u32>, xchg_mem::<u32>).integer(FlagEffect::Keeps);
    t.handlers([Xchg_rm64_r64, Xchg_r64_RAX], xchg_reg_reg::<u64>, xchg_mem::<u64>).integer(FlagEffect::Keeps);
    t.native_as([Xchg_r16_AX, Xchg_r32_EAX, Xchg_r64_RAX], [Xchg_rm16_r16, Xchg_rm32_r32, Xchg_rm64_r64]);
    // With 66H it has an undefined result.
    t.handler([Bswap_r16], bswap::<u16>);
    t.handler([Bswap_r32], bswap::<u32>).integer(FlagEffect::Keeps);
    t.handler([Bswap_r64], bswap::<u64>).integer(FlagEffect::Keeps);
    t.handler([Movbe_r16_m16], movbe_load::<u16>).integer(FlagEffect::Keeps);
    t.handler([Movbe_r32_m32], movbe_load::<u32>).integer(FlagEffect::Keeps);
    t.handler([Movbe_r64_m64], movbe_load::<u64>).integer(FlagEffect::Keeps);
    t.handler([Movbe_m16_r16], movbe_store::<u16>).integer(FlagEffect::Keeps);
    t.handler([Movbe_m32_r32], movbe_store::<u32>).integer(FlagEffect::Keeps);
    t.handler([Movbe_m64_r64], movbe_store::<u64>).integer(FlagEffect::Keeps);
    t.inlined::<SignExtendAccumulator<u8>, u16>(Cbw);
    t.inlined::<SignExtendAccumulator<u16>, u32>(Cwde);
    t.inlined::<SignExtendAccumulator<u32>, u64>(Cdqe);
    t.inlined_16_to_64::<SignToDx>([Cwd, Cdq, Cqo]);
    t.handler([Xlat_m8], xlat);
    t.set_addend([Xlat_m8], add_al);
}

#[rustfmt::skip]
fn mov<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.registers_8_to_64::<Mov<Register>>([Mov_rm8_r8, Mov_rm16_r16, Mov_rm32_r32, Mov_rm64_r64]);
    t.memory_8_to_64::<Mov<Register>>([Mov_rm8_r8, Mov_rm16_r16, Mov_rm32_r32, Mov_rm64_r64]);
    t.registers_8_to_64::<Mov<Register>>([Mov_r8_rm8, Mov_r16_rm16, Mov_r32_rm32, Mov_r64_rm64]);
    t.memory_8_to_64::<MovFromMemory>([Mov_r8_rm8, Mov_r16_rm16, Mov_r32_rm32, Mov_r64_rm64]);
    t.registers_8_to_64::<Mov<Immediate>>([Mov_rm8_imm8, Mov_rm16_imm16, Mov_rm32_imm32, Mov_rm64_imm32]);
    t.memory_8_to_64::<Mov<Immediate>>([Mov_rm8_imm8, Mov_rm16_imm16, Mov_rm32_imm32, Mov_rm64_imm32]);
    t.registers_8_to_64::<Mov<Immediate>>([Mov_r8_imm8, Mov_r16_imm16, Mov_r32_imm32, Mov_r64_imm64]);
    t.memory_8_to_64::<MovFromMemory>([Mov_AL_moffs8, Mov_AX_moffs16, Mov_EAX_moffs32, Mov_RAX_moffs64]);
    t.memory_8_to_64::<Mov<Register>>([Mov_moffs8_AL, Mov_moffs16_AX, Mov_moffs32_EAX, Mov_moffs64_RAX]);
    t.native_as([Mov_AL_moffs8, Mov_AX_moffs16, Mov_EAX_moffs32, Mov_RAX_moffs64], [Mov_r8_rm8, Mov_r16_rm16, Mov_r32_rm32, Mov_r64_rm64]);
    t.native_as([Mov_moffs8_AL, Mov_moffs16_AX, Mov_moffs32_EAX, Mov_moffs64_RAX], [Mov_rm8_r8, Mov_rm16_r16, Mov_rm32_r32, Mov_rm64_r64]);
}
