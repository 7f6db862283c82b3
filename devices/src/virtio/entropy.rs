//! The entropy device (Virtual I/O Device 1.2, section 5.4; Linux: `/dev/hwrng`).

use serde::{Deserialize, Serialize};

use super::queue::{QueueError, VirtQueue};
use super::{DeviceState, VirtioDevice};
use crate::{GuestRam, StateError};

const DEVICE: &str = "the entropy device";

const DEVICE_ID: u32 = 4;
const QUEUE_SIZE: u16 = 16;
/// Most bytes for a request. Drivers request less.
const PIECE: usize = 4096;

/// Where random numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The host's kernel.
    Host,
    /// A generator with this state: the same numbers on every run. They are not secret.
    Fixed(u64),
}

impl Source {
    /// Fills `bytes`. Returns how many of them it has filled.
    pub fn fill(&mut self, bytes: &mut [u8]) -> usize {
        match self {
            Self::Host => {
                // A signal cannot interrupt a request for up to 256 bytes (getrandom(2)).
                let mut done = 0;
                for piece in bytes.chunks_mut(256) {
                    let flags = rustix::rand::GetRandomFlags::empty();
                    match rustix::rand::getrandom(&mut *piece, flags) {
                        Ok(n) if n == piece.len() => done += n,
                        _ => break,
                    }
                }
                done
            }
            Self::Fixed(state) => {
                for piece in bytes.chunks_mut(8) {
                    let word = split_mix(state).to_le_bytes();
                    piece.copy_from_slice(word.get(..piece.len()).unwrap_or_default());
                }
                bytes.len()
            }
        }
    }
}

/// The next number of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// State of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntropyState {
    /// The state of the generator; `None` if the host's kernel makes the numbers.
    generator: Option<u64>,
}

/// The device.
#[derive(Debug)]
pub struct Entropy {
    source: Source,
    piece: Vec<u8>,
}

impl Entropy {
    /// A device that returns the numbers of `source`.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            piece: vec![0; PIECE],
        }
    }
}

impl VirtioDevice for Entropy {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn config(&self) -> &[u8] {
        &[]
    }

    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError> {
        let Some(queue) = queues.first_mut() else {
            return Ok(());
        };
        queue.serve(ram, |chain| {
            let room = chain.writable_len().min(PIECE);
            let piece = self.piece.get_mut(..room).unwrap_or_default();
            let got = self.source.fill(piece);
            chain.write(ram, 0, piece.get(..got).unwrap_or_default())
        })
    }

    fn state(&self) -> Result<DeviceState, StateError> {
        let generator = match self.source {
            Source::Host => None,
            Source::Fixed(state) => Some(state),
        };
        Ok(DeviceState::Entropy(EntropyState { generator }))
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), StateError> {
        match (state, &mut self.source) {
            (DeviceState::Entropy(EntropyState { generator: None }), Source::Host) => {}
            (
                DeviceState::Entropy(EntropyState {
                    generator: Some(saved),
                }),
                Source::Fixed(state),
            ) => *state = *saved,
            (DeviceState::Entropy(_), _) => {
                return Err(StateError::restore(DEVICE, "it had another source"));
            }
            (other, _) => return Err(other.mismatch(DEVICE)),
        }
        Ok(())
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::Driver;
    use super::*;

    fn driver(source: Source) -> Driver<Entropy> {
        let mut driver = Driver::new(Entropy::new(source));
        driver.start();
        driver
    }

    #[test]
    fn a_fixed_source_is_the_same_on_every_run() {
        let read = || {
            let mut d = driver(Source::Fixed(1));
            [d.exchange(0, &[], 20), d.exchange(0, &[], 20)]
        };
        let [first, second] = read();
        assert_eq!(first.len(), 20);
        assert_ne!(first, second);
        assert_eq!([first, second], read());
        // The generator's published first number for this seed.
        let mut state = 1234567;
        assert_eq!(split_mix(&mut state), 6457827717110365317);
    }

    #[test]
    fn the_hosts_numbers_differ() {
        let mut d = driver(Source::Host);
        let (a, b) = (d.exchange(0, &[], 1000), d.exchange(0, &[], 1000));
        assert_eq!((a.len(), b.len()), (1000, 1000));
        assert_ne!(a, b);
    }

    #[test]
    fn a_request_gets_a_piece_at_most_and_nothing_without_room() {
        let mut d = driver(Source::Fixed(0));
        assert_eq!(d.exchange(0, &[], 100_000).len(), PIECE);
        assert_eq!(d.exchange(0, b"x", 0), []);
        assert_eq!(d.device.device_mut().device_id(), 4);
    }

    #[test]
    fn a_restored_generator_continues() {
        let mut d = driver(Source::Fixed(1));
        d.exchange(0, &[], 20);
        let mut other = driver(Source::Fixed(1));
        other.exchange(0, &[], 20);
        d.replace(Entropy::new(Source::Fixed(7)));
        assert_eq!(d.exchange(0, &[], 20), other.exchange(0, &[], 20));
        let state = d.device.device_mut().state().unwrap();
        let mut host = Entropy::new(Source::Host);
        assert!(host.restore(&state).is_err(), "another source");
    }
}
