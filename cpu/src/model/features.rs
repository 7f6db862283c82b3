//! The instruction-set extensions of each model, and those of the host on which it depends.

use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

use iced_x86::{Code, CodeSize, CpuidFeature, Instruction};

use super::cpuid::{ebx7, ecx1, ecx7, ecx8000_0001, edx8000_0001};
use super::{MODELS, Model, model};

/// What every model executes. Instructions of 64-bit mode cannot be encoded outside it.
const BASE: &[CpuidFeature] = &[
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL286,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CPUID,
    CpuidFeature::FPU,
    CpuidFeature::FPU287,
    CpuidFeature::FPU387,
    CpuidFeature::CMOV,
    CpuidFeature::CX8,
    CpuidFeature::MSR,
    CpuidFeature::TSC,
    CpuidFeature::RDPMC,
    CpuidFeature::SEP,
    CpuidFeature::SYSCALL,
    CpuidFeature::CLFSH,
    CpuidFeature::FXSR,
    CpuidFeature::MMX,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::PAUSE,
    CpuidFeature::MULTIBYTENOP,
];

pub(super) const PENTIUM4_64_FEATURES: &[CpuidFeature] =
    &[CpuidFeature::SSE3, CpuidFeature::CMPXCHG16B];

/// Of the processors without Intel 64.
pub(super) const IA32_FEATURES: &[CpuidFeature] = &[];

pub(super) const CORE2_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::CMPXCHG16B,
];

pub(super) const X86_64_V2_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::CMPXCHG16B,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
];

pub(super) const X86_64_V3_BASIC_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::CMPXCHG16B,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
    CpuidFeature::LZCNT,
    CpuidFeature::BMI1,
    CpuidFeature::BMI2,
    CpuidFeature::MOVBE,
    CpuidFeature::RDTSCP,
    CpuidFeature::FSGSBASE,
    CpuidFeature::RDRAND,
    CpuidFeature::XSAVE,
    CpuidFeature::XSAVEOPT,
    CpuidFeature::AVX,
    CpuidFeature::AVX2,
    CpuidFeature::FMA,
    CpuidFeature::F16C,
    CpuidFeature::AES,
    CpuidFeature::PCLMULQDQ,
];

/// The features of [`X86_64_V3_BASIC_FEATURES`] and more.
pub(super) const X86_64_V3_FEATURES: &[CpuidFeature] = &concat::<25>(
    X86_64_V3_BASIC_FEATURES,
    &[
        CpuidFeature::SMAP,
        CpuidFeature::INVPCID,
        CpuidFeature::XSAVEC,
        CpuidFeature::XSAVES,
    ],
);

/// The features of [`X86_64_V3_FEATURES`] and all others that the software CPU has.
pub(super) const MAX_FEATURES: &[CpuidFeature] = &concat::<29>(
    X86_64_V3_FEATURES,
    &[
        CpuidFeature::ADX,
        CpuidFeature::SHA,
        CpuidFeature::VAES,
        CpuidFeature::VPCLMULQDQ,
    ],
);

/// Both lists, which have `N` elements together.
const fn concat<const N: usize>(
    first: &[CpuidFeature],
    second: &[CpuidFeature],
) -> [CpuidFeature; N] {
    assert!(first.len() + second.len() == N);
    let mut all = [first[0]; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < first.len() {
            first[i]
        } else {
            second[i - first.len()]
        };
        i += 1;
    }
    all
}

/// The extensions that an instruction needs and that not every model has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Their names.
    pub extensions: Vec<String>,
    /// The names of the models that have all of them.
    pub models: Vec<&'static str>,
}

impl Requirement {
    /// What `instruction` needs; `None` if every model executes it.
    #[must_use]
    pub fn of(instruction: &Instruction) -> Option<Self> {
        let needed = instruction.cpuid_features();
        let models = || MODELS.iter().filter_map(|name| model(name));
        let missing = needed
            .iter()
            .filter(|feature| !models().all(|model| model.executes(**feature)));
        let extensions: Vec<String> = missing.map(|feature| name(*feature)).collect();
        let with = models().filter(|model| model.executes_all(needed));
        (!extensions.is_empty()).then(|| Self {
            extensions,
            models: with.map(|model| model.name).collect(),
        })
    }
}

