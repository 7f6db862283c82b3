//! The recorder against a table: what each DEBUGCTL value stores, and what happens at every edge of
//! the buffer.

#![allow(clippy::unwrap_used, reason = "only tests are here")]

mod common;

use common::{Access, Memory, PAGE};
use vbts_bts::DropReason::{
    Full, IndexOutside, Misaligned, NonCanonical, ReadOnly, TooSmall, Unmapped, WrapAround,
};
use vbts_bts::{
    BranchRecord, BtsFields, DebugCtl, DropReason, Gp, Microarchitecture, Recorder, Stored,
};

/// Where the cases put the DS management area and the buffer: kernel addresses, two pages apart.
const DS: u64 = 0xFFFF_8000_0000_2000;
const BUF: u64 = 0xFFFF_8000_0000_4000;

/// Nothing is at a threshold that the index never reaches.
const NEVER: u64 = u64::MAX;

/// What each branch of a case gave: `S`tored, stored and `P`MI, or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    S,
    P,
    D(DropReason),
}
use Got::{D, P, S};

const CIRCULAR: u64 = 0x0C0;
const INTERRUPT: u64 = 0x1C0;

#[test]
fn debugctl_decides_what_is_stored() {
    // value, at CPL 0, at CPL 1, at CPL 3
    const CASES: &[(u64, bool, bool, bool, &str)] = &[
        (
            0x3C0,
            false,
            true,
            true,
            "TR BTS BTINT OFF_OS: perf, user only",
        ),
        (
            0x2C0,
            false,
            true,
            true,
            "TR BTS OFF_OS: perf snapshot, user only",
        ),
        (0x1C0, true, true, true, "TR BTS BTINT"),
        (0x0C0, true, true, true, "TR BTS"),
        (0x4C0, true, false, false, "TR BTS OFF_USR"),
        (0x5C0, true, false, false, "TR BTS BTINT OFF_USR"),
        (
            0x6C0,
            false,
            false,
            false,
            "both off: messages, none stored",
        ),
        (0x7C0, false, false, false, "both off, BTINT"),
        (
            0x040,
            false,
            false,
            false,
            "TR only: messages go to the bus",
        ),
        (0x080, false, false, false, "BTS only: no messages"),
        (0x100, false, false, false, "BTINT only"),
        (0x000, false, false, false, "nothing"),
        (0x0C3, true, true, true, "LBR and BTF change nothing"),
        (0x58C3, true, true, true, "nor do the freeze bits"),
    ];
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    for &(value, cpl0, cpl1, cpl3, name) in CASES {
        assert_eq!(recorder.set_debugctl(value), Ok(()), "{name}");
        assert_eq!(recorder.debugctl(), value, "{name}");
        let enabled = [0, 1, 2, 3].map(|cpl| recorder.enabled(cpl));
        assert_eq!(enabled, [cpl0, cpl1, cpl1, cpl3], "{value:#x}: {name}");
    }
}

#[test]
fn each_microarchitecture_has_its_bits() {
    use Microarchitecture::{Core2, Nehalem, NetBurst, PentiumM};
    // Microarchitecture, every bit that a write accepts, the value that stores all branches, the
    // value that stores those of user code only.
    const CASES: &[(Microarchitecture, u64, u64, Option<u64>)] = &[
        (NetBurst, 0x007F, 0x0C, Some(0x2C)),
        (PentiumM, 0x01FF, 0xC0, None),
        (Core2, 0x5FC3, 0xC0, Some(0x2C0)),
        (Nehalem, 0x7FC3, 0xC0, Some(0x2C0)),
    ];
    for &(microarchitecture, writable, all, user) in CASES {
        let mut recorder = Recorder::new(microarchitecture);
        for bit in 0..64 {
            let expected = if writable >> bit & 1 != 0 {
                Ok(())
            } else {
                Err(Gp)
            };
            assert_eq!(
                recorder.set_debugctl(1 << bit),
                expected,
                "{microarchitecture:?} bit {bit}"
            );
        }
        assert_eq!(recorder.set_debugctl(all), Ok(()));
        assert_eq!(
            (recorder.enabled(0), recorder.enabled(3)),
            (true, true),
            "{microarchitecture:?}"
        );
        if let Some(user) = user {
            assert_eq!(recorder.set_debugctl(user), Ok(()));
            assert_eq!(
                (recorder.enabled(0), recorder.enabled(3)),
                (false, true),
                "{microarchitecture:?}"
            );
        }
    }
}

