//! 4-level paging (SDM Vol. 3A chapter 4): rights at every level of the tables, accessed and dirty
//! flags, page-fault error codes, reserved bits, large pages, translations that are kept and
//! forgotten, addresses that are not canonical.

use crate::common::records::{ALL, KERNEL_ONLY, Transfer, USER_ONLY, check_and, records_at};
use crate::common::{
    BTS_BUFFER, DATA, DS_AREA, Gate, Guest, IST1, KERNEL, KERNEL_STACK, USER, USER_STACK, handler,
    segment, selector,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_bts::DebugCtl;
use vbts_cpu::state::gpr::{RAX, RBX, RSP};
use vbts_cpu::state::vector::{GP, PF, SS, UD};
use vbts_cpu::state::{Activity, ArchState, cr0, efer};
use vbts_testkit::processor::stride;

// Bits of an entry (SDM Vol. 3A tables 4-14 to 4-19).
const P: u64 = 1 << 0;
const W: u64 = 1 << 1;
const U: u64 = 1 << 2;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const PS: u64 = 1 << 7;
const NX: u64 = 1 << 63;
const FULL: u64 = P | W | U;

/// Page-fault error code (SDM Vol. 3A 4.7).
mod error {
    pub const P: u64 = 1;
    pub const W: u64 = 2;
    pub const U: u64 = 4;
    pub const RSVD: u64 = 8;
    pub const I: u64 = 16;
}

/// The page under test: entry 1 of the PML4, 2 of its PDPT, 3 of its page directory, 3 of its page
/// table.
const LA: u64 = 0x80_8060_3000;
/// The tables that only this page uses.
const PDPT: u64 = 0x9_0000;
const PD: u64 = 0x9_1000;
const PT: u64 = 0x9_2000;
/// Where a page of 4 KBytes leads.
const FRAME: u64 = DATA;
/// Where a page of 2 MBytes leads.
const LARGE_FRAME: u64 = 0x20_0000;
/// Offset of the data in the page; at its start is code, UD2.
const OFFSET: u64 = 8;
const OLD: u64 = 0x1122_3344_5566_7788;
const NEW: u64 = 0x0123_4567_89AB_CDEF;

/// The page's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Small,
    Large,
}

impl Size {
    /// How many levels of tables lead to it.
    fn levels(self) -> usize {
        match self {
            Self::Small => 4,
            Self::Large => 3,
        }
    }

    fn frame(self) -> u64 {
        match self {
            Self::Small => FRAME,
            Self::Large => LARGE_FRAME + (LA & 0x1F_F000),
        }
    }
}

/// What the program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Read,
    Write,
    Fetch,
}

/// What it does, and what the processor lets it do.
#[derive(Debug, Clone, Copy)]
struct Setting {
    act: Act,
    cpl: u8,
    wp: bool,
    nxe: bool,
}

impl Setting {
    fn all() -> impl Iterator<Item = Self> {
        let acts = [Act::Read, Act::Write, Act::Fetch];
        acts.into_iter().flat_map(|act| {
            [0, 3].into_iter().flat_map(move |cpl| {
                (0..4).map(move |bits| Self {
                    act,
                    cpl,
                    wp: bits & 1 != 0,
                    nxe: bits & 2 != 0,
                })
            })
        })
    }

    /// The error code of a fault with some of P and RSVD.
    fn error(self, bits: u64) -> u64 {
        let write = if self.act == Act::Write { error::W } else { 0 };
        let user = if self.cpl == 3 { error::U } else { 0 };
        let fetch = if self.act == Act::Fetch && self.nxe {
            error::I
        } else {
            0
        };
        bits | write | user | fetch
    }

