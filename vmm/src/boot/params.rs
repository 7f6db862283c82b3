//! `struct boot_params`: what the boot loader tells Linux (Documentation/arch/x86/zero-page.rst,
//! boot.rst).

use std::ops::Range;

use crate::layout;

/// Size of the structure in bytes.
const SIZE: usize = 4096;

/// The setup header inside the structure, and at the same place in a bzImage.
pub const SETUP_HEADER: Range<usize> = 0x1F1..0x290;

/// Offsets of the setup header's fields (boot.rst, "Details of Header Fields").
#[allow(missing_docs)]
pub mod setup {
    pub const SETUP_SECTS: usize = 0x1F1;
    pub const SYSSIZE: usize = 0x1F4;
    pub const BOOT_FLAG: usize = 0x1FE;
    pub const HEADER: usize = 0x202;
    pub const VERSION: usize = 0x206;
    pub const TYPE_OF_LOADER: usize = 0x210;
    pub const LOADFLAGS: usize = 0x211;
    pub const RAMDISK_IMAGE: usize = 0x218;
    pub const RAMDISK_SIZE: usize = 0x21C;
    pub const CMD_LINE_PTR: usize = 0x228;
    pub const INITRD_ADDR_MAX: usize = 0x22C;
    pub const KERNEL_ALIGNMENT: usize = 0x230;
    pub const XLOADFLAGS: usize = 0x236;
    pub const CMDLINE_SIZE: usize = 0x238;
    pub const SETUP_DATA: usize = 0x250;
    pub const PREF_ADDRESS: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
}

/// Offset of `acpi_rsdp_addr`.
const ACPI_RSDP_ADDR: usize = 0x070;
/// Offset of `e820_entries`.
const E820_ENTRIES: usize = 0x1E8;
/// Offset of `e820_table`; an entry is {u64 address, u64 size, u32 type}.
const E820_TABLE: usize = 0x2D0;
const E820_ENTRY: usize = 20;
/// `E820_TYPE_RAM` and `E820_TYPE_RESERVED`.
const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// A boot loader without an assigned number.
const LOADER_UNDEFINED: u8 = 0xFF;
/// `LOADED_HIGH`: the protected-mode code lies above 1 MiB.
const LOADED_HIGH: u8 = 1 << 0;

/// `SETUP_RNG_SEED` of `struct setup_data`.
const SETUP_RNG_SEED: u32 = 9;
/// A seed for the kernel's random number generator.
pub type RngSeed = [u8; 32];
/// One that is no secret: the same on every run, so that every run is the same.
pub const FIXED_RNG_SEED: RngSeed = *b"vbts: the same seed on every run";

/// `struct boot_params` under construction.
#[derive(Debug, Clone)]
pub struct BootParams(Box<[u8; SIZE]>);

impl BootParams {
    /// Parameters with the kernel's own setup header, or with that of a kernel that has none to
    /// offer.
    pub fn new(setup_header: Option<&[u8]>) -> Self {
        let mut params = Self(Box::new([0; SIZE]));
        match setup_header {
            Some(header) => params.put(SETUP_HEADER.start, header),
            None => {
                params.put(setup::BOOT_FLAG, &0xAA55u16.to_le_bytes());
                params.put(setup::HEADER, b"HdrS");
                params.put(setup::VERSION, &0x020Fu16.to_le_bytes());
                params.put(setup::KERNEL_ALIGNMENT, &0x100_0000u32.to_le_bytes());
            }
        }
        params.put(setup::TYPE_OF_LOADER, &[LOADER_UNDEFINED]);
        let loadflags = params.0[setup::LOADFLAGS] | LOADED_HIGH;
        params.put(setup::LOADFLAGS, &[loadflags]);
        params
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Says where the command line of `len` bytes lies.
    pub fn set_command_line(&mut self, address: u64, len: usize) {
        self.put(setup::CMD_LINE_PTR, &(address as u32).to_le_bytes());
        self.put(setup::CMDLINE_SIZE, &(len as u32).to_le_bytes());
    }

    /// Says where the list of `struct setup_data` begins.
    pub fn set_setup_data(&mut self, address: u64) {
        self.put(setup::SETUP_DATA, &address.to_le_bytes());
    }

    /// Says where ACPI's root pointer lies, which kernels before 5.0 look for themselves.
    pub fn set_rsdp(&mut self, address: u64) {
        self.put(ACPI_RSDP_ADDR, &address.to_le_bytes());
    }

    /// Says where the initrd lies; both numbers are below 4 GiB.
    pub fn set_initrd(&mut self, address: u64, len: u64) {
        self.put(setup::RAMDISK_IMAGE, &(address as u32).to_le_bytes());
        self.put(setup::RAMDISK_SIZE, &(len as u32).to_le_bytes());
    }

    /// Describes the RAM `ranges` (start, length), the first of which begins at zero, less what a
    /// PC keeps for its firmware below 1 MiB.
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
        self.put(E820_ENTRIES, &[entries.len() as u8]);
        for (i, (start, len, kind)) in entries.into_iter().enumerate() {
            let at = E820_TABLE + i * E820_ENTRY;
            self.put(at, &start.to_le_bytes());
            self.put(at + 8, &len.to_le_bytes());
            self.put(at + 16, &kind.to_le_bytes());
        }
    }

    /// The structure as it lies in guest memory.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0[..]
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

    fn u64_at(params: &BootParams, at: usize) -> u64 {
        u64::from_le_bytes(*params.as_bytes()[at..].first_chunk().unwrap())
    }

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
    fn a_kernel_without_header_gets_one() {
        let params = BootParams::new(None);
        assert_eq!(&params.as_bytes()[0x202..0x206], b"HdrS");
        assert_eq!(params.as_bytes()[setup::TYPE_OF_LOADER], 0xFF);
    }

    #[test]
    fn the_kernels_own_header_is_kept() {
        let mut header = vec![0; SETUP_HEADER.len()];
        header[setup::INIT_SIZE - SETUP_HEADER.start] = 0x42;
        let mut params = BootParams::new(Some(&header));
        params.set_initrd(0x123_4000, 77);
        params.set_command_line(0x2_0000, 5);
        let bytes = params.as_bytes();
        assert_eq!(bytes[setup::INIT_SIZE], 0x42);
        assert_eq!(bytes[setup::LOADFLAGS] & 1, 1);
        assert_eq!(u64_at(&params, setup::RAMDISK_IMAGE), 77 << 32 | 0x123_4000);
        assert_eq!(bytes[setup::CMDLINE_SIZE], 5);
    }

    #[test]
    fn the_seed_is_a_setup_data_of_its_type() {
        let data = rng_seed_setup_data(&FIXED_RNG_SEED);
        assert_eq!(data[8..16], [9, 0, 0, 0, 32, 0, 0, 0]);
        assert_eq!(data.len(), 48);
    }
}
