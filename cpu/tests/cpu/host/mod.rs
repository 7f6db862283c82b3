//! The vector and floating-point instructions of the software CPU against the host's processor, bit
//! for bit.

mod features;
mod forms;
mod native;
mod random;
mod xsave;

use self::forms::Form;
use self::native::{FXSAVE, Native, Registers};
use self::random::Random;
use crate::common::{DATA, Guest, KERNEL, KERNEL_STACK};
use iced_x86::code_asm::{xmm0, xmm1};
use iced_x86::{Code, CpuidFeature, EncodingKind, Mnemonic, OpCodeOperandKind, RflagsBits};
use vbts_cpu::state::vector::{GP, XM};
use vbts_cpu::state::xsave::component;
use vbts_cpu::state::{Activity, X87State, cr4, rflags};
use vbts_cpu::{Model, model};

/// Bits of the status word of the FPU: an inexact result, and condition code C1.
const PE: u16 = 1 << 5;
const C1: u16 = 1 << 9;
/// Choices of registers for each form of each instruction.
const VARIANTS: usize = 8;
/// States that each starts from.
const STATES: usize = 10;

/// Memory that an instruction may access.
#[repr(C, align(64))]
#[derive(Debug, Clone)]
struct Memory([u8; FXSAVE]);

/// Everything an instruction depends on and may change.
#[derive(Debug, Clone)]
struct State {
    gpr: [u64; 16],
    flags: u64,
    xmm: [u128; 16],
    ymm_high: [u128; 16],
    mxcsr: u32,
    x87: X87State,
    memory: Memory,
}

