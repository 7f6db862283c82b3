//! Pseudo-random numbers: SplitMix64, whose whole state is the seed.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits().checked_rem(limit).unwrap_or(0)
    }

    /// True `percent` times of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// An integer that likes the edges: zeros, ones, signs, few bits, and now and then any bits.
    pub fn integer(&mut self) -> u64 {
        let bits = self.bits();
        match self.below(10) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (bits & 63),
            3 => (1 << (bits & 63)) - 1,
            4 => (1u64 << (bits & 63)).wrapping_neg(),
            5 => bits & 0xFF,
            6 => (bits as i8) as u64,
            7 => (bits as i32) as u64,
            8 => self.pick(&[
                0x7F,
                0x80,
                0x7FFF,
                0x8000,
                0x7FFF_FFFF,
                0x8000_0000,
                i64::MAX as u64,
                i64::MIN as u64,
            ]),
            _ => bits,
        }
    }

    /// A single-precision number, as bits.
    pub fn single(&mut self) -> u32 {
        let bits = self.bits() as u32;
        match self.below(8) {
            0 => self.pick(&[
                0,
                0x8000_0000,
                0x7F80_0000,
                0xFF80_0000,
                0x7FC0_0000,
                0xFFC0_1234,
                0x7F80_0001,
                0x3F80_0000,
            ]),
            1 => bits & 0x807F_FFFF,
            2 => 0x3F80_0000 ^ (bits & 0x80FF_FFFF),
            3 => (self.below(100) as f32 - 50.0).to_bits(),
            4 => ((bits as i32) as f32).to_bits(),
            5 => self.pick(&[
                0x0080_0000,
                0x7F7F_FFFF,
                1,
                0x4F00_0000,
                0xCF00_0000,
                0x3F00_0000,
                0x4EFF_FFFF,
            ]),
            _ => bits,
        }
    }

    /// A double-precision number, as bits.
    pub fn double(&mut self) -> u64 {
        let bits = self.bits();
        match self.below(9) {
            0 => self.pick(&[
                0,
                1 << 63,
                0x7FF << 52,
                0xFFF << 52,
                0x7FF8 << 48,
                0xFFF8_0000_0000_1234,
                0x7FF0_0000_0000_0001,
            ]),
            1 => bits & 0x800F_FFFF_FFFF_FFFF,
            2 => 0x3FF0_0000_0000_0000 ^ (bits & 0x801F_FFFF_FFFF_FFFF),
            3 => (self.below(100) as f64 - 50.0).to_bits(),
            4 => (bits as i64 as f64).to_bits(),
            5 => (f64::from(bits as i32) / 2.0).to_bits(),
            6 => self.pick(&[
                0x0010_0000_0000_0000,
                0x7FEF_FFFF_FFFF_FFFF,
                1,
                0x43E0_0000_0000_0000,
                0xC3E0_0000_0000_0000,
            ]),
            7 => f64::from(f32::from_bits(self.single())).to_bits(),
            _ => bits,
        }
    }

    /// An extended-precision number, as bytes.
    pub fn extended(&mut self) -> [u8; 10] {
        let bits = self.bits();
        let normal = bits | 1 << 63;
        let sign = (bits as u16) & 0x8000;
        let (exponent, significand) = match self.below(10) {
            0 => (0, 0),
            1 => (
                0x7FFF,
                self.pick(&[
                    1 << 63,
                    0xC000_0000_0000_0000,
                    0x8000_0000_0000_0001,
                    normal,
                    bits,
                ]),
            ),
            2 => (0, bits),
            3 => (0x3FFF, 1 << 63),
            4 => (0x3FFF + self.below(64) as u16, normal),
            5 => (0x3FFF - self.below(64) as u16, normal),
            6 => (
                0x3FFF + self.below(20) as u16,
                normal & 0xFFFF_FF00_0000_0000,
            ),
            7 => (self.below(0x7FFF) as u16, normal),
            8 => (
                self.pick(&[1, 0x7FFE, 0x3C00, 0x4400, 0x3F80, 0x4080]),
                normal,
            ),
            _ => (self.below(0x8000) as u16, bits),
        };
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&significand.to_le_bytes());
        bytes[8..].copy_from_slice(&(exponent | sign).to_le_bytes());
        bytes
    }
}
