//! Native code that all blocks share: the way in, the way out, and calls of Rust functions.

use std::mem::offset_of;

use crate::backend::jit::assembler::{
    Assembler, Imm, Mem, Op, R8, R9, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP,
    Reg, Sections, cond,
};
use crate::backend::jit::calls::jump_table::{JUMP_CODE, JUMP_MASK};
use crate::backend::jit::calls::{execute, exit};
use crate::backend::jit::flags;
use crate::backend::jit::registers::frame::{
    FRAME_BUDGET, FRAME_FLAGS, FRAME_JUMPS, FRAME_LIMIT, FRAME_SIZE, FRAME_TARGET, Frame,
};
use crate::backend::jit::registers::map::{CPU, POINTER, SCRATCH, mapped};
use crate::backend::jit::registers::processor::{
    BIAS, ICOUNT, PRIVILEGE, RIP, TLB_CURRENT, TLB_TABLE, register,
};
use crate::mmu::access::Privilege;
use crate::processor::cpu::Cpu;

/// The values with which native code returns.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Returned {
    /// See [`exit`].
    pub code: u64,
    /// The flags in the form of [`Frame::flags`].
    pub flags: u64,
}

/// Enters native code at an address. The frame has the values to begin with.
pub(crate) type Enter = unsafe extern "sysv64" fn(*mut Cpu, u64, *const Frame<'_>) -> Returned;

/// Addresses of the routines.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Routines {
    /// Address of an [`Enter`].
    pub enter: u64,
    /// Leaves native code, with a code in SCRATCH and RIP in POINTER.
    pub exit: u64,
    /// Leaves native code at the end of a block with the code in SCRATCH, and [`exit::BUDGET`] if
    /// the budget is used up.
    pub exit_at_end: u64,
    /// Leaves native code with [`exit::INDIRECT`] and with the target in the frame as RIP, and
    /// [`exit::BUDGET`] if the budget is used up.
    pub exit_indirect: u64,
    /// Calls [`execute::execute`] with the instructions in SCRATCH, and a RIP and the two parts of
    /// a `BlockHandle` at POINTER. Returns only to continue native code, with the saved flags in
    /// the host's, too. Jumps to the next block if a branch has ended this one.
    pub execute: u64,
    /// Calls [`execute::record`] with the number of a branch in SCRATCH. Returns only to continue
    /// native code.
    pub record: u64,
    /// Selects the privilege of data at CPL 0 with SMAP, after CLAC and after STAC.
    pub set_ac: [u64; 2],
}

/// The privileges after CLAC and after STAC.
const PRIVILEGES: [Privilege; 2] = [Privilege::SupervisorPages, Privilege::Supervisor];

/// Selects one of [`PRIVILEGES`], from the other, as `Tlb::select` does. Clobbers SCRATCH and
/// POINTER.
fn select_privilege(a: &mut Assembler, to: Privilege) {
    let other = Mem {
        disp: TLB_TABLE.disp + 8 * Privilege::SupervisorPages as i32,
        ..TLB_TABLE
    };
    a.load(SCRATCH, &TLB_TABLE);
    a.load(POINTER, &other);
    a.store(&TLB_TABLE, POINTER);
    a.store(&other, SCRATCH);
    for field in [TLB_CURRENT, PRIVILEGE] {
        a.store_imm8(&field, to as u8);
    }
    a.ret();
}

impl Routines {
    /// Returns the routines to which blocks jump.
    pub(crate) fn exits(&self) -> [u64; 3] {
        [self.exit, self.exit_at_end, self.exit_indirect]
    }

    /// Returns the routines that blocks call.
    pub(crate) fn called(&self) -> [u64; 3] {
        let [clac, stac] = self.set_ac;
        [self.record, clac, stac]
    }
}

const SAVED: [Reg; 6] = [RBX, RBP, R12, R13, R14, R15];

fn spill(a: &mut Assembler) {
    for (guest, host) in mapped() {
        a.store(&register(guest), host);
    }
}

