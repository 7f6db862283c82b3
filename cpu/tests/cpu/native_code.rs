//! Native code against the interpreter. With the variable `VBTS_TEST_JIT` all other tests run
//! native code, too.

use crate::common::{DATA, Guest, KERNEL, handler};
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::UD;
use vbts_cpu::state::xsave::component;
use vbts_cpu::state::{cr0, cr4};
use vbts_cpu::{ArchState, Exit, NativeOptions, SoftCpu};
use vbts_testkit::Emit;

/// A processor in the state of that of `guest`, which translates each block at once.
pub fn native(guest: &Guest, check: bool, memory: usize) -> SoftCpu {
    let mut soft = guest.second_processor();
    soft.translate_blocks(NativeOptions {
        threshold: 1,
        check,
        memory,
    })
    .unwrap();
    soft
}

/// Calls, loops, flags that live long, and memory, for ever.
fn busy() -> Guest {
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner, mut function) =
            (a.create_label(), a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        a.set_label(&mut outer)?;
        a.mov(ecx, 5)?;
        a.set_label(&mut inner)?;
        a.add(rax, rcx)?;
        a.adc(qword_ptr(rbx), rax)?;
        a.call(function)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        a.jmp(outer)?;
        a.set_label(&mut function)?;
        a.push(r15)?;
        a.mov(r15, qword_ptr(rbx + rcx * 8))?;
        a.shl(r15, cl)?;
        a.xor(qword_ptr(rbx + 64), r15)?;
        a.setp(dl)?;
        a.imul_2(rax, r15)?;
        a.pushfq()?;
        a.pop(r14)?;
        a.add(qword_ptr(rbx + 72), r14)?;
        a.pop(r15)?;
        a.ret()
    });
    guest
}

/// Flushes the TLB at `outer`, and begins three rounds at `inner`, with their number in ECX.
pub fn begin_rounds(a: &mut CodeAssembler, outer: &mut CodeLabel, inner: &mut CodeLabel) -> Emit {
    a.set_label(outer)?;
    a.mov(rax, cr3)?;
    a.mov(cr3, rax)?;
    a.mov(ecx, 3)?;
    a.set_label(inner)
}

/// Vectors that stay in registers while other instructions miss the TLB or have no template, and
/// MXCSR with changing rounding and an exception that is not masked in half of the rounds, for
/// ever.
fn vectors() -> Guest {
    const FACTOR: u64 = 0x3FF8_0000_0000_0001;
    const ROUND_UP_AND_DM: i32 = 0x4100;
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner, mut unordered) =
            (a.create_label(), a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        a.mov(rax, FACTOR)?;
        a.mov(qword_ptr(rbx + 128), rax)?;
        begin_rounds(a, &mut outer, &mut inner)?;
        a.movq(xmm1, rcx)?;
        a.paddd(xmm1, xmm2)?;
        a.movdqu(xmmword_ptr(rbx + rcx * 8 + 1), xmm1)?;
        a.pcmpeqb(xmm2, xmm1)?;
        a.pmovmskb(edx, xmm2)?;
        a.add(r8, rdx)?;
        a.cvtsi2sd(xmm3, ecx)?;
        a.addsd(xmm5, xmm3)?;
        a.mulsd(xmm5, qword_ptr(rbx + 128))?;
        a.cld()?;
        a.sqrtsd(xmm6, xmm5)?;
        a.push(rdx)?;
        a.addpd(xmm6, xmmword_ptr(rbx))?;
        a.pop(r10)?;
        a.movapd(xmmword_ptr(rbx + 256), xmm6)?;
        a.divsd(xmm6, xmm5)?;
        a.ucomisd(xmm6, xmm3)?;
        a.adc(r9, 0)?;
        a.cvttsd2si(r11, xmm6)?;
        a.comisd(xmm6, xmm5)?;
        a.jp(unordered)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        a.set_label(&mut unordered)?;
        a.stmxcsr(dword_ptr(rbx + 512))?;
        a.xor(dword_ptr(rbx + 512), ROUND_UP_AND_DM)?;
        a.ldmxcsr(dword_ptr(rbx + 512))?;
        a.jmp(outer)
    });
    guest
}

