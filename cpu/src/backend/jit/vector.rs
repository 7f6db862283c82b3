//! SSE and AVX instructions as themselves. A guest's vector register is in the host's register of
//! that number from its first use in a block on, and in [`Cpu`](crate::processor::cpu::Cpu) always.

use iced_x86::{Code, IcedError, Instruction, OpAccess, OpKind};

use crate::backend::jit::assembler::{Assembler, Imm, Label, Mem, Op, RAX, cond};
use crate::backend::jit::borrowed::Borrowed;
use crate::backend::jit::flags::Fix;
use crate::backend::jit::form::{self, Operand};
use crate::backend::jit::layout::{CPU, CR0, CR4, FRAME_HOST_MXCSR, MXCSR, XCR0, xmm, ymm_high};
use crate::backend::jit::stub::Stub;
use crate::backend::jit::template::set_memory;
use crate::backend::jit::translate::{Item, Translator};
use crate::backend::jit::vector_form::{self, Vector};
use crate::exec::MXCSR_MASKS;
use crate::mmu::access::Access;
use crate::state::xsave::component;
use crate::state::{cr0, cr4};

/// The vector registers that an instruction uses: a bit each.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// Registers that it reads, or changes in part.
    reads: u16,
    /// Those of which it reads the upper halves.
    reads_upper: u16,
    writes: u16,
    /// It has a YMM register as an operand.
    wide: bool,
}

/// What is known at a place in a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Vectors {
    /// The XMM registers that have the guest's values: a bit each.
    loaded: u16,
    /// The YMM registers whose upper halves have.
    upper: u16,
    /// The YMM registers whose upper halves are zero in [`Cpu`](crate::processor::cpu::Cpu).
    zero: u16,
    /// The upper half of a host register may not be zero.
    dirty: bool,
    /// The system has SSE on.
    on: bool,
    /// The system has AVX on.
    avx: bool,
    /// MXCSR is the guest's, which masks every exception.
    mxcsr: bool,
}

