//! What a user program cannot compare with the host's XSAVE and its relatives: the privilege levels
//! and modes in which they execute, XCR0, refused headers, XSAVES and XRSTORS, and faults.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::model;
use vbts_cpu::state::vector::{GP, NM, PF, UD};
use vbts_cpu::state::xsave::{COMPACTED, Pointers, XsaveArea, component};
use vbts_cpu::state::{Activity, ArchState, cr0, cr4, gpr};

use crate::common::{DATA, Guest, KERNEL, segment, selector};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

const ALL: u64 = component::X87 | component::SSE | component::AVX;

/// The instructions with an operand at RDI. The last two are for CPL 0.
const WITH_MEMORY: [Program; 6] = [
    |a| a.xsave(ptr(rdi)),
    |a| a.xsaveopt(ptr(rdi)),
    |a| a.xsavec(ptr(rdi)),
    |a| a.xrstor(ptr(rdi)),
    |a| a.xsaves(ptr(rdi)),
    |a| a.xrstors(ptr(rdi)),
];

/// The system has XSAVE on, with all components, and EDX:EAX asks for all.
fn enable(s: &mut ArchState) {
    s.sys.cr4 |= cr4::OSXSAVE;
    s.sys.xcr0 = ALL;
    s.gpr[gpr::RDI] = DATA;
    (s.gpr[gpr::RAX], s.gpr[gpr::RDX]) = (0xFFFF_FFFF, 0xFFFF_FFFF);
}

/// A kernel with XSAVE on, about to run `program` and to halt.
fn kernel(program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> (Guest, u64) {
    let mut g = Guest::of(model("x86-64-v3").unwrap());
    let end = g.assemble(KERNEL, |a| {
        program(a)?;
        a.hlt()
    });
    g.update(enable);
    (g, end)
}

/// The area at `DATA`.
fn area(g: &Guest) -> XsaveArea {
    let mut area = XsaveArea::default();
    for (at, chunk) in (DATA..).step_by(8).zip(area.bytes_mut().chunks_mut(8)) {
        chunk.copy_from_slice(&g.read(at).to_le_bytes());
    }
    area
}

#[test]
fn no_other_model_has_xsave() {
    for name in ["core2", "conroe", "x86-64-v2", "nehalem"] {
        for program in WITH_MEMORY
            .into_iter()
            .chain([(|a: &mut CodeAssembler| a.xgetbv()) as Program, |a| {
                a.xsetbv()
            }])
        {
            let mut g = Guest::of(model(name).unwrap());
            g.assemble(KERNEL, program);
            g.run_to_exception(UD, None);
        }
        let mut g = Guest::of(model(name).unwrap());
        g.assemble(KERNEL, |a| a.mov(cr4, rax));
        g.update(|s| s.gpr[gpr::RAX] = s.sys.cr4 | cr4::OSXSAVE);
        g.run_to_exception(GP, Some(0));
    }
}

#[test]
fn cr4_osxsave_enables_the_instructions() {
    let programs: [Program; 2] = [|a| a.xgetbv(), |a| a.xsetbv()];
    for program in WITH_MEMORY.into_iter().chain(programs) {
        let (mut g, _) = kernel(program);
        g.update(|s| {
            s.sys.cr4 &= !cr4::OSXSAVE;
            s.sys.cr0 |= cr0::TS;
        });
        g.run_to_exception(UD, None);
    }
}

#[test]
fn cr0_ts_is_nm_before_the_alignment_is_gp() {
    for program in WITH_MEMORY {
        let (mut g, _) = kernel(program);
        g.update(|s| {
            s.sys.cr0 |= cr0::TS;
            s.gpr[gpr::RDI] += 16;
        });
        g.run_to_exception(NM, None);
        let (mut g, _) = kernel(program);
        g.update(|s| s.gpr[gpr::RDI] += 32);
        g.run_to_exception(GP, Some(0));
    }
    // XGETBV needs no registers of the task.
    let (mut g, end) = kernel(|a| a.xgetbv());
    g.update(|s| {
        s.sys.cr0 |= cr0::TS;
        s.gpr[gpr::RCX] = 0;
    });
    g.run_to(end);
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], ALL);
}

