//! Checks native code of the software CPU before it becomes executable.
//!
//! The translator makes native code of a guest's instructions. An error in it must not reach the
//! memory of the process. So [`verify`] decodes each piece of code, knows nothing of how it was
//! made, and refuses it unless these rules hold:
//!
//! * **Instructions** are those of a list (`instruction`): none enters the kernel, changes
//!   a segment, a control register or extended state, repeats, or uses the stack. No operand is RSP
//!   or R15, so that both keep the addresses of the frame and of the processor.
//! * **Memory** (`memory`) is accessed at GS plus an address of 32 bits, where the reservation
//!   is; in the listed fields of the frame and of the processor; and in constants of the piece.
//!   Two tables are read behind a pointer: the TLB and the table of jump targets. The pointer comes
//!   from a sequence of instructions that bounds it (`scratch`), and so does the index of the
//!   window of records, which Rust's code trusts.
//! * **Control** (`control`) goes to the start of an instruction of the piece or to a listed
//!   address. It never reaches constants or the end of the piece. An indirect jump is the last
//!   instruction of the sequence that looks up the table of jump targets.
//!
//! What is trusted beside this crate: iced-x86's decoder, the routines that the [`Rules`] name, the
//! entries of the table of jump targets, and that GS, R15 and RSP are right when code is entered.
//!
//! The crate must not depend on the translator, nor on anything that it uses beside the decoder.
//!
//! # Example
//!
//! ```
//! use vbts_verifier::{Field, Part, Piece, Rules, verify};
//!
//! const START: u64 = 0x10_0000;
//! let rules = Rules {
//!     frame: &[Field { at: 0, len: 8, writable: true }],
//!     exits: &[START + 0x1000],
//!     ..Rules::default()
//! };
//! let check = |code: &[u8]| {
//!     let part = Part { address: START, code, constants: &[] };
//!     verify(&rules, &Piece { parts: &[part], entries: &[START], links: &[], keys: &[] })
//! };
//! // MOV [RSP], RCX; JMP to the exit
//! assert!(check(&[0x48, 0x89, 0x0C, 0x24, 0xE9, 0xF7, 0x0F, 0, 0]).is_ok());
//! // MOV [RCX], RCX; JMP to the exit
//! assert!(check(&[0x48, 0x89, 0x09, 0xE9, 0xF8, 0x0F, 0, 0]).is_err());
//! ```

mod control;
mod instruction;
mod memory;
mod scratch;

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
use thiserror::Error;

use crate::scratch::Scratch;

/// Bytes that code can access, at an offset from a base register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The first one.
    pub at: i32,
    /// How many.
    pub len: u32,
    /// They can be written, too.
    pub writable: bool,
}

/// What pieces of code may access and reach.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules<'a> {
    /// Fields of the frame, from RSP on.
    pub frame: &'a [Field],
    /// Fields of the processor, from R15 on.
    pub processor: &'a [Field],
    /// Field of the processor with the address of the current TLB.
    pub tlb: i32,
    /// The bits that select the offset of an entry in the TLB.
    pub tlb_mask: u32,
    /// Bytes that can be read at an entry of the TLB.
    pub tlb_entry: u32,
    /// Fields of the processor with the index and the end of the window of records.
    pub window_index: i32,
    /// See above.
    pub window_end: i32,
    /// Size of a record in bytes.
    pub record: u32,
    /// Addresses of the tables of jump targets.
    pub jumps: &'a [u64],
    /// The bits that select an entry in such a table, of which eight times as much is the offset.
    pub jump_mask: u32,
    /// Offset in an entry of the address to jump to, behind the 8 bytes to compare.
    pub jump_code: u32,
    /// Field of the frame with the target of an indirect jump.
    pub target: i32,
    /// Field of the processor with the guest's MXCSR, and of the frame with the host's.
    pub mxcsr: i32,
    /// See above.
    pub host_mxcsr: i32,
    /// Addresses that code can jump to.
    pub exits: &'a [u64],
    /// Addresses of routines that code can call.
    pub routines: &'a [u64],
    /// The routine to which a common call jumps: `LEA R14, [constants]; JMP routine`.
    pub common_routine: u64,
    /// Bytes of the constants that it reads.
    pub common_constants: u32,
}

