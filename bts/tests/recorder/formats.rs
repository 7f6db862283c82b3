//! The DS area and the records of each microarchitecture, byte for byte.

use vbts_bts::DropReason::{self, Full, IndexOutside, Misaligned, TooSmall, WrapAround};
use vbts_bts::{BtsFields, Gp, Microarchitecture, Recorder, Stored};

use crate::common::{D, Got, P, S, branch, buffer, store};
use crate::memory::{Access, Memory, PAGE};

use Microarchitecture::{Core2, Nehalem, NetBurst, NetBurst64, PentiumM};

const DS: u64 = 0x8004_2000;
const BUFFER: u64 = 0x8004_4000;
const FROM: u64 = 0x0804_8A1C;
const TO: u64 = 0xC010_5E40;

/// A DS area and the branch from `FROM` to `TO` as bytes of memory.
struct Format {
    microarchitecture: Microarchitecture,
    /// TR and BTS.
    debugctl: u64,
    /// The fields of a buffer for two records at `BUFFER`, empty, with the threshold behind it.
    area: &'static [u8],
    /// The fields with one record in the buffer.
    after: &'static [u8],
    record: &'static [u8],
}

#[rustfmt::skip]
const AREA_32: &[u8] = &[
    0x00, 0x40, 0x04, 0x80,
    0x00, 0x40, 0x04, 0x80,
    0x18, 0x40, 0x04, 0x80,
    0x19, 0x40, 0x04, 0x80,
];

#[rustfmt::skip]
const AFTER_32: &[u8] = &[
    0x00, 0x40, 0x04, 0x80,
    0x0C, 0x40, 0x04, 0x80,
    0x18, 0x40, 0x04, 0x80,
    0x19, 0x40, 0x04, 0x80,
];

#[rustfmt::skip]
const AREA_64: &[u8] = &[
    0x00, 0x40, 0x04, 0x80, 0, 0, 0, 0,
    0x00, 0x40, 0x04, 0x80, 0, 0, 0, 0,
    0x30, 0x40, 0x04, 0x80, 0, 0, 0, 0,
    0x31, 0x40, 0x04, 0x80, 0, 0, 0, 0,
];

#[rustfmt::skip]
const AFTER_64: &[u8] = &[
    0x00, 0x40, 0x04, 0x80, 0, 0, 0, 0,
    0x18, 0x40, 0x04, 0x80, 0, 0, 0, 0,
    0x30, 0x40, 0x04, 0x80, 0, 0, 0, 0,
    0x31, 0x40, 0x04, 0x80, 0, 0, 0, 0,
];

#[rustfmt::skip]
const PREDICTED_32: &[u8] = &[
    0x1C, 0x8A, 0x04, 0x08,
    0x40, 0x5E, 0x10, 0xC0,
    0x10, 0, 0, 0,
];

#[rustfmt::skip]
const PREDICTED_64: &[u8] = &[
    0x1C, 0x8A, 0x04, 0x08, 0, 0, 0, 0,
    0x40, 0x5E, 0x10, 0xC0, 0, 0, 0, 0,
    0x10, 0, 0, 0, 0, 0, 0, 0,
];

#[rustfmt::skip]
const PLAIN_64: &[u8] = &[
    0x1C, 0x8A, 0x04, 0x08, 0, 0, 0, 0,
    0x40, 0x5E, 0x10, 0xC0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
];

#[rustfmt::skip]
const FORMATS: &[Format] = &[
    Format { microarchitecture: NetBurst, debugctl: 0x0C, area: AREA_32, after: AFTER_32, record: PREDICTED_32 },
    Format { microarchitecture: NetBurst64, debugctl: 0x0C, area: AREA_64, after: AFTER_64, record: PREDICTED_64 },
    Format { microarchitecture: PentiumM, debugctl: 0xC0, area: AREA_32, after: AFTER_32, record: PREDICTED_32 },
    Format { microarchitecture: Core2, debugctl: 0xC0, area: AREA_64, after: AFTER_64, record: PLAIN_64 },
    Format { microarchitecture: Nehalem, debugctl: 0xC0, area: AREA_64, after: AFTER_64, record: PLAIN_64 },
];

/// What the buffer holds before a record is stored.
const FILL: [u8; 64] = [0xEE; 64];

fn memory() -> Memory {
    let mut memory = Memory::default();
    memory.map(DS, PAGE, true);
    memory.map(BUFFER, PAGE, true);
    memory.poke(DS, &FILL);
    memory.poke(BUFFER, &FILL);
    memory
}

fn recorder(microarchitecture: Microarchitecture, debugctl: u64) -> Recorder {
    let mut recorder = Recorder::new(microarchitecture);
    recorder.set_debugctl(debugctl).unwrap();
    recorder.set_ds_area(DS).unwrap();
    recorder
}

/// `start` over what was in memory.
fn over_fill(start: &[&[u8]]) -> [u8; 64] {
    let mut bytes = FILL;
    for (byte, new) in bytes.iter_mut().zip(start.concat()) {
        *byte = new;
    }
    bytes
}

#[test]
fn each_format_byte_for_byte() {
    for f in FORMATS {
        let name = f.microarchitecture;
        let mut memory = memory();
        memory.poke(DS, f.area);
        let recorder = recorder(f.microarchitecture, f.debugctl);
        let stored = recorder.area().store(&mut memory, FROM, TO);
        assert_eq!(stored, Ok(Stored::Stored), "{name:?}");
        assert_eq!(
            memory.peek::<64>(DS),
            over_fill(&[f.after]),
            "{name:?}: DS area"
        );
        assert_eq!(
            memory.peek::<64>(BUFFER),
            over_fill(&[f.record]),
            "{name:?}: buffer"
        );

        // The second record fills the buffer, which is circular.
        let stored = recorder.area().store(&mut memory, FROM, TO);
        assert_eq!(stored, Ok(Stored::Stored), "{name:?}");
        assert_eq!(
            memory.peek::<64>(DS),
            over_fill(&[f.area]),
            "{name:?}: DS area"
        );
        let both = over_fill(&[f.record, f.record]);
        assert_eq!(memory.peek::<64>(BUFFER), both, "{name:?}: buffer");
    }
}

