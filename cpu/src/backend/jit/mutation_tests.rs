//! The verifier and mutations of native code: it accepts what the translator makes, and of what a
//! mutation makes nothing that a second, naive verifier refuses.
//!
//! The guest's code is that of this test's own process. `VBTS_MUTATIONS` is the number of
//! mutations, and `VBTS_MUTATION_SEED` the seed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use vbts_testkit::naive_verifier;
use vbts_testkit::random::Random;
use vbts_verifier::{Part, Piece, verify};

use crate::backend::block::Block;
use crate::backend::blocks::Blocks;
use crate::backend::interpreter::lower;
use crate::backend::jit::assembler::Sections;
use crate::backend::jit::block::{self, Workspace};
use crate::backend::jit::calls::execute::NoDevices;
use crate::backend::jit::calls::routines::{self, Routines};
use crate::backend::jit::code::new_code::Numbers;
use crate::backend::jit::rules::rules;
use crate::backend::jit::translator::Context;
use crate::decode::MAX_BLOCK;
use crate::insn::CodeSize;
use crate::mmu::ram::GuestRam;
use crate::model::model;
use crate::processor::cpu::Cpu;
use crate::processor::platform::Signals;

/// Mutations without a variable.
const MUTATIONS: u64 = 100_000;
/// Mutations of each piece.
const OF_EACH: u64 = 20;

/// Addresses that the code is made for. Nothing executes it.
const CODE: u64 = 0x7000_0000_0000;
const SECTIONS: Sections = Sections {
    hot: CODE + 0x1_0000,
    cold: CODE + 0x10_0000,
};
const KEY: u64 = CODE + 0x20_0000;
const JUMPS: u64 = CODE + 0x30_0000;
const RIP: u64 = 0x40_0000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// The executable bytes of this process's file.
fn own_code() -> Vec<u8> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let exe = fs::read_link("/proc/self/exe").unwrap();
    let line = maps
        .lines()
        .find(|line| line.contains(" r-xp ") && line.ends_with(exe.to_str().unwrap()))
        .unwrap();
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let (start, end) = fields[0].split_once('-').unwrap();
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    let mut bytes = vec![0; (number(end) - number(start)) as usize];
    let file = File::open(exe).unwrap();
    file.read_exact_at(&mut bytes, number(fields[2])).unwrap();
    bytes
}

fn processor() -> Cpu {
    // SAFETY: it has no memory.
    let ram = unsafe { GuestRam::new(&[]) };
    let signals = Arc::<Signals>::default();
    let mut cpu = Cpu::new(model("max").unwrap(), ram, Arc::new(NoDevices), signals);
    cpu.code_size = CodeSize::Bits64;
    cpu
}

type Constants = Vec<(usize, usize)>;

/// The parts of a piece, to be changed.
struct Code {
    /// Their bytes, and which of them are constants.
    parts: [(Vec<u8>, Constants); 2],
    entries: [u64; 2],
    links: Vec<u64>,
}

impl Code {
    /// Native code of the block at the start of `bytes`, if it has any.
    fn of(
        cpu: &Cpu,
        bytes: &[u8],
        recording: bool,
        routines: Routines,
        workspace: &mut Workspace,
    ) -> Option<Self> {
        let lowered = lower::block(cpu, bytes, MAX_BLOCK)?;
        let mut blocks = Blocks::new(1);
        let id = blocks.insert(Block::new(lowered, bytes)).unwrap();
        let (block, handle) = (blocks.get(id).unwrap(), blocks.handle(id).unwrap());
        let context = Context {
            model: cpu.model,
            block: handle,
            rip: RIP,
            recording,
            locks: recording,
            is_only: recording,
            virtual_time: recording,
            global: recording,
            key: KEY,
            jumps: JUMPS,
            numbers: Numbers::default(),
            watches: recording,
            checks: false,
            routines,
        };
        let ops = block.ops.all();
        if ops.first().is_none_or(|op| op.ends_block()) {
            return None;
        }
        let translated = block::translate(context, block.bytes(), ops, SECTIONS, workspace).ok()?;
        let links = workspace
            .links
            .iter()
            .map(|link| SECTIONS.hot + link.at as u64);
        Some(Self {
            links: links.collect(),
            entries: [SECTIONS.hot, SECTIONS.hot + translated.body as u64],
            parts: workspace
                .asm
                .finish()
                .map(|part| (part.code.to_vec(), part.constants.to_vec())),
        })
    }

