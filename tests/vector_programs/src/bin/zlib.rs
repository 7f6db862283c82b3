//! zlib (C): levels and strategies of deflate, and its checksums.
use std::io::{Read, Write};
use vector_programs::{Random, report};

fn main() {
    let text = Random::new(1).text(150_000);
    for level in [1, 6, 9] {
        let mut encoder =
            flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
        encoder.write_all(text.as_bytes()).expect("compression");
        let packed = encoder.finish().expect("compression");
        report("gzip", &packed);
        let mut unpacked = String::new();
        let mut decoder = flate2::read::GzDecoder::new(&packed[..]);
        decoder
            .read_to_string(&mut unpacked)
            .expect("decompression");
        assert_eq!(text, unpacked);
    }
    let length = text.len() as libz_sys::uInt;
    // SAFETY: the pointer and the length are those of `text`.
    let sums = unsafe {
        [
            libz_sys::adler32(1, text.as_ptr(), length),
            libz_sys::crc32(0, text.as_ptr(), length),
        ]
    };
    println!("{sums:x?}");
}
