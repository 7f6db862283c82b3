//! Native code against the interpreter. With the variable `VBTS_TEST_JIT` all other tests run
//! native code, too.

use crate::common::{DATA, Guest, KERNEL};
use iced_x86::code_asm::*;
use vbts_cpu::{Exit, NativeOptions, SoftCpu};

/// A processor in the state of that of `guest`, which translates each block at once.
fn native(guest: &Guest, check: bool, memory: usize) -> SoftCpu {
    let mut soft = guest.second_processor();
    soft.translate_blocks(NativeOptions {
        threshold: 1,
        check,
        memory,
    })
    .unwrap();
    soft
}

/// Calls, loops, flags that live long, and memory, for ever.
fn busy() -> Guest {
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner, mut function) =
            (a.create_label(), a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        a.set_label(&mut outer)?;
        a.mov(ecx, 5)?;
        a.set_label(&mut inner)?;
        a.add(rax, rcx)?;
        a.adc(qword_ptr(rbx), rax)?;
        a.call(function)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        a.jmp(outer)?;
        a.set_label(&mut function)?;
        a.push(r15)?;
        a.mov(r15, qword_ptr(rbx + rcx * 8))?;
        a.shl(r15, cl)?;
        a.xor(qword_ptr(rbx + 64), r15)?;
        a.setp(dl)?;
        a.imul_2(rax, r15)?;
        a.pushfq()?;
        a.pop(r14)?;
        a.add(qword_ptr(rbx + 72), r14)?;
        a.pop(r15)?;
        a.ret()
    });
    guest
}

#[test]
fn runs_end_at_the_same_instruction_in_the_same_state() {
    for check in [false, true] {
        let (guest, other) = (busy(), busy());
        let mut interpreter = guest.second_processor();
        let mut native = native(&other, check, 1 << 20);
        for deadline in (1..2000).step_by(7) {
            assert_eq!(interpreter.run(deadline), Exit::Deadline);
            assert_eq!(native.run(deadline), Exit::Deadline);
            assert_eq!(interpreter.cpu.state(), native.cpu.state(), "at {deadline}");
        }
        assert!(native.native_code().blocks > 0);
        for at in (DATA..DATA + 80).step_by(8) {
            assert_eq!(guest.read(at), other.read(at), "{at:#x}");
        }
    }
}

#[test]
fn full_memory_is_cleared() {
    const BLOCKS: u64 = 1000;
    const ROUNDS: u32 = 20;
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        let mut again = a.create_label();
        a.mov(ecx, ROUNDS)?;
        a.set_label(&mut again)?;
        for _ in 0..BLOCKS {
            let mut next = a.create_label();
            a.inc(rax)?;
            a.jmp(next)?;
            a.set_label(&mut next)?;
        }
        a.dec(ecx)?;
        a.jnz(again)?;
        a.hlt()
    });
    let mut native = native(&guest, false, 0);
    assert!(matches!(native.run(u64::MAX), Exit::Halt { .. }));
    assert_eq!(native.cpu.state().gpr[0], BLOCKS * u64::from(ROUNDS));
    assert!(native.native_code().flushes > 0);
}
