//! Ed25519 signatures: a field of 255 bits in vectors.
use ed25519_dalek::{Signer as _, SigningKey, Verifier as _};
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(15);
    for length in [0, 100, 5_000] {
        let secret: [u8; 32] = random.bytes(32).try_into().expect("32 bytes");
        let key = SigningKey::from_bytes(&secret);
        let message = random.bytes(length);
        let signature = key.sign(&message);
        report("signature", signature.to_bytes());
        println!(
            "{:?}",
            key.verifying_key().verify(&message, &signature).is_ok()
        );
        println!(
            "{:?}",
            key.verifying_key().verify(b"other", &signature).is_ok()
        );
    }
}
