//! Linear algebra (nalgebra): factorisations and eigenvalues.
use nalgebra::DMatrix;
use vector_programs::{Random, bits, report};

fn main() {
    let mut random = Random::new(20);
    for n in [3, 20, 45] {
        let a = DMatrix::from_fn(n, n, |_, _| random.real());
        let positive = &a * a.transpose() + DMatrix::identity(n, n);
        let all = |m: &DMatrix<f64>| bits(m.iter().copied());
        report(
            "inverse",
            all(&a.clone().try_inverse().expect("a regular matrix")),
        );
        report("qr", all(&a.clone().qr().r()));
        report(
            "cholesky",
            all(positive
                .clone()
                .cholesky()
                .expect("a positive matrix")
                .l_dirty()),
        );
        report("eigen", all(&positive.symmetric_eigen().eigenvectors));
        let svd = a.svd(true, true);
        report("svd", bits(svd.singular_values.iter().copied()));
    }
}
