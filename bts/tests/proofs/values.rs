//! Arguments of the properties: the recorder's registers, and a memory of a few words.

use vbts_bts::{
    BtsFields, DropReason, DsFault, DsMemory, Microarchitecture, Recorder, Stored, Word,
};

/// Size of a record in the 64-bit format.
pub const RECORD: u64 = 24;
/// The first address that is not canonical.
pub const HOLE: u64 = 1 << 47;
/// The first one above it that is canonical.
pub const HOLE_END: u64 = !0 << 47;

/// The result of a property that holds for `x` alone if `premise` does.
pub const fn implies(premise: bool, x: bool) -> bool {
    !premise || x
}

/// Whether both ends of a record of `size` bytes at `slot` are canonical, and it does not wrap
/// around.
pub const fn can_hold_a_record(slot: u64, size: u64) -> bool {
    let Some(last) = slot.checked_add(size - 1) else {
        return false;
    };
    last < HOLE || slot >= HOLE_END
}

/// What the manual says of a processor.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    pub microarchitecture: Microarchitecture,
    /// Size of a word of the DS area.
    pub word: u64,
    /// Size of a record.
    pub record: u64,
    /// The flags of each record.
    pub flags: u64,
    /// BTINT.
    pub btint: u64,
}

/// The 64-bit format, with IA32_DEBUGCTL.
pub const NEHALEM: Processor = Processor {
    microarchitecture: Microarchitecture::Nehalem,
    word: 8,
    record: RECORD,
    flags: 0,
    btint: 1 << 8,
};

/// The 32-bit format, with MSR_DEBUGCTLA.
pub const NETBURST: Processor = Processor {
    microarchitecture: Microarchitecture::NetBurst,
    word: 4,
    record: 12,
    flags: 0x10,
    btint: 1 << 4,
};

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
    pub fn holds_record(&self, slot: u64, expected: u64) -> bool {
        self.record.is_some_and(|(at, [from, to, flags])| {
            at == slot && (from, to, flags) == (1, 2, expected)
        })
    }
}

impl DsMemory for Memory {
    #[inline(always)]
    fn read<W: Word, const N: usize>(&mut self, _: u64) -> Result<[W; N], DsFault> {
        if self.absent & 1 != 0 {
            return Err(DsFault::Unmapped);
        }
        let words = self.fields.to_words::<W>();
        words.first_chunk().copied().ok_or(DsFault::NotRam)
    }

    #[inline(always)]
    fn write<W: Word, const N: usize>(&mut self, la: u64, words: &[W; N]) -> Result<(), DsFault> {
        if N == 3 && self.absent & 2 != 0 {
            return Err(DsFault::ReadOnly);
        }
        self.writes += 1;
        match *words.as_slice() {
            [a, b, c] => self.record = Some((la, [a.extend(), b.extend(), c.extend()])),
            [a] => self.index = Some((la, a.extend())),
            _ => return Err(DsFault::NotRam),
        }
        Ok(())
    }
}

/// The registers and fields of a property.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub processor: Processor,
    pub ds_area: u64,
    pub debugctl: u64,
    pub fields: BtsFields,
}

impl Given {
    /// On a processor whose fields have 32 bits.
    #[inline(always)]
    pub fn on_netburst(self) -> Self {
        Self {
            processor: NETBURST,
            fields: BtsFields::from_words(self.fields.to_words::<u32>()),
            ..self
        }
    }

    pub const fn btint(self) -> bool {
        self.debugctl & self.processor.btint != 0
    }

    /// A recorder with these registers; `None` if the processor would refuse them.
    #[inline(always)]
    pub fn recorder(self) -> Option<Recorder> {
        let mut recorder = Recorder::new(self.processor.microarchitecture);
        recorder.set_ds_area(self.ds_area).ok()?;
        recorder.set_debugctl(self.debugctl).ok()?;
        Some(recorder)
    }

    /// Stores a record. `None`: the processor refuses the registers.
    #[inline(always)]
    pub fn store(self, absent: u8) -> Option<(Result<Stored, DropReason>, Memory)> {
        let mut memory = Memory::new(self.fields, absent);
        let area = self.recorder()?.area();
        Some((area.store(&mut memory, 1, 2), memory))
    }

    /// Whether storing a record with this index only fills the slot there, and advances the index.
    #[inline(always)]
    pub fn is_plain(mut self, index: u64) -> bool {
        self.fields.index = index;
        self.store(0).is_some_and(|(stored, memory)| {
            stored == Ok(Stored::Stored)
                && memory.holds_record(index, self.processor.flags)
                && memory
                    .index
                    .is_some_and(|(_, next)| next == index.wrapping_add(self.processor.record))
        })
    }
}
