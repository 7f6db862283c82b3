//! Control registers, MSRs, CPUID, descriptor-table registers, and what only the kernel may do.

use std::sync::atomic::Ordering;

use crate::common::{DATA, Guest, KERNEL, selector};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{GP, PF, UD};
use vbts_cpu::state::{Activity, cr0, cr4, efer, gpr, rflags};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// Writes an MSR and reads it back at CPL 0; `None` if either raises #GP(0).
fn write_and_read(g: &mut Guest, msr: u32, value: u64) -> Option<u64> {
    let end = g.assemble(KERNEL, |a| {
        a.wrmsr()?;
        a.rdmsr()?;
        a.hlt()
    });
    run_msr(g, msr, value, end)
}

fn read(g: &mut Guest, msr: u32) -> Option<u64> {
    let end = g.assemble(KERNEL, |a| {
        a.rdmsr()?;
        a.hlt()
    });
    run_msr(g, msr, 0, end)
}

fn run_msr(g: &mut Guest, msr: u32, value: u64, end: u64) -> Option<u64> {
    g.update(|s| {
        s.rip = KERNEL;
        s.activity = Activity::Active;
        s.gpr[gpr::RCX] = msr.into();
        s.gpr[gpr::RAX] = value & 0xFFFF_FFFF;
        s.gpr[gpr::RDX] = value >> 32;
    });
    g.run();
    let r = &g.soft.cpu.gpr;
    if g.soft.cpu.rip == end {
        return Some(r[gpr::RDX] << 32 | r[gpr::RAX]);
    }
    assert_eq!(g.soft.cpu.rip, crate::common::handler(GP) + 1);
    assert_eq!(g.read(r[gpr::RSP]), 0);
    None
}

#[test]
fn msrs_hold_what_is_written_as_far_as_their_bits_exist() {
    const HOLE: u64 = 1 << 47;
    const TOP: u64 = 0xFFFF_8000_0000_0000;
    // MSR, value written, value read back.
    let cases = [
        (0x1234, 0, None),
        (0x17, 0, None),
        (0x8B, 0, Some(0xBC << 32)),
        // Counters take 32 bits and extend the sign to 40.
        (0xC1, 0xFFFF, Some(0xFFFF)),
        (0xC2, 0x8000_0000, Some(0xFF_8000_0000)),
        (0x309, 0xFFFF_FFFF_0000_0001, Some(1)),
        (0xFE, 0x508, None),
        (0x174, 0x10, Some(0x10)),
        (0x175, TOP, Some(TOP)),
        (0x175, HOLE, None),
        (0x186, 0x0053_00C4, Some(0x0053_00C4)),
        (0x186, 1 << 21, None),
        // There are two, and three with a fixed function.
        (0xC3, 0, None),
        (0x188, 0, None),
        (0x30C, 0, None),
        (0x186, 1 << 32, None),
        (0x1A0, 0, Some(0x1080)),
        (0x1A0, 1 << 11, Some(0x1080)),
        (0x1A0, 1 << 2, None),
        (0x1D9, 0x3C0, Some(0x3C0)),
        (0x1D9, 1 << 14, Some(1 << 14)),
        (0x1D9, 1 << 2, None),
        (0x200, 0xC000_0006, Some(0xC000_0006)),
        (0x200, 0xC000_0002, None),
        (0x201, 0xFF_C000_0800, Some(0xFF_C000_0800)),
        (0x201, 1 << 40, None),
        (0x250, 0x0606_0606_0606_0606, Some(0x0606_0606_0606_0606)),
        (0x26F, 0x0600_0000_0000_0003, None),
        (0x277, 0x0007_0106_0007_0106, Some(0x0007_0106_0007_0106)),
        (0x277, 2, None),
        (0x2FF, 0xC06, Some(0xC06)),
        (0x38D, 0xBBB, Some(0xBBB)),
        (0x38D, 4, None),
        (0x38E, 0, None),
        (0x38F, 0x7_0000_0003, Some(0x7_0000_0003)),
        (0x38F, 4, None),
        (0x390, 0xC000_0007_0000_0003, Some(0)),
        (0x600, TOP, Some(TOP)),
        (0x600, HOLE, None),
        (0xC000_0080, 0xD01, Some(0xD01)),
        (0xC000_0080, 0x101, Some(0x501)),
        (0xC000_0080, 0, None),
        (0xC000_0080, 0x8501, None),
        (0xC000_0081, u64::MAX, Some(u64::MAX)),
        (0xC000_0082, HOLE, None),
        (0xC000_0084, 1 << 32, None),
        (0xC000_0100, TOP, Some(TOP)),
        (0xC000_0101, HOLE, None),
        // TSC_AUX comes with RDTSCP.
        (0xC000_0103, 0, None),
    ];
    for (msr, value, expected) in cases {
        assert_eq!(
            write_and_read(&mut Guest::new(), msr, value),
            expected,
            "{msr:#x} {value:#x}"
        );
    }
}

