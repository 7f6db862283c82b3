//! Recording of branches.

use crate::backend::jit::assembler::{Imm, Label, Mem, Op, Xmm, cond};
use crate::backend::jit::registers::frame::{FRAME_TARGET, RecordedBranch, Target};
use crate::backend::jit::registers::map::{POINTER, SCRATCH};
use crate::backend::jit::registers::processor::{
    WINDOW_ADDEND, WINDOW_END, WINDOW_FIELD, WINDOW_INDEX,
};
use crate::backend::jit::translator::Translator;
use crate::backend::jit::translator::cold::{ColdPath, Source};

/// Addresses of a recorded branch that do not fit immediates. Native code stores them together.
#[derive(Debug)]
pub(crate) struct Addresses {
    at: Label,
    from: u64,
    /// The target, or `None` if it is not known when the block is translated.
    to: Option<u64>,
}

/// The register that moves the addresses of a record.
const XMM0: Xmm = Xmm(0);
/// Opcodes for an XMM register and memory.
const MOVUPS_LOAD: &[u8] = &[0x0F, 0x10];
const MOVUPS_STORE: &[u8] = &[0x0F, 0x11];
const MOVHPS_LOAD: &[u8] = &[0x0F, 0x16];
const MOVQ_LOAD: &[u8] = &[0xF3, 0x0F, 0x7E];
const MOVLPS_STORE: &[u8] = &[0x0F, 0x13];

impl Translator<'_> {
    /// Records a branch as `Cpu::record_near` does, if the processor records branches. Returns the
    /// addresses to be written behind the jump that follows. Clobbers SCRATCH, POINTER, XMM0 and
    /// the host's flags, which nothing needs at the end of a block.
    pub(crate) fn record(&mut self, from: Source, target: Target) -> Option<Addresses> {
        if !self.context.recording {
            return None;
        }
        self.vectors.assert_unloaded();
        let (at, back) = (self.asm.label(), self.asm.label());
        let a = &mut self.asm;
        a.load(SCRATCH, &WINDOW_INDEX);
        a.op_mem(Op::Cmp, SCRATCH, &WINDOW_END);
        a.jump_if(cond::AE, at);
        a.load(POINTER, &WINDOW_ADDEND);
        let slot = |offset| Mem {
            index: Some((POINTER, 1)),
            ..Mem::reserved(SCRATCH, offset)
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
                    a.memory_at(false, MOVUPS_LOAD, XMM0, at);
                } else {
                    a.memory_at(false, MOVQ_LOAD, XMM0, at);
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
        a.imm(true, Imm::Add, SCRATCH, vbts_bts::RECORD_SIZE as i32);
        a.load(POINTER, &WINDOW_FIELD);
        a.store(&WINDOW_INDEX, SCRATCH);
        a.store(&Mem::reserved(POINTER, 0), SCRATCH);
        a.bind(back);
        let number = self.context.numbers.branch + self.branches.len() as u32;
        self.branches.push(RecordedBranch {
            from: from.address,
            to: target,
            class: from.class,
        });
        self.cold.push(ColdPath::Record { at, back, number });
        addresses
    }

    /// Writes the addresses of a branch close to the code that loads them, so that the fetch of
    /// that code brings them into the host's caches.
    pub(crate) fn write_addresses(&mut self, addresses: Option<Addresses>) {
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
