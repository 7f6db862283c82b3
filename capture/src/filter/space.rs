//! The points and the parts of an address space.

use std::ops::Range;

/// A point: an address, and the function around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// The address.
    pub at: u64,
    /// The beginning of the function.
    pub start: u64,
    /// The first address after the function.
    pub end: u64,
}

/// What the user has named of an address space.
#[derive(Debug, Clone, Default)]
pub(super) struct Space {
    /// Where the trace begins, and where it ends.
    pub points: [Vec<Target>; 2],
    pub areas: Areas,
}

/// Parts of an address space with flags.
#[derive(Debug, Clone, Default)]
pub(super) struct Areas {
    /// First address of each part, and its flags; sorted.
    parts: Vec<(u64, u8)>,
}

impl Areas {
    /// The parts with these flags. What several have in common has the flags of all.
    pub(super) fn new(ranges: &[(Range<u64>, u8)]) -> Self {
        let begins = ranges.iter().map(|(range, flags)| (range.start, *flags, 1));
        let ends = ranges.iter().map(|(range, flags)| (range.end, *flags, -1));
        let mut changes: Vec<(u64, u8, i32)> = begins.chain(ends).collect();
        changes.sort_unstable();
        // The number of ranges with each flag that have the address.
        let mut counts = [0; u8::BITS as usize];
        let mut parts: Vec<(u64, u8)> = Vec::new();
        for (at, flags, change) in changes {
            let mut now = 0;
            for (bit, count) in counts.iter_mut().enumerate() {
                *count += change * i32::from(flags >> bit & 1);
                now |= u8::from(*count > 0) << bit;
            }
            match parts.last_mut() {
                Some(last) if last.0 == at => last.1 = now,
                _ => parts.push((at, now)),
            }
        }
        parts.dedup_by_key(|(_, flags)| *flags);
        Self { parts }
    }

    /// The flags of `address`.
    pub(super) fn flags(&self, address: u64) -> u8 {
        let after = self.parts.partition_point(|(start, _)| *start <= address);
        let part = after.checked_sub(1).and_then(|at| self.parts.get(at));
        part.map_or(0, |(_, flags)| *flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_may_overlap() {
        let areas = Areas::new(&[(10..20, 1), (15..30, 2), (20..25, 1), (40..41, 1)]);
        for address in 0..50 {
            let one = (10..25).contains(&address) || address == 40;
            let two = (15..30).contains(&address);
            let expected = u8::from(one) | u8::from(two) << 1;
            assert_eq!(areas.flags(address), expected, "{address}");
        }
        assert_eq!(Areas::default().flags(7), 0);
    }
}