/// The name of an extension in Intel's manuals.
fn name(feature: CpuidFeature) -> String {
    format!("{feature:?}").replace("SSE4_", "SSE4.")
}

/// The extensions whose instructions the software CPU executes with those of the host.
const EXECUTED_ON_HOST: [CpuidFeature; 7] = [
    CpuidFeature::SSE4_1,
    CpuidFeature::AVX,
    CpuidFeature::FMA,
    CpuidFeature::F16C,
    CpuidFeature::AES,
    CpuidFeature::PCLMULQDQ,
    CpuidFeature::SHA,
];

/// Leaf 7 of the host's CPUID: zero if there is none.
fn leaf7() -> CpuidResult {
    if __cpuid(0).eax >= 7 {
        return __cpuid_count(7, 0);
    }
    CpuidResult {
        eax: 0,
        ebx: 0,
        ecx: 0,
        edx: 0,
    }
}

/// Whether the host's processor has an extension. It has those of every model.
#[must_use]
pub fn host_has(feature: CpuidFeature) -> bool {
    match feature {
        CpuidFeature::SSE3 => is_x86_feature_detected!("sse3"),
        CpuidFeature::SSSE3 => is_x86_feature_detected!("ssse3"),
        CpuidFeature::CMPXCHG16B => is_x86_feature_detected!("cmpxchg16b"),
        CpuidFeature::SSE4_1 => is_x86_feature_detected!("sse4.1"),
        CpuidFeature::SSE4_2 => is_x86_feature_detected!("sse4.2"),
        CpuidFeature::POPCNT => is_x86_feature_detected!("popcnt"),
        CpuidFeature::LZCNT => is_x86_feature_detected!("lzcnt"),
        CpuidFeature::BMI1 => is_x86_feature_detected!("bmi1"),
        CpuidFeature::BMI2 => is_x86_feature_detected!("bmi2"),
        CpuidFeature::MOVBE => is_x86_feature_detected!("movbe"),
        CpuidFeature::RDTSCP => __cpuid(0x8000_0001).edx & edx8000_0001::RDTSCP != 0,
        CpuidFeature::FSGSBASE => leaf7().ebx & ebx7::FSGSBASE != 0,
        CpuidFeature::SMAP => leaf7().ebx & ebx7::SMAP != 0,
        CpuidFeature::INVPCID => leaf7().ebx & ebx7::INVPCID != 0,
        CpuidFeature::RDRAND => is_x86_feature_detected!("rdrand"),
        CpuidFeature::XSAVE => is_x86_feature_detected!("xsave"),
        CpuidFeature::XSAVEOPT => is_x86_feature_detected!("xsaveopt"),
        CpuidFeature::XSAVEC => is_x86_feature_detected!("xsavec"),
        CpuidFeature::XSAVES => is_x86_feature_detected!("xsaves"),
        CpuidFeature::AVX => is_x86_feature_detected!("avx"),
        CpuidFeature::AVX2 => is_x86_feature_detected!("avx2"),
        CpuidFeature::FMA => is_x86_feature_detected!("fma"),
        CpuidFeature::F16C => is_x86_feature_detected!("f16c"),
        CpuidFeature::AES => is_x86_feature_detected!("aes"),
        CpuidFeature::PCLMULQDQ => is_x86_feature_detected!("pclmulqdq"),
        CpuidFeature::ADX => is_x86_feature_detected!("adx"),
        CpuidFeature::SHA => is_x86_feature_detected!("sha"),
        CpuidFeature::VAES => is_x86_feature_detected!("vaes"),
        CpuidFeature::VPCLMULQDQ => is_x86_feature_detected!("vpclmulqdq"),
        _ => BASE.contains(&feature),
    }
}

