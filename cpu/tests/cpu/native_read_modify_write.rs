//! Read-modify-write of memory, with and without LOCK, in native code and in the interpreter.

use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::RSP;
use vbts_cpu::state::{cr0, vector};
use vbts_cpu::{ArchState, Clock, Exit, HostClock, SoftCpu, Topology};
use vbts_testkit::Emit;

use crate::common::{DATA, Guest, KERNEL, handler, run_to_halt};
use crate::native_code::{begin_rounds, compare, native};

/// The flags of a page-table entry for reading alone.
const PRESENT: u64 = 1;

/// Each kind of locked instruction, and a value that depends on its flags.
fn locked(a: &mut CodeAssembler) -> Emit {
    a.lock().add(qword_ptr(rbx + rcx * 8), r8)?;
    a.lock().adc(dword_ptr(rbx + 4), ecx)?;
    a.lock().sub(word_ptr(rbx + 6), r10w)?;
    a.lock().sbb(byte_ptr(rbx + 9), 3)?;
    a.lock().and(qword_ptr(rbx + 16), r11)?;
    a.lock().or(dword_ptr(rbx + 24), r15d)?;
    a.lock().xor(qword_ptr(rbx + rcx * 8 + 32), -5)?;
    a.lock().inc(byte_ptr(rbx + 65))?;
    a.setp(r9b)?;
    a.lock().dec(qword_ptr(rbx + 72))?;
    a.lock().not(word_ptr(rbx + 80))?;
    a.lock().neg(dword_ptr(rbx + 84))?;
    a.adc(r8, r9)?;
    a.lock().bts(dword_ptr(rbx + 88), 33)?;
    a.adc(r8, 0)?;
    a.lock().btc(qword_ptr(rbx + 96), 63)?;
    a.adc(r8, 0)?;
    // With a segment, and bits of a string before and after the operand.
    a.lock().add(qword_ptr(rbx + 104).gs(), rcx)?;
    a.lea(r14, ptr(rcx * 8 - 40))?;
    a.lea(r12, ptr(r8 + r14))?;
    a.and(r12d, 0x1FF)?;
    a.sub(r12d, 0x80)?;
    a.movsxd(rsi, r12d)?;
    a.lock().bts(dword_ptr(rbx + 256), r12d)?;
    a.adc(r8, 1)?;
    a.lock().btr(qword_ptr(rbx + rcx * 8 + 256), r14)?;
    a.adc(r8, 3)?;
    a.lock().btc(qword_ptr(rbx + 264).gs(), rsi)?;
    a.adc(r8, 5)?;
    a.bt(qword_ptr(rbx + 256), rsi)?;
    a.adc(r8, 7)?;
    a.bts(word_ptr(rbx + 256), r12w)?;
    // Not aligned, and across lines and pages.
    a.lock().inc(dword_ptr(rbx + rcx * 2 + 57))?;
    a.lock().add(dword_ptr(rbx + 0xFFE), r8d)?;
    a.add(r8, qword_ptr(rbx + 0xFFA))
}

/// Exchanges, with and without LOCK.
fn exchanges(a: &mut CodeAssembler) -> Emit {
    a.xchg(qword_ptr(rbx + 112), r10)?;
    a.xchg(dword_ptr(rbx + 120), edx)?;
    a.xchg(byte_ptr(rbx + 125), dh)?;
    a.xchg(word_ptr(rbx + 127), r15w)?;
    a.xchg(dword_ptr(rbx + 61), esi)?;
    a.mov(rsi, rbx)?;
    a.xadd(qword_ptr(rbx + 136), r10)?;
    a.lock().xadd(dword_ptr(rbx + 144), edx)?;
    a.adc(r8, 0)?;
    a.lock().xadd(byte_ptr(rbx + 149), ah)?;
    a.xadd(r10, r8)?;
    a.xadd(dx, dx)?;
    // The second is not equal in some rounds, nor the fourth.
    a.mov(eax, dword_ptr(rbx + 152))?;
    a.lock().cmpxchg(dword_ptr(rbx + 152), ecx)?;
    a.cmpxchg(qword_ptr(rbx + rcx * 8 + 152), r10)?;
    a.setz(r9b)?;
    a.cmpxchg(dword_ptr(rbx + 192), r15d)?;
    a.adc(r8, r9)?;
    a.mov(rax, -1i64)?;
    a.lock().cmpxchg(word_ptr(rbx + 200), r14w)?;
    a.adc(r8, rax)?;
    a.lock().cmpxchg(byte_ptr(rbx + 203), sil)?;
    a.cmpxchg(byte_ptr(rbx + 204), bh)?;
    a.lock().cmpxchg(dword_ptr(rbx + 207), r8d)?;
    // The accumulator is the address, and the source.
    a.lea(rax, ptr(rbx + 208))?;
    a.lock().cmpxchg(qword_ptr(rax), rax)?;
    a.lea(rax, ptr(rbx + 208))?;
    a.cmpxchg(dword_ptr(rax), r11d)?;
    a.xor(eax, eax)?;
    a.cmpxchg(qword_ptr(rbx + 216), rsp)?;
    // Equal in each second round.
    a.push(rbx)?;
    a.push(rcx)?;
    a.mov(rdi, rbx)?;
    a.mov(rax, qword_ptr(rdi + 224))?;
    a.mov(rdx, qword_ptr(rdi + 232))?;
    a.and(ecx, 1)?;
    a.add(rdx, rcx)?;
    a.mov(rbx, r8)?;
    a.lock().cmpxchg16b(xmmword_ptr(rdi + 224))?;
    a.cmpxchg16b(xmmword_ptr(rdi + 240))?;
    a.setz(cl)?;
    a.add(r8, rax)?;
    a.add(r8, rdx)?;
    a.add(r8, rcx)?;
    // Equal in each second round, too, with upper halves that stay then.
    a.mov(rax, qword_ptr(rdi + 312))?;
    a.mov(rdx, rax)?;
    a.shr(rdx, 32)?;
    a.bts(rdx, 40)?;
    a.and(ecx, 1)?;
    a.add(edx, ecx)?;
    a.bts(rdx, 41)?;
    a.lock().cmpxchg8b(qword_ptr(rdi + 312))?;
    a.adc(r8, rax)?;
    a.add(r8, rdx)?;
    a.cmpxchg8b(qword_ptr(rdi + 0xFFC))?;
    a.setz(cl)?;
    a.add(r8, rcx)?;
    a.pop(rcx)?;
    a.pop(rbx)
}