/// A buffer of the 32-bit format, and the result of each branch. Positions are bytes from the base.
struct Case {
    name: &'static str,
    /// BTINT.
    btint: bool,
    index: u64,
    max: u64,
    threshold: u64,
    got: &'static [Got],
    /// Position of the index afterwards.
    after: u64,
}

#[rustfmt::skip]
const CASES_32: &[Case] = &[
    Case { name: "circular: wraps and continues", btint: false, index: 0, max: 36, threshold: 500, got: &[S, S, S, S], after: 12 },
    Case { name: "circular: wraps with the manual's max + 1", btint: false, index: 0, max: 37, threshold: 500, got: &[S, S, S, S], after: 12 },
    Case { name: "circular: a tail shorter than a record is not used", btint: false, index: 0, max: 35, threshold: 500, got: &[S, S, S], after: 12 },
    Case { name: "interrupt: drops when full", btint: true, index: 0, max: 24, threshold: 500, got: &[S, S, D(Full)], after: 24 },
    Case { name: "PMI once, on the record that reaches the threshold", btint: true, index: 0, max: 48, threshold: 24, got: &[S, P, S, S, D(Full)], after: 48 },
    Case { name: "PMI at the first record past a misaligned threshold", btint: true, index: 0, max: 48, threshold: 13, got: &[S, P, S], after: 36 },
    Case { name: "smaller than one record", btint: false, index: 0, max: 11, threshold: 500, got: &[D(TooSmall)], after: 0 },
    Case { name: "index above max", btint: false, index: 60, max: 48, threshold: 500, got: &[D(IndexOutside)], after: 60 },
    Case { name: "index misaligned", btint: false, index: 2, max: 48, threshold: 500, got: &[D(Misaligned)], after: 2 },
];

/// The fields as the bytes of a DS area of the 32-bit format.
fn area_32(fields: BtsFields) -> Vec<u8> {
    let words = fields.to_words::<u32>();
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn buffer_edges_of_the_32_bit_format() {
    let processors = [(NetBurst, 0x0C, 0x1C), (PentiumM, 0xC0, 0x1C0)];
    for (microarchitecture, circular, interrupt) in processors {
        for case in CASES_32 {
            let at = |offset: u64| BUFFER + offset;
            let fields = buffer(BUFFER, at(case.index), at(case.max), at(case.threshold));
            let mut memory = memory();
            memory.poke(DS, &area_32(fields));
            let debugctl = if case.btint { interrupt } else { circular };
            let mut recorder = recorder(microarchitecture, debugctl);
            for (n, &expected) in case.got.iter().enumerate() {
                let got = store(&mut recorder, &mut memory, n);
                assert_eq!(got, expected, "{}: branch {n}", case.name);
            }
            let index = at(case.after);
            let after = area_32(BtsFields { index, ..fields });
            assert_eq!(memory.peek::<64>(DS), over_fill(&[&after]), "{}", case.name);
        }
    }
}

#[test]
fn a_record_of_32_bits_takes_one_read_and_two_writes() {
    let mut memory = memory();
    memory.poke(DS, AREA_32);
    assert_eq!(store(&mut recorder(NetBurst, 0x0C), &mut memory, 0), S);
    let expected = [
        Access::Read(DS, 16),
        Access::Write(BUFFER, 12),
        Access::Write(DS + 4, 4),
    ];
    assert_eq!(memory.log, expected);
    let (from, to) = branch(0);
    assert_eq!(memory.peek(BUFFER), (from as u32).to_le_bytes());
    assert_eq!(memory.peek(BUFFER + 4), (to as u32).to_le_bytes());
}

#[test]
fn a_32_bit_ds_area_lies_below_4_gbytes() {
    const CASES: &[(u64, Result<(), Gp>, Option<DropReason>)] = &[
        (0xFFFF_FFF0, Ok(()), None),
        (0xFFFF_FFF1, Ok(()), Some(WrapAround)),
        (0x1_0000_0000, Err(Gp), None),
        (0xFFFF_8000_0000_0000, Err(Gp), None),
    ];
    for &(la, accepted, dropped) in CASES {
        let mut memory = memory();
        memory.map(0xFFFF_F000, PAGE, true);
        memory.poke(la, AREA_32);
        let mut recorder = recorder(NetBurst, 0x0C);
        assert_eq!(recorder.set_ds_area(la), accepted, "{la:#x}");
        if accepted.is_ok() {
            let expected = dropped.map_or(S, D);
            assert_eq!(store(&mut recorder, &mut memory, 0), expected, "{la:#x}");
        }
    }
}

#[test]
fn only_records_of_the_64_bit_format_without_flags_have_windows() {
    let fields = BtsFields {
        base: BUFFER,
        index: BUFFER,
        absolute_maximum: BUFFER + 240,
        threshold: BUFFER + 240,
    };
    for f in FORMATS {
        let area = recorder(f.microarchitecture, f.debugctl).area();
        let has_windows = f.record == PLAIN_64;
        assert_eq!(area.has_windows(), has_windows, "{:?}", f.microarchitecture);
        assert_eq!(area.window(&fields).is_empty(), !has_windows);
    }
}