#[test]
fn the_supervisor_forms_and_xsetbv_are_for_cpl_0() {
    let programs: [Program; 3] = [
        |a| a.xsaves(ptr(rdi)),
        |a| a.xrstors(ptr(rdi)),
        |a| a.xsetbv(),
    ];
    for program in programs {
        let mut g = Guest::of(model("x86-64-v3").unwrap());
        g.start_user(program);
        g.update(enable);
        g.run_to_exception(GP, Some(0));
    }
}

#[test]
fn xcr0_accepts_what_cpuid_enumerates() {
    for (value, accepted) in [
        (1, true),
        (3, true),
        (7, true),
        (0, false),
        (2, false),
        (5, false),
        (6, false),
        (0xF, false),
        (1 << 63 | 1, false),
    ] {
        let (mut g, end) = kernel(|a| {
            a.xsetbv()?;
            a.xgetbv()
        });
        g.update(|s| {
            s.gpr[gpr::RCX] = 0;
            (s.gpr[gpr::RAX], s.gpr[gpr::RDX]) = (value & 0xFFFF_FFFF, value >> 32);
        });
        if accepted {
            g.run_to(end);
            assert_eq!(g.soft.cpu.gpr[gpr::RAX], value);
            assert_eq!(g.soft.cpu.gpr[gpr::RDX], 0);
        } else {
            g.run_to_exception(GP, Some(0));
            assert_eq!(g.soft.cpu.sys.xcr0, ALL, "{value:x}");
        }
    }
    for program in [(|a: &mut CodeAssembler| a.xsetbv()) as Program, |a| {
        a.xgetbv()
    }] {
        let (mut g, _) = kernel(program);
        g.update(|s| {
            s.gpr[gpr::RCX] = 2;
            (s.gpr[gpr::RAX], s.gpr[gpr::RDX]) = (1, 0);
        });
        g.run_to_exception(GP, Some(0));
    }
}

#[test]
fn cpuid_follows_cr4_and_xcr0() {
    let leaf = |xcr0: u64, osxsave: bool, leaf: u64, subleaf: u64| {
        let (mut g, end) = kernel(|a| a.cpuid());
        g.update(|s| {
            s.sys.xcr0 = xcr0;
            if !osxsave {
                s.sys.cr4 &= !cr4::OSXSAVE;
            }
            (s.gpr[gpr::RAX], s.gpr[gpr::RCX]) = (leaf, subleaf);
        });
        g.run_to(end);
        [gpr::RAX, gpr::RBX, gpr::RCX, gpr::RDX].map(|n| g.soft.cpu.gpr[n])
    };
    let flags = |osxsave| leaf(1, osxsave, 1, 0)[2] >> 26 & 3;
    assert_eq!((flags(false), flags(true)), (1, 3));
    assert_eq!(leaf(1, true, 0xD, 0), [7, 576, 832, 0]);
    assert_eq!(leaf(7, true, 0xD, 0), [7, 832, 832, 0]);
    assert_eq!(leaf(3, true, 0xD, 1), [0xF, 576, 0, 0]);
    assert_eq!(leaf(7, true, 0xD, 1), [0xF, 832, 0, 0]);
    assert_eq!(leaf(7, true, 0xD, 2), [256, 576, 0, 0]);
    for absent in [3, 62, 63] {
        assert_eq!(leaf(7, true, 0xD, absent), [0; 4]);
    }
}

#[test]
fn ia32_xss_has_no_components() {
    const XSS: u32 = 0xDA0;
    let (mut g, end) = kernel(|a| {
        a.mov(ecx, XSS)?;
        a.xor(eax, eax)?;
        a.xor(edx, edx)?;
        a.wrmsr()?;
        a.mov(eax, 5)?;
        a.rdmsr()
    });
    g.run_to(end);
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 0);
    let (mut g, _) = kernel(|a| a.wrmsr());
    g.update(|s| {
        s.gpr[gpr::RCX] = XSS.into();
        (s.gpr[gpr::RAX], s.gpr[gpr::RDX]) = (1 << 8, 0);
    });
    g.run_to_exception(GP, Some(0));
}

