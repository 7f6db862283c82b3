//! XSAVE, XSAVEOPT, XSAVEC and XRSTOR of the software CPU against the host's processor: random
//! registers, instruction masks and headers.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::xsave::{Pointers, XsaveArea, component};
use vbts_cpu::state::{Activity, X87State, cr4, gpr};

use super::native::Native;
use super::random::Random;
use super::{State, later};
use crate::common::{DATA, Guest, KERNEL};

type Instruction = fn(&mut CodeAssembler) -> Result<(), IcedError>;

const INSTRUCTIONS: [(&str, Instruction); 8] = [
    ("xsave", |a| a.xsave(ptr(rdi))),
    ("xsave64", |a| a.xsave64(ptr(rdi))),
    ("xsaveopt", |a| a.xsaveopt(ptr(rdi))),
    ("xsaveopt64", |a| a.xsaveopt64(ptr(rdi))),
    ("xsavec", |a| a.xsavec(ptr(rdi))),
    ("xsavec64", |a| a.xsavec64(ptr(rdi))),
    ("xrstor", |a| a.xrstor(ptr(rdi))),
    ("xrstor64", |a| a.xrstor64(ptr(rdi))),
];

const ALL: u64 = component::X87 | component::SSE | component::AVX;
/// Bytes of an area and of what follows it.
const SIZE: usize = 1024;

/// An XSAVE area, and what the instruction must leave alone.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory([u8; SIZE]);

/// What the code on the host gets, and what it returns.
#[repr(C, align(64))]
struct Exchange {
    /// All registers, before and after.
    registers: Memory,
    /// The memory operand.
    memory: Memory,
    /// The instruction mask.
    mask: u64,
    /// XGETBV with ECX = 1, before the instruction.
    in_use: u64,
    host_mxcsr: u32,
}

const MEMORY: i32 = SIZE as i32;
const MASK: i32 = 2 * MEMORY;
const IN_USE: i32 = MASK + 8;
const HOST_MXCSR: i32 = IN_USE + 8;

/// Loads all registers, executes the instruction, and stores all registers.
fn wrap(instruction: Instruction) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    a.push(rbx)?;
    a.mov(rbx, rdi)?;
    a.mov(eax, ALL as u32)?;
    a.xor(edx, edx)?;
    a.xrstor64(ptr(rbx))?;
    a.mov(ecx, 1)?;
    a.xgetbv()?;
    a.mov(qword_ptr(rbx + IN_USE), rax)?;
    a.lea(rdi, ptr(rbx + MEMORY))?;
    a.mov(eax, dword_ptr(rbx + MASK))?;
    a.mov(edx, dword_ptr(rbx + (MASK + 4)))?;
    instruction(&mut a)?;
    a.mov(eax, ALL as u32)?;
    a.xor(edx, edx)?;
    a.xsave64(ptr(rbx))?;
    a.vzeroupper()?;
    a.fninit()?;
    a.ldmxcsr(dword_ptr(rbx + HOST_MXCSR))?;
    a.pop(rbx)?;
    a.ret()?;
    a.assemble(0)
}

/// The registers of the components in `used`; the others have their initial values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Vectors {
    x87: X87State,
    mxcsr: u32,
    xmm: [u128; 16],
    ymm_high: [u128; 16],
}

impl Vectors {
    fn random(random: &mut Random, used: u64) -> Self {
        let state = State::random(random);
        let registers = |random: &mut Random, bit| match used & bit {
            0 => [0; 16],
            _ => std::array::from_fn(|_| random.u128() | 1),
        };
        Self {
            x87: match used & component::X87 {
                0 => X87State::default(),
                _ => state.x87,
            },
            mxcsr: match random.below(3) {
                0 => 0x1F80,
                _ => state.mxcsr,
            },
            xmm: registers(random, component::SSE),
            ymm_high: registers(random, component::AVX),
        }
    }

    fn image(&self, present: u64) -> XsaveArea {
        let mut area = XsaveArea::default();
        area.put_x87(&self.x87, Pointers::Bits64);
        area.put_mxcsr(self.mxcsr);
        area.put_xmm(&self.xmm);
        area.put_ymm_high(&self.ymm_high);
        area.put_xstate_bv(present);
        area
    }

    /// Where and what the last x87 instruction was depends on the processor.
    fn of(area: &XsaveArea) -> Self {
        let x87 = area.x87(Pointers::Bits64);
        Self {
            x87: X87State {
                fop: 0,
                fip: 0,
                fdp: 0,
                ..x87
            },
            mxcsr: area.mxcsr(),
            xmm: area.xmm(),
            ymm_high: area.ymm_high(),
        }
    }
}

fn area(memory: &Memory) -> XsaveArea {
    let mut area = XsaveArea::default();
    area.bytes_mut()
        .copy_from_slice(&memory.0[..XsaveArea::SIZE]);
    area
}

