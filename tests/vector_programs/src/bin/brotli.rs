//! Brotli.
use vector_programs::{Random, report};

fn main() {
    let text = Random::new(6).text(100_000);
    for quality in [2, 7, 11] {
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        let parameters = brotli::enc::BrotliEncoderParams {
            quality,
            ..Default::default()
        };
        brotli::BrotliCompress(&mut text.as_bytes(), &mut packed, &parameters)
            .expect("compression");
        report("brotli", &packed);
        brotli::BrotliDecompress(&mut &packed[..], &mut unpacked).expect("decompression");
        assert_eq!(text.as_bytes(), unpacked);
    }
}
