//! Translates a block of instructions to native code.

use iced_x86::{Encoder, IcedError, InstructionInfoFactory, Mnemonic};

use crate::backend::interpreter::op::Op as Operation;
use crate::backend::jit::assembler::{Assembler, Sections};
use crate::backend::jit::code::new_code::Link;
use crate::backend::jit::flags::Flags;
use crate::backend::jit::forms::direct::Effect;
use crate::backend::jit::registers::frame::RecordedBranch;
use crate::backend::jit::registers::scratch::ScratchRegs;
use crate::backend::jit::translator::cold::{ColdPath, Transfer};
use crate::backend::jit::translator::common_call::CommonCall;
use crate::backend::jit::translator::{self, Context, Item, Translator};
use crate::backend::jit::vectors::Vectors;

/// Memory that the translation of a block needs, and its native code. The translation of the next
/// block reuses the memory.
pub(crate) struct Workspace {
    pub asm: Assembler,
    encoder: Encoder,
    info: InstructionInfoFactory,
    items: Vec<Item>,
    cold: Vec<ColdPath>,
    /// The jumps to other blocks.
    pub links: Vec<Link>,
    /// The branches that the code records.
    pub branches: Vec<RecordedBranch>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self {
            asm: Assembler::default(),
            encoder: Encoder::new(64),
            info: InstructionInfoFactory::new(),
            items: Vec::new(),
            cold: Vec::new(),
            links: Vec::new(),
            branches: Vec::new(),
        }
    }
}

/// Facts about the native code of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Translated {
    /// Offset of the code behind the check of the key.
    pub body: usize,
    /// Instructions that the code executes, with [`Context::checks`].
    pub count: u8,
}

/// Translates `bytes`, the 64-bit code of a block with the operations `ops`, to code in `workspace`
/// that will be at `sections`.
///
/// # Errors
/// An instruction could not be encoded.
pub(crate) fn translate(
    context: Context,
    bytes: &[u8],
    ops: &[Operation],
    sections: Sections,
    workspace: &mut Workspace,
) -> Result<Translated, IcedError> {
    let Workspace {
        asm,
        encoder,
        info,
        items,
        cold,
        links,
        branches,
    } = workspace;
    asm.begin(sections);
    cold.clear();
    links.clear();
    branches.clear();
    items.clear();
    items.extend(translator::items(context.model, bytes, ops));
    let common_call = CommonCall::new(asm);
    let mut t = Translator {
        asm,
        encoder,
        info,
        cold,
        links,
        branches,
        context,
        flags: Flags::at_start(),
        vectors: Vectors::default(),
        common_call,
    };
    t.check_key();
    let body = t.asm.len();
    let mut ended = false;
    let mut count = items.len() as u8;
    let mut next = 0;
    while let Some(item) = items.get(next) {
        let n = next;
        let coalesced = match t.coalesced_stack(&items[n..]) {
            0 => t.coalesced_accesses(&items[n..])?,
            count => count,
        };
        if coalesced > 0 {
            next += coalesced;
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
    t.write_cold_paths();
    let Translator {
        asm, common_call, ..
    } = t;
    common_call.write(asm, context.routines.execute, context.rip, context.block);
    Ok(Translated { body, count })
}

impl Translator<'_> {
    /// Translates an instruction. Returns whether the block always ends there.
    fn item(&mut self, item: &Item, rest: &[Item]) -> Result<bool, IcedError> {
        if let Some(ended) = self.native(item, rest)? {
            return Ok(ended);
        }
        self.flags.save(self.asm);
        self.vectors.unload(self.asm);
        self.call(item.start, 1);
        // It can change CR0, CR4, MXCSR and all XMM registers.
        self.vectors.forget();
        let ends = item.insn.branch.ends_block();
        if ends {
            self.asm.undefined();
        }
        Ok(ends)
    }

    /// Translates an instruction that has a template. Returns whether the block always ends there,
    /// or `None` without a template.
    fn native(&mut self, item: &Item, rest: &[Item]) -> Result<Option<bool>, IcedError> {
        match self.branch(item)? {
            None => Ok(self.template(item, rest)?.then_some(false)),
            ended => Ok(ended),
        }
    }

    /// Translates an instruction that is no branch. Returns whether there is a template.
    fn template(&mut self, item: &Item, rest: &[Item]) -> Result<bool, IcedError> {
        if !item.available {
            return Ok(false);
        }
        if self.stack(item) || self.system(item) || self.accumulator(item) || self.scan(item) {
            return Ok(true);
        }
        if self.read_modify_write(item)? {
            return Ok(true);
        }
        if item.decoded.mnemonic() == Mnemonic::Lea {
            return self.lea(item, ScratchRegs::beside(false));
        }
        if self.vector(item)? {
            return Ok(true);
        }
        let Some(form) = item.direct else {
            return self.shift_of_old(item);
        };
        match form.effect {
            Effect::Unknown if !self.flags_are_dead(rest) => self.unknown(item, &form),
            _ => self.direct(item, &form, rest),
        }
    }
}