    /// The error code of an access with the rights of all entries together, or `None` if they allow
    /// it (SDM Vol. 3A 4.6).
    fn fault(self, entries: &[u64]) -> Option<u64> {
        let every = |bit| entries.iter().all(|e| e & bit != 0);
        let no_execute = entries.iter().any(|e| e & NX != 0);
        if no_execute && !self.nxe {
            return Some(self.error(error::P | error::RSVD));
        }
        let mine = self.cpl == 0 || every(U);
        let allowed = match self.act {
            Act::Read => mine,
            Act::Write => mine && (every(W) || self.cpl == 0 && !self.wp),
            Act::Fetch => mine && !no_execute,
        };
        (!allowed).then(|| self.error(error::P))
    }
}

/// A machine on which the same small program runs again and again, with other tables.
struct Bench {
    guest: Guest,
    base: ArchState,
    pml4: u64,
    /// Rows of a table, and which of them are run.
    rows: usize,
    stride: usize,
}

/// Where each program starts: after one another, one for each act.
fn start(setting: Setting) -> u64 {
    let base = if setting.cpl == 0 { KERNEL } else { USER };
    base + 0x100 * setting.act as u64
}

fn program(act: Act, a: &mut CodeAssembler) -> Result<(), IcedError> {
    match act {
        Act::Read => a.mov(rax, qword_ptr(rbx + OFFSET as i32))?,
        Act::Write => a.mov(qword_ptr(rbx + OFFSET as i32), rax)?,
        Act::Fetch => a.jmp(rbx)?,
    }
    a.ud2()
}

impl Bench {
    fn new() -> Self {
        let mut guest = Guest::new();
        for act in [Act::Read, Act::Write, Act::Fetch] {
            for base in [KERNEL, USER] {
                guest.assemble(base + 0x100 * act as u64, |a| program(act, a));
            }
        }
        for frame in [Size::Small.frame(), Size::Large.frame()] {
            guest.assemble(frame, |a| a.ud2());
        }
        guest.trace(ALL.bits(), 64);
        let base = guest.soft.cpu.state();
        let pml4 = base.sys.cr3;
        Self {
            guest,
            base,
            pml4,
            rows: 0,
            // A prime, so that each setting has its turn.
            stride: stride(89),
        }
    }

    /// The address of an entry: level 0 is the PML4's.
    fn slot(&self, level: usize) -> u64 {
        [self.pml4 + 8, PDPT + 16, PD + 24, PT + 24][level]
    }

    /// Writes the entries, of which only the flags are given.
    fn map(&mut self, size: Size, flags: &[u64]) -> Vec<u64> {
        let mut targets = vec![PDPT, PD, PT, FRAME];
        if size == Size::Large {
            targets = vec![PDPT, PD, LARGE_FRAME | PS];
        }
        let entries: Vec<u64> = targets.iter().zip(flags).map(|(t, f)| t | f).collect();
        for (level, &entry) in entries.iter().enumerate() {
            self.guest.write(self.slot(level), entry);
        }
        entries
    }

    /// Runs the program of a setting to the exception at its end.
    fn run(&mut self, setting: Setting, debugctl: DebugCtl) {
        let mut s = self.base.clone();
        s.rip = start(setting);
        s.gpr[RAX] = NEW;
        s.gpr[RBX] = LA;
        s.gpr[RSP] = KERNEL_STACK;
        if setting.cpl == 3 {
            s.gpr[RSP] = USER_STACK;
            s.sys.seg = [segment(selector::USER_SS); 6];
            s.sys.seg[1] = segment(selector::USER_CS);
        }
        if !setting.wp {
            s.sys.cr0 &= !cr0::WP;
        }
        if !setting.nxe {
            s.sys.efer &= !efer::NXE;
        }
        s.debugctl = debugctl.bits();
        self.guest.write(DS_AREA + 8, BTS_BUFFER);
        self.guest.soft.cpu.load_state(&s);
        self.guest.run();
    }

