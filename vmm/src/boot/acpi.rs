//! ACPI tables, in which the kernels of distributions find the devices (ACPI 6.5, chapter 5).
//!
//! The machine is hardware-reduced: it has no PM timer, no SCI and no fixed power button, and it
//! sleeps after a write to a register. It has the 8259, the 8254 and the real-time clock too, for
//! kernels without ACPI.

use acpi_tables::Aml;
use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADT, FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use vbts_devices::power::SLEEP_TYPE_S5;
use vbts_devices::reset::FULL_RESET_VALUE;

use crate::layout::{
    ACPI_TABLES, COM1, COM1_GSI, IOAPIC, LAPIC, POWER_BUTTON_GSI, RESET_CONTROL, RTC, RTC_GSI,
    SLEEP_CONTROL, SLEEP_STATUS, VIRTIO_BASE, VIRTIO_STRIDE,
};

const OEM: [u8; 6] = *b"VBTS  ";
const OEM_TABLE: [u8; 8] = *b"SOFTMACH";
const OEM_REVISION: u32 = 1;

/// MADT flag: the machine also has 8259s (section 5.2.12).
const PCAT_COMPAT: u32 = 1 << 0;
/// MADT structure "local APIC NMI": LINT1 of every processor, with the polarity and trigger mode of
/// the bus.
const LOCAL_APIC_NMI: [u8; 6] = [4, 6, 0xFF, 0, 0, 1];
/// FADT boot flags (section 5.2.9.3): devices on an ISA bus, no VGA, no MSI. The 8042's bit is
/// clear because the machine has only its reset line.
const BOOT_ARCHITECTURE: u16 = 1 << 0 | 1 << 2 | 1 << 3;

/// Builds all tables for the address [`ACPI_TABLES`]. The first is the RSDP.
///
/// APIC IDs begin at 0. `gsis` has the global system interrupt of each virtio-mmio device, in
/// order.
pub fn build(processors: u8, gsis: &[u8]) -> Vec<u8> {
    let mut tables = vec![0; Rsdp::len()];
    let dsdt = place(&mut tables, &dsdt(gsis));
    let fadt = place(&mut tables, &fadt(dsdt));
    let madt = place(&mut tables, &madt(processors));
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = place(&mut tables, &xsdt);
    let rsdp = bytes(&Rsdp::new(OEM, xsdt));
    tables.splice(..rsdp.len(), rsdp);
    tables
}

fn bytes(item: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    item.to_aml_bytes(&mut bytes);
    bytes
}

/// Appends a table at a multiple of 16 and returns its address.
fn place(tables: &mut Vec<u8>, table: &dyn Aml) -> u64 {
    tables.resize(tables.len().next_multiple_of(16), 0);
    let address = ACPI_TABLES + tables.len() as u64;
    table.to_aml_bytes(tables);
    address
}

/// The byte-wide register at `port`.
fn register(port: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        port.into(),
    )
}

/// Fixed ACPI description table (section 5.2.9).
fn fadt(dsdt: u64) -> FADT {
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::Wbinvd)
        .flag(Flags::Headless)
        .flag(Flags::ResetRegSup);
    fadt.iapc_boot_arch = BOOT_ARCHITECTURE.into();
    fadt.reset_reg = register(RESET_CONTROL);
    fadt.reset_value = FULL_RESET_VALUE;
    fadt.sleep_control_reg = register(SLEEP_CONTROL);
    fadt.sleep_status_reg = register(SLEEP_STATUS);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(*b"VBTS\0\0\0\0").into();
    fadt.finalize()
}