/// Shifts whose flags depend on what the operand was, and POP to memory.
fn shifts(a: &mut CodeAssembler) -> Emit {
    // Counts from 0 to 99, with bit 6.
    a.push(rcx)?;
    a.imul_2(rcx, r8)?;
    a.and(ecx, 0x43)?;
    let counts: [fn(&mut CodeAssembler) -> Emit; 10] = [
        |a| a.shld(rdx, r8, cl),
        |a| a.shrd(r8d, r15d, cl),
        |a| a.shld(r15, r14, cl),
        |a| a.shrd(qword_ptr(rbx + 320), r8, cl),
        |a| a.shld(dword_ptr(rbx + rdx + 328), r14d, cl),
        |a| a.shld(esi, esi, 13),
        |a| a.shrd(r15, r8, 64 + 63),
        |a| a.shrd(qword_ptr(rbx + 336).gs(), rsi, 1),
        |a| a.shld(dword_ptr(rbx + 344), r15d, 31),
        |a| a.shr(qword_ptr(rbx + 352), 5),
    ];
    for shift in counts {
        a.and(edx, 7)?;
        shift(a)?;
        a.pushfq()?;
        a.pop(qword_ptr(rbx + rdx * 8 + 360))?;
        a.add(r8, qword_ptr(rbx + rdx * 8 + 360))?;
    }
    a.shld(dx, si, 3)?;
    a.shrd(ecx, r8d, cl)?;
    a.shr(dword_ptr(rbx + 0xFFE), 9)?;
    a.adc(r8, rcx)?;
    a.add(qword_ptr(rbx + 352), r8)?;
    // Relative to the stack pointer after the pop, and across pages.
    a.push(r8)?;
    a.push(rdx)?;
    a.pop(qword_ptr(rsp))?;
    a.pop(rcx)?;
    a.add(r8, rcx)?;
    a.push(r8)?;
    a.pop(qword_ptr(rbx + 0xFFB))?;
    a.lfence()?;
    a.pop(rcx)
}

/// The second bytes of registers as destinations, and short functions of an operating system.
fn others(a: &mut CodeAssembler) -> Emit {
    a.add(ah, 0x35)?;
    a.adc(dh, cl)?;
    a.mov(dh, al)?;
    a.xor(dh, byte_ptr(rbx + 300))?;
    a.or(byte_ptr(rbx + 301), dh)?;
    a.inc(ah)?;
    a.setc(ah)?;
    a.sub(ah, ah)?;
    a.xchg(ah, al)?;
    a.xadd(dh, dl)?;
    a.shl(ah, 1)?;
    a.add(ah, dh)?;
    a.cmp(dh, ah)?;
    a.sbb(dh, ah)?;
    a.mov(ah, dh)?;
    a.xchg(ah, dh)?;
    a.xadd(dh, ah)?;
    a.test(ah, bh)?;
    a.pushfq()?;
    a.pop(r9)?;
    a.add(r8, r9)?;
    a.swapgs()?;
    a.rol(ax, 3)?;
    a.cli()?;
    a.pushfq()?;
    a.add(r8, qword_ptr(rsp))?;
    a.mov(r9, rsp)?;
    a.add(r9, 8)?;
    a.mov(qword_ptr(rsp), r9)?;
    a.pop(rsp)?;
    a.swapgs()
}

/// All of it, for ever or for a number of rounds.
fn program(rounds: Option<u32>) -> Guest {
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner) = (a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        a.mov(r13d, rounds.unwrap_or(0))?;
        begin_rounds(a, &mut outer, &mut inner)?;
        locked(a)?;
        exchanges(a)?;
        others(a)?;
        shifts(a)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        if rounds.is_none() {
            return a.jmp(outer);
        }
        a.dec(r13d)?;
        a.jnz(outer)?;
        a.hlt()
    });
    guest
}

