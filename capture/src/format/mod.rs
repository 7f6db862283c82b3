//! The formats of a trace: their interface, and the raw format.
//!
//! | module | contents |
//! |---|---|
//! | `text`, `json`, `btrace` | the other formats |

mod btrace;
mod json;
pub(crate) mod text;

use std::io;

use vbts_protocol::RECORD_SIZE;
use vbts_trace::{Branch, Event};

use crate::sink::is_record;
use crate::summary::Summary;
use crate::task::Task;
use vbts_host::Unit;
use vbts_symbols::Symbolizer;

pub use btrace::Btrace;
pub use json::Json;
pub use text::Text;

/// Formats branches and the events between them.
pub trait Format: Send {
    /// The unit of the formatted trace.
    fn unit(&self) -> Unit {
        Unit::Line
    }

    /// Starts the threads with which the format works, if it has some. The process is not in its
    /// sandbox yet, and nothing has been formatted.
    ///
    /// # Errors
    /// The host starts no more threads.
    fn start_threads(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Appends branches of `task` to `out`, until all are formatted or `out` has [`FULL`] bytes.
    /// Returns how many are formatted: at least one of those that there are.
    fn branches(
        &mut self,
        task: &Task,
        branches: &[Branch],
        symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) -> usize;

    /// Appends an event to `out`. That of a process or of the guest comes with the default task.
    fn event(&mut self, task: &Task, event: &Event, out: &mut Vec<u8>);

    /// Returns the number of branches that the format has received but not appended yet.
    fn kept(&self) -> u64 {
        0
    }
    /// Appends the branches that the format keeps to `out`, so that a reader finds them even if the
    /// trace has no end.
    fn flush(&mut self, _out: &mut Vec<u8>) {}
    /// Appends the end of the trace to `out`.
    fn summary(&mut self, _summary: &Summary, _out: &mut Vec<u8>) {}
}

/// Bytes of text for which no more branches are formatted before it is written: an address can have
/// a long label.
pub const FULL: usize = 1 << 20;

/// Only 24-byte little-endian records {from, to, flags}, whose flags are 0.
#[derive(Debug, Default)]
pub struct Raw;

impl Format for Raw {
    fn unit(&self) -> Unit {
        Unit::Bytes(RECORD_SIZE)
    }

    fn branches(
        &mut self,
        _task: &Task,
        branches: &[Branch],
        _symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) -> usize {
        out.reserve(branches.len() * RECORD_SIZE);
        for Branch { from, to } in branches {
            let record = [*from, *to, 0].map(u64::to_le_bytes);
            out.extend_from_slice(record.as_flattened());
        }
        branches.len()
    }

    fn event(&mut self, _task: &Task, _event: &Event, _out: &mut Vec<u8>) {}
}

/// Nothing, for a program that is not traced.
#[derive(Debug, Default)]
pub struct Nothing;

impl Format for Nothing {
    fn branches(
        &mut self,
        _task: &Task,
        branches: &[Branch],
        _symbols: &mut Symbolizer,
        _out: &mut Vec<u8>,
    ) -> usize {
        branches.len()
    }

    fn event(&mut self, _task: &Task, _event: &Event, _out: &mut Vec<u8>) {}
}

/// Branches as in [`Raw`], and everything else in another format, for an index beside them.
#[derive(Debug)]
pub struct RawWithIndex<F>(pub F);

impl<F: Format> Format for RawWithIndex<F> {
    fn unit(&self) -> Unit {
        Raw.unit()
    }

    fn branches(
        &mut self,
        task: &Task,
        branches: &[Branch],
        symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) -> usize {
        Raw.branches(task, branches, symbols, out)
    }

    fn event(&mut self, task: &Task, event: &Event, out: &mut Vec<u8>) {
        // The index does not have the branches between which these are.
        if !is_record(event) {
            self.0.event(task, event, out);
        }
    }

    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>) {
        self.0.summary(summary, out);
    }
}

/// Appends `value` in hexadecimal without leading zeros. `itoa` has decimal only, and two addresses
/// a branch are too many for `format!`.
pub(crate) fn push_hex(out: &mut Vec<u8>, value: u64) {
    let digits = (u64::BITS - value.leading_zeros()).div_ceil(4).max(1);
    push_hex_digits(out, value, digits);
}

/// Appends the low `digits` hexadecimal digits of `value`, at most 16.
pub(crate) fn push_hex_digits(out: &mut Vec<u8>, value: u64, digits: u32) {
    let mut text = [0; 16];
    for (i, digit) in text.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (60 - 4 * i)) as usize & 15];
    }
    out.extend_from_slice(&text[16 - digits.min(16) as usize..]);
}

/// Appends `value` in decimal.
pub(crate) fn push_decimal(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::records::Records;
    use crate::records::tests::records;
    use crate::sink::Sink;
    use crate::task::tests::task;
    use vbts_host::root::Root;

    /// A symbolizer without mappings.
    pub(crate) fn symbols() -> Symbolizer {
        let root = Root::open(Path::new("/")).unwrap();
        Symbolizer::new(root, Path::new("/"))
    }

    /// A format as a sink.
    struct Formatted<'a, F> {
        format: &'a mut F,
        symbols: &'a mut Symbolizer,
        out: &'a mut Vec<u8>,
    }

    impl<F: Format> Sink for Formatted<'_, F> {
        type Error = std::convert::Infallible;

        fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> Result<(), Self::Error> {
            let count = self.format.branches(task, branches, self.symbols, self.out);
            assert_eq!(count, branches.len());
            Ok(())
        }

        fn event(&mut self, task: &Task, event: &Event) -> Result<(), Self::Error> {
            self.format.event(task, event, self.out);
            Ok(())
        }
    }

    /// Appends `records` of `task` in a format to `out`.
    pub(crate) fn format_records<F: Format>(
        format: &mut F,
        task: &Task,
        records: &Records,
        symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) {
        let mut sink = Formatted {
            format,
            symbols,
            out,
        };
        let mut task = task.clone();
        let Ok(()) = records.give(Default::default(), records.end(), &mut task, &mut sink);
    }

    pub(crate) const SAMPLE: &[[u64; 3]] = &[
        [2, 4_294_937_296, 0],
        [1, 0x40_1000, 0xFFFF_8000_0000_0000],
        [0, 1, 2],
        [3, 7, 0],
        [1, 0, 0xA],
    ];

    #[test]
    fn raw_has_only_branches() {
        let mut out = Vec::new();
        let first = task(1, "a");
        format_records(&mut Raw, &first, &records(SAMPLE), &mut symbols(), &mut out);
        Raw.event(&first, &Event::Lost(1), &mut out);
        Raw.summary(&Summary::default(), &mut out);
        let words: Vec<u64> = out
            .as_chunks()
            .0
            .iter()
            .map(|w| u64::from_le_bytes(*w))
            .collect();
        assert_eq!(words, [0x40_1000, 0xFFFF_8000_0000_0000, 0, 0, 0xA, 0]);
    }

    #[test]
    fn numbers_are_formatted_like_the_standard_library() {
        for value in [0, 9, 10, 0xF, 0x10, 12_345_678_901, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            out.push(b' ');
            push_hex(&mut out, value);
            assert_eq!(
                String::from_utf8(out).unwrap(),
                format!("{value} {value:x}")
            );
        }
    }
}
