//! The MP configuration table, in which a kernel without ACPI finds the APICs (MultiProcessor
//! Specification 1.4, chapter 4).

use crate::layout::{IOAPIC, LAPIC, MP_TABLE};

/// Inputs of the I/O APIC.
const IOAPIC_PINS: u8 = 24;
/// Lines of the ISA bus.
const ISA_IRQS: u8 = 16;
/// The cascade input of the first PIC. It has no interrupt of its own.
const CASCADE: u8 = 2;

/// Entry types (table 4-3).
const PROCESSOR: u8 = 0;
const BUS: u8 = 1;
const IO_APIC: u8 = 2;
const IO_INTERRUPT: u8 = 3;
const LOCAL_INTERRUPT: u8 = 4;

/// Interrupt types (table 4-10).
const INT: u8 = 0;
const NMI: u8 = 1;
const EXTINT: u8 = 3;

/// Polarity and trigger mode (table 4-10): those of the bus (ISA: edge-triggered, active high), or
/// level-triggered and active high.
const CONFORMING: u16 = 0;
const LEVEL_HIGH: u16 = 0b1101;

const ISA_BUS: u8 = 0;
const ALL_LOCAL_APICS: u8 = 0xFF;
/// Versions of the integrated APICs of the modelled processors.
const LAPIC_VERSION: u8 = 0x14;
const IOAPIC_VERSION: u8 = 0x11;

const FLOATING_POINTER: usize = 16;
const HEADER: usize = 44;

/// Builds the floating pointer structure and the table after it, for the address [`MP_TABLE`].
///
/// APIC IDs begin at 0, the boot processor. I/O APIC input *n* is ISA IRQ *n*; the inputs in
/// `level_gsis` are level-triggered.
pub fn build(processors: u8, level_gsis: &[u8]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut count: u16 = 0;
    let mut add = |bytes: &[u8]| {
        entries.extend_from_slice(bytes);
        count += 1;
    };
    for id in 0..processors {
        // Bit 0: enabled; bit 1: boot processor. The signature and the features stay zero: kernels
        // read CPUID instead.
        let flags = if id == 0 { 0b11 } else { 0b01 };
        let mut entry = [0; 20];
        entry[..4].copy_from_slice(&[PROCESSOR, id, LAPIC_VERSION, flags]);
        add(&entry);
    }
    add(&[BUS, ISA_BUS, b'I', b'S', b'A', b' ', b' ', b' ']);
    let ioapic_id = processors;
    let [a0, a1, a2, a3] = (IOAPIC as u32).to_le_bytes();
    add(&[IO_APIC, ioapic_id, IOAPIC_VERSION, 1, a0, a1, a2, a3]);
    for irq in (0..ISA_IRQS.min(IOAPIC_PINS)).filter(|irq| *irq != CASCADE) {
        let flags = if level_gsis.contains(&irq) {
            LEVEL_HIGH
        } else {
            CONFORMING
        };
        let [f0, f1] = flags.to_le_bytes();
        add(&[IO_INTERRUPT, INT, f0, f1, ISA_BUS, irq, ioapic_id, irq]);
    }
    for (lint, kind) in [(0, EXTINT), (1, NMI)] {
        add(&[
            LOCAL_INTERRUPT,
            kind,
            0,
            0,
            ISA_BUS,
            0,
            ALL_LOCAL_APICS,
            lint,
        ]);
    }

    let mut table = Vec::with_capacity(HEADER + entries.len());
    table.extend_from_slice(b"PCMP");
    table.extend_from_slice(&((HEADER + entries.len()) as u16).to_le_bytes());
    table.extend_from_slice(&[4, 0]); // specification revision 1.4, checksum
    table.extend_from_slice(b"VBTS    SOFT MACHINE");
    table.extend_from_slice(&[0; 6]); // no OEM table
    table.extend_from_slice(&count.to_le_bytes());
    table.extend_from_slice(&(LAPIC as u32).to_le_bytes());
    table.extend_from_slice(&[0; 4]); // no extended table
    table.extend_from_slice(&entries);
    set_checksum(&mut table, 7);

    let mut pointer = vec![0; FLOATING_POINTER];
    pointer[..4].copy_from_slice(b"_MP_");
    pointer[4..8].copy_from_slice(&((MP_TABLE as usize + FLOATING_POINTER) as u32).to_le_bytes());
    pointer[8] = (FLOATING_POINTER / 16) as u8;
    pointer[9] = 4;
    set_checksum(&mut pointer, 10);
    pointer.extend_from_slice(&table);
    pointer
}

/// Sets the byte `at` so that the sum of all bytes is zero.
fn set_checksum(bytes: &mut [u8], at: usize) {
    let sum = bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b));
    if let Some(place) = bytes.get_mut(at) {
        *place = place.wrapping_sub(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::BASE_MEMORY_END;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |s, b| s.wrapping_add(*b))
    }

    #[test]
    fn checksums_lengths_and_counts_agree() {
        for processors in [1, 2, 8] {
            let bytes = build(processors, &[5, 6]);
            assert!(bytes.len() as u64 <= BASE_MEMORY_END - MP_TABLE);
            let (pointer, table) = bytes.split_at(16);
            assert_eq!((sum(pointer), sum(table)), (0, 0));
            assert_eq!(
                usize::from(u16::from_le_bytes([table[4], table[5]])),
                table.len()
            );
            let (mut at, mut count) = (44, 0);
            while at < table.len() {
                at += if table[at] == PROCESSOR { 20 } else { 8 };
                count += 1;
            }
            assert_eq!(at, table.len());
            assert_eq!(count, u16::from_le_bytes([table[34], table[35]]));
        }
    }

    #[test]
    fn virtio_interrupts_are_level_triggered() {
        let bytes = build(1, &[5]);
        let irq = |n: u8| {
            let at = 16 + 44 + 20 + 8 + 8;
            bytes[at..]
                .chunks(8)
                .find(|e| e[0] == IO_INTERRUPT && e[5] == n)
                .unwrap()
        };
        assert_eq!(irq(5)[2], 0b1101);
        assert_eq!(irq(4)[2], 0);
        assert_eq!((irq(5)[6], irq(5)[7]), (1, 5));
    }
}