impl Translator<'_> {
    /// Translates an instruction of SSE or AVX. Returns whether there is a template.
    pub(super) fn vector(&mut self, item: &Item) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        if i.code() == Code::VEX_Vzeroupper {
            self.zero_upper(item);
            return Ok(true);
        }
        let Some(vector) = vector_form::of(&i) else {
            return Ok(false);
        };
        i.set_code(vector.code);
        let memory = form::accesses_memory(&item.decoded, &item.insn);
        let operand = if memory {
            match Operand::of(&item.decoded, &item.insn, self.context.rip) {
                Some(operand) => Some(operand),
                None => return Ok(false),
            }
        } else {
            None
        };
        let access = self.access(&i);
        let mut borrowed = Borrowed::beside(memory);
        if !self.substitute(&mut i, &mut borrowed) {
            return Ok(false);
        }
        self.turn_on(item, vector.vex, vector.uses_mxcsr);
        let mut back = None;
        if let Some(operand) = operand {
            let (missed, label) = (self.asm.label(), self.asm.label());
            self.vector_memory(&mut i, &operand, access, vector, missed);
            back = Some((missed, label));
        }
        self.load_borrowed(&borrowed);
        let used = self.used_vectors(&i);
        let reads = used.reads & !self.vectors.loaded;
        let upper = used.reads_upper & !self.vectors.upper;
        self.load_vectors(reads, upper);
        self.asm.instruction(self.encoder, &i)?;
        self.store_vectors(used, vector.vex);
        self.vectors.loaded |= used.reads | used.writes;
        self.vectors.upper |= upper;
        self.store_borrowed(&borrowed);
        if vector.writes_flags {
            self.flags_in_host(Fix::None, None);
        }
        if let Some((missed, back)) = back {
            self.on_miss(missed, back, item.start);
            self.asm.bind(back);
        }
        Ok(true)
    }

    /// VZEROUPPER.
    fn zero_upper(&mut self, item: &Item) {
        self.turn_on(item, true, false);
        self.asm.bytes(&VZEROUPPER);
        let left = !self.vectors.zero;
        if left != 0 {
            // VXORPS XMM0, XMM0, XMM0
            self.asm.bytes(&[0xC5, 0xF8, 0x57, 0xC0]);
            for n in registers(left) {
                self.asm.memory(false, MOVAPS_STORE, 0, &ymm_high(n));
            }
            self.load_vectors(self.vectors.loaded & 1, 0);
        }
        let vectors = &mut self.vectors;
        (vectors.zero, vectors.upper, vectors.dirty) = (u16::MAX, vectors.loaded, false);
    }

    /// Leaves the block to the interpreter unless SSE or AVX is on and, for an instruction that
    /// uses MXCSR, every exception is masked.
    fn turn_on(&mut self, item: &Item, avx: bool, uses_mxcsr: bool) {
        let load = uses_mxcsr && !self.vectors.mxcsr;
        let on = if avx {
            self.vectors.avx
        } else {
            self.vectors.on
        };
        if on && !load {
            return;
        }
        self.save_flags();
        let at = self.asm.label();
        if !on && avx {
            self.asm.test_mem32(&CR0, cr0::TS as u32);
            self.asm.jump_if(cond::NE, at);
            self.asm.test_mem32(&CR4, cr4::OSXSAVE as u32);
            self.asm.jump_if(cond::E, at);
            self.asm.test_mem32(&XCR0, component::AVX as u32);
            self.asm.jump_if(cond::E, at);
        } else if !on {
            self.asm.test_mem32(&CR0, (cr0::EM | cr0::TS) as u32);
            self.asm.jump_if(cond::NE, at);
            self.asm.test_mem32(&CR4, cr4::OSFXSR as u32);
            self.asm.jump_if(cond::E, at);
        }
        if load {
            self.asm.op_mem32(Op::Load, RAX, &MXCSR);
            self.asm.imm(false, Imm::And, RAX, MXCSR_MASKS as i32);
            self.asm.imm(false, Imm::Cmp, RAX, MXCSR_MASKS as i32);
            self.asm.jump_if(cond::NE, at);
            load_mxcsr(self.asm, &MXCSR);
        }
        self.stubs.push(Stub::Finish {
            at,
            first: item.start,
            vectors: self.vectors,
        });
        self.vectors.on |= !avx;
        self.vectors.avx |= avx;
        self.vectors.mxcsr |= load;
    }

    /// Finds the memory operand. An operand that has to be aligned and is not takes the way of one
    /// that is not in the TLB.
    fn vector_memory(
        &mut self,
        i: &mut Instruction,
        operand: &Operand,
        access: Access,
        vector: Vector,
        missed: Label,
    ) {
        self.save_flags();
        let m = self.probe(operand, access, missed);
        if operand.size >= 16 && !vector.unaligned {
            self.asm.lea(RAX, &m);
            // TEST AL, size - 1
            self.asm.bytes(&[0xA8, operand.size as u8 - 1]);
            self.asm.jump_if(cond::NE, missed);
        }
        set_memory(i, &m);
    }

    fn used_vectors(&mut self, i: &Instruction) -> Used {
        let mut used = Used::default();
        for register in self.info.info(i).used_registers() {
            let r = register.register();
            let Some(n) = vector_form::number(r) else {
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

    /// Loads XMM registers, and upper halves of YMM registers, which those then are without.
    fn load_vectors(&mut self, mask: u16, upper: u16) {
        for n in registers(mask) {
            self.asm.memory(false, MOVAPS_LOAD, n, &xmm(n));
        }
        for n in registers(upper) {
            insert_upper(self.asm, n);
        }
        self.vectors.dirty |= upper != 0;
    }

    /// Stores what an instruction has written. With VEX it has written whole registers.
    fn store_vectors(&mut self, used: Used, vex: bool) {
        for n in registers(used.writes) {
            self.asm.memory(false, MOVAPS_STORE, n, &xmm(n));
        }
        if !vex {
            return;
        }
        let upper = if used.wide {
            used.writes
        } else {
            used.writes & !self.vectors.zero
        };
        for n in registers(upper) {
            extract_upper(self.asm, n);
        }
        let vectors = &mut self.vectors;
        vectors.upper |= used.writes;
        if used.wide {
            vectors.zero &= !used.writes;
            vectors.dirty = true;
        } else {
            vectors.zero |= used.writes;
        }
    }

    /// Brings MXCSR back to the host's value, and the upper halves of the host's registers to zero,
    /// before anything but an instruction of the block: Rust's code is slow with those.
    pub(super) fn unload_vectors(&mut self) {
        if self.vectors.mxcsr {
            store_mxcsr(self.asm, &MXCSR);
            load_mxcsr(self.asm, &FRAME_HOST_MXCSR);
            self.vectors.mxcsr = false;
        }
        if self.vectors.dirty {
            self.asm.bytes(&VZEROUPPER);
            self.vectors.dirty = false;
        }
    }

    /// Checks that MXCSR and the upper halves are the host's here, where native code calls Rust's
    /// code or leaves: see [`host_vectors`](super::host_vectors).
    pub(super) fn assert_unloaded(&self) {
        debug_assert!(
            !self.vectors.mxcsr && !self.vectors.dirty,
            "native code leaves with the guest's vector state: {:?}",
            self.vectors
        );
    }

    /// Restores the vector registers and MXCSR as in `vectors`, after Rust's code has run.
    pub(super) fn reload_vectors(&mut self, vectors: Vectors) {
        self.load_vectors(vectors.loaded, vectors.upper);
        if vectors.mxcsr {
            load_mxcsr(self.asm, &MXCSR);
        }
        self.vectors = vectors;
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
    let m = ymm_high(n);
    // R and B, inverted; the base is R15. There is no index.
    let registers = u8::from(n < 8) << 7 | 1 << 6;
    a.bytes(&[0xC4, registers | 3, vvvv << 3 | 1 << 2 | 1, opcode]);
    a.bytes(&[2 << 6 | (n & 7) << 3 | CPU & 7]);
    a.bytes(&m.disp.to_le_bytes());
    a.bytes(&[1]);
}

/// The numbers of the registers in `mask`.
fn registers(mask: u16) -> impl Iterator<Item = u8> {
    (0..16).filter(move |n| mask >> n & 1 != 0)
}

fn load_mxcsr(a: &mut Assembler, m: &Mem) {
    a.memory(false, &[0x0F, 0xAE], 2, m);
}

fn store_mxcsr(a: &mut Assembler, m: &Mem) {
    a.memory(false, &[0x0F, 0xAE], 3, m);
}
