//! Vectors of the crate wide: elementary functions on eight lanes.
use vector_programs::{Random, bits, report};
use wide::{f32x8, f64x4, i32x8};

fn main() {
    let mut random = Random::new(21);
    for _ in 0..40 {
        let x = f32x8::new(std::array::from_fn(|_| random.real() as f32 * 9.0));
        let d = f64x4::new(std::array::from_fn(|_| random.real()));
        let i = i32x8::new(std::array::from_fn(|_| random.next() as i32));
        let singles = [
            x.sin(),
            x.exp(),
            x.abs().ln(),
            x.abs().sqrt(),
            x.mul_add(x, x),
            x.round(),
        ];
        report(
            "single",
            bits(singles.iter().flat_map(|v| v.to_array()).map(f64::from)),
        );
        report(
            "double",
            bits(
                [d.exp(), d.atan(), d.asin(), d.floor()]
                    .iter()
                    .flat_map(|v| v.to_array()),
            ),
        );
        let integers = [i * i, i + i, i.abs(), i >> 3];
        report(
            "integer",
            bits(integers.iter().flat_map(|v| v.to_array()).map(f64::from)),
        );
    }
}
