//! Code of the traced files, and the straight lines in it.
//!
//! Between the target of one record and the branch of the next, a processor executes instruction
//! after instruction. A straight line therefore has conditional branches that were not taken, and
//! no other transfer of control that a record would show. It may have system calls: with the scope
//! `user` they have no records, because the branches into and out of the kernel are left out.

use std::ops::Range;

use iced_x86::{Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use rustc_hash::FxHashMap;

use super::changes::{Changes, PAGE, pages};
use super::inlined::InlinedCall;
use super::modules::{InMemory, Module, ModuleId, ModuleKind, Modules, extend_32, is_kernel};
use crate::event::CodeSource;

/// Maximum length in bytes of a straight line. The largest ones are unrolled cryptography.
const MAX_LINE: u64 = 256 << 10;
/// Maximum length of an instruction in bytes (SDM Vol. 2A 2.3.11).
pub const MAX_INSTRUCTION: u64 = 15;
/// What is between pieces of code: no instruction begins with it in 64-bit code.
pub const NO_CODE: u8 = 0x06;
/// Maximum number of parts that are kept. When it is reached, all are dropped.
const MAX_PAGES: usize = 16 << 10;

/// A function in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Offset in the file of its first byte; for the kernel, its address.
    pub start: u64,
    /// Offset of the first byte after it.
    pub end: u64,
    /// What it is.
    pub kind: SymbolKind,
}

/// Kinds of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SymbolKind {
    /// A function.
    #[default]
    Function,
    /// A part of another function that the compiler has moved away, such as `main.cold`.
    Part,
    /// Code between a call and the function that is meant: a stub of the procedure linkage table,
    /// or the dynamic linker's resolver.
    Linkage,
    /// The beginning of the procedure linkage table, which jumps to the resolver.
    LinkageHeader,
    /// A function that continues on another stack, such as that of a coroutine.
    Switch,
    /// A function whose name is not known.
    Unnamed,
}

impl SymbolKind {
    /// Whether it is between a call and the function that is meant.
    pub fn is_linkage(self) -> bool {
        matches!(self, Self::Linkage | Self::LinkageHeader)
    }
}

/// Where code and functions come from. The files can be hostile: an implementation limits what it
/// reads, and answers anything.
pub trait Files {
    /// Reads code from `offset` on; for the kernel, from this address. Returns the number of bytes,
    /// 0 if there is no code.
    fn read(&mut self, module: &Module, offset: u64, bytes: &mut [u8]) -> usize;

    /// Takes code of the module that is in no file, or a part of what its compiler says about it.
    /// Not the memory of a process: that is code that was changed.
    fn add_code(&mut self, _module: &Module, _source: CodeSource, _at: u64, _bytes: &[u8]) {}

    /// The build ID of the file at a path when it was traced.
    fn add_build_id(&mut self, _path: &[u8], _id: Vec<u8>) {}

    /// Whether the module has 64-bit code, and not 32-bit code.
    fn is_64_bit(&mut self, module: &Module) -> bool;

    /// The functions, sorted by their start. They can overlap.
    fn symbols(&mut self, module: &Module) -> Vec<Symbol>;

    /// The inlined calls in a function of the module, which is at these offsets, the outer ones
    /// first.
    fn inlined(&mut self, _module: &Module, _function: Range<u64>) -> Vec<InlinedCall> {
        Vec::new()
    }
}

/// How an instruction transfers control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// It does not.
    None,
    /// A call.
    Call,
    /// A return.
    Return,
    /// A jump. The target is known if the jump is direct.
    Jump {
        /// Its linear address.
        target: Option<u64>,
        /// It may not be taken.
        conditional: bool,
    },
    /// A system call or a software interrupt.
    System,
    /// A return from an interrupt, an exception or a system call.
    FarReturn,
}

/// What was executed between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Number of instructions before the last one.
    pub instructions: u32,
    /// How the last instruction transfers control.
    pub transfer: Transfer,
    /// Address behind the last instruction.
    pub end: u64,
    /// Address behind the first system call before the last instruction.
    pub after_system_call: Option<u64>,
}

/// Why there is no straight line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLine {
    /// The code is not known.
    NoCode,
    /// The instructions do not lead there.
    Unreachable,
}

/// Reads code, and keeps it.
#[derive(Debug)]
pub struct CodeReader<F> {
    /// Where it comes from.
    pub files: F,
    /// Parts of modules, and whether they are as the kernel has changed them.
    pages: FxHashMap<(ModuleId, u64, bool), Vec<u8>>,
    changes: Changes,
    bits: FxHashMap<ModuleId, u32>,
    bytes: Vec<u8>,
}

impl<F: Files> CodeReader<F> {
    /// Reads from `files`.
    pub fn new(files: F) -> Self {
        Self {
            files,
            pages: FxHashMap::default(),
            changes: Changes::default(),
            bits: FxHashMap::default(),
            bytes: Vec::new(),
        }
    }

    /// 64 or 32: the size of addresses in the module's code.
    pub fn bits(&mut self, module: &Module) -> u32 {
        let files = &mut self.files;
        let bits = self.bits.entry(module.id);
        *bits.or_insert_with(|| if files.is_64_bit(module) { 64 } else { 32 })
    }

