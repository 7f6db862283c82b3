//! Vector registers and MXCSR in native code.
//!
//! A guest's vector register is in the host's register of that number from its first use in a block
//! on, and in [`Cpu`](crate::processor::cpu::Cpu) always. [`Vectors`] is what is known at the place
//! that is being translated: only its methods emit code that moves vector state.

pub(crate) mod host_state;

use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, OpKind};

use crate::backend::jit::assembler::{Assembler, Ext, Imm, Label, Mem, Op, Xmm, cond};
use crate::backend::jit::registers::frame::FRAME_HOST_MXCSR;
use crate::backend::jit::registers::map::{CPU, SCRATCH};
use crate::backend::jit::registers::processor::{CR0, CR4, MXCSR, XCR0, xmm, ymm_high};
use crate::backend::jit::registers::scratch::vector_number;
use crate::exec::MXCSR_MASKS;
use crate::state::xsave::component;
use crate::state::{cr0, cr4};

/// The vector registers that an instruction uses: a bit each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsedVectors {
    /// Registers that it reads, or changes in part.
    reads: u16,
    /// Registers of which it reads the upper halves.
    reads_upper: u16,
    writes: u16,
    /// Whether a YMM register is an operand.
    wide: bool,
}

impl UsedVectors {
    /// Returns the vector registers of `i`.
    pub(crate) fn by(i: &Instruction, info: &mut InstructionInfoFactory) -> Self {
        let mut used = Self::default();
        for register in info.info(i).used_registers() {
            let r = register.register();
            let Some(n) = vector_number(r) else {
                continue;
            };
            let (read, written) = match register.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write => (false, true),
                _ => (true, true),
            };
            used.reads |= u16::from(read) << n;
            used.reads_upper |= u16::from(read && !r.is_xmm()) << n;
            used.writes |= u16::from(written) << n;
        }
        used.wide = (0..i.op_count())
            .any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_ymm());
        used
    }
}

/// The state of the host's vector registers and MXCSR at one place of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Vectors {
    /// XMM registers that contain the guest's values: a bit each.
    loaded: u16,
    /// YMM registers whose upper halves contain the guest's values.
    upper: u16,
    /// YMM registers whose upper halves are zero in [`Cpu`](crate::processor::cpu::Cpu).
    zero: u16,
    /// Whether the upper half of a host register may not be zero.
    dirty: bool,
    /// Whether the code before has checked that the system has SSE on.
    sse_on: bool,
    /// Whether the code before has checked that the system has AVX on.
    avx_on: bool,
    /// Whether MXCSR is the guest's, which masks every exception.
    mxcsr: bool,
}

impl Vectors {
    /// Whether [`Self::turn_on`] has something to check or to load.
    pub(crate) fn needs_turn_on(&self, avx: bool, uses_mxcsr: bool) -> bool {
        let on = if avx { self.avx_on } else { self.sse_on };
        !on || uses_mxcsr && !self.mxcsr
    }

    /// Jumps to `off` unless SSE or AVX is on and, for an instruction that uses MXCSR, every
    /// exception is masked. Loads the guest's MXCSR in this case. Clobbers SCRATCH and the host's
    /// flags.
    pub(crate) fn turn_on(&mut self, a: &mut Assembler, avx: bool, uses_mxcsr: bool, off: Label) {
        let load = uses_mxcsr && !self.mxcsr;
        let on = if avx { self.avx_on } else { self.sse_on };
        if !on && avx {
            a.test_mem32(&CR0, cr0::TS as u32);
            a.jump_if(cond::NE, off);
            a.test_mem32(&CR4, cr4::OSXSAVE as u32);
            a.jump_if(cond::E, off);
            a.test_mem32(&XCR0, component::AVX as u32);
            a.jump_if(cond::E, off);
        } else if !on {
            a.test_mem32(&CR0, (cr0::EM | cr0::TS) as u32);
            a.jump_if(cond::NE, off);
            a.test_mem32(&CR4, cr4::OSFXSR as u32);
            a.jump_if(cond::E, off);
        }
        if load {
            a.op_mem32(Op::Load, SCRATCH, &MXCSR);
            a.imm(false, Imm::And, SCRATCH, MXCSR_MASKS as i32);
            a.imm(false, Imm::Cmp, SCRATCH, MXCSR_MASKS as i32);
            a.jump_if(cond::NE, off);
            load_mxcsr(a, &MXCSR);
        }
        self.sse_on |= !avx;
        self.avx_on |= avx;
        self.mxcsr |= load;
    }

    /// Loads the registers that an instruction reads and that are not loaded.
    pub(crate) fn load_read(&mut self, a: &mut Assembler, used: UsedVectors) {
        let upper = used.reads_upper & !self.upper;
        self.load(a, used.reads & !self.loaded, upper);
        self.loaded |= used.reads;
        self.upper |= upper;
    }