impl Model {
    /// The extensions that the software CPU executes on the host's processor, and that the host's
    /// processor lacks.
    #[must_use]
    pub fn unsupported(&self) -> Option<String> {
        let lacks = EXECUTED_ON_HOST
            .into_iter()
            .filter(|feature| self.features.contains(feature) && !host_has(*feature));
        let names: Vec<String> = lacks.map(name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// The model's features that the host's processor lacks. Such a host cannot execute the guest.
    #[must_use]
    pub fn missing_on_host(&self) -> Vec<String> {
        let features = self.features.iter().copied();
        let instructions = features.filter(|feature| !host_has(*feature)).map(name);
        // Those without instructions.
        let (host1, host7) = (__cpuid(1), leaf7());
        let (own1, own7) = (self.cpuid(1, 0), self.cpuid(7, 0));
        let system = [
            ("PCID", own1.ecx & !host1.ecx & ecx1::PCID),
            ("SMEP", own7.ebx & !host7.ebx & ebx7::SMEP),
            ("UMIP", own7.ecx & !host7.ecx & ecx7::UMIP),
        ];
        let system = system.into_iter().filter(|(_, lacks)| *lacks != 0);
        instructions
            .chain(system.map(|(name, _)| name.to_owned()))
            .collect()
    }

    /// Whether the model has this instruction-set extension.
    #[must_use]
    pub fn executes(&self, feature: CpuidFeature) -> bool {
        BASE.contains(&feature) || self.features.contains(&feature)
    }

    /// Whether the model has an instruction. Otherwise it raises #UD.
    pub(crate) fn has_instruction(&self, i: &Instruction) -> bool {
        // No feature of iced-x86's stands for LAHF and SAHF in 64-bit mode.
        let is_lahf = matches!(i.code(), Code::Lahf | Code::Sahf);
        let lacks_lahf = is_lahf
            && i.code_size() == CodeSize::Code64
            && self.cpuid(0x8000_0001, 0).ecx & ecx8000_0001::LAHF == 0;
        !i.is_invalid() && !lacks_lahf && self.executes_all(i.cpuid_features())
    }

    /// Whether the model has all of these extensions.
    pub(crate) fn executes_all(&self, features: &[CpuidFeature]) -> bool {
        features.iter().all(|feature| self.executes(*feature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cpuid::eaxd;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn what_cpuid_advertises_is_executed() {
        let ecx1: fn(&Model) -> u32 = |m| m.cpuid(1, 0).ecx;
        let ebx7: fn(&Model) -> u32 = |m| m.cpuid(7, 0).ebx;
        let ecx7: fn(&Model) -> u32 = |m| m.cpuid(7, 0).ecx;
        let ecx8000_0001: fn(&Model) -> u32 = |m| m.cpuid(0x8000_0001, 0).ecx;
        let eaxd: fn(&Model) -> u32 = |m| m.cpuid(0xD, 1).eax;
        let edx8000_0001: fn(&Model) -> u32 = |m| m.cpuid(0x8000_0001, 0).edx;
        let flags = [
            (ecx1, ecx1::SSE3, CpuidFeature::SSE3),
            (ecx1, ecx1::SSSE3, CpuidFeature::SSSE3),
            (ecx1, ecx1::CMPXCHG16B, CpuidFeature::CMPXCHG16B),
            (ecx1, ecx1::SSE4_1, CpuidFeature::SSE4_1),
            (ecx1, ecx1::SSE4_2, CpuidFeature::SSE4_2),
            (ecx1, ecx1::POPCNT, CpuidFeature::POPCNT),
            (ecx1, ecx1::MOVBE, CpuidFeature::MOVBE),
            (ecx1, ecx1::XSAVE, CpuidFeature::XSAVE),
            (ecx1, ecx1::PCLMULQDQ, CpuidFeature::PCLMULQDQ),
            (ecx1, ecx1::AES, CpuidFeature::AES),
            (ecx1, ecx1::AVX, CpuidFeature::AVX),
            (ecx1, ecx1::FMA, CpuidFeature::FMA),
            (ecx1, ecx1::F16C, CpuidFeature::F16C),
            (ebx7, ebx7::AVX2, CpuidFeature::AVX2),
            (eaxd, eaxd::XSAVEOPT, CpuidFeature::XSAVEOPT),
            (eaxd, eaxd::XSAVEC, CpuidFeature::XSAVEC),
            (eaxd, eaxd::XSAVES, CpuidFeature::XSAVES),
            (ebx7, ebx7::BMI1, CpuidFeature::BMI1),
            (ebx7, ebx7::BMI2, CpuidFeature::BMI2),
            (ecx8000_0001, ecx8000_0001::LZCNT, CpuidFeature::LZCNT),
            (edx8000_0001, edx8000_0001::RDTSCP, CpuidFeature::RDTSCP),
            (ebx7, ebx7::FSGSBASE, CpuidFeature::FSGSBASE),
            (ebx7, ebx7::SMAP, CpuidFeature::SMAP),
            (ebx7, ebx7::INVPCID, CpuidFeature::INVPCID),
            (ecx1, ecx1::RDRAND, CpuidFeature::RDRAND),
            (ebx7, ebx7::ADX, CpuidFeature::ADX),
            (ebx7, ebx7::SHA, CpuidFeature::SHA),
            (ecx7, ecx7::VAES, CpuidFeature::VAES),
            (ecx7, ecx7::VPCLMULQDQ, CpuidFeature::VPCLMULQDQ),
        ];
        for name in MODELS {
            let m = model(name).unwrap();
            for (register, flag, feature) in flags {
                let advertised = register(m) & flag != 0;
                assert_eq!(m.executes(feature), advertised, "{name}: {feature:?}");
            }
        }
        let max = model("max").unwrap();
        assert!(flags.iter().all(|(_, _, feature)| max.executes(*feature)));
        assert_eq!(max.cpuid(1, 0).eax, 0x6FB);
        assert_eq!(model("nehalem").unwrap().cpuid(1, 0).eax, 0x1_06A5);
    }

    #[test]
    fn an_instruction_requires_what_some_model_lacks() {
        let of = |bytes: &[u8]| {
            let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            assert!(!instruction.is_invalid(), "{bytes:02x?}");
            Requirement::of(&instruction)
                .map(|needed| (needed.extensions.join(" "), needed.models.join(" ")))
        };
        let expect = |extensions: &str, models: &str| Some((extensions.into(), models.into()));
        // UD2, ADD, PADDB
        for bytes in [&[0x0F, 0x0B][..], &[0x01, 0xC0], &[0x66, 0x0F, 0xFC, 0xC1]] {
            assert_eq!(of(bytes), None);
        }
        // PSHUFB
        assert_eq!(
            of(&[0x66, 0x0F, 0x38, 0x00, 0xC1]),
            expect(
                "SSSE3",
                "core2 conroe x86-64-v2 nehalem x86-64-v3-basic x86-64-v3 haswell skylake max"
            )
        );
        // POPCNT, PTEST
        assert_eq!(
            of(&[0xF3, 0x0F, 0xB8, 0xC1]),
            expect(
                "POPCNT",
                "x86-64-v2 nehalem x86-64-v3-basic x86-64-v3 haswell skylake max"
            )
        );
        assert_eq!(
            of(&[0x66, 0x0F, 0x38, 0x17, 0xC1]),
            expect(
                "SSE4.1",
                "x86-64-v2 nehalem x86-64-v3-basic x86-64-v3 haswell skylake max"
            )
        );
        // VPADDD YMM0, YMM0, YMM1, and of XMM0 with mask K1
        assert_eq!(
            of(&[0xC5, 0xFD, 0xFE, 0xC1]),
            expect("AVX2", "x86-64-v3-basic x86-64-v3 haswell skylake max")
        );
        assert_eq!(
            of(&[0x62, 0xF1, 0x7D, 0x09, 0xFE, 0xC1]),
            expect("AVX512VL AVX512F", "")
        );
    }
}