    /// Notes that the memory of the kernel, or of a process, has these bytes at `address` of a
    /// module, in the place of those of its file.
    pub fn change(&mut self, module: ModuleId, address: u64, bytes: &[u8]) {
        self.changes.add(module, address, bytes);
        for page in pages(address, bytes) {
            self.pages.remove(&(module, page, true));
        }
    }

    /// Notes that the code of a mapped file is as in memory, where memory was written.
    pub(super) fn change_as_in(&mut self, mapped: InMemory) {
        for page in self.changes.copy(&mapped) {
            self.pages.remove(&(mapped.module, page, true));
        }
    }

    /// Reads code from `offset` on, at most `size` bytes. Code that was changed is as it was in
    /// memory.
    pub fn read(&mut self, module: &Module, offset: u64, size: u64) -> &[u8] {
        let changed = self.is_changed(module);
        self.read_as(module, offset, size, changed)
    }

    /// Whether code of the module in memory differs from that in its file.
    fn is_changed(&self, module: &Module) -> bool {
        self.changes.has(module.id)
    }

    /// Reads code, as it is in the file or as it was `changed`.
    fn read_as(&mut self, module: &Module, offset: u64, size: u64, changed: bool) -> &[u8] {
        self.bytes.clear();
        let mut at = offset;
        while (self.bytes.len() as u64) < size {
            let page = at & !(PAGE - 1);
            if self.pages.len() >= MAX_PAGES {
                self.pages.clear();
            }
            let files = &mut self.files;
            let changes = &self.changes;
            let bytes = self.pages.entry((module.id, page, changed));
            let bytes = bytes.or_insert_with(|| {
                let mut bytes = vec![0; PAGE as usize];
                let read = files.read(module, page, &mut bytes);
                bytes.truncate(read);
                if changed {
                    if module.kind == ModuleKind::Generated {
                        let end = changes.end(module.id, page);
                        bytes.resize(end.max(bytes.len()), NO_CODE);
                    }
                    changes.apply(module.id, page, &mut bytes);
                }
                bytes
            });
            let bytes = bytes.get((at - page) as usize..).unwrap_or_default();
            let left = size as usize - self.bytes.len();
            let bytes = bytes.get(..left).unwrap_or(bytes);
            self.bytes.extend_from_slice(bytes);
            let Some(next) = page.checked_add(PAGE) else {
                break;
            };
            if (at - page) + (bytes.len() as u64) < PAGE {
                break;
            }
            at = next;
        }
        &self.bytes
    }

    /// The straight line from `start` to the instruction at `from`, both linear addresses. `offset`
    /// is that of `start` in the module.
    ///
    /// # Errors
    /// See [`NoLine`].
    pub fn line(
        &mut self,
        modules: &Modules,
        module: ModuleId,
        offset: u64,
        start: u64,
        from: u64,
    ) -> Result<Line, NoLine> {
        let length = from.checked_sub(start).ok_or(NoLine::Unreachable)?;
        if length > MAX_LINE {
            return Err(NoLine::Unreachable);
        }
        let module = modules.get(module);
        let bits = self.bits(module);
        let is_changed = self.is_changed(module);
        let mut line = |changed| {
            let bytes = self.read_as(module, offset, length + MAX_INSTRUCTION, changed);
            if (bytes.len() as u64) <= length {
                return Err(NoLine::NoCode);
            }
            decode(bits, bytes, start, from)
        };
        if !is_changed {
            return line(false);
        }
        // The line may have been executed before it was changed.
        line(true).or_else(|reason| line(false).map_err(|_| reason))
    }

    /// Calls `each` with the offsets in the module of the instructions of a straight line that
    /// [`Self::line`] has found, up to that of the instruction at offset `last`.
    pub fn instructions(
        &mut self,
        module: &Module,
        offset: u64,
        last: u64,
        mut each: impl FnMut(u64),
    ) {
        let bits = self.bits(module);
        let size = last.saturating_sub(offset).min(MAX_LINE) + MAX_INSTRUCTION;
        let bytes = self.read(module, offset, size);
        let mut decoder = Decoder::with_ip(bits, bytes, 0, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let at = offset.saturating_add(decoder.position() as u64);
            if at > last {
                return;
            }
            decoder.decode_out(&mut instruction);
            each(at);
        }
    }

    /// The address of the first system call in the line at `start`, and the number of instructions
    /// up to it.
    pub fn line_to_system_call(
        &mut self,
        modules: &Modules,
        module: ModuleId,
        offset: u64,
        start: u64,
    ) -> Option<(u64, u32)> {
        let module = modules.get(module);
        let bits = self.bits(module);
        decode_to_system_call(bits, self.read(module, offset, MAX_LAST_LINE), start)
    }
}

/// Maximum length in bytes of the line before the system call that ends a task.
const MAX_LAST_LINE: u64 = 4096;