    /// Runs a setting with a page whose entries have some flags, and compares everything with what
    /// must come out: `fault` is the error code if there is to be one.
    fn check(
        &mut self,
        size: Size,
        flags: &[u64],
        setting: Setting,
        fault: Option<u64>,
        debugctl: DebugCtl,
    ) {
        self.rows += 1;
        if !self.rows.is_multiple_of(self.stride) {
            return;
        }
        let data = size.frame() + OFFSET;
        self.guest.write(data, OLD);
        let before = self.map(size, flags);
        self.run(setting, debugctl);

        let start = start(setting);
        let what = || format!("{size:?} {flags:x?} {setting:?} {debugctl:?}");
        let mut transfers: Vec<Transfer> = Vec::new();
        if setting.act == Act::Fetch {
            transfers.push((start, LA, setting.cpl));
        }
        let (at, la) = match setting.act {
            Act::Fetch => (LA, LA),
            Act::Read | Act::Write => (start, LA + OFFSET),
        };
        let (vector, end) = match (fault, setting.act) {
            (Some(_), _) => (PF, at),
            (None, Act::Fetch) => (UD, LA),
            (None, _) => (UD, start + 4),
        };
        transfers.push((end, handler(vector), 0));
        let frame = self.guest.run_to_exception(vector, fault);
        assert_eq!(frame.rip, end, "{}", what());
        let records: Vec<_> = transfers
            .iter()
            .filter(|t| records_at(debugctl, t.2))
            .map(|t| (t.0, t.1))
            .collect();
        assert_eq!(self.guest.records(), records, "{}", what());

        let written = setting.act == Act::Write && fault.is_none();
        let memory = if written { NEW } else { OLD };
        assert_eq!(self.guest.read(data), memory, "{}", what());
        let cpu = &self.guest.soft.cpu;
        let loaded = setting.act == Act::Read && fault.is_none();
        assert_eq!(cpu.gpr[RAX], if loaded { OLD } else { NEW }, "{}", what());
        let told = fault.map_or(0, |_| la);
        assert_eq!(cpu.sys.cr2, told, "{}", what());

        // A fault leaves no trace in the tables; the manual would allow accessed flags above the
        // entry that faults (4.8).
        let leaf = size.levels() - 1;
        for (level, &entry) in before.iter().enumerate() {
            let accessed = if fault.is_none() { A } else { 0 };
            let dirty = if written && level == leaf { D } else { 0 };
            let after = self.guest.read(self.slot(level));
            assert_eq!(after, entry | accessed | dirty, "level {level} {}", what());
        }
    }
}

/// Every combination of rights in the entries of `levels` levels.
fn combinations(levels: usize) -> impl Iterator<Item = Vec<u64>> {
    (0..1usize << (3 * levels)).map(move |bits| {
        (0..levels)
            .map(|level| {
                let rights = bits >> (3 * level) & 7;
                P | if rights & 1 != 0 { W } else { 0 }
                    | if rights & 2 != 0 { U } else { 0 }
                    | if rights & 4 != 0 { NX } else { 0 }
            })
            .collect()
    })
}

fn every_combination_of_rights(size: Size) {
    let mut bench = Bench::new();
    // Each filter meets each setting: 24 settings, 3 filters, and a number of combinations that
    // neither divides.
    let mut filters = [ALL, USER_ONLY, KERNEL_ONLY].into_iter().cycle();
    for flags in combinations(size.levels()) {
        for setting in Setting::all() {
            let fault = setting.fault(&flags);
            if let Some(filter) = filters.next() {
                bench.check(size, &flags, setting, fault, filter);
            }
        }
        filters.next();
    }
}

#[test]
fn rights_of_all_levels_combine_for_a_page_of_4_kbytes() {
    every_combination_of_rights(Size::Small);
}

#[test]
fn rights_of_all_levels_combine_for_a_page_of_2_mbytes() {
    every_combination_of_rights(Size::Large);
}

