//! Small machines for tests of the processor: memory, the tables that system software sets up, a
//! platform with an interrupt source, and a processor that is about to run a few instructions.
//!
//! | module | contents |
//! |---|---|
//! | [`memory`] | guest RAM between guard pages |
//! | [`platform`] | the machine around the processor: ports that raise interrupts, a report port |
//! | [`descriptor`] | segment descriptors and gates as numbers |
//! | [`environment`] | RAM contents and processor state, built step by step, and the machine that starts with them |
//! | [`processor`] | a processor that the software CPU executes or, by VBTS_ACCEL, KVM |
//! | [`files`] | files of the host that fail |
//! | [`elf`] | ELF files, hostile ones among them |
//! | [`lockstep`] | random programs with and without native code, in lock step |
//! | [`naive_verifier`] | a second check of native code, an oracle for the first |
//! | [`random`] | a generator of pseudo-random numbers whose seed is all that a reproduction needs |
//! | [`skips`] | what tests leave out, for the scripts that run them |
//!
//! A machine is made in three steps: an [`Environment`] describes memory and registers,
//! [`Environment::machine`] copies it into new memory, and [`Machine`] runs it:
//!
//! ```
//! use iced_x86::code_asm::*;
//! use vbts_cpu::Exit;
//! use vbts_cpu::state::gpr::RAX;
//! use vbts_testkit::Environment;
//! use vbts_testkit::descriptor::{KERNEL_CODE64, KERNEL_DATA, selector};
//!
//! const DESCRIPTORS: &[(u16, u64)] = &[
//!     (selector::KERNEL_CS, KERNEL_CODE64),
//!     (selector::KERNEL_SS, KERNEL_DATA),
//! ];
//! const CODE: u64 = 0x8000;
//! const STACK: u64 = 0x1_0000;
//!
//! let mut environment = Environment::new(0x1_0000);
//! environment.gdt(0x1000, DESCRIPTORS, selector::KERNEL_SS);
//! // Every page is present and writable.
//! environment.page_tables(0x2000, |_| 3);
//! environment.start(selector::KERNEL_CS, selector::KERNEL_SS, CODE, STACK);
//! environment.assemble(64, CODE, |a| {
//!     a.mov(eax, 6)?;
//!     a.imul_3(eax, eax, 7)?;
//!     a.hlt()
//! });
//!
//! let mut machine = environment.machine(vbts_cpu::model("core2").unwrap());
//! assert!(matches!(machine.soft.run(1000), Exit::Halt { .. }));
//! assert_eq!(machine.soft.cpu.gpr[RAX], 42);
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "only tests use it: a panic fails the test"
)]

pub mod descriptor;
pub mod elf;
pub mod environment;
pub mod files;
pub mod lockstep;
pub mod memory;
pub mod naive_verifier;
pub mod platform;
pub mod processor;
pub mod random;
pub mod skips;

pub use environment::{Environment, Machine};
pub use memory::Ram;
pub use platform::TestPlatform;
pub use processor::Processor;

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;

/// The result of a function that assembles instructions.
pub type Emit = Result<(), IcedError>;

/// Assembles a program for code of `bitness` bits at address `at`.
///
/// # Panics
/// An instruction cannot be encoded.
pub fn assemble(
    bitness: u32,
    at: u64,
    program: impl FnOnce(&mut CodeAssembler) -> Emit,
) -> Vec<u8> {
    let mut a = assembler(bitness);
    let emitted = program(&mut a);
    encode(a, emitted, at)
}

// Each of several hundred programs has an `assemble` of its own: these parts are compiled once.
#[inline(never)]
fn assembler(bitness: u32) -> CodeAssembler {
    CodeAssembler::new(bitness).unwrap()
}

#[inline(never)]
fn encode(mut a: CodeAssembler, emitted: Emit, at: u64) -> Vec<u8> {
    emitted.unwrap();
    a.assemble(at).unwrap()
}
