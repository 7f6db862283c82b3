//! Native code that all blocks share: the way in, the way out, and calls of Rust functions.

use std::mem::offset_of;

use crate::backend::jit::assembler::{
    Assembler, Imm, Mem, Op, Places, R8, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI,
    RSP, Reg, cond,
};
use crate::backend::jit::calls;
use crate::backend::jit::layout::{
    BIAS, CPU, FRAME_BUDGET, FRAME_COUNT, FRAME_FLAGS, FRAME_LIMIT, FRAME_SIZE, Frame, HOST,
    ICOUNT, register,
};
use crate::processor::cpu::Cpu;

/// How native code ended.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Returned {
    /// See [`crate::backend::jit::exit`].
    pub code: u64,
    /// As in [`Frame`].
    pub flags: u64,
}

/// Enters native code at an address. The frame has the values to begin with.
pub(super) type Enter = unsafe extern "sysv64" fn(*mut Cpu, u64, *const Frame) -> Returned;

/// Addresses of the routines.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Routines {
    /// An [`Enter`].
    pub enter: u64,
    /// Leaves native code, with a code in EAX.
    pub exit: u64,
    /// Calls [`calls::execute`] for one instruction with what is in RAX and R14, and returns only
    /// to go on.
    pub execute: u64,
    /// As `execute`, for the number of instructions in the frame.
    pub execute_run: u64,
    /// Calls it for the rest of the block, and leaves native code.
    pub finish: u64,
    /// Calls [`calls::record`] with what is in RAX and R14, and returns only to go on.
    pub record: u64,
}

const SAVED: [Reg; 6] = [RBX, RBP, R12, R13, R14, R15];

/// Host and guest registers, where the guest's has one of the host.
fn mapped() -> impl Iterator<Item = (Reg, Mem)> {
    (0u8..)
        .zip(HOST)
        .filter_map(|(n, host)| Some((host?, register(n))))
}

fn spill(a: &mut Assembler) {
    for (host, guest) in mapped() {
        a.store(&guest, host);
    }
}

fn reload(a: &mut Assembler) {
    for (host, guest) in mapped() {
        a.load(host, &guest);
    }
}

/// Writes the routines, of which the first byte is at `start`.
pub(super) fn write(start: u64) -> (Vec<u8>, Routines) {
    let mut a = Assembler::new(Places {
        often: start,
        rarely: start,
    });
    let here = |a: &Assembler| start + a.len() as u64;
    let mut routines = Routines {
        enter: here(&a),
        ..Routines::default()
    };
    for r in SAVED {
        a.push(r);
    }
    a.imm(true, Imm::Sub, RSP, FRAME_SIZE);
    a.lea(CPU, &Mem::at(RDI, BIAS));
    for at in (0..size_of::<Frame>() as i32).step_by(8) {
        a.load(RAX, &Mem::at(RDX, at));
        a.store(&Mem::at(RSP, at), RAX);
    }
    a.mov(RAX, RSI);
    reload(&mut a);
    a.jump_to(RAX);

    routines.exit = here(&a);
    spill(&mut a);
    let exit_spilled = a.here();
    a.load(RCX, &FRAME_LIMIT);
    a.op_mem(Op::Sub, RCX, &FRAME_BUDGET);
    a.store(&ICOUNT, RCX);
    a.load(RDX, &FRAME_FLAGS);
    a.imm(true, Imm::Add, RSP, FRAME_SIZE);
    for r in SAVED.into_iter().rev() {
        a.pop(r);
    }
    a.ret();

    let execute = calls::execute as *const () as u64;
    let record = calls::record as *const () as u64;
    for (address, function, count) in [
        (&mut routines.execute, execute, Some(1)),
        (&mut routines.execute_run, execute, None),
        (&mut routines.finish, execute, Some(calls::REST)),
        (&mut routines.record, record, Some(0)),
    ] {
        *address = here(&a);
        spill(&mut a);
        match count {
            Some(count) => a.mov_imm(R8, count),
            // The call has moved RSP.
            None => a.load(R8, &Mem::at(RSP, FRAME_COUNT.disp + 8)),
        }
        a.lea(RDI, &Mem::at(CPU, -BIAS));
        a.lea(RSI, &Mem::at(RSP, 8));
        a.mov(RDX, RAX);
        a.mov(RCX, R14);
        a.mov_imm(RAX, function);
        a.call_register(RAX);
        // TEST EAX, EAX
        a.bytes(&[0x85, 0xC0]);
        let leave = a.label();
        a.jump_if(cond::NE, leave);
        reload(&mut a);
        a.ret();
        a.bind(leave);
        a.imm(true, Imm::Add, RSP, 8);
        a.jump(exit_spilled);
    }
    const { assert!(offset_of!(Frame, budget) == 0) };
    (a.finish().0, routines)
}
