//! Instructions with LOCK: atomic among processors that run at the same time, and without a lock of
//! the host's where none do.

use std::time::{Duration, Instant};

use iced_x86::code_asm::*;
use vbts_cpu::NativeOptions;

use crate::common::{DATA, Guest, run_to_halt};

/// Two threads add with LOCK to one cell, each on a processor of its own: nothing is lost.
#[test]
fn locked_instructions_are_atomic() {
    const TIMES: u64 = 20_000;
    type Program = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;
    let table: [(&str, u64, Program); 9] = [
        ("BTS of a bit string", 0, |a| {
            // Bit 64, which is behind the operand, is a lock.
            let (mut again, mut taken) = (a.create_label(), a.create_label());
            a.mov(ecx, 64)?;
            a.set_label(&mut again)?;
            a.lock().bts(qword_ptr(rdi), rcx)?;
            a.jnc(taken)?;
            a.pause()?;
            a.jmp(again)?;
            a.set_label(&mut taken)?;
            a.inc(qword_ptr(rdi))?;
            a.lock().btr(qword_ptr(rdi), rcx)
        }),
        ("ADD", 0, |a| a.lock().add(qword_ptr(rdi), 1)),
        ("XADD, not aligned", 3, |a| {
            a.mov(eax, 1)?;
            a.lock().xadd(dword_ptr(rdi), eax)
        }),
        ("INC, across cache lines", 61, |a| {
            a.lock().inc(dword_ptr(rdi))
        }),
        ("ADD, carries across cache lines", 63, |a| {
            a.lock().add(qword_ptr(rdi), 1)
        }),
        ("ADD, across pages", 0xFFD, |a| {
            a.lock().add(dword_ptr(rdi), 1)
        }),
        ("ADC", 0, |a| {
            a.stc()?;
            a.lock().adc(qword_ptr(rdi), 0)
        }),
        ("CMPXCHG", 2, |a| {
            let mut again = a.create_label();
            // An instruction takes one label.
            a.nop()?;
            a.set_label(&mut again)?;
            a.mov(ax, word_ptr(rdi))?;
            a.lea(edx, ptr(rax + 1))?;
            a.lock().cmpxchg(word_ptr(rdi), dx)?;
            a.jnz(again)
        }),
        ("CMPXCHG16B", 0, |a| {
            let mut again = a.create_label();
            a.mov(rax, qword_ptr(rdi))?;
            a.mov(rdx, qword_ptr(rdi + 8))?;
            a.set_label(&mut again)?;
            a.lea(rbx, ptr(rax + 1))?;
            a.mov(rcx, rdx)?;
            a.lock().cmpxchg16b(xmmword_ptr(rdi))?;
            a.jnz(again)
        }),
    ];
    for (name, offset, program) in table {
        let build = |a: &mut CodeAssembler| {
            let mut again = a.create_label();
            a.mov(rdi, DATA + offset)?;
            a.mov(r8, TIMES)?;
            a.set_label(&mut again)?;
            program(a)?;
            a.dec(r8)?;
            a.jnz(again)?;
            a.hlt()
        };
        for native_code in [false, true] {
            let guest = Guest::kernel(build);
            let (mut first, mut second) = (guest.one_of_two(), guest.one_of_two());
            if native_code {
                for soft in [&mut first, &mut second] {
                    soft.translate_blocks(NativeOptions::default()).unwrap();
                }
            }
            std::thread::scope(|scope| {
                scope.spawn(|| run_to_halt(&mut second));
                run_to_halt(&mut first);
            });
            let sum = guest.read(DATA + offset);
            let expected = 2 * TIMES;
            let mask = if name == "CMPXCHG" { 0xFFFF } else { u64::MAX };
            assert_eq!(sum & mask, expected & mask, "{name}, {native_code}");
        }
    }
}

/// One thread adds across cache lines, another to bytes beside the operand in the same words.
#[test]
fn a_lock_across_cache_lines_changes_no_other_bytes() {
    const TIMES: u64 = 20_000;
    let (split, low, high) = (DATA + 62, DATA + 56, DATA + 66);
    let guest = Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(rdi, split)?;
        a.mov(r8, TIMES)?;
        a.set_label(&mut again)?;
        a.lock().add(dword_ptr(rdi), 1)?;
        a.lock().add(word_ptr(low), 1)?;
        a.lock().add(word_ptr(high), 1)?;
        a.dec(r8)?;
        a.jnz(again)?;
        a.hlt()
    });
    let (mut first, mut second) = (guest.one_of_two(), guest.one_of_two());
    std::thread::scope(|scope| {
        scope.spawn(|| run_to_halt(&mut second));
        run_to_halt(&mut first);
    });
    for (la, mask) in [(split, 0xFFFF_FFFF), (low, 0xFFFF), (high, 0xFFFF)] {
        assert_eq!(guest.read(la) & mask, (2 * TIMES) & mask, "{la:#x}");
    }
}

/// The shortest of several times that a guest takes to add with LOCK to the word at `la`, in the
/// interpreter. It has `processors`, one of which runs.
fn time_to_add(la: u64, processors: u8) -> Duration {
    const RUNS: u32 = 5;
    const TIMES: u64 = 20_000;
    let mut guest = Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(rdi, la)?;
        a.mov(r8, TIMES)?;
        a.set_label(&mut again)?;
        a.lock().add(qword_ptr(rdi), 1)?;
        a.dec(r8)?;
        a.jnz(again)?;
        a.hlt()
    });
    if processors > 1 {
        let soft = guest.one_of_two();
        *guest.soft = soft;
    }
    // Native code of an aligned operand is no yardstick for what has to be interpreted.
    let options = NativeOptions {
        threshold: u32::MAX,
        ..NativeOptions::default()
    };
    guest.soft.translate_blocks(options).unwrap();
    let start = guest.soft.cpu.state();
    let runs = (0..RUNS).map(|_| {
        guest.soft.cpu.load_state(&start);
        let before = Instant::now();
        run_to_halt(&mut guest.soft);
        before.elapsed()
    });
    let shortest = runs.min().unwrap();
    assert_eq!(guest.read(la), u64::from(RUNS) * TIMES);
    shortest
}

/// A lock of the host's across cache lines stops all of the host's processors, for some thousand
/// cycles.
#[test]
fn a_lock_across_cache_lines_takes_no_lock_of_the_hosts() {
    for processors in [1, 2] {
        // Other programs of the host can slow down all runs of a round.
        let no_lock = (0..10).any(|_| {
            let aligned = time_to_add(DATA, processors);
            let split = time_to_add(DATA + 60, processors);
            println!("{processors}: {aligned:?}, across cache lines {split:?}");
            split < 8 * aligned
        });
        assert!(no_lock, "{processors}");
    }
}