#[test]
fn a_reserved_bit_changes_nothing() {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    assert_eq!(recorder.set_debugctl(0x3C0), Ok(()));
    for reserved in [1 << 2, 1 << 5, 1 << 13, 1 << 15, 1 << 63] {
        assert_eq!(recorder.set_debugctl(reserved), Err(Gp));
        assert_eq!(recorder.debugctl(), 0x3C0);
        assert!(recorder.enabled(3) && !recorder.enabled(0));
    }
}

#[test]
fn debug_exception_clears_lbr_and_btf_but_goes_on_tracing() {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    let all = DebugCtl::LBR | DebugCtl::BTF | DebugCtl::TR | DebugCtl::BTS | DebugCtl::BTINT;
    assert_eq!(recorder.set_debugctl(all.bits()), Ok(()));
    recorder.clear_on_debug_exception();
    assert_eq!(recorder.debugctl(), 0x1C0);
    assert!(recorder.enabled(0) && recorder.enabled(3));
}

#[test]
fn ds_area_must_be_canonical() {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    for (la, expected) in [
        (0, Ok(())),
        (0x0000_7FFF_FFFF_FFFF, Ok(())),
        (0x0000_8000_0000_0000, Err(Gp)),
        (0x1234_0000_0000_0000, Err(Gp)),
        (0xFFFF_7FFF_FFFF_FFFF, Err(Gp)),
        (0xFFFF_8000_0000_0000, Ok(())),
        (u64::MAX, Ok(())),
    ] {
        let before = recorder.ds_area();
        assert_eq!(recorder.set_ds_area(la), expected, "{la:#x}");
        assert_eq!(
            recorder.ds_area(),
            if expected.is_ok() { la } else { before }
        );
    }
}

