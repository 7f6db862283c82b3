//! Runs one x87 instruction on the host's FPU.
//!
//! FRSTOR loads the guest's FPU with its own exception masks, the instruction runs, and FNSAVE
//! takes the state back, which also leaves the host's FPU as FNINIT does and as the ABI wants it.
//! An unmasked exception only becomes *pending* in the FPU: the host would trap at the next waiting
//! instruction, and FNSAVE is not one. So registers, stack and flags are what the hardware makes of
//! them in every case.

use std::arch::{asm, global_asm};

use crate::state::{X87State, rflags};

// Every x87 instruction, each in four bytes with its RET: first those with register operands, by
// opcode D8-DF and ModRM C0-FF, then those with a memory operand at RDI, by opcode and the reg
// field of ModRM.
global_asm!(
    ".pushsection .text.vbts_cpu_x87, \"ax\", @progbits",
    ".balign 64",
    "vbts_cpu_x87_register_forms:",
    ".set vbts_opcode, 0xD8",
    ".rept 8",
    ".set vbts_modrm, 0xC0",
    ".rept 64",
    ".byte vbts_opcode, vbts_modrm, 0xC3, 0x90",
    ".set vbts_modrm, vbts_modrm + 1",
    ".endr",
    ".set vbts_opcode, vbts_opcode + 1",
    ".endr",
    "vbts_cpu_x87_memory_forms:",
    ".set vbts_opcode, 0xD8",
    ".rept 8",
    ".set vbts_modrm, 0x07",
    ".rept 8",
    ".byte vbts_opcode, vbts_modrm, 0xC3, 0x90",
    ".set vbts_modrm, vbts_modrm + 8",
    ".endr",
    ".set vbts_opcode, vbts_opcode + 1",
    ".endr",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "vbts_cpu_x87_register_forms"]
    static REGISTER_FORMS: [[u8; 4]; 512];
    #[link_name = "vbts_cpu_x87_memory_forms"]
    static MEMORY_FORMS: [[u8; 4]; 64];
}

/// The largest memory operand of an arithmetic instruction: 80 bits.
pub(super) type Operand = [u8; 16];

/// The memory image of FRSTOR and FNSAVE in the 32-bit protected-mode format (SDM Vol. 1 figure
/// 8-9).
#[repr(C)]
struct Image {
    fcw: u32,
    fsw: u32,
    ftw: u32,
    pointers: [u32; 4],
    st: [[u8; 10]; 8],
}

impl Image {
    fn load(x87: &X87State) -> Self {
        Self {
            fcw: x87.fcw.into(),
            fsw: x87.fsw.into(),
            ftw: empty_tags(x87.ftw).into(),
            pointers: [0; 4],
            st: std::array::from_fn(|i| {
                let [b @ .., _, _, _, _, _, _] = x87.st(i).to_le_bytes();
                b
            }),
        }
    }

    fn store(&self, x87: &mut X87State) {
        x87.fcw = self.fcw as u16;
        x87.fsw = self.fsw as u16;
        x87.ftw = abridged_tags(self.ftw as u16);
        for (i, b) in self.st.iter().enumerate() {
            let mut wide = [0; 16];
            wide[..10].copy_from_slice(b);
            x87.set_st(i, u128::from_le_bytes(wide));
        }
    }
}

/// A tag word that distinguishes empty registers (11) from the others (00). FRSTOR ignores the rest
/// of a tag.
fn empty_tags(ftw: u8) -> u16 {
    let mut x = u16::from(!ftw);
    x = (x | x << 4) & 0x0F0F;
    x = (x | x << 2) & 0x3333;
    x = (x | x << 1) & 0x5555;
    x | x << 1
}

/// The abridged tag word: set where the tag is not 11.
pub(super) fn abridged_tags(tags: u16) -> u8 {
    let mut x = !(tags & tags >> 1) & 0x5555;
    x = (x | x >> 1) & 0x3333;
    x = (x | x >> 2) & 0x0F0F;
    (x | x >> 4) as u8
}

/// Runs the register form with ModRM `modrm` (at least C0) of opcode D8 + `opcode` (0-7). `flags`
/// is the guest's RFLAGS; returns them after the instruction.
///
/// # Safety
/// No exception is pending in `x87`: the host would trap. The instruction is defined, and accesses
/// nothing but the FPU and RFLAGS: it is not FNSTSW AX.
pub(super) unsafe fn run_register(x87: &mut X87State, opcode: u8, modrm: u8, flags: u64) -> u64 {
    let n = usize::from(opcode & 7) << 6 | usize::from(modrm & 0x3F);
    // SAFETY: `n` is below 512.
    let stub = unsafe { (&raw const REGISTER_FORMS).cast::<[u8; 4]>().add(n) };
    // SAFETY: the caller's promise. There is no operand.
    unsafe { run(x87, stub, &mut [0; 16], flags) }
}

/// Runs the form with a memory operand with `reg` in ModRM of opcode D8 + `opcode` (0-7), on
/// `operand`.
///
/// # Safety
/// No exception is pending in `x87`. The instruction is defined, and accesses at most 16 bytes: it
/// is not FLDENV, FNSTENV, FRSTOR or FNSAVE.
pub(super) unsafe fn run_memory(x87: &mut X87State, opcode: u8, reg: u8, operand: &mut Operand) {
    let n = usize::from(opcode & 7) << 3 | usize::from(reg & 7);
    // SAFETY: `n` is below 64.
    let stub = unsafe { (&raw const MEMORY_FORMS).cast::<[u8; 4]>().add(n) };
    // SAFETY: the caller's promise.
    unsafe { run(x87, stub, operand, 0) };
}

/// Runs the instruction at `stub`.
///
/// # Safety
/// It is an x87 instruction that accesses at most `operand`, the FPU and RFLAGS. No exception is
/// pending in `x87`.
unsafe fn run(x87: &mut X87State, stub: *const [u8; 4], operand: &mut Operand, flags: u64) -> u64 {
    debug_assert!(!x87.pending());
    let mut image = Image::load(x87);
    let mut flags = flags & rflags::ARITH;
    // SAFETY: the caller's promise. No exception is pending, so that the instruction does not trap,
    // and FNSAVE does not wait for one that it raises. The FPU is left as after FNINIT.
    unsafe {
        asm!(
            "frstor [{image}]",
            "push {flags}",
            "popfq",
            "call {stub}",
            "pushfq",
            "pop {flags}",
            "fnsave [{image}]",
            image = in(reg) &raw mut image,
            stub = in(reg) stub,
            flags = inout(reg) flags,
            in("rdi") operand.as_mut_ptr(),
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
    image.store(x87);
    flags
}