/// Headers, by XSTATE_BV, XCOMP_BV and the third word, and whether XRSTOR and XRSTORS accept them
/// while XCR0 has x87 and SSE state.
const HEADERS: [(u64, u64, u64, bool, bool); 12] = [
    (0, 0, 0, true, false),
    (3, 0, 0, true, false),
    (7, 0, 0, false, false),
    (1 << 63, 0, 0, false, false),
    (3, 3, 0, false, false),
    (3, 0, 1, false, false),
    (3, COMPACTED | 3, 0, true, true),
    (1, COMPACTED | 3, 0, true, true),
    (2, COMPACTED | 1, 0, false, false),
    (3, COMPACTED | 7, 0, false, false),
    (COMPACTED, COMPACTED | 3, 0, false, false),
    (3, COMPACTED | 3, 1 << 63, false, false),
];

#[test]
fn a_header_is_checked() {
    for (present, format, rest, xrstor, xrstors) in HEADERS {
        for (program, accepted) in [(WITH_MEMORY[3], xrstor), (WITH_MEMORY[5], xrstors)] {
            let (mut g, end) = kernel(program);
            g.update(|s| {
                s.sys.xcr0 = 3;
                s.xmm[3] = 0x1234;
            });
            for (at, word) in [(512, present), (520, format), (528, rest)] {
                g.write(DATA + at, word);
            }
            if accepted {
                g.run_to(end);
                assert_eq!(g.soft.cpu.xmm[3], 0);
            } else {
                g.run_to_exception(GP, Some(0));
                assert_eq!(g.soft.cpu.xmm[3], 0x1234, "{present:x} {format:x} {rest:x}");
            }
        }
    }
    // All 40 bytes.
    for at in 528..576 {
        let (mut g, _) = kernel(WITH_MEMORY[3]);
        g.write_bytes(DATA + at, &[1]);
        g.run_to_exception(GP, Some(0));
    }
}

#[test]
fn mxcsr_with_reserved_bits_is_gp_where_it_is_loaded() {
    // The standard format has it with SSE and with AVX state, the compacted one with SSE state.
    for (present, format, mask, fails) in [
        (0, 0, component::SSE, true),
        (0, 0, component::AVX, true),
        (1, 0, component::X87, false),
        (2, COMPACTED | 7, component::SSE, true),
        (0, COMPACTED | 7, component::SSE, false),
        (4, COMPACTED | 7, component::AVX, false),
    ] {
        let (mut g, end) = kernel(WITH_MEMORY[3]);
        g.write(DATA + 24, 1 << 16);
        g.write(DATA + 512, present);
        g.write(DATA + 520, format);
        g.update(|s| {
            s.gpr[gpr::RAX] = mask;
            s.mxcsr = 0x1FA0;
            s.ymm_high[1] = 7;
        });
        if fails {
            g.run_to_exception(GP, Some(0));
            assert_eq!((g.soft.cpu.mxcsr, g.soft.cpu.ymm_high[1]), (0x1FA0, 7));
        } else {
            g.run_to(end);
            let initial = mask == component::SSE;
            assert_eq!(g.soft.cpu.mxcsr, if initial { 0x1F80 } else { 0x1FA0 });
        }
    }
}

/// Registers that are not initial.
fn fill(s: &mut ArchState) {
    s.x87.fcw = 0x27F;
    s.x87.ftw = 0x80;
    s.x87.fsw = 7 << 11;
    s.x87.set_st(0, 0x4000 << 64 | 1 << 63);
    s.mxcsr = 0x1FA0;
    s.xmm = std::array::from_fn(|n| 0x100 + n as u128);
    s.ymm_high = std::array::from_fn(|n| 0x200 + n as u128);
}

#[test]
fn xsaves_and_xrstors_move_all_components() {
    let (mut g, end) = kernel(|a| {
        a.xsaves64(ptr(rdi))?;
        a.hlt()?;
        a.xrstors64(ptr(rdi))
    });
    g.update(fill);
    let before = g.soft.cpu.state();
    g.run();
    let saved = area(&g);
    assert_eq!((saved.xstate_bv(), saved.xcomp_bv()), (7, COMPACTED | 7));
    assert_eq!(saved.x87(Pointers::Bits64), before.x87);
    assert_eq!(
        (saved.xmm(), saved.ymm_high()),
        (before.xmm, before.ymm_high)
    );
    assert_eq!(saved.mxcsr(), 0x1FA0);
    g.update(|s| {
        (s.xmm, s.ymm_high, s.mxcsr) = ([0; 16], [0; 16], 0x1F80);
        s.x87 = Default::default();
        s.activity = Activity::Active;
    });
    g.run_to(end);
    let after = g.soft.cpu.state();
    assert_eq!((after.x87, after.mxcsr), (before.x87, before.mxcsr));
    assert_eq!((after.xmm, after.ymm_high), (before.xmm, before.ymm_high));
}

