//! XCR0, and the state components in use (SDM Vol. 1 13.3, 13.6).

use crate::model::Leaf;
use crate::processor::cpu::Cpu;
use crate::state::X87State;
use crate::state::xsave::{XsaveArea, component};

/// MXCSR after RESET: its initial value as a part of SSE state.
pub(crate) const MXCSR_INITIAL: u32 = 0x1F80;

impl Cpu {
    /// Whether XCR0 can hold `value`: components that CPUID enumerates, x87 state among them, and
    /// AVX state only with SSE state.
    pub(crate) fn xcr0_accepts(&self, value: u64) -> bool {
        let leaf = self.model.cpuid(0xD, 0);
        let supported = u64::from(leaf.edx) << 32 | u64::from(leaf.eax) | component::X87;
        let avx = component::SSE | component::AVX;
        value & component::X87 != 0 && value & !supported == 0 && value & avx != component::AVX
    }

    /// Number of vector registers in this mode.
    pub(crate) fn vector_registers(&self) -> usize {
        if self.in_64_bit_mode() {
            self.xmm.len()
        } else {
            8
        }
    }

    /// XINUSE: the state components that do not have their initial values. MXCSR is not considered.
    pub(crate) fn components_in_use(&self) -> u64 {
        let count = self.vector_registers();
        let used = |registers: &[u128; 16]| registers.iter().take(count).any(|r| *r != 0);
        let mut components = 0;
        if self.x87 != X87State::default() {
            components |= component::X87;
        }
        if used(&self.xmm) {
            components |= component::SSE;
        }
        if used(&self.ymm_high) {
            components |= component::AVX;
        }
        components
    }

    /// Fills the sizes in leaf 0DH, which depend on XCR0.
    pub(super) fn fill_xsave_leaf(&self, leaf: &mut Leaf) {
        if leaf.eax != 0 && leaf.subleaf < 2 {
            leaf.ebx = XsaveArea::size_of(self.sys.xcr0) as u32;
        }
    }
}
