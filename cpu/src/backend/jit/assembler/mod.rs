//! Encodes native code.
//!
//! The few forms that surround the guest's instructions are encoded here; iced-x86 encodes the
//! guest's own instructions. Labels resolve jumps forward. Slow paths and exits are in a section of
//! their own, so that the code that is executed often is dense.

mod byte;
mod control;
mod encode;
mod register;

use iced_x86::{Encoder, IcedError, Instruction};
use vbts_verifier::Part;

pub(crate) use byte::ByteOp;
pub(crate) use control::cond;
pub(crate) use encode::{Imm, Op, Shift};
pub(crate) use register::{
    Byte, Ext, Mem, R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP,
    Reg, Xmm,
};

/// A place in the code that jumps lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Addresses of the first byte of each section.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sections {
    /// Code that is executed whenever the block is.
    pub hot: u64,
    /// Slow paths and exits.
    pub cold: u64,
}

/// Code that begins at known addresses.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    sections: Sections,
    /// Length of the hot section, or `usize::MAX` while it is being written.
    split: usize,
    /// The hot section, then the cold one.
    code: Vec<u8>,
    /// Offset in `code` of each label that is bound.
    labels: Vec<Option<usize>>,
    /// Displacements of 32 bits to be filled in: their offset, and the label that they lead to.
    fixups: Vec<(usize, Label)>,
    /// Offset and length of each sequence of constants.
    constants: Vec<(usize, usize)>,
}

impl Assembler {
    /// Begins code at `sections`, and reuses the memory of the code before.
    pub(crate) fn begin(&mut self, sections: Sections) {
        (self.sections, self.split) = (sections, usize::MAX);
        self.code.clear();
        self.labels.clear();
        self.fixups.clear();
        self.constants.clear();
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.code.len()
    }

    /// Ends the hot section: the code that follows is cold.
    pub(crate) fn split(&mut self) {
        self.split = self.code.len();
    }

    /// Where the byte at `offset` is executed.
    fn address(&self, offset: usize) -> u64 {
        match offset.checked_sub(self.split) {
            None => self.sections.hot + offset as u64,
            Some(offset) => self.sections.cold + offset as u64,
        }
    }

    /// Where the next byte is executed.
    fn end(&self) -> u64 {
        self.address(self.code.len())
    }

    /// Resolves all jumps, and returns the hot section and the cold one.
    pub(crate) fn finish(&mut self) -> [Part<'_>; 2] {
        for (at, label) in &self.fixups {
            let target = self.labels[label.0].unwrap_or_default();
            let next = self.address(*at).wrapping_add(4);
            let displacement = self.address(target).wrapping_sub(next) as i32;
            self.code[*at..*at + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        let split = self.split.min(self.code.len());
        let first = self.constants.partition_point(|(at, _)| *at < split);
        for (at, _) in &mut self.constants[first..] {
            *at -= split;
        }
        let (hot, cold) = self.code.split_at(split);
        let (constants, cold_constants) = self.constants.split_at(first);
        [
            Part {
                address: self.sections.hot,
                code: hot,
                constants,
            },
            Part {
                address: self.sections.cold,
                code: cold,
                constants: cold_constants,
            },
        ]
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts the label here.
    pub(crate) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// A label here.
    pub(crate) fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// Quadwords that instructions read.
    pub(crate) fn constants(&mut self, values: &[u64]) {
        let len = size_of_val(values);
        self.constants.push((self.code.len(), len));
        for value in values {
            self.bytes(&value.to_le_bytes());
        }
    }

    /// Encodes an instruction of iced-x86's that does not repeat, without REP prefixes, which it
    /// ignores.
    ///
    /// # Errors
    /// It has no encoding.
    pub(crate) fn instruction(
        &mut self,
        encoder: &mut Encoder,
        i: &Instruction,
    ) -> Result<(), IcedError> {
        let rip = self.end();
        let mut i = *i;
        i.set_has_rep_prefix(false);
        i.set_has_repne_prefix(false);
        encoder.set_buffer(std::mem::take(&mut self.code));
        let result = encoder.encode(&i, rip);
        self.code = encoder.take_buffer();
        result.map(|_| ())
    }

    fn fixup(&mut self, label: Label) {
        self.fixups.push((self.code.len(), label));
        self.code.extend_from_slice(&[0; 4]);
    }

    fn displacement(&mut self, target: u64) {
        let next = self.end() + 4;
        let displacement = target.wrapping_sub(next) as i32;
        self.code.extend_from_slice(&displacement.to_le_bytes());
    }
}
