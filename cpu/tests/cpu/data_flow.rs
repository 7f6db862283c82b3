//! What an instruction writes is what the next one reads: a block of instructions, whose operations
//! pass values on (see `vbts_cpu::backend::interpreter::dispatch`), against the same instructions
//! one at a time, which pass nothing.

use crate::common::{DATA, Guest, KERNEL};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::Exit;
use vbts_cpu::state::{Activity, gpr, rflags};

type Emit = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// Instructions of which each reads what others write. R8 and R10 are addresses, R11 is a small
/// index.
const INSTRUCTIONS: &[Emit] = &[
    |a| a.add(rax, rcx),
    |a| a.add(ecx, eax),
    |a| a.add(rdx, rdx),
    |a| a.sub(rdx, 5),
    |a| a.adc(eax, ecx),
    |a| a.sbb(rcx, rdx),
    |a| a.xor(eax, edx),
    |a| a.and(ecx, 0x7FFF_FFF1),
    |a| a.or(dx, ax),
    |a| a.add(al, cl),
    |a| a.add(ah, dl),
    |a| a.mov(rcx, rax),
    |a| a.mov(edx, ecx),
    |a| a.mov(ax, dx),
    |a| a.mov(cl, al),
    |a| a.mov(ah, 3),
    |a| a.mov(rax, 0x1234_5678_9ABC_DEF0u64),
    |a| a.inc(rax),
    |a| a.dec(ecx),
    |a| a.neg(rdx),
    |a| a.not(eax),
    |a| a.shl(rax, 3),
    |a| a.shr(ecx, 1),
    |a| a.sar(edx, cl),
    |a| a.rol(eax, 5),
    |a| a.ror(rcx, cl),
    |a| a.rcl(rdx, 1),
    |a| a.movzx(eax, cl),
    |a| a.movzx(edx, ah),
    |a| a.movsx(ecx, dx),
    |a| a.movsxd(rax, edx),
    |a| a.cdqe(),
    |a| a.cqo(),
    |a| a.cmove(rax, rcx),
    |a| a.cmovb(edx, eax),
    |a| a.sets(al),
    |a| a.bswap(rcx),
    |a| a.imul_2(rdx, rax),
    |a| a.imul_2(cx, dx),
    |a| a.imul_3(eax, edx, 7),
    |a| a.xchg(rax, rcx),
    |a| a.cmp(rax, rcx),
    |a| a.test(edx, edx),
    |a| a.nop(),
    |a| a.lea(rax, rcx + rdx * 4 + 7),
    |a| a.lea(edx, rax + 1),
    // Addresses.
    |a| a.lea(r10, r8 + 8),
    |a| a.lea(r10, r8 + r11),
    |a| a.mov(r10, r8),
    |a| a.mov(r11d, 3),
    |a| a.mov(r11d, 1),
    // Memory.
    |a| a.mov(rax, qword_ptr(r8)),
    |a| a.mov(ecx, dword_ptr(r10)),
    |a| a.mov(dx, word_ptr(r8 + r11 * 2)),
    |a| a.mov(edx, dword_ptr(r10 + r11 * 4)),
    |a| a.movzx(eax, byte_ptr(r10 + r11)),
    |a| a.movsxd(rcx, dword_ptr(r8 + 4)),
    |a| a.mov(qword_ptr(r8), rdx),
    |a| a.mov(dword_ptr(r10 + r11), eax),
    |a| a.mov(byte_ptr(r10), 0x5A),
    |a| a.add(rdx, qword_ptr(r10)),
    |a| a.add(dword_ptr(r8), ecx),
    |a| a.imul_2(eax, dword_ptr(r10)),
    |a| a.imul_3(rcx, qword_ptr(r8 + r11), -3),
    |a| a.inc(qword_ptr(r10)),
    |a| a.shl(dword_ptr(r10), 1),
    |a| a.cmp(rax, qword_ptr(r8)),
    |a| a.cmp(dword_ptr(r10), edx),
    |a| a.push(rax),
    |a| a.push(qword_ptr(r10)),
    |a| a.pop(rcx),
    // CMP and TEST are executed with the jump behind them.
    |a| around_nop(a, |a| a.cmp(eax, ecx), CodeAssembler::jb),
    |a| around_nop(a, |a| a.cmp(rdx, qword_ptr(r10)), CodeAssembler::jg),
    |a| around_nop(a, |a| a.test(cl, al), CodeAssembler::je),
];

/// An instruction, and a jump around one that does nothing.
fn around_nop(
    a: &mut CodeAssembler,
    before: Emit,
    jump: fn(&mut CodeAssembler, CodeLabel) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let mut behind = a.create_label();
    before(a)?;
    jump(a, behind)?;
    a.nop()?;
    a.set_label(&mut behind)?;
    a.inc(rdx)
}

/// Words of memory around the operands, before and after.
const WORDS: u64 = 8;
const STACK: u64 = DATA + 0x8000;

/// Puts the guest where it runs these instructions next, with memory operands around `address`.
fn start(g: &mut Guest, program: &[usize], address: u64) {
    g.assemble(KERNEL, |a| {
        for &i in program {
            INSTRUCTIONS[i](a)?;
        }
        a.hlt()
    });
    again(g, address);
}

/// Runs the instructions again, which are decoded already.
fn again(g: &mut Guest, address: u64) {
    for i in 0..WORDS {
        let value = 0x0123_4567_89AB_CDEFu64.wrapping_mul(2 * i + 1);
        g.write(address - 16 + 8 * i, value);
        g.write(STACK + 8 * i, !value);
    }
    g.update(|s| {
        s.rip = KERNEL;
        s.activity = Activity::Active;
        s.rflags = rflags::FIXED;
        s.gpr = [0; 16];
        s.gpr[gpr::RAX] = 0xFEDC_BA98_7654_3210;
        s.gpr[gpr::RCX] = 0x8000_0000_0000_0007;
        s.gpr[gpr::RDX] = 0xFFFF_FFFF;
        s.gpr[gpr::RSP] = STACK;
        s.gpr[8] = address;
        s.gpr[10] = address + 4;
        s.gpr[11] = 2;
    });
}

/// What is left: general registers, RFLAGS, memory.
fn left(g: &Guest, address: u64) -> ([u64; 16], u64, Vec<u64>) {
    let state = g.soft.cpu.state();
    let memory = (0..WORDS).map(|i| g.read(address - 16 + 8 * i)).collect();
    (state.gpr, state.rflags, memory)
}

#[test]
fn a_block_equals_single_steps_of_its_instructions() {
    let (mut block, mut single) = (Guest::new(), Guest::new());
    // In a page; and across two, where no access is a fast one.
    for address in [DATA + 0x100, DATA + 0xFFE] {
        let mut random = 0x2545_F491_4F6C_DD1Du64;
        for n in 0..2000 {
            let program: Vec<usize> = (0..12)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    (random >> 16) as usize % INSTRUCTIONS.len()
                })
                .collect();
            start(&mut single, &program, address);
            while !matches!(single.soft.step(), Some(Exit::Halt { .. })) {}
            start(&mut block, &program, address);
            // The second time it is decoded, and the TLB has its memory.
            for time in ["first", "second"] {
                let exit = block.soft.run(u64::MAX);
                assert!(matches!(exit, Exit::Halt { .. }), "{exit:?}");
                assert_eq!(
                    left(&block, address),
                    left(&single, address),
                    "program {n} at {address:#x}, the {time} time: instructions {program:?}"
                );
                again(&mut block, address);
            }
        }
    }
}
