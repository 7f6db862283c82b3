//! The string comparisons of SSE4.2: PCMPESTRI, PCMPESTRM, PCMPISTRI, PCMPISTRM (SDM Vol. 2B 4.1).

use std::array::from_fn;
use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::{Encoding, OneSource};
use super::rows::{Encoded, xmm};
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::gpr::{RAX, RCX, RDX};
use crate::state::rflags;

/// The immediate operand (SDM Vol. 2B 4.1.1).
#[derive(Debug, Clone, Copy)]
struct Control(u8);

impl Control {
    /// Elements are words, not bytes.
    fn words(self) -> bool {
        self.0 & 1 != 0
    }

    fn signed(self) -> bool {
        self.0 & 2 != 0
    }

    /// The aggregation: one of [`EQUAL_ANY`] to [`EQUAL_ORDERED`].
    fn aggregation(self) -> u8 {
        self.0 >> 2 & 3
    }

    /// The result is inverted.
    fn negative(self) -> bool {
        self.0 & 1 << 4 != 0
    }

    /// The result is inverted only where the second operand has elements.
    fn masked(self) -> bool {
        self.0 & 1 << 5 != 0
    }

    /// The last index instead of the first, or a mask of elements instead of bits.
    fn upper(self) -> bool {
        self.0 & 1 << 6 != 0
    }

    /// Number of elements.
    fn count(self) -> usize {
        if self.words() { 8 } else { 16 }
    }

    fn elements(self, v: V) -> [i32; 16] {
        if self.words() {
            let w: [u16; 8] = cast(v);
            from_fn(|i| {
                let word = w[i & 7];
                if self.signed() {
                    (word as i16).into()
                } else {
                    word.into()
                }
            })
        } else {
            let b: [u8; 16] = cast(v);
            b.map(|byte| {
                if self.signed() {
                    (byte as i8).into()
                } else {
                    byte.into()
                }
            })
        }
    }
}

const EQUAL_ANY: u8 = 0;
const RANGES: u8 = 1;
const EQUAL_EACH: u8 = 2;

/// An operand: its elements, of which the first `len` are valid.
#[derive(Debug, Clone, Copy)]
struct Text {
    elements: [i32; 16],
    len: usize,
}

impl Text {
    fn valid(&self) -> &[i32] {
        &self.elements[..self.len]
    }
}

/// IntRes2: a bit for each element of the second operand.
fn compare(control: Control, a: &Text, b: &Text) -> u32 {
    let n = control.count();
    let holds = |j: usize| {
        let valid = j < b.len;
        let element = b.elements[j];
        match control.aggregation() {
            EQUAL_ANY => valid && a.valid().contains(&element),
            // An invalid upper bound makes no range.
            RANGES => {
                valid
                    && a.valid()
                        .chunks_exact(2)
                        .any(|pair| (pair[0]..=pair[1]).contains(&element))
            }
            EQUAL_EACH => match (j < a.len, valid) {
                (true, true) => a.elements[j] == element,
                (a_valid, b_valid) => a_valid == b_valid,
            },
            // EQUAL_ORDERED: the first operand begins here, as far as the second one's elements go.
            _ => (0..n - j)
                .all(|i| i >= a.len || j + i < b.len && a.elements[i] == b.elements[j + i]),
        }
    };
    let result: u32 = (0..n).map(|j| u32::from(holds(j)) << j).sum();
    let all = (1 << n) - 1;
    match (control.negative(), control.masked()) {
        (false, _) => result,
        (true, false) => result ^ all,
        (true, true) => result ^ ((1 << b.len) - 1),
    }
}

/// Compares, and sets the flags.
fn aggregate(cpu: &mut Cpu, control: Control, a: &Text, b: &Text) -> u32 {
    let result = compare(control, a, b);
    let n = control.count();
    let flags = [
        (result != 0, rflags::CF),
        (b.len < n, rflags::ZF),
        (a.len < n, rflags::SF),
        (result & 1 != 0, rflags::OF),
    ];
    let set = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag);
    cpu.flags = Lazy::from_bits(set.sum());
    result
}

/// Where the lengths of the operands come from.
trait Length {
    /// How native code executes the instruction, if it does.
    const NATIVE: Option<VectorForm>;

    fn of(cpu: &Cpu, register: usize, elements: &[i32; 16], n: usize) -> usize;
}

