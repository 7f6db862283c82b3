//! The scheduling records (arrives, departs) that divide the records of a task into segments.

use vbts_protocol::RECORD_SIZE;

use crate::trace::format::{ARRIVES, DEPARTS};

/// The records.
pub(super) fn words(records: &[u8]) -> &[[u8; RECORD_SIZE]] {
    records.as_chunks().0
}

/// The time of a scheduling record of kind `qualifier`.
fn time_of(record: &[u8; RECORD_SIZE], qualifier: u64) -> Option<u64> {
    let [kind, time, _] = record.as_chunks::<8>().0 else {
        return None;
    };
    (*kind == qualifier.to_le_bytes()).then(|| u64::from_le_bytes(*time))
}

/// The time of the segment that begins at byte `at`, if a record says so.
pub(super) fn arrival(records: &[u8], at: usize) -> Option<u64> {
    let first = words(records.get(at..)?).first()?;
    time_of(first, ARRIVES)
}

/// The time up to which a stream is complete after `records`, if the last one says so.
pub(super) fn departure(records: &[u8]) -> Option<u64> {
    time_of(words(records).last()?, DEPARTS)
}

/// Length in bytes of the first segment, and of the segments after it that begin before `time`.
pub(super) fn segments_before(records: &[u8], time: u64) -> usize {
    let later = words(records)
        .iter()
        .skip(1)
        .position(|record| time_of(record, ARRIVES).is_some_and(|arrival| arrival >= time));
    later.map_or(records.len(), |at| (at + 1) * RECORD_SIZE)
}
