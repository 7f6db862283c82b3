//! Watchpoints in a page that is written all the time: no write of the watched bytes is missed, of
//! whatever instruction, and no other one stops.
//!
//! The bytes that an instruction writes are those that change in memory when it runs alone.

use std::collections::BTreeSet;

use iced_x86::code_asm::*;
use vbts_cpu::state::{ArchState, cr4};
use vbts_cpu::{Exit, SoftCpu, StopPoints, WatchKind, Watchpoint};
use vbts_testkit::Emit;
use vbts_testkit::descriptor::Gate;

use crate::common::{DATA, Guest, KERNEL, handler};
use crate::native_code::native;

/// Bytes at [`DATA`] that the program writes, and some more.
const LEN: usize = 0x3000;
/// The stack, in the page at [`DATA`].
const STACK: u64 = DATA + 0x800;
/// Rounds of the program: its native code is made in the first.
const ROUNDS: u32 = 4;
/// A function that the program calls, also by the pointer at this offset from [`DATA`].
const FUNCTION: u64 = KERNEL + 0x3000;
const POINTER: i32 = 0x2F00;
/// Vector of the program's own interrupt.
const OWN: u8 = 0x60;

/// Changes each byte of RAX and XMM0.
fn change(a: &mut CodeAssembler) -> Emit {
    a.add(rax, r15)?;
    a.movq(xmm0, rax)?;
    a.punpcklqdq(xmm0, xmm0)
}

/// One instruction that writes memory at RBX, which is [`DATA`], or on the stack.
type Write = fn(&mut CodeAssembler) -> Emit;

const WRITES: &[Write] = &[
    |a| a.mov(byte_ptr(rbx + 0x10), al),
    |a| a.mov(word_ptr(rbx + 0x21), ax),
    |a| a.mov(dword_ptr(rbx + 0x33), eax),
    |a| a.mov(qword_ptr(rbx + 0x45), rax),
    |a| a.mov(qword_ptr(rbx + 0x58), r11),
    |a| a.movups(xmmword_ptr(rbx + 0x61), xmm0),
    |a| a.movaps(xmmword_ptr(rbx + 0x80), xmm0),
    |a| a.movhps(qword_ptr(rbx + 0x98), xmm0),
    |a| a.movnti(qword_ptr(rbx + 0xA0), rax),
    // Across the end of a page, which is watched on either side.
    |a| a.mov(qword_ptr(rbx + 0xFFD), rax),
    |a| a.mov(word_ptr(rbx + 0x1FFF), ax),
    |a| a.movups(xmmword_ptr(rbx + 0xFF8), xmm0),
    |a| a.add(qword_ptr(rbx + 0x1FFC), rax),
    |a| a.add(qword_ptr(rbx + 0xB0), rax),
    |a| a.not(dword_ptr(rbx + 0xBC)),
    |a| a.inc(byte_ptr(rbx + 0xC4)),
    |a| a.btc(dword_ptr(rbx + 0xC8), 5),
    |a| a.lock().xadd(qword_ptr(rbx + 0xD0), r12),
    |a| a.xchg(dword_ptr(rbx + 0xDC), r13d),
    |a| a.lock().add(word_ptr(rbx + 0xE2), ax),
    |a| a.lock().inc(qword_ptr(rbx + 0xFFB)),
    |a| a.lock().cmpxchg16b(xmmword_ptr(rbx + 0xF0)),
    |a| a.fst(qword_ptr(rbx + 0x108)),
    |a| a.fxsave(ptr(rbx + 0x200)),
    // Operands at a constant address, with a base that no host register contains, with an index,
    // and with a segment.
    |a| a.mov(qword_ptr(DATA + 0x121), rax),
    |a| a.add(byte_ptr(DATA + 0x12A), al),
    |a| a.mov(qword_ptr(DATA + 0xFF9), rax),
    |a| a.mov(qword_ptr(r10 + 0x131), rax),
    |a| a.mov(word_ptr(r10 + r8 * 2 + 0x13C), ax),
    |a| a.mov(dword_ptr(rbx + r8 * 4 + 0x141), eax),
    |a| a.mov(qword_ptr(rbx + 0x151).fs(), rax),
    |a| a.bts(dword_ptr(rbx + 0x160), r8d),
    |a| a.push(rax),
    |a| a.push(r14),
    |a| a.push(qword_ptr(rbx + 0x45)),
    |a| a.push(0x1234_5678),
    |a| a.pop(qword_ptr(rbx + 0x110)),
    |a| a.pushfq(),
    |a| a.enter(0x10, 0),
    |a| a.int(i32::from(OWN)),
];

