//! bzip2 (C).
use std::io::Read;
use vector_programs::{Random, report};

fn main() {
    let text = Random::new(4).text(250_000);
    for level in [1, 9] {
        let level = bzip2::Compression::new(level);
        let mut packed = Vec::new();
        let mut encoder = bzip2::read::BzEncoder::new(text.as_bytes(), level);
        encoder.read_to_end(&mut packed).expect("compression");
        report("bzip2", &packed);
        let mut unpacked = String::new();
        let mut decoder = bzip2::read::BzDecoder::new(&packed[..]);
        decoder
            .read_to_string(&mut unpacked)
            .expect("decompression");
        assert_eq!(text, unpacked);
    }
}
