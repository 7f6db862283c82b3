//! liblzma (C).
use std::io::Read;
use vector_programs::{Random, report};

fn main() {
    let text = Random::new(5).text(120_000);
    for level in [0, 6] {
        let mut packed = Vec::new();
        let mut encoder = xz2::read::XzEncoder::new(text.as_bytes(), level);
        encoder.read_to_end(&mut packed).expect("compression");
        report("xz", &packed);
        let mut unpacked = String::new();
        let mut decoder = xz2::read::XzDecoder::new(&packed[..]);
        decoder
            .read_to_string(&mut unpacked)
            .expect("decompression");
        assert_eq!(text, unpacked);
    }
}
