//! Labels of addresses that were looked up.

use rustc_hash::FxHashMap;

use vbts_host::escape::{prefix, push_printable};

/// Maximum length in bytes of a label, before what is not printable in it is escaped.
pub(crate) const MAX_LABEL: usize = 4096;
/// Maximum number of labels that are kept for a process. When it is reached, all are dropped.
const MAX_LABELS: usize = 1 << 18;
/// Maximum size in bytes of the labels of a process. When it is reached, all are dropped.
const MAX_TEXT: usize = 16 << 20;

/// Where a label begins and ends.
pub(crate) type LabelRange = (u32, u32);

/// Labels of addresses that were looked up.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    /// Range in `text` of the label of an address. A hash without a key is enough: a program that
    /// provokes collisions slows down the output of its own trace only.
    ranges: FxHashMap<u64, LabelRange>,
    text: String,
}

impl Labels {
    /// Returns where the label of `address` is, if it is kept.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<LabelRange> {
        self.ranges.get(&address).copied()
    }

    /// The label at `range`.
    #[inline]
    pub(crate) fn text(&self, (start, end): LabelRange) -> &str {
        self.text
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    /// Keeps `label` for `address`, in a form that is printable and not too long.
    pub(crate) fn add(&mut self, address: u64, label: &str) {
        if self.ranges.len() >= MAX_LABELS || self.text.len() >= MAX_TEXT {
            self.clear();
        }
        let start = self.text.len();
        let shown = prefix(label, MAX_LABEL);
        push_printable(&mut self.text, shown.as_bytes());
        if shown.len() < label.len() {
            self.text.push('…');
        }
        let range = (start as u32, self.text.len() as u32);
        self.ranges.insert(address, range);
    }

    /// Drops all labels.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.text.clear();
    }

    /// About the memory that they take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<(u64, LabelRange)>() + self.text.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_printable_and_have_a_limit() {
        let mut labels = Labels::default();
        let mut add = |address, label: &str| {
            labels.add(address, label);
            assert!(labels.bytes() < 4 * MAX_TEXT, "{}", labels.bytes());
            let range = labels.find(address).unwrap();
            labels.text(range).to_owned()
        };
        assert_eq!(add(1, "a\nb\u{202e}"), "a\\nb\\u{202e}");
        let long = "ö".repeat(MAX_LABEL);
        for address in 0..3 * (MAX_TEXT / MAX_LABEL) as u64 {
            assert_eq!(add(address, &long).len(), MAX_LABEL + '…'.len_utf8());
        }
    }
}