/// A guest of a model, with AVX on.
fn with_avx(model: &str) -> Guest {
    let mut guest = Guest::of(vbts_cpu::model(model).unwrap());
    guest.update(|s| {
        s.sys.cr4 |= cr4::OSXSAVE;
        s.sys.xcr0 = 7;
    });
    guest
}

/// Vectors of 256 bits beside those of 128 with and without VEX: upper halves that are cleared,
/// kept and read, across misses of the TLB and instructions without a template, for ever.
fn wide_vectors() -> Guest {
    let mut guest = with_avx("x86-64-v3");
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner) = (a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        begin_rounds(a, &mut outer, &mut inner)?;
        a.vmovd(xmm1, ecx)?;
        a.vpbroadcastd(ymm2, xmm1)?;
        a.vpaddd(ymm9, ymm9, ymm2)?;
        a.vmovdqu(ymmword_ptr(rbx + rcx * 8 + 1), ymm9)?;
        // Without VEX: the upper half stays.
        a.paddw(xmm9, xmm2)?;
        a.vpermq(ymm3, ymm9, 0x1B)?;
        a.vpcmpeqb(ymm4, ymm3, ymmword_ptr(rbx + 33))?;
        a.vpmovmskb(edx, ymm4)?;
        a.add(r8, rdx)?;
        // With VEX: it becomes zero.
        a.vpxor(xmm3, xmm3, xmm9)?;
        a.vpaddq(ymm5, ymm3, ymm4)?;
        a.cld()?;
        a.vcvtdq2ps(ymm6, ymm9)?;
        a.vfmadd231ps(ymm7, ymm6, ymmword_ptr(rbx))?;
        a.push(rdx)?;
        a.vextracti128(xmmword_ptr(rbx + 160), ymm9, 1)?;
        a.pop(r10)?;
        a.vmovaps(ymmword_ptr(rbx + 192), ymm7)?;
        a.vptest(ymm9, ymm4)?;
        a.adc(r9, 0)?;
        a.mulx(r11, r12, r8)?;
        a.vmulsd(xmm8, xmm7, xmm6)?;
        a.vinserti128(ymm10, ymm8, xmm9, 1)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        a.vzeroupper()?;
        a.vpaddb(ymm11, ymm9, ymm7)?;
        // Not in the TLB of this page, and not aligned.
        a.vmovups(ymmword_ptr(rbx + 0xFF9), ymm11)?;
        a.vpor(ymm9, ymm9, ymmword_ptr(rbx + 0xFF1))?;
        a.jmp(outer)
    });
    guest
}

/// Masked moves within a page and across its end, tests of signs, and half precision with results
/// that are tiny or too large, for ever.
fn masks_and_halves() -> Guest {
    const SINGLES: u64 = 0x4780_0123_3F81_2345;
    const TINY_AND_MASK: u64 = 0xB380_0001_B301_0001;
    let mut guest = with_avx("x86-64-v3");
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner) = (a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        for (at, value) in [(0, SINGLES), (8, TINY_AND_MASK), (16, TINY_AND_MASK)] {
            a.mov(rax, value)?;
            a.mov(qword_ptr(rbx + at), rax)?;
        }
        begin_rounds(a, &mut outer, &mut inner)?;
        a.vmovdqu(ymm1, ymmword_ptr(rbx + rcx * 4 - 4))?;
        a.vpaddd(ymm2, ymm2, ymm1)?;
        a.vmaskmovps(ymm3, ymm2, ymmword_ptr(rbx + 0xFE0))?;
        a.vpmaskmovd(ymmword_ptr(rbx + rcx * 8 + 0xFD9), ymm1, ymm2)?;
        a.vpmaskmovq(xmm4, xmm1, xmmword_ptr(rbx + rcx * 8))?;
        a.vmaskmovpd(xmmword_ptr(rbx + 64), xmm2, xmm1)?;
        a.vtestps(ymm1, ymm2)?;
        a.adc(r8, 0)?;
        a.vtestpd(xmm1, xmmword_ptr(rbx + 8))?;
        a.setz(r9b)?;
        a.vcvtps2ph(xmm5, ymm1, 4)?;
        a.vcvtps2ph(xmmword_ptr(rbx + rcx * 8 + 96), ymm2, 2)?;
        a.vcvtps2ph(qword_ptr(rbx + 0xFFD), xmm1, 0)?;
        a.vcvtph2ps(ymm6, xmmword_ptr(rbx + 96))?;
        a.vcvtph2ps(xmm7, xmm5)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        a.vstmxcsr(dword_ptr(rbx + 192))?;
        a.add(r10, qword_ptr(rbx + 192))?;
        // The exception of a division by zero is not masked in half of the rounds.
        a.xor(dword_ptr(rbx + 192), 0x200)?;
        a.and(dword_ptr(rbx + 192), -0x40)?;
        a.vldmxcsr(dword_ptr(rbx + 192))?;
        a.jmp(outer)
    });
    guest
}

