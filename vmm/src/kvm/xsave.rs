//! The XSAVE area: x87 and SSE registers between [`ArchState`] and KVM (SDM Vol. 1 table 10-2,
//! 13.4).

use kvm_bindings::kvm_xsave;
use vbts_cpu::ArchState;

// Offsets in the area, in bytes: the legacy region, then the header.
const FCW: usize = 0;
const FSW: usize = 2;
const FTW: usize = 4;
const FOP: usize = 6;
const FIP: usize = 8;
const FDP: usize = 16;
const MXCSR: usize = 24;
const ST: usize = 32;
const XMM: usize = 160;
const XSTATE_BV: usize = 512;
/// The x87 and SSE state components in XSTATE_BV.
const X87_AND_SSE: u64 = 3;

/// Makes an XSAVE area of the x87 and SSE registers of `s`.
///
/// KVM_SET_FPU is no alternative: it leaves XSTATE_BV as it is, and the vCPU initialises the state
/// components that XSTATE_BV does not name.
pub fn to_xsave(s: &ArchState) -> kvm_xsave {
    let mut area = kvm_xsave::default();
    let mut put = |at: usize, bytes: &[u8]| {
        for (i, byte) in (at..).zip(bytes) {
            if let Some(word) = area.region.get_mut(i / 4) {
                *word |= u32::from(*byte) << (8 * (i % 4));
            }
        }
    };
    put(FCW, &s.x87.fcw.to_le_bytes());
    put(FSW, &s.x87.fsw.to_le_bytes());
    put(FTW, &[s.x87.ftw]);
    put(FOP, &s.x87.fop.to_le_bytes());
    put(FIP, &s.x87.fip.to_le_bytes());
    put(FDP, &s.x87.fdp.to_le_bytes());
    put(MXCSR, &s.mxcsr.to_le_bytes());
    for i in 0..8 {
        put(ST + 16 * i, &s.x87.st(i).to_le_bytes());
    }
    for (i, register) in s.xmm.iter().enumerate() {
        put(XMM + 16 * i, &register.to_le_bytes());
    }
    put(XSTATE_BV, &X87_AND_SSE.to_le_bytes());
    area
}

/// Updates the x87 and SSE registers of `s` from an XSAVE area.
pub fn from_xsave(area: &kvm_xsave, s: &mut ArchState) {
    let word = |at: usize| area.region.get(at / 4).copied().unwrap_or_default();
    let half = |at: usize| (word(at) >> (8 * (at % 4))) as u16;
    let quad = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let register = |at: usize| u128::from(quad(at)) | u128::from(quad(at + 8)) << 64;
    s.x87.fcw = half(FCW);
    s.x87.fsw = half(FSW);
    s.x87.ftw = half(FTW) as u8;
    s.x87.fop = half(FOP);
    s.x87.fip = quad(FIP);
    s.x87.fdp = quad(FDP);
    s.mxcsr = word(MXCSR);
    for i in 0..8 {
        s.x87.set_st(i, register(ST + 16 * i));
    }
    s.xmm = std::array::from_fn(|i| register(XMM + 16 * i));
}
