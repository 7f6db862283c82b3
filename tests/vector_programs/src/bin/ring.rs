//! ring (assembly of BoringSSL): digests, P-256 and X25519 with MULX and ADX where it finds them.
use ring::{aead, digest, hmac, pbkdf2};
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(16);
    let data = random.bytes(50_000);
    for algorithm in [
        &digest::SHA1_FOR_LEGACY_USE_ONLY,
        &digest::SHA256,
        &digest::SHA512,
    ] {
        report("digest", digest::digest(algorithm, &data));
    }
    report(
        "hmac",
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA384, &data[..40]), &data),
    );
    for algorithm in [&aead::AES_256_GCM, &aead::CHACHA20_POLY1305] {
        let key = aead::UnboundKey::new(algorithm, &data[..32]).expect("a key");
        let nonce = aead::Nonce::try_assume_unique_for_key(&data[..12]).expect("a nonce");
        let mut sealed = data.clone();
        aead::LessSafeKey::new(key)
            .seal_in_place_append_tag(nonce, aead::Aad::from(b"header"), &mut sealed)
            .expect("encryption");
        report("aead", &sealed);
    }
    let mut derived = [0; 48];
    let iterations = std::num::NonZeroU32::new(50).expect("not zero");
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA256,
        iterations,
        b"salt",
        b"word",
        &mut derived,
    );
    report("pbkdf2", derived);
    let pair = ring::signature::Ed25519KeyPair::from_seed_unchecked(&data[..32]).expect("a seed");
    report("ed25519", pair.sign(&data));
}