/// Writes by string instructions, whose registers are set first.
const STRINGS: &[Write] = &[
    |a| a.stosq(),
    |a| a.rep().stosb(),
    |a| a.rep().stosq(),
    |a| a.movsd(),
    |a| a.rep().movsb(),
    |a| a.rep().movsq(),
];

fn program() -> Guest {
    let mut guest = Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(rbx, DATA)?;
        a.mov(r10, DATA)?;
        a.mov(r8d, 3)?;
        a.mov(r9d, ROUNDS)?;
        a.mov(r15, 0x1357_9BDF_1357_9BDF_u64)?;
        a.mov(r14, FUNCTION)?;
        a.fninit()?;
        a.fld1()?;
        a.set_label(&mut again)?;
        a.mov(rsp, STACK)?;
        for write in WRITES {
            change(a)?;
            write(a)?;
        }
        a.mov(rsp, STACK - 0x100)?;
        for _ in 0..2 {
            change(a)?;
            a.mov(qword_ptr(rsp - 8), rax)?;
            a.call(FUNCTION)?;
            a.mov(qword_ptr(rsp - 8), rax)?;
            a.call(r14)?;
            a.mov(qword_ptr(rsp - 8), rax)?;
            a.call(qword_ptr(rbx + POINTER))?;
        }
        for (at, string) in [0x300, 0x680, 0xFF5, 0x1101, 0x1FF3, 0x1800]
            .iter()
            .zip(STRINGS)
        {
            change(a)?;
            a.lea(rdi, ptr(rbx + *at))?;
            a.lea(rsi, ptr(rbx + 0x30))?;
            a.mov(ecx, 21)?;
            string(a)?;
        }
        a.dec(r9d)?;
        a.jnz(again)?;
        a.hlt()
    });
    // A run of PUSH, and a run of accesses with a branch in it, which is taken every other time.
    guest.assemble(FUNCTION, |a| {
        let mut odd = a.create_label();
        change(a)?;
        a.push(rax)?;
        a.push(r15)?;
        a.push(r14)?;
        change(a)?;
        a.mov(qword_ptr(rsp + 4), rax)?;
        a.test(al, 1)?;
        a.jnz(odd)?;
        a.mov(dword_ptr(rsp + 16), eax)?;
        a.set_label(&mut odd)?;
        a.mov(byte_ptr(rsp), al)?;
        a.add(rsp, 24)?;
        a.ret()
    });
    guest.write(DATA + POINTER as u64, FUNCTION);
    guest.gate(OWN, Gate::to(0));
    guest.assemble(handler(OWN), |a| {
        a.mov(qword_ptr(rsp - 16), rax)?;
        a.iretq()
    });
    guest.update(|s| s.sys.cr4 |= cr4::OSFXSR);
    guest
}

fn memory(guest: &Guest) -> Vec<u8> {
    let words = (DATA..DATA + LEN as u64).step_by(8);
    words.flat_map(|at| guest.read(at).to_le_bytes()).collect()
}

/// The time at which each instruction ends that changes memory, and the offsets of the bytes.
fn changes(guest: &Guest) -> Vec<(u64, BTreeSet<usize>)> {
    let mut soft = guest.second_processor();
    let (mut changes, mut before) = (Vec::new(), memory(guest));
    for time in 1.. {
        if matches!(soft.run(time), Exit::Halt { .. }) {
            break;
        }
        let after = memory(guest);
        let changed: BTreeSet<_> = (0..LEN).filter(|n| before[*n] != after[*n]).collect();
        if !changed.is_empty() {
            changes.push((time, changed));
        }
        before = after;
    }
    changes
}

