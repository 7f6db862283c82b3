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
//! A program tells what it finds by [`report`], and ends by [`exit`] or by shutting the processor
//! down.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

pub const ROM: usize = 0x1_0000;
pub const GDT: u32 = 0x500;
pub const IDT: u32 = 0x800;
/// Pages for page tables.
pub const TABLES: [u32; 4] = [0x1000, 0x2000, 0x3000, 0x4000];
pub const TSS: u32 = 0x6000;
/// A 16-bit TSS.
pub const TSS16: u32 = 0x6100;
pub const LDT: u32 = 0x6200;
pub const STACK: u32 = 0x7000;
/// The stack for privilege level 0.
pub const STACK0: u32 = 0x6800;
pub const DATA: u32 = 0x7800;
pub const CODE16: u32 = 0x8000;
pub const CODE32: u32 = 0x9000;
pub const CODE64: u32 = 0xA000;
const HANDLERS16: u32 = 0xB000;
const HANDLERS32: u32 = 0xB400;
const HANDLERS64: u32 = 0xBA00;
/// Exceptions, and some vectors for INT n.
const VECTORS: u32 = 0x40;
pub const USER: u32 = 0xC000;
pub const USER_STACK: u32 = 0xD000;
/// What lies below is copied into RAM.
const COPIED: u32 = 0xE000;
const START: u32 = 0xFF00;
const RESET: u32 = 0xFFF0;

/// What a report begins and ends with.
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
    pub const END: u16 = 0xC8;
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
];

