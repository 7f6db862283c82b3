//! Flags that native code does not save, because the guest overwrites them soon: a fault before
//! that makes them visible.

use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::RSP;
use vbts_cpu::state::vector;
use vbts_testkit::Emit;

use crate::common::{DATA, Guest, KERNEL, handler};
use crate::native_code::{begin_rounds, compare, native};

type Instruction = fn(&mut CodeAssembler) -> Emit;

/// Instructions that write all flags, with RAX and RCX as operands. R10 is in no register of the
/// host.
const WRITERS: [Instruction; 24] = [
    |a| a.cmp(rax, rcx),
    |a| a.cmp(eax, ecx),
    |a| a.cmp(ax, cx),
    |a| a.cmp(al, cl),
    |a| a.cmp(sil, 0x7F),
    |a| a.cmp(cl, sil),
    |a| a.cmp(rax, -0x8000_0000),
    |a| a.cmp(cx, 0x1234),
    |a| a.cmp(rax, r10),
    |a| a.test(rax, rcx),
    |a| a.test(sil, 0x81u32 as i32),
    |a| a.test(ecx, ecx),
    |a| a.and(rcx, rax),
    |a| a.and(si, 0x7F),
    |a| a.or(al, cl),
    |a| a.xor(ecx, 5),
    |a| a.add(rax, rcx),
    |a| a.add(ecx, -1),
    |a| a.add(rax, rax),
    |a| a.add(rcx, 0x1234_5678),
    |a| a.sub(rcx, rax),
    |a| a.sub(eax, 1),
    |a| a.sub(rcx, rcx),
    |a| a.sub(al, 0x80u32 as i32),
];

/// What follows before new flags: an access that faults. Some overwrite the operands of a writer,
/// before the access or by it.
const READERS: [Instruction; 5] = [
    |a| a.mov(rdx, qword_ptr(rbx)),
    |a| a.movzx(ecx, byte_ptr(rbx + 8)),
    |a| a.add(rdi, qword_ptr(rbx + 16)),
    |a| {
        a.mov(ecx, eax)?;
        a.mov(rdx, qword_ptr(rbx))
    },
    |a| {
        a.xchg(rax, rcx)?;
        a.mov(rdx, qword_ptr(rbx))
    },
];

const VALUES: [(i64, i64); 6] = [
    (0, 0),
    (1, -1),
    (i64::MIN, 1),
    (0x7FFF_FFFF, 0x8000_0000),
    (-0x80, 0x7F),
    (0x1234_5678_9ABC_8000, i64::MAX),
];

/// RFLAGS and RIP that a fault of `reader` on a processor without POPCNT pushes.
fn fault(writer: Instruction, reader: Instruction, values: (i64, i64), jit: bool) -> [u64; 2] {
    let mut guest = Guest::of(vbts_cpu::model("core2").unwrap());
    guest.page(DATA + 0x1000, 0);
    guest.assemble(KERNEL, |a| {
        a.mov(rbx, DATA + 0x1000)?;
        a.mov(rax, values.0)?;
        a.mov(rcx, values.1)?;
        a.mov(rsi, rax)?;
        a.mov(r10, rcx)?;
        writer(a)?;
        a.lea(r8, ptr(rax + 1))?;
        reader(a)?;
        a.xor(edi, r8d)?;
        a.ud2()
    });
    let mut soft = match jit {
        true => native(&guest, false, 1 << 20),
        false => guest.second_processor(),
    };
    soft.run(100);
    let state = soft.cpu.state();
    // A page fault has an error code.
    let rip = match state.rip - 1 {
        rip if rip == handler(vector::PF) => 1,
        rip if rip == handler(vector::UD) => 0,
        rip => panic!("halted at {rip:#x}"),
    };
    [rip + 2, rip].map(|n| guest.read(state.gpr[RSP] + 8 * n))
}

/// The flags of a product follow from its lower half, which another instruction overwrites.
#[test]
fn an_instruction_that_the_processor_lacks_has_the_flags_before_it() {
    for values in VALUES {
        let [expected, got] = [false, true]
            .map(|jit| fault(|a| a.imul_2(rax, rcx), |a| a.popcnt(rdx, rdi), values, jit));
        assert_eq!(expected, got, "{values:x?}");
    }
}

#[test]
fn a_fault_has_the_flags_of_the_instruction_before_it() {
    for (n, writer) in WRITERS.into_iter().enumerate() {
        for (m, reader) in READERS.into_iter().enumerate() {
            for values in VALUES {
                let [expected, got] = [false, true].map(|jit| fault(writer, reader, values, jit));
                assert_eq!(expected, got, "writer {n}, reader {m}, {values:x?}");
            }
        }
    }
}

/// Accesses that miss the TLB, and do not fault, between flags and those that overwrite them, for
/// ever.
#[test]
fn accesses_that_miss_change_no_flags() {
    compare(|| {
        let mut guest = Guest::new();
        guest.assemble(KERNEL, |a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.mov(rbx, DATA)?;
            begin_rounds(a, &mut outer, &mut inner)?;
            for (n, writer) in WRITERS.into_iter().enumerate() {
                writer(a)?;
                a.lea(r8, ptr(rax + 1))?;
                a.mov(rdx, qword_ptr(rbx + 8 * n))?;
                a.movzx(ecx, byte_ptr(rbx + 0x7FB))?;
                a.cmp(rdx, qword_ptr(rbx + 16))?;
                a.adc(qword_ptr(rbx + 8 * n), rax)?;
                a.adc(rax, r8)?;
                a.lea(rsi, ptr(rsi + rax))?;
                a.mov(r10, rsi)?;
            }
            a.mov(ecx, dword_ptr(rbx))?;
            a.and(ecx, 3)?;
            a.jnz(inner)?;
            a.jmp(outer)
        });
        guest
    });
}
