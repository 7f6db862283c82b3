//! Random register contents in which the values that matter are frequent.

/// xorshift64*: the same numbers in every run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 32) % n
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    fn f32(&mut self) -> u32 {
        let special = [
            0,
            0x8000_0000,
            1,
            0x007F_FFFF,
            0x8040_0000,
            0x0080_0000,
            0x7F7F_FFFF,
            0xFF7F_FFFF,
            0x7F80_0000,
            0xFF80_0000,
            0x7FC0_1234,
            0xFFC0_5678,
            0x7F80_0001,
            0xFFBF_FFFF,
            0x3F80_0000,
            0xBF80_0000,
            0x3F80_0001,
            0x4F00_0000,
            0xCF00_0000,
            0x4EFF_FFFF,
            0x3F00_0000,
            0x1F80_0000,
        ];
        match self.below(4) {
            0 => self.next() as u32,
            1 => (self.next() as u32 & 0x807F_FFFF) | (120 + self.below(16) as u32) << 23,
            _ => *self.pick(&special),
        }
    }

    fn f64(&mut self) -> u64 {
        let special = [
            0,
            1 << 63,
            1,
            0x000F_FFFF_FFFF_FFFF,
            0x8008_0000_0000_0000,
            0x0010_0000_0000_0000,
            0x7FEF_FFFF_FFFF_FFFF,
            0x7FF0_0000_0000_0000,
            0xFFF0_0000_0000_0000,
            0x7FF8_0000_1234_5678,
            0xFFF8_0000_0000_0000,
            0x7FF0_0000_0000_0001,
            0xFFF7_FFFF_FFFF_FFFF,
            0x3FF0_0000_0000_0000,
            0xBFF0_0000_0000_0000,
            0x3FF0_0000_0000_0001,
            0x41DF_FFFF_FFE0_0000,
            0x41DF_FFFF_FFC0_0000,
            0xC1E0_0000_0010_0000,
            0x43E0_0000_0000_0000,
            0xC3E0_0000_0000_0000,
            0x3690_0000_0000_0000,
            0x47EF_FFFF_FFFF_FFFF,
        ];
        match self.below(4) {
            0 => self.next(),
            1 => (self.next() & 0x800F_FFFF_FFFF_FFFF) | (1010 + self.below(30)) << 52,
            _ => *self.pick(&special),
        }
    }

    /// An integer, or a double, or two floats.
    pub fn u64(&mut self) -> u64 {
        match self.below(6) {
            0 => self.next(),
            1 => *self.pick(&[
                0,
                !0,
                1,
                1 << 63,
                i64::MAX as u64,
                0x8000_8000_8000_8000,
                64,
                15,
            ]),
            2 => self.below(130),
            3 => self.f64(),
            _ => u64::from(self.f32()) | u64::from(self.f32()) << 32,
        }
    }

    pub fn u128(&mut self) -> u128 {
        if self.below(2) == 0 {
            return u128::from(self.f64()) | u128::from(self.f64()) << 64;
        }
        u128::from(self.u64()) | u128::from(self.u64()) << 64
    }

    /// A register of the x87 FPU.
    pub fn f80(&mut self) -> u128 {
        let integer = 1u64 << 63;
        let (exponent, significand) = match self.below(10) {
            // Zero, denormal, pseudo-denormal.
            0 => (0, 0),
            1 => (0, self.next() >> 1),
            2 => (0, integer | self.next()),
            // Infinity, quiet and signalling NaN, pseudo-infinity.
            3 => (0x7FFF, integer),
            4 => (0x7FFF, integer | 1 << 62 | self.next()),
            5 => (0x7FFF, integer | 1 | self.next() >> 2),
            6 => (0x7FFF, 0),
            // Unnormal.
            7 => (0x4000, self.next() >> 1),
            // Anything; something near 1.
            8 => (self.next() & 0x7FFF, integer | self.next()),
            _ => (0x3FF0 + self.below(40), integer | self.next()),
        };
        let sign = u128::from(self.below(2)) << 79;
        sign | u128::from(exponent) << 64 | u128::from(significand)
    }
}
