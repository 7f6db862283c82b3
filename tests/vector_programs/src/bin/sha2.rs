//! SHA-256 and SHA-512.
use sha2::Digest as _;
use vector_programs::Random;

fn main() {
    let data = Random::new(10).bytes(100_000);
    for length in [0, 1, 55, 64, 119, 4_096, 99_999] {
        println!("{:x}", sha2::Sha256::digest(&data[..length]));
        println!("{:x}", sha2::Sha512::digest(&data[..length]));
    }
}
