//! Runs of PUSH and POP in native code and in the interpreter, where the TLB does not find them.

use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::RSP;
use vbts_cpu::state::vector;
use vbts_testkit::Emit;

use crate::common::{DATA, Guest, KERNEL, handler};
use crate::native_code::{begin_rounds, compare, native};

/// Pushes and pops five times, and adds up what is on the stack.
fn five(a: &mut CodeAssembler) -> Emit {
    a.push(rax)?;
    a.push(rcx)?;
    a.push(r10)?;
    a.push(r15)?;
    a.push(r8)?;
    a.add(r8, qword_ptr(rsp + 8))?;
    a.adc(r8, qword_ptr(rsp + 24))?;
    a.pop(r10)?;
    a.pop(r15)?;
    a.pop(rax)?;
    a.pop(rdi)?;
    a.pop(r10)?;
    a.lea(r15, ptr(r15 + r8 + 1))
}

/// Within a page that is not in the TLB, and across the end of a page, at each of its slots and
/// between two, for ever.
#[test]
fn runs_do_what_they_do_in_the_interpreter() {
    compare(|| {
        let mut guest = Guest::new();
        guest.assemble(KERNEL, |a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.mov(rbx, DATA + 0x1000)?;
            a.mov(r14, rbx)?;
            begin_rounds(a, &mut outer, &mut inner)?;
            a.mov(rsp, rbx)?;
            five(a)?;
            a.lea(rsp, ptr(r14 + rcx * 8))?;
            five(a)?;
            a.add(r8, rsp)?;
            a.inc(r14)?;
            a.and(r14, -0x1A)?;
            a.dec(ecx)?;
            a.jnz(inner)?;
            a.jmp(outer)
        });
        guest
    });
}

/// A run that writes over the instructions behind it, for ever with others.
#[test]
fn a_run_changes_code() {
    const NOPS: u64 = 0x9090_9090_9090_9090;
    /// INC RAX, and NOP.
    const INC: u64 = 0x9090_9090_90C0_FF48;
    compare(|| {
        let mut guest = Guest::new();
        guest.assemble(KERNEL, |a| {
            let mut again = a.create_label();
            a.mov(rbx, KERNEL)?;
            a.mov(rdx, NOPS)?;
            a.mov(rsi, INC)?;
            a.set_label(&mut again)?;
            a.xchg(rdx, rsi)?;
            a.lea(rsp, ptr(rbx + 0x58))?;
            a.push(rdx)?;
            a.push(rsi)?;
            a.push(rsi)?;
            a.push(rsi)?;
            for _ in 0..50 {
                a.nop()?;
            }
            a.jmp(again)
        });
        guest
    });
}

/// The first instructions of a run have completed when a later one faults.
#[test]
fn a_run_faults_as_in_the_interpreter() {
    let run = |native_code: bool| {
        let mut guest = Guest::new();
        guest.page(DATA + 0x1000, 0);
        guest.assemble(KERNEL, |a| {
            a.mov(rsp, DATA + 0xFF0)?;
            a.mov(eax, 1)?;
            a.sub(eax, 2)?;
            a.pop(rcx)?;
            a.pop(r10)?;
            a.pop(rdx)?;
            a.pop(rax)?;
            a.ud2()
        });
        guest.write(DATA + 0xFF8, 7);
        let mut soft = match native_code {
            true => native(&guest, false, 1 << 20),
            false => guest.second_processor(),
        };
        soft.run(100);
        let state = soft.cpu.state();
        let pushed: [u64; 6] = std::array::from_fn(|n| guest.read(state.gpr[RSP] + 8 * n as u64));
        (pushed, state)
    };
    let (pushed, state) = run(true);
    assert_eq!((pushed, state.clone()), run(false));
    assert_eq!(state.rip, handler(vector::PF) + 1);
    // The stack pointer at the fault, and what the second POP has loaded.
    assert_eq!((pushed[4], state.gpr[10]), (DATA + 0x1000, 7));
}
