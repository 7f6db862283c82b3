//! Snappy.
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(7);
    for data in [random.text(400_000).into_bytes(), random.bytes(90_000)] {
        let packed = snap::raw::Encoder::new()
            .compress_vec(&data)
            .expect("compression");
        report("snappy", &packed);
        let unpacked = snap::raw::Decoder::new()
            .decompress_vec(&packed)
            .expect("decompression");
        assert_eq!(data, unpacked);
    }
}
