//! Which SSE instructions have a template.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

/// How an SSE instruction becomes native code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vector {
    pub code: Code,
    /// A memory operand of 16 bytes need not be aligned.
    pub unaligned: bool,
    /// It rounds, or sets flags of MXCSR.
    pub uses_mxcsr: bool,
    /// It writes all arithmetic flags.
    pub writes_flags: bool,
}

/// The number of an XMM register.
pub(super) fn number(r: Register) -> Option<u8> {
    r.is_xmm().then(|| r.number() as u8)
}

/// Classifies an instruction. `None`: it has no template.
pub(super) fn of(i: &Instruction) -> Option<Vector> {
    let mnemonic = i.mnemonic();
    let uses_mxcsr = uses_mxcsr(mnemonic);
    if !(uses_mxcsr || moves_or_computes(mnemonic)) || !has_vector(i) {
        return None;
    }
    Some(Vector {
        code: temporal(i.code()),
        unaligned: matches!(
            mnemonic,
            Mnemonic::Movups
                | Mnemonic::Movupd
                | Mnemonic::Movdqu
                | Mnemonic::Lddqu
                | Mnemonic::Pcmpistri
                | Mnemonic::Pcmpistrm
        ),
        uses_mxcsr,
        writes_flags: matches!(
            mnemonic,
            Mnemonic::Comiss
                | Mnemonic::Comisd
                | Mnemonic::Ucomiss
                | Mnemonic::Ucomisd
                | Mnemonic::Ptest
                | Mnemonic::Pcmpistri
                | Mnemonic::Pcmpistrm
        ),
    })
}

/// Whether an XMM register is an operand, and no MMX register is.
fn has_vector(i: &Instruction) -> bool {
    let mut registers = (0..i.op_count())
        .filter(|n| i.op_kind(*n) == OpKind::Register)
        .map(|n| i.op_register(n));
    registers.clone().any(Register::is_xmm) && !registers.any(Register::is_mm)
}

/// The code of the same instruction without a hint for the caches. The hint would let the host
/// reorder the access.
fn temporal(code: Code) -> Code {
    match code {
        Code::Movntps_m128_xmm => Code::Movaps_xmmm128_xmm,
        Code::Movntpd_m128_xmm => Code::Movapd_xmmm128_xmm,
        Code::Movntdq_m128_xmm => Code::Movdqa_xmmm128_xmm,
        Code::Movntdqa_xmm_m128 => Code::Movdqa_xmm_xmmm128,
        other => other,
    }
}

/// Moves, integers, and whatever else MXCSR does not concern.
fn moves_or_computes(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Movaps | Movapd | Movdqa | Movups | Movupd | Movdqu | Lddqu
            | Movntps | Movntpd | Movntdq | Movntdqa
            | Movd | Movq | Movss | Movsd | Movhps | Movhpd | Movlps | Movlpd | Movhlps | Movlhps
            | Movddup | Movshdup | Movsldup | Movmskps | Movmskpd | Pmovmskb
            | Pand | Pandn | Por | Pxor
            | Andps | Andpd | Andnps | Andnpd | Orps | Orpd | Xorps | Xorpd
            | Paddb | Paddw | Paddd | Paddq | Paddsb | Paddsw | Paddusb | Paddusw
            | Psubb | Psubw | Psubd | Psubq | Psubsb | Psubsw | Psubusb | Psubusw
            | Pmullw | Pmulhw | Pmulhuw | Pmuludq | Pmaddwd | Pavgb | Pavgw | Psadbw
            | Pminub | Pmaxub | Pminsw | Pmaxsw
            | Pcmpeqb | Pcmpeqw | Pcmpeqd | Pcmpgtb | Pcmpgtw | Pcmpgtd
            | Psllw | Pslld | Psllq | Pslldq | Psrlw | Psrld | Psrlq | Psrldq | Psraw | Psrad
            | Packsswb | Packssdw | Packuswb
            | Punpcklbw | Punpcklwd | Punpckldq | Punpcklqdq
            | Punpckhbw | Punpckhwd | Punpckhdq | Punpckhqdq
            | Pshufd | Pshuflw | Pshufhw | Shufps | Shufpd
            | Unpcklps | Unpcklpd | Unpckhps | Unpckhpd | Pinsrw | Pextrw
            // SSSE3
            | Pshufb | Palignr | Pabsb | Pabsw | Pabsd | Psignb | Psignw | Psignd
            | Phaddw | Phaddd | Phaddsw | Phsubw | Phsubd | Phsubsw | Pmaddubsw | Pmulhrsw
            // SSE4.1
            | Pblendw | Pblendvb | Blendps | Blendpd | Blendvps | Blendvpd
            | Pminsb | Pminuw | Pminsd | Pminud | Pmaxsb | Pmaxuw | Pmaxsd | Pmaxud
            | Pmulld | Pmuldq | Pcmpeqq | Packusdw | Ptest
            | Pmovsxbw | Pmovsxbd | Pmovsxbq | Pmovsxwd | Pmovsxwq | Pmovsxdq
            | Pmovzxbw | Pmovzxbd | Pmovzxbq | Pmovzxwd | Pmovzxwq | Pmovzxdq
            | Pinsrb | Pinsrd | Pinsrq | Pextrb | Pextrd | Pextrq | Insertps | Extractps
            | Mpsadbw | Phminposuw
            // SSE4.2
            | Pcmpgtq | Pcmpistri | Pcmpistrm
    )
}

/// Floating-point arithmetic, comparisons and conversions.
fn uses_mxcsr(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Addps | Addpd | Addss | Addsd | Subps | Subpd | Subss | Subsd
            | Mulps | Mulpd | Mulss | Mulsd | Divps | Divpd | Divss | Divsd
            | Minps | Minpd | Minss | Minsd | Maxps | Maxpd | Maxss | Maxsd
            | Sqrtps | Sqrtpd | Sqrtss | Sqrtsd
            | Cmpps | Cmppd | Cmpss | Cmpsd | Comiss | Comisd | Ucomiss | Ucomisd
            | Cvtsi2ss | Cvtsi2sd | Cvtss2si | Cvtsd2si | Cvttss2si | Cvttsd2si
            | Cvtss2sd | Cvtsd2ss | Cvtps2pd | Cvtpd2ps
            | Cvtdq2ps | Cvtps2dq | Cvttps2dq | Cvtdq2pd | Cvtpd2dq | Cvttpd2dq
            // SSE4.1
            | Roundps | Roundpd | Roundss | Roundsd
    )
}
