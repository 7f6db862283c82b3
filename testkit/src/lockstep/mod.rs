//! The same program on three machines: in the interpreter, one instruction at a time; in the
//! interpreter, in blocks; and in native code as users run it, with links between blocks and tables
//! of jumps. After each run, of random length, all registers, counters and memory must agree, and
//! the host's MXCSR must be the one of before. Between two runs, the processor that runs native
//! code may be saved and restored.
//!
//! ```
//! use vbts_testkit::lockstep::{Family, Recipe, check};
//!
//! let recipe = Recipe::of_seed(Family::Integers, 1);
//! let ran = check(&recipe).unwrap_or_else(|difference| panic!("{difference}"));
//! assert!(ran.instructions > 0);
//! ```
//!
//! The interpreter that steps has no block to be stale, since it compares each instruction with
//! memory before it executes it. So it sees each change of code at once, and each extra stop that
//! the others do not make.
//!
//! | file | contents |
//! |---|---|
//! | `layout` | the memory of a program, and what lies where |
//! | `instruction` | random instructions |
//! | `fields` | accesses close to one base register |
//! | `slot` | small functions that a program calls through several mappings, and overwrites |
//! | `step`, `system` | the steps of a program and their code |
//! | `program` | families of programs, and from a recipe to memory and processors |
//! | `machine` | the three machines |
//! | `difference` | what differs, and a report of it |
//! | `reduce` | a smaller program with a difference |

mod difference;
mod fields;
mod instruction;
mod layout;
mod machine;
mod program;
mod reduce;
mod slot;
mod step;
mod system;

pub use difference::Difference;
pub use program::{Family, Recipe};
pub use reduce::reduce;

use vbts_cpu::Exit;

use crate::random::Random;
use layout::INTERRUPTS;
use machine::{Machine, Tier};
use program::Program;

/// Instructions of a processor after which a program is not run any further.
const INSTRUCTIONS: u64 = 20_000;

/// The value of the host's MXCSR outside native code, without the flags of exceptions.
const HOST_MXCSR: u32 = 0x1F80;
const MXCSR_FLAGS: u32 = 0x3F;

/// Counts of a program's work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ran {
    /// Instructions of all processors.
    pub instructions: u64,
    /// Runs.
    pub runs: u64,
    /// Blocks that were translated.
    pub blocks: u64,
    /// How often code memory was full.
    pub flushes: u64,
}

impl std::ops::AddAssign for Ran {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.runs += other.runs;
        self.blocks += other.blocks;
        self.flushes += other.flushes;
    }
}

/// Runs the program of a recipe, and compares the machines.
///
/// # Errors
/// They differ.
pub fn check(recipe: &Recipe) -> Result<Ran, Box<Difference>> {
    check_up_to(recipe, None)
}

/// A run that is shorter than the program's schedule has it, and is the last.
#[derive(Debug, Clone, Copy)]
struct LastRun {
    number: u64,
    length: u64,
}