#[test]
fn msrs_after_reset() {
    let mut g = Guest::new();
    assert_eq!(read(&mut g, 0x1A0), Some(0x1081));
    assert_eq!(read(&mut g, 0x277), Some(0x0007_0406_0007_0406));
    assert_eq!(read(&mut g, 0x2FF), Some(0x806));
    assert_eq!(read(&mut g, 0x10A).map(|v| v & 1), Some(1));
    assert_eq!(read(&mut g, 0x1B), Some(0xFEE0_0900));
    assert_eq!(read(&mut g, 0x802), None);
}

#[test]
fn a_kernel_finds_the_counters_that_it_looks_for() {
    // What Linux's check_hw_exists does with each of the counters.
    let mut g = Guest::new();
    for counter in 0..2 {
        assert_eq!(read(&mut g, 0x186 + counter).map(|v| v >> 22 & 1), Some(0));
        let value = read(&mut g, 0xC1 + counter).unwrap() ^ 0xFFFF;
        assert_eq!(write_and_read(&mut g, 0xC1 + counter, value), Some(value));
    }
}

#[test]
fn the_tsc_can_be_set_and_the_deadline_follows_it() {
    let mut g = Guest::new();
    assert_eq!(write_and_read(&mut g, 0x10, 1_000_000), Some(1_000_001));
    let now = g.soft.cpu.now();
    let tsc = g.soft.cpu.state().tsc;
    assert_eq!(write_and_read(&mut g, 0x6E0, tsc + 500), Some(tsc + 500));
    assert_eq!(g.platform.deadline.load(Ordering::Relaxed), now + 500);
    // A deadline in the past is due now, and zero disarms.
    let past = write_and_read(&mut g, 0x6E0, 1).unwrap();
    assert!(past >= tsc, "{past}");
    assert_eq!(write_and_read(&mut g, 0x6E0, 0), Some(0));
    assert_eq!(g.platform.deadline.load(Ordering::Relaxed), 0);
}

#[test]
fn a_segment_base_msr_moves_the_segment() {
    let mut g = Guest::kernel(|a| {
        a.wrmsr()?;
        a.mov(rax, qword_ptr(0).fs())?;
        a.hlt()
    });
    g.write(DATA, 0x5EED);
    g.update(|s| {
        s.gpr[gpr::RCX] = 0xC000_0100;
        s.gpr[gpr::RAX] = DATA;
    });
    g.run();
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 0x5EED);
}

#[test]
fn nxe_takes_effect_at_once() {
    // With NXE off, bit 63 of an entry is reserved.
    let mut g = Guest::kernel(|a| {
        a.mov(al, byte_ptr(DATA))?;
        a.rdmsr()?;
        a.and(eax, !(efer::NXE as u32) as i32)?;
        a.wrmsr()?;
        a.mov(al, byte_ptr(DATA))
    });
    g.page(DATA, 1 << 63 | 7);
    g.update(|s| s.gpr[gpr::RCX] = 0xC000_0080);
    g.run_to_exception(PF, Some(9));
}

#[test]
fn cpuid_follows_the_local_apic() {
    let program: Program = |a| {
        a.mov(eax, 1)?;
        a.cpuid()?;
        a.hlt()
    };
    for (base, expected) in [(0xFEE0_0900, 1 << 9), (0xFEE0_0100, 0)] {
        let mut g = Guest::kernel(program);
        g.platform.apic_base.store(base, Ordering::Relaxed);
        g.run();
        assert_eq!(g.soft.cpu.gpr[gpr::RDX] & 1 << 9, expected);
        assert_eq!(g.soft.cpu.gpr[gpr::RAX], 0x6FB);
    }
}

#[test]
fn cpuid_clears_the_upper_halves() {
    let mut g = Guest::user(|a| {
        a.cpuid()?;
        a.ud2()
    });
    g.update(|s| {
        s.gpr[..4].fill(u64::MAX << 32);
    });
    g.run_to_exception(UD, None);
    let r = &g.soft.cpu.gpr;
    let vendor: Vec<u8> = [r[gpr::RBX], r[gpr::RDX], r[gpr::RCX]]
        .iter()
        .flat_map(|r| r.to_le_bytes())
        .collect();
    assert_eq!(vendor, *b"Genu\0\0\0\0ineI\0\0\0\0ntel\0\0\0\0");
}

