//! Programs: from a recipe to memory and processors.

use std::fmt;
use std::sync::LazyLock;

use iced_x86::code_asm::*;
use vbts_cpu::state::{cr0, cr4, rflags};
use vbts_cpu::{ArchState, Model, NativeOptions};

use crate::lockstep::instruction::{Group, Instructions};
use crate::lockstep::layout::{
    ALIAS, Area, DATA, END_VECTOR, FRAME_COUNT, FRAMES, MAIN_SIZE, PROCESSORS, control_fields,
    initial_state,
};
use crate::lockstep::slot;
use crate::lockstep::step::{Emitter, Kind, Labels, SKIPPED, Weights, pick};
use crate::lockstep::system::mxcsr;
use crate::random::Random;
use crate::{Emit, assemble};

/// The part of the processor that a program stresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Instructions of general registers, branches, calls and strings.
    Integers,
    /// Instructions of vector registers, while MXCSR and what enables them changes.
    Vectors,
    /// Calls of code through several mappings, which change with INVLPG.
    Mappings,
    /// As `Mappings`, and page-table entries also change without INVLPG.
    StaleMappings,
    /// Code that the program overwrites.
    CodeChanges,
    /// Two processors, which overwrite each other's code.
    Processors,
    /// Interrupts, single-stepping, breakpoints, and changes of IA32_DEBUGCTL.
    Events,
}

/// The weights of steps, the number of processors, and the most steps of each.
struct Traits {
    weights: Weights,
    processors: usize,
    steps: u64,
    rounds: u64,
    /// Whether the code may run at CPL 3.
    user: bool,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Integers,
        Self::Vectors,
        Self::Mappings,
        Self::StaleMappings,
        Self::CodeChanges,
        Self::Processors,
        Self::Events,
    ];

    #[rustfmt::skip]
    fn traits(self) -> Traits {
        use Kind::*;
        let (weights, processors, steps, rounds, user): (Weights, _, _, _, _) = match self {
            Self::Integers => (&[
                (Integer, 60), (Vector, 4), (Branch, 12), (Routine, 8), (Stack, 6), (String, 4),
                (Fields, 12), (Invalidate, 1), (AddressSpace, 1),
            ], 1, 40, 30, true),
            Self::Vectors => (&[
                (Integer, 10), (Vector, 60), (Branch, 6), (Routine, 6), (Mxcsr, 6), (Control, 8),
                (Stack, 2), (Slot, 2), (Fields, 6),
            ], 1, 40, 20, true),
            Self::Mappings => (&[
                (Integer, 6), (Branch, 3), (Routine, 2), (Slot, 60), (Sweep, 2), (Remap, 8),
                (Flags, 6), (Invalidate, 3), (AddressSpace, 4), (Replace, 5), (Patch, 3),
                (String, 2), (Paging, 2), (System, 2), (Fields, 4),
            ], 1, 80, 12, false),
            Self::StaleMappings => (&[
                (Integer, 6), (Branch, 3), (Slot, 60), (Sweep, 1), (RemapStale, 6), (Remap, 4),
                (FlagsStale, 6), (Flags, 4), (Invalidate, 4), (AddressSpace, 4), (Replace, 5),
                (Patch, 3), (Paging, 2), (Fields, 4),
            ], 1, 80, 12, false),
            Self::CodeChanges => (&[
                (Integer, 6), (Branch, 3), (Routine, 2), (Slot, 60), (Sweep, 1), (Replace, 14),
                (Patch, 12), (String, 2), (Serialize, 2), (AddressSpace, 2), (Remap, 2),
            ], 1, 60, 20, false),
            Self::Processors => (&[
                (Integer, 6), (Branch, 3), (Routine, 2), (Slot, 60), (Sweep, 1), (Replace, 10),
                (Patch, 10), (String, 2), (Serialize, 6), (AddressSpace, 2), (Pause, 3),
                (Invalidate, 2),
            ], PROCESSORS, 40, 20, false),
            Self::Events => (&[
                (Integer, 40), (Vector, 6), (Branch, 8), (Routine, 6), (Stack, 4), (String, 6),
                (Slot, 12), (DebugCtl, 5), (Interrupt, 6), (Mask, 4), (Trap, 3), (Breakpoint, 4),
                (SoftwareInterrupt, 4), (System, 10), (Counter, 8),
                (Device, 6), (Fields, 8),
            ], 1, 50, 20, false),
        };
        Traits { weights, processors, steps, rounds, user }
    }
}

/// All that a program is made of. The same recipe is the same program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The part of the processor that it stresses.
    pub family: Family,
    /// The seed of all but the steps: of the processor's state, data, slots, and of when runs end.
    pub settings: u64,
    /// The seed of each step.
    pub steps: Vec<u32>,
}

