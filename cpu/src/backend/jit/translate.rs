//! From a block of instructions to native code.

use iced_x86::{Encoder, IcedError, Instruction, InstructionInfoFactory};

use crate::backend::blocks::BlockHandle;
use crate::backend::interpreter::op::Op as Operation;
use crate::backend::jit::assembler::{Assembler, Imm, Label, Mem, Op, Places, R14, RAX, cond};
use crate::backend::jit::calls::{InsnStart, Part};
use crate::backend::jit::flags::{self, Fix, Place};
use crate::backend::jit::form::{self, Effect, Plain};
use crate::backend::jit::layout::{FRAME_BUDGET, FRAME_TARGET, KEY_ANY, KEY_GLOBAL, exit};
use crate::backend::jit::recompute::Recompute;
use crate::backend::jit::routines::Routines;
use crate::backend::jit::stub::{Stub, Target};
use crate::backend::jit::vector::Vectors;
use crate::decode;
use crate::insn::{CodeSize, Insn};
use crate::mmu::access::canonical;
use crate::model::Model;
use crate::processor::last_branches::BranchClass;

/// What a block is translated for, and with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    pub model: &'static Model,
    /// The block, for calls of [`execute`](super::calls::execute).
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
    /// The code ends at the first instruction without a template, instead of a call of `exec`.
    pub checks: bool,
    /// Number of the block's first edge.
    pub first_edge: u32,
    pub routines: Routines,
}

/// What is used to translate a block, and its native code. Translating the next one reuses the
/// memory.
pub(super) struct Workspace {
    pub asm: Assembler,
    encoder: Encoder,
    info: InstructionInfoFactory,
    items: Vec<Item>,
    stubs: Vec<Stub>,
    /// Offsets of the displacements of the jumps to other blocks.
    pub edges: Vec<usize>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self {
            asm: Assembler::default(),
            encoder: Encoder::new(64),
            info: InstructionInfoFactory::new(),
            items: Vec::new(),
            stubs: Vec::new(),
            edges: Vec::new(),
        }
    }
}

/// What else is known of the native code of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Translated {
    /// Offset of what follows the check of the key.
    pub body: usize,
    /// Instructions that it executes, with [`Context::checks`].
    pub count: u8,
}

/// A branch that is recorded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub address: u64,
    pub class: BranchClass,
}

/// The end of a block at one of its instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    /// The branch. `None`: the block ends without one.
    pub from: Option<Source>,
    /// Instructions retired in the block.
    pub retired: u8,
}

/// An instruction of the block.
#[derive(Debug)]
pub(super) struct Item {
    pub decoded: Instruction,
    pub insn: Insn,
    /// The processor has it.
    pub available: bool,
    /// Its form, if it becomes native code as itself.
    pub plain: Option<Plain>,
    /// Start of the instruction in the block.
    pub start: InsnStart,
}

/// Translates a block.
pub(super) struct Translator<'a> {
    pub asm: &'a mut Assembler,
    pub encoder: &'a mut Encoder,
    pub info: &'a mut InstructionInfoFactory,
    pub stubs: &'a mut Vec<Stub>,
    edges: &'a mut Vec<usize>,
    pub context: Context,
    /// Where the guest's flags are.
    pub place: Place,
    /// How to compute them again, if they can be left to be overwritten.
    pub again: Option<Recompute>,
    pub vectors: Vectors,
    /// Where calls of [`execute`](super::calls::execute) pass what they have in common.
    pub execute: Label,
    /// There is such a call.
    pub calls: bool,
}

/// Translates `bytes`, the 64-bit code of a block with the operations `ops`, to code in `workspace`
/// that will be at `places`.
///
/// # Errors
/// An instruction could not be encoded.
pub(super) fn block(
    context: Context,
    bytes: &[u8],
    ops: &[Operation],
    places: Places,
    workspace: &mut Workspace,
) -> Result<Translated, IcedError> {
    let Workspace {
        asm,
        encoder,
        info,
        items,
        stubs,
        edges,
    } = workspace;
    asm.begin(places);
    stubs.clear();
    edges.clear();
    items.clear();
    items.extend(self::items(context.model, bytes, ops));
    let execute = asm.label();
    let mut t = Translator {
        asm,
        encoder,
        info,
        context,
        place: Place::Saved,
        again: None,
        vectors: Vectors::default(),
        stubs,
        edges,
        execute,
        calls: false,
    };
    t.check_key();
    let body = t.asm.len();
    let mut ended = false;
    let mut count = items.len() as u8;
    let mut next = 0;
    while let Some(item) = items.get(next) {
        let n = next;
        let run = t.stack_run(&items[n..]);
        if run > 0 {
            next += run;
            continue;
        }
        next += 1;
        if !context.checks {
            ended = t.item(item, &items[n + 1..])?;
        } else if let Some(end) = t.native(item, &items[n + 1..])? {
            ended = end;
        } else {
            count = n as u8;
            t.leave(item);
            ended = true;
            break;
        }
    }
    if !ended {
        let transfer = Transfer {
            from: None,
            retired: items.len() as u8,
        };
        t.jump(transfer, context.rip.wrapping_add(bytes.len() as u64));
    }
    t.write_stubs();
    Ok(Translated { body, count })
}