/// Rounds of ciphers and hashes, with operands in registers and memory, for ever.
fn ciphers() -> Guest {
    let mut guest = with_avx("max");
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner) = (a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        begin_rounds(a, &mut outer, &mut inner)?;
        a.movq(xmm1, rcx)?;
        a.paddq(xmm2, xmm1)?;
        a.aesenc(xmm2, xmmword_ptr(rbx))?;
        a.aesdeclast(xmm2, xmm1)?;
        a.aesimc(xmm3, xmm2)?;
        a.aeskeygenassist(xmm4, xmmword_ptr(rbx + 16), 0x1B)?;
        a.pclmulqdq(xmm4, xmm3, 0x10)?;
        a.sha256rnds2(xmm5, xmm4)?;
        a.sha1rnds4(xmm6, xmm5, 2)?;
        a.sha256msg1(xmm0, xmm6)?;
        a.vinserti128(ymm7, ymm4, xmm6, 1)?;
        a.vaesenc(ymm8, ymm7, ymmword_ptr(rbx + rcx * 8 + 1))?;
        a.vpclmulqdq(ymm9, ymm8, ymm7, 0x01)?;
        a.vaesdec(xmm10, xmm9, xmm0)?;
        a.vmovdqu(ymmword_ptr(rbx + 1), ymm9)?;
        a.movaps(xmmword_ptr(rbx + 16), xmm10)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        a.jmp(outer)
    });
    guest
}

/// Runs a program in the interpreter and as native code, in short pieces, and compares the states
/// after each.
pub fn compare(program: impl Fn() -> Guest) {
    for check in [false, true] {
        let (guest, other) = (program(), program());
        let mut interpreter = guest.second_processor();
        let mut native = native(&other, check, 1 << 20);
        // Longer than a block: a shorter run is all interpreted.
        for deadline in (1..20_000).step_by(71) {
            assert_eq!(interpreter.run(deadline), Exit::Deadline);
            assert_eq!(native.run(deadline), Exit::Deadline);
            assert_eq!(interpreter.cpu.state(), native.cpu.state(), "at {deadline}");
        }
        assert!(native.native_code().blocks > 0);
        for at in (DATA..DATA + 520).step_by(8) {
            assert_eq!(guest.read(at), other.read(at), "{at:#x}");
        }
    }
}

#[test]
fn runs_end_at_the_same_instruction_in_the_same_state() {
    for program in [busy, vectors, wide_vectors, masks_and_halves] {
        compare(program);
    }
}

#[test]
fn ciphers_run_as_in_the_interpreter() {
    // The interpreter executes them on the host's processor.
    if vbts_cpu::model("max").unwrap().unsupported().is_none() {
        compare(ciphers);
    }
}

#[test]
fn full_memory_is_cleared() {
    const BLOCKS: u64 = 4000;
    const ROUNDS: u32 = 20;
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        let mut again = a.create_label();
        a.mov(ecx, ROUNDS)?;
        a.set_label(&mut again)?;
        for _ in 0..BLOCKS {
            let mut next = a.create_label();
            a.inc(rax)?;
            a.jmp(next)?;
            a.set_label(&mut next)?;
        }
        a.dec(ecx)?;
        a.jnz(again)?;
        a.hlt()
    });
    let mut native = native(&guest, false, 0);
    assert!(matches!(native.run(u64::MAX), Exit::Halt { .. }));
    assert_eq!(native.cpu.state().gpr[0], BLOCKS * u64::from(ROUNDS));
    assert!(native.native_code().flushes > 0);
}