#[test]
fn a_missing_entry_faults_at_any_level_whatever_else_it_says() {
    let mut bench = Bench::new();
    for size in [Size::Small, Size::Large] {
        for level in 0..size.levels() {
            for rest in [0, W | U, NX, 1 << 51, u64::MAX << 12 & !NX] {
                for setting in Setting::all() {
                    let mut flags = vec![FULL; size.levels()];
                    flags[level] = rest;
                    bench.check(size, &flags, setting, Some(setting.error(0)), ALL);
                }
            }
        }
    }
}

#[test]
fn reserved_bits_fault_at_any_level() {
    let address = (40..52).map(|n| 1u64 << n);
    let mut bench = Bench::new();
    for size in [Size::Small, Size::Large] {
        for level in 0..size.levels() {
            let leaf = level == size.levels() - 1;
            let own: Vec<u64> = match (size, level) {
                // No pages of 512 or 1 GBytes.
                (_, 0 | 1) => vec![PS],
                (Size::Large, _) => (13..21).map(|n| 1 << n).collect(),
                _ => vec![],
            };
            for bit in address.clone().chain(own) {
                for setting in Setting::all() {
                    let mut flags = vec![FULL; size.levels()];
                    flags[level] |= bit;
                    let fault = setting.error(error::P | error::RSVD);
                    bench.check(size, &flags, setting, Some(fault), USER_ONLY);
                }
            }
            // PWT, PCD, bits that software may use, PAT; above the page, dirty and global mean
            // nothing.
            let pat = match (size, leaf) {
                (_, false) => D | 1 << 8,
                (Size::Small, true) => PS,
                (Size::Large, true) => 1 << 12,
            };
            for bit in [1 << 3, 1 << 4, 7 << 9, 0x7FF << 52, pat] {
                for setting in Setting::all() {
                    let mut flags = vec![FULL; size.levels()];
                    flags[level] |= bit;
                    bench.check(size, &flags, setting, None, KERNEL_ONLY);
                }
            }
        }
    }
}

#[test]
fn flags_that_are_set_stay_set() {
    let mut bench = Bench::new();
    for size in [Size::Small, Size::Large] {
        let mut flags = vec![FULL | A; size.levels()];
        flags[size.levels() - 1] |= D;
        for setting in Setting::all() {
            bench.check(size, &flags, setting, None, ALL);
        }
    }
}

/// Maps the page under test, with some flags in its last entry, in a guest of another test.
fn map_page(g: &mut Guest, flags: u64) {
    let pml4 = g.soft.cpu.sys.cr3;
    g.write(pml4 + 8, PDPT | FULL);
    g.write(PDPT + 16, PD | FULL);
    g.write(PD + 24, PT | FULL);
    g.write(PT + 24, FRAME | flags);
    g.soft.cpu.flush_tlb(false);
}

#[test]
fn a_write_after_a_read_makes_the_page_dirty() {
    let mut g = Guest::kernel(|a| {
        a.mov(rbx, LA)?;
        a.mov(rax, qword_ptr(rbx))?;
        a.mov(rcx, PT + 24)?;
        a.mov(r8, qword_ptr(rcx))?;
        a.mov(qword_ptr(rbx), rax)?;
        a.mov(r9, qword_ptr(rcx))?;
        a.hlt()
    });
    map_page(&mut g, FULL);
    g.run();
    let seen = [8, 9].map(|n| g.soft.cpu.gpr[n] & (A | D));
    assert_eq!(seen, [A, A | D]);
}

#[test]
fn every_byte_of_a_large_page_is_where_it_belongs() {
    let mut bench = Bench::new();
    bench.map(Size::Large, &[FULL; 3]);
    let g = &mut bench.guest;
    g.assemble(KERNEL, |a| {
        a.mov(rax, qword_ptr(rbx))?;
        a.hlt()
    });
    for offset in [0, 0x1000, 0x3008, 0xF_F000, 0x10_0000, 0x1F_FFF8] {
        g.write(LARGE_FRAME + offset, OLD + offset);
        g.update(|s| {
            s.activity = Activity::Active;
            s.rip = KERNEL;
            s.gpr[RBX] = (LA & !0x1F_FFFF) + offset;
        });
        g.run_to(KERNEL + 4);
        assert_eq!(g.soft.cpu.gpr[RAX], OLD + offset, "{offset:#x}");
    }
}

