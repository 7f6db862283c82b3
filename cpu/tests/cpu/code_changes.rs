//! Code that changes under the processor, and instructions that stop half-way: self-modifying code,
//! code that a device writes or a new mapping brings, instructions across pages, repeated strings
//! that fault or are interrupted.

use crate::common::{DATA, Guest, KERNEL, RAM, USER, assemble, handler, page_table_entry};
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use vbts_cpu::state::gpr::{RAX, RBX, RCX, RDI, RSI};
use vbts_cpu::state::vector::{GP, PF};
use vbts_cpu::state::{self, Activity};

/// A page of kernel memory for a second piece of code.
const OTHER: u64 = 0x3_0000;

/// `mov eax, value; ret`.
fn function(value: u32) -> Vec<u8> {
    assemble(64, 0, |a| {
        a.mov(eax, value)?;
        a.ret()
    })
}

#[test]
fn a_store_to_the_next_instruction_takes_effect_at_once() {
    let mut g = Guest::new();
    let end = g.assemble(KERNEL, |a| {
        // The immediate of the next instruction.
        let immediate = MemoryOperand::with_base_displ(Register::RIP, KERNEL as i64 + 11);
        a.add_instruction(Instruction::with2(
            Code::Mov_rm32_imm32,
            immediate,
            0x1234_5678,
        )?)?; // +0
        a.mov(eax, 0)?; // +10
        a.hlt()
    });
    g.run_to(end);
    assert_eq!(g.soft.cpu.gpr[RAX], 0x1234_5678);
}

#[test]
fn code_that_has_run_can_be_rewritten() {
    let mut g = Guest::kernel(|a| {
        let (mut again, mut done) = (a.create_label(), a.create_label());
        a.mov(rbx, 1000u64)?;
        a.xor(r8d, r8d)?;
        a.set_label(&mut again)?;
        a.mov(rcx, OTHER)?;
        a.call(rcx)?;
        a.add(r8d, eax)?;
        // The function returns one more each time.
        a.inc(dword_ptr(rcx + 1))?;
        a.dec(rbx)?;
        a.jz(done)?;
        a.jmp(again)?;
        a.set_label(&mut done)?;
        a.hlt()
    });
    g.write_bytes(OTHER, &function(1));
    g.run();
    assert_eq!(g.soft.cpu.gpr[8], (1..=1000).sum::<u64>());
}

#[test]
fn data_beside_code_can_be_written() {
    let mut g = Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(rcx, 100u64)?;
        a.mov(rdi, KERNEL + 0x800)?;
        a.set_label(&mut again)?;
        a.add(qword_ptr(rdi), rcx)?;
        a.dec(rcx)?;
        a.jnz(again)?;
        a.hlt()
    });
    g.run();
    assert_eq!(g.read(KERNEL + 0x800), (1..=100).sum::<u64>());
}

#[test]
fn a_repeated_store_can_overwrite_code_that_has_run() {
    let mut g = Guest::kernel(|a| {
        a.mov(rdx, OTHER)?;
        a.call(rdx)?;
        a.mov(r8d, eax)?;
        a.mov(rsi, DATA)?;
        a.mov(rdi, OTHER - 8)?;
        a.mov(ecx, 32)?;
        a.rep().movsb()?;
        a.call(rdx)?;
        a.hlt()
    });
    g.write_bytes(OTHER, &function(1));
    g.write_bytes(DATA + 8, &function(2));
    g.run();
    assert_eq!((g.soft.cpu.gpr[8], g.soft.cpu.gpr[RAX]), (1, 2));
    assert_eq!((g.soft.cpu.gpr[RCX], g.soft.cpu.gpr[RDI]), (0, OTHER + 24));
}

#[test]
fn an_instruction_across_two_pages_sees_changes_in_both() {
    let at = OTHER + 0xFFD;
    for patched in [at + 1, at + 4] {
        let mut g = Guest::kernel(|a| {
            let mut again = a.create_label();
            a.mov(rdx, at)?;
            a.mov(rcx, patched)?;
            a.mov(esi, 10)?;
            a.set_label(&mut again)?;
            a.call(rdx)?;
            a.add(r8, rax)?;
            a.inc(byte_ptr(rcx))?;
            a.dec(esi)?;
            a.jnz(again)?;
            a.hlt()
        });
        g.write_bytes(at, &function(0x0102_0304));
        g.run();
        let change = 1 << (8 * (patched - at - 1));
        let all: u64 = (0..10).map(|n| 0x0102_0304 + n * change).sum();
        assert_eq!(g.soft.cpu.gpr[8], all);
    }
}

