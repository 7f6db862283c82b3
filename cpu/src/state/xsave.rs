//! The XSAVE area (SDM Vol. 1 13.4): where FXSAVE, XSAVE and KVM have the registers in memory.

use std::ops::Range;

use super::X87State;

/// Bits of MXCSR that exist, which include DAZ: MXCSR_MASK.
pub const MXCSR_MASK: u32 = 0xFFFF;

/// State components: bits of XSTATE_BV (SDM Vol. 1 13.1).
pub mod component {
    #![allow(missing_docs)]
    pub const X87: u64 = 1 << 0;
    /// XMM0-XMM15, and MXCSR.
    pub const SSE: u64 = 1 << 1;
    /// The upper halves of YMM0-YMM15.
    pub const AVX: u64 = 1 << 2;
}

// Offsets in bytes: the legacy region (SDM Vol. 1 table 10-2), the header (13.4.2), and AVX state,
// the first component after them, which has this place in the compacted format, too (13.4.3).
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
const XCOMP_BV: usize = 520;
const HEADER_END: usize = 576;
const YMM_HIGH: usize = HEADER_END;

/// XCOMP_BV of an area in the compacted format.
pub const COMPACTED: u64 = 1 << 63;

/// How the area has the x87 FPU's instruction and data pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointers {
    /// 32 bits, and a selector, which reads as 0.
    Bits32,
    /// 64 bits: the form with REX.W.
    Bits64,
}

/// An XSAVE area with x87, SSE and AVX state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XsaveArea([u8; XsaveArea::SIZE]);

impl Default for XsaveArea {
    /// All bytes are zero.
    fn default() -> Self {
        Self([0; Self::SIZE])
    }
}

impl XsaveArea {
    /// Size in bytes.
    pub const SIZE: usize = YMM_HIGH + 16 * 16;
    /// The header.
    pub const HEADER: Range<usize> = XSTATE_BV..HEADER_END;
    /// XSTATE_BV, in the header.
    pub const XSTATE_BV: Range<usize> = XSTATE_BV..XCOMP_BV;
    /// XSTATE_BV and XCOMP_BV, in the header.
    pub const BITMAPS: Range<usize> = XSTATE_BV..XCOMP_BV + 8;
    /// MXCSR and MXCSR_MASK.
    pub const MXCSR: Range<usize> = MXCSR..ST;
    /// x87 state: what comes before MXCSR, and what comes after it.
    pub const X87: [Range<usize>; 2] = [FCW..MXCSR, ST..XMM];

    /// The first `count` XMM registers.
    pub const fn xmm_range(count: usize) -> Range<usize> {
        XMM..XMM + 16 * count
    }

    /// The upper halves of the first `count` YMM registers.
    pub const fn ymm_high_range(count: usize) -> Range<usize> {
        YMM_HIGH..YMM_HIGH + 16 * count
    }

    /// Size of an area with these components.
    pub const fn size_of(components: u64) -> usize {
        if components & component::AVX == 0 {
            HEADER_END
        } else {
            Self::SIZE
        }
    }

    /// The bytes, as they are in memory.
    pub fn bytes(&self) -> &[u8; Self::SIZE] {
        &self.0
    }

    /// The bytes, to be read from memory.
    pub fn bytes_mut(&mut self) -> &mut [u8; Self::SIZE] {
        &mut self.0
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_registers(&mut self, at: usize, registers: &[u128]) {
        for (n, register) in registers.iter().enumerate() {
            self.put(at + 16 * n, &register.to_le_bytes());
        }
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|n| self.0[at + n])
    }

    fn registers(&self, at: usize) -> [u128; 16] {
        std::array::from_fn(|n| u128::from_le_bytes(self.get(at + 16 * n)))
    }

    /// Writes x87 state.
    pub fn put_x87(&mut self, x87: &X87State, pointers: Pointers) {
        let pointer = |p: u64| match pointers {
            Pointers::Bits32 => p & 0xFFFF_FFFF,
            Pointers::Bits64 => p,
        };
        self.put(FCW, &x87.fcw.to_le_bytes());
        self.put(FSW, &x87.fsw.to_le_bytes());
        self.put(FTW, &[x87.ftw]);
        self.put(FOP, &x87.fop.to_le_bytes());
        self.put(FIP, &pointer(x87.fip).to_le_bytes());
        self.put(FDP, &pointer(x87.fdp).to_le_bytes());
        for n in 0..8 {
            self.put(ST + 16 * n, &x87.st(n).to_le_bytes());
        }
    }

