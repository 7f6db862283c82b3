//! Memory at the linear addresses of a 64-bit kernel, through its page tables (SDM Vol. 3A 4.5).

use vm_memory::{Address as _, Bytes as _, GuestAddress};

use vbts_vmm::memory::GuestMemory;

use super::vmcoreinfo::Vmcoreinfo;

/// The positions in an address of the indexes of the four levels, and the bits of an index.
const SHIFTS: [u32; 4] = [39, 30, 21, 12];
const INDEX_BITS: u32 = 9;
/// Bits of an entry: the page is present, the entry maps a large page, the address.
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
/// Size of a page.
const PAGE: usize = 4096;

/// The page tables of a kernel.
#[derive(Debug)]
pub(super) struct PageTables<'a> {
    memory: &'a GuestMemory,
    root: GuestAddress,
}

impl<'a> PageTables<'a> {
    /// The tables that a kernel says are its own. `None` of another kernel than one with 64 bits
    /// and four levels.
    pub(super) fn new(memory: &'a GuestMemory, info: &Vmcoreinfo) -> Option<Self> {
        let tables = info.symbol("init_top_pgt")?;
        (info.is_64_bit() && !info.has_five_levels()).then_some(())?;
        Some(Self {
            memory,
            root: info.physical(tables)?,
        })
    }

    /// Reads the bytes at `address`. Returns whether all are in memory.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let mut at = address;
        let mut rest = bytes;
        while !rest.is_empty() {
            let in_page = PAGE - at as usize % PAGE;
            let (part, after) = rest.split_at_mut(in_page.min(rest.len()));
            let physical = self.physical(at);
            if physical.is_none_or(|from| self.memory.read_slice(part, from).is_err()) {
                return false;
            }
            at = at.wrapping_add(part.len() as u64);
            rest = after;
        }
        true
    }

    /// The number of 64 bits at `address`.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)
            .then(|| u64::from_le_bytes(bytes))
    }

    fn physical(&self, address: u64) -> Option<GuestAddress> {
        let mut table = self.root;
        for shift in SHIFTS {
            let index = address >> shift & ((1 << INDEX_BITS) - 1);
            let entry: u64 = self.memory.read_obj(table.checked_add(8 * index)?).ok()?;
            if entry & PRESENT == 0 {
                return None;
            }
            let is_page = shift == SHIFTS[3] || entry & LARGE != 0 && shift != SHIFTS[0];
            let offset = address & ((1 << shift) - 1);
            if is_page {
                return Some(GuestAddress(entry & ADDRESS & !((1 << shift) - 1) | offset));
            }
            table = GuestAddress(entry & ADDRESS);
        }
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use vbts_vmm::memory::{MIN_MEMORY, Size, allocate};

    /// Address of the page tables of the tests, in low memory.
    const TABLES: u64 = 0x10_0000;
    /// The linear address at which they map the page at [`FRAME`], and the next one.
    pub(in crate::kernel_memory) const MAPPED: u64 = 0xFFFF_FFFF_C000_0000;
    pub(in crate::kernel_memory) const FRAME: u64 = 0x20_0000;

    /// Memory in which two pages are mapped.
    pub(in crate::kernel_memory) fn memory() -> GuestMemory {
        let memory = allocate(Size(MIN_MEMORY)).unwrap();
        let entry = |table: u64, index: u64, value: u64| {
            let at = GuestAddress(TABLES + table * 0x1000 + 8 * index);
            memory.write_obj(value | PRESENT, at).unwrap();
        };
        entry(0, 511, TABLES + 0x1000);
        entry(1, 511, TABLES + 0x2000);
        entry(2, 0, TABLES + 0x3000);
        entry(3, 0, FRAME);
        entry(3, 1, FRAME + 0x5000);
        entry(2, 1, 0x20_0000 | LARGE);
        memory
    }

    pub(in crate::kernel_memory) fn tables(memory: &GuestMemory) -> PageTables<'_> {
        PageTables {
            memory,
            root: GuestAddress(TABLES),
        }
    }

    #[test]
    fn pages_of_both_sizes_are_found() {
        let memory = memory();
        let tables = tables(&memory);
        let physical = |address| tables.physical(address).map(|at| at.0);
        assert_eq!(physical(MAPPED + 0x10), Some(FRAME + 0x10));
        assert_eq!(physical(MAPPED + 0x1010), Some(FRAME + 0x5010));
        assert_eq!(physical(MAPPED + 0x2000), None);
        assert_eq!(physical(MAPPED + 0x20_1234), Some(0x20_1234));
        assert_eq!(physical(0), None);
    }

    #[test]
    fn bytes_of_several_pages_are_read() {
        let memory = memory();
        memory
            .write_slice(b"abcd", GuestAddress(FRAME + 0xFFC))
            .unwrap();
        memory
            .write_slice(b"efgh", GuestAddress(FRAME + 0x5000))
            .unwrap();
        let mut bytes = [0; 8];
        assert!(tables(&memory).read(MAPPED + 0xFFC, &mut bytes));
        assert_eq!(&bytes, b"abcdefgh");
        assert!(!tables(&memory).read(MAPPED + 0x1FFC, &mut bytes));
    }
}