/// Nothing else in the second page is executed. The first byte there is the third of the jump's
/// displacement.
#[test]
fn a_jump_across_two_pages_sees_changes_in_the_second() {
    const TARGETS: u64 = 8;
    let at = OTHER + 0xFFD;
    let run = |by_device: bool| {
        let mut g = Guest::kernel(|a| {
            let (mut again, mut unchanged) = (a.create_label(), a.create_label());
            a.mov(rdx, at)?;
            a.mov(rcx, at + 3)?;
            a.mov(esi, TARGETS as u32)?;
            a.set_label(&mut again)?;
            a.call(rdx)?;
            a.shl(r8, 8)?;
            a.add(r8, rax)?;
            a.cmp(dword_ptr(DATA), 0)?;
            a.jne(unchanged)?;
            a.inc(byte_ptr(rcx))?;
            a.set_label(&mut unchanged)?;
            a.dec(esi)?;
            a.jnz(again)?;
            a.hlt()
        });
        g.write(DATA, by_device.into());
        g.assemble(at, |a| a.jmp(USER));
        for n in 0..TARGETS {
            g.write_bytes(USER + (n << 16), &function(n as u32 + 1));
        }
        g
    };
    let mut g = run(false);
    g.run();
    assert_eq!(g.soft.cpu.gpr[8], 0x0102_0304_0506_0708);
    let mut g = run(true);
    for n in 0..TARGETS {
        g.update(|s| {
            s.rip = KERNEL;
            s.activity = Activity::Active;
        });
        g.run();
        assert_eq!(g.soft.cpu.gpr[8], 0x0101_0101_0101_0101 * (n + 1));
        let third = (g.read(at) >> 24) as u8;
        g.write_bytes(at + 3, &[third + 1]);
    }
}

#[test]
fn the_replacement_of_a_too_long_instruction_is_decoded() {
    let at = OTHER + 0xFFD;
    let mut g = Guest::kernel(|a| {
        a.mov(rdx, at)?;
        a.jmp(rdx)
    });
    // Prefixes, more of them than fit in an instruction.
    g.write_bytes(at, &[0x66; 16]);
    g.run_to_exception(GP, Some(0));
    // An instruction of two bytes lies across the two pages.
    g.assemble(at, |a| {
        for _ in 0..8 {
            a.add(byte_ptr(rax), al)?;
        }
        a.hlt()
    });
    g.update(|s| {
        s.rip = at;
        s.activity = Activity::Active;
        s.gpr[RAX] = DATA;
    });
    g.run_to(at + 17);
}

#[test]
fn an_instruction_that_reaches_into_a_missing_page_faults_there() {
    let at = USER + 0xFFD;
    let mut g = Guest::user(|a| {
        a.mov(rdx, at)?;
        a.jmp(rdx)
    });
    g.write_bytes(at, &function(1));
    g.page(USER + 0x1000, 0);
    let frame = g.run_to_exception(PF, Some(0x14));
    assert_eq!((frame.rip, g.soft.cpu.sys.cr2), (at, USER + 0x1000));
}

#[test]
fn code_that_a_device_has_written_is_decoded_again() {
    // The device writes the page at `OTHER`. The second instruction begins before it.
    for at in [OTHER, OTHER - 2] {
        let program = |value: u32| {
            assemble(64, at, |a| {
                a.mov(eax, value)?;
                a.hlt()
            })
        };
        let mut g = Guest::new();
        let end = at + program(0).len() as u64;
        g.write_bytes(at, &program(0x0100_0000));
        for value in [0x0100_0000, 0x0200_0000, 0x0300_0000] {
            let written = program(value);
            g.write_bytes(OTHER, &written[(OTHER - at) as usize..]);
            g.update(|s| {
                s.rip = at;
                s.activity = Activity::Active;
            });
            g.run_to(end);
            assert_eq!(g.soft.cpu.gpr[RAX], u64::from(value));
        }
    }
}