impl State {
    fn random(random: &mut Random) -> Self {
        let mut x87 = X87State::default();
        for r in &mut x87.r {
            *r = random.f80();
        }
        // Precision 01 is reserved.
        let precision = *random.pick(&[0, 2, 3]) << 8;
        let masks = if random.below(2) == 0 {
            0x3F
        } else {
            random.next() as u16 & 0x3F
        };
        x87.fcw = 0x40 | precision | (random.below(4) as u16) << 10 | masks;
        // TOP and the condition codes; flags only of what is masked.
        let stack_fault = if masks & 1 != 0 { 0x40 } else { 0 };
        x87.fsw = random.next() as u16 & (0x7F00 | masks | stack_fault);
        x87.ftw = match random.below(4) {
            0 => random.next() as u8,
            1 => 0,
            _ => 0xFF,
        };
        let mut memory = Memory([0; FXSAVE]);
        for chunk in memory.0.chunks_mut(16) {
            let value = if random.below(4) == 0 {
                random.f80()
            } else {
                random.u128()
            };
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        let control = (random.below(4) as u32) << 13
            | if random.below(3) == 0 {
                random.next() as u32 & 0x8040
            } else {
                0
            };
        Self {
            gpr: std::array::from_fn(|_| random.u64()),
            flags: random.next() & rflags::ARITH,
            xmm: std::array::from_fn(|_| random.u128()),
            ymm_high: std::array::from_fn(|_| random.u128()),
            mxcsr: 0x1F80 | control | random.next() as u32 & 0x3F,
            x87,
            memory,
        }
    }

    fn native(&mut self, code: &Native) {
        let mut r = Registers::new();
        r.gpr = self.gpr;
        r.gpr[7] = self.memory.0.as_mut_ptr() as u64;
        r.rflags = self.flags | rflags::FIXED | rflags::IF;
        let mut put =
            |at: usize, bytes: &[u8]| r.fxsave[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.x87.fcw.to_le_bytes());
        put(2, &self.x87.fsw.to_le_bytes());
        put(4, &[self.x87.ftw]);
        put(24, &self.mxcsr.to_le_bytes());
        for i in 0..8 {
            put(32 + 16 * i, &self.x87.st(i).to_le_bytes());
        }
        for (i, xmm) in self.xmm.iter().enumerate() {
            put(160 + 16 * i, &xmm.to_le_bytes());
        }
        r.ymm_high = self.ymm_high;
        code.run(&mut r);
        let get = |at: usize, len: usize| {
            let mut wide = [0; 16];
            wide[..len].copy_from_slice(&r.fxsave[at..at + len]);
            u128::from_le_bytes(wide)
        };
        self.gpr = r.gpr;
        self.flags = r.rflags & rflags::ARITH;
        self.mxcsr = get(24, 4) as u32;
        self.x87.fcw = get(0, 2) as u16;
        self.x87.fsw = get(2, 2) as u16;
        self.x87.ftw = get(4, 1) as u8;
        for i in 0..8 {
            self.x87.set_st(i, get(32 + 16 * i, 10));
        }
        self.xmm = std::array::from_fn(|i| get(160 + 16 * i, 16));
        self.ymm_high = r.ymm_high;
    }

    /// Loads it into the guest, which goes on at its program.
    fn load(&self, guest: &mut Guest) {
        guest.write_bytes(DATA, &self.memory.0);
        guest.update(|s| {
            s.gpr = self.gpr;
            s.gpr[4] = KERNEL_STACK;
            s.gpr[7] = DATA;
            s.rip = KERNEL;
            s.activity = Activity::Active;
            s.rflags = self.flags | rflags::FIXED;
            s.sys.cr4 |= cr4::OSXMMEXCPT | cr4::OSXSAVE;
            s.sys.xcr0 = component::X87 | component::SSE | component::AVX;
            (s.xmm, s.ymm_high) = (self.xmm, self.ymm_high);
            s.mxcsr = self.mxcsr;
            s.x87 = self.x87;
        });
    }

    fn store(guest: &Guest) -> Self {
        let s = guest.soft.cpu.state();
        let mut memory = Memory([0; FXSAVE]);
        for (i, chunk) in memory.0.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&guest.read(DATA + 8 * i as u64).to_le_bytes());
        }
        Self {
            gpr: s.gpr,
            flags: s.rflags & rflags::ARITH,
            xmm: s.xmm,
            ymm_high: s.ymm_high,
            mxcsr: s.mxcsr,
            x87: s.x87,
            memory,
        }
    }

    /// Panics where `self`, the guest's, differs from what the host did.
    fn check(&mut self, host: &mut Self, form: &Form, before: &Self) {
        for state in [&mut *self, &mut *host] {
            state.gpr[4] = 0;
            state.gpr[7] = 0;
            state.gpr[15] = 0;
            // Where and what the last instruction was: processors differ in when they tell.
            (state.x87.fop, state.x87.fip, state.x87.fdp) = (0, 0, 0);
            state.flags &= !undefined(form);
            for &(start, end) in pointers(form.instruction.code()) {
                state.memory.0[start..end].fill(0);
            }
        }
        if is_estimate(form.instruction.mnemonic()) {
            let own = self.xmm.iter().chain(&self.ymm_high);
            let others = host.xmm.iter_mut().chain(&mut host.ymm_high);
            own.zip(others).for_each(|(own, other)| {
                if are_close(*own, *other) {
                    *other = *own;
                }
            });
        }
        if is_transcendental(form.instruction.mnemonic()) && self.x87.fsw & PE != 0 {
            // C1 tells how the result was rounded.
            host.x87.fsw = host.x87.fsw & !C1 | self.x87.fsw & C1;
            for (own, other) in self.x87.r.iter().zip(&mut host.x87.r) {
                // The integer bit is no part of a number's place in their order.
                let [a, b] = [*own, *other].map(|r| r >> 64 << 63 | r & u128::from(u64::MAX >> 1));
                if a.abs_diff(b) <= 1 {
                    *other = *own;
                }
            }
        }
        let context = || {
            format!(
                "{} {:02x?}\nbefore {before:x?}",
                form.instruction, form.bytes
            )
        };
        assert_eq!(self.gpr, host.gpr, "registers: {}", context());
        assert_eq!(self.flags, host.flags, "flags: {}", context());
        assert_eq!(
            format!("{:x?} {:x?}", self.xmm, self.ymm_high),
            format!("{:x?} {:x?}", host.xmm, host.ymm_high),
            "{}",
            context()
        );
        assert_eq!(
            self.mxcsr,
            host.mxcsr,
            "MXCSR {:x} {:x}: {}",
            self.mxcsr,
            host.mxcsr,
            context()
        );
        assert_eq!(
            format!("{:x?}", self.x87),
            format!("{:x?}", host.x87),
            "{}",
            context()
        );
        assert_eq!(self.memory.0, host.memory.0, "memory: {}", context());
    }
}