/// Up to the first zero.
struct Implicit;
impl Length for Implicit {
    const NATIVE: Option<VectorForm> = Some(VectorForm::UNALIGNED.flags());

    fn of(_: &Cpu, _: usize, elements: &[i32; 16], n: usize) -> usize {
        elements[..n].iter().position(|e| *e == 0).unwrap_or(n)
    }
}

/// The absolute value of a register.
struct Explicit32;
impl Length for Explicit32 {
    const NATIVE: Option<VectorForm> = None;

    fn of(cpu: &Cpu, register: usize, _: &[i32; 16], n: usize) -> usize {
        let length = (cpu.gpr[register] as i32).unsigned_abs();
        length.min(n as u32) as usize
    }
}

struct Explicit64;
impl Length for Explicit64 {
    const NATIVE: Option<VectorForm> = None;

    fn of(cpu: &Cpu, register: usize, _: &[i32; 16], n: usize) -> usize {
        let length = (cpu.gpr[register] as i64).unsigned_abs();
        length.min(n as u64) as usize
    }
}

#[inline(always)]
fn run<E: Encoding, L: Length>(cpu: &mut Cpu, insn: &Insn) -> Result<(Control, u32), Abort> {
    E::need(cpu)?;
    // It need not be aligned.
    let second = if insn.prefix & Insn::MEM != 0 {
        cpu.load128(cpu.ea(insn))?
    } else {
        cpu.xmm(insn.src)
    };
    let control = Control(insn.imm as u8);
    let n = control.count();
    let text = |register, v| {
        let elements = control.elements(v);
        let len = L::of(cpu, register, &elements, n);
        Text { elements, len }
    };
    let (a, b) = (text(RAX, cpu.v(insn.dst)), text(RDX, cast(second)));
    Ok((control, aggregate(cpu, control, &a, &b)))
}

/// PCMPESTRI and PCMPISTRI: the index of a bit goes to ECX.
struct Index<L>(PhantomData<L>);

impl<L: Length> Encoded for Index<L> {
    type Vex = OneSource;
    const NATIVE: Option<VectorForm> = L::NATIVE;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let (control, result) = run::<E, L>(cpu, insn)?;
        let index = match result {
            0 => control.count() as u32,
            _ if control.upper() => 31 - result.leading_zeros(),
            _ => result.trailing_zeros(),
        };
        cpu.w(RCX as u8, index);
        Ok(Flow::Next)
    }
}

/// PCMPESTRM and PCMPISTRM: the mask goes to XMM0.
struct Mask<L>(PhantomData<L>);

impl<L: Length> Encoded for Mask<L> {
    type Vex = OneSource;
    const NATIVE: Option<VectorForm> = L::NATIVE;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let (control, result) = run::<E, L>(cpu, insn)?;
        let value = match (control.upper(), control.words()) {
            (false, _) => result.into(),
            (true, false) => cast::<[u8; 16], u128>(from_fn(|i| (result >> i & 1) as u8 * 0xFF)),
            (true, true) => cast::<[u16; 8], u128>(from_fn(|i| (result >> i & 1) as u16 * 0xFFFF)),
        };
        E::set(cpu, 0, value);
        Ok(Flow::Next)
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    xmm::<B, Index<Explicit32>>(t, [Pcmpestri_xmm_xmmm128_imm8, VEX_Vpcmpestri_xmm_xmmm128_imm8]);
    xmm::<B, Index<Explicit64>>(t, [Pcmpestri64_xmm_xmmm128_imm8, VEX_Vpcmpestri64_xmm_xmmm128_imm8]);
    xmm::<B, Mask<Explicit32>>(t, [Pcmpestrm_xmm_xmmm128_imm8, VEX_Vpcmpestrm_xmm_xmmm128_imm8]);
    xmm::<B, Mask<Explicit64>>(t, [Pcmpestrm64_xmm_xmmm128_imm8, VEX_Vpcmpestrm64_xmm_xmmm128_imm8]);
    xmm::<B, Index<Implicit>>(t, [Pcmpistri_xmm_xmmm128_imm8, VEX_Vpcmpistri_xmm_xmmm128_imm8]);
    xmm::<B, Mask<Implicit>>(t, [Pcmpistrm_xmm_xmmm128_imm8, VEX_Vpcmpistrm_xmm_xmmm128_imm8]);
}
