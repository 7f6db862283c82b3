//! Integers of thousands of bits.
use num_bigint::BigUint;
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(17);
    let [a, b, m] = [400, 300, 128].map(|length| BigUint::from_bytes_le(&random.bytes(length)));
    report("product", (&a * &b).to_bytes_le());
    report("quotient", (&a / &m).to_bytes_le());
    report("power", a.modpow(&b, &m).to_bytes_le());
    report("root", a.sqrt().to_bytes_le());
    let factorial = (1..400_u32).fold(BigUint::from(1_u32), |product, n| product * n);
    report("digits", factorial.to_string());
}
