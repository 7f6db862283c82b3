//! The information that a running kernel keeps for the readers of crash dumps
//! (Documentation/admin-guide/kdump/vmcoreinfo.rst of Linux): addresses of symbols, also with
//! KASLR.

use std::collections::HashMap;

use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryRegion as _};

use vbts_vmm::memory::GuestMemory;

/// Size of a page, and of the information at most (`VMCOREINFO_BYTES`).
const PAGE: usize = 4096;
/// The first line (`crash_save_vmcoreinfo_init` of kernel/vmcore_info.c).
const START: &[u8] = b"OSRELEASE=";
/// The lowest linear address of the image of a 64-bit kernel (`__START_KERNEL_map`).
const IMAGE_64: u64 = 0xFFFF_FFFF_8000_0000;
/// The lowest linear address of a 32-bit kernel (`PAGE_OFFSET` with CONFIG_VMSPLIT_3G).
const LOW_MEMORY_32: u64 = 0xC000_0000;

/// The lines of the information, by the words before their `=`.
#[derive(Debug)]
pub(super) struct Vmcoreinfo(HashMap<String, String>);

impl Vmcoreinfo {
    /// Finds the information in guest memory, at the start of a page. `None` if the kernel has not
    /// come to it yet, or is built without CONFIG_VMCORE_INFO.
    pub(super) fn find(memory: &GuestMemory) -> Option<Self> {
        let mut page = [0; PAGE];
        memory.iter().find_map(|region| {
            let start = region.start_addr().0;
            let pages = (start..start.saturating_add(region.len())).step_by(PAGE);
            pages.map(GuestAddress).find_map(|at| {
                let mut first = [0; START.len()];
                memory.read_slice(&mut first, at).ok()?;
                if first != START {
                    return None;
                }
                memory.read_slice(&mut page, at).ok()?;
                Self::parse(&page)
            })
        })
    }

    /// The lines of a page. `None` if it has no symbols.
    fn parse(page: &[u8]) -> Option<Self> {
        let text = page.split(|byte| *byte == 0).next()?;
        let lines = std::str::from_utf8(text).ok()?.lines();
        let lines = lines.filter_map(|line| line.split_once('='));
        let lines: HashMap<_, _> = lines.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let this = Self(lines);
        this.symbol("_stext").map(|_| this)
    }

    /// The linear address of a symbol.
    pub(super) fn symbol(&self, name: &str) -> Option<u64> {
        let value = self.0.get(&format!("SYMBOL({name})"))?;
        u64::from_str_radix(value, 16).ok()
    }

    /// Returns whether the kernel has 64 bits.
    pub(super) fn is_64_bit(&self) -> bool {
        self.symbol("_stext").is_some_and(|start| start >= IMAGE_64)
    }

    /// Returns whether the kernel's page tables have five levels.
    pub(super) fn has_five_levels(&self) -> bool {
        let levels = self.0.get("NUMBER(pgtable_l5_enabled)");
        levels.is_some_and(|enabled| enabled != "0")
    }

    /// The guest-physical address of an address in the image of the kernel.
    pub(super) fn physical(&self, address: u64) -> Option<GuestAddress> {
        if !self.is_64_bit() {
            return address.checked_sub(LOW_MEMORY_32).map(GuestAddress);
        }
        // It is negative if the kernel is loaded below its preferred address.
        let base: i64 = self.0.get("NUMBER(phys_base)")?.parse().ok()?;
        let distance = address.checked_sub(IMAGE_64)?;
        distance.checked_add_signed(base).map(GuestAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vbts_vmm::memory::{MIN_MEMORY, Size, allocate};

    const TEXT: &[u8] = b"OSRELEASE=6.1.0-9\nPAGESIZE=4096\nSYMBOL(_stext)=ffffffffb1000000\n\
        NUMBER(phys_base)=-805306368\n";

    #[test]
    fn the_information_is_found_at_the_start_of_a_page() {
        let memory = allocate(Size(MIN_MEMORY)).unwrap();
        assert!(Vmcoreinfo::find(&memory).is_none());
        memory.write_slice(TEXT, GuestAddress(0x5010)).unwrap();
        assert!(Vmcoreinfo::find(&memory).is_none());
        // The first line alone can be that of a file in the page cache.
        memory.write_slice(START, GuestAddress(0x6000)).unwrap();
        memory.write_slice(TEXT, GuestAddress(0xE000)).unwrap();
        let found = Vmcoreinfo::find(&memory).unwrap();
        assert!(found.is_64_bit());
        assert_eq!(found.symbol("_stext"), Some(0xFFFF_FFFF_B100_0000));
        assert_eq!(found.symbol("_etext"), None);
        assert_eq!(
            found.physical(0xFFFF_FFFF_B100_0040),
            Some(GuestAddress(0x100_0040))
        );
        assert_eq!(found.physical(0x1000), None);
    }

    #[test]
    fn a_kernel_of_32_bits_has_its_image_in_low_memory() {
        let found = Vmcoreinfo::parse(b"OSRELEASE=6.1\nSYMBOL(_stext)=c1000000\n\0SYMBOL(x)=1");
        let found = found.unwrap();
        assert!(!found.is_64_bit());
        assert_eq!(found.physical(0xC100_0000), Some(GuestAddress(0x100_0000)));
        assert_eq!(found.symbol("x"), None);
    }
}
