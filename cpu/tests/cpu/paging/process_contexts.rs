//! Two address spaces with process-context identifiers: which translations a processor may use
//! after a change of the page tables (SDM Vol. 3A 4.10).
//!
//! Programs change translations, switch the address space, invalidate, read pages, and execute
//! their code, in a random order. The model here has all translations that the manual permits to be
//! cached. What a program reads must be one of them, or what the page tables have.

use std::collections::BTreeSet;

use iced_x86::IcedError;
use iced_x86::code_asm::{cr4 as cr4_register, *};
use vbts_cpu::model;
use vbts_cpu::state::{cr4 as cr4_flags, gpr};

use crate::common::{DATA, Guest, KERNEL, page_table_entry};

/// Linear pages. The last one is global in both spaces.
const PAGES: usize = 3;
const GLOBAL: usize = PAGES - 1;
/// Flags of a page-table entry: P, R/W, U/S; and G.
const PRESENT: u64 = 7;
const G: u64 = 1 << 8;
/// Frames. Each has the code of a function that returns the frame's number.
const FRAMES: u64 = 0x29_0000;
const FRAME_COUNT: u64 = 6;
/// What the program has read: a doubleword each, of data and of code.
const LOG: u64 = 0x2A_0000;
/// The descriptor of INVPCID.
const DESCRIPTOR: u64 = 0x2F_0000;
/// Page tables of the second space, which has a page table of its own for [`DATA`].
const SECOND: u64 = 0x30_0000;
/// CR3 of each space, without its PCID.
const TABLES: [u64; 2] = [0x4000, SECOND];
const PCID: [u64; 2] = [0x001, 0xFFE];
/// Operations of a program, which it executes so many times.
const OPERATIONS: usize = 48;
const ROUNDS: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Maps a page in a space to a frame.
    Map(usize, usize, u64),
    /// Loads CR3 for a space, with bit 63 or without it.
    Switch(usize, bool),
    Invlpg(usize),
    /// The type, and the space and the page of the descriptor.
    Invpcid(u64, usize, usize),
    /// Changes CR4.PGE, and changes it back.
    TogglePge,
    Read(usize),
}

fn linear(page: usize) -> u64 {
    DATA + 0x1000 * page as u64
}

fn entry_address(space: usize, page: usize) -> u64 {
    let first = page_table_entry(linear(page));
    match space {
        0 => first,
        _ => SECOND + 0x3000 + (first & 0xFFF),
    }
}

fn entry(page: usize, frame: u64) -> u64 {
    let flags = if page == GLOBAL { PRESENT | G } else { PRESENT };
    (FRAMES + 0x1000 * frame) | flags
}

fn cr3_of(space: usize) -> u64 {
    TABLES[space] | PCID[space]
}

impl Operation {
    fn random(random: &mut impl FnMut(usize) -> usize) -> Self {
        let (space, page) = (random(2), random(PAGES));
        match random(16) {
            0..=3 => Self::Map(space, page, random(FRAME_COUNT as usize) as u64),
            4..=6 => Self::Switch(space, random(2) == 0),
            7 => Self::Invlpg(page),
            8 | 9 => Self::Invpcid(random(4) as u64, space, page),
            10 if random(4) == 0 => Self::TogglePge,
            _ => Self::Read(page),
        }
    }

    fn assemble(self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        match self {
            Self::Map(space, page, frame) => {
                a.mov(rax, entry(page, frame))?;
                a.mov(qword_ptr(entry_address(space, page)), rax)
            }
            Self::Switch(space, keep) => {
                a.mov(rax, cr3_of(space) | u64::from(keep) << 63)?;
                a.mov(cr3, rax)
            }
            Self::Invlpg(page) => a.invlpg(byte_ptr(linear(page))),
            Self::Invpcid(kind, space, page) => {
                a.mov(rax, PCID[space])?;
                a.mov(qword_ptr(DESCRIPTOR), rax)?;
                a.mov(rax, linear(page))?;
                a.mov(qword_ptr(DESCRIPTOR + 8), rax)?;
                a.mov(rbx, kind)?;
                a.invpcid(rbx, xmmword_ptr(DESCRIPTOR))
            }
            Self::TogglePge => {
                a.mov(rax, cr4_register)?;
                a.xor(rax, cr4_flags::PGE as i32)?;
                a.mov(cr4_register, rax)?;
                a.xor(rax, cr4_flags::PGE as i32)?;
                a.mov(cr4_register, rax)
            }
            Self::Read(page) => {
                // The immediate operand of the function, and what the function returns.
                a.mov(eax, dword_ptr(linear(page) + 1))?;
                a.stosd()?;
                a.call(linear(page))?;
                a.stosd()
            }
        }
    }
}

