//! Addresses at which a record cannot be stored: unmapped, read-only, non-canonical or misaligned
//! ones.

use vbts_bts::DropReason::{self, Misaligned, NonCanonical, ReadOnly, Unmapped, WrapAround};
use vbts_bts::{BranchRecord, Microarchitecture, Recorder};

use crate::common::{BUF, CIRCULAR, D, DS, INTERRUPT, NEVER, P, S, branch, buffer, setup, store};
use crate::memory::{Memory, PAGE};

#[test]
fn a_dropped_record_changes_no_memory() {
    struct Case {
        name: &'static str,
        ds: u64,
        base: u64,
        reason: DropReason,
    }
    const HOLE: u64 = 0x0000_8000_0000_0000;
    const CASES: &[Case] = &[
        Case {
            name: "DS area not mapped",
            ds: DS - PAGE,
            base: BUF,
            reason: Unmapped,
        },
        Case {
            name: "DS area ends in a missing page",
            ds: DS + PAGE - 24,
            base: BUF,
            reason: Unmapped,
        },
        Case {
            name: "DS area into the hole",
            ds: HOLE - 16,
            base: BUF,
            reason: NonCanonical,
        },
        Case {
            name: "DS area wraps around",
            ds: 0u64.wrapping_sub(16),
            base: BUF,
            reason: WrapAround,
        },
        Case {
            name: "buffer not mapped",
            ds: DS,
            base: BUF - PAGE,
            reason: Unmapped,
        },
        Case {
            name: "slot ends in a missing page",
            ds: DS,
            base: BUF + 2 * PAGE - 12,
            reason: Unmapped,
        },
        Case {
            name: "slot starts in a missing page",
            ds: DS,
            base: BUF - 12,
            reason: Unmapped,
        },
        Case {
            name: "buffer not canonical",
            ds: DS,
            base: HOLE,
            reason: NonCanonical,
        },
        Case {
            name: "slot into the hole",
            ds: DS,
            base: HOLE - 8,
            reason: NonCanonical,
        },
        Case {
            name: "slot out of the hole",
            ds: DS,
            base: 0xFFFF_7FFF_FFFF_FFF8,
            reason: NonCanonical,
        },
        Case {
            name: "base misaligned",
            ds: DS,
            base: BUF + 1,
            reason: Misaligned,
        },
        Case {
            name: "base on a word",
            ds: DS,
            base: BUF + 2,
            reason: Misaligned,
        },
    ];
    for case in CASES {
        for debugctl in [CIRCULAR, INTERRUPT] {
            let fields = buffer(
                case.base,
                case.base,
                case.base.wrapping_add(96),
                case.base.wrapping_add(24),
            );
            let (mut recorder, mut memory) = setup(debugctl, case.ds, fields);
            let before = memory.snapshot();
            assert_eq!(
                store(&mut recorder, &mut memory, 0),
                D(case.reason),
                "{}",
                case.name
            );
            assert_eq!(memory.snapshot(), before, "{}", case.name);
        }
    }
}

#[test]
fn a_record_is_not_written_to_read_only_memory() {
    let fields = buffer(BUF, BUF, BUF + 96, BUF + 24);
    for page in [DS, BUF] {
        let (mut recorder, mut memory) = setup(INTERRUPT, DS, fields);
        memory.map(page, 1, false);
        let before = memory.snapshot();
        assert_eq!(store(&mut recorder, &mut memory, 0), D(ReadOnly));
        assert_eq!(memory.snapshot(), before);

        memory.map(page, 1, true);
        assert_eq!(
            store(&mut recorder, &mut memory, 0),
            P,
            "a writable page again"
        );
    }
}

#[test]
fn a_record_and_a_ds_area_may_cross_pages() {
    let ds = DS + PAGE - 12;
    let (mut recorder, mut memory) = {
        let mut memory = Memory::default();
        memory.map(DS, 2 * PAGE, true);
        memory.map(BUF, 2 * PAGE, true);
        let base = BUF + PAGE - 12;
        memory.set_fields(ds, buffer(base, base, base + 48, NEVER));
        let mut recorder = Recorder::new(Microarchitecture::Core2);
        recorder.set_debugctl(INTERRUPT).unwrap();
        recorder.set_ds_area(ds).unwrap();
        (recorder, memory)
    };
    assert_eq!(store(&mut recorder, &mut memory, 7), S);
    let (from, to) = branch(7);
    assert_eq!(memory.record(BUF + PAGE - 12), BranchRecord::new(from, to));

    // The second page of the next slot is not mapped. The first one is not written either.
    memory.set_fields(
        ds,
        buffer(
            BUF + 2 * PAGE - 12,
            BUF + 2 * PAGE - 12,
            BUF + 3 * PAGE,
            NEVER,
        ),
    );
    let before = memory.snapshot();
    assert_eq!(store(&mut recorder, &mut memory, 8), D(Unmapped));
    assert_eq!(memory.snapshot(), before);
}