/// Decodes the instructions of a block again. Their operations have less than their templates need.
pub(super) fn items(
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
            plain: form::plain(&decoded).filter(|_| available),
            available,
            decoded,
            start: InsnStart::of(i, &op.insn),
        }
    })
}

impl Translator<'_> {
    /// Leaves unless a jump to this block is still valid.
    fn check_key(&mut self) {
        let Context {
            rip, key, global, ..
        } = self.context;
        self.asm.load_address(RAX, key);
        let now = if global { KEY_GLOBAL } else { KEY_ANY };
        self.asm.op_mem(Op::Cmp, RAX, &now);
        let at = self.asm.label();
        self.asm.jump_if(cond::NE, at);
        self.stubs.push(Stub::Exit {
            at,
            rip: Some(rip),
            code: exit::STALE,
            routine: self.context.routines.exit,
        });
    }

    /// Translates an instruction. Returns whether it ends the block always.
    fn item(&mut self, item: &Item, rest: &[Item]) -> Result<bool, IcedError> {
        if let Some(ended) = self.native(item, rest)? {
            return Ok(ended);
        }
        self.execute(item.start);
        let ends = item.insn.branch.ends_block();
        if ends {
            self.asm.undefined();
        }
        Ok(ends)
    }

    /// As [`Self::item`]. `None`: there is no template.
    fn native(&mut self, item: &Item, rest: &[Item]) -> Result<Option<bool>, IcedError> {
        match self.branch(item)? {
            None => Ok(self.template(item, rest)?.then_some(false)),
            ended => Ok(ended),
        }
    }

    /// Leaves before an instruction.
    fn leave(&mut self, item: &Item) {
        self.save_flags();
        self.unload_vectors();
        self.assert_unloaded();
        let retired = item.insn.ordinal;
        self.asm.imm_mem(Imm::Sub, &FRAME_BUDGET, retired.into());
        let at = self.asm.label();
        self.asm.jump(at);
        self.stubs.push(Stub::Exit {
            at,
            rip: Some(self.address(&item.insn)),
            code: exit::PARTIAL,
            routine: self.context.routines.exit,
        });
    }

    /// Linear address of an instruction.
    pub(super) fn address(&self, insn: &Insn) -> u64 {
        self.context.rip.wrapping_add(insn.offset.into())
    }

    /// Linear address of the next instruction.
    pub(super) fn next_address(&self, insn: &Insn) -> u64 {
        self.context.rip.wrapping_add(insn.next_offset())
    }

    /// Calls `exec`'s code of an instruction.
    fn execute(&mut self, insn: InsnStart) {
        self.save_flags();
        self.unload_vectors();
        self.call(insn, 1);
        // It can change CR0, CR4, MXCSR and all XMM registers.
        self.vectors = Vectors::default();
    }

    /// Calls [`execute`](super::calls::execute) for `count` instructions from `first` on.
    pub(super) fn call(&mut self, first: InsnStart, count: u8) {
        self.assert_unloaded();
        let part = Part::of(first, count);
        self.asm.mov_imm(RAX, part.0.into());
        self.asm.call(self.execute);
        self.calls = true;
    }

    /// Saves the flags, unless they are. Overwrites RAX and the host's flags.
    pub(super) fn save_flags(&mut self) {
        match self.place {
            Place::Saved => {}
            Place::Host(fix) => flags::save(self.asm, fix),
            Place::Lost(again) => again.save(self.asm),
        }
        self.place = Place::Saved;
    }

    /// The host's flags are those of the guest after `fix`.
    pub(super) fn flags_in_host(&mut self, fix: Fix, again: Option<Recompute>) {
        (self.place, self.again) = (Place::Host(fix), again);
    }

    /// Brings the flags `mask` of the guest into the host's. Overwrites RAX.
    pub(super) fn restore_flags(&mut self, mask: u32) {
        let exact = match self.place {
            Place::Saved | Place::Lost(_) => false,
            Place::Host(Fix::None | Fix::ClearAf) => true,
            Place::Host(_) => mask & iced_x86::RflagsBits::OF == 0,
        };
        if !exact {
            self.save_flags();
            flags::restore(self.asm);
            self.flags_in_host(Fix::None, None);
        }
    }

    /// A label where the instruction is executed by `exec`, if its operand is not in the TLB. The
    /// flags are saved there. It goes on at `back`, with the flags, XMM registers and MXCSR in the
    /// places where they are now.
    pub(super) fn on_miss(&mut self, at: Label, back: Label, insn: InsnStart) {
        self.on_miss_of(at, back, insn, 1, Place::Saved);
    }

    /// As [`Self::on_miss`], for `count` instructions from `first` on. The flags are at `before`
    /// first.
    pub(super) fn on_miss_of(
        &mut self,
        at: Label,
        back: Label,
        first: InsnStart,
        count: u8,
        before: Place,
    ) {
        self.stubs.push(Stub::Execute {
            at,
            back,
            first,
            count,
            before,
            after: self.place,
            vectors: self.vectors,
        });
    }

    /// Whether nothing can observe the flags between this instruction and the next that writes all
    /// of them.
    pub(super) fn flags_are_dead(&self, rest: &[Item]) -> bool {
        // Code that is checked can end before any of them.
        if self.context.checks {
            return false;
        }
        for item in rest {
            let Some(plain) = item.plain else {
                return false;
            };
            if form::accesses_memory(&item.decoded, &item.insn) || plain.reads != 0 {
                return false;
            }
            match plain.effect {
                Effect::Writes(_) => return true,
                Effect::Keeps => {}
                _ => return false,
            }
        }
        false
    }

    /// Ends the block with a conditional branch to `target`, taken if the host's flags, which are
    /// the guest's, meet `condition`.
    pub(super) fn jump_conditionally(&mut self, branch: Transfer, condition: u8, target: u64) {
        let at = self.asm.label();
        self.asm.jump_if(condition, at);
        self.stubs.push(Stub::Taken {
            at,
            branch,
            target,
            place: self.place,
            vectors: self.vectors,
        });
    }

    /// Ends the block with a jump to `target`.
    pub(super) fn jump(&mut self, transfer: Transfer, target: u64) {
        self.save_flags();
        self.unload_vectors();
        let addresses = transfer
            .from
            .and_then(|from| self.record(from, Target::Direct(target)));
        let at = self.retire(transfer);
        let edge = self.context.first_edge + self.edges.len() as u32;
        self.asm.jump(at);
        self.edges.push(self.asm.len() - 4);
        self.write_addresses(addresses);
        self.stubs.push(Stub::Exit {
            at,
            rip: Some(target),
            code: exit::EDGE | edge << exit::EDGE_SHIFT,
            routine: self.context.routines.exit_at_end,
        });
    }

    /// Ends the block with a jump to the target in the frame.
    pub(super) fn jump_indirect(&mut self, transfer: Transfer) {
        self.save_flags();
        self.unload_vectors();
        let addresses = transfer
            .from
            .and_then(|from| self.record(from, Target::Indirect));
        let at = self.retire(transfer);
        let jumps = self.context.jumps;
        let a = &mut self.asm;
        a.op_mem32(Op::Load, RAX, &FRAME_TARGET);
        a.imm(false, Imm::And, RAX, super::JUMP_MASK as i32);
        a.lea_address(R14, jumps);
        let entry = Mem {
            index: Some((RAX, 8)),
            ..Mem::at(R14, 0)
        };
        a.lea(R14, &entry);
        a.load(RAX, &FRAME_TARGET);
        a.op_mem(Op::Cmp, RAX, &Mem::at(R14, 0));
        a.jump_if(cond::NE, at);
        a.jump_mem(&Mem::at(R14, super::JUMP_CODE as i32));
        self.write_addresses(addresses);
        self.stubs.push(Stub::Exit {
            at,
            rip: None,
            code: exit::INDIRECT,
            routine: self.context.routines.exit_at_end,
        });
    }

    /// Counts the instructions of the block. Returns where it leaves if the run loop has to take
    /// over: a label to be bound.
    fn retire(&mut self, transfer: Transfer) -> Label {
        self.assert_unloaded();
        self.asm
            .imm_mem(Imm::Sub, &FRAME_BUDGET, transfer.retired.into());
        let at = self.asm.label();
        self.asm.jump_if(cond::LE, at);
        at
    }

    /// Whether a direct branch to `target` can fault.
    pub(super) fn is_good(target: u64) -> bool {
        canonical(target)
    }
}
