//! ChaCha20-Poly1305.
use chacha20poly1305::{ChaCha20Poly1305, KeyInit as _, aead::Aead as _};
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(14);
    let data = random.bytes(90_003);
    let cipher = ChaCha20Poly1305::new_from_slice(&random.bytes(32)).expect("a key");
    for length in [0, 63, 64, 257, 90_003] {
        let nonce = random.bytes(12);
        let nonce = chacha20poly1305::Nonce::from_slice(&nonce);
        let sealed = cipher.encrypt(nonce, &data[..length]).expect("encryption");
        report("sealed", &sealed);
        assert_eq!(
            cipher.decrypt(nonce, &sealed[..]).expect("decryption"),
            data[..length]
        );
    }
}
