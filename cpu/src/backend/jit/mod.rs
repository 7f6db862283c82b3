//! Native code for blocks that run often.
//!
//! Guest and host have the same instruction set, so that most instructions become themselves, with
//! other registers. What has no template calls the code of `exec`, which is the interpreter's, too.
//! An access finds its page in the TLB inline. A block is translated for a RIP, and for a processor
//! that records branches or for one that does not.
//!
//! Native code ends where the interpreter's blocks end, and looks there for the same work. So
//! nothing that a guest can observe depends on what is translated.
//!
//! The directories are layers, from the lowest. A file imports only from its own layer and from
//! those below it, which `cpu/tests/layers.rs` checks.
//!
//! | layer | contents |
//! |---|---|
//! | `assembler` | the host's instructions by their encoding; labels and sections |
//! | `registers` | host registers of guest registers; fields of the processor; the frame |
//! | `flags` | where the guest's arithmetic flags are, and the code that moves them |
//! | `vectors` | which vector state the host's registers have, and the code that moves it |
//! | `forms` | properties of guest instructions |
//! | `calls` | the way in and out of native code, and its calls of Rust's code |
//! | `code` | code memory; validity of native code, and its links |
//! | `translator` | the state of translating a block, access to memory, cold paths |
//! | `branches` | branches, their records, the ends of blocks |
//! | `templates` | the other instructions, a file a family |
//!
//! The files beside them are above all of these: `block` translates a block, `run` enters its code,
//! `rules` tells the verifier what code may do, and `check` compares code with the interpreter.

mod assembler;
mod block;
mod branches;
mod calls;
pub(crate) mod check;
mod code;
mod cold;
mod flags;
mod forms;
mod listener;
#[cfg(test)]
mod mutation_tests;
mod options;
mod registers;
mod rules;
mod run;
mod templates;
mod translator;
mod vectors;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vbts_verifier::{Piece, Verifier};

use crate::backend::blocks::BlockHandle;
use crate::backend::interpreter::op::Op;
use crate::backend::jit::assembler::Sections;
use crate::backend::jit::block::Workspace;
use crate::backend::jit::code::new_code::{Link, NewCode};
use crate::backend::jit::code::store::{CodeStore, MAX_CODE};
use crate::backend::jit::listener::Listener;
use crate::backend::jit::translator::Context;
use crate::mmu::reservation::Reservation;
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;

pub(crate) use crate::backend::jit::code::new_code::Start;
pub(crate) use crate::backend::jit::code::store::{CodeId, Edge};
pub(crate) use crate::backend::jit::code::translation::{LinearPage, Mappings, Translation};
pub use crate::backend::jit::listener::{NativeCode, NativeListener, NativePart};
pub use crate::backend::jit::options::{NativeOptions, NativeStats};
pub(crate) use crate::backend::jit::run::NativeExit;

/// Makes and runs the native code of a processor.
pub(crate) struct Jit {
    /// The code that was made.
    pub code: CodeStore,
    /// Addresses that the code can access, beside the processor and its own tables.
    reservation: Arc<Reservation>,
    workspace: Workspace,
    verifier: Verifier,
    listener: Listener,
    /// Runs of a block in the interpreter after which it is translated.
    pub threshold: u32,
    /// Native code is compared with the interpreter: it ends at the end of each block, and before
    /// an instruction without a template.
    pub checks: bool,
    /// See [`Context::watches`].
    pub watches: bool,
    stats: NativeStats,
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
        Ok(Self {
            code: CodeStore::new(options.memory_of_each(processors))?,
            reservation,
            workspace: Workspace::default(),
            verifier: Verifier::default(),
            listener: Listener::default(),
            threshold: options.threshold.max(1),
            checks: options.check,
            watches: false,
            stats: NativeStats::default(),
        })
    }

    /// Tells `listener` of all code that is made from now on, and of the routines.
    pub(crate) fn listen(&mut self, listener: Arc<Mutex<dyn NativeListener>>) {
        self.listener = Listener(Some(listener));
        let (address, len) = self.code.routines_at();
        self.listener.made(address, len, NativePart::Routines);
    }

    /// Returns the counts so far.
    pub(crate) fn stats(&self) -> NativeStats {
        NativeStats {
            jump_targets: self.code.jump_targets,
            ..self.stats
        }
    }

    /// Counts time that translating took.
    pub(crate) fn add_time(&mut self, time: Duration) {
        self.stats.time += time;
    }

    /// Forgets all code, to make room.
    pub(crate) fn flush(&mut self) {
        self.code.flush();
        self.stats.flushes += 1;
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
        let recording = cpu.recording;
        let routines = self.code.routines;
        let context = Context {
            model: cpu.model,
            block,
            rip: start.rip,
            recording,
            locks: !cpu.has_memory_alone(),
            is_only: cpu.topology.count <= 1,
            virtual_time: matches!(cpu.clock, Clock::Instructions),
            global: start.global,
            key: self.code.key_address(start.mapping),
            jumps: self.code.jumps_address(recording),
            numbers: self.code.next_numbers(),
            watches: self.watches,
            checks: self.checks,
            routines,
        };
        let sections = self.code.next_sections();
        let workspace = &mut self.workspace;
        let translated = block::translate(context, bytes, ops, sections, workspace).ok()?;
        let Workspace {
            asm,
            links,
            branches,
            ..
        } = workspace;
        let parts = asm.finish();
        let [hot, cold] = parts.map(|part| part.code.len());
        if hot + cold > MAX_CODE {
            return None;
        }
        let piece = Piece {
            parts: &parts,
            entries: &[sections.hot, sections.hot + translated.body as u64],
            links: &links_at(sections, links),
            keys: &[context.key],
        };
        let (exits, called) = (routines.exits(), routines.called());
        let jumps = [context.jumps];
        let rules = rules::rules(routines.execute, &exits, &called, &jumps);
        if let Err(refused) = self.verifier.verify(&rules, &piece) {
            // An error of the translator: the block is interpreted.
            debug_assert!(false, "{refused}, in the block {bytes:02x?}");
            self.stats.refused += 1;
            return None;
        }
        let id = self.code.add(NewCode {
            start,
            recording,
            parts,
            body: translated.body,
            links,
            branches,
            count: translated.count,
        });
        let (rip, cpl) = (start.rip, cpu.cpl);
        let block = NativePart::Block { rip, cpl };
        self.listener.made(sections.hot, hot, block);
        let rare = NativePart::Rare { rip, cpl };
        self.listener.made(sections.cold, cold, rare);
        self.stats.blocks += 1;
        self.stats.bytes += (hot + cold) as u64;
        Some(id)
    }
}

/// Returns the addresses of the displacements of the jumps to other blocks, which are in the hot
/// section.
fn links_at(sections: Sections, links: &[Link]) -> Vec<u64> {
    let at = |link: &Link| sections.hot + link.at as u64;
    links.iter().map(at).collect()
}

/// Whether the host has LAHF and SAHF in 64-bit mode (CPUID.80000001H:ECX, bit 0).
fn has_lahf() -> bool {
    use std::arch::x86_64::{__cpuid, __get_cpuid_max};
    let (highest, _) = __get_cpuid_max(0x8000_0000);
    highest >= 0x8000_0001 && __cpuid(0x8000_0001).ecx & 1 != 0
}
