//! The LBR stack (SDM Vol. 3B 17.4.8): each entry is one of the records that the Branch Trace Store
//! has of the same run.

use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, FlowControl, IcedError, Instruction};
use vbts_bts::DebugCtl;
use vbts_cpu::state::{LbrState, rflags};
use vbts_cpu::{Model, model};

use crate::common::records::ALL;
use crate::common::{BTS_BUFFER, DS_AREA, Gate, Guest, KERNEL, USER, handler};
use vbts_cpu::state::vector::UD;

/// MSR_LBR_SELECT.
const CPL_EQ_0: u64 = 1 << 0;
const CPL_NEQ_0: u64 = 1 << 1;
const JCC: u64 = 1 << 2;
const NEAR_REL_CALL: u64 = 1 << 3;
const NEAR_IND_CALL: u64 = 1 << 4;
const NEAR_RET: u64 = 1 << 5;
const NEAR_IND_JMP: u64 = 1 << 6;
const NEAR_REL_JMP: u64 = 1 << 7;
const FAR_BRANCH: u64 = 1 << 8;
const EN_CALLSTACK: u64 = 1 << 9;
/// What software sets beside EN_CALLSTACK: all but calls and returns.
const ONLY_CALLS: u64 = JCC | NEAR_IND_JMP | NEAR_REL_JMP | FAR_BRANCH;

/// The models with their depths.
const DEPTHS: [(&str, usize); 8] = [
    ("core2", 4),
    ("conroe", 4),
    ("x86-64-v2", 4),
    ("x86-64-v3-basic", 4),
    ("x86-64-v3", 4),
    ("nehalem", 16),
    ("haswell", 16),
    ("skylake", 32),
];

fn of(name: &str) -> &'static Model {
    model(name).unwrap()
}

/// A program at CPL 3 that makes each kind of transfer in loops, and ends with UD2. The handler of
/// INT 21H returns after a loop.
fn everything(model: &'static Model) -> Guest {
    let mut g = Guest::of(model);
    g.start_user(program);
    g.gate(
        0x21,
        Gate {
            dpl: 3,
            ..Gate::default()
        },
    );
    g.assemble(handler(0x21), |a| {
        let mut again = a.create_label();
        a.push(rcx)?;
        a.mov(ecx, 2)?;
        a.set_label(&mut again)?;
        a.loop_(again)?;
        a.pop(rcx)?;
        a.iretq()
    });
    g
}

fn program(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let [
        mut outer,
        mut inner,
        mut next,
        mut there,
        mut outside,
        mut leaf,
        mut recursive,
        mut bottom,
    ] = std::array::from_fn(|_| a.create_label());
    a.mov(ebx, 3)?;
    a.set_label(&mut outer)?;
    a.mov(ecx, 3)?;
    a.set_label(&mut inner)?;
    a.call(leaf)?;
    a.dec(ecx)?;
    a.jnz(inner)?;
    a.lea(rdx, qword_ptr(leaf))?;
    a.call(rdx)?;
    // A call of the next instruction, as position-independent code of 32 bits has it.
    a.call(next)?;
    a.set_label(&mut next)?;
    a.pop(rdx)?;
    a.lea(rdx, qword_ptr(there))?;
    a.jmp(rdx)?;
    a.nop()?;
    a.set_label(&mut there)?;
    a.int(0x21)?;
    a.mov(eax, 7)?;
    a.call(recursive)?;
    a.dec(ebx)?;
    a.jz(outside)?;
    a.jmp(outer)?;
    a.set_label(&mut outside)?;
    a.mov(eax, 5)?;
    a.jmp(recursive)?;
    a.set_label(&mut leaf)?;
    a.ret()?;
    a.set_label(&mut recursive)?;
    a.dec(eax)?;
    a.jz(bottom)?;
    a.call(recursive)?;
    a.nop()?;
    a.test(ebx, ebx)?;
    a.jz(bottom)?;
    a.ret()?;
    a.set_label(&mut bottom)?;
    a.test(ebx, ebx)?;
    a.db(&[0x75, 0x02])?; // JNZ over the UD2
    a.ud2()?;
    a.ret()
}

/// The branches of the LBR stack, the oldest first. There are `depth` of them, the first of which
/// may be empty.
fn entries(g: &Guest, depth: usize) -> Vec<(u64, u64)> {
    let LbrState { from, to, tos, .. } = g.soft.cpu.state().msr.lbr;
    let entry = |n: usize| (tos as usize + 1 + n) % depth;
    (0..depth).map(|n| (from[entry(n)], to[entry(n)])).collect()
}

