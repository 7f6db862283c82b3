//! The memory of the scratch machine: page tables, descriptor tables, and a handler for each
//! vector.
//!
//! Linear addresses equal physical ones, except for the local APIC's page, one page without RAM,
//! and one page that is not mapped.

use kvm_bindings::kvm_segment;

/// Size of RAM.
pub(super) const RAM: u64 = 0x4_0000;
pub(super) const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;
const PT: u64 = 0x4000;
pub(super) const GDT: u64 = 0x5000;
pub(super) const IDT: u64 = 0x6000;
pub(super) const TSS: u64 = 0x7000;
/// Address of handler 0. Handler *n* is [`HANDLER_SIZE`] * *n* bytes higher.
const HANDLERS: u64 = 0x8000;
const HANDLER_SIZE: u64 = 32;
/// Vectors that have a handler.
pub(super) const VECTORS: u64 = 0x80;
/// Entry point of SYSCALL and SYSENTER: it writes to [`SYSTEM_CALL_PORT`], then returns with
/// SYSRET.
pub(super) const SYSTEM_CALL: u64 = 0x9000;
/// Code at CPL 0.
pub const KERNEL_CODE: u64 = 0xA000;
/// Top of the stack at CPL 0; also RSP0 in the TSS, and IA32_SYSENTER_ESP.
pub const KERNEL_STACK: u64 = 0xC000;
/// Code at CPL 3.
pub const USER_CODE: u64 = 0x1_0000;
/// Top of the stack at CPL 3.
pub const USER_STACK: u64 = 0x1_2000;
/// Data that is accessible at CPL 3.
pub const USER_DATA: u64 = 0x1_3000;
/// Data that is accessible at CPL 0 only.
pub const KERNEL_DATA: u64 = 0xD000;
/// A page that one guest reads, and a page that it writes. No other guest accesses them.
pub const FRESH: [u64; 2] = [0xE000, 0xF000];
/// A page that is not present.
pub const ABSENT: u64 = 0x2_0000;
/// A page without RAM, mapped to its own address.
pub const DEVICE: u64 = 0x5_0000;
/// A page that is mapped to the local APIC's registers, and their physical address.
pub const LOCAL_APIC: (u64, u64) = (0x5_1000, 0xFEE0_0000);

/// The port to which the entry point of SYSCALL and SYSENTER writes. A handler writes its vector to
/// the port of the same number.
pub(super) const SYSTEM_CALL_PORT: u16 = 0x90;
/// A vector that CPL 3 may call with INT, as it may those of INT3 and INTO.
pub const GATE: u8 = 0x70;

/// Selectors, in the order that SYSCALL, SYSRET, SYSENTER and SYSEXIT require.
pub mod selector {
    #![allow(missing_docs)]
    pub const KERNEL_CS: u16 = 0x10;
    pub const KERNEL_SS: u16 = 0x18;
    pub const USER_CS_32: u16 = 0x20 | 3;
    pub const USER_SS: u16 = 0x28 | 3;
    pub const USER_CS: u16 = 0x30 | 3;
    pub const TSS: u16 = 0x40;
}

/// Segment descriptors of the GDT, and of a 64-bit TSS (SDM Vol. 3A 3.4.5, 7.2.3).
pub(super) const DESCRIPTORS: [u64; 10] = [
    0,
    0,
    0x00AF_9B00_0000_FFFF,
    0x00CF_9300_0000_FFFF,
    0x00CF_FB00_0000_FFFF,
    0x00CF_F300_0000_FFFF,
    0x00AF_FB00_0000_FFFF,
    0x00CF_F300_0000_FFFF,
    0x0000_8B00_0000_0067 | (TSS & 0xFF_FFFF) << 16,
    0,
];

/// Page-table entries: present, writable, user, accessed, dirty.
const P: u64 = 1;
const W: u64 = 1 << 1;
const U: u64 = 1 << 2;
/// Accessed.
pub const A: u64 = 1 << 5;
/// Dirty.
pub const D: u64 = 1 << 6;

/// Name of a vector (SDM Vol. 3A table 6-1).
pub(super) fn event_name(vector: u8) -> String {
    const NAMES: [&str; 20] = [
        "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "", "#TS", "#NP", "#SS",
        "#GP", "#PF", "", "#MF", "#AC", "#MC", "#XM",
    ];
    match NAMES.get(usize::from(vector)) {
        Some(name) if !name.is_empty() => (*name).into(),
        _ => format!("interrupt {vector:#x}"),
    }
}

