//! The instructions that native code may have.

use iced_x86::{CpuidFeature, Instruction, Mnemonic, OpKind, Register};

use crate::{Refused, Why};

/// Checks the operation and the register operands of an instruction.
pub(crate) fn check(i: &Instruction) -> Result<(), Refused> {
    let refused = |why| Refused {
        address: i.ip(),
        why,
    };
    if i.is_invalid() || !(is_listed(i.mnemonic()) || is_vector(i)) {
        return Err(refused(Why::Instruction));
    }
    let repeats = i.has_rep_prefix() || i.has_repne_prefix();
    if repeats || !(0..i.op_count()).all(|n| is_operand(i, n)) {
        return Err(refused(Why::Operand));
    }
    Ok(())
}

/// Whether an operand is memory that the instruction names, a value, or a register whose value
/// nothing relies on.
fn is_operand(i: &Instruction, n: u32) -> bool {
    match i.op_kind(n) {
        OpKind::Register => {
            let r = i.op_register(n);
            let is_general = r.is_gpr() && !is_base(r);
            is_general || (r.is_xmm() || r.is_ymm()) && r.number() < 16
        }
        OpKind::Memory => !i.is_vsib(),
        OpKind::NearBranch64
        | OpKind::Immediate8
        | OpKind::Immediate8_2nd
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => true,
        _ => false,
    }
}

/// Whether a register has an address on which the rules rely, or is a part of one.
fn is_base(r: Register) -> bool {
    matches!(r.full_register(), Register::RSP | Register::R15)
}

/// The instructions that are not of a vector extension. None accesses other memory than its
/// operand, or other implicit registers than RAX, RDX and flags.
fn is_listed(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Mov | Movzx
            | Movsx
            | Movsxd
            | Movbe
            | Lea
            | Xchg
            | Bswap
            | Nop
            | Ud2
            | Add
            | Adc
            | Sub
            | Sbb
            | Cmp
            | And
            | Or
            | Xor
            | Test
            | Not
            | Neg
            | Inc
            | Dec
            | Mul
            | Imul
            | Div
            | Idiv
            | Mulx
            | Cbw
            | Cwde
            | Cdqe
            | Cwd
            | Cdq
            | Cqo
            | Shl
            | Sal
            | Shr
            | Sar
            | Rol
            | Ror
            | Shld
            | Shrd
            | Rorx
            | Sarx
            | Shlx
            | Shrx
            | Bt
            | Bts
            | Btr
            | Btc
            | Bsf
            | Bsr
            | Popcnt
            | Lzcnt
            | Tzcnt
            | Pdep
            | Pext
            | Andn
            | Bextr
            | Blsi
            | Blsmsk
            | Blsr
            | Bzhi
            | Crc32
            | Xadd
            | Cmpxchg
            | Cmpxchg8b
            | Cmpxchg16b
            | Lahf
            | Sahf
            | Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
            | Seta
            | Setae
            | Setb
            | Setbe
            | Sete
            | Setg
            | Setge
            | Setl
            | Setle
            | Setne
            | Setno
            | Setnp
            | Setns
            | Seto
            | Setp
            | Sets
            | Jmp
            | Call
            | Ja
            | Jae
            | Jb
            | Jbe
            | Je
            | Jg
            | Jge
            | Jl
            | Jle
            | Jne
            | Jno
            | Jnp
            | Jns
            | Jo
            | Jp
            | Js
    )
}

/// Whether it is an instruction of SSE, AVX or an extension of them, without those that access
/// memory at RDI.
fn is_vector(i: &Instruction) -> bool {
    use CpuidFeature::*;
    let features = i.code().cpuid_features();
    let listed = |feature: &CpuidFeature| {
        matches!(
            feature,
            SSE | SSE2
                | SSE3
                | SSSE3
                | SSE4_1
                | SSE4_2
                | AES
                | PCLMULQDQ
                | SHA
                | GFNI
                | AVX
                | AVX2
                | F16C
                | FMA
                | VAES
                | VPCLMULQDQ
        )
    };
    let at_rdi = matches!(
        i.mnemonic(),
        Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu
    );
    !features.is_empty() && features.iter().all(listed) && !at_rdi
}
