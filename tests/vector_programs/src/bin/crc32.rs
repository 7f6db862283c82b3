//! CRC-32 by carry-less multiplication.
use vector_programs::Random;

fn main() {
    let data = Random::new(9).bytes(200_000);
    for (start, length) in [(0, 200_000), (3, 64), (17, 4_099), (1, 127), (5, 100_003)] {
        println!("{:08x}", crc32fast::hash(&data[start..][..length]));
    }
    let (a, b) = data.split_at(77_777);
    let mut whole = crc32fast::Hasher::new();
    whole.update(a);
    whole.combine(&{
        let mut second = crc32fast::Hasher::new();
        second.update(b);
        second
    });
    println!("{:08x}", whole.finalize());
}
