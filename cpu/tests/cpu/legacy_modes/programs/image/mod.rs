//! The ROM that a program is: 64 KBytes below 4 GBytes, and again below 1 MByte, where a processor
//! starts after reset.
//!
//! | address | what |
//! |---|---|
//! | 0000 | interrupt vectors of real-address mode: [`Image::handlers16`] |
//! | 0500 | [`GDT`] |
//! | 0800 | [`IDT`]: [`Image::handlers32`] |
//! | 1000 - 4FFF | page tables: a page each, for the programs to lay out |
//! | 6000 | [`TSS`] |
//! | 7000 | top of the stack, which begins in real-address mode |
//! | 8000 | [`CODE16`], 9000 [`CODE32`], A000 [`CODE64`] |
//! | B000 | handlers |
//! | C000 | [`USER`] code, D000 the top of its stack |
//! | FF00 | copies everything below E000 into RAM at the same addresses and jumps to [`CODE16`] |
//!
//! A program reports its results with [`report`]. It ends with [`exit`] or by shutting the
//! processor down.

mod attempts;
mod handlers;
mod snippets;
mod tasks;

pub use self::attempts::*;
pub use self::snippets::*;
pub use self::tasks::*;
pub use vbts_testkit::Emit;

use self::snippets::say;
use iced_x86::code_asm::*;
use vbts_testkit::assemble;

pub const ROM: usize = 0x1_0000;
pub const GDT: u32 = 0x500;
pub const IDT: u32 = 0x800;
/// Pages for page tables.
pub const TABLES: [u32; 4] = [0x1000, 0x2000, 0x3000, 0x4000];
pub const TSS: u32 = 0x6000;
/// A 16-bit TSS.
pub const TSS16: u32 = 0x6100;
pub const LDT: u32 = 0x6200;
/// A task to switch to, and one of 16 bits.
pub const TASK: u32 = 0x6300;
pub const TASK16: u32 = 0x6400;
/// Exceptions for which there is a task, see [`Image::fault_tasks`].
pub const FAULT_TASKS: [u32; 4] = [10, 11, 12, 13];
/// The tasks of [`FAULT_TASKS`], with their stacks.
const FAULT_TSS: u32 = 0x6C00;
pub const STACK: u32 = 0x7000;
/// The stack for privilege level 0.
pub const STACK0: u32 = 0x6800;
pub const DATA: u32 = 0x7800;
pub const CODE16: u32 = 0x8000;
pub const CODE32: u32 = 0x9000;
pub const CODE64: u32 = 0xA000;
const HANDLERS16: u32 = 0xB000;
const HANDLERS32: u32 = 0xB400;
/// Exceptions, and some vectors for INT n.
const VECTORS: u32 = 0x40;
pub const USER: u32 = 0xC000;
pub const USER_STACK: u32 = 0xD000;
/// What lies below is copied into RAM.
const COPIED: u32 = 0xE000;
const START: u32 = 0xFF00;
const RESET: u32 = 0xFFF0;
/// The words before and after a report.
const BEGIN: [u8; 4] = *b"vbts";
const END: [u8; 4] = *b"stbv";
/// A report of an exception begins with this and the vector.
pub const EXCEPTION: u32 = 0xE000_0000;

/// Selectors of [`Image`]'s descriptors.
pub mod sel {
    pub const CODE32: u16 = 0x08;
    pub const DATA32: u16 = 0x10;
    pub const CODE16: u16 = 0x18;
    pub const DATA16: u16 = 0x20;
    pub const CODE64: u16 = 0x28;
    pub const USER_CODE: u16 = 0x33;
    pub const USER_DATA: u16 = 0x3B;
    pub const TSS: u16 = 0x40;
    pub const USER_CODE16: u16 = 0x4B;
    pub const GATE: u16 = 0x50;
    pub const GATE2: u16 = 0x58;
    pub const TSS16: u16 = 0x60;
    pub const LDT: u16 = 0x68;
    pub const CONFORMING: u16 = 0x70;
    pub const ABSENT_CODE: u16 = 0x78;
    pub const ABSENT_DATA: u16 = 0x80;
    pub const EXECUTE_ONLY: u16 = 0x88;
    pub const READ_ONLY: u16 = 0x90;
    pub const EXPAND_DOWN: u16 = 0x98;
    pub const SMALL: u16 = 0xA0;
    /// 16 bytes, for IA-32e mode.
    pub const TSS64: u16 = 0xA8;
    /// A 16-bit data segment of 4 GBytes.
    pub const BIG16: u16 = 0xB8;
    /// Code that begins at 0x10000.
    pub const HIGH_CODE: u16 = 0xC0;
    /// The task of [`super::TASK`], and one of 16 bits.
    pub const TASK: u16 = 0xC8;
    pub const TASK16: u16 = 0xD0;
    /// The tasks of [`super::FAULT_TASKS`]: of the first, and of the one after the last.
    pub const FAULT_TASKS: u16 = 0xD8;
    pub const END: u16 = FAULT_TASKS + 8 * super::FAULT_TASKS.len() as u16;
}

