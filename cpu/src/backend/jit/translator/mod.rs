//! The state of translating one block, and the steps that all templates share.

pub(crate) mod cold;
pub(crate) mod common_call;
mod liveness;
mod memory;

use iced_x86::{Encoder, IcedError, Instruction, InstructionInfoFactory, OpAccess, OpKind};

use crate::backend::blocks::BlockHandle;
use crate::backend::interpreter::op::Op as Operation;
use crate::backend::jit::assembler::{Assembler, Label, Mem, Reg};
use crate::backend::jit::calls::part::InsnStart;
use crate::backend::jit::calls::routines::Routines;
use crate::backend::jit::code::new_code::{Link, Numbers};
use crate::backend::jit::flags::{Flags, FlagsLocation};
use crate::backend::jit::forms::direct::{self, DirectForm};
use crate::backend::jit::registers::frame::RecordedBranch;
use crate::backend::jit::registers::map::{GUEST_RSP, Guest};
use crate::backend::jit::registers::scratch::{self, ScratchRegs};
use crate::backend::jit::translator::cold::ColdPath;
use crate::backend::jit::translator::common_call::CommonCall;
use crate::backend::jit::vectors::Vectors;
use crate::decode;
use crate::insn::{CodeSize, Insn};
use crate::mmu::access::Access;
use crate::model::Model;

/// Facts for which a block is translated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub model: &'static Model,
    /// The block, for calls of [`execute`](crate::backend::jit::calls::execute::execute).
    pub block: BlockHandle,
    /// RIP of the block.
    pub rip: u64,
    /// The processor records branches.
    pub recording: bool,
    /// Other processors run at the same time, so that LOCK is needed.
    pub locks: bool,
    /// There is no other processor.
    pub is_only: bool,
    /// Time is instructions.
    pub virtual_time: bool,
    /// Jumps to the block have the key of a global page.
    pub global: bool,
    /// Address of the key with which jumps to the block are valid.
    pub key: u64,
    /// Address of the table of jump targets.
    pub jumps: u64,
    /// A debugger has set watchpoints: operands are looked up a second time in their pages.
    pub watches: bool,
    /// The code ends at the first instruction without a template, instead of a call of `exec`.
    pub checks: bool,
    /// The numbers of the block's native code.
    pub numbers: Numbers,
    pub routines: Routines,
}

/// An instruction of the block.
#[derive(Debug)]
pub(crate) struct Item {
    pub decoded: Instruction,
    pub insn: Insn,
    /// The processor has the instruction.
    pub available: bool,
    /// The form in which the instruction becomes native code as itself, if it does.
    pub direct: Option<DirectForm>,
    /// Start of the instruction in the block.
    pub start: InsnStart,
}

/// Decodes the instructions of a block again. Their operations have less than their templates need.
pub(crate) fn items(
    model: &'static Model,
    bytes: &[u8],
    ops: &[Operation],
) -> impl Iterator<Item = Item> {
    let mut decoder = decode::decoder(model, CodeSize::Bits64, bytes);
    let firsts = ops.iter().enumerate().filter(|(i, op)| {
        let first = *i == 0 || ops[i - 1].insn.ordinal != op.insn.ordinal;
        first && !op.ends_block()
    });
    firsts.map(move |(i, op)| {
        let decoded = decoder.decode();
        let (offset, ordinal) = (op.insn.offset, op.insn.ordinal);
        let available = model.has_instruction(&decoded);
        Item {
            insn: decode::insn(CodeSize::Bits64, &decoded, offset, ordinal),
            direct: direct::direct(&decoded).filter(|_| available),
            available,
            decoded,
            start: InsnStart::of(i, &op.insn),
        }
    })
}