    /// Loads XMM registers, and upper halves of YMM registers.
    fn load(&mut self, a: &mut Assembler, lower: u16, upper: u16) {
        for n in numbers(lower) {
            a.memory(false, MOVAPS_LOAD, Xmm(n), &xmm(n));
        }
        for n in numbers(upper) {
            insert_upper(a, n);
        }
        self.dirty |= upper != 0;
    }

    /// Stores the registers that an instruction has written: with `vex`, whole YMM registers.
    pub(crate) fn store_written(&mut self, a: &mut Assembler, used: UsedVectors, vex: bool) {
        for n in numbers(used.writes) {
            a.memory(false, MOVAPS_STORE, Xmm(n), &xmm(n));
        }
        self.loaded |= used.writes;
        if !vex {
            return;
        }
        let upper = if used.wide {
            used.writes
        } else {
            used.writes & !self.zero
        };
        for n in numbers(upper) {
            extract_upper(a, n);
        }
        self.upper |= used.writes;
        if used.wide {
            self.zero &= !used.writes;
            self.dirty = true;
        } else {
            self.zero |= used.writes;
        }
    }

    /// VZEROUPPER of the guest.
    pub(crate) fn zero_upper(&mut self, a: &mut Assembler) {
        a.bytes(&VZEROUPPER);
        let left = !self.zero;
        if left != 0 {
            // VXORPS XMM0, XMM0, XMM0
            a.bytes(&[0xC5, 0xF8, 0x57, 0xC0]);
            for n in numbers(left) {
                a.memory(false, MOVAPS_STORE, Xmm(0), &ymm_high(n));
            }
            self.load(a, self.loaded & 1, 0);
        }
        (self.zero, self.upper, self.dirty) = (u16::MAX, self.loaded, false);
    }

    /// Restores the host's MXCSR, and zeros in the upper halves of the host's registers, before
    /// Rust's code runs: see [`host_state`].
    pub(crate) fn unload(&mut self, a: &mut Assembler) {
        if self.mxcsr {
            store_mxcsr(a, &MXCSR);
            load_mxcsr(a, &FRAME_HOST_MXCSR);
            self.mxcsr = false;
        }
        if self.dirty {
            a.bytes(&VZEROUPPER);
            self.dirty = false;
        }
    }

    /// Checks that MXCSR and the upper halves are the host's, where native code calls Rust's code
    /// or leaves: see [`host_state`].
    pub(crate) fn assert_unloaded(&self) {
        debug_assert!(
            !self.mxcsr && !self.dirty,
            "native code leaves with the guest's vector state: {self:?}"
        );
    }

    /// Forgets everything, after Rust's code that can change CR0, CR4, MXCSR and all registers.
    pub(crate) fn forget(&mut self) {
        self.assert_unloaded();
        *self = Self::default();
    }

    /// Returns from a cold path, in which Rust's code has run, to code that expects the state
    /// `then`.
    pub(crate) fn return_to(&mut self, a: &mut Assembler, then: Self) {
        self.load(a, then.loaded, then.upper);
        if then.mxcsr {
            load_mxcsr(a, &MXCSR);
        }
        *self = then;
    }
}

/// Opcodes of MOVAPS.
const MOVAPS_LOAD: &[u8] = &[0x0F, 0x28];
const MOVAPS_STORE: &[u8] = &[0x0F, 0x29];
const VZEROUPPER: [u8; 3] = [0xC5, 0xF8, 0x77];

/// VINSERTF128 YMM, YMM, [the upper half in Cpu], 1
fn insert_upper(a: &mut Assembler, n: u8) {
    lane(a, 0x18, n, !n & 15);
}

/// VEXTRACTF128 [the upper half in Cpu], YMM, 1
fn extract_upper(a: &mut Assembler, n: u8) {
    lane(a, 0x19, n, 15);
}

/// VEX.256.66.0F3A.W0 with this opcode, register and VVVV, the register's upper half in memory, and
/// 1 (SDM Vol. 2A 2.3.5).
fn lane(a: &mut Assembler, opcode: u8, n: u8, vvvv: u8) {
    const { assert!(CPU.number() >= 8) };
    let m = ymm_high(n);
    // R and B, inverted; the base is CPU. There is no index.
    let registers = u8::from(n < 8) << 7 | 1 << 6;
    a.bytes(&[0xC4, registers | 3, vvvv << 3 | 1 << 2 | 1, opcode]);
    a.bytes(&[2 << 6 | (n & 7) << 3 | CPU.number() & 7]);
    a.bytes(&m.disp.to_le_bytes());
    a.bytes(&[1]);
}

/// Returns the numbers of the registers in `mask`.
fn numbers(mask: u16) -> impl Iterator<Item = u8> {
    (0..16).filter(move |n| mask >> n & 1 != 0)
}

fn load_mxcsr(a: &mut Assembler, m: &Mem) {
    a.memory(false, &[0x0F, 0xAE], Ext(2), m);
}

fn store_mxcsr(a: &mut Assembler, m: &Mem) {
    a.memory(false, &[0x0F, 0xAE], Ext(3), m);
}
