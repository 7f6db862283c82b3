//! Recording of branches.

use crate::backend::jit::assembler::{Assembler, Imm, Mem, Op, R14, RAX, cond};
use crate::backend::jit::layout::{RIP, WINDOW_ADDEND, WINDOW_END, WINDOW_FIELD, WINDOW_INDEX};
use crate::backend::jit::stub::{Stub, Target};
use crate::backend::jit::translate::{Source, Translator};

impl Translator<'_> {
    /// Records a branch, if branches are recorded. As `Cpu::record_near`.
    pub(super) fn record(&mut self, from: Source, target: Target) {
        if !self.context.recording {
            return;
        }
        let (at, back) = (self.asm.label(), self.asm.label());
        let a = &mut self.asm;
        a.load(RAX, &WINDOW_INDEX);
        a.op_mem(Op::Cmp, RAX, &WINDOW_END);
        a.jump_if(cond::AE, at);
        a.op_mem(Op::Add, RAX, &WINDOW_ADDEND);
        store_value(a, &Mem::at(RAX, 0), from.address);
        match target {
            Target::Direct(to) => store_value(a, &Mem::at(RAX, 8), to),
            Target::Indirect => {
                a.load(R14, &RIP);
                a.store(&Mem::at(RAX, 8), R14);
            }
        }
        a.store_imm(&Mem::at(RAX, 16), 0);
        a.load(R14, &WINDOW_INDEX);
        a.load(RAX, &WINDOW_FIELD);
        a.imm(true, Imm::Add, R14, vbts_bts::RECORD_SIZE as i32);
        a.store(&WINDOW_INDEX, R14);
        a.store(&Mem::at(RAX, 0), R14);
        a.bind(back);
        self.stubs.push(Stub::Record {
            at,
            back,
            from,
            target,
        });
    }
}

/// Stores a constant. Overwrites R14 if it does not fit an immediate.
fn store_value(a: &mut Assembler, m: &Mem, value: u64) {
    match i32::try_from(value as i64) {
        Ok(short) => a.store_imm(m, short),
        Err(_) => {
            a.mov_imm(R14, value);
            a.store(m, R14);
        }
    }
}
