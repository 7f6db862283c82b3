//! Sorting by threads (rayon) and by one, and sums of floating-point numbers.
use rayon::prelude::*;
use vector_programs::{Random, bits, report};

fn main() {
    let mut random = Random::new(28);
    let numbers: Vec<u64> = (0..60_000)
        .map(|_| u64::from(random.next()) << 20 ^ u64::from(random.next()))
        .collect();
    let reals: Vec<f64> = (0..50_000).map(|_| random.real()).collect();
    let mut sorted = numbers.clone();
    sorted.par_sort_unstable();
    report(
        "threads",
        sorted
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<_>>(),
    );
    let mut same = numbers;
    same.sort();
    println!("{}", same == sorted);
    let mut ordered = reals.clone();
    ordered.sort_unstable_by(f64::total_cmp);
    report("reals", bits(ordered));
    let scaled: Vec<f64> = reals
        .par_iter()
        .map(|x| x.mul_add(3.0, x.abs().sqrt().tanh()))
        .collect();
    report("scaled", bits(scaled));
    println!("{:e}", reals.iter().sum::<f64>());
}