/// A buffer and the branches that meet it. Positions are bytes from the base.
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
    Case { name: "circular: goes round", debugctl: CIRCULAR, index: 0, max: 72, threshold: NEVER, got: &[S, S, S, S], after: 24 },
    Case { name: "circular: wraps with the manual's max + 1", debugctl: CIRCULAR, index: 0, max: 73, threshold: NEVER, got: &[S, S, S, S], after: 24 },
    Case { name: "circular: a tail shorter than a record is not used", debugctl: CIRCULAR, index: 0, max: 71, threshold: NEVER, got: &[S, S, S], after: 24 },
    Case { name: "circular: one record", debugctl: CIRCULAR, index: 0, max: 24, threshold: NEVER, got: &[S, S], after: 0 },
    Case { name: "circular: an index left at the end starts over", debugctl: CIRCULAR, index: 72, max: 72, threshold: NEVER, got: &[S, S], after: 48 },
    Case { name: "circular: an index left in the tail starts over", debugctl: CIRCULAR, index: 72, max: 73, threshold: NEVER, got: &[S], after: 24 },
    Case { name: "interrupt: drops when full", debugctl: INTERRUPT, index: 0, max: 48, threshold: NEVER, got: &[S, S, D(Full), D(Full)], after: 48 },
    Case { name: "interrupt: drops when full, max + 1", debugctl: INTERRUPT, index: 0, max: 49, threshold: NEVER, got: &[S, S, D(Full)], after: 48 },
    Case { name: "interrupt: full from the start", debugctl: INTERRUPT, index: 48, max: 48, threshold: NEVER, got: &[D(Full)], after: 48 },
    Case { name: "interrupt: one record", debugctl: INTERRUPT, index: 0, max: 24, threshold: NEVER, got: &[S, D(Full)], after: 24 },
    Case { name: "PMI once, on the record that reaches the threshold", debugctl: INTERRUPT, index: 0, max: 96, threshold: 48, got: &[S, P, S, S, D(Full)], after: 96 },
    Case { name: "PMI on the first record", debugctl: INTERRUPT, index: 0, max: 96, threshold: 24, got: &[P, S], after: 48 },
    Case { name: "PMI on the last record", debugctl: INTERRUPT, index: 48, max: 96, threshold: 96, got: &[S, P, D(Full)], after: 96 },
    Case { name: "PMI when a crooked threshold is passed", debugctl: INTERRUPT, index: 0, max: 96, threshold: 25, got: &[S, P, S], after: 72 },
    Case { name: "PMI after the first byte past the index", debugctl: INTERRUPT, index: 0, max: 96, threshold: 1, got: &[P, S], after: 48 },
    Case { name: "no PMI: threshold above max", debugctl: INTERRUPT, index: 0, max: 48, threshold: 49, got: &[S, S, D(Full)], after: 48 },
    Case { name: "no PMI: index already at the threshold", debugctl: INTERRUPT, index: 48, max: 96, threshold: 48, got: &[S, S, D(Full)], after: 96 },
    Case { name: "no PMI: threshold at the base", debugctl: INTERRUPT, index: 0, max: 96, threshold: 0, got: &[S, S], after: 48 },
    Case { name: "no PMI: BTINT clear", debugctl: CIRCULAR, index: 0, max: 96, threshold: 48, got: &[S, S, S, S, S], after: 24 },
    Case { name: "user-only values behave alike, 0x3C0", debugctl: 0x3C0, index: 24, max: 72, threshold: 48, got: &[P, S, D(Full)], after: 72 },
    Case { name: "user-only values behave alike, 0x2C0", debugctl: 0x2C0, index: 24, max: 72, threshold: 48, got: &[S, S, S], after: 24 },
    Case { name: "kernel-only values behave alike, 0x5C0", debugctl: 0x5C0, index: 24, max: 72, threshold: 48, got: &[P, S, D(Full)], after: 72 },
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

/// A recorder and memory with the DS area at `ds` and these fields in it.
fn setup(debugctl: u64, ds: u64, fields: BtsFields) -> (Recorder, Memory) {
    let mut memory = Memory::default();
    memory.map(DS, PAGE, true);
    memory.map(BUF, 2 * PAGE, true);
    memory.set_fields(ds, fields);
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    recorder.set_debugctl(debugctl).unwrap();
    recorder.set_ds_area(ds).unwrap();
    (recorder, memory)
}

fn buffer(base: u64, index: u64, max: u64, threshold: u64) -> BtsFields {
    BtsFields {
        base,
        index,
        absolute_maximum: max,
        threshold,
    }
}

/// The n-th branch of a case.
fn branch(n: usize) -> (u64, u64) {
    (0x40_0000 + n as u64, 0xFFFF_FFFF_8100_0000 + n as u64)
}

fn store(recorder: &mut Recorder, memory: &mut Memory, n: usize) -> Got {
    let (from, to) = branch(n);
    match recorder.area().store(memory, from, to) {
        Ok(Stored::Stored) => S,
        Ok(Stored::StoredAndPmi) => P,
        Err(reason) => D(reason),
    }
}

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
                    "{}: a dropped record leaves no trace",
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
                    BranchRecord { from, to },
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
fn one_read_and_two_writes_a_record() {
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
    // Moved back only in part, the index crosses again too.
    memory.set_fields(
        DS,
        BtsFields {
            index: BUF + 24,
            ..fields
        },
    );
    assert_eq!(store(&mut recorder, &mut memory, 0), P);
}

/// Addresses that are wrong, or memory that is: what is dropped, and that nothing changes.
#[test]
fn hostile_addresses_drop_the_record() {
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
fn buffer_that_ends_with_the_address_space() {
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

#[test]
fn read_only_memory_keeps_the_record_out() {
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
            "works again once it is writable"
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
    assert_eq!(memory.record(BUF + PAGE - 12), BranchRecord { from, to });

    // The second page of the next slot goes away: nothing of the record stays.
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
