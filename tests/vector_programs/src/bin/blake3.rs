//! BLAKE3: eight chunks at once (assembly).
use vector_programs::Random;

fn main() {
    let data = Random::new(11).bytes(300_000);
    for length in [0, 1, 1_024, 8_193, 65_536, 300_000] {
        println!("{}", blake3::hash(&data[..length]));
        println!("{}", blake3::keyed_hash(&[7; 32], &data[..length]));
    }
    let mut output = [0; 999];
    blake3::Hasher::new()
        .update(&data)
        .finalize_xof()
        .fill(&mut output);
    vector_programs::report("xof", output);
}
