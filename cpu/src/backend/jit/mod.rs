//! Native code for blocks that run often.
//!
//! Guest and host have the same instruction set, so that most instructions become themselves, with
//! other registers. What has no template calls the code of `exec`, which is the interpreter's, too.
//! An access finds its page in the TLB inline. A block is translated for a RIP, and for a processor
//! that records branches or for one that does not.
//!
//! Native code ends where the interpreter's blocks end, and looks there for the same work. So
//! nothing that a guest can observe depends on what is translated.

mod address;
mod allocator;
mod assembler;
mod borrowed;
mod branch;
mod calls;
pub(crate) mod check;
mod code_memory;
mod fixed;
mod flags;
mod form;
mod host_vectors;
mod layout;
mod listener;
#[cfg(test)]
mod mutation_tests;
mod options;
mod read_modify_write;
mod recompute;
mod record;
mod routines;
mod rules;
mod run;
mod shift;
mod stack_run;
mod stub;
mod system;
mod template;
mod translate;
mod vector;
mod vector_form;

use std::io;
use std::sync::{Arc, Mutex};

use vbts_verifier::{Piece, Verifier};

use crate::backend::blocks::BlockHandle;
use crate::backend::interpreter::op::Op;
use crate::backend::jit::allocator::{Allocator, Kind};
use crate::backend::jit::assembler::Places;
use crate::backend::jit::code_memory::{CodeMemory, serialize};
use crate::backend::jit::listener::Listener;
use crate::backend::jit::routines::Routines;
use crate::backend::jit::translate::{Context, Workspace};
use crate::mmu::reservation::Reservation;
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;

pub use crate::backend::jit::listener::{NativeCode, NativeListener, NativePart};
pub use crate::backend::jit::options::{NativeOptions, NativeStats};
pub(crate) use crate::backend::jit::run::Left;

/// A direct jump from native code to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    number: u32,
    /// See [`Jit::generation`].
    generation: u32,
}

/// Names native code of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeId(u32);

impl CodeId {
    /// No code.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// Names a linear page, as it is mapped to a guest-physical one with native code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappingId(u32);

/// Where the guest's code of a block starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// RIP of the block.
    pub rip: u64,
    /// The page of RIP.
    pub mapping: MappingId,
    /// It is a global page.
    pub global: bool,
}

/// The native code of a block.
#[derive(Debug, Clone, Copy)]
struct Code {
    start: Start,
    /// Offset of the check of the key, and of what follows it.
    entry: u32,
    body: u32,
    recording: bool,
    /// Instructions that it executes, if the code is checked.
    count: u8,
}

/// Least code memory of a processor.
const LEAST_CODE: usize = 16 * LONGEST;
/// Bytes of code memory for each block that can have code: most need more.
const BYTES_PER_BLOCK: usize = 128;
/// Alignment of the code of a block.
const ALIGNMENT: usize = 16;
/// Longest code of a block in bytes.
const LONGEST: usize = 48 * 512;

/// Entries of the table of jump targets of indirect jumps: a power of two.
const JUMPS: usize = 1 << 16;
/// Size of an entry: a RIP and, at `JUMP_CODE`, the address of the code. They share a cache line.
const JUMP_SIZE: usize = 16;
const JUMP_CODE: usize = 8;
/// Size of a table of jump targets.
const JUMPS_SIZE: usize = JUMP_SIZE * JUMPS;
/// Bits of a RIP that select the entry: eight times as much is its offset.
const JUMP_MASK: usize = JUMP_SIZE / 8 * (JUMPS - 1);

