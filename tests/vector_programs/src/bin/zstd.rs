//! zstd (C and assembly).
use vector_programs::{Random, report};

fn main() {
    let text = Random::new(2).text(300_000);
    for level in [-3, 1, 5, 12, 19] {
        let packed = zstd::encode_all(text.as_bytes(), level).expect("compression");
        report("zstd", &packed);
        assert_eq!(
            text.as_bytes(),
            zstd::decode_all(&packed[..]).expect("decompression")
        );
    }
}
