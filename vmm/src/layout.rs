//! The machine's physical address map: what lies where, and why there.

/// RAM below 4 GiB ends here at the latest; what a larger machine has goes on at
/// [`HIGH_RAM_START`].
pub const LOW_RAM_END: u64 = 0xC000_0000;
/// Where RAM goes on above the hole for devices.
pub const HIGH_RAM_START: u64 = 1 << 32;
/// End of the guest-physical address space: 36 bits, as on the processors that the CPU models
/// describe.
pub const PHYSICAL_END: u64 = 1 << 36;

/// GDT for the boot protocol.
pub const GDT: u64 = 0x500;
/// `struct boot_params`, the "zero page".
pub const BOOT_PARAMS: u64 = 0x7000;
/// PML4, one page-directory-pointer table, and a page directory for each of the first 4 GiB.
pub const PAGE_TABLES: u64 = 0x9000;
/// Initial stack, growing down.
pub const BOOT_STACK: u64 = 0x8FF0;
/// `struct setup_data` list.
pub const SETUP_DATA: u64 = 0x1_0000;
/// Kernel command line.
pub const COMMAND_LINE: u64 = 0x2_0000;
/// The longest command line, with its terminating zero (`COMMAND_LINE_SIZE` of Linux).
pub const COMMAND_LINE_SIZE: usize = 2048;
/// The last KiB of base memory, the second place where Linux looks for the MP floating pointer
/// structure.
pub const MP_TABLE: u64 = 0x9_FC00;
/// Processors that a machine has at most: the MP table of so many fits into [`MP_TABLE`]'s KiB, and
/// local APICs in flat mode know eight.
pub const MAX_PROCESSORS: u8 = 8;
/// First byte after base memory.
pub const BASE_MEMORY_END: u64 = 0xA_0000;
/// ACPI's tables, the first of which is the RSDP: the BIOS area, where kernels look for it (ACPI
/// 6.5, 5.2.5.1).
pub const ACPI_TABLES: u64 = 0xE_0000;
/// Where RAM goes on after the video and ROM areas of a PC.
pub const EXTENDED_MEMORY: u64 = 0x10_0000;

/// virtio-mmio device 0; each next one lies [`VIRTIO_STRIDE`] higher.
pub const VIRTIO_BASE: u64 = 0xD000_0000;
/// Distance between two virtio-mmio devices, and the size of the register window of each.
pub const VIRTIO_STRIDE: u64 = 0x1000;
/// Global system interrupt of virtio-mmio device *n*.
pub const VIRTIO_GSI: [u8; 10] = [5, 6, 7, 9, 10, 11, 12, 13, 14, 15];

/// Three pages for a task-state segment, and one for a page table, with which KVM runs real mode on
/// some processors. The guest has no use for these addresses.
pub const KVM_TSS: u64 = 0xFFFB_D000;
/// The page table.
pub const KVM_IDENTITY_MAP: u64 = 0xFFFB_C000;
/// I/O APIC registers.
pub const IOAPIC: u64 = 0xFEC0_0000;
/// Local APIC registers at reset.
pub const LAPIC: u64 = 0xFEE0_0000;
/// COM1.
pub const COM1: u16 = 0x3F8;
/// Its interrupt.
pub const COM1_GSI: u32 = 4;
/// The clock.
pub const RTC: u16 = 0x70;
/// Its interrupt.
pub const RTC_GSI: u32 = 8;
/// ACPI's sleep control register.
pub const SLEEP_CONTROL: u16 = 0x600;
/// ACPI's sleep status register.
pub const SLEEP_STATUS: u16 = 0x601;
/// The reset control register.
pub const RESET_CONTROL: u16 = 0xCF9;
/// Interrupt of the power button: above those of the ISA bus.
pub const POWER_BUTTON_GSI: u32 = 16;