#[test]
fn a_page_fault_changes_neither_memory_nor_registers() {
    // The area begins 576 bytes before the end of a page: AVX state is in the next.
    const AREA: u64 = DATA + 0x1000 - 576;
    for program in WITH_MEMORY {
        let (mut g, end) = kernel(program);
        g.update(|s| {
            fill(s);
            s.gpr[gpr::RDI] = AREA;
        });
        // XRSTOR and XRSTORS load AVX state.
        let restores = g.read(KERNEL) & 0xFF_FFFF;
        g.write(AREA + 512, 4);
        if restores == 0x1FC70F {
            g.write(AREA + 520, COMPACTED | 7);
        }
        g.page(DATA + 0x1000, 6);
        let before = g.soft.cpu.state();
        let memory: Vec<u64> = (AREA..AREA + 576).step_by(8).map(|at| g.read(at)).collect();
        g.run_to_exception(PF, None.or(Some(page_fault(restores))));
        assert_eq!(g.soft.cpu.sys.cr2 & !0xFFF, DATA + 0x1000);
        let now: Vec<u64> = (AREA..AREA + 576).step_by(8).map(|at| g.read(at)).collect();
        assert_eq!(now, memory);
        let after = g.soft.cpu.state();
        assert_eq!((after.x87, after.mxcsr), (before.x87, before.mxcsr));
        assert_eq!((after.xmm, after.ymm_high), (before.xmm, before.ymm_high));
        // With the page it completes.
        g.page(DATA + 0x1000, 7);
        g.update(|s| {
            s.rip = KERNEL;
            s.gpr[4] = before.gpr[4];
            s.activity = Activity::Active;
        });
        g.run_to(end);
    }
}

/// The error code of a fault in a page that is not present, by the bytes of the instruction.
fn page_fault(instruction: u64) -> u64 {
    // XRSTOR is 0F AE /5, XRSTORS 0F C7 /3.
    let reads = [0x2FAE0F, 0x1FC70F].contains(&instruction);
    if reads { 0 } else { 2 }
}

#[test]
fn alignment_checking_does_not_apply_to_fields() {
    for program in &WITH_MEMORY[..4] {
        let mut g = Guest::of(model("x86-64-v3").unwrap());
        g.start_user(|a| {
            program(a)?;
            a.ud2()
        });
        g.update(|s| {
            enable(s);
            fill(s);
            s.gpr[gpr::RDI] += 64;
            s.sys.cr0 |= cr0::AM;
            s.rflags |= vbts_cpu::state::rflags::AC;
        });
        g.write(DATA + 64 + 512, ALL);
        g.run_to_exception(UD, None);
    }
}

#[test]
fn outside_64_bit_mode_there_are_eight_registers() {
    let mut g = Guest::of(model("x86-64-v3").unwrap());
    let code = vbts_testkit::assemble(32, KERNEL, |a| {
        a.xsave(ptr(edi))?;
        a.hlt()?;
        a.xrstor(ptr(edi))?;
        a.hlt()
    });
    g.write_bytes(KERNEL, &code);
    g.update(|s| {
        enable(s);
        fill(s);
        s.seg[1] = segment(selector::KERNEL_CS32);
        for n in [0, 2, 3] {
            s.seg[n] = segment(selector::KERNEL_SS);
        }
    });
    g.run();
    let saved = area(&g);
    assert_eq!(saved.xmm()[7..9], [0x107, 0]);
    assert_eq!(saved.ymm_high()[7..9], [0x207, 0]);
    // Without components in the area, eight registers become zero.
    g.write(DATA + 512, 0);
    g.update(|s| s.activity = Activity::Active);
    g.run();
    let after = g.soft.cpu.state();
    assert_eq!(after.xmm[7..9], [0, 0x108]);
    assert_eq!(after.ymm_high[7..9], [0, 0x208]);
}