#[test]
fn control_registers_reject_what_they_do_not_have() {
    let c0 = cr0::PE | cr0::PG | cr0::ET;
    let c4 = cr4::PAE;
    // Register, value, what is read back (or #GP).
    let cases = [
        (0, c0 | cr0::WP | cr0::TS, Some(c0 | cr0::WP | cr0::TS)),
        // ET cannot be cleared, and reserved bits stay clear.
        (0, cr0::PE | cr0::PG | 1 << 17, Some(c0)),
        (0, c0 | 1 << 32, None),
        (0, cr0::PG | cr0::ET, None),
        (0, cr0::PE | cr0::ET, None),
        (0, c0 | cr0::NW, None),
        (2, u64::MAX, Some(u64::MAX)),
        (3, 0x4018, Some(0x4018)),
        (3, 0x4000 | 1 << 40, None),
        (
            4,
            c4 | cr4::PGE | cr4::OSFXSR,
            Some(c4 | cr4::PGE | cr4::OSFXSR),
        ),
        (4, cr4::PGE, None),
        (4, c4 | cr4::VME, None),
        (4, c4 | 1 << 20, None),
        (8, 0xF, Some(0xF)),
        (8, 0x10, None),
    ];
    for (n, value, expected) in cases {
        let mut g = Guest::kernel(|a| {
            let r = [cr0, cr1, cr2, cr3, cr4, cr5, cr6, cr7, cr8][n];
            a.mov(r, rax)?;
            a.mov(rbx, r)?;
            a.hlt()
        });
        g.update(|s| s.gpr[gpr::RAX] = value);
        match expected {
            Some(expected) => {
                g.run();
                assert_eq!(g.soft.cpu.gpr[gpr::RBX], expected, "CR{n} {value:#x}");
            }
            None => {
                let frame = g.run_to_exception(GP, Some(0));
                assert_eq!(frame.rip, KERNEL, "CR{n} {value:#x}");
            }
        }
    }
}

#[test]
fn cr1_does_not_exist() {
    let mut g = Guest::kernel(|a| a.mov(rax, cr1));
    g.run_to_exception(UD, None);
}