/// The times of the stops at watchpoints for writes, of which `watched` has offsets and lengths.
fn stops(soft: &mut SoftCpu, start: &ArchState, watched: &[(usize, usize)]) -> BTreeSet<u64> {
    let watchpoint = |(at, len): &(usize, usize)| Watchpoint {
        address: DATA + *at as u64,
        len: *len as u64,
        kind: WatchKind::Write,
        space: None,
    };
    soft.cpu.load_state(start);
    soft.set_stop_points(StopPoints {
        watchpoints: watched.iter().map(watchpoint).collect(),
        ..StopPoints::default()
    });
    let mut times = BTreeSet::new();
    loop {
        match soft.run(u64::MAX) {
            Exit::Stop => assert!(times.insert(soft.cpu.now()), "two stops at once"),
            Exit::Halt { .. } => return times,
            exit => assert_eq!(exit, Exit::Deadline),
        }
    }
}

#[test]
fn each_write_of_watched_bytes_stops() {
    let guest = program();
    let start = guest.soft.cpu.state();
    let changes = changes(&guest);
    let mut edges = BTreeSet::new();
    for (_, changed) in &changes {
        let (first, last) = (changed.first().unwrap(), changed.last().unwrap());
        edges.extend([
            (first.saturating_sub(1), 1),
            (*first, 1),
            (*last, 1),
            (last + 1, 1),
        ]);
        edges.extend([(first.saturating_sub(3), 4), (*last, 8)]);
    }
    edges.extend([(0, LEN), (0xFFF, 2), (POINTER as usize, 8)]);
    assert!(
        changes.len() > 200 && edges.len() > 200,
        "{} {}",
        changes.len(),
        edges.len()
    );
    let mut interpreter = guest.second_processor();
    let mut machine_code = native(&guest, false, 1 << 20);
    let mut hits = 0;
    for (at, len) in edges {
        let watched = [(at, len)];
        let stops = [&mut interpreter, &mut machine_code].map(|soft| stops(soft, &start, &watched));
        assert_eq!(stops[0], stops[1], "{at:#x} {len}");
        let expected = changes
            .iter()
            .filter(|(_, changed)| changed.range(at..at + len).next().is_some());
        for (time, _) in expected {
            assert!(stops[0].contains(time), "{at:#x} {len}: no stop at {time}");
            hits += 1;
        }
    }
    assert!(
        hits > 2000 && machine_code.native_code().blocks > 0,
        "{hits}"
    );
}

/// Bytes between those that the program writes, in pages that it writes all the time.
#[test]
fn writes_beside_a_watchpoint_do_not_stop() {
    let guest = program();
    let start = guest.soft.cpu.state();
    let mut soft = native(&guest, false, 1 << 20);
    for unwritten in [0, 0x50, 0x118, 0x3FC, POINTER as usize + 8] {
        assert_eq!(stops(&mut soft, &start, &[(unwritten, 4)]), BTreeSet::new());
    }
}

/// Writes between the watched bytes do not stop, and a write of any of them does.
#[test]
fn several_watchpoints_are_compared_one_by_one() {
    let guest = program();
    let start = guest.soft.cpu.state();
    let mut soft = native(&guest, false, 1 << 20);
    let one = |soft: &mut SoftCpu, at| stops(soft, &start, &[(at, 1)]);
    let each = [one(&mut soft, 0x10), one(&mut soft, 0x1800)];
    let watched = [(0x1800, 1), (0x118, 4), (0x10, 1), (0, 1)];
    let all = stops(&mut soft, &start, &watched);
    assert!(each.iter().all(|times| !times.is_empty()));
    assert_eq!(all, each.into_iter().flatten().collect());
}
