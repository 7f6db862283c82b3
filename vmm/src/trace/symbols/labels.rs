//! Labels of addresses that were looked up.

use rustc_hash::FxHashMap;

use crate::escape::{prefix, push_printable};

/// Maximum length in bytes of a label, before what is not printable in it is escaped.
pub const MAX_LABEL: usize = 4096;
/// Maximum number of labels that are kept for a process. When it is reached, all are dropped.
const MAX_LABELS: usize = 1 << 18;
/// Maximum size in bytes of the labels of a process. When it is reached, all are dropped.
const MAX_TEXT: usize = 16 << 20;

/// Labels of addresses that were looked up.
#[derive(Debug, Default)]
pub struct Labels {
    /// Range in `text` of the label of an address. A hash without a key is enough: a program that
    /// provokes collisions slows down the output of its own trace only.
    ranges: FxHashMap<u64, (u32, u32)>,
    text: String,
}

impl Labels {
    /// Returns the label of `address`. If it is not kept, `make` makes it.
    #[inline]
    pub fn get(&mut self, address: u64, make: impl FnOnce(&mut String)) -> &str {
        let (start, end) = match self.ranges.get(&address) {
            Some(range) => *range,
            None => {
                let mut label = String::new();
                make(&mut label);
                self.add(address, &label)
            }
        };
        self.text
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    /// Keeps `label`, in a form that is printable and not too long. Returns its range.
    #[cold]
    fn add(&mut self, address: u64, label: &str) -> (u32, u32) {
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
        // An address without a label may get one when its mapping is known.
        if range.0 < range.1 {
            self.ranges.insert(address, range);
        }
        range
    }

    /// Drops all labels.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.text.clear();
    }

    /// About the memory that they take, in bytes.
    pub fn bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<(u64, (u32, u32))>() + self.text.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_printable_and_have_a_limit() {
        let mut labels = Labels::default();
        let label = labels.get(1, |out| out.push_str("a\nb\u{202e}"));
        assert_eq!(label, "a\\nb\\u{202e}");
        let long = "ö".repeat(MAX_LABEL);
        let label = labels.get(2, |out| out.push_str(&long));
        assert_eq!(label.len(), MAX_LABEL + '…'.len_utf8());
        for address in 0..3 * (MAX_TEXT / MAX_LABEL) as u64 {
            labels.get(address, |out| out.push_str(&long));
            assert!(labels.bytes() < 4 * MAX_TEXT, "{}", labels.bytes());
        }
    }
}