#[test]
fn a_new_mapping_executes_its_own_code() {
    const WINDOW: u64 = 0x3_8000;
    let mut g = Guest::kernel(|a| {
        a.mov(rdx, WINDOW)?;
        a.call(rdx)?;
        a.mov(r8d, eax)?;
        // The page-table entry's value is in RDI, its address in RSI.
        a.mov(qword_ptr(rsi), rdi)?;
        a.invlpg(byte_ptr(rdx))?;
        a.call(rdx)?;
        a.hlt()
    });
    g.write_bytes(WINDOW, &function(1));
    g.write_bytes(OTHER, &function(2));
    let entry = (g.page_entry(WINDOW) & 0xFFF) | OTHER;
    g.update(|s| {
        s.gpr[RDI] = entry;
        s.gpr[RSI] = page_table_entry(WINDOW);
    });
    g.run();
    assert_eq!((g.soft.cpu.gpr[8], g.soft.cpu.gpr[RAX]), (1, 2));
}

/// How a guest makes the processor forget a translation; R9: a linear address of the page.
type Forget = fn(&mut CodeAssembler) -> Result<(), IcedError>;

fn invlpg(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.invlpg(byte_ptr(r9))
}

fn mov_to_cr3(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, cr3)?;
    a.mov(cr3, rax)
}

fn mov_to_cr4(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, cr4)?;
    a.xor(rax, state::cr4::PGE as i32)?;
    a.mov(cr4, rax)?;
    a.xor(rax, state::cr4::PGE as i32)?;
    a.mov(cr4, rax)
}

/// Branches that have led to a page time and again, directly and not, lead to what is mapped there
/// now, or there is the rest of the instruction that they lead to.
#[test]
fn branches_follow_a_new_mapping() {
    const UPPER: u64 = 0xFFFF_8000_0000_0000;
    const GLOBAL: u64 = 1 << 8;
    const PRESENT: u64 = 1;
    const WRITABLE: u64 = 2;
    // A jump in the page before, whose mapping stays, leads to the last ones.
    const BEFORE: u64 = OTHER - 0x40;
    for (half, at, start) in [
        (0, OTHER, OTHER),
        (UPPER, OTHER, OTHER),
        (0, OTHER - 3, OTHER - 3),
        (UPPER, OTHER - 3, OTHER - 3),
        (0, OTHER - 3, BEFORE),
        (UPPER, OTHER - 3, BEFORE),
    ] {
        for (way, forget, global) in [
            ("INVLPG", invlpg as Forget, false),
            ("INVLPG", invlpg, true),
            ("MOV to CR3", mov_to_cr3, false),
            ("MOV to CR4", mov_to_cr4, true),
        ] {
            let flags = PRESENT | WRITABLE | if global { GLOBAL } else { 0 };
            let mut g = Guest::kernel(|a| {
                let (mut again, mut same) = (a.create_label(), a.create_label());
                a.mov(esi, 20)?;
                a.mov(rcx, half + start)?;
                a.mov(r9, half + OTHER)?;
                a.set_label(&mut again)?;
                a.call(start)?;
                a.mov(ebx, eax)?;
                a.call(rcx)?;
                a.cmp(esi, 2)?;
                a.jne(same)?;
                a.mov(rdi, page_table_entry(OTHER))?;
                a.mov(rax, DATA | flags)?;
                a.mov(qword_ptr(rdi), rax)?;
                forget(a)?;
                a.set_label(&mut same)?;
                a.dec(esi)?;
                a.jnz(again)?;
                a.hlt()
            });
            g.mirror(UPPER);
            g.assemble(BEFORE, |a| a.jmp(at));
            g.write_bytes(at, &function(0x1_0000));
            g.write_bytes(DATA + at - OTHER, &function(0x2_0000));
            g.page(OTHER - 0x1000, PRESENT | WRITABLE | GLOBAL);
            g.page(OTHER, flags);
            g.update(|s| {
                s.rip = half + KERNEL;
                s.sys.cr4 |= state::cr4::PGE;
            });
            g.run();
            let found = [g.soft.cpu.gpr[RBX], g.soft.cpu.gpr[RAX]];
            assert_eq!(
                found,
                [0x2_0000; 2],
                "{way}, {:#x}, global: {global}",
                half + at
            );
        }
    }
}

#[test]
fn a_repeated_string_that_faults_keeps_its_completed_iterations() {
    let mut g = Guest::user(|a| {
        a.mov(rsi, DATA)?;
        a.mov(rdi, DATA + 0x1FF0)?;
        a.mov(ecx, 0x40)?;
        a.rep().movsb()?;
        a.ud2()
    });
    g.write(DATA, 0x8877_6655_4433_2211);
    g.page(DATA + 0x2000, 0);
    let frame = g.run_to_exception(PF, Some(0x6));
    let cpu = &g.soft.cpu;
    assert_eq!(cpu.sys.cr2, DATA + 0x2000);
    assert_eq!(cpu.gpr[RCX], 0x30);
    assert_eq!(cpu.gpr[RSI], DATA + 0x10);
    assert_eq!(cpu.gpr[RDI], DATA + 0x2000);
    // mov rsi, mov rdi (10 bytes each), mov ecx (5).
    assert_eq!(frame.rip, USER + 25);
    assert_eq!(g.read(DATA + 0x1FF0), 0x8877_6655_4433_2211);
}