/// Translates a block: the code so far, and what is known at its end.
pub(crate) struct Translator<'a> {
    pub asm: &'a mut Assembler,
    pub encoder: &'a mut Encoder,
    pub info: &'a mut InstructionInfoFactory,
    /// Code to be written behind that of the block.
    pub cold: &'a mut Vec<ColdPath>,
    /// The jumps to other blocks.
    pub links: &'a mut Vec<Link>,
    /// The branches that the code records.
    pub branches: &'a mut Vec<RecordedBranch>,
    pub context: Context,
    pub flags: Flags,
    pub vectors: Vectors,
    pub common_call: CommonCall,
}

impl Translator<'_> {
    /// Returns the linear address of an instruction.
    pub(crate) fn address(&self, insn: &Insn) -> u64 {
        self.context.rip.wrapping_add(insn.offset.into())
    }

    /// Returns the linear address of the next instruction.
    pub(crate) fn next_address(&self, insn: &Insn) -> u64 {
        self.context.rip.wrapping_add(insn.next_offset())
    }

    /// Emits an instruction.
    ///
    /// # Errors
    /// It has no encoding.
    pub(crate) fn encode(&mut self, i: &Instruction) -> Result<(), IcedError> {
        self.asm.instruction(self.encoder, i)
    }

    /// Returns how a memory operand is accessed.
    pub(crate) fn access(&mut self, i: &Instruction) -> Access {
        let info = self.info.info(i);
        let reads = (0..i.op_count())
            .filter(|n| i.op_kind(*n) == OpKind::Memory)
            .all(|n| matches!(info.op_access(n), OpAccess::Read | OpAccess::CondRead));
        if reads { Access::Read } else { Access::Write }
    }

    /// Replaces the general registers that are operands of `i` by those of the host. Returns
    /// whether enough of them are free.
    pub(crate) fn substitute(&mut self, i: &mut Instruction, regs: &mut ScratchRegs) -> bool {
        regs.substitute(i, self.info)
    }

    /// Loads a guest register into a host register. Keeps the host's flags.
    pub(crate) fn read(&mut self, to: Reg, guest: Guest) {
        scratch::read(self.asm, to, guest);
    }

    /// Writes a guest register. Keeps the host's flags.
    pub(crate) fn write(&mut self, guest: Guest, from: Reg) {
        scratch::write(self.asm, guest, from);
    }

    /// Moves the stack pointer. Keeps the host's flags.
    pub(crate) fn move_stack(&mut self, by: i64) {
        self.asm.lea(GUEST_RSP, &Mem::at(GUEST_RSP, by as i32));
    }

    /// Saves the flags. Returns a label where `exec` executes the instruction, and one, to be
    /// bound, where it continues then.
    pub(crate) fn miss(&mut self, item: &Item) -> (Label, Label) {
        self.flags.save(self.asm);
        let (at, back) = (self.asm.label(), self.asm.label());
        self.on_miss(at, back, item.start);
        (at, back)
    }

    /// Binds `at`, behind the block, to code where `exec` executes the instruction, if its operand
    /// is not in the TLB. The flags are saved there. It continues at `back`, with the flags, XMM
    /// registers and MXCSR in their present locations.
    pub(crate) fn on_miss(&mut self, at: Label, back: Label, insn: InsnStart) {
        self.on_miss_of(at, back, insn, 1, FlagsLocation::Saved);
    }

    /// Does the same for `count` instructions from `first` on. The flags are at `before` first.
    pub(crate) fn on_miss_of(
        &mut self,
        at: Label,
        back: Label,
        first: InsnStart,
        count: u8,
        before: FlagsLocation,
    ) {
        self.cold.push(ColdPath::Execute {
            at,
            back,
            first,
            count,
            before,
            after: self.flags.location(),
            vectors: self.vectors,
        });
    }

    /// Calls [`execute`](crate::backend::jit::calls::execute::execute) for `count` instructions
    /// from `first` on. The flags are saved, and the vector state is the host's.
    pub(crate) fn call(&mut self, first: InsnStart, count: u8) {
        debug_assert_eq!(self.flags.location(), FlagsLocation::Saved);
        self.vectors.assert_unloaded();
        self.common_call.call(self.asm, first, count);
    }
}
