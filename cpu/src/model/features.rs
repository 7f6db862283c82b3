//! The instruction-set extensions of each model, and those of the host on which it depends.

use iced_x86::CpuidFeature;

use super::Model;

/// What every processor with Intel 64 executes.
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

impl Model {
    /// The extensions that the software CPU executes on the host's processor, and that the host's
    /// processor lacks.
    #[must_use]
    pub fn unsupported(&self) -> Option<&'static str> {
        let sse41 = self.features.contains(&CpuidFeature::SSE4_1);
        (sse41 && !is_x86_feature_detected!("sse4.1")).then_some("SSE4.1")
    }

    /// The model's instruction-set extensions that the host's processor lacks. Such a host cannot
    /// execute the guest.
    #[must_use]
    pub fn missing_on_host(&self) -> Vec<&'static str> {
        let host = [
            (CpuidFeature::SSE3, "SSE3", is_x86_feature_detected!("sse3")),
            (
                CpuidFeature::SSSE3,
                "SSSE3",
                is_x86_feature_detected!("ssse3"),
            ),
            (
                CpuidFeature::CMPXCHG16B,
                "CMPXCHG16B",
                is_x86_feature_detected!("cmpxchg16b"),
            ),
            (
                CpuidFeature::SSE4_1,
                "SSE4.1",
                is_x86_feature_detected!("sse4.1"),
            ),
            (
                CpuidFeature::SSE4_2,
                "SSE4.2",
                is_x86_feature_detected!("sse4.2"),
            ),
            (
                CpuidFeature::POPCNT,
                "POPCNT",
                is_x86_feature_detected!("popcnt"),
            ),
        ];
        let lacks = host.into_iter().filter(|(_, _, there)| !there);
        lacks
            .filter(|(feature, ..)| self.features.contains(feature))
            .map(|(_, name, _)| name)
            .collect()
    }

    /// Whether the model has this instruction-set extension.
    #[must_use]
    pub fn executes(&self, feature: CpuidFeature) -> bool {
        BASE.contains(&feature) || self.features.contains(&feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cpuid::ecx1;
    use crate::model::{MODELS, model};

    #[test]
    fn what_cpuid_advertises_is_executed() {
        let flags = [
            (ecx1::SSE3, CpuidFeature::SSE3),
            (ecx1::SSSE3, CpuidFeature::SSSE3),
            (ecx1::CMPXCHG16B, CpuidFeature::CMPXCHG16B),
            (ecx1::SSE4_1, CpuidFeature::SSE4_1),
            (ecx1::SSE4_2, CpuidFeature::SSE4_2),
            (ecx1::POPCNT, CpuidFeature::POPCNT),
        ];
        for name in MODELS {
            let m = model(name).unwrap();
            for (flag, feature) in flags {
                let advertised = m.cpuid(1, 0).ecx & flag != 0;
                assert_eq!(m.executes(feature), advertised, "{name}: {feature:?}");
            }
        }
        let later = model("x86-64-v2").unwrap();
        assert!(flags.iter().all(|(_, feature)| later.executes(*feature)));
        assert_eq!(later.cpuid(1, 0).eax, 0x6FB);
        assert_eq!(model("nehalem").unwrap().cpuid(1, 0).eax, 0x1_06A5);
    }
}
