//! Guest memory for the tests: pages at linear addresses, each writable, read-only or missing.

use std::collections::BTreeMap;

use vbts_bts::{BranchRecord, BtsFields, DsFault, DsMemory, RECORD_SIZE, Word};

pub const PAGE: u64 = 4096;

/// An access of the recorder: address and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read(u64, usize),
    Write(u64, usize),
}

#[derive(Clone, Debug)]
struct Page {
    writable: bool,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub struct Memory {
    pages: BTreeMap<u64, Page>,
    pub log: Vec<Access>,
}

impl Memory {
    /// Maps every page that `[start, start + len)` touches.
    pub fn map(&mut self, start: u64, len: u64, writable: bool) {
        for number in start / PAGE..=(start + (len - 1)) / PAGE {
            let page = self.pages.entry(number).or_insert_with(|| Page {
                writable,
                bytes: vec![0; 4096],
            });
            page.writable = writable;
        }
    }

    /// Reads without an entry in the log. Unmapped bytes are 0.
    pub fn peek<const N: usize>(&self, la: u64) -> [u8; N] {
        std::array::from_fn(|i| {
            let la = la.wrapping_add(i as u64);
            self.pages
                .get(&(la / PAGE))
                .map_or(0, |page| page.bytes[(la % PAGE) as usize])
        })
    }

    /// Writes without an entry in the log, also to read-only pages. Unmapped bytes stay unmapped.
    pub fn poke(&mut self, la: u64, bytes: &[u8]) {
        for (offset, &byte) in (0..).zip(bytes) {
            let la = la.wrapping_add(offset);
            if let Some(page) = self.pages.get_mut(&(la / PAGE)) {
                page.bytes[(la % PAGE) as usize] = byte;
            }
        }
    }

    pub fn fields(&self, ds_area: u64) -> BtsFields {
        BtsFields::from_bytes(&self.peek(ds_area))
    }

    pub fn set_fields(&mut self, ds_area: u64, fields: BtsFields) {
        self.poke(ds_area, &fields.to_bytes());
    }

    pub fn record(&self, la: u64) -> BranchRecord {
        BranchRecord::from_bytes(&self.peek::<{ RECORD_SIZE as usize }>(la))
    }

    /// The address and the bytes of each mapped page.
    pub fn snapshot(&self) -> Vec<(u64, Vec<u8>)> {
        self.pages
            .iter()
            .map(|(number, page)| (number * PAGE, page.bytes.clone()))
            .collect()
    }

    fn check(&self, la: u64, len: usize) -> Result<(), DsFault> {
        let last = la
            .checked_add(len as u64 - 1)
            .expect("the recorder never wraps around");
        for la in [la, last] {
            assert!(
                la >> 47 == 0 || la >> 47 == (1 << 17) - 1,
                "the recorder checks that {la:#x} is canonical"
            );
            let page = self.pages.get(&(la / PAGE)).ok_or(DsFault::Unmapped)?;
            if !page.writable {
                return Err(DsFault::ReadOnly);
            }
        }
        Ok(())
    }
}

impl DsMemory for Memory {
    fn read<W: Word, const N: usize>(&mut self, la: u64) -> Result<[W; N], DsFault> {
        let size = W::SIZE as usize;
        self.log.push(Access::Read(la, size * N));
        self.check(la, size * N)?;
        let word = |i| {
            let mut bytes = [0; 8];
            for (at, byte) in (la + W::SIZE * i as u64..).zip(&mut bytes[..size]) {
                [*byte] = self.peek(at);
            }
            W::truncate(u64::from_le_bytes(bytes))
        };
        Ok(std::array::from_fn(word))
    }

    fn write<W: Word, const N: usize>(&mut self, la: u64, words: &[W; N]) -> Result<(), DsFault> {
        let size = W::SIZE as usize;
        self.log.push(Access::Write(la, size * N));
        self.check(la, size * N)?;
        for (i, word) in words.iter().enumerate() {
            let bytes = word.extend().to_le_bytes();
            self.poke(la + W::SIZE * i as u64, &bytes[..size]);
        }
        Ok(())
    }
}
