//! The scheduling records (arrives, departs) that divide the records of a task into segments.

use vbts_protocol::RECORD_SIZE;

use crate::trace::format::{ARRIVES, DEPARTS, words};

/// The records.
fn all(records: &[u8]) -> &[[u8; RECORD_SIZE]] {
    records.as_chunks().0
}

/// The time of a scheduling record with `flags`.
fn time_of(record: &[u8; RECORD_SIZE], flags: u64) -> Option<u64> {
    let [time, _, kind] = words(record);
    (kind == flags).then_some(time)
}

/// The time of the segment that begins at byte `at`, if a record says so.
pub(super) fn arrival(records: &[u8], at: usize) -> Option<u64> {
    let first = all(records.get(at..)?).first()?;
    time_of(first, ARRIVES)
}

/// The time up to which a stream is complete after `records`, if the last one says so.
pub(super) fn departure(records: &[u8]) -> Option<u64> {
    time_of(all(records).last()?, DEPARTS)
}

/// Length in bytes of the first segment, and of the segments after it that begin before `time`.
pub(super) fn segments_before(records: &[u8], time: u64) -> usize {
    let later = all(records)
        .iter()
        .skip(1)
        .position(|record| time_of(record, ARRIVES).is_some_and(|arrival| arrival >= time));
    later.map_or(records.len(), |at| (at + 1) * RECORD_SIZE)
}
