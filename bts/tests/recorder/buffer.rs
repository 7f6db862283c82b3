//! Index, threshold and end of the buffer: the slot of each record, wrap-around, drops and
//! interrupts.

use vbts_bts::DropReason::{Full, IndexOutside, Misaligned, TooSmall};
use vbts_bts::{BranchRecord, BtsFields};

use crate::common::{
    BUF, CIRCULAR, D, DS, Got, INTERRUPT, NEVER, P, S, branch, buffer, setup, store,
};
use crate::memory::{Access, PAGE};

/// The manual's absolute maximum is a byte behind the last record, so that the index of a full
/// buffer is below it.
#[test]
fn a_full_buffer_is_malformed_without_the_byte_after_it() {
    for (max, checked) in [
        (72, Err(Full)),
        (73, Ok(())),
        (96, Ok(())),
        (71, Err(IndexOutside)),
    ] {
        let fields = buffer(BUF, BUF + 72, BUF + max, NEVER);
        for debugctl in [CIRCULAR, INTERRUPT] {
            let (recorder, _) = setup(debugctl, DS, fields);
            assert_eq!(
                recorder.area().check(&fields),
                checked,
                "{max} {debugctl:#x}"
            );
        }
    }
}

/// A buffer, and the result of each branch. Positions are bytes from the base.
struct Case {
    name: &'static str,
    debugctl: u64,
    index: u64,
    max: u64,
    threshold: u64,
    got: &'static [Got],
    /// Position of the index afterwards.
    after: u64,
}

#[rustfmt::skip]
const BUFFER_CASES: &[Case] = &[
    Case { name: "first of many", debugctl: CIRCULAR, index: 0, max: 96, threshold: NEVER, got: &[S], after: 24 },
    Case { name: "circular: the last slot wraps", debugctl: CIRCULAR, index: 72, max: 96, threshold: NEVER, got: &[S], after: 0 },
    Case { name: "circular: wraps and continues", debugctl: CIRCULAR, index: 0, max: 72, threshold: NEVER, got: &[S, S, S, S], after: 24 },
    Case { name: "circular: wraps with the manual's max + 1", debugctl: CIRCULAR, index: 0, max: 73, threshold: NEVER, got: &[S, S, S, S], after: 24 },
    Case { name: "circular: a tail shorter than a record is not used", debugctl: CIRCULAR, index: 0, max: 71, threshold: NEVER, got: &[S, S, S], after: 24 },
    Case { name: "circular: one record", debugctl: CIRCULAR, index: 0, max: 24, threshold: NEVER, got: &[S, S], after: 0 },
    Case { name: "circular: an index at the end wraps first", debugctl: CIRCULAR, index: 72, max: 72, threshold: NEVER, got: &[S, S], after: 48 },
    Case { name: "circular: an index in the tail wraps first", debugctl: CIRCULAR, index: 72, max: 73, threshold: NEVER, got: &[S], after: 24 },
    Case { name: "interrupt: drops when full", debugctl: INTERRUPT, index: 0, max: 48, threshold: NEVER, got: &[S, S, D(Full), D(Full)], after: 48 },
    Case { name: "interrupt: drops when full, max + 1", debugctl: INTERRUPT, index: 0, max: 49, threshold: NEVER, got: &[S, S, D(Full)], after: 48 },
    Case { name: "interrupt: full from the start", debugctl: INTERRUPT, index: 48, max: 48, threshold: NEVER, got: &[D(Full)], after: 48 },
    Case { name: "interrupt: one record", debugctl: INTERRUPT, index: 0, max: 24, threshold: NEVER, got: &[S, D(Full)], after: 24 },
    Case { name: "PMI once, on the record that reaches the threshold", debugctl: INTERRUPT, index: 0, max: 96, threshold: 48, got: &[S, P, S, S, D(Full)], after: 96 },
    Case { name: "PMI on the first record", debugctl: INTERRUPT, index: 0, max: 96, threshold: 24, got: &[P, S], after: 48 },
    Case { name: "PMI on the last record", debugctl: INTERRUPT, index: 48, max: 96, threshold: 96, got: &[S, P, D(Full)], after: 96 },
    Case { name: "PMI at the first record past a misaligned threshold", debugctl: INTERRUPT, index: 0, max: 96, threshold: 25, got: &[S, P, S], after: 72 },
    Case { name: "PMI: threshold one byte above the base", debugctl: INTERRUPT, index: 0, max: 96, threshold: 1, got: &[P, S], after: 48 },
    Case { name: "no PMI: threshold above max", debugctl: INTERRUPT, index: 0, max: 48, threshold: 49, got: &[S, S, D(Full)], after: 48 },
    Case { name: "no PMI: index already at the threshold", debugctl: INTERRUPT, index: 48, max: 96, threshold: 48, got: &[S, S, D(Full)], after: 96 },
    Case { name: "no PMI: threshold at the base", debugctl: INTERRUPT, index: 0, max: 96, threshold: 0, got: &[S, S], after: 48 },
    Case { name: "no PMI: BTINT clear", debugctl: CIRCULAR, index: 0, max: 96, threshold: 48, got: &[S, S, S, S, S], after: 24 },
    Case { name: "interrupt, user branches only", debugctl: 0x3C0, index: 24, max: 72, threshold: 48, got: &[P, S, D(Full)], after: 72 },
    Case { name: "circular, user branches only", debugctl: 0x2C0, index: 24, max: 72, threshold: 48, got: &[S, S, S], after: 24 },
    Case { name: "interrupt, kernel branches only", debugctl: 0x5C0, index: 24, max: 72, threshold: 48, got: &[P, S, D(Full)], after: 72 },
    Case { name: "smaller than one record", debugctl: CIRCULAR, index: 0, max: 23, threshold: NEVER, got: &[D(TooSmall)], after: 0 },
    Case { name: "smaller than one record, interrupt", debugctl: INTERRUPT, index: 0, max: 23, threshold: 8, got: &[D(TooSmall)], after: 0 },
    Case { name: "empty", debugctl: CIRCULAR, index: 0, max: 0, threshold: NEVER, got: &[D(TooSmall)], after: 0 },
    Case { name: "max below the base", debugctl: CIRCULAR, index: 0, max: 0u64.wrapping_sub(24), threshold: NEVER, got: &[D(TooSmall)], after: 0 },
    Case { name: "index below the base", debugctl: CIRCULAR, index: 0u64.wrapping_sub(24), max: 96, threshold: NEVER, got: &[D(IndexOutside)], after: 0u64.wrapping_sub(24) },
    Case { name: "index above max", debugctl: CIRCULAR, index: 120, max: 96, threshold: NEVER, got: &[D(IndexOutside)], after: 120 },
    Case { name: "index above max, interrupt", debugctl: INTERRUPT, index: 100, max: 96, threshold: 48, got: &[D(IndexOutside)], after: 100 },
    Case { name: "index misaligned", debugctl: CIRCULAR, index: 2, max: 96, threshold: NEVER, got: &[D(Misaligned)], after: 2 },
    Case { name: "index off the record grid, on a dword", debugctl: INTERRUPT, index: 4, max: 96, threshold: NEVER, got: &[S, S, S, D(Full)], after: 76 },
];

