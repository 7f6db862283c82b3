//! Owns the native code of a processor: its memory, its validity, and its links.
//!
//! Native code of a block is entered in three ways, and each has its own condition:
//!
//! * **By the run loop**, if [`CodeStore::fits`].
//! * **By a direct jump** of other native code, after [`CodeStore::link`]. The jump leads to the
//!   check of the key of the block's mapping, unless both blocks have the same mapping.
//! * **By an indirect jump**, which finds the code in a table of jump targets, and leads to the
//!   check of the key.
//!
//! A mapping is a linear page as it is translated to a guest-physical one. Its code is valid while
//! its key is one of the processor's ([`JumpKeys`](crate::processor::jump_keys::JumpKeys)):
//! [`CodeStore::validate`] writes the key, after the run loop has looked up the page. Code is never
//! removed alone: all of it is forgotten when the memory is full.
//!
//! Only this file writes to code memory.

use std::io;

use crate::backend::jit::assembler::Sections;
use crate::backend::jit::calls::exit;
use crate::backend::jit::calls::jump_table::{self, JUMP_CODE, TABLE_SIZE};
use crate::backend::jit::calls::routines::{self, Routines};
use crate::backend::jit::code::allocator::{Allocator, Kind};
use crate::backend::jit::code::code_memory::{CodeMemory, serialize};
use crate::backend::jit::code::new_code::{MappingId, NewCode, Numbers, Start};
use crate::backend::jit::registers::frame::RecordedBranches;
use crate::decode::MAX_BLOCK;

/// A direct jump from native code to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    number: u32,
    /// See [`CodeStore::generation`].
    generation: u32,
}

/// Names native code of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeId(u32);

impl CodeId {
    /// No code.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// A direct jump to another block.
#[derive(Debug, Clone, Copy)]
struct EdgeState {
    /// Offset of its displacement in the memory.
    at: u32,
    /// The mapping of the code that it is in.
    from: MappingId,
    /// RIP of the other block.
    target: u64,
}

/// The native code of a block.
#[derive(Debug, Clone, Copy)]
struct Code {
    start: Start,
    /// Offset of the check of the key, and of the code behind it.
    entry: u32,
    body: u32,
    recording: bool,
    /// Instructions that the code executes, if it is checked.
    count: u8,
}

/// Upper bound on the code of a block in bytes.
pub(crate) const MAX_CODE: usize = 48 * 512;
/// Lower bound on the code memory of a processor in bytes.
const MIN_MEMORY: usize = 16 * MAX_CODE;
/// Bytes of code memory for each block that can have code: most need more.
const BYTES_PER_BLOCK: usize = 128;
/// Alignment of the code of a block.
const ALIGNMENT: usize = 16;
/// Size of a line of the host's caches.
const LINE: usize = 64;

/// The native code of a processor.
#[derive(Debug)]
pub(crate) struct CodeStore {
    memory: CodeMemory,
    /// Length of the memory for code. The keys of mappings follow, then the tables of jump targets:
    /// for code that does not record, and for code that does.
    size: usize,
    allocator: Allocator,
    codes: Vec<Code>,
    /// Number of mappings.
    mappings: u32,
    edges: Vec<EdgeState>,
    branches: RecordedBranches,
    /// Number of flushes. An edge of an earlier generation does not exist any more.
    generation: u32,
    /// Length of the routines at the start of the memory, which stay.
    routines_len: usize,
    pub routines: Routines,
    /// Entries that were made or updated in the tables of jump targets.
    pub jump_targets: u64,
}

impl CodeStore {
    /// Maps memory for at least `size` bytes of code, and writes the routines.
    ///
    /// # Errors
    /// The host makes no memory executable.
    pub(crate) fn new(size: usize) -> io::Result<Self> {
        let size = size.max(MIN_MEMORY).next_multiple_of(0x1000);
        let keys = 8 * (size / BYTES_PER_BLOCK);
        let memory = CodeMemory::new((size + keys + 2 * TABLE_SIZE).next_multiple_of(0x1000))?;
        let (code, routines) = routines::write(memory.address(0));
        let mut store = Self {
            memory,
            size,
            allocator: Allocator::new(code.len().next_multiple_of(ALIGNMENT), size, MAX_CODE),
            codes: Vec::new(),
            mappings: 0,
            edges: Vec::new(),
            branches: RecordedBranches::default(),
            generation: 0,
            routines_len: code.len(),
            routines,
            jump_targets: 0,
        };
        store.memory.write(0, &code);
        serialize();
        store.mark_tables();
        Ok(store)
    }