/// Multiple APIC description table (section 5.2.12). ISA IRQ *n* is input *n* of the I/O APIC,
/// which kernels assume without an override.
fn madt(processors: u8) -> Sdt {
    let mut madt = Sdt::new(*b"APIC", 36, 5, OEM, OEM_TABLE, OEM_REVISION);
    madt.append_slice(&(LAPIC as u32).to_le_bytes());
    madt.append_slice(&PCAT_COMPAT.to_le_bytes());
    for id in 0..processors {
        madt.append_slice(&bytes(&ProcessorLocalApic::new(
            id,
            id,
            EnabledStatus::Enabled,
        )));
    }
    madt.append_slice(&bytes(&IoApic::new(processors, IOAPIC as u32, 0)));
    madt.append_slice(&LOCAL_APIC_NMI);
    madt
}

/// Differentiated system description table (section 5.2.11.1): the devices that no other table has.
fn dsdt(gsis: &[u8]) -> Sdt {
    let mut devices = Vec::new();
    let mut add = |name: &str, id: &dyn Aml, unit: u8, resources: Vec<&dyn Aml>| {
        Device::new(
            name.into(),
            vec![
                &Name::new("_HID".into(), id),
                &Name::new("_UID".into(), &unit),
                &Name::new("_CRS".into(), &ResourceTemplate::new(resources)),
            ],
        )
        .to_aml_bytes(&mut devices);
    };
    add(
        "COM1",
        &EISAName::new("PNP0501"),
        0,
        vec![&IO::new(COM1, COM1, 1, 8), &edge(COM1_GSI)],
    );
    add(
        "RTC_",
        &EISAName::new("PNP0B00"),
        0,
        vec![&IO::new(RTC, RTC, 1, 2), &edge(RTC_GSI)],
    );
    for (n, gsi) in (0..=u8::MAX).zip(gsis) {
        let base = VIRTIO_BASE + u64::from(n) * VIRTIO_STRIDE;
        add(
            &format!("VR{n:02X}"),
            &"LNRO0005",
            n,
            vec![
                &Memory32Fixed::new(true, base as u32, VIRTIO_STRIDE as u32),
                &Interrupt::new(true, false, false, false, (*gsi).into()),
            ],
        );
    }
    power_button(&mut devices);

    let mut dsdt = Sdt::new(*b"DSDT", 36, 2, OEM, OEM_TABLE, OEM_REVISION);
    dsdt.append_slice(&Scope::raw("\\_SB_".into(), devices));
    let s5 = Package::new(vec![&SLEEP_TYPE_S5]);
    dsdt.append_slice(&bytes(&Name::new("_S5_".into(), &s5)));
    dsdt
}

/// The interrupt of a device on the ISA bus.
fn edge(gsi: u32) -> Interrupt {
    Interrupt::new(true, true, false, false, gsi)
}

