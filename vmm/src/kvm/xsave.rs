//! x87, SSE and AVX registers between [`ArchState`] and KVM, which has them in an XSAVE area, and
//! XCR0.

use kvm_bindings::{kvm_xcr, kvm_xcrs, kvm_xsave};
use vbts_cpu::ArchState;
use vbts_cpu::state::xsave::{Pointers, XsaveArea, component};

/// Makes an XSAVE area of the x87, SSE and AVX registers of `s`.
///
/// KVM_SET_FPU is no alternative: it leaves XSTATE_BV as it is, and the vCPU initialises the state
/// components that XSTATE_BV does not name. AVX state is named only if there is some: KVM rejects
/// it where the guest's processor has no AVX.
pub fn to_xsave(s: &ArchState) -> kvm_xsave {
    let mut area = XsaveArea::default();
    area.put_x87(&s.x87, Pointers::Bits64);
    area.put_mxcsr(s.mxcsr);
    area.put_xmm(&s.xmm);
    area.put_ymm_high(&s.ymm_high);
    let avx = if s.ymm_high == [0; 16] {
        0
    } else {
        component::AVX
    };
    area.put_xstate_bv(component::X87 | component::SSE | avx);
    let mut kvm = kvm_xsave::default();
    for (word, bytes) in kvm.region.iter_mut().zip(area.bytes().as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    kvm
}

/// Updates the x87, SSE and AVX registers of `s` from an XSAVE area. KVM has written the initial
/// values of components that XSTATE_BV does not name.
pub fn from_xsave(kvm: &kvm_xsave, s: &mut ArchState) {
    let mut area = XsaveArea::default();
    for (word, bytes) in kvm.region.iter().zip(area.bytes_mut().as_chunks_mut().0) {
        *bytes = word.to_le_bytes();
    }
    s.x87 = area.x87(Pointers::Bits64);
    s.mxcsr = area.mxcsr();
    s.xmm = area.xmm();
    s.ymm_high = area.ymm_high();
}

/// XCR0 of `s`.
pub fn to_xcrs(s: &ArchState) -> kvm_xcrs {
    let mut xcrs = kvm_xcrs {
        nr_xcrs: 1,
        ..Default::default()
    };
    xcrs.xcrs[0] = kvm_xcr {
        xcr: 0,
        value: s.sys.xcr0,
        ..Default::default()
    };
    xcrs
}

/// Updates XCR0 of `s`.
pub fn from_xcrs(xcrs: &kvm_xcrs, s: &mut ArchState) {
    let present = xcrs.xcrs.iter().take(xcrs.nr_xcrs as usize);
    for xcr in present.filter(|xcr| xcr.xcr == 0) {
        s.sys.xcr0 = xcr.value;
    }
}