    /// Returns the address and the length of the routines.
    pub(crate) fn routines_at(&self) -> (u64, usize) {
        (self.memory.address(0), self.routines_len)
    }

    /// Returns the address of the key of a mapping.
    pub(crate) fn key_address(&self, mapping: MappingId) -> u64 {
        self.memory.address(self.key_offset(mapping))
    }

    /// Returns the address of the table of jump targets for code that records branches, or for code
    /// that does not.
    pub(crate) fn jumps_address(&self, recording: bool) -> u64 {
        self.memory.address(self.jumps_offset(recording))
    }

    /// Returns the address of the code behind the check of the key.
    pub(crate) fn body_address(&self, id: CodeId) -> Option<u64> {
        let code = self.code(id)?;
        Some(self.memory.address(code.body as usize))
    }

    fn key_offset(&self, mapping: MappingId) -> usize {
        self.size + 8 * mapping.0 as usize
    }

    fn jumps_offset(&self, recording: bool) -> usize {
        self.size + 8 * (self.size / BYTES_PER_BLOCK) + usize::from(recording) * TABLE_SIZE
    }

    // Memory

    /// Whether there is room for the code of another block. Otherwise [`Self::flush`] makes room.
    pub(crate) fn has_room(&mut self) -> bool {
        let has_numbers = self.edges.len() + usize::from(MAX_BLOCK) < exit::NUMBERS
            && self.codes.len() < exit::NUMBERS;
        let has_keys = (self.mappings as usize) < self.size / BYTES_PER_BLOCK;
        self.allocator.make_room() && has_keys && has_numbers
    }

    /// Forgets all code.
    pub(crate) fn flush(&mut self) {
        self.allocator.clear();
        self.allocator.make_room();
        self.codes.clear();
        self.mappings = 0;
        self.edges.clear();
        self.branches.0.clear();
        self.generation = self.generation.wrapping_add(1);
        let tables = self.jumps_offset(true) + TABLE_SIZE - self.size;
        self.memory.clear(self.size, tables);
        self.mark_tables();
    }

    /// Makes the first entries of the empty tables of jump targets match no RIP: a zero is a RIP
    /// that belongs there.
    fn mark_tables(&mut self) {
        for recording in [false, true] {
            let first = self.jumps_offset(recording);
            self.memory.write(first, &u64::MAX.to_le_bytes());
        }
    }

    /// Returns the addresses of the code of the next block.
    pub(crate) fn next_sections(&self) -> Sections {
        let at = |kind| self.memory.address(self.allocator.next(kind));
        Sections {
            hot: at(Kind::Hot),
            cold: at(Kind::Cold),
        }
    }

    /// Returns the numbers of the code of the next block, of its first edge, and of its first
    /// branch.
    pub(crate) fn next_numbers(&self) -> Numbers {
        Numbers {
            code: self.codes.len() as u32,
            edge: self.edges.len() as u32,
            branch: self.branches.0.len() as u32,
        }
    }

    /// Adds code that was made for [`Self::next_sections`]. It has at most [`MAX_CODE`] bytes, and
    /// the verifier has accepted it.
    pub(crate) fn add(&mut self, new: NewCode<'_>) -> CodeId {
        let id = CodeId(self.codes.len() as u32);
        let [hot, cold] = new.parts.map(|part| part.code);
        let (entry, cold_at) = (
            self.allocator.next(Kind::Hot),
            self.allocator.next(Kind::Cold),
        );
        self.memory.write(entry, hot);
        self.memory.write(cold_at, cold);
        let entry = entry as u32;
        self.codes.push(Code {
            start: new.start,
            entry,
            body: entry + new.body as u32,
            recording: new.recording,
            count: new.count,
        });
        self.edges.extend(new.links.iter().map(|link| EdgeState {
            at: entry + link.at as u32,
            from: new.start.mapping,
            target: link.target,
        }));
        self.branches.0.extend(new.branches);
        self.allocator.take(Kind::Hot, hot.len(), ALIGNMENT);
        self.allocator.take(Kind::Cold, cold.len(), 1);
        serialize();
        id
    }

    fn code(&self, id: CodeId) -> Option<&Code> {
        self.codes.get(id.0 as usize)
    }

    // Validity

    /// Returns a new mapping, whose native code is not valid yet.
    pub(crate) fn new_mapping(&mut self) -> MappingId {
        self.mappings += 1;
        MappingId(self.mappings - 1)
    }

    /// Makes the native code of a mapping valid with `key`.
    pub(crate) fn validate(&mut self, mapping: MappingId, key: u64) {
        let offset = self.key_offset(mapping);
        self.memory.write(offset, &key.to_le_bytes());
    }

