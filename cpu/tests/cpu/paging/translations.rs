//! Which translation an access uses: dirty flags of a cached one, large pages, invalidation,
//! address spaces.

use super::bench::Bench;
use super::{A, D, FRAME, FULL, LA, LARGE_FRAME, OLD, P, PD, PS, PT, Size, U, error, map_page};
use crate::common::records::check_and;
use crate::common::{DATA, Guest, KERNEL, page_table_entry, run_to_halt};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::NativeOptions;
use vbts_cpu::state::gpr::{RAX, RBX};
use vbts_cpu::state::vector::PF;
use vbts_cpu::state::{Activity, cr4, gpr};

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
fn every_byte_of_a_large_page_has_its_address() {
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
fn fewer_rights_take_effect_at_the_invalidation() {
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
fn a_changed_upper_entry_takes_effect_at_the_invalidation() {
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
fn global_pages_survive_a_new_cr3_and_not_a_new_pge() {
    for (global, toggle_pge, expected) in [(true, false, 1), (false, false, 2), (true, true, 2)] {
        // Reads a page, maps it elsewhere, and reads it again.
        let mut g = Guest::kernel(|a| {
            a.mov(bl, byte_ptr(DATA))?;
            a.mov(qword_ptr(rsi), rdi)?;
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)?;
            if toggle_pge {
                a.mov(rax, cr4)?;
                a.xor(eax, cr4::PGE as i32)?;
                a.mov(cr4, rax)?;
            }
            a.mov(bl, byte_ptr(DATA))?;
            a.hlt()
        });
        g.write(DATA, 1);
        g.write(DATA + 0x1000, 2);
        let flags = 3 | if global { 1 << 8 } else { 0 };
        g.page(DATA, flags);
        g.update(|s| {
            s.gpr[gpr::RSI] = 0x7000 + 8 * (DATA >> 12);
            s.gpr[gpr::RDI] = (DATA + 0x1000) | 3;
        });
        g.run();
        assert_eq!(g.soft.cpu.gpr[gpr::RBX], expected, "{global} {toggle_pge}");
    }
}

#[test]
fn invlpg_invalidates_one_page_even_if_it_is_global() {
    let mut g = Guest::kernel(|a| {
        a.mov(bl, byte_ptr(DATA))?;
        a.mov(qword_ptr(rsi), rdi)?;
        a.invlpg(byte_ptr(DATA + 0x123))?;
        a.mov(bl, byte_ptr(DATA))?;
        a.hlt()
    });
    g.write(DATA, 1);
    g.write(DATA + 0x1000, 2);
    g.page(DATA, 3 | 1 << 8);
    g.update(|s| {
        s.gpr[gpr::RSI] = 0x7000 + 8 * (DATA >> 12);
        s.gpr[gpr::RDI] = (DATA + 0x1000) | 3;
    });
    g.run();
    assert_eq!(g.soft.cpu.gpr[gpr::RBX], 2);
}

#[test]
fn invlpg_invalidates_a_whole_large_page() {
    const PD_ENTRY: u64 = 0x6008;
    const LA: u64 = 0x20_0000;
    let mut g = Guest::kernel(|a| {
        a.mov(bl, byte_ptr(LA + 0x3000))?;
        a.mov(qword_ptr(rsi), rdi)?;
        a.invlpg(byte_ptr(LA))?;
        a.mov(bl, byte_ptr(LA + 0x3000))?;
        a.hlt()
    });
    g.write(LA + 0x3000, 1);
    g.write(0x3000, 2);
    g.write(PD_ENTRY, LA | 0x83);
    g.soft.cpu.flush_tlb(false);
    g.update(|s| {
        s.gpr[gpr::RSI] = PD_ENTRY;
        s.gpr[gpr::RDI] = 0x83;
    });
    let before = g.read(0x3000) & 0xFF;
    g.run();
    assert_eq!(g.soft.cpu.gpr[gpr::RBX], before);
}

/// Code is translated again only after a flush, whatever other code runs: so native code, which is
/// looked up more rarely, fetches from the same pages.
#[test]
fn a_translation_of_code_stays_until_it_is_flushed() {
    const CODE: u64 = 0x3_0000;
    const OTHER: u64 = 0x3_1000;
    /// Another linear address of the page, whose translation takes the same place in the TLB.
    const UPPER: u64 = 0xFFFF_8000_0000_0000 + CODE;
    const SECOND: u64 = 16;
    for threshold in [u32::MAX, 1] {
        let mut g = Guest::kernel(|a| {
            let call = |a: &mut CodeAssembler, target: u64| {
                a.mov(rdx, target)?;
                a.call(rdx)
            };
            // Both blocks become native code, of which a look-up of one makes the other valid.
            call(a, CODE)?;
            call(a, CODE + SECOND)?;
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)?;
            call(a, CODE)?;
            a.mov(rsi, page_table_entry(CODE))?;
            a.mov(qword_ptr(rsi), (OTHER | 3) as i32)?;
            call(a, UPPER)?;
            a.mov(r8, rax)?;
            call(a, CODE + SECOND)?;
            a.mov(r9, rax)?;
            a.mov(rax, CODE)?;
            a.invlpg(byte_ptr(rax))?;
            call(a, CODE + SECOND)?;
            a.mov(r10, rax)?;
            a.hlt()
        });
        g.mirror(UPPER);
        for (at, value) in [(CODE, 1), (OTHER, 11)] {
            for (offset, value) in [(0, value), (SECOND, value + 1)] {
                g.assemble(at + offset, |a| {
                    a.mov(eax, value)?;
                    a.ret()
                });
            }
        }
        let mut soft = g.second_processor();
        soft.translate_blocks(NativeOptions {
            threshold,
            ..NativeOptions::default()
        })
        .unwrap();
        run_to_halt(&mut soft);
        assert_eq!(soft.native_code().blocks > 0, threshold == 1);
        assert_eq!(
            [8, 9, 10].map(|n| soft.cpu.gpr[n]),
            [11, 2, 12],
            "{threshold}"
        );
    }
}