/// What of an image that an instruction stores depends on the processor: pointers to the last
/// instruction, MXCSR_MASK, and what is reserved.
fn pointers(code: Code) -> &'static [(usize, usize)] {
    match code {
        Code::Fnstenv_m14byte | Code::Fnsave_m94byte => &[(6, 14)],
        Code::Fnstenv_m28byte | Code::Fnsave_m108byte => &[(12, 28)],
        Code::Fxsave_m512byte | Code::Fxsave64_m512byte => &[(6, 24), (28, 32), (416, 512)],
        _ => &[],
    }
}

/// Whether an instruction estimates, in a way of each vendor.
fn is_estimate(mnemonic: Mnemonic) -> bool {
    let name = format!("{mnemonic:?}").to_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    ["rcpps", "rcpss", "rsqrtps", "rsqrtss"].contains(&name)
}

/// Returns whether an instruction has a result whose last bit depends on the vendor (SDM Vol. 1
/// 8.3.10).
fn is_transcendental(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        F2xm1 | Fyl2x | Fyl2xp1 | Fptan | Fpatan | Fsin | Fcos | Fsincos
    )
}

/// Whether two vectors of estimates can both be within the manual's error, 1.5 * 2^-12. A result
/// near the smallest normal number can be zero.
fn are_close(one: u128, other: u128) -> bool {
    let lanes = |vector: u128| [0, 32, 64, 96].map(|shift| (vector >> shift) as u32);
    lanes(one)
        .into_iter()
        .zip(lanes(other))
        .all(|(one, other)| {
            let [a, b] = [one, other].map(|bits| f64::from(f32::from_bits(bits)));
            let tiny = 2.0 * f64::from(f32::MIN_POSITIVE);
            let same_sign = (one ^ other) >> 31 == 0;
            one == other
                || same_sign && (a - b).abs() <= 3.0 / 4096.0 * a.abs()
                || same_sign && a.abs() < tiny && b.abs() < tiny
        })
}

/// Flags that the manual leaves undefined.
fn undefined(form: &Form) -> u64 {
    const FLAGS: [(u32, u64); 6] = [
        (RflagsBits::OF, rflags::OF),
        (RflagsBits::SF, rflags::SF),
        (RflagsBits::ZF, rflags::ZF),
        (RflagsBits::AF, rflags::AF),
        (RflagsBits::CF, rflags::CF),
        (RflagsBits::PF, rflags::PF),
    ];
    let bits = form.instruction.rflags_undefined();
    FLAGS
        .into_iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, flag)| flag)
        .sum()
}

fn host_has(code: Code) -> bool {
    let mut features = code.cpuid_features().iter();
    features.all(|feature| vbts_cpu::host_has(*feature))
}

/// A model with all the instructions.
fn later() -> &'static Model {
    model("max").unwrap()
}

/// Both forms of every instruction, with random operands each time.
fn every_form(random: &mut Random, mut f: impl FnMut(&Form, &mut Random)) {
    let mut count = 0;
    for code in forms::all().filter(|&c| host_has(c)) {
        for memory in [false, true] {
            let Some(form) = Form::new(code, memory, random) else {
                continue;
            };
            if memory && !form.has_memory() {
                continue;
            }
            count += 1;
            f(&form, random);
        }
    }
    assert!(count > 400, "only {count} forms");
}

fn is_string_comparison(form: &Form) -> bool {
    matches!(
        form.instruction.mnemonic(),
        Mnemonic::Pcmpestri
            | Mnemonic::Vpcmpestri
            | Mnemonic::Pcmpestri64
            | Mnemonic::Vpcmpestri64
            | Mnemonic::Pcmpestrm
            | Mnemonic::Vpcmpestrm
            | Mnemonic::Pcmpestrm64
            | Mnemonic::Vpcmpestrm64
            | Mnemonic::Pcmpistri
            | Mnemonic::Vpcmpistri
            | Mnemonic::Pcmpistrm
            | Mnemonic::Vpcmpistrm
    )
}

