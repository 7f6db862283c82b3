//! Accesses close to one base register, which other instructions change between them.
//!
//! Native code looks up the TLB once for several of them. An access after a change of the base must
//! not use that look-up. This shows only if the base then is in a page with another translation, so
//! changes lead from data to its alias and back.

use iced_x86::code_asm::*;

use crate::Emit;
use crate::lockstep::instruction::{Group, Instructions};
use crate::lockstep::layout::{ALIAS, DATA};
use crate::lockstep::step::scratch;
use crate::random::Random;

/// Offsets of the first base in its page. From the last, accesses reach the next page.
const STARTS: [u64; 4] = [0x100, 0x440, 0xF90, 0xFE0];

/// Writes some instructions at one base register.
pub(super) fn emit(
    a: &mut CodeAssembler,
    instructions: &mut Instructions,
    random: &mut Random,
) -> Emit {
    let (base, other, value) = (scratch(random), scratch(random), scratch(random));
    let pages = random.pick(&[[DATA, ALIAS], [ALIAS, DATA], [ALIAS, ALIAS]]);
    let mut address = |page| page + random.pick(&STARTS) + random.below(0x20);
    a.mov(other, address(pages[1]))?;
    a.mov(base, address(pages[0]))?;
    // Most runs have no access far away, so that they are short of the most bytes of one look-up.
    let reach = random.pick(&[0x30, 0x30, 0x100]);
    for _ in 0..2 + random.below(10) {
        let at = base + random.below(reach) as i32 - 16;
        match random.below(24) {
            0..=3 => load(a, value, at, random)?,
            4..=7 => store(a, value, at, random)?,
            8 | 9 => a.lea(base, ptr(at))?,
            10 => a.lea(base, ptr(other + random.below(0x20) as i32))?,
            // RBX is in data, R13 in its alias.
            11 => a.lea(
                base,
                ptr(random.pick(&[rbx, r13]) + random.below(0x100) as i32),
            )?,
            12 => match random.below(3) {
                0 => a.lea(base, ptr(base + r12 * 2 - 8))?,
                1 => a.lea(base, ptr(base + 0x1000))?,
                _ => a.lea(other, ptr(at))?,
            },
            13 => match random.below(4) {
                0 => a.add(base, 8)?,
                1 => a.sub(base, 4)?,
                2 => a.inc(base)?,
                _ => a.xchg(base, other)?,
            },
            // What memory has is no address, for the most part.
            14 => a.mov(base, qword_ptr(at))?,
            15 => a.mov(base, pages[1] + 0x200)?,
            16 => match random.below(4) {
                0 => a.add(value, qword_ptr(at))?,
                1 => a.xor(dword_ptr(at), 0x55)?,
                2 => a.cmp(byte_ptr(at), 7)?,
                _ => a.cmovb(value, qword_ptr(at))?,
            },
            17 => match random.below(3) {
                0 => a.movups(xmm1, xmmword_ptr(at))?,
                1 => a.movups(xmmword_ptr(at), xmm1)?,
                _ => a.movq(xmm2, qword_ptr(at))?,
            },
            18 => {
                a.push(base)?;
                a.pop(value)?;
            }
            19 | 20 => match random.below(4) {
                0 => a.add(value, base)?,
                1 => a.and(value, 0xFF)?,
                2 => a.mov(value, base)?,
                _ => a.cmp(value, base)?,
            },
            21 => a.mov(base, other)?,
            22 => a.cmove(base, other)?,
            _ => {
                let instruction = instructions.next(random, Group::Any);
                a.add_instruction(instruction)?;
            }
        }
    }
    Ok(())
}

fn load(
    a: &mut CodeAssembler,
    to: AsmRegister64,
    at: AsmMemoryOperand,
    random: &mut Random,
) -> Emit {
    match random.below(6) {
        0..=1 => a.mov(to, qword_ptr(at)),
        2 => a.movsxd(to, dword_ptr(at)),
        3 => a.movzx(to, word_ptr(at)),
        4 => a.movzx(to, byte_ptr(at)),
        _ => a.movsx(to, byte_ptr(at)),
    }
}

fn store(
    a: &mut CodeAssembler,
    from: AsmRegister64,
    at: AsmMemoryOperand,
    random: &mut Random,
) -> Emit {
    match random.below(5) {
        0..=2 => a.mov(qword_ptr(at), from),
        3 => a.mov(dword_ptr(at), random.bits() as u32),
        _ => a.mov(byte_ptr(at), random.below(100) as i32),
    }
}