/// A control method power button (section 4.8.3.2.2), and the generic event device (section 5.6.9)
/// whose interrupt signals it.
fn power_button(devices: &mut Vec<u8>) {
    let id = EISAName::new("PNP0C0C");
    let button = Name::new("_HID".into(), &id);
    Device::new("PWRB".into(), vec![&button]).to_aml_bytes(devices);
    // The device has one interrupt, so the method ignores its argument, the interrupt's number.
    let target = Path::new("PWRB");
    let pressed = Notify::new(&target, &0x80u8);
    Device::new(
        "GED_".into(),
        vec![
            &Name::new("_HID".into(), &"ACPI0013"),
            &Name::new(
                "_CRS".into(),
                &ResourceTemplate::new(vec![&edge(POWER_BUTTON_GSI)]),
            ),
            &Method::new("_EVT".into(), 1, true, vec![&pressed]),
        ],
    )
    .to_aml_bytes(devices);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::EXTENDED_MEMORY;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |s, b| s.wrapping_add(*b))
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    /// The table at a guest-physical address, after a check of its checksum.
    fn table(tables: &[u8], address: u64) -> &[u8] {
        let at = (address - ACPI_TABLES) as usize;
        let len = u32::from_le_bytes(*tables[at + 4..].first_chunk().unwrap());
        let table = &tables[at..at + len as usize];
        assert_eq!(sum(table), 0, "{:?}", &table[..4].escape_ascii());
        table
    }

    /// The FADT, the MADT and the DSDT, found through the RSDP like a kernel does.
    fn find(tables: &[u8]) -> [&[u8]; 3] {
        assert_eq!(&tables[..8], b"RSD PTR ");
        assert_eq!((sum(&tables[..20]), sum(&tables[..36])), (0, 0));
        let xsdt = table(tables, u64_at(tables, 24));
        assert_eq!((&xsdt[..4], xsdt.len()), (&b"XSDT"[..], 36 + 16));
        let (fadt, madt) = (
            table(tables, u64_at(xsdt, 36)),
            table(tables, u64_at(xsdt, 44)),
        );
        let dsdt = table(tables, u64_at(fadt, 140));
        [fadt, madt, dsdt]
    }

    fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
        bytes.windows(wanted.len()).position(|w| w == wanted)
    }

    #[test]
    fn every_table_is_found_and_fits() {
        for (processors, devices) in [(1, 0), (8, 10), (u8::MAX, 255)] {
            let tables = build(processors, &vec![9; devices]);
            assert!(tables.len() as u64 <= EXTENDED_MEMORY - ACPI_TABLES);
            let [fadt, madt, dsdt] = find(&tables);
            assert_eq!(
                [&fadt[..4], &madt[..4], &dsdt[..4]],
                [b"FACP", b"APIC", b"DSDT"]
            );
        }
    }

    #[test]
    fn the_madt_has_the_processors_and_the_io_apic() {
        let tables = build(3, &[]);
        let [_, madt, _] = find(&tables);
        let mut entries = Vec::new();
        let mut rest = &madt[44..];
        while let [kind, len, ..] = *rest {
            entries.push((kind, rest[3]));
            rest = &rest[usize::from(len)..];
        }
        assert_eq!(entries, [(0, 0), (0, 1), (0, 2), (1, 0), (4, 0)]);
    }

    #[test]
    fn each_virtio_device_has_its_registers_and_its_interrupt() {
        let tables = build(1, &[5, 6]);
        let [_, _, dsdt] = find(&tables);
        for (n, gsi) in [(0u32, 5), (1, 6)] {
            let at = position(dsdt, format!("VR{n:02X}").as_bytes()).unwrap();
            let device = &dsdt[at..];
            assert!(position(device, b"LNRO0005").unwrap() < 16);
            // Memory32Fixed, writable: base and length (section 6.4.3.4).
            let mut memory = vec![0x86, 9, 0, 1];
            memory.extend((0xD000_0000 + n * 0x1000).to_le_bytes());
            memory.extend(0x1000u32.to_le_bytes());
            let at = position(device, &memory).unwrap();
            // Extended interrupt: consumer, level, active high, exclusive (section 6.4.3.6).
            let interrupt = [0x89, 6, 0, 0b0001, 1, gsi, 0, 0, 0];
            assert_eq!(device[at + 12..][..9], interrupt);
        }
        assert_eq!(position(dsdt, b"VR02"), None);
    }

    #[test]
    fn the_fadt_has_the_registers_for_reset_and_sleep() {
        let tables = build(1, &[]);
        let [fadt, _, dsdt] = find(&tables);
        let flags = u32::from_le_bytes(*fadt[112..].first_chunk().unwrap());
        assert_eq!(flags & (1 << 20 | 1 << 10), 1 << 20 | 1 << 10);
        assert_eq!(fadt[116..128], [1, 8, 0, 1, 0xF9, 0x0C, 0, 0, 0, 0, 0, 0]);
        assert_eq!(fadt[128], 0x06);
        assert_eq!(u64_at(fadt, 248), u64::from(SLEEP_CONTROL));
        assert_eq!(u64_at(fadt, 260), u64::from(SLEEP_STATUS));
        // Name (_S5_, Package (1) {5}).
        assert!(position(dsdt, b"\x08_S5_\x12\x04\x01\x0A\x05").is_some());
    }
}
