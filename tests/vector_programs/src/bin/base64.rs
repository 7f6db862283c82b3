//! Base64 with AVX2.
use base64_simd::{STANDARD, URL_SAFE_NO_PAD};
use vector_programs::{Random, report};

fn main() {
    let data = Random::new(26).bytes(100_000);
    for length in [0, 1, 31, 32, 1_000, 100_000] {
        let text = STANDARD.encode_to_string(&data[..length]);
        report("standard", &text);
        assert_eq!(
            STANDARD.decode_to_vec(&text).expect("a text"),
            data[..length]
        );
        report("url", URL_SAFE_NO_PAD.encode_to_string(&data[..length]));
    }
    println!("{}", STANDARD.decode_to_vec("AAAA*AAA".repeat(20)).is_err());
}