impl Recipe {
    /// The recipe of a seed.
    pub fn of_seed(family: Family, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let traits = family.traits();
        let number = 4 + random.below(traits.steps) as usize * traits.processors;
        Self {
            family,
            settings: random.bits(),
            steps: (0..number).map(|_| random.bits() as u32).collect(),
        }
    }

    /// The recipe in any bytes, as a fuzzer makes them.
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (&family, rest) = bytes.split_first()?;
        let (settings, rest) = rest.split_first_chunk()?;
        let family = Family::ALL[usize::from(family) % Family::ALL.len()];
        let traits = family.traits();
        let most = traits.steps as usize * traits.processors;
        Some(Self {
            family,
            settings: u64::from_le_bytes(*settings),
            steps: rest
                .as_chunks()
                .0
                .iter()
                .map(|s| u32::from_le_bytes(*s))
                .take(most)
                .collect(),
        })
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Recipe {{ family: Family::{:?}, settings: {:#x}, steps: vec!{:?} }}",
            self.family, self.settings, self.steps
        )
    }
}

/// How the machine runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    /// The seed of the lengths of runs and of interrupts.
    pub seed: u64,
    /// Instructions of the longest runs.
    pub longest: u64,
    /// The chance of an interrupt before a run, in percent.
    pub interrupts: u64,
    /// The chance that the processor is saved before a run, and restored where it has native code,
    /// in percent.
    pub saves: u64,
}

/// A program, in memory.
#[derive(Debug)]
pub(super) struct Program {
    pub model: &'static Model,
    pub native: NativeOptions,
    pub schedule: Schedule,
    /// Whether the branches are logged for the VMM.
    pub logs: bool,
    /// Contents of memory by address, in addition to those of [`BASE`](super::layout::BASE).
    pub memory: Vec<(u64, Vec<u8>)>,
    /// The processors.
    pub states: Vec<ArchState>,
    /// The kinds of the steps, for reports.
    pub kinds: Vec<Kind>,
}

/// The models that this host can execute.
static MODELS: LazyLock<Vec<&'static Model>> = LazyLock::new(|| {
    let models = ["x86-64-v3", "max"].into_iter().filter_map(vbts_cpu::model);
    let supported: Vec<_> = models.filter(|m| m.unsupported().is_none()).collect();
    assert!(!supported.is_empty(), "the host lacks x86-64-v3");
    supported
});

impl Program {
    /// The program of a recipe.
    pub fn new(recipe: &Recipe) -> Self {
        let random = &mut Random::new(recipe.settings);
        let traits = recipe.family.traits();
        let model = random.pick(&MODELS);
        let native = NativeOptions {
            threshold: random.pick(&[1, 1, 1, 2, 3, 16]),
            check: false,
            memory: random.pick(&[0, 0, 1 << 20]),
        };
        let schedule = Schedule {
            seed: random.bits(),
            longest: random.pick(&[3, 60, 60, 500, 5000]),
            interrupts: random.pick(&[0, 0, 5, 30]),
            saves: match recipe.family {
                // A restored processor has no translations that are stale.
                Family::StaleMappings => 0,
                _ => random.pick(&[0, 0, 20]),
            },
        };
        let mut program = Self {
            model,
            native,
            schedule,
            logs: random.chance(30),
            memory: Vec::new(),
            states: Vec::new(),
            kinds: Vec::new(),
        };
        let user = traits.user && random.chance(40);
        for n in 0..traits.processors {
            let (mut state, tables) = initial_state(Area(n), user);
            program.memory.extend(tables);
            set_up(&mut state, random);
            if random.chance(50) {
                program.record(&mut state, Area(n), random);
            }
            for (at, value) in control_fields(Area(n), &state) {
                program.memory.push((at, value.to_le_bytes().into()));
            }
            program.states.push(state);
        }
        for at in (0..0x4000).step_by(8) {
            let value = random.integer().to_le_bytes();
            program.memory.push((DATA + at, value.into()));
        }
        for frame in 0..FRAME_COUNT {
            let slots = (0..slot::COUNT).flat_map(|n| slot::random(n, random));
            program
                .memory
                .push((FRAMES + (frame << 12), slots.collect()));
        }
        let rounds = 1 + random.below(traits.rounds);
        for n in 0..traits.processors {
            let mut random = Random::new(random.bits());
            let steps = recipe.steps.iter().skip(n).step_by(traits.processors);
            let steps: Vec<_> = steps.map(|s| Random::new((*s).into())).collect();
            program.write_main(Area(n), traits.weights, steps, rounds, &mut random);
        }
        program
    }

