//! LZ4 (C): blocks, fast and of high compression.
use lz4::block::{CompressionMode, compress, decompress};
use vector_programs::{Random, report};

fn main() {
    let text = Random::new(3).text(400_000);
    for mode in [
        CompressionMode::DEFAULT,
        CompressionMode::FAST(5),
        CompressionMode::HIGHCOMPRESSION(9),
    ] {
        let packed = compress(text.as_bytes(), Some(mode), true).expect("compression");
        report("lz4", &packed);
        assert_eq!(
            text.as_bytes(),
            decompress(&packed, None).expect("decompression")
        );
    }
}
