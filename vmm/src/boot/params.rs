//! `struct boot_params`, the boot loader's data for Linux (Documentation/arch/x86/zero-page.rst,
//! boot.rst). The structures are those of `linux-loader`.

use std::mem::offset_of;
use std::ops::Range;

use linux_loader::bootparam::{
    LOADED_HIGH, SETUP_RNG_SEED, boot_e820_entry, boot_params, setup_header,
};
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{self, BootConfigurator};
use vm_memory::{ByteValued, GuestAddress};

use crate::layout;
use crate::memory::GuestMemory;

/// Bytes of the structure in which a setup header can be. A bzImage has it at the same offset. The
/// headers of all kernels so far are shorter.
pub const SETUP_HEADER: Range<usize> =
    offset_of!(boot_params, hdr)..offset_of!(boot_params, edd_mbr_sig_buffer);

/// `boot_flag`: the signature of a boot sector.
pub const BOOT_FLAG: u16 = 0xAA55;
/// `header`: the magic number of a setup header.
pub const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"HdrS");
/// Boot protocol 2.15, for a kernel without a setup header.
const PROTOCOL_VERSION: u16 = 0x020F;
/// `kernel_alignment` for a kernel without a setup header, in bytes.
const KERNEL_ALIGNMENT: u32 = 0x100_0000;
/// `type_of_loader`: a boot loader without an assigned number.
const LOADER_UNDEFINED: u8 = 0xFF;

/// `E820_TYPE_RAM` and `E820_TYPE_RESERVED`.
const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// A seed for the kernel's random number generator.
pub type RngSeed = [u8; 32];
/// A seed that is the same on every run, so that runs are reproducible. It is not secret.
pub const FIXED_RNG_SEED: RngSeed = *b"vbts: the same seed on every run";

/// `struct boot_params` under construction.
#[derive(Debug, Clone)]
pub struct BootParams(Box<boot_params>);

impl BootParams {
    /// Parameters with the kernel's own setup header, or with a minimal one if the kernel has none.
    ///
    /// The header is a slice of the length that the kernel states. The structure of `linux-loader`
    /// has one length for all kernels, so that an older kernel's header would include bytes of
    /// code.
    pub fn new(setup_header: Option<&[u8]>) -> Self {
        let mut params = Box::new(boot_params::default());
        match setup_header {
            Some(header) => {
                let place = params.as_mut_slice().get_mut(SETUP_HEADER);
                for (to, from) in place.into_iter().flatten().zip(header) {
                    *to = *from;
                }
            }
            None => params.hdr = minimal_header(),
        }
        params.hdr.type_of_loader = LOADER_UNDEFINED;
        params.hdr.loadflags |= LOADED_HIGH;
        Self(params)
    }

    /// Sets the command line: its guest-physical address, below 4 GiB, and its length in bytes.
    pub fn set_command_line(&mut self, address: u64, len: usize) {
        self.0.hdr.cmd_line_ptr = address as u32;
        self.0.hdr.cmdline_size = len as u32;
    }

    /// Sets the guest-physical address of the first `struct setup_data`.
    pub fn set_setup_data(&mut self, address: u64) {
        self.0.hdr.setup_data = address;
    }

    /// Sets the guest-physical address of ACPI's RSDP. Kernels before 5.0 ignore it and search the
    /// BIOS area.
    pub fn set_rsdp(&mut self, address: u64) {
        self.0.acpi_rsdp_addr = address;
    }

    /// Sets the initrd: its guest-physical address and its length in bytes, both below 4 GiB.
    pub fn set_initrd(&mut self, address: u64, len: u64) {
        self.0.hdr.ramdisk_image = address as u32;
        self.0.hdr.ramdisk_size = len as u32;
    }

    /// Describes the RAM `ranges` (start and length in bytes), the first of which begins at zero,
    /// without the areas below 1 MiB that a PC reserves for its firmware.
    pub fn set_memory_map(&mut self, ranges: &[(u64, u64)]) {
        let mut entries = vec![
            (0, layout::MP_TABLE, RAM),
            (
                layout::MP_TABLE,
                layout::BASE_MEMORY_END - layout::MP_TABLE,
                RESERVED,
            ),
            (
                layout::ACPI_TABLES,
                layout::EXTENDED_MEMORY - layout::ACPI_TABLES,
                RESERVED,
            ),
        ];
        for &(start, len) in ranges {
            let from = start.max(layout::EXTENDED_MEMORY);
            entries.push((from, (start + len).saturating_sub(from), RAM));
        }
        self.0.e820_entries = entries.len() as u8;
        for (to, (addr, size, kind)) in self.0.e820_table.iter_mut().zip(entries) {
            *to = boot_e820_entry {
                addr,
                size,
                r#type: kind,
            };
        }
    }

    /// Writes the structure to its place in guest memory, [`layout::BOOT_PARAMS`].
    ///
    /// # Errors
    /// `memory` has no RAM there.
    pub fn write(&self, memory: &GuestMemory) -> Result<(), configurator::Error> {
        let page = GuestAddress(layout::BOOT_PARAMS);
        let params = configurator::BootParams::new(self.0.as_ref(), page);
        LinuxBootConfigurator::write_bootparams(&params, memory)
    }