/// Runs [`everything`] with BTS and the LBR stack. Returns the records, and the entries.
fn run(model: &'static Model, depth: usize, select: u64) -> (Guest, Vec<(u64, u64)>) {
    let mut g = everything(model);
    g.trace((ALL | DebugCtl::LBR).bits(), 1000);
    g.update(|s| s.msr.lbr.select = select);
    g.run_to_exception(UD, None);
    let entries = entries(&g, depth);
    (g, entries)
}

/// The last of `branches`, with empty entries before them.
fn last(branches: &[(u64, u64)], depth: usize) -> Vec<(u64, u64)> {
    let missing = depth.saturating_sub(branches.len());
    let mut all = vec![(0, 0); missing];
    all.extend(&branches[branches.len() - (depth - missing)..]);
    all
}

/// The bits of MSR_LBR_SELECT that suppress a branch, by the instruction at its source, and by its
/// target.
fn suppressed_by(g: &Guest, (from, to): (u64, u64)) -> u64 {
    let i = instruction(g, from);
    let level = if to >= USER { CPL_NEQ_0 } else { CPL_EQ_0 };
    let kind = match i.flow_control() {
        FlowControl::ConditionalBranch => JCC,
        FlowControl::Call if !i.is_call_far() => NEAR_REL_CALL,
        FlowControl::IndirectCall => NEAR_IND_CALL,
        FlowControl::Return if i.mnemonic() == iced_x86::Mnemonic::Ret => NEAR_RET,
        FlowControl::UnconditionalBranch => NEAR_REL_JMP,
        FlowControl::IndirectBranch => NEAR_IND_JMP,
        _ => FAR_BRANCH,
    };
    level | kind
}

fn instruction(g: &Guest, at: u64) -> Instruction {
    let bytes: Vec<u8> = (0..2)
        .flat_map(|n| g.read(at + 8 * n).to_le_bytes())
        .collect();
    Decoder::with_ip(64, &bytes, at, DecoderOptions::NONE).decode()
}

#[test]
fn each_entry_is_one_of_the_last_records() {
    for (name, depth) in DEPTHS {
        let (g, entries) = run(of(name), depth, 0);
        assert!(g.records().len() > 100);
        assert_eq!(entries, last(&g.records(), depth), "{name}");
    }
}

#[test]
fn the_stack_is_the_same_without_the_branch_trace_store() {
    for (name, depth) in DEPTHS {
        let (with, expected) = run(of(name), depth, 0);
        let without = vbts_cpu::model_without_bts(name).unwrap();
        let mut g = everything(without);
        g.update(|s| s.debugctl = DebugCtl::LBR.bits());
        g.run_to_exception(UD, None);
        assert_eq!(entries(&g, depth), expected, "{name}");
        let instructions = |g: &Guest| g.soft.cpu.instructions();
        assert_eq!(instructions(&g), instructions(&with));
    }
}

#[test]
fn each_kind_of_branch_can_be_suppressed() {
    let bits = (0..9).map(|n| 1 << n);
    let more = [
        CPL_EQ_0 | CPL_NEQ_0,
        CPL_EQ_0 | JCC | NEAR_RET,
        CPL_NEQ_0 | FAR_BRANCH,
        0x1FF & !(NEAR_REL_CALL | CPL_NEQ_0),
        0x1FF,
    ];
    for (name, depth) in [("nehalem", 16), ("haswell", 16), ("skylake", 32)] {
        let mut seen = 0;
        for select in bits.clone().chain(more) {
            let (g, entries) = run(of(name), depth, select);
            let records = g.records();
            seen |= records.iter().fold(0, |all, r| all | suppressed_by(&g, *r));
            let left: Vec<_> = records
                .into_iter()
                .filter(|record| suppressed_by(&g, *record) & select == 0)
                .collect();
            assert_eq!(entries, last(&left, depth), "{name} {select:#x}");
        }
        assert_eq!(seen, 0x1FF, "the program has a branch of each kind");
    }
}

#[test]
fn the_call_stack_has_the_calls_that_have_not_returned() {
    for (name, depth) in [("haswell", 16), ("skylake", 32)] {
        let select = EN_CALLSTACK | ONLY_CALLS | CPL_EQ_0;
        let (g, entries) = run(of(name), depth, select);
        let mut calls = Vec::new();
        for (from, to) in g.records() {
            let i = instruction(&g, from);
            match suppressed_by(&g, (from, to)) & !(CPL_EQ_0 | CPL_NEQ_0) {
                NEAR_REL_CALL | NEAR_IND_CALL if i.next_ip() != to => calls.push((from, to)),
                NEAR_RET => {
                    calls.pop();
                }
                _ => {}
            }
        }
        assert_eq!(calls.len(), 4, "the program ends in a recursion");
        assert_eq!(entries, last(&calls, depth), "{name}");
    }
}

