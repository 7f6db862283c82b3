//! What storing a record does: SDM Vol. 3B 17.4.5 and 17.4.9.

use vbts_bts::{DropReason, Stored};

use crate::values::*;

#[inline(always)]
fn lies_in_the_buffer(given: Given, absent: u8) -> bool {
    let Some((stored, memory)) = given.store(absent) else {
        return true;
    };
    let (f, ds_area) = (given.fields, given.ds_area);
    let Processor {
        word,
        record,
        flags,
        ..
    } = given.processor;
    if stored.is_err() {
        return memory.writes == 0;
    }
    let (Some((slot, _)), Some((index_at, index))) = (memory.record, memory.index) else {
        return false;
    };
    slot >= f.base
        && can_hold_a_record(slot, record)
        && slot + record <= f.absolute_maximum
        && slot & 3 == 0
        && memory.holds_record(slot, flags)
        && index_at == ds_area + word
        && index >= f.base
        && index <= f.absolute_maximum
        && memory.writes == 2
}

#[inline(always)]
fn follows_the_ring(given: Given, absent: u8) -> bool {
    let Some((Ok(_), memory)) = given.store(absent) else {
        return true;
    };
    let (Some((slot, _)), Some((_, next))) = (memory.record, memory.index) else {
        return false;
    };
    let (f, record) = (given.fields, given.processor.record);
    let room = |from: u64| f.absolute_maximum - from >= record;
    let expected = if room(f.index) { f.index } else { f.base };
    let last = !given.btint() && !room(slot + record);
    slot == expected
        && implies(given.btint(), slot == f.index)
        && next == if last { f.base } else { slot + record }
}

#[inline(always)]
fn interrupts_at_the_threshold(given: Given) -> bool {
    let Some((Ok(stored), _)) = given.store(0) else {
        return true;
    };
    let (f, record) = (given.fields, given.processor.record);
    let crosses = f.index < f.threshold && f.threshold - f.index <= record;
    (stored == Stored::StoredAndPmi) == (given.btint() && crosses)
}

properties! {
    /// A record is stored whole, inside the buffer and the canonical addresses, and then the index;
    /// nothing else is written. A record that is dropped changes nothing.
    fn prove_a_record_lies_in_the_buffer(given, absent) {
        lies_in_the_buffer(given, absent as u8)
    }

    /// As above, in the 32-bit format.
    fn prove_a_32_bit_record_lies_in_the_buffer(given, absent) {
        lies_in_the_buffer(given.on_netburst(), absent as u8)
    }

    /// The record goes to the index, or in a full circular buffer to the base. The new index is
    /// behind it, or in a circular buffer without room for one more the base.
    fn prove_the_index_follows_the_ring(given, absent) {
        follows_the_ring(given, absent as u8)
    }

    /// As above, in the 32-bit format.
    fn prove_a_32_bit_index_follows_the_ring(given, absent) {
        follows_the_ring(given.on_netburst(), absent as u8)
    }

    /// Where one record was stored, the next one finds a consistent DS area. It is dropped only for
    /// lack of room, or if its slot is not canonical. A circular buffer has room for ever.
    fn prove_the_ring_stays_consistent(given, unused) {
        let _ = unused;
        let Some((Ok(_), memory)) = given.store(0) else {
            return true;
        };
        let Some((_, next)) = memory.index else {
            return false;
        };
        let mut then = given;
        then.fields.index = next;
        match then.store(0) {
            Some((Ok(_), _)) => true,
            Some((Err(DropReason::Full), _)) => given.btint(),
            Some((Err(DropReason::NonCanonical), _)) => !can_hold_a_record(next, RECORD),
            _ => false,
        }
    }

    /// An interrupt is asked for with BTINT alone, by the record with which the index reaches the
    /// threshold or passes it.
    fn prove_the_interrupt_comes_at_the_threshold(given, unused) {
        let _ = unused;
        interrupts_at_the_threshold(given)
    }

    /// As above, in the 32-bit format.
    fn prove_the_interrupt_of_32_bits_comes_at_the_threshold(given, unused) {
        let _ = unused;
        interrupts_at_the_threshold(given.on_netburst())
    }

    /// A consistent buffer below the end of its half takes a record.
    fn prove_a_consistent_buffer_takes_a_record(given, unused) {
        let _ = unused;
        let f = given.fields;
        let consistent = (f.base | f.index) & 3 == 0
            && f.base <= f.index
            && f.index <= f.absolute_maximum
            && f.absolute_maximum - f.base >= RECORD
            && (f.absolute_maximum < HOLE || f.base >= HOLE_END);
        match given.store(0) {
            None => true,
            Some((stored, _)) if consistent && given.ds_area < HOLE - 32 => {
                stored.is_ok() || given.btint() && stored == Err(DropReason::Full)
            }
            _ => true,
        }
    }

    /// What the registers accept: canonical addresses, and no reserved bit. A branch is recorded
    /// with TR and BTS, as far as BTS_OFF_OS and BTS_OFF_USR do not exclude where it arrives.
    fn prove_the_filter_is_that_of_debugctl(given, cpl) {
        let Given { ds_area, debugctl, .. } = given;
        let accepted = !(HOLE..HOLE_END).contains(&ds_area) && debugctl & !0x7FC3 == 0;
        let Some(recorder) = given.recorder() else {
            return !accepted;
        };
        let bit = |n: u32| debugctl >> n & 1 != 0;
        let cpl = cpl as u8 & 3;
        let filtered = if cpl == 0 { bit(9) } else { bit(10) };
        accepted && recorder.enabled(cpl) == (bit(6) && bit(7) && !filtered)
    }

    /// As above, with MSR_DEBUGCTLA without DS-CPL, and addresses of 32 bits.
    fn prove_netburst_records_everything_with_tr_and_bts(given, cpl) {
        let Given { ds_area, debugctl, .. } = given;
        let accepted = ds_area >> 32 == 0 && debugctl & !0x1F == 0;
        let Some(recorder) = given.on_netburst().recorder() else {
            return !accepted;
        };
        accepted && recorder.enabled(cpl as u8 & 3) == (debugctl & 0xC == 0xC)
    }

    /// Wrong: with BTINT the record that fills the buffer does not take the index to the base.
    fn refute_every_buffer_is_circular(given, unused) {
        let _ = unused;
        let Some((Ok(_), memory)) = given.store(0) else {
            return true;
        };
        let f = given.fields;
        memory.index.is_some_and(|(_, next)| next < f.absolute_maximum)
    }
}
