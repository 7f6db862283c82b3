//! Steps of system software: page tables, control registers, MSRs, and short instructions.

use iced_x86::code_asm::*;
use vbts_cpu::state::{cr0, cr4, efer, rflags};

use crate::Emit;
use crate::lockstep::layout::{
    DATA, DATA_PAGES, FRAME_COUNT, FRAMES, OTHER_PML4, PML4, WINDOW_PAGES, Window,
};
use crate::lockstep::step::Kind;
use crate::random::Random;

/// Loads CR3 with the same or another value.
pub(super) fn address_space(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    a.mov(rax, cr3)?;
    if random.chance(60) {
        a.xor(rax, (PML4 ^ OTHER_PML4) as i32)?;
    }
    a.mov(cr3, rax)
}

/// Changes bits of IA32_DEBUGCTL.
pub(super) fn debug_control(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    const IA32_DEBUGCTL: u32 = 0x1D9;
    const LBR: i32 = 1 << 0;
    const BTF: i32 = 1 << 1;
    const TR: i32 = 1 << 6;
    const BTS: i32 = 1 << 7;
    const BTS_OFF_OS: i32 = 1 << 9;
    a.mov(ecx, IA32_DEBUGCTL)?;
    a.rdmsr()?;
    a.xor(eax, random.pick(&[LBR, BTF, TR, TR, BTS, BTS_OFF_OS]))?;
    a.wrmsr()
}

/// Changes a page-table entry of a window.
pub(super) fn page(a: &mut CodeAssembler, kind: Kind, random: &mut Random) -> Emit {
    let window = random.pick(&[Window::Low, Window::OtherLow, Window::High]);
    let page = random.below(WINDOW_PAGES);
    let entry = window.entry(page);
    if matches!(kind, Kind::Remap | Kind::RemapStale) {
        let frame = match page {
            0..DATA_PAGES => FRAMES + (random.below(FRAME_COUNT) << 12),
            _ => DATA + (random.below(3) << 12),
        };
        let global = u64::from(window == Window::High && random.chance(50)) << 8;
        a.mov(rax, frame | 7 | global)?;
        a.mov(qword_ptr(entry), rax)?;
    } else {
        const PRESENT: u64 = 1;
        const WRITABLE: u64 = 1 << 1;
        const USER: u64 = 1 << 2;
        const ACCESSED: u64 = 1 << 5;
        const DIRTY: u64 = 1 << 6;
        const GLOBAL: u64 = 1 << 8;
        const NO_EXECUTE: u64 = 1 << 63;
        let bit = random.pick(&[PRESENT, WRITABLE, USER, ACCESSED, DIRTY, GLOBAL, NO_EXECUTE]);
        a.mov(rax, bit)?;
        a.xor(qword_ptr(entry), rax)?;
        if random.chance(30) {
            a.or(qword_ptr(entry), 7)?;
        }
    }
    if matches!(kind, Kind::Remap | Kind::Flags) {
        a.mov(rax, window.page(page))?;
        a.invlpg(byte_ptr(rax))?;
    }
    Ok(())
}

/// A value of MXCSR, which rarely leaves an exception unmasked.
pub(super) fn mxcsr(random: &mut Random) -> u32 {
    let mut value = 0x1F80 | (random.below(4) as u32) << 13;
    for (bits, percent) in [(0x8000, 20), (0x40, 20), (random.below(0x40) as u32, 30)] {
        if random.chance(percent) {
            value |= bits;
        }
    }
    if random.chance(15) {
        value &= !(0x80 << random.below(6));
    }
    value
}

/// Changes a bit that vector instructions depend on.
pub(super) fn control(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    match random.below(6) {
        0 => a.clts(),
        1 => {
            let bit = random.pick(&[cr0::TS, cr0::TS, cr0::EM, cr0::MP]);
            a.mov(rax, cr0)?;
            a.xor(eax, bit as i32)?;
            a.mov(cr0, rax)
        }
        2 | 3 => {
            let bit = random.pick(&[cr4::OSFXSR, cr4::OSXMMEXCPT]);
            a.mov(rax, cr4)?;
            a.xor(eax, bit as i32)?;
            a.mov(cr4, rax)
        }
        _ => {
            a.xor(ecx, ecx)?;
            a.xor(edx, edx)?;
            a.mov(eax, random.pick(&[7, 7, 3, 1]))?;
            a.xsetbv()
        }
    }
}

/// Executes a short instruction of operating systems, or POPFQ with other flags.
pub(super) fn short(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    match random.below(8) {
        0 => a.stac(),
        1 => a.clac(),
        2 => a.rdtscp(),
        3 => a.swapgs(),
        4 => a.rdtsc(),
        5 => {
            a.pushfq()?;
            a.pop(r11)
        }
        _ => {
            let flags = rflags::ARITH | rflags::IF | rflags::AC | rflags::ID;
            a.pushfq()?;
            a.xor(dword_ptr(rsp), (random.bits() & flags) as i32)?;
            a.popfq()
        }
    }
}

/// Changes a bit that paging depends on.
pub(super) fn paging(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    const EFER: u32 = 0xC000_0080;
    match random.below(5) {
        0 => {
            a.mov(rax, cr0)?;
            a.xor(eax, cr0::WP as i32)?;
            a.mov(cr0, rax)
        }
        1 => {
            a.mov(ecx, EFER)?;
            a.rdmsr()?;
            a.xor(eax, efer::NXE as i32)?;
            a.wrmsr()
        }
        2 => {
            a.mov(rax, cr3)?;
            a.and(rax, !0xFFF)?;
            a.or(rax, random.below(4) as i32)?;
            a.mov(cr3, rax)
        }
        _ => {
            a.mov(rax, cr4)?;
            a.xor(eax, random.pick(&[cr4::PGE, cr4::PCIDE]) as i32)?;
            a.mov(cr4, rax)
        }
    }
}

/// Programs a performance counter, or reads it.
pub(super) fn counter(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    const PMC0: u32 = 0xC1;
    const PERFEVTSEL0: u32 = 0x186;
    const PERF_GLOBAL_CTRL: u32 = 0x38F;
    // Instructions, branches and cycles, at any CPL, with an interrupt or without.
    let events = [0x43_00C0, 0x43_00C4, 0x43_003C, 0x53_00C4, 0];
    let (msr, value) = match random.below(5) {
        0 => (PERFEVTSEL0, random.pick(&events)),
        1 => (PMC0, (random.below(200) as u32).wrapping_neg()),
        2 => (PERF_GLOBAL_CTRL, random.pick(&[1, 1, 0])),
        _ => {
            a.xor(ecx, ecx)?;
            a.rdpmc()?;
            return a.add(qword_ptr(DATA + 0x1FE8), rax);
        }
    };
    a.mov(ecx, msr)?;
    a.mov(eax, value)?;
    a.xor(edx, edx)?;
    a.wrmsr()
}