/// Operands that would fault on the host are made valid, and strings such that they have something
/// in common.
fn fit(form: &Form, state: &mut State) {
    if is_string_comparison(form) {
        const LETTERS: u128 = 0x0303_0303_0303_0303_0303_0303_0303_0303;
        let few = state.gpr[0] & 3 != 0;
        for length in [0, 2] {
            state.gpr[length] = i64::from(state.gpr[length] as i8 % 20) as u64;
        }
        if few {
            for xmm in &mut state.xmm {
                *xmm &= LETTERS;
            }
            for byte in &mut state.memory.0 {
                *byte &= LETTERS as u8;
            }
        }
        return;
    }
    if form.instruction.is_vsib() {
        // Indices of elements in the memory, and anything above those of 32 bits that are used.
        let wide = form
            .instruction
            .code()
            .op_code()
            .op_kinds()
            .iter()
            .any(|kind| {
                matches!(
                    kind,
                    OpCodeOperandKind::mem_vsib64x | OpCodeOperandKind::mem_vsib64y
                )
            });
        let small: u128 = if wide {
            0x3F << 64 | 0x3F
        } else {
            0x3F_0000_003F_0000_003F_0000_003F
        };
        let n = form.instruction.memory_index().number();
        state.xmm[n] &= small;
        state.ymm_high[n] &= small;
        return;
    }
    let at = match form.instruction.mnemonic() {
        Mnemonic::Ldmxcsr | Mnemonic::Vldmxcsr => 0,
        Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => 24,
        _ => return,
    };
    state.memory.0[at + 2..at + 4].fill(0);
}

#[test]
fn every_instruction_does_what_the_host_does() {
    let mut random = Random::new(1);
    let mut guest = Guest::of(later());
    every_form(&mut random, |first, random| {
        // There are 128 of these, by their immediates.
        let variants = if is_string_comparison(first) {
            64 * VARIANTS
        } else {
            VARIANTS
        };
        for _ in 0..variants {
            // Other registers and immediates each time.
            let form = Form::new(first.instruction.code(), first.has_memory(), random).unwrap();
            let native = Native::new(&form.bytes);
            let end = put(&mut guest, &form);
            for _ in 0..STATES {
                let mut before = State::random(random);
                fit(&form, &mut before);
                let mut expected = before.clone();
                expected.native(&native);
                before.load(&mut guest);
                guest.run_to(end);
                State::store(&guest).check(&mut expected, &form, &before);
            }
        }
    });
}

/// Masks of MXCSR.
const MASKS: u32 = 0x1F80;
const UM: u32 = 1 << 11;

#[test]
fn unmasked_exceptions_of_sse_fault_and_leave_the_destination_alone() {
    let mut random = Random::new(2);
    let mut guest = Guest::of(later());
    let mut faults = 0;
    every_form(&mut random, |form, random| {
        if !raises(form.instruction.mnemonic()) {
            return;
        }
        let native = Native::new(&form.bytes);
        let end = put(&mut guest, form);
        for _ in 0..4 * STATES {
            let mut before = State::random(random);
            before.mxcsr &= !0x3F;
            let mut expected = before.clone();
            expected.native(&native);
            // Underflow has a test of its own: unmasked it is another condition.
            let masks = random.next() as u32 & MASKS | UM;
            before.mxcsr = before.mxcsr & !MASKS | masks;
            expected.mxcsr = expected.mxcsr & !MASKS | masks;
            before.load(&mut guest);
            let flags = expected.mxcsr & 0x3F;
            let unmasked = flags & !masks >> 7;
            if unmasked == 0 {
                guest.run_to(end);
            } else {
                // Flags of the operands, and those of the result only if the operands raise nothing
                // unmasked.
                let flags = if unmasked & 7 != 0 { flags & 7 } else { flags };
                expected = before.clone();
                expected.mxcsr |= flags;
                let frame = guest.run_to_exception(XM, None);
                assert_eq!(frame.rip, KERNEL);
                faults += 1;
            }
            State::store(&guest).check(&mut expected, form, &before);
        }
    });
    assert!(faults > 1000, "only {faults} faults");
}

