//! Arguments of the properties: the recorder's registers, and a memory of a few words.

use vbts_bts::{BtsFields, DropReason, DsFault, DsMemory, Microarchitecture, Recorder, Stored};

pub const RECORD: u64 = 24;
/// BTINT of IA32_DEBUGCTL.
pub const BTINT: u64 = 1 << 8;
/// The first address that is not canonical.
pub const HOLE: u64 = 1 << 47;
/// The first one above it that is canonical.
pub const HOLE_END: u64 = !0 << 47;

/// The result of a property that holds for `x` alone if `premise` does.
pub const fn implies(premise: bool, x: bool) -> bool {
    !premise || x
}

/// Whether both ends of a record at `slot` are canonical, and it does not wrap around.
pub const fn can_hold_a_record(slot: u64) -> bool {
    let Some(last) = slot.checked_add(RECORD - 1) else {
        return false;
    };
    last < HOLE || slot >= HOLE_END
}

/// The memory of a DS area: its four fields, and what is written.
pub struct Memory {
    pub fields: BtsFields,
    /// Bit 0: the DS area cannot be accessed. Bit 1: the slot cannot be written.
    pub absent: u8,
    /// Address and contents of the record.
    pub record: Option<(u64, [u64; 3])>,
    /// Address and contents of the other write.
    pub index: Option<(u64, u64)>,
    /// Number of writes.
    pub writes: u8,
}

impl Memory {
    pub fn new(fields: BtsFields, absent: u8) -> Self {
        Self {
            fields,
            absent,
            record: None,
            index: None,
            writes: 0,
        }
    }

    /// Whether the record of [`Given::store`] was written at `slot`.
    #[inline(always)]
    pub fn holds_record(&self, slot: u64) -> bool {
        self.record
            .is_some_and(|(at, [from, to, flags])| at == slot && (from, to, flags) == (1, 2, 0))
    }
}

impl DsMemory for Memory {
    #[inline(always)]
    fn read<const N: usize>(&mut self, _: u64) -> Result<[u64; N], DsFault> {
        if self.absent & 1 != 0 {
            return Err(DsFault::Unmapped);
        }
        let f = self.fields;
        let words = [f.base, f.index, f.absolute_maximum, f.threshold];
        words.first_chunk().copied().ok_or(DsFault::NotRam)
    }

    #[inline(always)]
    fn write<const N: usize>(&mut self, la: u64, words: &[u64; N]) -> Result<(), DsFault> {
        if N == 3 && self.absent & 2 != 0 {
            return Err(DsFault::ReadOnly);
        }
        self.writes += 1;
        match *words.as_slice() {
            [a, b, c] => self.record = Some((la, [a, b, c])),
            [a] => self.index = Some((la, a)),
            _ => return Err(DsFault::NotRam),
        }
        Ok(())
    }
}

/// A recorder with these registers; `None` if the processor would refuse them.
#[inline(always)]
pub fn recorder(ds_area: u64, debugctl: u64) -> Option<Recorder> {
    let mut recorder = Recorder::new(Microarchitecture::Nehalem);
    recorder.set_ds_area(ds_area).ok()?;
    recorder.set_debugctl(debugctl).ok()?;
    Some(recorder)
}

/// The registers and fields of a property.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub ds_area: u64,
    pub debugctl: u64,
    pub fields: BtsFields,
}

impl Given {
    pub const fn btint(self) -> bool {
        self.debugctl & BTINT != 0
    }

    /// Stores a record. `None`: the processor refuses the registers.
    #[inline(always)]
    pub fn store(self, absent: u8) -> Option<(Result<Stored, DropReason>, Memory)> {
        let mut memory = Memory::new(self.fields, absent);
        let area = recorder(self.ds_area, self.debugctl)?.area();
        Some((area.store(&mut memory, 1, 2), memory))
    }

    /// Whether storing a record with this index only fills the slot there, and advances the index.
    #[inline(always)]
    pub fn is_plain(mut self, index: u64) -> bool {
        self.fields.index = index;
        self.store(0).is_some_and(|(stored, memory)| {
            stored == Ok(Stored::Stored)
                && memory.holds_record(index)
                && memory
                    .index
                    .is_some_and(|(_, next)| next == index.wrapping_add(RECORD))
        })
    }
}