/// A processor that has run SSE instructions from [`KERNEL`] on, natively or interpreted, with
/// these bits of CR0 and of MXCSR changed. Each of its exceptions halts it.
fn run_changed(control: u64, mxcsr: u32, threshold: u32) -> SoftCpu {
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        a.mov(rbx, DATA)?;
        a.mov(eax, 3)?;
        a.movd(xmm1, eax)?;
        a.cvtsi2sd(xmm2, eax)?;
        a.divsd(xmm2, xmm3)?;
        a.movaps(xmmword_ptr(rbx + 8), xmm1)?;
        a.hlt()
    });
    let mut soft = guest.second_processor();
    soft.translate_blocks(NativeOptions {
        threshold,
        ..NativeOptions::default()
    })
    .unwrap();
    let mut state = soft.cpu.state();
    state.sys.cr0 ^= control;
    state.mxcsr ^= mxcsr;
    soft.cpu.load_state(&state);
    // A triple fault or HLT.
    soft.run(100);
    soft
}

#[test]
fn vector_instructions_fault_as_in_the_interpreter() {
    const TS: u64 = 1 << 3;
    const ZM: u32 = 1 << 9;
    for (control, mxcsr) in [(0, 0), (TS, 0), (0, ZM)] {
        let native = run_changed(control, mxcsr, 1);
        let interpreter = run_changed(control, mxcsr, u32::MAX);
        assert!(native.native_code().blocks > 0);
        assert_eq!(interpreter.native_code().blocks, 0);
        assert_eq!(
            native.cpu.state(),
            interpreter.cpu.state(),
            "{control:#x} {mxcsr:#x}"
        );
    }
}

/// An instruction that the system has off, behind one in the same block that has changed MXCSR and
/// upper halves of vector registers, in code without a branch between them.
#[test]
fn mxcsr_survives_an_instruction_that_the_system_has_off() {
    type Program = fn(&mut CodeAssembler) -> Emit;
    type Change = fn(&mut ArchState);
    const ROUND_UP: u32 = 0x4000;
    /// 1 / 3 is not exact.
    const PE: u32 = 1 << 5;
    let sse_after_avx: Program = |a| {
        a.vcvtsi2ss(xmm1, xmm1, eax)?;
        a.vcvtsi2ss(xmm2, xmm2, ecx)?;
        a.vdivps(ymm3, ymm1, ymm2)?;
        a.addss(xmm3, xmm1)
    };
    let avx_after_sse: Program = |a| {
        a.cvtsi2ss(xmm1, eax)?;
        a.cvtsi2ss(xmm2, ecx)?;
        a.divss(xmm1, xmm2)?;
        a.vaddps(ymm3, ymm1, ymm2)
    };
    let cases: [(&str, Program, Change); 4] = [
        ("OSFXSR", sse_after_avx, |s| s.sys.cr4 &= !cr4::OSFXSR),
        ("EM", sse_after_avx, |s| s.sys.cr0 |= cr0::EM),
        ("OSXSAVE", avx_after_sse, |s| s.sys.cr4 &= !cr4::OSXSAVE),
        ("XCR0", avx_after_sse, |s| {
            s.sys.xcr0 = component::X87 | component::SSE
        }),
    ];
    for (name, program, change) in cases {
        let run = |threshold| {
            let mut guest = with_avx("x86-64-v3");
            guest.assemble(KERNEL, |a| {
                a.mov(eax, 1)?;
                a.mov(ecx, 3)?;
                program(a)?;
                a.hlt()
            });
            guest.update(|s| {
                s.mxcsr |= ROUND_UP;
                change(s);
            });
            let mut soft = guest.second_processor();
            soft.translate_blocks(NativeOptions {
                threshold,
                ..NativeOptions::default()
            })
            .unwrap();
            assert!(matches!(soft.run(u64::MAX), Exit::Halt { .. }), "{name}");
            (soft.native_code().blocks, soft.cpu.state())
        };
        let ((native, state), (none, expected)) = (run(1), run(u32::MAX));
        assert!(native > 0 && none == 0, "{name}");
        // The #UD handler halts.
        assert_eq!(expected.rip, handler(UD) + 1, "{name}");
        assert_ne!(expected.mxcsr & PE, 0, "{name}");
        assert_eq!(state, expected, "{name}");
    }
}
