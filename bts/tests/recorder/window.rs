//! Compares the slots of a window with those that `store` fills.

use proptest::prelude::*;
use vbts_bts::{BtsFields, DsArea, DsFault, DsMemory, Microarchitecture, Recorder, Stored, Word};

const DS: u64 = 0xFFFF_FE00_0000_1000;
const BUFFER: u64 = 0xFFFF_FE00_0000_3000;
/// End of the lower half of the canonical addresses.
const LOWER_HALF: u64 = 1 << 47;
const UPPER_HALF: u64 = !0 << 47;
/// Slots of a window that a case compares: more than a page holds.
const SLOTS: usize = 400;

/// A DS area at [`DS`], and the slot that was written last. Every address is writable.
struct Area {
    fields: BtsFields,
    slot: Option<u64>,
}

impl DsMemory for Area {
    fn read<W: Word, const N: usize>(&mut self, la: u64) -> Result<[W; N], DsFault> {
        assert_eq!(la, DS);
        let words = self.fields.to_words();
        Ok(std::array::from_fn(|n| words[n]))
    }

    fn write<W: Word, const N: usize>(&mut self, la: u64, words: &[W; N]) -> Result<(), DsFault> {
        match N {
            1 => self.fields.index = words[0].extend(),
            _ => self.slot = Some(la),
        }
        Ok(())
    }
}

fn area(btint: bool) -> DsArea {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    recorder.set_ds_area(DS).unwrap();
    let debugctl = if btint { 0x1C0 } else { 0x0C0 };
    recorder.set_debugctl(debugctl).unwrap();
    recorder.area()
}

/// Whether storing a record with these fields only fills the slot at the index and advances the
/// index.
fn is_plain(area: DsArea, fields: BtsFields) -> bool {
    let mut memory = Area { fields, slot: None };
    area.store(&mut memory, 1, 2) == Ok(Stored::Stored)
        && memory.slot == Some(fields.index)
        && memory.fields.index == fields.index.wrapping_add(24)
}

/// A buffer with its base, index, end and threshold at random addresses near `start`.
fn near(start: u64) -> impl Strategy<Value = BtsFields> {
    (0u64..200, 0u64..3000, 0u64..3000, 0u64..3000).prop_map(
        move |(base, index, end, threshold)| {
            let at = |offset: u64| start.wrapping_add(offset);
            BtsFields {
                base: at(4 * base),
                index: at(4 * base + index),
                absolute_maximum: at(4 * base + end),
                threshold: at(4 * base + threshold),
            }
        },
    )
}

/// A buffer as software sets it up: whole slots, with or without the manual's "plus 1".
fn orderly() -> impl Strategy<Value = BtsFields> {
    (0u64..80, 0u64..80, 0u64..80, any::<bool>()).prop_map(|(index, slots, threshold, plus_one)| {
        BtsFields {
            base: BUFFER,
            index: BUFFER + 24 * index,
            absolute_maximum: BUFFER + 24 * slots + u64::from(plus_one),
            threshold: BUFFER + 24 * threshold,
        }
    })
}

fn fields() -> impl Strategy<Value = BtsFields> {
    prop_oneof![
        4 => orderly(),
        4 => near(BUFFER),
        2 => near(LOWER_HALF - 2000),
        1 => near(UPPER_HALF - 2000),
        1 => near(u64::MAX - 3000),
        1 => near(0),
        1 => any::<[u64; 4]>().prop_map(BtsFields::from_words::<u64>),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_window_has_the_slots_that_store_fills_in_order(fields in fields(), btint: bool) {
        let area = area(btint);
        let mut window = area.window(&fields);
        for n in 0..SLOTS as u64 {
            let index = fields.index.wrapping_add(24 * n);
            let plain = is_plain(area, BtsFields { index, ..fields });
            let slot = window.take();
            prop_assert_eq!(slot, plain.then_some(index), "slot {}", n);
            if slot.is_none() {
                prop_assert!(window.is_empty());
                break;
            }
            prop_assert_eq!(window.index(), index.wrapping_add(24));
        }
    }

    #[test]
    fn a_window_up_to_an_address_has_the_records_that_end_there(
        fields in orderly(),
        btint: bool,
        last in 0u64..2000,
    ) {
        let last = BUFFER + last;
        let whole = area(btint).window(&fields);
        let (mut all, mut some) = (whole, whole.up_to(last));
        while let Some(slot) = some.take() {
            prop_assert!(slot + 23 <= last);
            prop_assert_eq!(all.take(), Some(slot));
        }
        prop_assert!(all.take().is_none_or(|slot| slot + 23 > last));
    }
}

#[test]
fn a_closed_window_has_no_slot() {
    let fields = BtsFields {
        base: BUFFER,
        index: BUFFER,
        absolute_maximum: BUFFER + 240,
        threshold: BUFFER + 240,
    };
    let mut window = area(true).window(&fields);
    assert_eq!(window.take(), Some(BUFFER));
    window.close();
    assert!(window.is_empty() && window.take().is_none());
}

#[test]
fn an_area_that_cannot_be_used_has_no_window() {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    recorder.set_ds_area(u64::MAX - 8).unwrap();
    let fields = BtsFields {
        base: BUFFER,
        index: BUFFER,
        absolute_maximum: BUFFER + 240,
        threshold: BUFFER + 240,
    };
    assert!(recorder.area().window(&fields).is_empty());
}