/// As [`check`], up to a run.
fn check_up_to(recipe: &Recipe, last: Option<LastRun>) -> Result<Ran, Box<Difference>> {
    let program = Program::new(recipe);
    let mut machines =
        [Tier::Stepped, Tier::Blocks, Tier::Native].map(|tier| Machine::new(&program, tier));
    let mut random = Random::new(program.schedule.seed);
    let mut ended = vec![false; program.states.len()];
    let mut ran = Ran::default();
    while !ended.iter().all(|ended| *ended) {
        let processor = random.below(ended.len() as u64) as usize;
        let mut length = 1 + random.below(program.schedule.longest);
        let interrupt = random.chance(program.schedule.interrupts);
        let saves = random.chance(program.schedule.saves);
        let vector = u64::from(INTERRUPTS.start) + random.below(INTERRUPTS.len() as u64);
        if ended[processor] {
            continue;
        }
        if interrupt {
            let vector = (vector & 7 != 0).then_some(vector as u8);
            machines.iter().for_each(|m| m.interrupt(processor, vector));
        }
        if saves {
            for (restores, machine) in [false, false, true].into_iter().zip(&mut machines) {
                machine.save(processor, restores);
            }
        }
        let is_last = last.is_some_and(|last| last.number == ran.runs);
        if is_last {
            length = last.map_or(length, |last| last.length);
        }
        let exit = run(&mut machines, processor, length).map_err(|what| {
            Box::new(Difference {
                recipe: recipe.clone(),
                run: ran.runs,
                length,
                what,
            })
        })?;
        ran.runs += 1;
        let cpu = &machines[0].processors[processor].soft.cpu;
        ended[processor] = match exit {
            Exit::Halt { interrupts_off } => interrupts_off,
            Exit::Shutdown | Exit::Init | Exit::Stop => true,
            Exit::Deadline | Exit::Bus | Exit::Pause | Exit::Kick => false,
        } || cpu.instructions() > INSTRUCTIONS;
        if exit
            == (Exit::Halt {
                interrupts_off: false,
            })
        {
            let vector = INTERRUPTS.start;
            machines
                .iter()
                .for_each(|m| m.interrupt(processor, Some(vector)));
        }
        if is_last {
            break;
        }
    }
    let [stepped, blocks, native] = &mut machines;
    let mut text = String::new();
    for processor in 0..ended.len() {
        for (name, got) in [("blocks", &mut *blocks), ("native code", &mut *native)] {
            if let Some(what) = difference::of_log(stepped, got, processor) {
                text += &format!("\n  {name}:{what}");
            }
        }
    }
    if !text.is_empty() {
        return Err(Box::new(Difference {
            recipe: recipe.clone(),
            run: ran.runs,
            length: 1,
            what: text,
        }));
    }
    for processor in &native.processors {
        let stats = processor.soft.native_code();
        ran.instructions += processor.soft.cpu.instructions();
        ran.blocks += stats.blocks;
        ran.flushes += stats.flushes;
    }
    Ok(ran)
}

/// Runs a processor of all machines for `length` instructions. Returns what differs then.
fn run(machines: &mut [Machine; 3], processor: usize, length: u64) -> Result<Exit, String> {
    let now = |machine: &Machine| machine.processors[processor].soft.cpu.now();
    let [stepped, blocks, native] = machines;
    let deadline = now(stepped) + length;
    let exit = native.run(processor, deadline);
    let host = replace_mxcsr(HOST_MXCSR);
    let end = now(native);
    // The interpreter ends at the same instruction, and it does so also if it makes other stops.
    let exit_of_blocks = blocks.run(processor, deadline);
    let exit_of_stepped = stepped.run(processor, end);
    let mut text = String::new();
    if host & !MXCSR_FLAGS != HOST_MXCSR {
        text += &format!("\n  the host's MXCSR is {host:#x} after native code");
    }
    if exit == Exit::Deadline && end != deadline {
        text += &format!("\n  native code ran up to {end} instead of {deadline}");
    }
    for (name, got, exit) in [
        ("blocks", &*blocks, exit_of_blocks),
        ("native code", &*native, exit),
    ] {
        if exit != exit_of_stepped {
            text += &format!("\n  {name}: returned for {exit:?} instead of {exit_of_stepped:?}");
        }
        let cpus = 0..stepped.processors.len();
        let states = cpus.filter_map(|n| difference::of_processor(stepped, got, n));
        for what in states.chain(difference::of_memory(stepped, got)) {
            text += &format!("\n  {name}:{what}");
        }
    }
    if text.is_empty() {
        return Ok(exit);
    }
    Err(text + &difference::trail(stepped, processor))
}

/// Loads the host's MXCSR. Returns the value of before.
fn replace_mxcsr(value: u32) -> u32 {
    let mut before = 0u32;
    // SAFETY: both instructions access a word of this function. All that runs here has been
    // compiled for the value that is loaded.
    unsafe {
        std::arch::asm!(
            "stmxcsr [{before}]",
            "ldmxcsr [{value}]",
            before = in(reg) &raw mut before,
            value = in(reg) &raw const value,
            options(nostack),
        );
    }
    before
}
