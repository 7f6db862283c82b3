//! The state of the processor that the boot protocols require: flat segments, and in the 64-bit one
//! long mode with the first 4 GiB identity mapped.

use vbts_cpu::ArchState;
use vbts_cpu::state::{SegAttr, Segment, TableRegister, cr0, cr4, dr6, dr7, efer, gpr, rflags};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use super::Protocol;
use crate::layout::{BOOT_PARAMS, BOOT_STACK, GDT, PAGE_TABLES};
use crate::memory::GuestMemory;

/// Selectors of `__BOOT_CS` and `__BOOT_DS` (boot.rst, "32-bit Boot Protocol", "64-bit Boot
/// Protocol"), and of a task-state segment, which long mode needs.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
const BOOT_TSS: u16 = 0x20;

/// Number of descriptors in the GDT.
const DESCRIPTORS: usize = 6;

/// Null, null, code, data, and a busy TSS at address 0, which has two halves in long mode (SDM Vol.
/// 3A 3.4.5, 7.2.3).
fn descriptors(protocol: Protocol) -> [u64; DESCRIPTORS] {
    let code = match protocol {
        Protocol::Bits32 => 0x00CF_9B00_0000_FFFF,
        Protocol::Bits64 => 0x00AF_9B00_0000_FFFF,
    };
    [0, 0, code, 0x00CF_9300_0000_FFFF, 0x0000_8B00_0000_0067, 0]
}

/// Page-table entry: present, writable; page-directory entry: a 2 MiB page.
const PRESENT_WRITABLE: u64 = 0b11;
const LARGE: u64 = 1 << 7;

/// Number of page directories, each for 1 GiB.
const DIRECTORIES: u64 = 4;

/// Power-on value of IA32_PAT (SDM Vol. 3A table 11-12).
const PAT_RESET: u64 = 0x0007_0406_0007_0406;

/// Writes the GDT and, for the 64-bit boot protocol, the page tables.
///
/// # Errors
/// `memory` has no RAM there.
pub fn write_tables(memory: &GuestMemory, protocol: Protocol) -> Result<(), GuestMemoryError> {
    let put = |address: u64, entry: u64| memory.write_obj(entry.to_le(), GuestAddress(address));
    for (i, descriptor) in (0..).zip(descriptors(protocol)) {
        put(GDT + i * 8, descriptor)?;
    }
    if protocol == Protocol::Bits32 {
        return Ok(());
    }
    let (pml4, pdpt, first_pd) = (PAGE_TABLES, PAGE_TABLES + 0x1000, PAGE_TABLES + 0x2000);
    put(pml4, pdpt | PRESENT_WRITABLE)?;
    for i in 0..DIRECTORIES {
        put(pdpt + i * 8, (first_pd + i * 0x1000) | PRESENT_WRITABLE)?;
    }
    for i in 0..DIRECTORIES * 512 {
        put(first_pd + i * 8, i << 21 | LARGE | PRESENT_WRITABLE)?;
    }
    Ok(())
}

/// The state in which the boot processor enters the kernel at `entry`.
pub fn initial_state(entry: u64, protocol: Protocol) -> ArchState {
    let flat = SegAttr::ACCESSED | SegAttr::RW | SegAttr::S | SegAttr::P | SegAttr::G;
    let segment = |selector, attr, limit| Segment {
        selector,
        base: 0,
        limit,
        attr,
    };
    let size = match protocol {
        Protocol::Bits32 => SegAttr::DB,
        Protocol::Bits64 => SegAttr::L,
    };
    let code = segment(BOOT_CS, flat | SegAttr::CODE | size, u32::MAX);
    let data = segment(BOOT_DS, flat | SegAttr::DB, u32::MAX);
    let busy_tss = SegAttr::from_bits_retain(0xB) | SegAttr::P;

    let mut state = ArchState {
        mxcsr: 0x1F80,
        rip: entry,
        rflags: rflags::FIXED,
        ..Default::default()
    };
    state.gpr[gpr::RSI] = BOOT_PARAMS;
    state.gpr[gpr::RSP] = BOOT_STACK;
    state.seg = [data, code, data, data, data, data];
    state.sys.tr = segment(BOOT_TSS, busy_tss, 0x67);
    state.sys.ldtr = segment(0, SegAttr::UNUSABLE, 0);
    state.sys.gdtr = TableRegister {
        base: GDT,
        limit: (8 * DESCRIPTORS - 1) as u16,
    };
    state.sys.cr0 = cr0::PE | cr0::MP | cr0::ET | cr0::NE;
    if protocol == Protocol::Bits64 {
        state.sys.cr0 |= cr0::PG;
        state.sys.cr3 = PAGE_TABLES;
        state.sys.cr4 = cr4::PAE;
        state.sys.efer = efer::LME | efer::LMA;
    }
    state.sys.dr6 = dr6::FIXED;
    state.sys.dr7 = dr7::FIXED;
    state.msr.pat = PAT_RESET;
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::SETUP_DATA;
    use crate::memory::{Size, allocate};

    #[test]
    fn the_first_4_gib_are_identity_mapped() {
        let memory = allocate(Size(16 << 20)).unwrap();
        write_tables(&memory, Protocol::Bits64).unwrap();
        let entry = |a| u64::from_le(memory.read_obj(GuestAddress(a)).unwrap());
        for address in [0u64, 0x20_0000, 0x7654_3210, 0xFFFF_FFFF] {
            let pdpt = entry(PAGE_TABLES) & !0xFFF;
            let pd = entry(pdpt + (address >> 30) * 8) & !0xFFF;
            let page = entry(pd + (address >> 21 & 511) * 8);
            assert_eq!(page, (address & !0x1F_FFFF) | 0x83);
        }
        const { assert!(PAGE_TABLES + (2 + DIRECTORIES) * 0x1000 <= SETUP_DATA) };
    }

    #[test]
    fn segments_agree_with_their_descriptors() {
        for protocol in [Protocol::Bits32, Protocol::Bits64] {
            let memory = allocate(Size(16 << 20)).unwrap();
            write_tables(&memory, protocol).unwrap();
            let state = initial_state(0x100_0000, protocol);
            for segment in [state.seg[1], state.seg[2]] {
                let address = GDT + u64::from(segment.selector);
                let descriptor: u64 = memory.read_obj(GuestAddress(address)).unwrap();
                assert_eq!(
                    (descriptor >> 40) as u32 & 0xF0FF,
                    segment.attr.bits(),
                    "{segment:x?}"
                );
            }
        }
    }

    /// boot.rst: paging off, ESI has the parameters, EBP, EDI and EBX are zero, interrupts are off.
    #[test]
    fn the_32_bit_protocol_starts_without_paging() {
        let state = initial_state(0x100_0000, Protocol::Bits32);
        assert_eq!(state.sys.cr0 & (cr0::PE | cr0::PG), cr0::PE);
        assert_eq!((state.sys.efer, state.sys.cr4, state.rflags), (0, 0, 2));
        assert_eq!(state.gpr[gpr::RSI], BOOT_PARAMS);
        for register in [gpr::RBP, gpr::RDI, gpr::RBX] {
            assert_eq!(state.gpr[register], 0);
        }
    }
}
