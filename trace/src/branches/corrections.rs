//! The last corrections of a node: what has followed it when another branch was predicted.

use std::hint::select_unpredictable;

use wide::{CmpEq, i32x4};

/// Corrections that are kept.
pub(super) const KEPT: usize = 4;

/// The nodes of the last corrections, the last one first. They are handled without branches,
/// because the host would mispredict about half of these.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Corrections(i32x4);

/// For each position, and for none, the lanes behind it. Positions come from codes of 3 bits.
const BEHIND: [i32x4; 8] = {
    let mut behind = [i32x4::ZERO; 8];
    behind[0] = i32x4::new([0, -1, -1, -1]);
    behind[1] = i32x4::new([0, 0, -1, -1]);
    behind[2] = i32x4::new([0, 0, 0, -1]);
    behind
};

impl Corrections {
    /// The positions of `node`, a bit each.
    #[inline(always)]
    fn positions(&self, node: u32) -> u32 {
        let equal = self.0.cmp_eq(i32x4::splat(node.cast_signed()));
        equal.move_mask().cast_unsigned()
    }

    /// The code of `node`, which was not predicted: its position without that of `predicted`.
    /// Moves it to the front. Returns `None` if it has no position, and inserts it.
    #[inline(always)]
    pub(super) fn encode(&mut self, node: u32, predicted: u32) -> Option<u8> {
        let first = |positions: u32| (positions | 1 << KEPT).trailing_zeros() as usize;
        let at = first(self.positions(node));
        let skipped = first(self.positions(predicted)) < at;
        self.insert(node, at);
        (at < KEPT).then_some((at - usize::from(skipped)) as u8)
    }

    /// The node with a code below [`KEPT`], which was not `predicted`. Moves it to the front.
    /// Returns `None` if no node has the code.
    #[inline(always)]
    pub(super) fn decode(&mut self, code: u8, predicted: u32) -> Option<u32> {
        let code = usize::from(code);
        let skipped = self.positions(predicted) & ((2 << code) - 1) != 0;
        // Both are read before it is known whether the prediction is skipped.
        let all = self.0.as_array_ref();
        let (node, next) = (all[code % KEPT], all[(code + 1) % KEPT]);
        let node = select_unpredictable(skipped, next, node).cast_unsigned();
        let at = code + usize::from(skipped);
        self.insert(node, at);
        (at < KEPT).then_some(node)
    }

    /// Puts `node` in front, from the position `at`, or in place of the last one if that is
    /// [`KEPT`].
    #[inline(always)]
    pub(super) fn insert(&mut self, node: u32, at: usize) {
        let [first, second, third, _] = self.0.to_array();
        let moved = i32x4::new([node.cast_signed(), first, second, third]);
        let behind = BEHIND[at % BEHIND.len()];
        self.0 = (behind & self.0) | (!behind & moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A list without lanes gives the same codes.
        #[test]
        fn codes_are_places_in_a_list(
            steps in prop::collection::vec((0..7_u32, 0..7_u32), 0..100)
        ) {
            let (mut encoder, mut decoder) = (Corrections::default(), Corrections::default());
            let mut list = vec![0; KEPT];
            for (node, predicted) in steps.into_iter().filter(|(node, other)| node != other) {
                let place = list.iter().position(|other| *other == node);
                let code = place.map(|place| {
                    let skipped = list[..place].contains(&predicted);
                    list.remove(place);
                    (place - usize::from(skipped)) as u8
                });
                list.insert(0, node);
                list.truncate(KEPT);
                prop_assert_eq!(encoder.encode(node, predicted), code);
                match code {
                    Some(code) => prop_assert_eq!(decoder.decode(code, predicted), Some(node)),
                    None => decoder.insert(node, KEPT),
                }
                prop_assert_eq!(decoder.0, encoder.0);
            }
        }
    }

    #[test]
    fn a_code_of_no_place_is_refused() {
        assert_eq!(Corrections::default().decode(3, 0), None);
        assert_eq!(Corrections::default().decode(3, 1), Some(0));
    }
}