#[test]
fn buffer_edges() {
    for case in BUFFER_CASES {
        let at = |offset: u64| {
            if offset == NEVER {
                NEVER
            } else {
                BUF.wrapping_add(offset)
            }
        };
        let fields = buffer(BUF, at(case.index), at(case.max), at(case.threshold));
        let (mut recorder, mut memory) = setup(case.debugctl, DS, fields);
        for (n, &expected) in case.got.iter().enumerate() {
            let before = memory.snapshot();
            let slot = memory.fields(DS).index;
            let got = store(&mut recorder, &mut memory, n);
            assert_eq!(got, expected, "{}: branch {n}", case.name);
            if let D(_) = got {
                assert_eq!(
                    memory.snapshot(),
                    before,
                    "{}: a dropped record changes no memory",
                    case.name
                );
            } else {
                let slot = if slot + 24 <= fields.absolute_maximum {
                    slot
                } else {
                    BUF
                };
                let (from, to) = branch(n);
                assert_eq!(
                    memory.record(slot),
                    BranchRecord::new(from, to),
                    "{}",
                    case.name
                );
                assert_eq!(memory.peek::<8>(slot + 16), [0; 8], "{}: flags", case.name);
            }
        }
        let after = BtsFields {
            index: at(case.after),
            ..fields
        };
        assert_eq!(
            memory.fields(DS),
            after,
            "{}: only the index moves",
            case.name
        );
    }
}

#[test]
fn a_record_takes_one_read_and_two_writes() {
    let (mut recorder, mut memory) = setup(CIRCULAR, DS, buffer(BUF, BUF + 24, BUF + 96, NEVER));
    assert_eq!(store(&mut recorder, &mut memory, 0), S);
    let expected = [
        Access::Read(DS, 32),
        Access::Write(BUF + 24, 24),
        Access::Write(DS + 8, 8),
    ];
    assert_eq!(memory.log, expected);
}

#[test]
fn resetting_the_index_arms_the_threshold_again() {
    let fields = buffer(BUF, BUF, BUF + 96, BUF + 48);
    let (mut recorder, mut memory) = setup(INTERRUPT, DS, fields);
    for round in 0..3 {
        let got: Vec<Got> = (0..3)
            .map(|n| store(&mut recorder, &mut memory, n))
            .collect();
        assert_eq!(got, [S, P, S], "round {round}");
        memory.set_fields(DS, fields);
    }
    // An index that is set back by one record crosses the threshold again too.
    memory.set_fields(
        DS,
        BtsFields {
            index: BUF + 24,
            ..fields
        },
    );
    assert_eq!(store(&mut recorder, &mut memory, 0), P);
}

#[test]
fn a_buffer_may_end_with_the_address_space() {
    let base = 0u64.wrapping_sub(PAGE);
    let fields = buffer(base, u64::MAX - 27, u64::MAX - 3, NEVER);
    let (mut recorder, mut memory) = setup(INTERRUPT, DS, fields);
    memory.map(base, PAGE, true);
    assert_eq!(store(&mut recorder, &mut memory, 0), S);
    assert_eq!(store(&mut recorder, &mut memory, 1), D(Full));

    memory.set_fields(DS, buffer(base, u64::MAX - 7, u64::MAX, NEVER));
    assert_eq!(store(&mut recorder, &mut memory, 2), D(Full));
    assert_eq!(recorder.set_debugctl(CIRCULAR), Ok(()));
    assert_eq!(store(&mut recorder, &mut memory, 3), S);
    assert_eq!(memory.fields(DS).index, base + 24);
}
