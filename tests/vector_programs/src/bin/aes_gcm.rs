//! AES-GCM with AES-NI and carry-less multiplication.
use aes_gcm::{Aes128Gcm, Aes256Gcm, KeyInit as _, aead::Aead as _};
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(13);
    let data = random.bytes(60_001);
    let small = Aes128Gcm::new_from_slice(&random.bytes(16)).expect("a key");
    let large = Aes256Gcm::new_from_slice(&random.bytes(32)).expect("a key");
    for length in [0, 15, 16, 60_001] {
        let nonce = random.bytes(12);
        let nonce = aes_gcm::Nonce::from_slice(&nonce);
        let sealed = small.encrypt(nonce, &data[..length]).expect("encryption");
        report("128", &sealed);
        assert_eq!(
            small.decrypt(nonce, &sealed[..]).expect("decryption"),
            data[..length]
        );
        report(
            "256",
            large.encrypt(nonce, &data[..length]).expect("encryption"),
        );
    }
}
