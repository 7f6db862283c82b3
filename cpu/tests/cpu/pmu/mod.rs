//! Performance monitoring (SDM Vol. 3B chapter 19).

mod counting;
mod netburst;
mod overflow;
mod p6;
mod registers;

use crate::common::{DATA, Guest, KERNEL, KERNEL_STACK, assemble, handler, segment, selector};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::NMI;
use vbts_cpu::state::{PmuState, TableRegister, cr0, gpr};
use vbts_cpu::{ArchState, model};

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

/// A guest of a model, which may have no Intel 64, in protected mode without paging. An NMI goes to
/// the handler of its vector.
fn protected(
    name: &str,
    program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Guest {
    let model = model(name).unwrap();
    let mut g = Guest::of(model);
    g.soft.soft_only("KVM has no processors without Intel 64");
    g.write_bytes(KERNEL, &assemble(32, KERNEL, program));
    let gate = handler(NMI) & 0xFFFF | u64::from(selector::KERNEL_CS32) << 16 | 0x8E00 << 32;
    g.write(DATA + 8 * u64::from(NMI), gate | handler(NMI) >> 16 << 48);
    let mut s = ArchState::after_reset(model);
    s.start_up(0);
    s.sys.cr0 = cr0::PE | cr0::ET;
    s.sys.gdtr = g.soft.cpu.state().sys.gdtr;
    s.sys.idtr = TableRegister {
        base: DATA,
        limit: 0x7F,
    };
    s.seg = [segment(selector::KERNEL_SS); 6];
    s.seg[1] = segment(selector::KERNEL_CS32);
    s.rip = KERNEL;
    s.gpr[gpr::RSP] = KERNEL_STACK;
    g.soft.cpu.load_state(&s);
    g
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