    /// Has branches recorded from the start.
    fn record(&mut self, state: &mut ArchState, area: Area, random: &mut Random) {
        const TR_AND_BTS: u64 = 0xC0;
        const LBR: u64 = 1;
        const BTINT: u64 = 1 << 8;
        let records = 20 + random.below(140);
        let threshold = random.pick(&[records + 1, records - 10]);
        let fields = area.bts_fields(records, threshold);
        self.memory.push((area.ds_area(), fields.to_bytes().into()));
        state.ds_area = area.ds_area();
        state.debugctl = TR_AND_BTS | random.pick(&[0, 0, 0, LBR, BTINT, 1 << 9, 1 << 10]);
    }

    /// Writes the main code of a processor: rounds of the steps, in which a fault leads to the end
    /// of the round, and the routines that the steps call.
    fn write_main(
        &mut self,
        area: Area,
        weights: Weights,
        steps: Vec<Random>,
        rounds: u64,
        random: &mut Random,
    ) {
        // The first instructions are in one page, or cross its end.
        let at = match random.chance(30) {
            true => area.main() + 0xF00 + random.below(0xE0),
            false => area.main(),
        };
        let mut emitter = Emitter {
            instructions: Instructions::new(self.model),
            area,
        };
        let kinds = &mut self.kinds;
        let code = assemble(64, at, |a| {
            let mut routines: Vec<_> = (0..3).map(|_| a.create_label()).collect();
            let mut at: Vec<_> = (0..steps.len() + SKIPPED)
                .map(|_| a.create_label())
                .collect();
            let (mut again, mut end) = (a.create_label(), a.create_label());
            a.mov(r15d, rounds as u32)?;
            a.set_label(&mut again)?;
            registers(a)?;
            emitter.recover_at(a, end)?;
            for (n, mut random) in steps.into_iter().enumerate() {
                // Before a label there is an instruction.
                a.set_label(&mut at[n])?;
                a.nop()?;
                let kind = pick(weights, &mut random);
                kinds.push(kind);
                let labels = Labels {
                    following: &at[n + 1..],
                    end,
                    routines: &routines,
                };
                emitter.emit(a, kind, &mut random, &labels)?;
            }
            let behind = at.len() - SKIPPED;
            for label in &mut at[behind..] {
                a.set_label(label)?;
                a.nop()?;
            }
            a.set_label(&mut end)?;
            a.dec(r15d)?;
            a.jnz(again)?;
            a.int(END_VECTOR)?;
            for routine in &mut routines {
                a.set_label(routine)?;
                a.nop()?;
                for _ in 0..random.below(6) {
                    let group = random.pick(&[Group::Any, Group::Any, Group::Vector]);
                    let instruction = emitter.instructions.next(random, group);
                    a.add_instruction(instruction)?;
                }
                a.ret()?;
            }
            Ok(())
        });
        assert!(
            at + code.len() as u64 <= area.main() + MAIN_SIZE,
            "{} bytes",
            code.len()
        );
        self.memory.push((at, code));
        if let Some(state) = self.states.get_mut(area.0) {
            state.rip = at;
        }
    }
}

/// Loads the registers that the steps do not change.
fn registers(a: &mut CodeAssembler) -> Emit {
    a.mov(rbx, DATA)?;
    a.mov(rbp, DATA + 0x2000)?;
    a.mov(r12d, 8)?;
    a.mov(r13, ALIAS)
}

/// Random registers, and what vector instructions depend on.
fn set_up(state: &mut ArchState, random: &mut Random) {
    for n in (0..16).filter(|n| *n != 4) {
        state.gpr[n] = random.integer();
    }
    for register in state.xmm.iter_mut().chain(&mut state.ymm_high) {
        let word = |random: &mut Random| match random.below(3) {
            0 => random.bits(),
            1 => random.double(),
            _ => u64::from(random.single()) << 32 | u64::from(random.single()),
        };
        *register = u128::from(word(random)) << 64 | u128::from(word(random));
    }
    let often = |random: &mut Random, percent, bits| if random.chance(percent) { bits } else { 0 };
    state.mxcsr = mxcsr(random);
    state.sys.xcr0 = random.pick(&[7, 7, 7, 7, 3, 1]);
    state.sys.cr0 |= often(random, 5, cr0::TS)
        | often(random, 3, cr0::EM)
        | often(random, 50, cr0::MP)
        | often(random, 50, cr0::AM);
    state.sys.cr4 |= often(random, 90, cr4::OSXSAVE) | often(random, 70, cr4::OSXMMEXCPT);
    state.sys.cr4 &= !often(random, 10, cr4::OSFXSR);
    state.rflags |= often(random, 50, rflags::IF) | often(random, 3, rflags::AC);
}
