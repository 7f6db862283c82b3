//! The codec of branches: a sequence of branches as the corrections of a prediction.
//!
//! A program takes few different branches, and after some of them mostly the same one follows. The
//! encoder and the decoder build the same tables ([`predictor`]), which predict the next branch.
//! The encoded form has how many predictions are right before a wrong one, and what follows there
//! instead.
//!
//! | module | contents |
//! |---|---|
//! | `predictor` | the prediction |
//! | `corrections` | what has followed a branch when another was predicted |
//! | `encoder`, `decoder` | branches to streams, and back |
//! | `streams` | symbols, bits and bytes |

mod corrections;
mod decoder;
mod encoder;
mod predictor;
mod streams;

pub(crate) use decoder::Decoder;
pub(crate) use encoder::Encoder;
pub(crate) use predictor::Context;
pub(crate) use streams::MAX_RUN;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Branch;
    use crate::chunk::Compressor;
    use proptest::prelude::*;

    /// One of many branches. The first one is that of the node that there always is.
    fn branch(n: u64) -> Branch {
        let from = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let to = from.rotate_left(u32::BITS);
        Branch { from, to }
    }

    fn round_trip(tasks: &[(usize, Vec<Branch>)]) -> Vec<u8> {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let mut contexts = [Context::default(); 4];
        for (task, branches) in tasks {
            encoder.push(branches, &mut contexts[*task]);
        }
        let mut encoded = Vec::new();
        let mut compressor = Compressor::new().unwrap();
        encoder.finish(&mut encoded, &mut compressor).unwrap();
        decoder.start(&encoded).unwrap();
        let mut contexts = [Context::default(); 4];
        for (task, branches) in tasks {
            let mut out = vec![Branch::default(); branches.len()];
            // Parts of any size give the same.
            let (first, second) = out.split_at_mut(branches.len() / 3);
            for part in [first, second] {
                let context = &mut contexts[*task];
                decoder.take(context, part, |_, branch| *branch).unwrap();
            }
            assert_eq!(&out, branches);
        }
        encoded
    }

    proptest! {
        #[test]
        fn branches_make_a_round_trip(
            parts in prop::collection::vec(
                (0..4_usize, prop::collection::vec(0..40_u64, 0..200)),
                0..8,
            )
        ) {
            let tasks: Vec<(usize, Vec<Branch>)> = parts
                .into_iter()
                .map(|(task, numbers)| (task, numbers.into_iter().map(branch).collect()))
                .collect();
            round_trip(&tasks);
        }

        #[test]
        fn damaged_forms_are_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            count in 0..5000_usize,
        ) {
            // Half of them begin like a good one.
            if bytes.len() % 2 == 0 {
                let numbers: Vec<Branch> = (0..50).map(|n| branch(n % 7)).collect();
                let mut good = round_trip(&[(0, numbers)]);
                for (byte, change) in good.iter_mut().zip(&bytes) {
                    if change % 8 == 0 {
                        *byte ^= change;
                    }
                }
                bytes = good;
            }
            let mut decoder = Decoder::default();
            let mut out = vec![Branch::default(); count];
            if decoder.start(&bytes).is_ok()
                && decoder.take(&mut Context::default(), &mut out, |_, branch| *branch).is_ok()
            {
                prop_assert!(out.iter().all(|branch| decoder.branches().contains(branch)));
            }
        }
    }

    #[test]
    fn a_loop_takes_no_room() {
        let numbers = (0..1_000_000).map(|n| branch(if n % 1000 == 999 { 1 } else { 0 }));
        let encoded = round_trip(&[(0, numbers.collect())]);
        assert!(encoded.len() < 6000, "{}", encoded.len());
    }
}
