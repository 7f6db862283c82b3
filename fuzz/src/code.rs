//! Inputs that are code: any bytes in every mode, with any registers, while branches are recorded.

use vbts_cpu::state::rflags;

use crate::guest::{CODE, DATA, Guest, Mode, RAM};
use crate::input::Input;

/// Bits of the second byte.
const TRAP: u8 = 1;
const INTERRUPTS: u8 = 2;
const ALIGNMENT: u8 = 4;
const BACKWARDS: u8 = 8;
/// The code begins shortly before the end of a page.
const CROSSING: u8 = 16;
const IO: u8 = 32;

/// A repeated string instruction is as many as it has parts of 65,536 iterations, and can take the
/// slow path in each of them.
const INSTRUCTIONS: u64 = 250;

/// A register: mostly an address of data or a small number, since those make most instructions do
/// something.
fn register(input: &mut Input<'_>) -> u64 {
    let byte = input.u8();
    let value = u64::from(byte >> 2);
    match byte & 3 {
        0 => DATA + value * 0x100,
        1 => value,
        2 => value.wrapping_neg(),
        _ => input.u64(),
    }
}

/// Executes the code of an input, on a processor that `prepare` may change before.
///
/// # Panics
/// It did not stop in time, or has flags that do not exist.
pub fn run(data: &[u8], prepare: impl FnOnce(&mut Guest)) {
    let mut input = Input::new(data);
    let mode = input.choose(&Mode::ALL);
    let flags = input.u8();
    let debugctl = input.u16();
    let mut guest = Guest::new(mode);
    prepare(&mut guest);
    guest.update(|s| {
        for (n, r) in s.gpr.iter_mut().enumerate() {
            // The stack pointer is right already.
            if n != 4 {
                *r = register(&mut input);
            }
        }
        for (n, x) in s.xmm.iter_mut().enumerate() {
            *x = u128::from(s.gpr[n]).wrapping_mul(0x0001_0203_0405_0607_0809);
        }
        for (flag, bits) in [
            (TRAP, rflags::TF),
            (INTERRUPTS, rflags::IF),
            (ALIGNMENT, rflags::AC),
            (BACKWARDS, rflags::DF),
            (IO, rflags::IOPL),
        ] {
            if flags & flag != 0 {
                s.rflags |= bits;
            }
        }
        s.sys.cr0 |= vbts_cpu::state::cr0::AM;
        s.debugctl = debugctl.into();
        if flags & CROSSING != 0 {
            s.rip += 0xFFA;
        }
    });
    let start = if flags & CROSSING != 0 {
        CODE + 0xFFA
    } else {
        CODE
    };
    guest.write(start, input.bytes((DATA - start) as usize));
    guest.run(INSTRUCTIONS);
    let (state, cpu) = (guest.machine.soft.cpu.state(), &guest.machine.soft.cpu);
    assert!(cpu.instructions() <= INSTRUCTIONS + 256, "overran: {cpu:?}");
    assert_eq!(state.rflags & !(rflags::ALL | rflags::FIXED), 0);
    const { assert!(DATA < RAM as u64) };
}
