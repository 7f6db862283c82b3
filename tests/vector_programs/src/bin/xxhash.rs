//! XXH3 and XXH64.
use vector_programs::Random;
use xxhash_rust::{xxh3, xxh64};

fn main() {
    let data = Random::new(12).bytes(300_000);
    for length in [0, 3, 16, 128, 240, 241, 1_024, 40_007, 300_000] {
        let data = &data[..length];
        println!(
            "{:x} {:x}",
            xxh3::xxh3_128(data),
            xxh3::xxh3_64_with_seed(data, 9)
        );
        println!("{:x}", xxh64::xxh64(data, 5));
    }
}
