//! Compares the recorder with a simple model: slots in a `Vec`.

use proptest::prelude::*;
use vbts_bts::{BranchRecord, BtsFields, Microarchitecture, Recorder, Stored};

use crate::memory::Memory;

const DS: u64 = 0xFFFF_FE00_0000_1000;
const BUF: u64 = 0xFFFF_FE00_0000_3000;
const MAX_SLOTS: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    Branches(u8),
    Debugctl(u64),
    /// Software moves the index to a slot, as after reading the buffer.
    Index(usize),
    /// Software sets up a buffer with this number of slots, with or without the manual's "plus 1",
    /// and a threshold slot.
    Buffer {
        slots: usize,
        plus_one: bool,
        threshold: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..20).prop_map(Step::Branches),
        1 => prop::sample::select(vec![0x3C0, 0x2C0, 0x1C0, 0x0C0, 0x4C0, 0x5C0, 0x6C0, 0x040, 0x080, 0])
            .prop_map(Step::Debugctl),
        1 => (0..=MAX_SLOTS).prop_map(Step::Index),
        1 => (0..=MAX_SLOTS, any::<bool>(), 0..=MAX_SLOTS + 1)
            .prop_map(|(slots, plus_one, threshold)| Step::Buffer { slots, plus_one, threshold }),
    ]
}

/// The buffer as the manual describes it (SDM Vol. 3B 17.4.9), in slots.
#[derive(Default)]
struct Model {
    debugctl: u64,
    slots: Vec<Option<BranchRecord>>,
    index: usize,
    threshold: usize,
    pmis: u32,
}

impl Model {
    fn traces(&self, cpl: u8) -> bool {
        let bit = |n: u32| self.debugctl >> n & 1 == 1;
        bit(6) && bit(7) && if cpl == 0 { !bit(9) } else { !bit(10) }
    }

    /// Takes a branch. Returns whether its record is stored.
    fn branch(&mut self, record: BranchRecord) -> bool {
        let btint = self.debugctl >> 8 & 1 == 1;
        let len = self.slots.len();
        if len == 0 || self.index > len || (self.index == len && btint) {
            return false;
        }
        if self.index == len {
            self.index = 0;
        }
        self.slots[self.index] = Some(record);
        self.index += 1;
        if btint && self.index == self.threshold {
            self.pmis += 1;
        }
        if self.index == len && !btint {
            self.index = 0;
        }
        true
    }
}

proptest! {
    #[test]
    fn the_recorder_agrees_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut memory = Memory::default();
        memory.map(DS, 4096, true);
        memory.map(BUF, 4096, true);
        let mut recorder = Recorder::new(Microarchitecture::Core2);
        recorder.set_ds_area(DS).unwrap();
        memory.set_fields(DS, BtsFields { base: BUF, index: BUF, absolute_maximum: BUF, threshold: BUF });
        let mut model = Model::default();
        let (mut pmis, mut count) = (0, 0u64);
        let address = |slot: usize| BUF + 24 * slot as u64;

        for step in steps {
            match step {
                Step::Debugctl(value) => {
                    recorder.set_debugctl(value).unwrap();
                    model.debugctl = value;
                }
                Step::Index(slot) => {
                    memory.set_fields(DS, BtsFields { index: address(slot), ..memory.fields(DS) });
                    model.index = slot;
                }
                Step::Buffer { slots, plus_one, threshold } => {
                    memory.set_fields(DS, BtsFields {
                        base: BUF,
                        index: BUF,
                        absolute_maximum: address(slots) + u64::from(plus_one),
                        threshold: address(threshold),
                    });
                    memory.poke(BUF, &[0; 4096]);
                    model.slots = vec![None; slots];
                    model.index = 0;
                    model.threshold = threshold;
                }
                Step::Branches(n) => for i in 0..n {
                    let cpl = if i % 3 == 0 { 0 } else { 3 };
                    count += 1;
                    let record = BranchRecord::new(count, !count);
                    prop_assert_eq!(recorder.enabled(cpl), model.traces(cpl));
                    if model.traces(cpl) {
                        let stored = recorder.area().store(&mut memory, record.from, record.to);
                        prop_assert_eq!(stored.is_ok(), model.branch(record));
                        pmis += u32::from(stored == Ok(Stored::StoredAndPmi));
                    }
                },
            }
            prop_assert_eq!(memory.fields(DS).index, address(model.index));
            prop_assert_eq!(pmis, model.pmis);
            for (slot, record) in model.slots.iter().enumerate() {
                prop_assert_eq!(memory.record(address(slot)), record.unwrap_or_default());
            }
            let end = address(model.slots.len());
            prop_assert_eq!(memory.peek::<32>(end), [0; 32], "a write past the last slot");
        }
    }

    #[test]
    fn hostile_fields_change_only_the_slot_and_the_index(
        fields in prop::array::uniform4(prop_oneof![
            (0u64..8192).prop_map(|offset| BUF - 2048 + offset),
            (0u64..64).prop_map(|offset| DS - 32 + offset),
            (0u64..64).prop_map(|offset| 0x0000_8000_0000_0000 - 32 + offset),
            (0u64..64).prop_map(|offset| 0xFFFF_8000_0000_0000 - 32 + offset),
            (0u64..64).prop_map(|offset| u64::MAX - offset),
            any::<u64>(),
        ]),
        btint: bool,
    ) {
        let [base, index, absolute_maximum, threshold] = fields;
        let fields = BtsFields { base, index, absolute_maximum, threshold };
        let mut memory = Memory::default();
        memory.map(DS, 4096, true);
        memory.map(BUF, 4096, true);
        memory.set_fields(DS, fields);
        let mut recorder = Recorder::new(Microarchitecture::Core2);
        recorder.set_ds_area(DS).unwrap();
        recorder.set_debugctl(if btint { 0x1C0 } else { 0x0C0 }).unwrap();
        let before = memory.clone();

        match recorder.area().store(&mut memory, 1, 2) {
            Err(_) => prop_assert_eq!(memory.snapshot(), before.snapshot()),
            Ok(Stored::Stored | Stored::StoredAndPmi) => {
                let slot = if absolute_maximum - index >= 24 { index } else { base };
                prop_assert!(slot >= base && slot + 24 <= absolute_maximum);
                let mut expected = before;
                let record = BranchRecord::new(1, 2);
                expected.poke(slot, &record.to_bytes());
                let end = slot + 24;
                let next = if !btint && absolute_maximum - end < 24 { base } else { end };
                expected.poke(DS + 8, &next.to_le_bytes());
                prop_assert_eq!(memory.snapshot(), expected.snapshot());
            }
        }
    }
}