fn reload(a: &mut Assembler) {
    for (guest, host) in mapped() {
        a.load(host, &register(guest));
    }
}

/// Jumps to the target in the frame, at the end of a block. Leaves native code by `exit_indirect`
/// if the run loop has to take over, or the table of jumps does not have the target.
fn jump_to_target(a: &mut Assembler, exit_indirect: u64) {
    a.imm_mem(Imm::Cmp, &FRAME_BUDGET, 0);
    a.jump_if_address(cond::LE, exit_indirect);
    a.op_mem32(Op::Load, SCRATCH, &FRAME_TARGET);
    a.imm(false, Imm::And, SCRATCH, JUMP_MASK as i32);
    a.load(POINTER, &FRAME_JUMPS);
    let entry = Mem {
        index: Some((SCRATCH, 8)),
        ..Mem::at(POINTER, 0)
    };
    a.lea(POINTER, &entry);
    a.load(SCRATCH, &FRAME_TARGET);
    a.op_mem(Op::Cmp, SCRATCH, &Mem::at(POINTER, 0));
    a.jump_if_address(cond::NE, exit_indirect);
    a.jump_mem(&Mem::at(POINTER, JUMP_CODE as i32));
}

/// Returns the routines, whose first byte will be at `start`, and their addresses.
pub(crate) fn write(start: u64) -> (Vec<u8>, Routines) {
    let mut a = Assembler::default();
    a.begin(Sections {
        hot: start,
        cold: start,
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
    for at in (0..size_of::<Frame<'_>>() as i32).step_by(8) {
        a.load(RAX, &Mem::at(RDX, at));
        a.store(&Mem::at(RSP, at), RAX);
    }
    a.mov(RAX, RSI);
    reload(&mut a);
    a.jump_to(RAX);

    routines.exit_indirect = here(&a);
    a.load(POINTER, &FRAME_TARGET);
    a.mov_imm(SCRATCH, exit::INDIRECT.into());

    routines.exit_at_end = here(&a);
    let in_budget = a.label();
    a.imm_mem(Imm::Cmp, &FRAME_BUDGET, 0);
    a.jump_if(cond::G, in_budget);
    a.imm(false, Imm::Or, SCRATCH, exit::BUDGET as i32);

    routines.exit = here(&a);
    a.bind(in_budget);
    a.store(&RIP, POINTER);
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

    let execute = execute::execute as *const () as u64;
    let record = execute::record as *const () as u64;
    for (address, function, of_block) in [
        (&mut routines.execute, execute, true),
        (&mut routines.record, record, false),
    ] {
        *address = here(&a);
        spill(&mut a);
        a.lea(RDI, &Mem::at(CPU, -BIAS));
        a.lea(RSI, &Mem::at(RSP, 8));
        a.mov(RDX, SCRATCH);
        if of_block {
            a.load(RCX, &Mem::at(POINTER, 0));
            a.load(R8, &Mem::at(POINTER, 8));
            a.load(R9, &Mem::at(POINTER, 16));
        }
        a.mov_imm(RAX, function);
        a.call_register(RAX);
        a.test(false, RAX);
        let leave = a.label();
        a.jump_if(cond::NE, leave);
        reload(&mut a);
        if of_block {
            // The frame is above the return address.
            flags::restore_saved(&mut a, 8);
        }
        a.ret();
        a.bind(leave);
        a.imm(true, Imm::Add, RSP, 8);
        if of_block {
            a.imm(false, Imm::Cmp, RAX, exit::BRANCH as i32);
            a.jump_if(cond::NE, exit_spilled);
            reload(&mut a);
            jump_to_target(&mut a, routines.exit_indirect);
        } else {
            a.jump(exit_spilled);
        }
    }
    const { assert!(offset_of!(Frame<'_>, budget) == 0) };
    for (address, to) in (routines.set_ac.iter_mut()).zip(PRIVILEGES) {
        *address = here(&a);
        select_privilege(&mut a, to);
    }
    (a.finish()[0].code.to_vec(), routines)
}