/// A program that reads the page, changes its entry from RSI to RDI, does something, and writes the
/// page.
fn changed_entry(
    before: u64,
    after: u64,
    between: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Guest {
    let mut g = Guest::kernel(|a| {
        a.mov(rbx, LA)?;
        a.mov(rax, qword_ptr(rbx))?;
        a.mov(qword_ptr(rbx), rax)?;
        a.mov(rcx, PT + 24)?;
        a.mov(rdx, FRAME | after)?;
        a.mov(qword_ptr(rcx), rdx)?;
        between(a)?;
        a.mov(qword_ptr(rbx), rcx)?;
        a.hlt()
    });
    map_page(&mut g, before);
    g
}

#[test]
fn fewer_rights_count_from_the_invalidation_on() {
    type Between = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let invalidations: [Between; 3] = [
        |a| a.invlpg(byte_ptr(rbx + 0x123)),
        |a| {
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)
        },
        |a| {
            a.mov(rax, cr4)?;
            a.xor(eax, 0x80)?;
            a.mov(cr4, rax)
        },
    ];
    for between in invalidations {
        for (after, code) in [(P | U, error::P | error::W), (0, error::W)] {
            let mut g = changed_entry(FULL, after, between);
            g.run_to_exception(PF, Some(code));
            assert_eq!(g.soft.cpu.sys.cr2, LA);
        }
    }
}

#[test]
fn more_rights_need_no_invalidation() {
    // A fault at most once is allowed; this processor has none (4.10.4.3).
    let mut g = Guest::kernel(|a| {
        a.mov(rbx, LA)?;
        a.mov(rax, qword_ptr(rbx))?;
        a.mov(rcx, PT + 24)?;
        a.mov(rdx, FRAME | FULL)?;
        a.mov(qword_ptr(rcx), rdx)?;
        a.mov(qword_ptr(rbx), rcx)?;
        a.hlt()
    });
    map_page(&mut g, P | U);
    g.run();
    assert_eq!(g.read(FRAME), PT + 24);
}

#[test]
fn an_upper_entry_that_changes_counts_from_the_invalidation_on() {
    let mut g = Guest::kernel(|a| {
        a.mov(rbx, LA)?;
        a.mov(rax, qword_ptr(rbx))?;
        a.mov(rcx, PD + 24)?;
        a.mov(rdx, LARGE_FRAME | PS | FULL)?;
        a.mov(qword_ptr(rcx), rdx)?;
        a.invlpg(byte_ptr(rbx))?;
        a.mov(rax, qword_ptr(rbx))?;
        a.hlt()
    });
    map_page(&mut g, FULL);
    g.write(FRAME, 1);
    g.write(Size::Large.frame(), 2);
    g.run();
    assert_eq!(g.soft.cpu.gpr[RAX], 2);
}

#[test]
fn invlpg_of_an_address_that_is_not_canonical_does_nothing() {
    let mut g = Guest::kernel(|a| {
        a.mov(rbx, 0x8000_0000_0000u64)?;
        a.invlpg(byte_ptr(rbx))?;
        a.hlt()
    });
    g.run_to(KERNEL + 14);
}