/// Makes a segment register of its descriptor (SDM Vol. 3A 3.4.5). All bases are zero.
pub(super) fn segment(selector: u16, descriptor: u64) -> kvm_segment {
    let bits = |shift: u32, mask: u64| (descriptor >> shift & mask) as u8;
    let granular = bits(55, 1) != 0;
    kvm_segment {
        base: 0,
        limit: if granular {
            u32::MAX
        } else {
            (descriptor & 0xFFFF) as u32
        },
        selector,
        type_: bits(40, 15),
        s: bits(44, 1),
        dpl: bits(45, 3),
        present: bits(47, 1),
        avl: bits(52, 1),
        l: bits(53, 1),
        db: bits(54, 1),
        g: bits(55, 1),
        unusable: 0,
        padding: 0,
    }
}

/// The physical address of the page-table entry of a linear address.
pub(super) fn page_entry_address(address: u64) -> u64 {
    PT + (address >> 12) * 8
}

/// The tables and handlers, each with its address.
pub(super) fn image() -> Vec<(u64, Vec<u8>)> {
    let table = |entries: &[u64]| entries.iter().flat_map(|e| e.to_le_bytes()).collect();
    let mut pages = Vec::with_capacity(512);
    for page in 0..512u64 {
        let address = page << 12;
        pages.push(match address {
            ABSENT => 0,
            DEVICE => address | P | W | U,
            _ if address == LOCAL_APIC.0 => LOCAL_APIC.1 | P | W,
            _ if (USER_CODE..ABSENT).contains(&address) => address | P | W | U,
            _ if address < RAM => address | P | W,
            _ => 0,
        });
    }
    let mut gates = Vec::new();
    let mut handlers = Vec::new();
    for vector in 0..VECTORS {
        let at = HANDLERS + vector * HANDLER_SIZE;
        let dpl = if [3, 4, u64::from(GATE)].contains(&vector) {
            3
        } else {
            0
        };
        // 64-bit interrupt gate (SDM Vol. 3A 6.14.1).
        let attributes = (0x8E00 | dpl << 13) << 32 | u64::from(selector::KERNEL_CS) << 16;
        gates.extend([(at & 0xFFFF) | attributes | (at >> 16) << 48, 0]);
        handlers.extend(handler(vector as u8));
    }
    let mut tss = vec![0; 0x68];
    tss[4..12].copy_from_slice(&KERNEL_STACK.to_le_bytes());
    tss[0x66] = 0x68; // no I/O permission bitmap
    vec![
        (PML4, table(&[PDPT | P | W | U])),
        (PDPT, table(&[PD | P | W | U])),
        (PD, table(&[PT | P | W | U])),
        (PT, table(&pages)),
        (GDT, table(&DESCRIPTORS)),
        (IDT, table(&gates)),
        (TSS, tss),
        (HANDLERS, handlers),
        // out SYSTEM_CALL_PORT, al; sysretq
        (
            SYSTEM_CALL,
            vec![0xE6, SYSTEM_CALL_PORT as u8, 0x48, 0x0F, 0x07],
        ),
    ]
}

/// The handler of `vector`: `out vector, al`, then IRET. After a fault it returns to the address in
/// R15, otherwise to the interrupted instruction. The handler of #DB disables breakpoints.
fn handler(vector: u8) -> [u8; HANDLER_SIZE as usize] {
    let mut code = vec![0xE6, vector];
    if has_error_code(vector) {
        code.extend([0x48, 0x83, 0xC4, 0x08]); // add rsp, 8
    }
    if matches!(vector, 0 | 5..=8 | 10..=14 | 16 | 17 | 19) {
        code.extend([0x4C, 0x89, 0x3C, 0x24]); // mov [rsp], r15
    }
    if vector == 1 {
        // mov eax, DR7; mov dr7, rax. An instruction breakpoint is raised before its instruction
        // each time, so the handler disables it. QEMU's VMRUN does not load breakpoints, and KVM
        // may emulate the first MOV. The second MOV has to change DR7: otherwise QEMU's processor
        // keeps the breakpoint for all later guests.
        for dr7 in [0x408_u32, 0x400] {
            code.push(0xB8);
            code.extend(dr7.to_le_bytes());
            code.extend([0x0F, 0x23, 0xF8]);
        }
    }
    code.extend([0x48, 0xCF]); // iretq
    let mut padded = [0xF4; HANDLER_SIZE as usize];
    padded
        .iter_mut()
        .zip(code)
        .for_each(|(to, from)| *to = from);
    padded
}

/// Whether `vector` is an exception with an error code (SDM Vol. 3A table 6-1).
pub fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17)
}