/// The frames that cached translations of a page may have.
type Cached = [BTreeSet<u64>; PAGES];

/// What the manual permits.
#[derive(Default)]
struct Model {
    current: usize,
    tables: [[u64; PAGES]; 2],
    /// Of each PCID.
    cached: [Cached; 2],
    global: BTreeSet<u64>,
}

impl Model {
    /// The processor may cache any translation of the current space at any time (4.10.2.3).
    fn fill(&mut self) {
        for page in 0..PAGES {
            let frame = self.tables[self.current][page];
            self.of(page).insert(frame);
        }
    }

    /// The translations that the current space may use for `page`.
    fn of(&mut self, page: usize) -> &mut BTreeSet<u64> {
        match page {
            GLOBAL => &mut self.global,
            _ => &mut self.cached[self.current][page],
        }
    }

    /// Executes `operation`. Returns the frames one of which a read may find.
    fn execute(&mut self, operation: Operation) -> Option<BTreeSet<u64>> {
        let mut read = None;
        match operation {
            Operation::Map(space, page, frame) => self.tables[space][page] = frame,
            Operation::Switch(space, keep) => {
                self.current = space;
                if !keep {
                    self.cached[space] = Cached::default();
                }
            }
            Operation::Invlpg(page) => self.of(page).clear(),
            Operation::Invpcid(0, space, page) => self.cached[space][page].clear(),
            Operation::Invpcid(1, space, _) => self.cached[space] = Cached::default(),
            Operation::Invpcid(3, ..) => self.cached = Default::default(),
            Operation::Invpcid(..) | Operation::TogglePge => {
                self.cached = Default::default();
                self.global.clear();
            }
            Operation::Read(page) => read = Some(self.of(page).clone()),
        }
        self.fill();
        read
    }
}

fn guest(operations: &[Operation]) -> (Guest, u64) {
    let mut g = Guest::of(model("x86-64-v3").unwrap());
    for frame in 0..FRAME_COUNT {
        let code = [0xB8, frame as u8, 0, 0, 0, 0xC3];
        g.write_bytes(FRAMES + 0x1000 * frame, &code);
    }
    let [first, second] = TABLES;
    for at in (0..0x3000).step_by(8) {
        let entry = g.read(first + at);
        let entry = match entry {
            // The tables of the second space follow each other as those of the first do. The page
            // tables of 4-KByte pages behind the directory are shared, except that of the pages.
            0x5000..0x7000 => entry - first + second,
            _ => entry,
        };
        g.write(second + at, entry);
    }
    let directory_entry = second + 0x2000 + 8 * (DATA >> 21);
    let table = g.read(directory_entry);
    for at in (0..0x1000).step_by(8) {
        g.write(second + 0x3000 + at, g.read((table & !0xFFF) + at));
    }
    g.write(directory_entry, (second + 0x3000) | table & 0xFFF);
    for space in 0..2 {
        for page in 0..PAGES {
            g.write(entry_address(space, page), entry(page, 0));
        }
    }
    let end = g.assemble(KERNEL, |a| {
        let mut next = a.create_label();
        a.mov(r15d, ROUNDS as u32)?;
        a.set_label(&mut next)?;
        for operation in operations {
            operation.assemble(a)?;
        }
        a.dec(r15d)?;
        a.jne(next)?;
        a.hlt()
    });
    g.update(|s| {
        s.sys.cr4 |= cr4_flags::PCIDE;
        s.sys.cr3 = cr3_of(0);
        s.gpr[gpr::RDI] = LOG;
    });
    (g, end)
}

#[test]
fn stale_translations_are_those_that_the_manual_permits() {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 8) as usize % below
    };
    let (mut reads, mut certain) = (0, 0);
    for program in 0..150 {
        let operations: Vec<_> = (0..OPERATIONS)
            .map(|_| Operation::random(&mut random))
            .collect();
        let (mut g, end) = guest(&operations);
        g.run_to(end);
        let mut model = Model::default();
        model.fill();
        let mut at = LOG;
        for (step, operation) in operations
            .iter()
            .cycle()
            .enumerate()
            .take(ROUNDS * OPERATIONS)
        {
            let Some(permitted) = model.execute(*operation) else {
                continue;
            };
            let found = g.read(at);
            for found in [found & 0xFFFF_FFFF, found >> 32] {
                assert!(
                    permitted.contains(&found),
                    "program {program}, step {step}, {operation:?}: frame {found} is none of \
                     {permitted:?}: {operations:?}"
                );
            }
            at += 8;
            reads += 1;
            certain += usize::from(permitted.len() == 1);
        }
        assert_eq!(g.soft.cpu.gpr[gpr::RDI], at);
    }
    assert!(
        certain * 3 > reads,
        "only {certain} of {reads} reads have one result"
    );
}