#[test]
fn a_repeated_string_is_interrupted_and_resumed() {
    const VECTOR: u8 = 0x50;
    const COUNT: u64 = 200_000;
    let mut g = Guest::kernel(|a| {
        a.mov(rdi, DATA)?;
        a.mov(rsi, DATA)?;
        a.mov(ecx, COUNT as u32)?;
        a.mov(al, i32::from(VECTOR))?;
        a.out(0x80, al)?;
        a.sti()?;
        // A source equal to the destination can't be done a page at a time.
        a.rep().movsb()?;
        a.hlt()
    });
    g.run();
    let cpu = &g.soft.cpu;
    assert_eq!(cpu.rip, handler(VECTOR) + 1);
    let left = cpu.gpr[RCX];
    assert!(left > 0 && left < COUNT, "{left} iterations left");
    assert_eq!(cpu.gpr[RDI], DATA + (COUNT - left));
}

/// A program that calls a function in each page from [`USER`] on, and then overwrites all of them
/// with one instruction; before that it executes `prepare`.
fn overwriting_functions(
    prepare: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Guest {
    let mut g = Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(rdi, USER)?;
        a.set_label(&mut again)?;
        a.call(rdi)?;
        a.add(rdi, 0x1000)?;
        a.cmp(rdi, RAM as i32)?;
        a.jne(again)?;
        a.mov(rdi, USER)?;
        a.mov(ecx, ((RAM - USER) / 8) as u32)?;
        prepare(a)?;
        a.rep().stosq()?;
        a.hlt()
    });
    for page in (USER..RAM).step_by(0x1000) {
        g.write_bytes(page, &function(1));
    }
    g
}

#[test]
fn a_repeated_store_over_code_of_many_pages_needs_little_stack() {
    const STACK: usize = 64 << 10;
    let mut g = overwriting_functions(|_| Ok(()));
    std::thread::scope(|scope| {
        let run = || {
            g.run();
        };
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn_scoped(scope, run).unwrap();
    });
    assert_eq!(g.soft.cpu.gpr[RDI], RAM);
    assert!((USER..RAM).step_by(0x1000).all(|page| g.read(page) == 1));
}

#[test]
fn a_repeated_store_over_code_of_many_pages_is_interrupted() {
    const VECTOR: u8 = 0x50;
    let mut g = overwriting_functions(|a| {
        a.mov(al, i32::from(VECTOR))?;
        a.out(0x80, al)?;
        a.sti()
    });
    g.run();
    let cpu = &g.soft.cpu;
    assert_eq!(cpu.rip, handler(VECTOR) + 1);
    // Where it stops does not depend on the code.
    assert_eq!(cpu.gpr[RDI], USER + (8 << 16));
    assert_eq!(cpu.gpr[RDI] + 8 * cpu.gpr[RCX], RAM);
}

#[test]
fn an_overlapping_copy_repeats_what_it_has_written() {
    let mut g = Guest::kernel(|a| {
        a.mov(rsi, DATA)?;
        a.mov(rdi, DATA + 1)?;
        a.mov(ecx, 0x1800)?;
        a.rep().movsb()?;
        a.hlt()
    });
    g.write(DATA, 0xAB);
    g.run();
    for at in (0..0x1800).step_by(8) {
        assert_eq!(g.read(DATA + at), 0xABAB_ABAB_ABAB_ABAB);
    }
}

#[test]
fn a_store_across_pages_is_complete_or_absent() {
    let mut g = Guest::user(|a| {
        a.mov(rdi, DATA + 0xFFC)?;
        a.mov(rax, u64::MAX)?;
        a.mov(qword_ptr(rdi), rax)?;
        a.ud2()
    });
    let read_only = 0x5;
    g.page(DATA + 0x1000, read_only);
    g.run_to_exception(PF, Some(0x7));
    assert_eq!(g.soft.cpu.sys.cr2, DATA + 0x1000);
    assert_eq!(g.read(DATA + 0xFF8), 0);
}