pub const CS: u32 = sel::CODE32 as u32;
pub const USER_CS: u32 = sel::USER_CODE as u32;
pub const USER_SS: u32 = sel::USER_DATA as u32;

const DESCRIPTORS: &[(u16, u64)] = &[
    (sel::CODE32, 0x00CF_9A00_0000_FFFF),
    (sel::DATA32, 0x00CF_9200_0000_FFFF),
    (sel::CODE16, 0x0000_9A00_0000_FFFF),
    (sel::DATA16, 0x0000_9200_0000_FFFF),
    (sel::CODE64, 0x00AF_9A00_0000_FFFF),
    (sel::USER_CODE, 0x00CF_FA00_0000_FFFF),
    (sel::USER_DATA, 0x00CF_F200_0000_FFFF),
    (sel::TSS, 0x0000_8900_0000_0067 | (TSS as u64) << 16),
    (sel::USER_CODE16, 0x0000_FA00_0000_FFFF),
    (sel::TSS16, 0x0000_8100_0000_002B | (TSS16 as u64) << 16),
    (sel::LDT, 0x0000_8200_0000_000F | (LDT as u64) << 16),
    (sel::CONFORMING, 0x00CF_9E00_0000_FFFF),
    (sel::ABSENT_CODE, 0x00CF_1A00_0000_FFFF),
    (sel::ABSENT_DATA, 0x00CF_1200_0000_FFFF),
    (sel::EXECUTE_ONLY, 0x00CF_9800_0000_FFFF),
    (sel::READ_ONLY, 0x00CF_9000_0000_FFFF),
    (sel::EXPAND_DOWN, 0x0040_9600_0000_0FFF),
    (sel::SMALL, 0x0040_9200_0000_00FF | (DATA as u64) << 16),
    (sel::TSS64, 0x0000_8900_0000_0067 | (TSS as u64) << 16),
    (sel::BIG16, 0x008F_9200_0000_FFFF),
    (sel::HIGH_CODE, 0x0040_9A01_0000_FFFF),
    (sel::TASK, 0x0000_8900_0000_0067 | (TASK as u64) << 16),
    (sel::TASK16, 0x0000_8100_0000_002B | (TASK16 as u64) << 16),
];

/// A program and what is known of it.
#[derive(Debug, Clone)]
pub struct Image {
    pub rom: Vec<u8>,
    /// The words that it reports.
    pub expected: Vec<u32>,
    /// It ends in shutdown.
    pub shutdown: bool,
    /// Machines that are known to do something else, and what.
    deviations: Vec<(&'static str, &'static str)>,
}

impl Image {
    /// Handlers that report, descriptor tables, a TSS with stacks, and no program yet.
    pub fn new() -> Self {
        let mut image = Self {
            rom: vec![0; ROM],
            expected: Vec::new(),
            shutdown: false,
            deviations: Vec::new(),
        };
        for &(selector, descriptor) in DESCRIPTORS {
            image.descriptor(selector, descriptor);
        }
        image.put32(TSS + 4, &[STACK0, sel::DATA32.into()]);
        // No I/O map.
        image.put(TSS + 0x66, &0x68u16.to_le_bytes());
        image.put(TSS16 + 2, &STACK0.to_le_bytes()[..2]);
        image.put(TSS16 + 4, &sel::DATA32.to_le_bytes());
        image.handlers16();
        image.handlers32();
        image.assemble(16, START, |a| {
            a.xor(ax, ax)?;
            a.mov(es, ax)?;
            a.mov(ss, ax)?;
            a.mov(sp, STACK as i32)?;
            a.mov(ax, cs)?;
            a.mov(ds, ax)?;
            a.xor(si, si)?;
            a.xor(di, di)?;
            a.mov(cx, COPIED as i32 / 2)?;
            a.cld()?;
            a.rep().movsw()?;
            a.mov(ds, cx)?;
            say(a, BEGIN)?;
            ljmp16(a, 0, CODE16)
        });
        image.assemble(16, RESET, |a| ljmp16(a, 0xF000, START));
        image
    }

