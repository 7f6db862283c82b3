//! Native code of blocks that are replaced: other native code must not lead to it any more.

use crate::common::{DATA, Guest, KERNEL, page_table_entry, run_to_halt};
use crate::native_code::native;
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::{RCX, RDX};
use vbts_cpu::{NativeOptions, SoftCpu, Topology};
use vbts_testkit::Emit;

/// A page whose last instruction goes on in the next page.
const PAGE: u64 = 0x3_0000;
/// Another linear page of [`PAGE`], and the page that is mapped behind that one.
const ALIAS: u64 = 0x3_4000;
const BEHIND_ALIAS: u64 = 0x3_6000;
const SIZE: u64 = 0x1000;
/// Page-table entry: present and writable.
const MAPPED: u64 = 3;

/// A processor in the state of that of `guest` that never translates.
fn interpreter(guest: &Guest) -> SoftCpu {
    let mut soft = guest.second_processor();
    soft.translate_blocks(NativeOptions {
        threshold: u32::MAX,
        ..NativeOptions::default()
    })
    .unwrap();
    soft
}

/// Runs a program in the interpreter and as native code until it halts. Returns both processors
/// after a comparison of their states.
fn run_both(program: impl Fn() -> Guest) -> [(Guest, SoftCpu); 2] {
    let run = |make: fn(&Guest) -> SoftCpu| {
        let guest = program();
        let mut soft = make(&guest);
        run_to_halt(&mut soft);
        (guest, soft)
    };
    let both = [run(interpreter), run(|guest| native(guest, false, 1 << 20))];
    assert_eq!(both[0].1.cpu.state(), both[1].1.cpu.state());
    assert!(both[1].1.native_code().blocks > 0);
    both
}

/// One page at two linear addresses, with different pages behind it: the instruction across its end
/// is a block that each of them replaces. Native code calls the operations of the instruction, RCL,
/// and their memory is used for something else meanwhile.
#[test]
fn aliases_with_different_next_pages_replace_a_block() {
    const AT: u64 = SIZE - 2;
    const ROUNDS: u32 = 8;
    /// Code that has not been decoded before each round: a block of 92 bytes, nearly as many as the
    /// two operations of a block of one instruction.
    const FRESH: u64 = 0x3_8000;
    const NOPS: u64 = 6;
    let [(_, soft), _] = run_both(|| {
        let mut g = Guest::kernel(|a| {
            let (mut round, mut again) = (a.create_label(), a.create_label());
            a.mov(r12d, ROUNDS)?;
            a.mov(rdx, FRESH)?;
            a.set_label(&mut round)?;
            a.mov(ebp, 5)?;
            a.mov(eax, 1)?;
            a.set_label(&mut again)?;
            a.clc()?;
            a.call(PAGE + AT)?;
            a.dec(ebp)?;
            a.jnz(again)?;
            a.clc()?;
            a.call(ALIAS + AT)?;
            a.call(rdx)?;
            a.add(rdx, 0x80)?;
            a.clc()?;
            a.call(PAGE + AT)?;
            a.add(r8, rax)?;
            a.dec(r12d)?;
            a.jnz(round)?;
            a.hlt()
        });
        g.map(ALIAS, PAGE, MAPPED);
        g.map(ALIAS + SIZE, BEHIND_ALIAS, MAPPED);
        // RCL EAX, 1 and RCL EAX, 4 with RET behind them.
        g.write_bytes(PAGE + AT, &[0xC1, 0xD0]);
        g.write_bytes(PAGE + SIZE, &[1, 0xC3]);
        g.write_bytes(BEHIND_ALIAS, &[4, 0xC3]);
        for round in 0..u64::from(ROUNDS) {
            // NOP with 14 prefixes, and a jump over nothing to RET.
            let nop = [&[0x41; 14][..], &[0x90]].concat();
            let block = [&nop.repeat(NOPS as usize)[..], &[0xEB, 0, 0xC3]].concat();
            g.write_bytes(FRESH + 0x80 * round, &block);
        }
        g
    });
    let all = u64::from(ROUNDS) * (1 << (5 + 4 + 1));
    assert_eq!(soft.cpu.state().gpr[8], all);
}

/// A page-table entry changes, with INVLPG. From then on, all jumps to an instruction that goes on
/// in that page lead to the new code.
#[test]
fn a_changed_translation_of_the_next_page_replaces_a_block() {
    const AT: u64 = PAGE + SIZE - 3;
    const NEXT: u64 = PAGE + SIZE;
    const NEW_NEXT: u64 = PAGE + 2 * SIZE;
    const CALLER: u64 = 0x3_8000;
    const UPPER: u64 = 0xFFFF_8000_0000_0000;
    /// It has the same slot of the cache of jump targets as [`AT`].
    const COLLIDES: u64 = 0x10_0ECD;
    /// Memory that is not in the TLB when the instruction is executed last.
    const FAR: u64 = DATA + 0x5000;
    let both = run_both(|| {
        let mut g = Guest::kernel(|a| {
            let mut again = a.create_label();
            a.mov(rbx, DATA)?;
            a.mov(ecx, 5)?;
            a.mov(eax, 1)?;
            a.set_label(&mut again)?;
            a.call(CALLER)?;
            a.dec(ecx)?;
            a.jnz(again)?;
            a.mov(rsi, page_table_entry(NEXT))?;
            a.mov(rdi, NEW_NEXT | MAPPED)?;
            a.mov(qword_ptr(rsi), rdi)?;
            a.mov(rdx, NEXT)?;
            a.invlpg(byte_ptr(rdx))?;
            for at in [UPPER + NEXT + 4, COLLIDES, AT] {
                a.mov(rdx, at)?;
                a.call(rdx)?;
            }
            a.mov(rbx, FAR)?;
            a.call(CALLER)?;
            a.hlt()
        });
        g.mirror(UPPER);
        // ADD [RBX + 0], RAX and ADD [RBX + 8], RAX with RET behind them.
        g.write_bytes(AT, &[0x48, 0x01, 0x83]);
        g.write_bytes(NEXT, &[0, 0, 0, 0, 0xC3]);
        g.write_bytes(NEW_NEXT, &[8, 0, 0, 0, 0xC3]);
        g.write_bytes(COLLIDES, &[0xC3]);
        g.assemble(CALLER, |a| a.jmp(AT));
        g
    });
    for (guest, _) in both {
        let sums = [DATA, DATA + 8, FAR, FAR + 8].map(|at| guest.read(at));
        assert_eq!(sums, [5, 1, 0, 1]);
    }
}

