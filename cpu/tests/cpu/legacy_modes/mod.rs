//! Real-address mode, protected mode, and the ways between them and IA-32e mode.
//!
//! `tests/tests/legacy_modes.rs` also runs these programs on QEMU and Bochs.

mod programs;

use self::programs::image::{Emit, Image, ROM, lcall16, lcall32, ljmp32, reported};
use crate::common::{Guest, INTERRUPT_PORT, NMI_PORT, assemble};
use iced_x86::code_asm::*;
use vbts_cpu::state::{SegAttr, cr0, gpr};
use vbts_cpu::{ArchState, Exit};
use vbts_testkit::processor::Host;

/// What a program has reported, and whether it ended in shutdown.
fn run(image: &Image) -> (Vec<u32>, bool) {
    let rom = &image.rom;
    let mut guest = Guest::new();
    if let Some(how) = image.excuse("qemu").filter(|_| Host::EmulatedSvm.is_here()) {
        guest.soft.soft_only(&format!("QEMU {how}"));
    }
    guest.clear();
    guest.write_bytes(0x10_0000 - ROM as u64, rom);
    let model = vbts_cpu::model("core2").unwrap();
    let mut state = ArchState::after_reset(model);
    // There is no RAM below 4 GBytes: the first instruction jumps to its copy in base memory.
    state.seg[1].base = 0xF_0000;
    guest.soft.cpu.load_state(&state);
    let exit = guest.run();
    let (words, unfinished) = reported(&guest.platform.reported()).unwrap();
    // A program that has reported its end may use shutdown for HLT.
    assert!(exit == Exit::Shutdown || !unfinished, "{exit:?} {words:x?}");
    (words, unfinished)
}

#[test]
fn programs_report_what_the_manual_says() {
    let mut bad = 0;
    for (name, image) in programs::all() {
        let (words, shutdown) = run(&image);
        if let Err(difference) = image.check(&words, shutdown) {
            bad += 1;
            eprintln!("{name} {difference}");
        }
    }
    assert_eq!(bad, 0, "programs are wrong");
}

/// Where [`real`] puts its program: 0800:0000.
const CODE: u64 = 0x8000;

/// A machine in real-address mode, as a start-up IPI leaves it, but with a stack below 7000.
fn real(program: impl FnOnce(&mut CodeAssembler) -> Emit) -> Guest {
    let mut guest = Guest::new();
    guest.clear();
    guest.write_bytes(CODE, &assemble(16, 0, program));
    let mut state = ArchState::after_reset(vbts_cpu::model("core2").unwrap());
    state.start_up((CODE >> 12) as u8);
    state.gpr[gpr::RSP] = 0x7000;
    guest.soft.cpu.load_state(&state);
    guest
}

/// Puts 16-bit code at a linear address.
fn assemble16(g: &mut Guest, at: u64, program: impl FnOnce(&mut CodeAssembler) -> Emit) {
    g.write_bytes(at, &assemble(16, at, program));
}

fn halt(guest: &mut Guest) -> u64 {
    let exit = guest.run();
    assert!(
        matches!(exit, Exit::Halt { .. }),
        "{exit:?} {:?}",
        guest.soft.cpu
    );
    guest.soft.cpu.rip
}

/// TR and BTS, with BTINT off.
const TRACE: u64 = 1 << 6 | 1 << 7;

#[test]
fn branches_in_real_mode_are_recorded_with_linear_addresses() {
    let mut g = real(|a| {
        let mut on = a.create_label();
        a.jmp(on)?;
        a.nop()?;
        a.set_label(&mut on)?;
        lcall16(a, 0x1000, 0x10)?;
        a.int(0x40)?;
        a.hlt()
    });
    assemble16(&mut g, 0x1_0010, |a| a.retf());
    g.write(4 * 0x40, 0x1000_0020);
    assemble16(&mut g, 0x1_0020, |a| a.iret());
    // DS and its buffer have their 64-bit format in every mode with DTES64 (SDM Vol. 3B 17.4.9).
    g.trace(TRACE, 16);
    assert_eq!(halt(&mut g), 11);
    let expected = [
        (CODE, CODE + 3),
        (CODE + 3, 0x1_0010),
        (0x1_0010, CODE + 8),
        (CODE + 8, 0x1_0020),
        (0x1_0020, CODE + 10),
    ];
    assert_eq!(g.records(), expected);
}

#[test]
fn interrupts_arrive_in_real_mode() {
    let mut g = real(|a| {
        a.sti()?;
        a.mov(al, 0x41)?;
        a.out(INTERRUPT_PORT, al)?;
        a.nop()?;
        a.cli()?;
        a.out(NMI_PORT, al)?;
        a.nop()?;
        a.hlt()
    });
    // Each counts in a register.
    g.write(4 * 0x41, 0x1000_0000);
    g.write(4 * 2, 0x1000_0010);
    assemble16(&mut g, 0x1_0000, |a| {
        a.inc(bx)?;
        a.iret()
    });
    assemble16(&mut g, 0x1_0010, |a| {
        a.inc(cx)?;
        a.iret()
    });
    g.update(|s| s.gpr[gpr::RDX] = 0);
    halt(&mut g);
    let gpr = g.soft.cpu.gpr;
    assert_eq!((gpr[gpr::RBX], gpr[gpr::RCX]), (1, 1));
    assert_eq!(gpr[gpr::RSP], 0x7000);
}