#[test]
fn info_has_the_instructions_between_two_entries() {
    let mut g = Guest::of(of("skylake"));
    let end = g.assemble(KERNEL, |a| {
        let (mut again, mut long, mut next) =
            (a.create_label(), a.create_label(), a.create_label());
        a.jmp(again)?;
        a.set_label(&mut again)?;
        a.nop()?;
        a.nop()?;
        a.jmp(long)?; // three later
        a.set_label(&mut long)?;
        a.mov(ecx, 40_000)?;
        a.set_label(&mut next)?;
        a.dec(ecx)?;
        a.jnz(next)?; // 39,999 times, suppressed
        a.call(rax)
    });
    g.assemble(end, |a| a.hlt());
    g.update(|s| {
        s.gpr[0] = end;
        s.debugctl = DebugCtl::LBR.bits();
        s.msr.lbr.select = JCC;
    });
    g.run_to(end + 1);
    let lbr = g.soft.cpu.state().msr.lbr;
    assert_eq!((lbr.tos, lbr.info[2]), (3, 3));
    assert_eq!(lbr.info[3], 0xFFFF, "more than it can hold");
}

#[test]
fn an_interrupt_of_a_counter_freezes_the_stack_at_its_instruction() {
    const LOOP: u64 = KERNEL + 5;
    for (name, depth) in DEPTHS {
        for (freeze, frozen) in [
            (DebugCtl::FREEZE_LBRS_ON_PMI, true),
            (DebugCtl::empty(), false),
        ] {
            let mut g = Guest::of(of(name));
            g.assemble(KERNEL, |a| {
                let mut again = a.create_label();
                a.mov(ecx, 50)?;
                a.set_label(&mut again)?;
                a.loop_(again)?;
                a.ud2()
            });
            g.update(|s| {
                s.debugctl = (DebugCtl::LBR | freeze).bits();
                // Branch instructions at CPL 0, with an interrupt at the seventh.
                s.msr.pmu.evtsel[0] = 1 << 22 | 1 << 20 | 1 << 17 | 0xC4;
                s.msr.pmu.global_ctrl = 1;
                s.msr.pmu.pmc[0] = if depth == 4 { 1 << 40 } else { 1 << 48 } - 7;
            });
            g.run_to_exception(UD, None);
            let state = g.soft.cpu.state();
            assert_eq!(state.debugctl & 1 == 0, frozen, "{name}");
            let taken = if frozen { 7 } else { 49 };
            let mut branches = vec![(LOOP, LOOP); taken];
            if !frozen {
                branches.push((LOOP + 2, handler(UD)));
            }
            assert_eq!(entries(&g, depth), last(&branches, depth), "{name}");
        }
    }
}

#[test]
fn an_interrupt_of_the_branch_trace_store_freezes_it_as_well() {
    let mut g = everything(of("nehalem"));
    let tracing = ALL | DebugCtl::BTINT | DebugCtl::LBR | DebugCtl::FREEZE_LBRS_ON_PMI;
    g.trace(tracing.bits(), 1000);
    g.write(DS_AREA + 0x18, BTS_BUFFER + 24 * 40);
    g.run_to_exception(UD, None);
    assert_eq!(entries(&g, 16), last(&g.records()[..40], 16));
}

#[test]
fn a_debug_exception_stops_the_stack() {
    let mut g = everything(of("core2"));
    g.trace((ALL | DebugCtl::LBR).bits(), 1000);
    g.update(|s| {
        s.sys.dr[0] = USER + 5; // the second instruction
        s.sys.dr7 = 1;
        s.msr.lbr.tos = 3;
    });
    g.run_to_exception(vbts_cpu::state::vector::DB, None);
    assert_eq!(g.records(), [(USER + 5, handler(1))]);
    assert_eq!(entries(&g, 4), [(0, 0); 4]);
}