/// Whether an instruction raises SIMD floating-point exceptions.
fn raises(m: Mnemonic) -> bool {
    let name = format!("{m:?}").to_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    let arithmetic = [
        "add", "sub", "mul", "div", "sqrt", "min", "max", "cmp", "com", "ucom", "cvt", "hadd",
        "hsub", "round", "fmadd", "fmsub", "fnmadd", "fnmsub",
    ];
    arithmetic.iter().any(|a| name.starts_with(a))
}

#[test]
fn unmasked_underflow_is_raised_for_exact_results_too() {
    let mut guest = Guest::kernel(|a| {
        a.mulsd(xmm0, xmm1)?;
        a.hlt()
    });
    let mut run = |a: u64, b: f64, mxcsr: u32| {
        guest.update(|s| {
            s.rip = KERNEL;
            s.activity = Activity::Active;
            s.sys.cr4 |= cr4::OSXMMEXCPT;
            (s.xmm[0], s.xmm[1], s.mxcsr) = (a.into(), b.to_bits().into(), mxcsr);
        });
        guest.run();
        let cpu = &guest.soft.cpu;
        let fault = cpu.rip == crate::common::handler(XM) + 1;
        (fault, cpu.xmm[0] as u64, cpu.mxcsr & 0x3F)
    };
    const FTZ: u32 = 1 << 15;
    let smallest = f64::MIN_POSITIVE.to_bits();
    // Tiny and exact: masked it is no underflow, unmasked it is.
    assert_eq!(run(smallest, 0.5, MASKS), (false, smallest / 2, 0));
    assert_eq!(run(smallest, 0.5, MASKS & !UM), (true, smallest, 0x10));
    // Flushing to zero is for masked underflow only.
    assert_eq!(run(smallest, 0.5, MASKS | FTZ), (false, 0, 0x30));
    assert_eq!(
        run(smallest, 0.5, MASKS & !UM | FTZ),
        (true, smallest, 0x10)
    );
    // Not tiny.
    assert_eq!(
        run(smallest, 2.0, MASKS & !UM),
        (false, smallest + (1 << 52), 0)
    );
}

#[test]
fn sse_operands_of_16_bytes_are_aligned() {
    let mut random = Random::new(3);
    let mut guest = Guest::of(later());
    let mut faults = 0;
    every_form(&mut random, |form, random| {
        if !form.has_memory() {
            return;
        }
        let end = put(&mut guest, form);
        let mut before = State::random(random);
        fit(form, &mut before);
        before.memory.0.copy_within(0..FXSAVE - 8, 8);
        before.load(&mut guest);
        guest.update(|s| s.gpr[7] += 8);
        if must_be_aligned(form) {
            assert_eq!(
                guest.run_to_exception(GP, Some(0)).rip,
                KERNEL,
                "{}",
                form.instruction
            );
            faults += 1;
        } else {
            guest.run_to(end);
        }
    });
    assert!(faults > 100, "only {faults} faults");
}

/// Whether a memory operand must be aligned: those of 16 bytes without VEX, and those of moves that
/// say so.
fn must_be_aligned(form: &Form) -> bool {
    let i = &form.instruction;
    if i.op_code().encoding() == EncodingKind::VEX {
        let name = format!("{:?}", i.mnemonic());
        let moves = ["Vmovaps", "Vmovapd", "Vmovdqa", "Vmovnt"];
        return moves.iter().any(|name_of| name.starts_with(name_of));
    }
    let free = is_string_comparison(form)
        || matches!(
            i.mnemonic(),
            Mnemonic::Movups | Mnemonic::Movupd | Mnemonic::Movdqu | Mnemonic::Lddqu
        );
    let area = i.code().cpuid_features() == [CpuidFeature::FXSR];
    i.memory_size().size() == 16 && !free || area
}

/// Puts an instruction where the guest starts. Returns RIP after the HLT that follows it.
fn put(guest: &mut Guest, form: &Form) -> u64 {
    let mut code = form.bytes.clone();
    code.push(0xF4);
    guest.write_bytes(KERNEL, &code);
    KERNEL + code.len() as u64
}
