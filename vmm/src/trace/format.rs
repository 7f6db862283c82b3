//! Records, and what the formats of a trace have in common.

use vbts_protocol::{RECORD_SIZE, Scope};

use super::kernel_code::CodeChange;
use super::summary::Summary;
use super::symbols::Symbolizer;
use super::task::{ProcessorEvent, Task, TaskEvent, Untraced};
use crate::host::Unit;

/// Set in the flags of a record that is no branch. The record then has a number in the place of the
/// branch's source, and its kind in the flags (`BTS_MAPPED_SCHED` of the kernel).
const NO_BRANCH: u64 = 1 << 63;
/// Qualifier of a branch (`enum bts_qualifier` of the kernel's `struct bts_struct`).
const QUALIFIER_BRANCH: u64 = 1;
/// Flags of the time at which the task arrives on a processor.
pub const ARRIVES: u64 = NO_BRANCH | 2;
/// Flags of the time at which the task departs from a processor.
pub const DEPARTS: u64 = NO_BRANCH | 3;
/// Flags of a number of branches that the user did not want. The kernel has no such records.
pub const FILTERED: u64 = u64::MAX;

/// The words of a record that the kernel has written, {qualifier, source or time, target}, in the
/// order of those that the processor has stored, {source, target, flags}.
pub fn from_kernel([qualifier, from, to]: [u64; 3]) -> [u64; 3] {
    match qualifier {
        QUALIFIER_BRANCH => [from, to, 0],
        _ => [from, 0, NO_BRANCH | qualifier],
    }
}

/// The words of a record: source, target and flags.
pub fn words(record: &[u8; RECORD_SIZE]) -> [u64; 3] {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&record[at * 8..at * 8 + 8]);
        u64::from_le_bytes(word)
    };
    [word(0), word(1), word(2)]
}

/// The record with these words.
pub fn record([from, to, flags]: [u64; 3]) -> [u8; RECORD_SIZE] {
    let mut record = [0; RECORD_SIZE];
    for (bytes, word) in record.chunks_mut(8).zip([from, to, flags]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    record
}

/// Whether a record is a branch.
pub fn is_branch(flags: u64) -> bool {
    flags & NO_BRANCH == 0
}

/// One record of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A taken branch.
    Branch {
        /// Address of the branch instruction.
        from: u64,
        /// Address of its target.
        to: u64,
    },
    /// The task was scheduled on a processor.
    Arrive {
        /// `CLOCK_MONOTONIC` of the guest in ns.
        time: u64,
    },
    /// The task was descheduled.
    Depart {
        /// `CLOCK_MONOTONIC` of the guest in ns.
        time: u64,
    },
    /// The user did not want this many branches, which were here.
    Filtered {
        /// The number of branches.
        branches: u64,
    },
    /// The kernel has marked the record invalid.
    Invalid,
}

impl Record {
    #[inline]
    fn parse(record: &[u8; RECORD_SIZE]) -> Self {
        match words(record) {
            [from, to, flags] if is_branch(flags) => Self::Branch { from, to },
            [time, _, ARRIVES] => Self::Arrive { time },
            [time, _, DEPARTS] => Self::Depart { time },
            [branches, _, FILTERED] => Self::Filtered { branches },
            _ => Self::Invalid,
        }
    }
}

/// Returns whether a record is a return from the kernel to the program.
///
/// The processor filters by the privilege level after the branch, so it records returns. They are
/// no branches of the program, and their number depends on interrupts, page faults and the size of
/// the trace buffer.
#[inline]
fn is_return_from_kernel(record: &[u8; RECORD_SIZE]) -> bool {
    let [from, _, flags] = words(record);
    // The upper half of the address space.
    from >> 63 != 0 && is_branch(flags)
}

/// Numbers of records that [`Records`] has given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Branches.
    pub branches: u64,
    /// Records that the kernel has marked invalid.
    pub invalid: u64,
}

/// Records, each with the words of one that the processor stores.
#[derive(Debug, Clone, Copy)]
pub struct Records<'a> {
    records: &'a [[u8; RECORD_SIZE]],
    /// Returns from the kernel are left out.
    program_only: bool,
    /// What [`Iterator::next`] and [`Self::plain`] have given out.
    counts: Counts,
}

