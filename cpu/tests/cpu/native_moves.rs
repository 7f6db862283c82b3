//! Runs of accesses at one base register in native code and in the interpreter.

use iced_x86::code_asm::*;
use vbts_cpu::state::vector;
use vbts_testkit::Emit;

use crate::common::{DATA, Guest, KERNEL, handler};
use crate::native_code::{begin_rounds, compare, native};

/// Moves of each size from and to the memory around RBX, with other instructions between them.
fn moves(a: &mut CodeAssembler) -> Emit {
    a.mov(rsi, qword_ptr(rbx - 8))?;
    a.mov(r10, qword_ptr(rbx + 9))?;
    a.add(rsi, rdx)?;
    a.mov(qword_ptr(rbx + 1), r10)?;
    a.movzx(r15d, byte_ptr(rbx))?;
    a.mov(ah, byte_ptr(rbx + 3))?;
    a.xor(edx, esi)?;
    a.mov(byte_ptr(rbx + 7), ah)?;
    a.mov(word_ptr(rbx + 4), 0x1234)?;
    a.movsxd(rdi, dword_ptr(rbx + 20))?;
    a.cmp(rdi, rsi)?;
    a.mov(dword_ptr(rbx + 24), edi)?;
    a.adc(rax, r15)?;
    // The base changes, and then its own value is stored.
    a.mov(rcx, rbx)?;
    a.mov(qword_ptr(rbx + 16), r8)?;
    a.mov(rbx, qword_ptr(rbx + 16))?;
    a.mov(qword_ptr(rcx), rbx)?;
    a.mov(r8, qword_ptr(rcx + 8))?;
    a.lea(r8, ptr(r8 + r15 * 2 + 1))
}

/// Arithmetic with the memory around a base, addresses, and branches that leave the run.
fn others(a: &mut CodeAssembler, base: AsmRegister64) -> Emit {
    let mut out = a.create_label();
    a.mov(rsi, qword_ptr(base - 8))?;
    a.add(rdi, qword_ptr(base + 9))?;
    a.lea(r15, ptr(base + rdi * 2 + 5))?;
    a.add(dword_ptr(base + 12), 3)?;
    a.sets(dl)?;
    a.cmp(qword_ptr(base + 20), r15)?;
    a.jb(out)?;
    a.xor(byte_ptr(base + 31), dl)?;
    a.cmovo(r8, rsi)?;
    a.shl(r8, 3)?;
    a.inc(r10)?;
    a.sub(r8w, word_ptr(base + 2))?;
    a.test(dword_ptr(base + 16), esi)?;
    a.jp(out)?;
    a.mov(qword_ptr(base + 24), r15)?;
    a.set_label(&mut out)?;
    a.sbb(rax, qword_ptr(base + 1))?;
    a.add(qword_ptr(base + 33), rax)
}

/// Within a page that is not in the TLB, and across the end of a page, at each place, for ever.
fn compare_in_each_place(body: fn(&mut CodeAssembler) -> Emit) {
    compare(|| {
        let mut guest = Guest::new();
        guest.assemble(KERNEL, |a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.mov(r14, DATA + 0x1010)?;
            begin_rounds(a, &mut outer, &mut inner)?;
            a.mov(r12, rcx)?;
            a.mov(rbx, DATA + 0x800)?;
            body(a)?;
            a.lea(rbx, ptr(r14 + r12 * 4))?;
            body(a)?;
            a.dec(r14)?;
            a.cmp(r14d, (DATA + 0xFC0) as i32)?;
            a.cmovb(r14, r13)?;
            a.lea(r13, ptr(r14 + 0x48))?;
            a.mov(rcx, r12)?;
            a.dec(ecx)?;
            a.jnz(inner)?;
            a.jmp(outer)
        });
        guest
    });
}

#[test]
fn runs_do_what_they_do_in_the_interpreter() {
    compare_in_each_place(moves);
}

#[test]
fn runs_of_other_instructions_do_what_they_do_in_the_interpreter() {
    compare_in_each_place(|a| others(a, rbx));
    compare_in_each_place(|a| {
        a.mov(r11, rbx)?;
        others(a, r11)
    });
}

/// A run that writes over the instructions behind it, in the run and after it, for ever.
#[test]
fn a_run_changes_code() {
    const NOPS: u32 = 0x9090_9090;
    /// INC EAX, and NOP.
    const INC: u32 = 0x9090_C0FF;
    compare(|| {
        let mut guest = Guest::new();
        guest.assemble(KERNEL, |a| {
            let (mut again, mut inside) = (a.create_label(), a.create_label());
            a.mov(edx, NOPS)?;
            a.mov(esi, INC)?;
            a.lea(rbx, ptr(inside))?;
            a.set_label(&mut again)?;
            a.xchg(edx, esi)?;
            a.mov(dword_ptr(rbx), edx)?;
            a.mov(dword_ptr(rbx + 17), edx)?;
            a.mov(ebp, dword_ptr(rbx))?;
            a.set_label(&mut inside)?;
            for _ in 0..4 {
                a.mov(r9d, r9d)?;
            }
            a.mov(ebp, dword_ptr(rbx + 8))?;
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
fn a_run_faults_in_the_middle() {
    for check in [false, true] {
        let mut guest = Guest::new();
        guest.page(DATA + 0x1000, 0);
        guest.assemble(KERNEL, |a| {
            a.mov(rbx, DATA + 0xFF0)?;
            a.mov(rax, qword_ptr(rbx))?;
            a.mov(rax, 7u64)?;
            a.mov(rcx, qword_ptr(rbx + 8))?;
            a.mov(rsi, 5u64)?;
            a.mov(rdi, qword_ptr(rbx + 16))?;
            a.hlt()
        });
        let mut soft = native(&guest, check, 1 << 20);
        soft.run(1000);
        let state = soft.cpu.state();
        assert_eq!(state.rip, handler(vector::PF) + 1);
        assert_eq!((state.gpr[0], state.gpr[6], state.gpr[7]), (7, 5, 0));
        assert_eq!(state.sys.cr2, DATA + 0x1000);
    }
}
