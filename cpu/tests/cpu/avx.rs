//! AVX instructions, where they are no computation that the host's processor can be compared with.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::model;
use vbts_cpu::state::vector::{NM, PF, UD, XM};
use vbts_cpu::state::xsave::component;
use vbts_cpu::state::{cr0, cr4};

use crate::common::deviations::is_left_out;
use crate::common::{DATA, Guest, KERNEL, page_table_entry};

/// A page boundary in the data.
const BOUNDARY: u64 = DATA + 0x1000;

/// A guest at CPL 0 with AVX on, about to run `program`, then a HLT; and RIP after that. RDI is
/// [`BOUNDARY`].
fn guest(program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> (Guest, u64) {
    let mut g = Guest::of(model("x86-64-v3-basic").unwrap());
    let end = g.assemble(KERNEL, |a| {
        program(a)?;
        a.hlt()
    });
    g.update(|s| {
        s.sys.cr4 |= cr4::OSXSAVE;
        s.sys.xcr0 = component::X87 | component::SSE | component::AVX;
        s.gpr[7] = BOUNDARY;
        for n in 0..16 {
            s.xmm[n] = 0x0101 * n as u128;
            s.ymm_high[n] = 0xFF00_0000 + n as u128;
        }
    });
    (g, end)
}

/// Unmaps the page above the boundary.
fn unmap(g: &mut Guest) {
    g.write_bytes(page_table_entry(BOUNDARY), &[0; 8]);
}

/// Runs to a page fault of the first instruction, at `la`.
fn faults(g: &mut Guest, la: u64, error: u64) {
    assert_eq!(g.run_to_exception(PF, Some(error)).rip, KERNEL);
    assert_eq!(g.soft.cpu.sys.cr2, la);
}

const NOT_PRESENT_READ: u64 = 0;
const NOT_PRESENT_WRITE: u64 = 2;

#[test]
fn avx_is_undefined_unless_the_system_has_it_on() {
    let add = |a: &mut CodeAssembler| a.vpaddd(xmm1, xmm2, xmm3);
    let (mut g, end) = guest(add);
    g.run_to(end);
    let (mut g, _) = guest(add);
    g.update(|s| s.sys.cr4 &= !cr4::OSXSAVE);
    g.run_to_exception(UD, None);
    let (mut g, _) = guest(add);
    g.update(|s| s.sys.xcr0 &= !component::AVX);
    g.run_to_exception(UD, None);
    let (mut g, _) = guest(add);
    g.update(|s| s.sys.cr0 |= cr0::TS);
    g.run_to_exception(NM, None);
    // What SSE needs does not matter (SDM Vol. 2A table 2-21).
    let (mut g, end) = guest(add);
    g.update(|s| {
        s.sys.cr0 |= cr0::EM;
        s.sys.cr4 &= !cr4::OSFXSR;
    });
    g.run_to(end);
}

#[test]
fn a_store_that_faults_in_its_second_page_stores_nothing() {
    let (mut g, _) = guest(|a| a.vmovdqu(ymmword_ptr(rdi - 8), ymm5));
    unmap(&mut g);
    g.write_bytes(BOUNDARY - 8, &[7; 8]);
    faults(&mut g, BOUNDARY, NOT_PRESENT_WRITE);
    assert_eq!(g.read(BOUNDARY - 8), 0x0707_0707_0707_0707);
    let (mut g, end) = guest(|a| a.vmovdqu(ymmword_ptr(rdi - 8), ymm5));
    g.run_to(end);
    assert_eq!(g.read(BOUNDARY - 8), 0x505);
    assert_eq!(g.read(BOUNDARY + 8), 0xFF00_0005);
}

#[test]
fn a_load_that_faults_changes_no_register() {
    let (mut g, _) = guest(|a| a.vaddps(ymm5, ymm6, ymmword_ptr(rdi - 16)));
    unmap(&mut g);
    faults(&mut g, BOUNDARY, NOT_PRESENT_READ);
    let cpu = &g.soft.cpu;
    assert_eq!((cpu.xmm[5], cpu.ymm_high[5]), (0x505, 0xFF00_0005));
    assert_eq!(cpu.mxcsr, 0x1F80);
}

/// A mask for elements of 32 bits.
fn mask(bits: u32) -> (u128, u128) {
    let half = |bits: u32| {
        let signs = (0..4).map(|i| u128::from(bits >> i & 1) << (32 * i + 31));
        signs.sum()
    };
    (half(bits), half(bits >> 4))
}

#[test]
fn masked_moves_access_what_the_mask_selects() {
    // The elements 4 to 7 are above the boundary.
    for (bits, fault) in [(0b0000_1010, false), (0, false), (0b0010_1000, true)] {
        let (mut g, end) = guest(|a| a.vmaskmovps(ymm5, ymm6, ymmword_ptr(rdi - 16)));
        unmap(&mut g);
        for i in 0..4u8 {
            g.write_bytes(BOUNDARY - 16 + 4 * u64::from(i), &[i + 1, 0, 0, 0]);
        }
        g.update(|s| (s.xmm[6], s.ymm_high[6]) = mask(bits));
        if fault {
            faults(&mut g, BOUNDARY + 4, NOT_PRESENT_READ);
            assert_eq!(g.soft.cpu.xmm[5], 0x505);
            continue;
        }
        g.run_to(end);
        let loaded = (0..4u128).map(|i| ((i + 1) * u128::from(bits >> i & 1)) << (32 * i));
        assert_eq!(g.soft.cpu.xmm[5], loaded.sum::<u128>());
        assert_eq!(g.soft.cpu.ymm_high[5], 0);
    }
    for (bits, fault) in [(0b0000_1010, false), (0, false), (0b0010_1000, true)] {
        let (mut g, end) = guest(|a| a.vpmaskmovd(ymmword_ptr(rdi - 16), ymm6, ymm5));
        unmap(&mut g);
        g.write_bytes(BOUNDARY - 16, &[9; 16]);
        g.update(|s| {
            (s.xmm[6], s.ymm_high[6]) = mask(bits);
            s.xmm[5] = 0;
        });
        if fault {
            faults(&mut g, BOUNDARY + 4, NOT_PRESENT_WRITE);
        } else {
            g.run_to(end);
        }
        for i in 0..4 {
            let stored = !fault && bits >> i & 1 != 0;
            let word = g.read(BOUNDARY - 16 + 4 * i) as u32;
            assert_eq!(word, if stored { 0 } else { 0x0909_0909 }, "{bits:b} {i}");
        }
    }
}

#[test]
fn a_gather_continues_after_a_fault() {
    // VPGATHERDD YMM5, [RDI + YMM6 * 4], YMM7
    let (mut g, end) = guest(|a| a.db(&[0xC4, 0xE2, 0x45, 0x90, 0x2C, 0xB7]));
    let entry = g.read(page_table_entry(BOUNDARY));
    unmap(&mut g);
    g.write_bytes(BOUNDARY - 4, &[0x11, 0, 0, 0]);
    g.update(|s| {
        // Indices -1, -1, 0, and so on: the third element faults. The second is not selected.
        (s.xmm[6], s.ymm_high[6]) = (u128::from(u64::MAX), 0);
        (s.xmm[7], s.ymm_high[7]) = mask(0b1111_1101);
    });
    faults(&mut g, BOUNDARY, NOT_PRESENT_READ);
    let cpu = &g.soft.cpu;
    assert_eq!(cpu.xmm[5], 0x11);
    assert_eq!(cpu.ymm_high[5], 0xFF00_0005);
    // The signs have filled the mask.
    assert_eq!(cpu.xmm[7], u128::MAX << 64);
    assert_eq!(cpu.ymm_high[7], u128::MAX);

    g.write_bytes(page_table_entry(BOUNDARY), &entry.to_le_bytes());
    g.write_bytes(BOUNDARY, &[0x22, 0, 0, 0]);
    // The element that was loaded is not loaded again.
    g.write_bytes(BOUNDARY - 4, &[0x33, 0, 0, 0]);
    g.update(|s| {
        s.rip = KERNEL;
        s.activity = vbts_cpu::state::Activity::Active;
    });
    g.run_to(end);
    let cpu = &g.soft.cpu;
    assert_eq!(cpu.xmm[5], 0x22 << 96 | 0x22 << 64 | 0x11);
    assert_eq!(cpu.ymm_high[5], 0x22 << 96 | 0x22 << 64 | 0x22 << 32 | 0x22);
    assert_eq!((cpu.xmm[7], cpu.ymm_high[7]), (0, 0));
}

/// As Intel's processors do: the mask loses its upper half at once, the destination with the first
/// element that is loaded.
#[test]
fn a_gather_of_128_bits_clears_upper_halves_before_a_fault() {
    for loads_an_element in [false, true] {
        // VPGATHERDD XMM5, [RDI + XMM6 * 4], XMM7
        let (mut g, _) = guest(|a| a.db(&[0xC4, 0xE2, 0x41, 0x90, 0x2C, 0xB7]));
        unmap(&mut g);
        g.update(|s| {
            // Indices -1, -1, 0, 0.
            s.xmm[6] = u64::MAX.into();
            s.ymm_high[5] = 7;
            (s.xmm[7], s.ymm_high[7]) = mask(if loads_an_element { 0xFD } else { 0xFC });
        });
        faults(&mut g, BOUNDARY, NOT_PRESENT_READ);
        let cpu = &g.soft.cpu;
        assert_eq!(cpu.ymm_high[5], if loads_an_element { 0 } else { 7 });
        assert_eq!((cpu.xmm[7], cpu.ymm_high[7]), (u128::MAX << 64, 0));
    }
}

/// As Intel's processors do.
#[test]
fn a_conversion_to_half_precision_comes_before_the_fault_of_its_store() {
    const PE: u32 = 1 << 5;
    let run = |mxcsr: u32| {
        let (mut g, _) = guest(|a| a.vcvtps2ph(qword_ptr(rdi), xmm6, 4));
        unmap(&mut g);
        g.update(|s| {
            s.sys.cr4 |= cr4::OSXMMEXCPT;
            (s.xmm[6], s.mxcsr) = (0x3F80_0001, mxcsr);
        });
        g
    };
    let mut g = run(0x1F80);
    faults(&mut g, BOUNDARY, NOT_PRESENT_WRITE);
    assert_eq!(g.soft.cpu.mxcsr, 0x1F80 | PE);
    let mut g = run(0x0F80);
    g.run_to_exception(XM, None);
    assert_eq!(g.soft.cpu.mxcsr, 0x0F80 | PE);
}

#[test]
fn unmasked_underflow_of_a_conversion_to_half_precision_is_raised_for_exact_results_too() {
    if is_left_out("conversion to half precision") {
        return;
    }
    let run = |from: f32, mxcsr: u32| {
        let (mut g, end) = guest(|a| a.vcvtps2ph(xmm5, xmm6, 4));
        g.update(|s| {
            s.sys.cr4 |= cr4::OSXMMEXCPT;
            (s.xmm[6], s.mxcsr) = (from.to_bits().into(), mxcsr);
        });
        g.run();
        let cpu = &g.soft.cpu;
        (cpu.rip != end, cpu.xmm[5], cpu.mxcsr & 0x3F)
    };
    let tiny = f32::from_bits(112 << 23);
    let (masked, unmasked, ftz) = (0x1F80, 0x1780, 0x8000);
    assert_eq!(run(tiny, masked), (false, 0x200, 0));
    assert_eq!(run(tiny, masked | ftz), (false, 0x200, 0));
    assert_eq!(run(tiny, unmasked), (true, 0x505, 0x10));
    assert_eq!(run(tiny, unmasked | ftz), (true, 0x505, 0x10));
    // The least number that is not tiny, and what is rounded to it.
    assert_eq!(run(2.0 * tiny, unmasked), (false, 0x400, 0));
    let below = f32::from_bits((2.0 * tiny).to_bits() - 1);
    assert_eq!(run(below, unmasked), (false, 0x400, 0x20));
    // Denormal before the conversion: it counts as zero with DAZ.
    let denormal = f32::from_bits(1);
    assert_eq!(run(denormal, unmasked), (true, 0x505, 0x32));
    assert_eq!(run(denormal, unmasked | 0x40), (false, 0, 0));
    assert_eq!(run(0.0, unmasked), (false, 0, 0));
}

#[test]
fn vzeroupper_and_vzeroall_clear_all_registers() {
    let (mut g, end) = guest(|a| a.vzeroupper());
    g.run_to(end);
    assert_eq!(g.soft.cpu.ymm_high, [0; 16]);
    assert_eq!(g.soft.cpu.xmm[15], 0xF0F);
    let (mut g, end) = guest(|a| a.vzeroall());
    g.run_to(end);
    assert_eq!(g.soft.cpu.xmm, [0; 16]);
}
