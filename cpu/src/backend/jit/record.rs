//! Recording of branches.

use crate::backend::jit::assembler::{Imm, Label, Mem, Op, R14, RAX, XMM0, cond};
use crate::backend::jit::layout::{
    FRAME_TARGET, WINDOW_ADDEND, WINDOW_END, WINDOW_FIELD, WINDOW_INDEX,
};
use crate::backend::jit::stub::{Stub, Target};
use crate::backend::jit::translate::{Source, Translator};

/// The addresses of a recorded branch that are no immediates, which native code stores together.
#[derive(Debug)]
pub(super) struct Addresses {
    at: Label,
    from: u64,
    /// `None`: it is not known before.
    to: Option<u64>,
}

/// Opcodes for an XMM register and memory.
const MOVUPS_LOAD: &[u8] = &[0x0F, 0x10];
const MOVUPS_STORE: &[u8] = &[0x0F, 0x11];
const MOVHPS_LOAD: &[u8] = &[0x0F, 0x16];
const MOVQ_LOAD: &[u8] = &[0xF3, 0x0F, 0x7E];
const MOVLPS_STORE: &[u8] = &[0x0F, 0x13];

impl Translator<'_> {
    /// Records a branch, if branches are recorded. As `Cpu::record_near`. Returns what has to be
    /// written behind the jump that follows.
    ///
    /// This is the end of the block: nothing needs the host's flags or XMM registers any more.
    pub(super) fn record(&mut self, from: Source, target: Target) -> Option<Addresses> {
        if !self.context.recording {
            return None;
        }
        self.assert_unloaded();
        let (at, back) = (self.asm.label(), self.asm.label());
        let a = &mut self.asm;
        a.load(RAX, &WINDOW_INDEX);
        a.op_mem(Op::Cmp, RAX, &WINDOW_END);
        a.jump_if(cond::AE, at);
        a.load(R14, &WINDOW_ADDEND);
        let slot = |offset| Mem {
            index: Some((R14, 1)),
            ..Mem::reserved(RAX, offset)
        };
        // Sign-extended immediates need no data from a line of code.
        let short = |address: u64| i32::try_from(address as i64).ok();
        let (short_from, known) = (short(from.address), target.known());
        let addresses = match (short_from, known.map(short)) {
            (Some(from), Some(Some(to))) => {
                a.store_imm(&slot(0), from);
                a.store_imm(&slot(8), to);
                None
            }
            (Some(from), None) => {
                a.store_imm(&slot(0), from);
                a.memory(false, MOVQ_LOAD, XMM0, &FRAME_TARGET);
                a.memory(false, MOVLPS_STORE, XMM0, &slot(8));
                None
            }
            _ => {
                let at = a.label();
                if known.is_some() {
                    a.memory_at(MOVUPS_LOAD, XMM0, at);
                } else {
                    a.memory_at(MOVQ_LOAD, XMM0, at);
                    a.memory(false, MOVHPS_LOAD, XMM0, &FRAME_TARGET);
                }
                a.memory(false, MOVUPS_STORE, XMM0, &slot(0));
                Some(Addresses {
                    at,
                    from: from.address,
                    to: known,
                })
            }
        };
        a.store_imm(&slot(16), 0);
        a.imm(true, Imm::Add, RAX, vbts_bts::RECORD_SIZE as i32);
        a.load(R14, &WINDOW_FIELD);
        a.store(&WINDOW_INDEX, RAX);
        a.store(&Mem::reserved(R14, 0), RAX);
        a.bind(back);
        self.stubs.push(Stub::Record {
            at,
            back,
            from,
            target,
        });
        addresses
    }

    /// Writes the addresses of a branch, close to the code that loads them: that has brought them
    /// into the host's caches.
    pub(super) fn write_addresses(&mut self, addresses: Option<Addresses>) {
        let Some(Addresses { at, from, to }) = addresses else {
            return;
        };
        self.asm.bind(at);
        match to {
            Some(to) => self.asm.constants(&[from, to]),
            None => self.asm.constants(&[from]),
        }
    }
}