/// Protected mode without paging, at 0:9000.
fn protected(program: impl FnOnce(&mut CodeAssembler) -> Emit) -> Guest {
    let mut g = real(|_| Ok(()));
    g.write_bytes(0x9000, &assemble(32, 0x9000, program));
    g.write(0x508, 0x00CF_9B00_0000_FFFF);
    g.update(|s| {
        s.sys.cr0 |= cr0::PE;
        for (n, segment) in s.seg.iter_mut().enumerate() {
            (segment.selector, segment.base, segment.limit) = (8, 0, u32::MAX);
            segment.attr |= SegAttr::DB | SegAttr::G;
            if n == 1 {
                segment.attr |= SegAttr::CODE;
            }
        }
        (s.sys.gdtr.base, s.sys.gdtr.limit) = (0x500, 0x1F);
        (s.sys.idtr.base, s.sys.idtr.limit) = (0x1000, 0x1FF);
        s.rip = 0x9000;
    });
    g
}

/// An interrupt gate to `offset`.
fn gate(g: &mut Guest, vector: u64, offset: u64, kind: u64) {
    g.write(0x1000 + 8 * vector, offset | 8 << 16 | kind << 40);
}

#[test]
fn a_fault_in_the_delivery_of_an_interrupt_is_external() {
    // Not present, beyond the limit of the IDT, and of a type that it must not hold.
    for (vector, kind, fault, error) in [
        (0x31, 0x0E, 11, 0x31 << 3 | 3),
        (0x80, 0x8E, 13, 0x80 << 3 | 3),
        (0x32, 0x8C, 13, 0x32 << 3 | 3),
    ] {
        let mut g = protected(|a| {
            a.sti()?;
            a.out(INTERRUPT_PORT, al)?;
            a.nop()?;
            a.nop()
        });
        gate(&mut g, fault, 0xA000, 0x8E);
        if vector < 0x40 {
            gate(&mut g, vector, 0xB000, kind);
        }
        g.assemble(0xA000, |a| a.hlt());
        g.update(|s| s.gpr[gpr::RAX] = vector);
        assert_eq!(halt(&mut g), 0xA001, "vector {vector:#x}");
        let top = g.soft.cpu.gpr[gpr::RSP];
        assert_eq!(g.read(top) & 0xFFFF_FFFF, error, "vector {vector:#x}");
    }
}

/// Puts a task with flat segments at `tss`, and its descriptor of this type into the GDT of
/// [`protected`].
fn put_task(g: &mut Guest, selector: u64, kind: u64, tss: u64, eip: u64) {
    g.write(0x500 + selector, kind << 40 | tss << 16 | 0x67);
    g.write(tss + 0x20, 2 << 32 | eip);
    // ES and CS, SS and DS, FS and GS.
    for (at, high) in [(0x48, 8), (0x50, 0x20), (0x58, 0x20)] {
        g.write(tss + at, high << 32 | 0x20);
    }
    g.write(tss + 0x60, 0);
}

#[test]
fn a_task_switch_is_recorded_as_a_branch() {
    let mut g = protected(|a| {
        lcall32(a, 0x18, 0)?;
        a.hlt()
    });
    g.write_bytes(0xA000, &assemble(32, 0xA000, |a| a.iretd()));
    g.write(0x520, 0x00CF_9300_0000_FFFF);
    put_task(&mut g, 0x10, 0x8B, 0x2000, 0);
    put_task(&mut g, 0x18, 0x89, 0x2100, 0xA000);
    g.update(|s| {
        for n in [0, 2, 3, 4, 5] {
            s.seg[n].selector = 0x20;
        }
        s.sys.gdtr.limit = 0x27;
        (s.sys.tr.selector, s.sys.tr.base, s.sys.tr.limit) = (0x10, 0x2000, 0x67);
    });
    g.trace(TRACE, 16);
    assert_eq!(halt(&mut g), 0x9008);
    assert_eq!(g.records(), [(0x9000, 0xA000), (0xA000, 0x9007)]);
}

#[test]
fn a_descriptor_table_outside_ram_holds_no_valid_descriptor() {
    // Reads as ones: no code segment that could be entered.
    let mut g = protected(|a| ljmp32(a, 8, 0));
    gate(&mut g, 13, 0xA000, 0x8E);
    g.update(|s| s.sys.gdtr.base = 0xFFFF_FFF0);
    assert_eq!(g.run(), Exit::Shutdown);
}

#[test]
fn linear_addresses_wrap_at_4_gbytes() {
    let mut g = protected(|a| {
        a.mov(eax, dword_ptr(0x100))?;
        a.hlt()
    });
    g.write(0x0, 0x1234_5678);
    g.update(|s| s.seg[3].base = 0xFFFF_FF00);
    halt(&mut g);
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 0x1234_5678);
}
