//! RustFFT with AVX and FMA: lengths that are powers of two, composite and prime.
use rustfft::{FftPlanner, num_complex::Complex};
use vector_programs::{Random, bits, report};

fn main() {
    let mut random = Random::new(18);
    for length in [8, 64, 1_000, 1_024, 1_009, 4_096, 3 * 5 * 7 * 11] {
        let input: Vec<_> = (0..length)
            .map(|_| Complex::new(random.real(), random.real()))
            .collect();
        let mut double = input.clone();
        FftPlanner::new()
            .plan_fft_forward(length)
            .process(&mut double);
        report("double", bits(double.iter().flat_map(|c| [c.re, c.im])));
        let mut single: Vec<_> = input
            .iter()
            .map(|c| Complex::new(c.re as f32, c.im as f32))
            .collect();
        FftPlanner::new()
            .plan_fft_inverse(length)
            .process(&mut single);
        report(
            "single",
            bits(single.iter().flat_map(|c| [c.re.into(), c.im.into()])),
        );
    }
}