/// The address of the first system call in the line at `start`, and the number of instructions up
/// to it.
fn decode_to_system_call(bits: u32, bytes: &[u8], start: u64) -> Option<(u64, u32)> {
    let mut decoder = Decoder::with_ip(bits, bytes, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut instructions = 0;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return None;
        }
        instructions += 1;
        match transfer(&instruction) {
            Transfer::System => return Some((instruction.ip(), instructions)),
            Transfer::None => {}
            Transfer::Jump { conditional, .. } if conditional => {}
            _ => return None,
        }
    }
    None
}

/// Decodes `bytes` at `start` up to the instruction at `from`.
fn decode(bits: u32, bytes: &[u8], start: u64, from: u64) -> Result<Line, NoLine> {
    let mut decoder = Decoder::with_ip(bits, bytes, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut instructions = 0;
    let mut after_system_call = None;
    loop {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() || instruction.ip() > from {
            return Err(NoLine::Unreachable);
        }
        let transfer = transfer(&instruction);
        if instruction.ip() == from {
            return Ok(Line {
                instructions,
                transfer,
                end: instruction.next_ip(),
                after_system_call,
            });
        }
        match transfer {
            Transfer::None => {}
            Transfer::Jump { conditional, .. } if conditional => {}
            Transfer::System => {
                after_system_call.get_or_insert(instruction.next_ip());
            }
            _ => return Err(NoLine::Unreachable),
        }
        if instruction.flow_control() == FlowControl::Exception {
            return Err(NoLine::Unreachable);
        }
        instructions += 1;
    }
}

/// How an instruction transfers control.
pub fn transfer(instruction: &Instruction) -> Transfer {
    let is_near_call = instruction.is_call_near() || instruction.is_call_near_indirect();
    let is_far_call = instruction.is_call_far() || instruction.is_call_far_indirect();
    let target = || {
        let target = instruction.near_branch_target();
        let target = match instruction.op0_kind() {
            // Programs of a 64-bit kernel have these addresses themselves.
            OpKind::NearBranch32 if is_kernel(instruction.ip()) => extend_32(target),
            _ => target,
        };
        Some(target).filter(|target| *target != 0)
    };
    match instruction.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall => match is_near_call || is_far_call {
            true => Transfer::Call,
            false => Transfer::System,
        },
        FlowControl::Interrupt => Transfer::System,
        FlowControl::Return => match instruction.code() {
            Opcode::Retnw
            | Opcode::Retnd
            | Opcode::Retnq
            | Opcode::Retnw_imm16
            | Opcode::Retnd_imm16
            | Opcode::Retnq_imm16
            | Opcode::Retfw
            | Opcode::Retfd
            | Opcode::Retfq
            | Opcode::Retfw_imm16
            | Opcode::Retfd_imm16
            | Opcode::Retfq_imm16 => Transfer::Return,
            _ => Transfer::FarReturn,
        },
        FlowControl::UnconditionalBranch => Transfer::Jump {
            target: target(),
            conditional: false,
        },
        FlowControl::IndirectBranch => Transfer::Jump {
            target: None,
            conditional: false,
        },
        FlowControl::ConditionalBranch => Transfer::Jump {
            target: target(),
            conditional: true,
        },
        // XBEGIN jumps if the transaction aborts, from any instruction in it.
        FlowControl::XbeginXabortXend => Transfer::Jump {
            target: None,
            conditional: true,
        },
        FlowControl::Next | FlowControl::Exception => Transfer::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(code: &[u8], from: u64) -> Result<Line, NoLine> {
        decode(64, code, 0x1000, 0x1000 + from)
    }

    #[test]
    fn a_32_bit_jump_stays_in_the_kernel_or_in_the_program() {
        for start in [0xF7FD_1000, 0xFFFF_FFFF_C100_0000] {
            let transfer = decode(32, &[0x75, 2], start, start).unwrap().transfer;
            let (target, conditional) = (Some(start + 4), true);
            assert_eq!(
                transfer,
                Transfer::Jump {
                    target,
                    conditional
                }
            );
        }
    }

    #[test]
    fn a_line_ends_at_a_branch() {
        // nop; jne +2; syscall; nop; call +0
        let code = [0x90, 0x75, 2, 0x0F, 5, 0x90, 0xE8, 0, 0, 0, 0];
        let call = line(&code, 6).unwrap();
        assert_eq!((call.instructions, call.end), (4, 0x100B));
        assert_eq!(call.transfer, Transfer::Call);
        assert_eq!(call.after_system_call, Some(0x1005));
        let jne = line(&code, 1).unwrap().transfer;
        let (target, conditional) = (Some(0x1005), true);
        assert_eq!(
            jne,
            Transfer::Jump {
                target,
                conditional
            }
        );
        assert_eq!(line(&code, 2), Err(NoLine::Unreachable));
    }

    #[test]
    fn what_a_record_would_show_is_no_straight_line() {
        for code in [
            &[0xC3, 0x90, 0x90][..], // ret
            &[0xEB, 0, 0x90],        // jmp
            &[0xFF, 0xD0, 0x90],     // call rax
            &[0x0F, 0x0B, 0x90],     // ud2
            &[0x48, 0xCF, 0x90],     // iretq
        ] {
            assert_eq!(line(code, 2), Err(NoLine::Unreachable), "{code:x?}");
        }
    }
}
