//! Native code that all blocks share: the way in, the way out, and calls of Rust functions.

use std::mem::offset_of;

use crate::backend::jit::assembler::{
    Assembler, Imm, Mem, Op, Places, R8, R9, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI,
    RSP, Reg, cond,
};
use crate::backend::jit::calls;
use crate::backend::jit::layout::{
    BIAS, CPU, FRAME_BUDGET, FRAME_FLAGS, FRAME_LIMIT, FRAME_SIZE, Frame, HOST, ICOUNT, PRIVILEGE,
    RIP, TLB_CURRENT, TLB_TABLE, exit, register,
};
use crate::mmu::access::Privilege;
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
pub(super) type Enter = unsafe extern "sysv64" fn(*mut Cpu, u64, *const Frame<'_>) -> Returned;

/// Addresses of the routines.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Routines {
    /// An [`Enter`].
    pub enter: u64,
    /// Leaves native code, with a code in EAX and RIP in R14.
    pub exit: u64,
    /// As `exit`, at the end of a block: because the budget is used up, if it is.
    pub exit_at_end: u64,
    /// Calls [`calls::execute`] with what is in EAX and at R14, a RIP and the two parts of a
    /// `BlockHandle`, and returns only to go on.
    pub execute: u64,
    /// Calls [`calls::record`] with what is in RAX and R14, and returns only to go on.
    pub record: u64,
    /// Selects the privilege of data at CPL 0 with SMAP, after CLAC and after STAC.
    pub set_ac: [u64; 2],
}

/// The privileges after CLAC and after STAC.
const PRIVILEGES: [Privilege; 2] = [Privilege::SupervisorPages, Privilege::Supervisor];

/// Selects one of [`PRIVILEGES`], from the other, as `Tlb::select` does. Overwrites RAX and R14.
fn select_privilege(a: &mut Assembler, to: Privilege) {
    let other = Mem {
        disp: TLB_TABLE.disp + 8 * Privilege::SupervisorPages as i32,
        ..TLB_TABLE
    };
    a.load(RAX, &TLB_TABLE);
    a.load(R14, &other);
    a.store(&TLB_TABLE, R14);
    a.store(&other, RAX);
    for field in [TLB_CURRENT, PRIVILEGE] {
        // MOV byte [field], to
        a.memory(false, &[0xC6], 0, &field);
        a.bytes(&[to as u8]);
    }
    a.ret();
}

impl Routines {
    /// Those to which blocks jump.
    pub(super) fn exits(&self) -> [u64; 2] {
        [self.exit, self.exit_at_end]
    }

    /// Those that blocks call.
    pub(super) fn called(&self) -> [u64; 3] {
        let [clac, stac] = self.set_ac;
        [self.record, clac, stac]
    }
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
    let mut a = Assembler::default();
    a.begin(Places {
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
    for at in (0..size_of::<Frame<'_>>() as i32).step_by(8) {
        a.load(RAX, &Mem::at(RDX, at));
        a.store(&Mem::at(RSP, at), RAX);
    }
    a.mov(RAX, RSI);
    reload(&mut a);
    a.jump_to(RAX);

    routines.exit_at_end = here(&a);
    let in_budget = a.label();
    a.imm_mem(Imm::Cmp, &FRAME_BUDGET, 0);
    a.jump_if(cond::G, in_budget);
    a.mov_imm(RAX, exit::BUDGET.into());

    routines.exit = here(&a);
    a.bind(in_budget);
    a.store(&RIP, R14);
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
    for (address, function, of_block) in [
        (&mut routines.execute, execute, true),
        (&mut routines.record, record, false),
    ] {
        *address = here(&a);
        spill(&mut a);
        a.lea(RDI, &Mem::at(CPU, -BIAS));
        a.lea(RSI, &Mem::at(RSP, 8));
        a.mov(RDX, RAX);
        if of_block {
            a.load(RCX, &Mem::at(R14, 0));
            a.load(R8, &Mem::at(R14, 8));
            a.load(R9, &Mem::at(R14, 16));
        } else {
            a.mov(RCX, R14);
        }
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
    const { assert!(offset_of!(Frame<'_>, budget) == 0) };
    for (address, to) in (routines.set_ac.iter_mut()).zip(PRIVILEGES) {
        *address = here(&a);
        select_privilege(&mut a, to);
    }
    (a.finish()[0].code.to_vec(), routines)
}