#[test]
fn clearing_wp_takes_effect_at_once() {
    let mut g = Guest::kernel(|a| {
        a.mov(al, byte_ptr(DATA))?;
        a.mov(rax, cr0)?;
        a.and(eax, !(cr0::WP as u32) as i32)?;
        a.mov(cr0, rax)?;
        a.mov(byte_ptr(DATA), 7)?;
        a.mov(rax, cr0)?;
        a.or(eax, cr0::WP as i32)?;
        a.mov(cr0, rax)?;
        a.mov(byte_ptr(DATA), 8)
    });
    g.page(DATA, 1);
    g.run_to_exception(PF, Some(3));
    assert_eq!(g.read(DATA), 7);
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
fn invlpg_forgets_one_page_even_if_it_is_global() {
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
fn invlpg_forgets_all_of_a_large_page() {
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

#[test]
fn privileged_instructions_are_the_kernels() {
    let programs: &[Program] = &[
        |a| a.mov(rax, cr0),
        |a| a.mov(cr3, rax),
        |a| a.mov(rax, cr8),
        |a| a.lgdt(fword_ptr(DATA)),
        |a| a.lidt(fword_ptr(DATA)),
        |a| a.lldt(ax),
        |a| a.ltr(ax),
        |a| a.lmsw(ax),
        |a| a.clts(),
        |a| a.invlpg(byte_ptr(DATA)),
        |a| a.invd(),
        |a| a.wbinvd(),
        |a| a.hlt(),
        |a| a.rdmsr(),
        |a| a.wrmsr(),
        |a| a.cli(),
        |a| a.sti(),
        |a| a.rdpmc(),
    ];
    for (i, program) in programs.iter().enumerate() {
        let mut g = Guest::user(program);
        let frame = g.run_to_exception(GP, Some(0));
        assert_eq!(frame.rip, crate::common::USER, "program {i}");
    }
}

#[test]
fn iopl_lets_user_code_change_if() {
    let mut g = Guest::user(|a| {
        a.sti()?;
        a.nop()?;
        a.cli()?;
        a.sti()?;
        a.ud2()
    });
    g.update(|s| s.rflags |= rflags::IOPL);
    let frame = g.run_to_exception(UD, None);
    assert_ne!(frame.rflags & rflags::IF, 0);
}

#[test]
fn rdtsc_and_rdpmc_are_subject_to_cr4() {
    let mut g = Guest::user(|a| {
        a.rdtsc()?;
        a.ud2()
    });
    g.run_to_exception(UD, None);
    g.update(|s| s.sys.cr4 |= cr4::TSD);
    let mut g = Guest::user(|a| a.rdtsc());
    g.update(|s| s.sys.cr4 |= cr4::TSD);
    g.run_to_exception(GP, Some(0));

    for (counter, exists) in [
        (0u32, true),
        (2, false),
        (1 << 30 | 2, true),
        (1 << 30 | 3, false),
    ] {
        let mut g = Guest::user(|a| {
            a.mov(ecx, counter)?;
            a.rdpmc()?;
            a.ud2()
        });
        g.update(|s| s.sys.cr4 |= cr4::PCE);
        if exists {
            g.run_to_exception(UD, None);
        } else {
            g.run_to_exception(GP, Some(0));
        }
    }
}

#[test]
fn the_tsc_counts_instructions() {
    let mut g = Guest::kernel(|a| {
        a.rdtsc()?;
        a.mov(ebx, eax)?;
        a.nop()?;
        a.rdtsc()?;
        a.sub(eax, ebx)?;
        a.hlt()
    });
    g.run();
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 3);
}

#[test]
fn descriptor_table_registers_are_stored_and_loaded() {
    let mut g = Guest::kernel(|a| {
        a.sgdt(fword_ptr(DATA))?;
        a.sidt(fword_ptr(DATA + 0x10))?;
        a.mov(word_ptr(DATA), 0x1234)?;
        a.lgdt(fword_ptr(DATA))?;
        a.sldt(eax)?;
        a.str(ebx)?;
        a.smsw(ecx)?;
        a.hlt()
    });
    g.write(DATA + 8, u64::MAX);
    g.run();
    assert_eq!(g.soft.cpu.sys.gdtr.base, 0x1000);
    assert_eq!(g.soft.cpu.sys.gdtr.limit, 0x1234);
    assert_eq!(g.read(DATA + 0x10), 0x2000 << 16 | 0xFFF);
    // Ten bytes, no more.
    assert_eq!(g.read(DATA + 8), u64::MAX << 16);
    let r = &g.soft.cpu.gpr;
    assert_eq!((r[gpr::RAX], r[gpr::RBX]), (0, selector::TSS.into()));
    assert_eq!(r[gpr::RCX], g.soft.cpu.sys.cr0);

    let mut g = Guest::kernel(|a| a.lgdt(fword_ptr(DATA)));
    g.write(DATA, 0);
    g.write(DATA + 8, 0x8000);
    g.run_to_exception(GP, Some(0));
}

#[test]
fn extensions_that_the_model_lacks_are_undefined() {
    let programs: &[Program] = &[
        |a| a.rdtscp(),
        |a| a.popcnt(eax, eax),
        |a| a.crc32(eax, eax),
        |a| a.ptest(xmm0, xmm0),
        |a| a.pmulld(xmm0, xmm0),
        |a| a.pextrb(eax, xmm0, 0),
        |a| a.roundss(xmm0, xmm0, 0),
        |a| a.movntdqa(xmm0, xmmword_ptr(DATA)),
        |a| a.pcmpgtq(xmm0, xmm0),
        |a| a.pcmpistri(xmm0, xmm0, 0),
        |a| a.xgetbv(),
        |a| a.rdrand(eax),
        |a| a.wrfsbase(rax),
        |a| a.monitor(),
        |a| a.vmcall(),
        |a| a.vaddps(ymm0, ymm0, ymm0),
        |a| a.invpcid(rax, xmmword_ptr(DATA)),
        |a| a.clac(),
        |a| a.rsm(),
    ];
    for (i, program) in programs.iter().enumerate() {
        let mut g = Guest::kernel(program);
        let frame = g.run_to_exception(UD, None);
        assert_eq!(frame.rip, KERNEL, "program {i}");
    }
}

#[test]
fn hints_of_later_processors_do_nothing() {
    let mut g = Guest::new();
    let end = g.assemble(KERNEL, |a| {
        a.endbr64()?;
        a.rdsspq(rax)?;
        a.prefetchw(byte_ptr(0))?;
        a.pause()?;
        a.lfence()?;
        a.mfence()?;
        a.sfence()?;
        // TZCNT is BSF here: the destination keeps its value.
        a.xor(ecx, ecx)?;
        a.mov(eax, 5)?;
        a.tzcnt(eax, ecx)?;
        a.hlt()
    });
    g.run_to(end);
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 5);
}
