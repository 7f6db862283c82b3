//! CPUID, and instructions that the processor model does not have.

use std::sync::atomic::Ordering;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr;
use vbts_cpu::state::vector::UD;

use crate::common::{DATA, Guest, KERNEL};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

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
fn cpuid_follows_misc_enable() {
    const LIMIT_CPUID: u64 = 1 << 22;
    const XD_DISABLE: u64 = 1 << 34;
    let cpuid = |misc_enable, leaf: u32| {
        let mut g = Guest::kernel(|a| {
            a.mov(eax, leaf)?;
            a.cpuid()?;
            a.hlt()
        });
        g.update(|s| s.msr.misc_enable |= misc_enable);
        g.run();
        [gpr::RAX, gpr::RBX, gpr::RCX, gpr::RDX].map(|n| g.soft.cpu.gpr[n])
    };
    let zero = [0; 4];
    assert_eq!(cpuid(0, 0)[0], 0x15);
    assert_eq!(cpuid(LIMIT_CPUID, 0)[0], 3);
    assert_eq!(cpuid(LIMIT_CPUID, 1), cpuid(0, 1));
    // Leaves beyond the last one are as that.
    for leaf in [0xA, 0x15, 0x16, 0x4000_0001] {
        assert_ne!(cpuid(0, leaf), zero, "{leaf:#x}");
        assert_eq!(cpuid(LIMIT_CPUID, leaf), zero, "{leaf:#x}");
    }
    let extended = cpuid(0, 0x8000_0001);
    assert_eq!(cpuid(LIMIT_CPUID, 0x8000_0001), extended);
    let without = [0, 1, 2, 3].map(|n| extended[n] & !if n == 3 { 1 << 20 } else { 0 });
    assert_ne!(without, extended);
    assert_eq!(cpuid(XD_DISABLE, 0x8000_0001), without);
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
        // TZCNT executes as BSF: the destination keeps its value.
        a.xor(ecx, ecx)?;
        a.mov(eax, 5)?;
        a.tzcnt(eax, ecx)?;
        a.hlt()
    });
    g.run_to(end);
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 5);
}