/// An operand: garbage, but with what XRSTOR accepts in the header, and in MXCSR.
fn operand(random: &mut Random) -> Memory {
    let mut memory = Memory(std::array::from_fn(|_| random.next() as u8));
    let present = random.next() & ALL;
    let contents = Vectors::random(random, ALL);
    let mut area = contents.image(present);
    if random.below(2) == 0 {
        area.put_xcomp_bv(present | random.next() & ALL);
    }
    for range in XsaveArea::X87.into_iter().chain([
        XsaveArea::MXCSR,
        XsaveArea::xmm_range(16),
        XsaveArea::HEADER,
        XsaveArea::ymm_high_range(16),
    ]) {
        memory.0[range.clone()].copy_from_slice(&area.bytes()[range]);
    }
    memory
}

/// What an instruction has made of registers and memory.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    registers: Vectors,
    memory: Memory,
    /// XGETBV with ECX = 1, before the instruction.
    in_use: u64,
}

impl Outcome {
    fn of(registers: &XsaveArea, mut memory: Memory, in_use: u64) -> Self {
        // The last x87 instruction, and MXCSR_MASK.
        memory.0[6..24].fill(0);
        memory.0[28..32].fill(0);
        Self {
            registers: Vectors::of(registers),
            memory,
            in_use: in_use & ALL,
        }
    }

    fn of_host(native: &Native, before: &Vectors, used: u64, memory: &Memory, mask: u64) -> Self {
        let mut registers = Memory([0; SIZE]);
        registers.0[..XsaveArea::SIZE].copy_from_slice(before.image(used).bytes());
        let mut exchange = Exchange {
            registers,
            memory: *memory,
            mask,
            in_use: 0,
            host_mxcsr: 0x1F80,
        };
        native.call(&mut exchange);
        Self::of(&area(&exchange.registers), exchange.memory, exchange.in_use)
    }

    fn of_guest(guest: &mut Guest, before: &Vectors, memory: &Memory, mask: u64, end: u64) -> Self {
        guest.write_bytes(DATA, &memory.0);
        guest.update(|s| {
            s.gpr[gpr::RDI] = DATA;
            (s.gpr[gpr::RAX], s.gpr[gpr::RDX]) = (mask & 0xFFFF_FFFF, mask >> 32);
            s.rip = KERNEL;
            s.activity = Activity::Active;
            s.sys.cr4 |= cr4::OSXSAVE;
            s.sys.xcr0 = ALL;
            s.x87 = before.x87;
            s.mxcsr = before.mxcsr;
            (s.xmm, s.ymm_high) = (before.xmm, before.ymm_high);
        });
        guest.run_to(end);
        let mut after = Memory([0; SIZE]);
        for (at, chunk) in (DATA..).step_by(8).zip(after.0.chunks_mut(8)) {
            chunk.copy_from_slice(&guest.read(at).to_le_bytes());
        }
        let s = guest.soft.cpu.state();
        let registers = Vectors {
            x87: s.x87,
            mxcsr: s.mxcsr,
            xmm: s.xmm,
            ymm_high: s.ymm_high,
        };
        Self::of(&registers.image(0), after, s.gpr[gpr::RBX])
    }
}

#[test]
fn xsave_and_xrstor_are_those_of_the_host() {
    let has = is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("xsaveopt")
        && is_x86_feature_detected!("xsavec");
    if !has {
        println!("the host's processor does not have all of XSAVE");
        return;
    }
    let mut random = Random::new(28);
    for (name, instruction) in INSTRUCTIONS {
        let native = Native::function(&wrap(instruction).unwrap());
        let mut guest = Guest::of(later());
        let end = guest.assemble(KERNEL, |a| {
            // XGETBV with ECX = 1.
            a.mov(esi, eax)?;
            a.mov(ebp, edx)?;
            a.mov(ecx, 1)?;
            a.xgetbv()?;
            a.mov(rbx, rax)?;
            a.mov(eax, esi)?;
            a.mov(edx, ebp)?;
            instruction(a)?;
            a.hlt()
        });
        for _ in 0..500 {
            let used = random.next() & ALL;
            let before = Vectors::random(&mut random, used);
            let memory = operand(&mut random);
            // The model has no other components, and the host may.
            let mask = random.next() & !(!ALL & native_components()) | random.next() & ALL;
            let context = || {
                format!(
                    "{name} with mask {mask:x}, components {used:x}, MXCSR {:x}, XSTATE_BV {:x}, \
                     XCOMP_BV {:x}",
                    before.mxcsr,
                    area(&memory).xstate_bv(),
                    area(&memory).xcomp_bv()
                )
            };
            let guest = Outcome::of_guest(&mut guest, &before, &memory, mask, end);
            // After a switch of tasks the host counts more components as in use.
            let same =
                (0..5).any(|_| guest == Outcome::of_host(&native, &before, used, &memory, mask));
            if !same {
                let host = Outcome::of_host(&native, &before, used, &memory, mask);
                panic!("{}: {:x?}\n{:x?}", context(), guest, host);
            }
        }
    }
}

/// XCR0 of the host.
fn native_components() -> u64 {
    // SAFETY: the caller has found XSAVE, which the system has enabled then.
    unsafe { std::arch::x86_64::_xgetbv(0) }
}