pub type Emit = Result<(), IcedError>;

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
        image.handlers64();
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
        // JMP FAR F000:FF00
        let start = (START as u16).to_le_bytes();
        image.put(RESET, &[0xEA, start[0], start[1], 0x00, 0xF0]);
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
        let mut a = CodeAssembler::new(bits).unwrap();
        program(&mut a).unwrap();
        let bytes = a.assemble(at.into()).unwrap();
        self.put(at, &bytes);
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

    /// A machine that does not do as the manual says, and how.
    pub fn deviates(&mut self, machine: &'static str, how: &'static str) {
        self.deviations.push((machine, how));
    }

    /// Why a machine cannot be asked about this program.
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

    /// Each reports its vector, and IP, CS and FLAGS from the stack.
    fn handlers16(&mut self) {
        self.stubs16(|a| {
            a.mov(bp, sp)?;
            for n in 0..3 {
                a.movzx(eax, word_ptr(bp + 2 * n))?;
                report(a)?;
            }
            exit(a)
        });
    }

    /// A handler for each vector that reports it and goes on with `then`.
    fn stubs16(&mut self, then: impl FnOnce(&mut CodeAssembler) -> Emit) {
        let common = HANDLERS16 + 8 * VECTORS;
        for vector in 0..VECTORS {
            let at = HANDLERS16 + 8 * vector;
            self.put32(4 * vector, &[at]);
            self.assemble(16, at, |a| {
                a.push(vector as i32)?;
                a.jmp(u64::from(common))
            });
        }
        self.assemble(16, common, |a| {
            a.pop(ax)?;
            a.movzx(eax, al)?;
            a.or(eax, EXCEPTION as i32)?;
            report(a)?;
            then(a)
        });
    }

    /// Each reports its vector and six words from the stack.
    fn handlers32(&mut self) {
        self.stubs32(false, |a| {
            a.mov(ebp, esp)?;
            for n in 0..6 {
                a.mov(eax, dword_ptr(ebp + 4 * n))?;
                // RF, which not every machine pushes; there are no addresses above.
                a.btr(eax, 16)?;
                report(a)?;
            }
            exit(a)
        });
    }

    /// A handler for each vector that reports it and goes on with `then`, if `errors` with an error
    /// code on the stack for each.
    fn stubs32(&mut self, errors: bool, then: impl FnOnce(&mut CodeAssembler) -> Emit) {
        let common = HANDLERS32 + 16 * VECTORS;
        for vector in 0..VECTORS {
            let at = HANDLERS32 + 16 * vector;
            let kind = if vector < 0x30 { 0x8E } else { 0xEE };
            self.interrupt(vector as u8, kind, sel::CODE32, at);
            self.assemble(32, at, |a| {
                if errors && !matches!(vector, 8 | 10..=14 | 17) {
                    a.push(0)?;
                }
                a.push(vector as i32)?;
                a.jmp(u64::from(common))
            });
        }
        self.assemble(32, common, |a| {
            a.pop(eax)?;
            a.or(eax, EXCEPTION as i32)?;
            report(a)?;
            then(a)
        });
    }

    /// Real-address mode: tries instructions one after the other. Each reports its vector if it
    /// faults, and else [`COMPLETED`].
    pub fn attempts16(&mut self, rows: &[fn(&mut CodeAssembler) -> Emit]) {
        const SLOT: u32 = 0x40;
        self.stubs16(|a| {
            a.xor(ax, ax)?;
            a.mov(ss, ax)?;
            a.mov(sp, STACK as i32)?;
            a.mov(ds, ax)?;
            a.mov(es, ax)?;
            a.push(ax)?;
            a.push(bx)?;
            a.retf()
        });
        for (n, row) in (0..).zip(rows) {
            let next = CODE16 + SLOT * (n + 1);
            self.assemble(16, CODE16 + SLOT * n, |a| {
                a.mov(bx, next as i32)?;
                row(a)?;
                mark(a, COMPLETED)?;
                a.jmp(u64::from(next))
            });
        }
        self.assemble(16, CODE16 + SLOT * rows.len() as u32, exit);
    }

    /// Protected mode: as [`Image::attempts16`], and reports the error code as well; 0 if there is
    /// none.
    pub fn attempts32(&mut self, setup: impl FnOnce(&mut CodeAssembler) -> Emit, rows: &[Attempt]) {
        const SLOT: u32 = 0x80;
        self.stubs32(true, |a| {
            a.pop(eax)?;
            report(a)?;
            a.mov(eax, i32::from(sel::DATA32))?;
            for s in [ds, es, ss] {
                a.mov(s, ax)?;
            }
            a.mov(esp, STACK as i32)?;
            a.jmp(ebx)
        });
        let first = CODE32 + 0x200;
        self.code32(|a| {
            setup(a)?;
            a.jmp(u64::from(first))
        });
        for (n, row) in (0..).zip(rows) {
            let (at, next) = (first + SLOT * n, first + SLOT * (n + 1));
            match row {
                Attempt::Kernel(f) => self.assemble(32, at, |a| {
                    a.mov(ebx, next as i32)?;
                    f(a)?;
                    mark(a, COMPLETED)?;
                    a.jmp(u64::from(next))
                }),
                Attempt::User(f) => {
                    let user = USER + SLOT * n;
                    self.assemble(32, at, |a| {
                        a.mov(ebx, next as i32)?;
                        to_user(a, user)
                    });
                    self.assemble(32, user, |a| {
                        f(a)?;
                        a.int(COMPLETED_VECTOR)
                    });
                }
            }
        }
        self.assemble(32, first + SLOT * rows.len() as u32, exit);
    }

    /// As those of 32 bits, with the lower halves of the words.
    fn handlers64(&mut self) {
        let common = HANDLERS64 + 8 * VECTORS;
        for vector in 0..VECTORS {
            self.assemble(64, HANDLERS64 + 8 * vector, |a| {
                a.push(vector as i32)?;
                a.jmp(u64::from(common))
            });
        }
        self.assemble(64, common, |a| {
            a.pop(rax)?;
            a.or(eax, EXCEPTION as i32)?;
            report(a)?;
            a.mov(rbp, rsp)?;
            for n in 0..6 {
                a.mov(eax, dword_ptr(rbp + 8 * n))?;
                report(a)?;
            }
            exit(a)
        });
    }
}

/// An instruction to try.
#[derive(Debug, Clone, Copy)]
pub enum Attempt {
    /// At CPL 0.
    Kernel(fn(&mut CodeAssembler) -> Emit),
    /// At CPL 3; [`COMPLETED_VECTOR`] is reported if it completes.
    User(fn(&mut CodeAssembler) -> Emit),
}

/// Reported of an instruction that does not fault.
pub const COMPLETED: u32 = 0x600D_600D;
pub const COMPLETED_VECTOR: i32 = 0x30;

/// IRET to 32-bit user code with EFLAGS = 2, in flat 32-bit code.
pub fn to_user(a: &mut CodeAssembler, at: u32) -> Emit {
    a.push(i32::from(sel::USER_DATA))?;
    a.push(USER_STACK as i32)?;
    a.push(2)?;
    a.push(i32::from(sel::USER_CODE))?;
    a.push(at as i32)?;
    a.iretd()
}