#[test]
fn each_address_space_runs_its_own_code() {
    const OTHER_PML4: u64 = 0x9_4000;
    const OTHER_TABLES: [u64; 3] = [0x9_5000, 0x9_6000, 0x9_7000];
    const OTHER_FRAME: u64 = DATA + 0x2000;
    let make = || {
        let mut g = Guest::kernel(|a| {
            a.mov(rbx, LA)?; // +0
            a.call(rbx)?; // +10
            a.mov(r8, rax)?; // +12
            a.mov(rcx, OTHER_PML4)?; // +15
            a.mov(cr3, rcx)?; // +25
            a.call(rbx)?; // +28
            a.hlt()
        });
        map_page(&mut g, FULL);
        let same = g.read(g.soft.cpu.sys.cr3);
        g.write(OTHER_PML4, same);
        g.write(OTHER_PML4 + 8, OTHER_TABLES[0] | FULL);
        g.write(OTHER_TABLES[0] + 16, OTHER_TABLES[1] | FULL);
        g.write(OTHER_TABLES[1] + 24, OTHER_TABLES[2] | FULL);
        g.write(OTHER_TABLES[2] + 24, OTHER_FRAME | FULL);
        for (frame, value) in [(FRAME, 1), (OTHER_FRAME, 2)] {
            g.assemble(frame, |a| {
                a.mov(rax, value as u64)?; // 10 bytes, or 5
                a.ret()
            });
        }
        g
    };
    let length = make().assemble(DATA + 0x3000, |a| a.mov(rax, 1u64)) - (DATA + 0x3000);
    check_and(
        make,
        &[
            (KERNEL + 10, LA, 0),
            (LA + length, KERNEL + 12, 0),
            (KERNEL + 28, LA, 0),
            (LA + length, KERNEL + 30, 0),
        ],
        |g| assert_eq!((g.soft.cpu.gpr[8], g.soft.cpu.gpr[RAX]), (1, 2)),
    );
}

#[test]
fn a_handler_maps_the_page_and_the_instruction_runs_again() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(rbx, LA)?; // +0
            a.inc(qword_ptr(rbx))?; // +10
            a.ud2() // +13
        });
        map_page(&mut g, 0);
        g.assemble(handler(PF), |a| {
            a.mov(qword_ptr(PT + 24), rdi)?; // +0
            a.add(rsp, 8)?; // +8
            a.iretq() // +12
        });
        g.update(|s| s.gpr[7] = FRAME | FULL);
        g
    };
    check_and(
        make,
        &[
            (USER + 10, handler(PF), 0),
            (handler(PF) + 12, USER + 10, 3),
            (USER + 13, handler(UD), 0),
        ],
        |g| {
            assert_eq!(g.read(FRAME), 1);
            assert_eq!(g.read(PT + 24), FRAME | FULL | A | D);
            assert_eq!(g.soft.cpu.sys.cr2, LA);
        },
    );
}

/// Loads a descriptor that is not marked as accessed from a GDT in the page under test, at CPL 3.
fn load_from_gdt(flags: u64, wp: bool) -> Guest {
    let mut g = Guest::user(|a| {
        a.mov(eax, u32::from(selector::USER_SS))?;
        a.mov(fs, eax)?;
        a.ud2()
    });
    map_page(&mut g, flags);
    for offset in (0..0x100).step_by(8) {
        let descriptor = g.read(0x1000 + offset);
        g.write(FRAME + offset, descriptor);
    }
    g.write(FRAME + 0x28, 0x00CF_F200_0000_FFFF);
    g.update(|s| {
        s.sys.gdtr.base = LA;
        if !wp {
            s.sys.cr0 &= !cr0::WP;
        }
    });
    g
}

#[test]
fn implicit_accesses_are_the_supervisors_at_any_cpl() {
    // The tables are the kernel's, and the descriptor gets its accessed bit.
    for (flags, wp) in [(P | W, true), (P, false)] {
        let mut g = load_from_gdt(flags, wp);
        g.run_to_exception(UD, None);
        assert_eq!(g.read(FRAME + 0x28), 0x00CF_F300_0000_FFFF);
    }
    // Neither the table's absence nor its write protection is the user's fault.
    let mut g = load_from_gdt(P | U, true);
    g.gate(
        PF,
        Gate {
            ist: 1,
            ..Gate::default()
        },
    );
    let frame = g.run_to_exception(PF, Some(error::P | error::W));
    assert_eq!((frame.at + 40, g.soft.cpu.sys.cr2), (IST1, LA + 0x28 + 5));
}

