//! The machine's address map: RAM, boot data, devices and interrupts, with the reasons.

/// Upper limit of RAM below 4 GiB. The rest of a larger machine's RAM is at [`HIGH_RAM_START`].
pub const LOW_RAM_END: u64 = 0xC000_0000;
/// Start of RAM above the hole for devices.
pub const HIGH_RAM_START: u64 = 1 << 32;
/// End of the guest-physical addresses that the machine uses: 64 GiB, fewer than the processor's
/// addresses can have.
pub const PHYSICAL_END: u64 = 1 << 36;
const _: () = assert!(PHYSICAL_END <= 1 << vbts_cpu::model::PHYS_BITS);

/// The GDT of the boot protocol.
pub const GDT: u64 = 0x500;
/// `struct boot_params`, the "zero page".
pub const BOOT_PARAMS: u64 = 0x7000;
/// PML4, one page-directory-pointer table, and a page directory for each of the first 4 GiB.
pub const PAGE_TABLES: u64 = 0x9000;
/// Initial stack pointer.
pub const BOOT_STACK: u64 = 0x8FF0;
/// The list of `struct setup_data`.
pub const SETUP_DATA: u64 = 0x1_0000;
/// The kernel command line.
pub const COMMAND_LINE: u64 = 0x2_0000;
/// Maximum length in bytes of the command line with its terminating zero (`COMMAND_LINE_SIZE` of
/// Linux).
pub const COMMAND_LINE_SIZE: usize = 2048;
/// The MP tables: the last KiB of base memory, where Linux searches for the MP floating pointer
/// structure.
pub const MP_TABLE: u64 = 0x9_FC00;
/// Maximum number of processors. Local APICs in flat mode can address eight, and their MP table
/// fits into the KiB at [`MP_TABLE`].
pub const MAX_PROCESSORS: u8 = 8;
/// First byte after base memory.
pub const BASE_MEMORY_END: u64 = 0xA_0000;
/// The ACPI tables, of which the RSDP is the first: in the BIOS area, where kernels search for it
/// (ACPI 6.5, 5.2.5.1).
pub const ACPI_TABLES: u64 = 0xE_0000;
/// Start of RAM above the video and ROM areas of a PC.
pub const EXTENDED_MEMORY: u64 = 0x10_0000;

/// Registers of virtio-mmio device 0. Those of device *n* are *n* times [`VIRTIO_STRIDE`] higher.
pub const VIRTIO_BASE: u64 = 0xD000_0000;
/// Distance in bytes between two virtio-mmio devices, and size of the registers of each.
pub const VIRTIO_STRIDE: u64 = 0x1000;
/// Global system interrupt of virtio-mmio device *n*.
pub const VIRTIO_GSI: [u8; 10] = [5, 6, 7, 9, 10, 11, 12, 13, 14, 15];

/// Three pages for the task-state segment with which KVM runs real mode on some processors. The
/// guest does not use them.
pub const KVM_TSS: u64 = 0xFFFB_D000;
/// A page for the identity page table with which KVM runs real mode on some processors. The guest
/// does not use it.
pub const KVM_IDENTITY_MAP: u64 = 0xFFFB_C000;
/// I/O APIC registers.
pub const IOAPIC: u64 = 0xFEC0_0000;
/// Local APIC registers at reset.
pub const LAPIC: u64 = 0xFEE0_0000;
/// I/O port of COM1, the serial console.
pub const COM1: u16 = 0x3F8;
/// Global system interrupt of COM1.
pub const COM1_GSI: u32 = 4;
/// I/O port of the real-time clock.
pub const RTC: u16 = 0x70;
/// Global system interrupt of the real-time clock.
pub const RTC_GSI: u32 = 8;
/// I/O port of ACPI's sleep control register.
pub const SLEEP_CONTROL: u16 = 0x600;
/// I/O port of ACPI's sleep status register.
pub const SLEEP_STATUS: u16 = 0x601;
/// I/O port of the reset control register.
pub const RESET_CONTROL: u16 = 0xCF9;
/// Global system interrupt of the power button, above those of the ISA bus.
pub const POWER_BUTTON_GSI: u32 = 16;
