//! Roaring bitmaps.
use roaring::RoaringBitmap;
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(27);
    let mut bitmap = |count: u32, end: u32| {
        (0..count)
            .map(|_| random.below(end))
            .collect::<RoaringBitmap>()
    };
    let (a, b, c) = (
        bitmap(40_000, 200_000),
        bitmap(3_000, 4_000_000),
        bitmap(60_000, 90_000),
    );
    for (name, result) in [
        ("and", &a & &c),
        ("or", &a | &b),
        ("xor", &a ^ &c),
        ("sub", &c - &a),
    ] {
        let mut bytes = Vec::new();
        result.serialize_into(&mut bytes).expect("bytes");
        report(name, bytes);
    }
    println!(
        "{} {:?} {:?}",
        a.intersection_len(&b),
        b.select(1_000),
        c.rank(45_678)
    );
}
