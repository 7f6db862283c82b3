//! Performance monitoring (SDM Vol. 3B chapter 19).

mod counting;
mod overflow;
mod registers;

use crate::common::{Guest, KERNEL};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::PmuState;

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

// IA32_PERFEVTSELx.
const USR: u64 = 1 << 16;
const OS: u64 = 1 << 17;
const EDGE: u64 = 1 << 18;
const INT: u64 = 1 << 20;
const EN: u64 = 1 << 22;
const INV: u64 = 1 << 23;
const CMASK: u64 = 1 << 24;
/// Everywhere.
const ON: u64 = EN | OS | USR;
const INSTRUCTIONS: u64 = 0xC0;
const BRANCHES: u64 = 0xC4;
const CYCLES: u64 = 0x3C;
/// All counters in IA32_PERF_GLOBAL_CTRL.
const ALL: u64 = 3 | 7 << 32;
/// Values of a counter: 40 bits.
const MASK: u64 = (1 << 40) - 1;
const IA32_PMC0: u32 = 0xC1;
const IA32_PERFEVTSEL0: u32 = 0x186;
const IA32_FIXED_CTR0: u32 = 0x309;
const IA32_FIXED_CTR_CTRL: u32 = 0x38D;
const IA32_PERF_GLOBAL_STATUS: u32 = 0x38E;
const IA32_PERF_GLOBAL_CTRL: u32 = 0x38F;
const IA32_PERF_GLOBAL_OVF_CTRL: u32 = 0x390;

/// Sets the unit up.
fn count(g: &mut Guest, first: u64, second: u64, fixed: u64) {
    g.update(|s| {
        s.msr.pmu = PmuState {
            evtsel: [first, second, 0, 0],
            fixed_ctr_ctrl: fixed,
            global_ctrl: ALL,
            ..PmuState::default()
        }
    });
}

fn counters(g: &Guest) -> PmuState {
    g.soft.cpu.state().msr.pmu
}

/// The value from which `n` events overflow.
fn before_overflow(n: u64) -> u64 {
    n.wrapping_neg() & MASK
}

/// 22 instructions up to and with HLT, among them 10 branches.
fn rounds(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.mov(ecx, 10)?; // +0
    a.set_label(&mut again)?;
    a.dec(ecx)?; // +5
    a.jnz(again)?; // +7
    a.hlt()
}

/// WRMSR of constants.
fn wrmsr(a: &mut CodeAssembler, msr: u32, value: u64) -> Result<(), IcedError> {
    a.mov(ecx, msr)?;
    a.mov(eax, value as u32)?;
    a.mov(edx, (value >> 32) as u32)?;
    a.wrmsr()
}

/// 400 instructions at CPL 0, of which every fourth is a branch: a NOP, a comparison, a branch that
/// is taken each second time, a NOP. Returns the address after each instruction.
fn mixture(g: &mut Guest) -> Vec<(u64, bool)> {
    let mut after = Vec::new();
    let bytes = crate::common::assemble(64, KERNEL, |a| {
        for n in 0..100 {
            let mut next = a.create_label();
            a.nop()?;
            a.cmp(eax, n % 2)?;
            a.je(next)?;
            a.set_label(&mut next)?;
            a.nop()?;
        }
        a.hlt()
    });
    let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, KERNEL, 0);
    for insn in &mut decoder {
        after.push((insn.next_ip(), insn.is_jcc_short_or_near()));
    }
    g.write_bytes(KERNEL, &bytes);
    after
}