    pub fn put(&mut self, at: u32, bytes: &[u8]) {
        self.rom[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn put32(&mut self, at: u32, words: &[u32]) {
        for (at, word) in (at..).step_by(4).zip(words) {
            self.put(at, &word.to_le_bytes());
        }
    }

    pub fn put64(&mut self, at: u32, words: &[u64]) {
        for (at, word) in (at..).step_by(8).zip(words) {
            self.put(at, &word.to_le_bytes());
        }
    }

    pub fn descriptor(&mut self, selector: u16, descriptor: u64) {
        self.put64(GDT + u32::from(selector & !7), &[descriptor]);
    }

    /// A gate as the GDT and the IDT have it; `kind` is the byte with P, DPL and type.
    pub fn gate(&mut self, at: u32, kind: u8, selector: u16, offset: u32, parameters: u8) {
        let low = offset & 0xFFFF | u32::from(selector) << 16;
        let high = offset & 0xFFFF_0000 | u32::from(kind) << 8 | u32::from(parameters);
        self.put32(at, &[low, high]);
    }

    /// An IDT entry for protected mode.
    pub fn interrupt(&mut self, vector: u8, kind: u8, selector: u16, offset: u32) {
        self.gate(IDT + 8 * u32::from(vector), kind, selector, offset, 0);
    }

    /// Assembles a program; `at` is its linear address and its offset.
    pub fn assemble(
        &mut self,
        bits: u32,
        at: u32,
        program: impl FnOnce(&mut CodeAssembler) -> Emit,
    ) {
        self.put(at, &assemble(bits, at.into(), program));
    }

    pub fn code16(&mut self, program: impl FnOnce(&mut CodeAssembler) -> Emit) {
        self.assemble(16, CODE16, program);
    }

    /// A program in flat 32-bit protected mode, with the stack at [`STACK`] and a TSS, without
    /// paging.
    pub fn code32(&mut self, program: impl FnOnce(&mut CodeAssembler) -> Emit) {
        self.code16(enter_protected);
        self.assemble(32, CODE32, |a| {
            load_data32(a)?;
            a.mov(ax, i32::from(sel::TSS))?;
            a.ltr(ax)?;
            program(a)
        });
    }

    pub fn user(&mut self, bits: u32, program: impl FnOnce(&mut CodeAssembler) -> Emit) {
        self.assemble(bits, USER, program);
    }

    pub fn expect_all(&mut self, outcomes: &[&[u32]]) {
        for words in outcomes {
            self.expect(words);
        }
    }

    /// Notes a machine that differs from the manual, and how.
    pub fn deviates(&mut self, machine: &'static str, how: &'static str) {
        self.deviations.push((machine, how));
    }

    /// Why this program is not run on a machine, if it is not.
    pub fn excuse(&self, machine: &str) -> Option<&'static str> {
        let found = self.deviations.iter().find(|d| d.0 == machine);
        found.map(|d| d.1)
    }

    /// What is wrong with a report, if anything is.
    pub fn check(&self, words: &[u32], shutdown: bool) -> Result<(), String> {
        let n = words.iter().zip(&self.expected).take_while(|(a, b)| a == b);
        let n = n.count();
        if n == words.len() && n == self.expected.len() && shutdown == self.shutdown {
            return Ok(());
        }
        let rest = |words: &[u32]| words[n..].iter().take(8).copied().collect::<Vec<_>>();
        Err(format!(
            "from word {n}: expected {:x?}, shutdown {}; reported {:x?}, shutdown {shutdown}",
            rest(&self.expected),
            self.shutdown,
            rest(words)
        ))
    }

    pub fn expect(&mut self, words: &[u32]) {
        self.expected.extend_from_slice(words);
    }
}

/// Finds the report of a program in the output of a machine. `None` if it has no beginning; the
/// flag is set if it has no end.
pub fn reported(printed: &[u8]) -> Option<(Vec<u32>, bool)> {
    let find = |text: [u8; 4], bytes: &[u8]| bytes.windows(4).position(|w| w == text);
    let rest = &printed[find(BEGIN, printed)? + 4..];
    let end = (0..rest.len())
        .step_by(4)
        .find(|at| rest[*at..].starts_with(&END));
    let words = rest[..end.unwrap_or(rest.len())].chunks_exact(4);
    let words = words.map(|w| w.iter().rfold(0, |n, b| n << 8 | u32::from(*b)));
    Some((words.collect(), end.is_none()))
}
