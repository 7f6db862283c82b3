//! The contents of files that a guest must never see.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// 8 random bytes, which the file has again and again.
static CANARY: LazyLock<Canary> = LazyLock::new(Canary::new);
const CANARY_LEN: usize = 64;

/// The fuzzer watches comparisons and puts what it sees there into inputs. So the canary is never
/// compared itself.
struct Canary {
    word: u64,
    factor: u64,
}

impl Canary {
    fn new() -> Self {
        let random = || RandomState::new().hash_one(());
        Self {
            // No zero bytes.
            word: random() | 0x0101_0101_0101_0101,
            factor: random() | 1,
        }
    }

    fn fingerprint(&self, word: u64) -> u64 {
        (word ^ word >> 29).wrapping_mul(self.factor)
    }
}

/// The contents of a file outside the shares.
pub fn contents() -> Vec<u8> {
    CANARY.word.to_le_bytes().repeat(CANARY_LEN / 8)
}

/// Asserts that `bytes`, which the guest can see, hold nothing of the canary.
///
/// # Panics
/// They do.
pub fn assert_hidden(bytes: &[u8]) {
    let canary = &*CANARY;
    let forbidden = canary.fingerprint(canary.word);
    for window in bytes.windows(8) {
        let word = window.iter().rfold(0, |w, b| w << 8 | u64::from(*b));
        assert!(
            word == 0 || canary.fingerprint(word) != forbidden,
            "the guest sees a file outside its share"
        );
    }
}