/// What [`Image::attempts32`] reports of an instruction at CPL 3 that completes, and of faults.
pub const DONE: [u32; 2] = [EXCEPTION | COMPLETED_VECTOR as u32, 0];
pub const GP: [u32; 2] = [EXCEPTION | 13, 0];
pub const UD: [u32; 2] = [EXCEPTION | 6, 0];

pub fn gp(selector: u16) -> [u32; 2] {
    [EXCEPTION | 13, u32::from(selector & !3)]
}

pub fn np(selector: u16) -> [u32; 2] {
    [EXCEPTION | 11, u32::from(selector & !3)]
}

/// Address of the 64-bit handler of a vector, for an IDT of IA-32e mode.
pub fn handler64(vector: u32) -> u32 {
    HANDLERS64 + 8 * vector
}

/// Writes a constant to the port that reports.
fn say(a: &mut CodeAssembler, text: [u8; 4]) -> Emit {
    mark(a, u32::from_le_bytes(text))
}

/// Finds in what a machine has printed the report of a program. `None` without a beginning; the
/// flag tells that there is no end.
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

/// Reports EAX.
pub fn report(a: &mut CodeAssembler) -> Emit {
    for _ in 0..4 {
        a.out(0xE9, al)?;
        a.ror(eax, 8)?;
    }
    Ok(())
}

/// Reports a constant.
pub fn mark(a: &mut CodeAssembler, value: u32) -> Emit {
    a.mov(eax, value)?;
    report(a)
}

/// Ends the program: isa-debug-exit on QEMU, the shutdown port on Bochs, and HLT.
pub fn exit(a: &mut CodeAssembler) -> Emit {
    say(a, END)?;
    a.xor(eax, eax)?;
    a.out(0xF4, al)?;
    a.mov(dx, 0x8900)?;
    for c in *b"Shutdown" {
        a.mov(al, i32::from(c))?;
        a.out(dx, al)?;
    }
    a.cli()?;
    a.hlt()
}

/// JMP FAR with a 16-bit offset, in 16-bit code.
pub fn ljmp16(a: &mut CodeAssembler, selector: u16, offset: u32) -> Emit {
    let (o, s) = ((offset as u16).to_le_bytes(), selector.to_le_bytes());
    a.db(&[0xEA, o[0], o[1], s[0], s[1]])
}

/// JMP FAR with a 32-bit offset, in 32-bit code, or with `prefix` in 16-bit code.
pub fn ljmp32(a: &mut CodeAssembler, prefix: bool, selector: u16, offset: u32) -> Emit {
    let (o, s) = (offset.to_le_bytes(), selector.to_le_bytes());
    if prefix {
        a.db(&[0x66])?;
    }
    a.db(&[0xEA, o[0], o[1], o[2], o[3], s[0], s[1]])
}

/// CALL FAR with a 32-bit offset, in 32-bit code.
pub fn lcall32(a: &mut CodeAssembler, selector: u16, offset: u32) -> Emit {
    let (o, s) = (offset.to_le_bytes(), selector.to_le_bytes());
    a.db(&[0x9A, o[0], o[1], o[2], o[3], s[0], s[1]])
}

/// Loads GDTR and IDTR; 16-bit code with DS = 0.
pub fn load_tables(a: &mut CodeAssembler) -> Emit {
    a.mov(word_ptr(DATA), i32::from(sel::END) - 1)?;
    a.mov(dword_ptr(DATA + 2), GDT as i32)?;
    a.lgdt(ptr(DATA))?;
    a.mov(word_ptr(DATA), 8 * VECTORS as i32 - 1)?;
    a.mov(dword_ptr(DATA + 2), IDT as i32)?;
    a.lidt(ptr(DATA))
}

/// From real-address mode to [`CODE32`].
pub fn enter_protected(a: &mut CodeAssembler) -> Emit {
    load_tables(a)?;
    a.mov(eax, cr0)?;
    a.or(al, 1)?;
    a.mov(cr0, eax)?;
    ljmp32(a, true, sel::CODE32, CODE32)
}

/// Flat data segments and the stack, in 32-bit code.
pub fn load_data32(a: &mut CodeAssembler) -> Emit {
    a.mov(ax, i32::from(sel::DATA32))?;
    a.mov(ds, ax)?;
    a.mov(es, ax)?;
    a.mov(ss, ax)?;
    a.mov(esp, STACK as i32)
}
