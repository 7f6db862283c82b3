//! SSE and AVX instructions that become native code as themselves.

use iced_x86::{Code, EncodingKind, Instruction, Mnemonic, OpKind, Register};

use crate::backend::jit::registers::scratch::vector_number;
use crate::model::host_has;

/// The form of such an instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorForm {
    pub code: Code,
    /// It has VEX: it writes whole YMM registers.
    pub vex: bool,
    /// A memory operand of 16 or 32 bytes need not be aligned.
    pub unaligned: bool,
    /// It rounds, or sets flags of MXCSR.
    pub uses_mxcsr: bool,
    /// It writes all arithmetic flags.
    pub writes_flags: bool,
}

/// Returns the form of an instruction, or `None` if it has no template.
pub(crate) fn of(i: &Instruction) -> Option<VectorForm> {
    let vex = i.code().encoding() == EncodingKind::VEX;
    let mnemonic = i.mnemonic();
    let (uses_mxcsr, computes) = if vex {
        (vex_uses_mxcsr(mnemonic), vex_moves_or_computes(mnemonic))
    } else {
        (uses_mxcsr(mnemonic), moves_or_computes(mnemonic))
    };
    if !(uses_mxcsr || computes) || !has_vector(i) || !host_executes(i) {
        return None;
    }
    Some(VectorForm {
        code: temporal(i.code()),
        vex,
        unaligned: if vex {
            !has_to_be_aligned(mnemonic)
        } else {
            matches!(
                mnemonic,
                Mnemonic::Movups
                    | Mnemonic::Movupd
                    | Mnemonic::Movdqu
                    | Mnemonic::Lddqu
                    | Mnemonic::Pcmpistri
                    | Mnemonic::Pcmpistrm
            )
        },
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
                | Mnemonic::Vcomiss
                | Mnemonic::Vcomisd
                | Mnemonic::Vucomiss
                | Mnemonic::Vucomisd
                | Mnemonic::Vptest
                | Mnemonic::Vtestps
                | Mnemonic::Vtestpd
        ),
    })
}

/// Whether the host's processor has the instruction. The interpreter executes some that it lacks.
fn host_executes(i: &Instruction) -> bool {
    let mut features = i.cpuid_features().iter();
    features.all(|feature| host_has(*feature))
}

/// Whether an XMM or YMM register is an operand, and no MMX register is.
fn has_vector(i: &Instruction) -> bool {
    let mut registers = (0..i.op_count())
        .filter(|n| i.op_kind(*n) == OpKind::Register)
        .map(|n| i.op_register(n));
    let is_vector = |r| vector_number(r).is_some();
    registers.clone().any(is_vector) && !registers.any(Register::is_mm)
}

/// Whether an instruction with VEX needs a memory operand that is aligned to its size.
fn has_to_be_aligned(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa
    )
}