/// An instruction that accesses RBX, and what it raises if that is not canonical.
type Access = (&'static str, u8, &'static [u8]);

#[test]
fn addresses_that_are_not_canonical_fault_before_any_page_does() {
    const ACCESSES: &[Access] = &[
        ("mov rax, [rbx]", GP, &[0x48, 0x8B, 0x03]),
        ("mov [rbx], rax", GP, &[0x48, 0x89, 0x03]),
        ("lock inc dword ptr [rbx]", GP, &[0xF0, 0xFF, 0x03]),
        ("movups xmm0, [rbx]", GP, &[0x0F, 0x10, 0x03]),
        ("fld qword ptr [rbx]", GP, &[0xDD, 0x03]),
        ("fxsave [rbx]", GP, &[0x0F, 0xAE, 0x03]),
        ("push qword ptr [rbx]", GP, &[0xFF, 0x33]),
        ("jmp rbx", GP, &[0xFF, 0xE3]),
        ("call rbx", GP, &[0xFF, 0xD3]),
        ("jmp qword ptr [rbx]", GP, &[0xFF, 0x23]),
        ("push rax", SS, &[0x48, 0x89, 0xDC, 0x50]),
        ("pop rax", SS, &[0x48, 0x89, 0xDC, 0x58]),
        ("ret", SS, &[0x48, 0x89, 0xDC, 0xC3]),
        ("call +0", SS, &[0x48, 0x89, 0xDC, 0xE8, 0, 0, 0, 0]),
        ("mov eax, [rsp]", SS, &[0x48, 0x89, 0xDC, 0x8B, 0x04, 0x24]),
        ("mov eax, [rbp]", SS, &[0x48, 0x89, 0xDD, 0x8B, 0x45, 0]),
        ("movsq from", GP, &[0x48, 0x89, 0xDE, 0x48, 0xA5]),
        ("stosq to", GP, &[0x48, 0x89, 0xDF, 0x48, 0xAB]),
    ];
    for &(name, vector, code) in ACCESSES {
        // Those of three bytes more move RBX to the register that they access first.
        let before = match code {
            [0x48, 0x89, 0xDC..=0xDF, rest @ ..] if !rest.is_empty() => 3,
            _ => 0,
        };
        // Far enough above the last canonical address that PUSH and CALL do not reach it, and the
        // last that is not canonical.
        for la in [
            0x8000_0000_0000u64,
            0x8000_0000_1000,
            0xFFFF_7FFF_FFFF_FFF8,
            1 << 63,
        ] {
            let pushes = matches!(code.get(before), Some(0x50 | 0xE8)) && before > 0;
            if pushes && la == 0x8000_0000_0000 {
                continue;
            }
            for start in [KERNEL, USER] {
                let make = || {
                    let mut g = if start == KERNEL {
                        Guest::kernel(|a| a.hlt())
                    } else {
                        Guest::user(|a| a.hlt())
                    };
                    g.write_bytes(start, code);
                    for vector in [GP, SS] {
                        g.gate(
                            vector,
                            Gate {
                                ist: 1,
                                ..Gate::default()
                            },
                        );
                    }
                    g.update(|s| s.gpr[RBX] = la);
                    g
                };
                let at = start + before as u64;
                check_and(make, &[(at, handler(vector), 0)], |g| {
                    assert_eq!(g.soft.cpu.sys.cr2, 0, "{name} {la:#x}");
                    assert_eq!(g.read(IST1 - 48), 0, "{name} {la:#x}: error code");
                    assert_eq!(g.read(IST1 - 40), at, "{name} {la:#x}");
                });
            }
        }
    }
}