    fn check<T>(&self, verdict: impl FnOnce(&Piece<'_>) -> T) -> T {
        let [(hot, constants), (cold, cold_constants)] = &self.parts;
        let part = |address, code, constants| Part {
            address,
            code,
            constants,
        };
        verdict(&Piece {
            parts: &[
                part(SECTIONS.hot, hot, constants),
                part(SECTIONS.cold, cold, cold_constants),
            ],
            entries: &self.entries,
            links: &self.links,
            keys: &[KEY],
        })
    }

    /// Changes a byte, or a few. Returns what is to be put back.
    fn mutate(&mut self, random: &mut Random) -> (usize, usize, Vec<u8>) {
        let len = self.parts[0].0.len() + self.parts[1].0.len();
        let at = random.below(len as u64) as usize;
        let first = self.parts[0].0.len();
        let (part, at) = if at < first { (0, at) } else { (1, at - first) };
        let code = &mut self.parts[part].0;
        let end = (at + 4).min(code.len());
        let before = code[at..end].to_vec();
        match random.below(4) {
            0 => code[at] ^= 1 << random.below(8),
            1 => code[at] = random.bits() as u8,
            2 => code[at] = random.pick(&PREFIXES),
            _ => code[at..end].fill_with(|| random.bits() as u8),
        }
        (part, at, before)
    }
}

/// Bytes that change the instruction behind them: prefixes, and the first bytes of long opcodes.
const PREFIXES: [u8; 18] = [
    0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3, 0x40, 0x41, 0x48, 0x4F, 0x0F,
    0xC4, 0xC5,
];

/// Prefixes that an instruction ignores, before ROL, ROR, ROL and ADD.
const WITH_PREFIXES: [&[u8]; 4] = [
    &[0xF3, 0xC1, 0xC1, 3, 0xC3],
    &[0xF2, 0x49, 0xD1, 0xC8, 0xC3],
    &[0x3E, 0xF2, 0x49, 0xD1, 0xC2, 0xC3],
    &[0xF2, 0x01, 0xC8, 0xC3],
];

#[test]
fn ignored_prefixes_are_no_part_of_native_code() {
    let cpu = processor();
    let (_, routines) = routines::write(CODE);
    let (exits, called) = (routines.exits(), routines.called());
    let rules = rules(routines.execute, &exits, &called, &[JUMPS]);
    let mut workspace = Workspace::default();
    for bytes in WITH_PREFIXES {
        let block = Code::of(&cpu, bytes, false, routines, &mut workspace).unwrap();
        block.check(|piece| verify(&rules, piece)).unwrap();
    }
}

#[test]
fn no_mutation_passes_that_breaks_a_rule() {
    let code = own_code();
    let cpu = processor();
    let (_, routines) = routines::write(CODE);
    let (exits, called) = (routines.exits(), routines.called());
    let rules = rules(routines.execute, &exits, &called, &[JUMPS]);
    let mut random = Random::new(setting("VBTS_MUTATION_SEED", 1));
    let wanted = setting("VBTS_MUTATIONS", MUTATIONS);
    let mut workspace = Workspace::default();
    let (mut made, mut accepted, mut unchanged) = (0, 0, 0);
    while made < wanted {
        let at = random.below(code.len() as u64 - 0x1000) as usize;
        let recording = random.chance(50);
        let block = Code::of(
            &cpu,
            &code[at..at + 0x400],
            recording,
            routines,
            &mut workspace,
        );
        let Some(mut block) = block else {
            continue;
        };
        block.check(|piece| {
            verify(&rules, piece).unwrap();
            naive_verifier::verify(&rules, piece).unwrap();
        });
        for _ in 0..OF_EACH {
            let (part, at, before) = block.mutate(&mut random);
            let after = block.parts[part].0[at..at + before.len()].to_vec();
            made += 1;
            unchanged += u64::from(after == before);
            block.check(|piece| {
                if verify(&rules, piece).is_ok() {
                    accepted += 1;
                    let naive = naive_verifier::verify(&rules, piece);
                    assert_eq!(naive, Ok(()), "{before:02x?} -> {after:02x?}");
                }
            });
            block.parts[part].0[at..at + before.len()].copy_from_slice(&before);
        }
    }
    let refused = made - accepted;
    eprintln!("{made} mutations: {accepted} accepted, {unchanged} of them no change");
    // Registers, immediates and addresses of the guest may change.
    assert!(
        refused > made / 4 && accepted > made / 20,
        "{refused} refused"
    );
}