    /// Makes the code of the mapping of `id` valid with `key`, if `id` is code for jumps to `rip`,
    /// with the keys of a global page or not. Returns whether it is, or there is no such code.
    pub(crate) fn revalidate(&mut self, id: CodeId, rip: u64, global: bool, key: u64) -> bool {
        let Some(&Code { start, .. }) = self.code(id) else {
            return true;
        };
        let same = (start.rip, start.global) == (rip, global);
        if same {
            self.validate(start.mapping, key);
        }
        same
    }

    /// Whether `id` is code of `mapping`.
    pub(crate) fn is_in(&self, id: CodeId, mapping: MappingId) -> bool {
        self.code(id)
            .is_some_and(|code| code.start.mapping == mapping)
    }

    /// Whether `id` is code for jumps to `rip` in another mapping, which does not become valid any
    /// more.
    pub(crate) fn is_of_other(&self, id: CodeId, rip: u64, mapping: Option<MappingId>) -> bool {
        self.code(id)
            .is_some_and(|code| code.start.rip == rip && Some(code.start.mapping) != mapping)
    }

    /// Whether `id` is code for jumps to `rip`, on a processor that records branches or not.
    #[inline]
    pub(crate) fn fits(&self, id: CodeId, rip: u64, recording: bool) -> bool {
        self.code(id)
            .is_some_and(|code| code.start.rip == rip && code.recording == recording)
    }

    /// Returns the number of instructions that the code executes, if code is checked.
    pub(crate) fn count(&self, id: CodeId) -> u8 {
        self.code(id).map_or(0, |code| code.count)
    }

    /// Returns RIP of the block whose code has this number.
    pub(crate) fn rip_of(&self, number: u32) -> Option<u64> {
        self.code(CodeId(number)).map(|code| code.start.rip)
    }

    // Links

    /// Returns the branches that the code records.
    pub(crate) fn branches(&self) -> &RecordedBranches {
        &self.branches
    }

    /// Returns the RIP to which the edge with this number leads.
    pub(crate) fn edge_target(&self, number: u32) -> Option<u64> {
        self.edges.get(number as usize).map(|edge| edge.target)
    }

    /// Returns the edge with this number.
    pub(crate) fn edge(&self, number: u32) -> Edge {
        Edge {
            number,
            generation: self.generation,
        }
    }

    /// Links a direct jump to the code of the block that it leads to.
    pub(crate) fn link(&mut self, edge: Edge, to: CodeId) {
        let Some(code) = self.codes.get(to.0 as usize) else {
            return;
        };
        if edge.generation != self.generation {
            return;
        }
        if let Some(&EdgeState { at, from, .. }) = self.edges.get(edge.number as usize) {
            // Native code leaves at the end of a block in which a key has changed, so that jumps
            // in a mapping that was valid before the block are valid.
            let same = from == code.start.mapping;
            let to = if same { code.body } else { code.entry };
            let displacement = to.wrapping_sub(at + 4);
            self.memory.write(at as usize, &displacement.to_le_bytes());
            // The jump leads to valid code before and after this, but elsewhere if the host fetches
            // its displacement in two parts. It fetches what lies in a line of its caches at once.
            if at as usize % LINE > LINE - displacement.to_le_bytes().len() {
                serialize();
            }
        }
    }

    /// Remembers that indirect jumps to the block of `id` lead to its code.
    pub(crate) fn remember_jump(&mut self, id: CodeId) {
        let Some(&code) = self.code(id) else {
            return;
        };
        let rip = code.start.rip;
        let offset = self.jump_offset(&code);
        let entry = self.memory.address(code.entry as usize);
        self.memory.write(offset, &rip.to_le_bytes());
        self.memory.write(offset + JUMP_CODE, &entry.to_le_bytes());
        self.jump_targets += 1;
    }

    /// If indirect jumps to the block of `id` lead to earlier code, which is not valid any more,
    /// they lead to its code from now on.
    pub(crate) fn update_jump(&mut self, id: CodeId) {
        let Some(&code) = self.code(id) else {
            return;
        };
        let offset = self.jump_offset(&code);
        let remembered = self.memory.read(offset) == code.start.rip;
        let entry = self.memory.address(code.entry as usize);
        if remembered && self.memory.read(offset + JUMP_CODE) != entry {
            self.remember_jump(id);
        }
    }

    /// Returns the offset of the entry for indirect jumps to `code`.
    fn jump_offset(&self, code: &Code) -> usize {
        self.jumps_offset(code.recording) + jump_table::entry(code.start.rip)
    }
}