impl<'a> Records<'a> {
    /// The complete records in `bytes` that belong to `scope`.
    pub fn new(bytes: &'a [u8], scope: Scope) -> Self {
        Self {
            records: bytes.as_chunks().0,
            program_only: scope == Scope::User,
            counts: Counts::default(),
        }
    }

    /// Returns whether all are taken.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    #[inline]
    fn has(&self, record: &[u8; RECORD_SIZE]) -> bool {
        !(self.program_only && is_return_from_kernel(record))
    }

    /// What was given out so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes the branches at the front whose records are as they are written: those without flags.
    pub fn plain(&mut self) -> &'a [u8] {
        let is_plain = |record: &[u8; RECORD_SIZE]| words(record)[2] == 0 && self.has(record);
        let len = self.records.iter().take_while(|record| is_plain(record));
        let (plain, rest) = self.records.split_at(len.count());
        self.records = rest;
        self.counts.branches += plain.len() as u64;
        plain.as_flattened()
    }
}

/// Takes the records, oldest first.
impl Iterator for Records<'_> {
    type Item = Record;

    #[inline]
    fn next(&mut self) -> Option<Record> {
        while let Some((record, rest)) = self.records.split_first() {
            self.records = rest;
            if self.has(record) {
                let record = Record::parse(record);
                self.counts.branches += u64::from(matches!(record, Record::Branch { .. }));
                self.counts.invalid += u64::from(record == Record::Invalid);
                return Some(record);
            }
        }
        None
    }
}

impl DoubleEndedIterator for Records<'_> {
    fn next_back(&mut self) -> Option<Record> {
        while let Some((record, rest)) = self.records.split_last() {
            self.records = rest;
            if self.has(record) {
                return Some(Record::parse(record));
            }
        }
        None
    }
}

/// Formats records and the events between them.
pub trait Format: Send {
    /// What the formatted records consist of.
    fn unit(&self) -> Unit {
        Unit::Line
    }
    /// Takes the records at the front that need no formatting.
    fn as_they_are<'a>(&self, records: &mut Records<'a>) -> &'a [u8] {
        let _ = records;
        &[]
    }
    /// Takes records of `task` and appends them to `out`, until it has taken all, or until `out`
    /// has [`FULL`] bytes. They take at most [`PIECE`] bytes.
    fn records(
        &mut self,
        task: &Task,
        records: &mut Records<'_>,
        symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    );
    /// Appends what has happened to `task` to `out`.
    fn event(&mut self, task: &Task, event: &TaskEvent, out: &mut Vec<u8>) {
        let _ = (task, event, out);
    }
    /// Appends what has happened to a processor to `out`.
    fn processor(&mut self, processor: u32, event: &ProcessorEvent, out: &mut Vec<u8>) {
        let _ = (processor, event, out);
    }
    /// Appends a task that is not traced to `out`.
    fn untraced(&mut self, untraced: &Untraced, out: &mut Vec<u8>) {
        let _ = (untraced, out);
    }
    /// Takes the mappings of `process`, the text of `/proc/PID/maps`, valid for the records that
    /// follow.
    fn maps(&mut self, process: u32, text: &[u8]) {
        let _ = (process, text);
    }
    /// Takes the end of the last task of `process`.
    fn process_ended(&mut self, process: u32) {
        let _ = process;
    }
    /// Appends code that is in no file to `out`.
    fn code(&mut self, event: &vbts_trace::Event, out: &mut Vec<u8>) {
        let _ = (event, out);
    }
    /// Appends code of the guest's kernel that differs from that in its file to `out`.
    fn kernel_code(&mut self, changes: Vec<CodeChange>, out: &mut Vec<u8>) {
        let _ = (changes, out);
    }
    /// Number of branches that it keeps: what it has appended does not have them yet.
    fn kept(&self) -> u64 {
        0
    }
    /// Appends what it keeps to `out`, so that a reader finds it even if the trace has no end.
    fn flush(&mut self, _out: &mut Vec<u8>) {}
    /// Appends the end of the trace to `out`.
    fn summary(&mut self, _summary: &Summary, _out: &mut Vec<u8>) {}
}

/// Bytes of records that are formatted at a time.
pub const PIECE: usize = RECORD_SIZE * 4096;
/// Bytes of text for which no more records are formatted before it is written: an address can have
/// a long label.
pub const FULL: usize = 1 << 20;

/// Only 24-byte little-endian records {from, to, flags}.
#[derive(Debug, Default)]
pub struct Raw;

