//! Shifts of each element by a count of its own, and VPBLENDD.

use iced_x86::Code;

use crate::exec::simd::V;
use crate::exec::simd::packed::{Binary, BinaryInSteps, packed};
use crate::exec::simd::rows::vex;
use crate::exec::simd::sse41::Blendps;
use crate::exec::simd::ssse3::zip;
use crate::exec::table::{Backend, Table};

/// VPSLLVD and its relatives: each element of `a`, shifted by that of `b`.
macro_rules! by_element {
    ($t:ty, $n:literal, $a:expr, $b:expr, $shift:expr) => {{
        let shift: fn($t, u32) -> $t = $shift;
        zip::<$t, $n>($a, $b, |a, b| shift(a, b.try_into().unwrap_or(u32::MAX)))
    }};
}

packed! {
    Psllvd(a, b, _) => by_element!(u32, 4, a, b, |a, n| a.checked_shl(n).unwrap_or(0)),
    Psllvq(a, b, _) => by_element!(u64, 2, a, b, |a, n| a.checked_shl(n).unwrap_or(0)),
    Psrlvd(a, b, _) => by_element!(u32, 4, a, b, |a, n| a.checked_shr(n).unwrap_or(0)),
    Psrlvq(a, b, _) => by_element!(u64, 2, a, b, |a, n| a.checked_shr(n).unwrap_or(0)),
    Psravd(a, b, _) => by_element!(u32, 4, a, b, |a, n| (a as i32 >> n.min(31)) as u32),
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    vex::<B, Binary<Psllvd>>(t, [VEX_Vpsllvd_xmm_xmm_xmmm128, VEX_Vpsllvd_ymm_ymm_ymmm256]);
    vex::<B, Binary<Psllvq>>(t, [VEX_Vpsllvq_xmm_xmm_xmmm128, VEX_Vpsllvq_ymm_ymm_ymmm256]);
    vex::<B, Binary<Psrlvd>>(t, [VEX_Vpsrlvd_xmm_xmm_xmmm128, VEX_Vpsrlvd_ymm_ymm_ymmm256]);
    vex::<B, Binary<Psrlvq>>(t, [VEX_Vpsrlvq_xmm_xmm_xmmm128, VEX_Vpsrlvq_ymm_ymm_ymmm256]);
    vex::<B, Binary<Psravd>>(t, [VEX_Vpsravd_xmm_xmm_xmmm128, VEX_Vpsravd_ymm_ymm_ymmm256]);
    vex::<B, BinaryInSteps<Blendps, 4>>(t, [VEX_Vpblendd_xmm_xmm_xmmm128_imm8, VEX_Vpblendd_ymm_ymm_ymmm256_imm8]);
}
