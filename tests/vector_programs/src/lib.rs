//! Input for the programs, and digests of what they compute. Nothing differs between runs.

/// Prints a name and a digest (FNV-1a) of bytes.
pub fn report(name: &str, bytes: impl AsRef<[u8]>) {
    let bytes = bytes.as_ref();
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    }
    println!("{name} {} {hash:016x}", bytes.len());
}

/// The bytes of floating-point numbers.
pub fn bits(values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let values = values.into_iter();
    values
        .flat_map(|value| value.to_bits().to_le_bytes())
        .collect()
}

/// A linear congruential generator.
pub struct Random(u64);

impl Random {
    /// The generator of each program starts with a number of its own.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 32 bits.
    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 32) as u32
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        (u64::from(self.next()) * u64::from(end) >> 32) as u32
    }

    /// A number from -1 to 1.
    pub fn real(&mut self) -> f64 {
        f64::from(self.next() as i32) / 2_147_483_648.0
    }

    /// Bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// Words of a small vocabulary, some with a number: what compressors and searches are made for.
    pub fn text(&mut self, length: usize) -> String {
        const WORDS: [&str; 12] = [
            "branch",
            "trace",
            "store",
            "vector",
            "register",
            "the",
            "of",
            "a",
            "processor",
            "lane",
            "größer",
            "\u{2192}",
        ];
        let mut text = String::new();
        while text.len() < length {
            text.push_str(WORDS[self.below(12) as usize]);
            match self.below(9) {
                0 => text.push_str(&self.below(10_000).to_string()),
                1 => text.push('\n'),
                _ => text.push(' '),
            }
        }
        text
    }
}
