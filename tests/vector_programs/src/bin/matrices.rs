//! Products of matrices (ndarray, matrixmultiply).
use ndarray::{Array2, Axis};
use vector_programs::{Random, bits, report};

fn main() {
    let mut random = Random::new(19);
    for (n, k, m) in [(1, 1, 1), (7, 13, 5), (64, 64, 64), (101, 90, 83)] {
        let a = Array2::from_shape_fn((n, k), |_| random.real());
        let b = Array2::from_shape_fn((k, m), |_| random.real());
        let c = a.dot(&b);
        report("double", bits(c.iter().copied()));
        let single = a.mapv(|v| v as f32).dot(&b.mapv(|v| v as f32));
        report("single", bits(single.iter().copied().map(f64::from)));
        report(
            "sums",
            bits(
                c.sum_axis(Axis(0))
                    .iter()
                    .chain(c.var_axis(Axis(1), 0.0).iter())
                    .copied(),
            ),
        );
    }
}