    /// The structure's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// The setup header for a kernel that has none.
fn minimal_header() -> setup_header {
    setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        version: PROTOCOL_VERSION,
        kernel_alignment: KERNEL_ALIGNMENT,
        ..Default::default()
    }
}

/// The only element of the `struct setup_data` list: a seed for the kernel's random number
/// generator.
pub fn rng_seed_setup_data(seed: &RngSeed) -> Vec<u8> {
    let mut data = Vec::with_capacity(16 + seed.len());
    data.extend_from_slice(&0u64.to_le_bytes());
    data.extend_from_slice(&SETUP_RNG_SEED.to_le_bytes());
    data.extend_from_slice(&(seed.len() as u32).to_le_bytes());
    data.extend_from_slice(seed);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::memory::{Size, allocate};
    use vm_memory::Bytes;

    fn u64_at(params: &BootParams, at: usize) -> u64 {
        u64::from_le_bytes(*params.as_bytes()[at..].first_chunk().unwrap())
    }

    /// Offsets from zero-page.rst and boot.rst. The tests do not rely on the structures.
    const E820_ENTRIES: usize = 0x1E8;
    const E820_TABLE: usize = 0x2D0;
    const E820_ENTRY: usize = 20;
    const TYPE_OF_LOADER: usize = 0x210;
    const LOADFLAGS: usize = 0x211;
    const RAMDISK_IMAGE: usize = 0x218;
    const CMD_LINE_PTR: usize = 0x228;
    const CMDLINE_SIZE: usize = 0x238;
    const SETUP_DATA: usize = 0x250;
    const INIT_SIZE: usize = 0x260;

    #[test]
    fn the_memory_map_leaves_out_the_firmware_area() {
        let mut params = BootParams::new(None);
        params.set_memory_map(&[(0, 0xC000_0000), (1 << 32, 1 << 30)]);
        assert_eq!(params.as_bytes()[E820_ENTRIES], 5);
        let entries: Vec<_> = (0..5)
            .map(|i| {
                let at = E820_TABLE + i * E820_ENTRY;
                (
                    u64_at(&params, at),
                    u64_at(&params, at + 8),
                    params.as_bytes()[at + 16],
                )
            })
            .collect();
        assert_eq!(
            entries,
            [
                (0, 0x9FC00, 1),
                (0x9FC00, 0x400, 2),
                (0xE0000, 0x20000, 2),
                (0x10_0000, 0xBFF0_0000, 1),
                (1 << 32, 1 << 30, 1)
            ]
        );
    }

    #[test]
    fn a_kernel_without_a_setup_header_gets_one() {
        let params = BootParams::new(None);
        assert_eq!(&params.as_bytes()[0x202..0x206], b"HdrS");
        assert_eq!(params.as_bytes()[TYPE_OF_LOADER], 0xFF);
    }

    #[test]
    fn the_setup_header_of_the_kernel_is_kept() {
        let mut header = vec![0; SETUP_HEADER.len()];
        header[INIT_SIZE - SETUP_HEADER.start] = 0x42;
        let mut params = BootParams::new(Some(&header));
        params.set_initrd(0x123_4000, 77);
        params.set_command_line(0x2_0000, 5);
        let bytes = params.as_bytes();
        assert_eq!(bytes[INIT_SIZE], 0x42);
        assert_eq!(bytes[LOADFLAGS] & 1, 1);
        assert_eq!(u64_at(&params, RAMDISK_IMAGE), 77 << 32 | 0x123_4000);
        assert_eq!(bytes[CMDLINE_SIZE], 5);
    }

    #[test]
    fn addresses_are_at_their_documented_offsets() {
        let mut params = BootParams::new(None);
        params.set_rsdp(0xE_0000);
        params.set_setup_data(0x1_0000);
        params.set_command_line(0x2_0000, 5);
        assert_eq!(u64_at(&params, 0x070), 0xE_0000);
        assert_eq!(u64_at(&params, SETUP_DATA), 0x1_0000);
        assert_eq!(params.as_bytes()[CMD_LINE_PTR..][..4], [0, 0, 2, 0]);
        assert_eq!(SETUP_HEADER, 0x1F1..0x290);
    }

    #[test]
    fn the_structure_is_written_to_its_page() {
        let memory = allocate(Size(16 << 20)).unwrap();
        let params = BootParams::new(Some(&[0x5A; 300]));
        params.write(&memory).unwrap();
        let mut page = [0; 4096];
        let address = GuestAddress(layout::BOOT_PARAMS);
        memory.read_slice(&mut page, address).unwrap();
        assert_eq!(page, params.as_bytes());
        let header_end = SETUP_HEADER.end;
        assert_eq!(page[header_end - 1..=header_end], [0x5A, 0]);
    }

    #[test]
    fn the_seed_is_a_setup_data_of_its_type() {
        let data = rng_seed_setup_data(&FIXED_RNG_SEED);
        assert_eq!(data[8..16], [9, 0, 0, 0, 32, 0, 0, 0]);
        assert_eq!(data.len(), 48);
    }
}