impl Format for Raw {
    fn unit(&self) -> Unit {
        Unit::Bytes(RECORD_SIZE)
    }

    fn as_they_are<'a>(&self, records: &mut Records<'a>) -> &'a [u8] {
        records.plain()
    }

    fn records(
        &mut self,
        _task: &Task,
        records: &mut Records<'_>,
        _symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) {
        for record in records {
            if let Record::Branch { from, to } = record {
                out.extend_from_slice(&self::record([from, to, 0]));
            }
        }
    }
}

/// Records as in [`Raw`], and everything else in another format, for an index beside them.
#[derive(Debug)]
pub struct RawWithIndex<F>(pub F);

impl<F: Format> Format for RawWithIndex<F> {
    fn unit(&self) -> Unit {
        Raw.unit()
    }

    fn as_they_are<'a>(&self, records: &mut Records<'a>) -> &'a [u8] {
        Raw.as_they_are(records)
    }

    fn records(
        &mut self,
        task: &Task,
        records: &mut Records<'_>,
        symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) {
        Raw.records(task, records, symbols, out);
    }

    fn event(&mut self, task: &Task, event: &TaskEvent, out: &mut Vec<u8>) {
        self.0.event(task, event, out);
    }

    fn untraced(&mut self, untraced: &Untraced, out: &mut Vec<u8>) {
        self.0.untraced(untraced, out);
    }

    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>) {
        self.0.summary(summary, out);
    }
}

/// Appends `value` in hexadecimal without leading zeros. `itoa` has decimal only, and two addresses
/// a branch are too many for `format!`.
pub fn push_hex(out: &mut Vec<u8>, value: u64) {
    let digits = (u64::BITS - value.leading_zeros()).div_ceil(4).max(1);
    push_hex_digits(out, value, digits);
}

/// Appends the low `digits` hexadecimal digits of `value`, at most 16.
pub fn push_hex_digits(out: &mut Vec<u8>, value: u64, digits: u32) {
    let mut text = [0; 16];
    for (i, digit) in text.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (60 - 4 * i)) as usize & 15];
    }
    out.extend_from_slice(&text[16 - digits.min(16) as usize..]);
}

/// Appends `value` in decimal.
pub fn push_decimal(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::root::Root;
    use crate::trace::task::Recent;

    /// Records whose words are in the order of the kernel.
    pub(crate) fn records(words: &[[u64; 3]]) -> Vec<u8> {
        let records = words.iter().map(|words| record(from_kernel(*words)));
        records.collect::<Vec<_>>().into_flattened()
    }

    /// Task `id` of process 1, which executes /bin/NAME.
    pub(crate) fn task(id: u32, name: &str) -> Task {
        Task {
            id,
            number: 0,
            parent: 0,
            process: 1,
            name: format!("/bin/{name}").into(),
            capacity: 0,
            recent: Recent::default(),
        }
    }

    /// A symbolizer without mappings.
    pub(crate) fn symbols() -> Symbolizer {
        let root = Root::open(Path::new("/")).unwrap();
        Symbolizer::new(root, Path::new("/"))
    }

    pub(crate) const SAMPLE: &[[u64; 3]] = &[
        [2, 4_294_937_296, 0],
        [1, 0x40_1000, 0xFFFF_8000_0000_0000],
        [0, 1, 2],
        [3, 7, 0],
        [1, 0xFFFF_FFFF_8100_0000, 0x40_1000],
        [1, 0, 0xA],
    ];

    #[test]
    fn raw_has_only_branches() {
        let mut out = Vec::new();
        let bytes = records(SAMPLE);
        let mut sample = Records::new(&bytes, Scope::User);
        Raw.records(&task(1, "a"), &mut sample, &mut symbols(), &mut out);
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
    fn returns_from_the_kernel_belong_to_all_scopes_except_user() {
        let bytes = records(SAMPLE);
        let back = Record::Branch {
            from: 0xFFFF_FFFF_8100_0000,
            to: 0x40_1000,
        };
        for (scope, count) in [(Scope::User, 0), (Scope::Kernel, 1), (Scope::All, 1)] {
            let records: Vec<Record> = Records::new(&bytes, scope).collect();
            assert_eq!(records.iter().filter(|r| **r == back).count(), count);
            assert_eq!(records.len(), SAMPLE.len() - 1 + count);
        }
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