/// Another processor changes a function. When this one has executed the new code once, all of its
/// jumps lead there.
#[test]
fn a_function_that_another_processor_changes_is_replaced() {
    /// A jump to the function, in the same page.
    const JUMP: u64 = PAGE;
    const FUNCTION: u64 = PAGE + 0x800;
    const FLAG: u64 = DATA + 8;
    /// What the second processor runs.
    const CHANGE: u64 = 0x3_8000;
    for make in [interpreter, |guest: &Guest| native(guest, false, 1 << 20)] {
        let mut g = Guest::kernel(|a| {
            let (mut again, mut wait) = (a.create_label(), a.create_label());
            let (mut call, mut go_on) = (a.create_label(), a.create_label());
            a.xor(r9d, r9d)?;
            a.set_label(&mut call)?;
            a.mov(ebp, 5)?;
            a.set_label(&mut again)?;
            a.mov(eax, 1)?;
            a.clc()?;
            a.call(JUMP)?;
            a.dec(ebp)?;
            a.jnz(again)?;
            a.mov(r8d, eax)?;
            a.test(r9d, r9d)?;
            a.jnz(go_on)?;
            // It serializes: all code is compared with memory before it is used again.
            a.xor(eax, eax)?;
            a.cpuid()?;
            a.inc(r9d)?;
            a.jmp(call)?;
            a.set_label(&mut go_on)?;
            a.cmp(r9d, 1)?;
            let mut end = a.create_label();
            a.jne(end)?;
            a.set_label(&mut wait)?;
            a.cmp(qword_ptr(FLAG), 0)?;
            a.je(wait)?;
            a.mov(eax, 1)?;
            a.clc()?;
            a.call(FUNCTION)?;
            a.mov(r10d, eax)?;
            a.inc(r9d)?;
            a.jmp(call)?;
            a.set_label(&mut end)?;
            a.hlt()
        });
        g.assemble(JUMP, |a| a.jmp(FUNCTION));
        // RCL EAX, 1; RET
        g.write_bytes(FUNCTION, &[0xC1, 0xD0, 1, 0xC3]);
        g.assemble(CHANGE, |a| {
            a.mov(byte_ptr(FUNCTION + 2), 4)?;
            a.mov(qword_ptr(FLAG), 1)?;
            a.hlt()
        });
        let mut soft = make(&g);
        soft.cpu.set_topology(Topology { id: 0, count: 2 });
        // It waits for the flag long before.
        soft.run(1000);
        assert_eq!(soft.cpu.state().gpr[9], 1);
        g.update(|s| s.rip = CHANGE);
        run_to_halt(&mut g.second_processor());
        run_to_halt(&mut soft);
        let state = soft.cpu.state();
        let (by_jump, direct) = (state.gpr[8], state.gpr[10]);
        assert!([1 << 1, 1 << 4].contains(&direct), "{direct:#x}");
        assert_eq!(by_jump, direct);
    }
}

/// Native code that a write to CR3 has made invalid becomes valid again. Direct jumps that lead to
/// it need no entry in the table of targets of indirect jumps. An entry leads to new native code
/// when the old one has been replaced.
#[test]
fn only_indirect_jumps_have_entries_in_the_table_of_targets() {
    const ROUNDS: u64 = 50;
    /// In another page, so that a jump to it compares keys.
    const TARGET: u64 = PAGE;
    let entries = |round: fn(&mut CodeAssembler) -> Emit| {
        let mut g = Guest::kernel(|a| {
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)?;
            round(a)
        });
        g.assemble(TARGET, |a| {
            a.dec(ecx)?;
            a.jnz(KERNEL)?;
            a.hlt()
        });
        g.update(|s| (s.gpr[RCX], s.gpr[RDX]) = (ROUNDS, TARGET));
        let mut soft = native(&g, false, 1 << 20);
        run_to_halt(&mut soft);
        soft.native_code().jump_targets
    };
    assert_eq!(entries(|a| a.jmp(TARGET)), 0);
    assert_eq!(entries(|a| a.jmp(rdx)), 1);
    let changed_once = entries(|a| {
        let mut same = a.create_label();
        a.cmp(ecx, ROUNDS as i32 / 2)?;
        a.jne(same)?;
        a.mov(byte_ptr(rdx + 32), cl)?;
        a.set_label(&mut same)?;
        a.jmp(rdx)
    });
    assert_eq!(changed_once, 2);
}