/// The code of the same instruction without a hint for the caches. The hint would let the host
/// reorder the access.
fn temporal(code: Code) -> Code {
    match code {
        Code::Movntps_m128_xmm => Code::Movaps_xmmm128_xmm,
        Code::Movntpd_m128_xmm => Code::Movapd_xmmm128_xmm,
        Code::Movntdq_m128_xmm => Code::Movdqa_xmmm128_xmm,
        Code::Movntdqa_xmm_m128 => Code::Movdqa_xmm_xmmm128,
        Code::VEX_Vmovntps_m128_xmm => Code::VEX_Vmovaps_xmmm128_xmm,
        Code::VEX_Vmovntpd_m128_xmm => Code::VEX_Vmovapd_xmmm128_xmm,
        Code::VEX_Vmovntdq_m128_xmm => Code::VEX_Vmovdqa_xmmm128_xmm,
        Code::VEX_Vmovntdqa_xmm_m128 => Code::VEX_Vmovdqa_xmm_xmmm128,
        Code::VEX_Vmovntps_m256_ymm => Code::VEX_Vmovaps_ymmm256_ymm,
        Code::VEX_Vmovntpd_m256_ymm => Code::VEX_Vmovapd_ymmm256_ymm,
        Code::VEX_Vmovntdq_m256_ymm => Code::VEX_Vmovdqa_ymmm256_ymm,
        Code::VEX_Vmovntdqa_ymm_m256 => Code::VEX_Vmovdqa_ymm_ymmm256,
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
            // AES, PCLMULQDQ, SHA
            | Aesenc | Aesenclast | Aesdec | Aesdeclast | Aesimc | Aeskeygenassist | Pclmulqdq
            | Sha1rnds4 | Sha1nexte | Sha1msg1 | Sha1msg2 | Sha256rnds2 | Sha256msg1 | Sha256msg2
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

/// As [`moves_or_computes`], with VEX.
fn vex_moves_or_computes(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        // The instructions of SSE
        Vmovaps | Vmovapd | Vmovdqa | Vmovups | Vmovupd | Vmovdqu | Vlddqu | Vmovntps | Vmovntpd
            | Vmovntdq | Vmovntdqa | Vmovd | Vmovq | Vmovss | Vmovsd | Vmovhps | Vmovhpd
            | Vmovlps | Vmovlpd | Vmovhlps | Vmovlhps | Vmovddup | Vmovshdup | Vmovsldup
            | Vmovmskps | Vmovmskpd | Vpmovmskb | Vpand | Vpandn | Vpor | Vpxor | Vandps | Vandpd
            | Vandnps | Vandnpd | Vorps | Vorpd | Vxorps | Vxorpd | Vpaddb | Vpaddw | Vpaddd
            | Vpaddq | Vpaddsb | Vpaddsw | Vpaddusb | Vpaddusw | Vpsubb | Vpsubw | Vpsubd
            | Vpsubq | Vpsubsb | Vpsubsw | Vpsubusb | Vpsubusw | Vpmullw | Vpmulhw | Vpmulhuw
            | Vpmuludq | Vpmaddwd | Vpavgb | Vpavgw | Vpsadbw | Vpminub | Vpmaxub | Vpminsw
            | Vpmaxsw | Vpcmpeqb | Vpcmpeqw | Vpcmpeqd | Vpcmpgtb | Vpcmpgtw | Vpcmpgtd | Vpsllw
            | Vpslld | Vpsllq | Vpslldq | Vpsrlw | Vpsrld | Vpsrlq | Vpsrldq | Vpsraw | Vpsrad
            | Vpacksswb | Vpackssdw | Vpackuswb | Vpunpcklbw | Vpunpcklwd | Vpunpckldq
            | Vpunpcklqdq | Vpunpckhbw | Vpunpckhwd | Vpunpckhdq | Vpunpckhqdq | Vpshufd
            | Vpshuflw | Vpshufhw | Vshufps | Vshufpd | Vunpcklps | Vunpcklpd | Vunpckhps
            | Vunpckhpd | Vpinsrw | Vpextrw | Vpshufb | Vpalignr | Vpabsb | Vpabsw | Vpabsd
            | Vpsignb | Vpsignw | Vpsignd | Vphaddw | Vphaddd | Vphaddsw | Vphsubw | Vphsubd
            | Vphsubsw | Vpmaddubsw | Vpmulhrsw | Vpblendw | Vpblendvb | Vblendps | Vblendpd
            | Vblendvps | Vblendvpd | Vpminsb | Vpminuw | Vpminsd | Vpminud | Vpmaxsb | Vpmaxuw
            | Vpmaxsd | Vpmaxud | Vpmulld | Vpmuldq | Vpcmpeqq | Vpackusdw | Vptest | Vpmovsxbw
            | Vpmovsxbd | Vpmovsxbq | Vpmovsxwd | Vpmovsxwq | Vpmovsxdq | Vpmovzxbw | Vpmovzxbd
            | Vpmovzxbq | Vpmovzxwd | Vpmovzxwq | Vpmovzxdq | Vpinsrb | Vpinsrd | Vpinsrq
            | Vpextrb | Vpextrd | Vpextrq | Vinsertps | Vextractps | Vmpsadbw | Vphminposuw
            | Vpcmpgtq
            // AVX, AVX2
            | Vbroadcastss | Vbroadcastsd | Vbroadcastf128 | Vbroadcasti128 | Vpbroadcastb
            | Vpbroadcastw | Vpbroadcastd | Vpbroadcastq | Vinsertf128 | Vinserti128
            | Vextractf128 | Vextracti128 | Vperm2f128 | Vperm2i128 | Vpermilps | Vpermilpd
            | Vpermd | Vpermq | Vpermps | Vpermpd | Vpblendd | Vpsllvd | Vpsllvq | Vpsrlvd
            | Vpsrlvq | Vpsravd | Vtestps | Vtestpd
            // AES, VAES, PCLMULQDQ, VPCLMULQDQ
            | Vaesenc | Vaesenclast | Vaesdec | Vaesdeclast | Vaesimc | Vaeskeygenassist
            | Vpclmulqdq
            // Those of a page in the TLB never fault, whatever their masks select.
            | Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq
    )
}

/// As [`uses_mxcsr`], with VEX.
fn vex_uses_mxcsr(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        // The instructions of SSE
        Vaddps | Vaddpd | Vaddss | Vaddsd | Vsubps | Vsubpd | Vsubss | Vsubsd | Vmulps | Vmulpd
            | Vmulss | Vmulsd | Vdivps | Vdivpd | Vdivss | Vdivsd | Vminps | Vminpd | Vminss
            | Vminsd | Vmaxps | Vmaxpd | Vmaxss | Vmaxsd | Vsqrtps | Vsqrtpd | Vsqrtss | Vsqrtsd
            | Vcmpps | Vcmppd | Vcmpss | Vcmpsd | Vcomiss | Vcomisd | Vucomiss | Vucomisd
            | Vcvtsi2ss | Vcvtsi2sd | Vcvtss2si | Vcvtsd2si | Vcvttss2si | Vcvttsd2si | Vcvtss2sd
            | Vcvtsd2ss | Vcvtps2pd | Vcvtpd2ps | Vcvtdq2ps | Vcvtps2dq | Vcvttps2dq | Vcvtdq2pd
            | Vcvtpd2dq | Vcvttpd2dq | Vroundps | Vroundpd | Vroundss | Vroundsd
            // F16C
            | Vcvtph2ps | Vcvtps2ph
            // FMA
            | Vfmadd132ps | Vfmadd132pd | Vfmadd132ss | Vfmadd132sd | Vfmadd213ps | Vfmadd213pd
            | Vfmadd213ss | Vfmadd213sd | Vfmadd231ps | Vfmadd231pd | Vfmadd231ss | Vfmadd231sd
            | Vfmsub132ps | Vfmsub132pd | Vfmsub132ss | Vfmsub132sd | Vfmsub213ps | Vfmsub213pd
            | Vfmsub213ss | Vfmsub213sd | Vfmsub231ps | Vfmsub231pd | Vfmsub231ss | Vfmsub231sd
            | Vfnmadd132ps | Vfnmadd132pd | Vfnmadd132ss | Vfnmadd132sd | Vfnmadd213ps
            | Vfnmadd213pd | Vfnmadd213ss | Vfnmadd213sd | Vfnmadd231ps | Vfnmadd231pd
            | Vfnmadd231ss | Vfnmadd231sd | Vfnmsub132ps | Vfnmsub132pd | Vfnmsub132ss
            | Vfnmsub132sd | Vfnmsub213ps | Vfnmsub213pd | Vfnmsub213ss | Vfnmsub213sd
            | Vfnmsub231ps | Vfnmsub231pd | Vfnmsub231ss | Vfnmsub231sd | Vfmaddsub132ps
            | Vfmaddsub132pd | Vfmaddsub213ps | Vfmaddsub213pd | Vfmaddsub231ps | Vfmaddsub231pd
            | Vfmsubadd132ps | Vfmsubadd132pd | Vfmsubadd213ps | Vfmsubadd213pd | Vfmsubadd231ps
            | Vfmsubadd231pd
    )
}
