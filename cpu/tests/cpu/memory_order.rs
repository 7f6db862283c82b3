//! The order of one processor's loads and stores as another one sees it, where both run at the same
//! time (SDM Vol. 3A 8.2).

use std::sync::Barrier;

use iced_x86::code_asm::*;
use vbts_testkit::Emit;

use crate::common::{DATA, Guest, run_to_halt};

/// Number of places where both processors write one word and read the other's.
const PLACES: u64 = 200;
/// Distance in bytes from a processor's words to those of the other.
const OTHER: u64 = PLACES * 8;
/// Where the processors wait for each other before each place.
const MEETING: u64 = DATA + 2 * OTHER;
/// What they have read.
const READ: u64 = MEETING + OTHER;

/// Times that both processors read 0 where each has written before it read, with `between` in
/// between.
fn both_read_zero(between: impl Fn(&mut CodeAssembler) -> Emit) -> usize {
    const ROUNDS: usize = 10;
    let mut guest = Guest::kernel(|a| {
        let (mut wait, mut next) = (a.create_label(), a.create_label());
        // RDI: the own words. RSI: those of the other processor. RBP: what this one has read.
        a.xor(r8d, r8d)?;
        a.set_label(&mut next)?;
        a.lock().inc(qword_ptr(r8 * 8 + MEETING))?;
        a.set_label(&mut wait)?;
        a.cmp(qword_ptr(r8 * 8 + MEETING), 2)?;
        a.jb(wait)?;
        a.mov(qword_ptr(rdi + r8 * 8), 1)?;
        between(a)?;
        a.mov(r9, qword_ptr(rsi + r8 * 8))?;
        a.mov(qword_ptr(rbp + r8 * 8), r9)?;
        a.inc(r8)?;
        a.cmp(r8d, PLACES as i32)?;
        a.jb(next)?;
        a.hlt()
    });
    let state = guest.soft.cpu.state();
    let mut processors = [guest.one_of_two(), guest.one_of_two()];
    let mut found = 0;
    for _ in 0..ROUNDS {
        guest.write_bytes(DATA, &[0; (READ - DATA) as usize]);
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for (id, soft) in (0..).zip(&mut processors) {
                let mut state = state.clone();
                let words = |id: u64| DATA + OTHER * id;
                state.gpr[7] = words(id);
                state.gpr[6] = words(1 - id);
                state.gpr[5] = READ + OTHER * id;
                soft.cpu.load_state(&state);
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    run_to_halt(soft);
                });
            }
        });
        let read = |id: u64, place: u64| guest.read(READ + OTHER * id + place * 8);
        found += (0..PLACES)
            .filter(|&place| read(0, place) == 0 && read(1, place) == 0)
            .count();
    }
    found
}

#[test]
fn loads_do_not_pass_stores_before_a_fence() {
    println!("{} without a fence", both_read_zero(|_| Ok(())));
    assert_eq!(both_read_zero(|a| a.mfence()), 0, "MFENCE");
    let cpuid = |a: &mut CodeAssembler| {
        a.xor(eax, eax)?;
        a.cpuid()
    };
    assert_eq!(both_read_zero(cpuid), 0, "CPUID, which serializes");
    let exchange = |a: &mut CodeAssembler| a.xchg(qword_ptr(rsp - 8), r10);
    assert_eq!(both_read_zero(exchange), 0, "XCHG");
}
