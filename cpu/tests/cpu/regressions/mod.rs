//! Instructions that the software CPU once executed wrongly. `ci/suite fuzz-cpu`, which compares
//! random instructions with the host's processor, found each of them. Here each instruction runs
//! alone at CPL 3. The UD2 after it ends the guest if the instruction completes.

mod addresses;
mod bit_strings;
mod encoding;
mod legacy;
mod stack;
mod strings;
mod x87;

use crate::common::deviations::{apply_to_case, is_left_out};
use crate::common::{DATA, Guest, USER, assemble, segment, selector};
use After::{Flags, Gpr, Memory, StatusWord};
use End::{Completes, Faults, PageFaults};
use Mode::{Bits32, Bits64};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::ArchState;
use vbts_cpu::state::gpr::RSP;
use vbts_cpu::state::vector::{PF, UD};
use vbts_cpu::state::{Segment, cr0, rflags};

/// Where the code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// 64-bit mode.
    Bits64,
    /// Compatibility mode, 32-bit code.
    Bits32,
}

/// How the instruction ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Completes,
    /// Vector and error code.
    Faults(u8, Option<u64>),
    /// Error code and CR2.
    PageFaults(u64, u64),
}

/// A part of the state after the instruction, and its expected value.
#[derive(Debug, Clone, Copy)]
enum After {
    /// A general register.
    Gpr(usize, u64),
    /// Eight bytes of memory.
    Memory(u64, u64),
    /// The arithmetic flags.
    Flags(u64),
    /// The x87 status word.
    StatusWord(u16),
}

struct Case {
    name: &'static str,
    mode: Mode,
    code: fn(&mut CodeAssembler) -> Result<(), IcedError>,
    /// Sets up the state. All other registers are zero.
    before: fn(&mut ArchState),
    /// Quadwords of memory before the instruction; the rest is zero.
    memory: &'static [(u64, u64)],
    end: End,
    after: &'static [After],
}

/// Not canonical.
const HOLE: u64 = 0x8000_0000_0000;

/// Canonical; nothing is mapped from here to the next gigabyte.
const NOWHERE: u64 = 0x4000_0000;

/// A page of user data between pages that are not mapped.
const ISLAND: u64 = DATA + 0x1_1000;

/// Page-fault error codes of user code: a read and a write of a page that is not present, and of a
/// supervisor page.
const READ: u64 = 4;

const WRITE: u64 = 6;

const READ_KERNEL: u64 = 5;

const WRITE_KERNEL: u64 = 7;

/// A data segment that ends at a limit.
fn limited(limit: u64) -> Segment {
    Segment {
        limit: limit as u32,
        ..segment(selector::USER_SS)
    }
}

impl Case {
    fn assemble(&self) -> Vec<u8> {
        let bitness = match self.mode {
            Bits64 => 64,
            Bits32 => 32,
        };
        assemble(bitness, USER, self.code)
    }

    /// The address after the instruction.
    fn end_address(&self) -> u64 {
        USER + self.assemble().len() as u64
    }
}

fn start(case: &Case) -> Guest {
    let mut g = Guest::user(|_| Ok(()));
    g.write_bytes(USER, &case.assemble());
    g.assemble(case.end_address(), |a| a.ud2());
    for &(at, value) in case.memory {
        g.write(at, value);
    }
    for neighbour in [ISLAND - 0x1000, ISLAND + 0x1000] {
        g.page(neighbour, 0);
    }
    g.update(|s| {
        if case.mode == Bits32 {
            s.seg[1] = segment(selector::USER_CS32);
        }
        s.sys.cr0 &= !(cr0::EM | cr0::TS);
        (case.before)(s);
    });
    g
}

fn check(case: &Case) {
    let mut g = start(case);
    apply_to_case(&mut g.soft, case.name);
    // CR2 stays zero unless there is a page fault.
    let (vector, error, address) = match case.end {
        Completes => (UD, None, 0),
        Faults(vector, error) => (vector, error, 0),
        PageFaults(error, address) => (PF, Some(error), address),
    };
    let frame = g.run_to_exception(vector, error);
    let at = match case.end {
        Completes => case.end_address(),
        _ => USER,
    };
    assert_eq!((frame.rip, g.soft.cpu.sys.cr2), (at, address));
    for &after in case.after {
        match after {
            Gpr(RSP, value) => assert_eq!(frame.rsp, value, "RSP"),
            Gpr(n, value) => assert_eq!(g.soft.cpu.gpr[n], value, "register {n}"),
            Memory(at, value) => assert_eq!(g.read(at), value, "memory {at:#x}"),
            Flags(value) => assert_eq!(frame.rflags & rflags::ARITH, value, "RFLAGS"),
            StatusWord(value) => assert_eq!(g.soft.cpu.x87.fsw, value, "status word"),
        }
    }
}

/// Runs all cases of a table and reports the names of those that fail.
fn run(cases: &[Case]) {
    let failed: Vec<&str> = cases
        .iter()
        .filter(|case| !is_left_out(case.name))
        .filter(|case| {
            let result = std::panic::catch_unwind(|| check(case));
            if result.is_err() {
                eprintln!("^ in the case: {}", case.name);
            }
            result.is_err()
        })
        .map(|case| case.name)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn addresses() {
    run(addresses::CASES);
}

#[test]
fn bit_strings() {
    run(bit_strings::CASES);
}

#[test]
fn encoding() {
    run(encoding::CASES);
}

#[test]
fn legacy() {
    run(legacy::CASES);
}

#[test]
fn stack() {
    run(stack::CASES);
}

#[test]
fn strings() {
    run(strings::CASES);
}

#[test]
fn x87() {
    run(x87::CASES);
}