#[test]
fn code_outside_64_bit_mode_has_offsets_or_linear_addresses() {
    use crate::common::{segment, selector};
    const BASE: u64 = 0x1000;
    for (name, depth, base) in [("core2", 4, BASE), ("nehalem", 16, 0)] {
        let mut g = Guest::of(of(name));
        g.assemble(USER, |a| a.db(&[0xEB, 0x01, 0x90, 0xCD, 0x21])); // JMP +1; NOP; INT 21H
        g.gate(
            0x21,
            Gate {
                dpl: 3,
                ..Gate::default()
            },
        );
        g.update(|s| {
            s.seg[1] = segment(selector::USER_CS32);
            s.seg[1].base = BASE;
            for i in [0, 2, 3] {
                s.seg[i] = segment(selector::USER_SS);
            }
            s.rip = USER - BASE;
            s.debugctl = DebugCtl::LBR.bits();
            s.rflags |= rflags::IOPL;
        });
        g.run_to(handler(0x21) + 1);
        let at = |offset: u64| USER - BASE + base + offset;
        let expected = [(at(0), at(3)), (at(3), handler(0x21))];
        assert_eq!(entries(&g, depth), last(&expected, depth), "{name}");
    }
}

#[test]
fn native_code_and_saved_states_keep_the_stack() {
    use vbts_cpu::NativeOptions;
    for (name, depth) in DEPTHS {
        for select in [0, EN_CALLSTACK | ONLY_CALLS | CPL_EQ_0] {
            let model = of(name);
            if select != 0 && name != "haswell" && name != "skylake" {
                continue;
            }
            let (expected, _) = run(model, depth, select);
            let mut g = everything(model);
            g.trace((ALL | DebugCtl::LBR).bits(), 1000);
            g.update(|s| s.msr.lbr.select = select);
            let mut soft = g.second_processor();
            soft.translate_blocks(NativeOptions {
                threshold: 1,
                check: false,
                memory: 1 << 20,
            })
            .unwrap();
            // In steps, each with a new state.
            for step in 1.. {
                soft.run(step * 7);
                let bytes = postcard::to_allocvec(&soft.cpu.state()).unwrap();
                soft.cpu.load_state(&postcard::from_bytes(&bytes).unwrap());
                if soft.cpu.rip == handler(UD) + 1 {
                    break;
                }
            }
            let state = soft.cpu.state();
            assert_eq!(state.msr.lbr, expected.soft.cpu.state().msr.lbr, "{name}");
        }
    }
}

#[test]
fn registers_of_the_models() {
    const TOP: u64 = 0xFFFF_8000_0000_0000;
    // Model, register, value written, whether it is accepted.
    let cases = [
        ("core2", 0x40, TOP, true),
        ("core2", 0x40, 1 << 47, false),
        ("core2", 0x44, 0, false),
        ("core2", 0x63, 5, true),
        ("core2", 0x1C8, 0, false),
        ("core2", 0x1C9, 3, true),
        ("core2", 0x1C9, 4, false),
        ("core2", 0x680, 0, false),
        ("core2", 0x345, 1, false),
        ("nehalem", 0x40, 0, false),
        ("nehalem", 0x1C8, 0x1FF, true),
        ("nehalem", 0x1C8, 0x200, false),
        ("nehalem", 0x1C9, 15, true),
        ("nehalem", 0x68F, 0x7FFF_8000_0000_0000, true),
        ("nehalem", 0x68F, TOP, true),
        ("nehalem", 0x68F, 0x3FFF_8000_0000_0000, false),
        ("nehalem", 0x6C0, 0x7FFF_8000_0000_0000, false),
        ("nehalem", 0x690, 0, false),
        ("haswell", 0x1C8, 0x3FF, true),
        ("haswell", 0x680, 0x1FFF_8000_0000_0000, true),
        ("haswell", 0xDC0, 0, false),
        ("skylake", 0x69F, TOP, true),
        ("skylake", 0x69F, 0x7FFF_8000_0000_0000, false),
        ("skylake", 0xDDF, 1 << 63 | 5, true),
        ("skylake", 0x1C9, 31, true),
    ];
    for (name, number, value, accepted) in cases {
        let mut g = Guest::of(of(name));
        let cpu = &mut g.soft.cpu;
        let done = cpu.write_msr(number, value).is_some();
        assert_eq!(done, accepted, "{name} {number:#x} {value:#x}");
        if accepted {
            assert_eq!(cpu.read_msr(number), Some(value), "{name} {number:#x}");
        }
    }
    for (name, format) in [("core2", 1), ("nehalem", 3), ("haswell", 4), ("skylake", 5)] {
        let mut g = Guest::of(of(name));
        assert_eq!(g.soft.cpu.read_msr(0x345), Some(format), "{name}");
        assert_ne!(of(name).cpuid(1, 0).ecx & 1 << 15, 0, "PDCM");
    }
}