/// The native code of a processor.
pub(crate) struct Jit {
    memory: CodeMemory,
    /// Addresses that the code can access, beside the processor and its own tables.
    reservation: Arc<Reservation>,
    routines: Routines,
    /// Length of the memory for code. The keys of mappings follow, then the tables of jump targets:
    /// for code that does not record, and for code that does.
    size: usize,
    allocator: Allocator,
    /// Length of the routines at the start of the memory, which stay.
    start: usize,
    codes: Vec<Code>,
    /// Number of mappings.
    mappings: u32,
    /// Offsets of the displacements of direct jumps, and the mapping that each jumps from.
    edges: Vec<(u32, MappingId)>,
    /// Number of flushes. Edges of before do not exist any more.
    generation: u32,
    workspace: Workspace,
    verifier: Verifier,
    listener: Listener,
    /// Runs of a block in the interpreter after which it is translated.
    pub threshold: u32,
    /// Native code is compared with the interpreter: it ends at the end of each block, and before
    /// an instruction without a template.
    pub checks: bool,
    pub stats: NativeStats,
}

impl std::fmt::Debug for Jit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jit")
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Jit {
    /// Maps code memory for one of `processors`, whose RAM lies in `reservation`.
    ///
    /// # Errors
    /// The host makes no memory executable, or its processor lacks LAHF.
    pub(crate) fn new(
        processors: usize,
        reservation: Arc<Reservation>,
        options: NativeOptions,
    ) -> io::Result<Self> {
        if !has_lahf() {
            return Err(io::Error::other("the host's processor lacks LAHF"));
        }
        let share = options.memory / processors.max(1);
        let size = share.max(LEAST_CODE).next_multiple_of(0x1000);
        let keys = 8 * (size / BYTES_PER_BLOCK);
        let memory = CodeMemory::new((size + keys + 2 * JUMPS_SIZE).next_multiple_of(0x1000))?;
        let (code, routines) = routines::write(memory.address(0));
        let mut jit = Self {
            memory,
            reservation,
            routines,
            size,
            allocator: Allocator::new(code.len().next_multiple_of(ALIGNMENT), size, LONGEST),
            start: code.len(),
            codes: Vec::new(),
            mappings: 0,
            edges: Vec::new(),
            generation: 0,
            workspace: Workspace::default(),
            verifier: Verifier::default(),
            listener: Listener::default(),
            threshold: options.threshold.max(1),
            checks: options.check,
            stats: NativeStats::default(),
        };
        jit.memory.write(0, &code);
        serialize();
        jit.mark_tables();
        Ok(jit)
    }

    /// Tells `listener` of all code that is made from now on, and of the routines.
    pub(crate) fn listen(&mut self, listener: Arc<Mutex<dyn NativeListener>>) {
        self.listener = Listener(Some(listener));
        let address = self.memory.address(0);
        self.listener
            .made(address, self.start, NativePart::Routines);
    }

    fn key_offset(&self, mapping: MappingId) -> usize {
        self.size + 8 * mapping.0 as usize
    }

    fn jumps_offset(&self, recording: bool) -> usize {
        self.size + 8 * (self.size / BYTES_PER_BLOCK) + usize::from(recording) * JUMPS_SIZE
    }

    /// Offset of the entry for jumps to `rip` in a table of jump targets.
    fn jump_offset(&self, rip: u64, recording: bool) -> usize {
        self.jumps_offset(recording) + 8 * (rip as usize & JUMP_MASK)
    }

    /// Whether there is room for the code of another block. Otherwise [`Self::flush`] makes it.
    pub(crate) fn has_room(&mut self) -> bool {
        self.allocator.make_room() && (self.mappings as usize) < self.size / BYTES_PER_BLOCK
    }

    /// Forgets all code.
    pub(crate) fn flush(&mut self) {
        self.allocator.clear();
        self.allocator.make_room();
        self.codes.clear();
        self.mappings = 0;
        self.edges.clear();
        self.generation = self.generation.wrapping_add(1);
        let tables = self.jumps_offset(true) + JUMPS_SIZE - self.size;
        self.memory.clear(self.size, tables);
        self.mark_tables();
        self.stats.flushes += 1;
    }

    /// Makes the first entries of the empty tables of jump targets match no RIP: a zero is a RIP
    /// that belongs there.
    fn mark_tables(&mut self) {
        for recording in [false, true] {
            let first = self.jumps_offset(recording);
            self.memory.write(first, &u64::MAX.to_le_bytes());
        }
    }

    /// A mapping, whose native code is not valid yet.
    pub(crate) fn new_mapping(&mut self) -> MappingId {
        self.mappings += 1;
        MappingId(self.mappings - 1)
    }

    /// The native code of a mapping is valid with `key`.
    pub(crate) fn validate(&mut self, mapping: MappingId, key: u64) {
        let offset = self.key_offset(mapping);
        self.memory.write(offset, &key.to_le_bytes());
    }

    /// As [`Self::validate`] for the mapping of `id`, if there is such code and it is for jumps to
    /// `rip`, with the keys of a global page or not. Returns whether it is, or there is none.
    pub(crate) fn validate_again(&mut self, id: CodeId, rip: u64, global: bool, key: u64) -> bool {
        let Some(&Code { start, .. }) = self.code(id) else {
            return true;
        };
        let same = (start.rip, start.global) == (rip, global);
        if same {
            self.validate(start.mapping, key);
        }
        same
    }

    /// Whether `id` is code for jumps to `rip` in another mapping, which does not become valid any
    /// more.
    pub(crate) fn is_of_other(&self, id: CodeId, rip: u64, mapping: Option<MappingId>) -> bool {
        self.code(id)
            .is_some_and(|code| code.start.rip == rip && Some(code.start.mapping) != mapping)
    }

    /// Translates the 64-bit code `bytes` of `block` with the operations `ops` for jumps to
    /// `start`. Returns `None` if the block has no native code.
    pub(crate) fn translate(
        &mut self,
        cpu: &Cpu,
        start: Start,
        block: BlockHandle,
        bytes: &[u8],
        ops: &[Op],
    ) -> Option<CodeId> {
        // An instruction that is too long is no instruction: its operation raises #GP(0).
        if ops.first().is_none_or(Op::ends_block) {
            return None;
        }
        let id = CodeId(self.codes.len() as u32);
        let recording = cpu.recording;
        let context = Context {
            model: cpu.model,
            block,
            rip: start.rip,
            recording,
            locks: !cpu.has_memory_alone(),
            is_only: cpu.topology.count <= 1,
            virtual_time: matches!(cpu.clock, Clock::Instructions),
            global: start.global,
            key: self.memory.address(self.key_offset(start.mapping)),
            jumps: self.memory.address(self.jumps_offset(recording)),
            first_edge: self.edges.len() as u32,
            checks: self.checks,
            routines: self.routines,
        };
        let [entry, rare] = [Kind::Often, Kind::Rarely].map(|kind| self.allocator.next(kind));
        let places = Places {
            often: self.memory.address(entry),
            rarely: self.memory.address(rare),
        };
        let workspace = &mut self.workspace;
        let translated = translate::block(context, bytes, ops, places, workspace).ok()?;
        let Workspace { asm, edges, .. } = workspace;
        let parts = asm.finish();
        let [often, rarely] = parts.map(|part| part.code);
        let len = often.len() + rarely.len();
        if len > LONGEST {
            return None;
        }
        let body = places.often + translated.body as u64;
        let piece = Piece {
            parts: &parts,
            entries: &[places.often, body],
            links: &edges_at(places, edges),
            keys: &[context.key],
        };
        let (exits, called) = (self.routines.exits(), self.routines.called());
        let jumps = [context.jumps];
        let rules = rules::rules(self.routines.execute, &exits, &called, &jumps);
        if let Err(refused) = self.verifier.verify(&rules, &piece) {
            // An error of the translator: the block is interpreted.
            debug_assert!(false, "{refused}, in the block {bytes:02x?}");
            self.stats.refused += 1;
            return None;
        }
        self.memory.write(entry, often);
        self.memory.write(rare, rarely);
        let (rip, cpl) = (start.rip, cpu.cpl);
        let block = NativePart::Block { rip, cpl };
        self.listener.made(places.often, often.len(), block);
        let rare = NativePart::Rare { rip, cpl };
        self.listener.made(places.rarely, rarely.len(), rare);
        let entry = entry as u32;
        self.codes.push(Code {
            start,
            entry,
            body: entry + translated.body as u32,
            recording,
            count: translated.count,
        });
        let edges = edges.iter().map(|at| entry + *at as u32);
        self.edges.extend(edges.map(|at| (at, start.mapping)));
        self.allocator.take(Kind::Often, often.len(), ALIGNMENT);
        self.allocator.take(Kind::Rarely, rarely.len(), 1);
        self.stats.blocks += 1;
        self.stats.bytes += len as u64;
        serialize();
        Some(id)
    }

    fn code(&self, id: CodeId) -> Option<&Code> {
        self.codes.get(id.0 as usize)
    }

    /// Whether `id` is code for jumps to `rip`, on a processor that records branches or not.
    #[inline]
    pub(crate) fn fits(&self, id: CodeId, rip: u64, recording: bool) -> bool {
        self.code(id)
            .is_some_and(|code| code.start.rip == rip && code.recording == recording)
    }

    /// Instructions of the block that its code executes, if code is checked.
    pub(crate) fn count(&self, id: CodeId) -> u8 {
        self.code(id).map_or(0, |code| code.count)
    }

    /// Links a direct jump to the code of the block that it leads to.
    pub(crate) fn link(&mut self, edge: Edge, to: CodeId) {
        let Some(code) = self.codes.get(to.0 as usize) else {
            return;
        };
        if edge.generation != self.generation {
            return;
        }
        if let Some(&(at, from)) = self.edges.get(edge.number as usize) {
            // Native code leaves at the end of a block in which a key has changed, so that jumps
            // in a mapping that was valid before the block are valid.
            let same = from == code.start.mapping;
            let to = if same { code.body } else { code.entry };
            let displacement = to.wrapping_sub(at + 4);
            self.memory.write(at as usize, &displacement.to_le_bytes());
            serialize();
        }
    }

    /// Remembers that indirect jumps to the block of `id` lead to its code.
    pub(crate) fn remember_jump(&mut self, id: CodeId) {
        let Some(&code) = self.code(id) else {
            return;
        };
        let rip = code.start.rip;
        let offset = self.jump_offset(rip, code.recording);
        let entry = self.memory.address(code.entry as usize);
        self.memory.write(offset, &rip.to_le_bytes());
        self.memory.write(offset + JUMP_CODE, &entry.to_le_bytes());
        self.stats.jump_targets += 1;
    }

    /// If indirect jumps to the block of `id` lead to code of before, which is not valid any more,
    /// they lead to its code from now on.
    pub(crate) fn update_jump(&mut self, id: CodeId) {
        let Some(&code) = self.code(id) else {
            return;
        };
        let offset = self.jump_offset(code.start.rip, code.recording);
        let remembered = self.memory.read(offset) == code.start.rip;
        let entry = self.memory.address(code.entry as usize);
        if remembered && self.memory.read(offset + JUMP_CODE) != entry {
            self.remember_jump(id);
        }
    }
}

/// Addresses of the displacements of the jumps to other blocks, which are in what runs often.
fn edges_at(places: Places, edges: &[usize]) -> Vec<u64> {
    edges.iter().map(|at| places.often + *at as u64).collect()
}

/// Whether the host has LAHF and SAHF in 64-bit mode (CPUID.80000001H:ECX, bit 0).
fn has_lahf() -> bool {
    use std::arch::x86_64::{__cpuid, __get_cpuid_max};
    let (highest, _) = __get_cpuid_max(0x8000_0000);
    highest >= 0x8000_0001 && __cpuid(0x8000_0001).ecx & 1 != 0
}