#[test]
fn read_modify_writes_do_what_they_do_in_the_interpreter() {
    compare(|| program(None));
}

/// A processor that is one of two, each in a thread of its own, after it has run to HLT.
fn run_beside_another(mut soft: SoftCpu) -> SoftCpu {
    soft.cpu.set_topology(Topology { id: 0, count: 2 });
    soft.cpu.set_clock(Clock::Host(HostClock::new(1_000_000)));
    run_to_halt(&mut soft);
    soft
}

#[test]
fn locked_instructions_do_what_they_do_in_the_interpreter() {
    let (guest, other) = (program(Some(50)), program(Some(50)));
    let interpreter = run_beside_another(guest.second_processor());
    let native = run_beside_another(native(&other, false, 1 << 20));
    assert!(native.native_code().blocks > 0);
    let (expected, got) = (interpreter.cpu.state(), native.cpu.state());
    assert_eq!((expected.gpr, expected.rflags), (got.gpr, got.rflags));
    for at in (DATA..DATA + 520).step_by(8) {
        assert_eq!(guest.read(at), other.read(at), "{at:#x}");
    }
}

/// A locked instruction that changes the instruction at the start of its loop.
#[test]
fn a_locked_instruction_changes_code() {
    compare(|| {
        let mut guest = Guest::new();
        guest.assemble(KERNEL, |a| {
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            a.nop()?;
            a.nop()?;
            // Its immediate is aligned.
            a.mov(r9d, 1)?;
            a.add(rax, r9)?;
            a.mov(ebx, KERNEL as u32)?;
            a.lock().add(dword_ptr(rbx + 4), 3)?;
            a.xadd(dword_ptr(rbx + 4), ecx)?;
            a.mov(rcx, rax)?;
            a.and(ecx, 0xFF)?;
            a.jmp(again)
        });
        guest
    });
}

/// What the processor pushes at a fault of `program`, in order from the stack pointer on, and its
/// state. The page after [`DATA`] is read-only.
fn fault(program: fn(&mut CodeAssembler) -> Emit, native_code: bool) -> ([u64; 6], ArchState) {
    let mut guest = Guest::new();
    guest.page(DATA + 0x1000, PRESENT);
    guest.update(|s| s.sys.cr0 |= cr0::WP);
    guest.assemble(KERNEL, |a| {
        a.mov(rbx, DATA + 0x1000)?;
        a.mov(rax, qword_ptr(rbx))?;
        a.mov(ecx, 0x8000)?;
        a.add(eax, -1)?;
        program(a)?;
        a.ud2()
    });
    let mut soft = match native_code {
        true => native(&guest, false, 1 << 20),
        false => guest.second_processor(),
    };
    assert!(matches!(soft.run(100), Exit::Halt { .. }));
    let state = soft.cpu.state();
    let pushed = std::array::from_fn(|n| guest.read(state.gpr[RSP] + 8 * n as u64));
    (pushed, state)
}

/// An instruction that may not write faults as a write, also if it would not change its operand.
#[test]
fn read_modify_writes_fault_as_in_the_interpreter() {
    type Program = fn(&mut CodeAssembler) -> Emit;
    const WRITE: u64 = 3;
    let table: [(&str, u8, u64, Program); 10] = [
        ("INC", vector::PF, WRITE, |a| a.lock().inc(dword_ptr(rbx))),
        ("XADD", vector::PF, WRITE, |a| a.xadd(qword_ptr(rbx), rcx)),
        ("XCHG", vector::PF, WRITE, |a| a.xchg(qword_ptr(rbx), rcx)),
        ("CMPXCHG, not equal", vector::PF, WRITE, |a| {
            a.cmpxchg(dword_ptr(rbx), ecx)
        }),
        (
            "BTS of the page after the operand",
            vector::PF,
            WRITE,
            |a| a.bts(dword_ptr(rbx - 0x1000), ecx),
        ),
        ("CMPXCHG16B", vector::PF, WRITE, |a| {
            a.lock().cmpxchg16b(xmmword_ptr(rbx))
        }),
        ("CMPXCHG8B", vector::PF, WRITE, |a| {
            a.cmpxchg8b(qword_ptr(rbx))
        }),
        ("SHRD", vector::PF, WRITE, |a| {
            a.shrd(qword_ptr(rbx + 8), rcx, 3)
        }),
        ("POP", vector::PF, WRITE, |a| a.pop(qword_ptr(rbx))),
        ("CMPXCHG16B, not aligned", vector::GP, 0, |a| {
            a.lock().cmpxchg16b(xmmword_ptr(rbx - 8))
        }),
    ];
    for (name, vector, error, program) in table {
        let (pushed, state) = fault(program, true);
        assert_eq!((pushed, state.clone()), fault(program, false), "{name}");
        assert_eq!(
            (state.rip, pushed[0]),
            (handler(vector) + 1, error),
            "{name}"
        );
    }
    let (_, state) = fault(|a| a.bt(dword_ptr(rbx - 0x1000), ecx), true);
    assert_eq!(state.rip, handler(vector::UD) + 1, "BT");
}