/// A part of a piece: consecutive bytes.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Address at which it is executed.
    pub address: u64,
    /// Its bytes.
    pub code: &'a [u8],
    /// Which of them are constants, as (offset, length), lowest first. All others are instructions.
    pub constants: &'a [(usize, usize)],
}

/// A piece of code that is published together.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Its parts.
    pub parts: &'a [Part<'a>],
    /// Addresses at which the piece is entered from others.
    pub entries: &'a [u64],
    /// Addresses of the displacements of 32 bits of jumps that will lead to an entry of another
    /// piece later.
    pub links: &'a [u64],
    /// Addresses of quadwords elsewhere that it reads.
    pub keys: &'a [u64],
}

/// Why a piece is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("native code at {address:#x}: {why}")]
pub struct Refused {
    /// Address of the instruction.
    pub address: u64,
    /// What it does.
    pub why: Why,
}

/// What an instruction does that it may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Why {
    /// It is not in the list, or does not end before constants or the end of its part.
    #[error("an instruction that is not allowed")]
    Instruction,
    /// It names a register that it may not, or a prefix.
    #[error("an operand that is not allowed")]
    Operand,
    /// Its memory operand is none of those that are allowed.
    #[error("an access of other memory")]
    Memory,
    /// It jumps to something else than an instruction or a listed address, or calls it.
    #[error("a jump that is not allowed")]
    Jump,
    /// Execution goes on behind it, where there is no instruction.
    #[error("there is no instruction behind it")]
    End,
}

/// A decoded part, and what is known of its bytes.
#[derive(Debug, Default)]
struct Decoded {
    instructions: Vec<Instruction>,
    /// Indexes of the direct jumps and calls.
    branches: Vec<usize>,
    marks: control::Marks,
}

/// Checks pieces, one after the other, with the same memory.
#[derive(Debug, Default)]
pub struct Verifier {
    parts: Vec<Decoded>,
}

/// Checks one piece.
///
/// # Errors
/// It breaks a rule.
pub fn verify(rules: &Rules<'_>, piece: &Piece<'_>) -> Result<(), Refused> {
    Verifier::default().verify(rules, piece)
}

impl Verifier {
    /// Checks a piece.
    ///
    /// # Errors
    /// It breaks a rule.
    pub fn verify(&mut self, rules: &Rules<'_>, piece: &Piece<'_>) -> Result<(), Refused> {
        self.parts.resize_with(piece.parts.len(), Decoded::default);
        for (part, decoded) in piece.parts.iter().zip(&mut self.parts) {
            decoded.decode(part)?;
        }
        control::check(rules, piece, &mut self.parts)?;
        for part in &self.parts {
            let mut scratch = Scratch::default();
            for i in &part.instructions {
                if part.marks.is_target(i.ip()) {
                    scratch = Scratch::default();
                }
                memory::check(rules, piece, &scratch, i)?;
                scratch = scratch.after(rules, i);
            }
        }
        Ok(())
    }
}

impl Decoded {
    /// Decodes the instructions of a part, which are in the list.
    fn decode(&mut self, part: &Part<'_>) -> Result<(), Refused> {
        self.instructions.clear();
        self.branches.clear();
        self.marks.begin(part);
        let mut start = 0;
        for &(at, len) in part.constants.iter().chain([&(part.code.len(), 0)]) {
            let refused = |at: usize, why| Refused {
                address: part.address.wrapping_add(at as u64),
                why,
            };
            let code = part.code.get(start..at).ok_or(refused(at, Why::End))?;
            let first = part.address.wrapping_add(start as u64);
            let mut decoder = Decoder::with_ip(64, code, first, DecoderOptions::NONE);
            while decoder.can_decode() {
                // In its place: a copy would wait for the fields that have just been written.
                let at = self.instructions.len();
                self.instructions.push(Instruction::default());
                let i = &mut self.instructions[at];
                decoder.decode_out(i);
                instruction::check(i)?;
                self.marks.start(i);
                if i.op0_kind() == OpKind::NearBranch64 {
                    self.branches.push(at);
                }
            }
            if at > start && self.instructions.last().is_some_and(control::goes_on) {
                return Err(refused(at, Why::End));
            }
            start = at.checked_add(len).ok_or(refused(at, Why::End))?;
        }
        Ok(())
    }
}