    /// x87 state, with control and status words as they are in the area.
    pub fn x87(&self, pointers: Pointers) -> X87State {
        let pointer = |at| match pointers {
            Pointers::Bits32 => u32::from_le_bytes(self.get(at)).into(),
            Pointers::Bits64 => u64::from_le_bytes(self.get(at)),
        };
        let mut x87 = X87State {
            fcw: u16::from_le_bytes(self.get(FCW)),
            fsw: u16::from_le_bytes(self.get(FSW)),
            ftw: self.0[FTW],
            fop: u16::from_le_bytes(self.get(FOP)) & 0x7FF,
            fip: pointer(FIP),
            fdp: pointer(FDP),
            ..X87State::default()
        };
        for n in 0..8 {
            x87.set_st(n, u128::from_le_bytes(self.get(ST + 16 * n)));
        }
        x87
    }

    /// Writes MXCSR, and MXCSR_MASK.
    pub fn put_mxcsr(&mut self, mxcsr: u32) {
        self.put(MXCSR, &mxcsr.to_le_bytes());
        self.put(MXCSR + 4, &MXCSR_MASK.to_le_bytes());
    }

    /// MXCSR.
    pub fn mxcsr(&self) -> u32 {
        u32::from_le_bytes(self.get(MXCSR))
    }

    /// Writes XMM0 and those that follow.
    pub fn put_xmm(&mut self, registers: &[u128; 16]) {
        self.put_registers(XMM, registers);
    }

    /// XMM0-XMM15.
    pub fn xmm(&self) -> [u128; 16] {
        self.registers(XMM)
    }

    /// Writes the upper halves of YMM0-YMM15.
    pub fn put_ymm_high(&mut self, registers: &[u128; 16]) {
        self.put_registers(YMM_HIGH, registers);
    }

    /// The upper halves of YMM0-YMM15.
    pub fn ymm_high(&self) -> [u128; 16] {
        self.registers(YMM_HIGH)
    }

    /// Writes XSTATE_BV: the components that are in the area. The others have their initial values.
    pub fn put_xstate_bv(&mut self, components: u64) {
        self.put(XSTATE_BV, &components.to_le_bytes());
    }

    /// XSTATE_BV.
    pub fn xstate_bv(&self) -> u64 {
        u64::from_le_bytes(self.get(XSTATE_BV))
    }

    /// Writes XCOMP_BV: the components that have a place in an area of the compacted format.
    pub fn put_xcomp_bv(&mut self, components: u64) {
        self.put(XCOMP_BV, &(components | COMPACTED).to_le_bytes());
    }

    /// XCOMP_BV, with [`COMPACTED`].
    pub fn xcomp_bv(&self) -> u64 {
        u64::from_le_bytes(self.get(XCOMP_BV))
    }

    /// Whether the bytes of the header after its bitmaps are zero, as XRSTOR requires.
    pub fn rest_of_header_is_zero(&self) -> bool {
        self.0[Self::BITMAPS.end..HEADER_END]
            .iter()
            .all(|byte| *byte == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut x87 = X87State {
            fcw: 0x27F,
            fsw: 3 << 11,
            ftw: 0xF0,
            fop: 0x123,
            fip: 0x1234_5678_9ABC,
            fdp: 0x4321_8765_CBA9,
            ..X87State::default()
        };
        x87.r = std::array::from_fn(|n| 0x1_0000_0000_0000_0000 + n as u128);
        let xmm = std::array::from_fn(|n| u128::MAX - n as u128);
        let ymm_high = std::array::from_fn(|n| u128::MAX / 2 - n as u128);
        let mut area = XsaveArea::default();
        area.put_x87(&x87, Pointers::Bits64);
        area.put_mxcsr(0x1FA0);
        area.put_xmm(&xmm);
        area.put_ymm_high(&ymm_high);
        assert_eq!(area.x87(Pointers::Bits64), x87);
        assert_eq!(area.mxcsr(), 0x1FA0);
        assert_eq!((area.xmm(), area.ymm_high()), (xmm, ymm_high));
        assert_eq!(area.x87(Pointers::Bits32).fip, 0x5678_9ABC);
    }

    #[test]
    fn avx_state_is_where_processors_have_it() {
        if is_x86_feature_detected!("avx") {
            let leaf = std::arch::x86_64::__cpuid_count(0xD, 2);
            assert_eq!((leaf.eax, leaf.ebx), (256, YMM_HIGH as u32));
        }
    }
}
