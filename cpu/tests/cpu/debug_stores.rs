//! The Debug Store of each model: guests write a DS area, turn on tracing, and take branches. The
//! fields and the records are compared byte for byte.

use std::sync::atomic::Ordering;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_bts::DropReason;
use vbts_cpu::state::{cr0, gpr, msr};
use vbts_cpu::{ArchState, Exit, NativeOptions, model};

use crate::common::{
    BTS_BUFFER, DS_AREA, Gate, Guest, KERNEL, KERNEL_STACK, RAM, USER, assemble, handler, segment,
    selector,
};

/// The Debug Store of a model.
#[derive(Debug)]
struct Store {
    model: &'static str,
    /// Size of a word of the DS area and of a record.
    word: u64,
    /// The third word of a record.
    flags: u64,
    tr: u64,
    bts: u64,
    btint: u64,
    /// BTS_OFF_OS and BTS_OFF_USR, where there is DS-CPL.
    off: Option<(u64, u64)>,
}

#[rustfmt::skip]
const STORES: &[Store] = &[
    Store { model: "pentium4", word: 4, flags: 0x10, tr: 1 << 2, bts: 1 << 3, btint: 1 << 4, off: None },
    Store { model: "pentium4-64", word: 8, flags: 0x10, tr: 1 << 2, bts: 1 << 3, btint: 1 << 4, off: Some((1 << 5, 1 << 6)) },
    Store { model: "pentium-m", word: 4, flags: 0x10, tr: 1 << 6, bts: 1 << 7, btint: 1 << 8, off: None },
    Store { model: "core2", word: 8, flags: 0, tr: 1 << 6, bts: 1 << 7, btint: 1 << 8, off: Some((1 << 9, 1 << 10)) },
    Store { model: "nehalem", word: 8, flags: 0, tr: 1 << 6, bts: 1 << 7, btint: 1 << 8, off: Some((1 << 9, 1 << 10)) },
];

/// Records of the buffer.
const RECORDS: u64 = 8;
/// Iterations of the program's loop.
const LOOPS: u64 = 3;

impl Store {
    /// The fields of the buffer, with the interrupt at the third record.
    fn fields(&self, index: u64) -> [u64; 4] {
        let at = |record: u64| BTS_BUFFER + 3 * self.word * record;
        [at(0), at(index), at(RECORDS), at(3)]
    }

    fn bytes(&self, words: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let size = self.word as usize;
        let bytes = words.into_iter().map(|word| word.to_le_bytes());
        bytes.flat_map(|bytes| bytes[..size].to_vec()).collect()
    }

    /// A guest that has yet to run [`program`] in protected mode, without paging.
    fn guest(&self) -> Guest {
        let model = model(self.model).unwrap();
        let mut g = Guest::of(model);
        g.soft
            .soft_only("KVM has no processors without Intel 64, and not their Debug Stores");
        g.clear();
        g.write_bytes(KERNEL, &assemble(32, KERNEL, |a| self.program(a)));
        let mut s = ArchState::after_reset(model);
        s.start_up(0);
        s.sys.cr0 = cr0::PE | cr0::ET;
        s.seg = [segment(selector::KERNEL_SS); 6];
        s.seg[1] = segment(selector::KERNEL_CS32);
        s.rip = KERNEL;
        s.gpr[gpr::RSP] = KERNEL_STACK;
        g.soft.cpu.load_state(&s);
        g
    }

    /// Sets up the DS area and tracing with an interrupt, takes branches, and turns tracing off.
    fn program(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let fields = self.bytes(self.fields(0));
        for (at, word) in (DS_AREA..).step_by(4).zip(fields.chunks_exact(4)) {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            a.mov(dword_ptr(at), word)?;
        }
        let mut write = |number: u32, value: u64| {
            a.mov(ecx, number)?;
            a.mov(eax, value as u32)?;
            a.xor(edx, edx)?;
            a.wrmsr()
        };
        write(msr::IA32_DS_AREA, DS_AREA)?;
        write(msr::IA32_DEBUGCTL, self.tr | self.bts | self.btint)?;
        let [mut leaf, mut again, mut over] = [(); 3].map(|()| a.create_label());
        a.mov(ecx, LOOPS as u32)?;
        a.set_label(&mut again)?;
        a.loop_(again)?;
        a.call(leaf)?;
        a.jmp(over)?;
        a.set_label(&mut leaf)?;
        a.ret()?;
        a.set_label(&mut over)?;
        a.mov(ecx, msr::IA32_DEBUGCTL)?;
        a.xor(eax, eax)?;
        a.wrmsr()?;
        a.hlt()
    }

    /// The branches of the program.
    fn branches(&self) -> Vec<(u64, u64)> {
        let code = assemble(32, KERNEL, |a| self.program(a));
        // The last instructions, from LOOP on: LOOP (2 bytes), CALL (5), JMP (2), RET (1), MOV (5),
        // XOR, WRMSR and HLT (2, 2, 1).
        let at = KERNEL + code.len() as u64 - 20;
        let mut branches = vec![(at, at); LOOPS as usize - 1];
        branches.extend([(at + 2, at + 9), (at + 9, at + 7), (at + 7, at + 10)]);
        branches
    }

    fn records(&self, branches: &[(u64, u64)]) -> Vec<u8> {
        self.bytes(branches.iter().flat_map(|b| [b.0, b.1, self.flags]))
    }
}

fn read(g: &Guest, at: u64, len: usize) -> Vec<u8> {
    let words = (at..).step_by(8).take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flat_map(|at| g.read(at).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

#[test]
fn a_guest_finds_the_records_of_its_model() {
    for native in [false, true] {
        for store in STORES {
            let mut g = store.guest();
            let mut second = g.second_processor();
            let end = KERNEL + assemble(32, KERNEL, |a| store.program(a)).len() as u64;
            if native {
                let options = NativeOptions {
                    threshold: 1,
                    check: false,
                    memory: 1 << 20,
                };
                second.translate_blocks(options).unwrap();
                // A WRMSR to DEBUGCTL ends a run.
                while !matches!(second.run(1000), Exit::Halt { .. }) {
                    assert!(second.cpu.instructions() < 1000, "{store:?}");
                }
                assert_eq!(second.cpu.rip, end, "{store:?}");
            } else {
                g.run_to(end);
                let interrupts = &g.platform.performance_interrupts;
                assert_eq!(interrupts.load(Ordering::Relaxed), 1, "{store:?}");
            }
            let branches = store.branches();
            let expected = store.bytes(store.fields(branches.len() as u64));
            let got = read(&g, DS_AREA, expected.len());
            assert_eq!(got, expected, "{store:?}: DS area");
            // Behind the last record, the buffer is as it was.
            let mut expected = store.records(&branches);
            expected.extend([0; 24]);
            let got = read(&g, BTS_BUFFER, expected.len());
            assert_eq!(got, expected, "{store:?}: buffer");
        }
    }
}

/// Of a DS area that is checked when recording begins.
struct Armed {
    /// Base, index and absolute maximum in records.
    fields: [u64; 3],
    ds_area: u64,
    found: Option<DropReason>,
}

#[rustfmt::skip]
const ARMED: &[Armed] = &[
    Armed { fields: [0, 0, 8], ds_area: DS_AREA, found: None },
    Armed { fields: [0, 7, 8], ds_area: DS_AREA, found: None },
    Armed { fields: [0, 8, 8], ds_area: DS_AREA, found: Some(DropReason::Full) },
    Armed { fields: [0, 9, 8], ds_area: DS_AREA, found: Some(DropReason::IndexOutside) },
    Armed { fields: [1, 0, 8], ds_area: DS_AREA, found: Some(DropReason::IndexOutside) },
    Armed { fields: [0, 0, 0], ds_area: DS_AREA, found: Some(DropReason::TooSmall) },
    Armed { fields: [0, 0, 8], ds_area: RAM, found: Some(DropReason::Unmapped) },
];

#[test]
fn a_malformed_ds_area_is_found_when_recording_begins() {
    for store in STORES {
        for armed in ARMED {
            // A WRMSR that does not set both TR and BTS does not begin to record.
            let arming = store.tr | store.bts | store.btint;
            for (debugctl, found) in [(store.tr, None), (arming, armed.found)] {
                let mut g = store.guest();
                let [base, index, maximum] = armed.fields.map(|n| BTS_BUFFER + 3 * store.word * n);
                let fields = store.bytes([base, index, maximum, maximum + 1]);
                g.write_bytes(DS_AREA, &fields);
                let program = |a: &mut CodeAssembler| {
                    a.xor(edx, edx)?;
                    a.mov(ecx, msr::IA32_DEBUGCTL)?;
                    a.mov(eax, debugctl as u32)?;
                    a.wrmsr()?;
                    a.hlt()
                };
                let code = assemble(32, KERNEL, program);
                g.write_bytes(KERNEL, &code);
                g.update(|s| s.ds_area = armed.ds_area);
                g.run_to(KERNEL + code.len() as u64);
                let what = format!("{} {:?} {debugctl:#x}", store.model, armed.fields);
                let area = g.soft.cpu.check_armed_ds_area();
                assert_eq!(area.map(|area| area.reason), found, "{what}");
                assert_eq!(g.soft.cpu.check_armed_ds_area(), None, "{what}: once");
            }
        }
    }
}

#[test]
fn a_malformed_ds_area_is_found_before_it_is_replaced() {
    for store in STORES {
        let mut g = store.guest();
        g.write_bytes(DS_AREA, &store.bytes(store.fields(0)));
        let program = |a: &mut CodeAssembler| {
            a.xor(edx, edx)?;
            a.mov(ecx, msr::IA32_DS_AREA)?;
            for area in [RAM, DS_AREA] {
                a.mov(eax, area as u32)?;
                a.wrmsr()?;
            }
            a.hlt()
        };
        g.write_bytes(KERNEL, &assemble(32, KERNEL, program));
        g.update(|s| {
            s.ds_area = DS_AREA;
            s.debugctl = store.tr | store.bts;
        });
        let mut found = Vec::new();
        loop {
            let exit = g.soft.run(1_000_000);
            let area = g.soft.cpu.check_armed_ds_area();
            found.extend(area.map(|area| (area.la, area.reason)));
            if exit != Exit::Bus {
                break;
            }
        }
        let expected = [(RAM, DropReason::Unmapped)];
        assert_eq!(found, expected, "{}", store.model);
    }
}

#[test]
fn a_model_with_intel_64_records_in_64_bit_mode_too() {
    for store in STORES {
        let Some((off_os, off_usr)) = store.off else {
            continue;
        };
        for (filter, kept) in [(0, 3), (off_os, 2), (off_usr, 1), (off_os | off_usr, 0)] {
            let mut g = Guest::of(model(store.model).unwrap());
            g.start_user(|a| {
                let mut next = a.create_label();
                a.jmp(next)?; // +0
                a.nop()?;
                a.set_label(&mut next)?;
                a.int(0x21)?; // +3
                a.jmp(next) // never
            });
            let dpl = 3;
            g.gate(
                0x21,
                Gate {
                    dpl,
                    ..Gate::default()
                },
            );
            g.assemble(handler(0x21), |a| {
                let mut next = a.create_label();
                a.jmp(next)?;
                a.set_label(&mut next)?;
                a.hlt()
            });
            g.write_bytes(DS_AREA, &store.bytes(store.fields(0)));
            g.update(|s| {
                s.ds_area = DS_AREA;
                s.debugctl = store.tr | store.bts | filter;
            });
            g.run();
            let to_user = [(USER, USER + 3)];
            let to_kernel = [
                (USER + 3, handler(0x21)),
                (handler(0x21), handler(0x21) + 2),
            ];
            let expected: Vec<_> = match kept {
                3 => [&to_user[..], &to_kernel].concat(),
                2 => to_user.to_vec(),
                1 => to_kernel.to_vec(),
                _ => Vec::new(),
            };
            let mut expected = store.records(&expected);
            expected.extend([0; 24]);
            let got = read(&g, BTS_BUFFER, expected.len());
            assert_eq!(got, expected, "{store:?} {filter:#x}");
        }
    }
}

#[test]
fn each_model_has_its_last_branches() {
    // The model, LBR, the registers of an entry from which its source and target come, and TOS.
    type Entry = fn(&mut dyn FnMut(u32) -> u64, u64) -> (u64, u64);
    const PAIR: u64 = u32::MAX as u64;
    let cases: [(&str, u32, u64, Entry); 3] = [
        ("pentium4", 0x1DA, 4, |read, n| {
            let pair = read(0x1DB + n as u32);
            (pair & PAIR, pair >> 32)
        }),
        ("pentium4-64", 0x1DA, 16, |read, n| {
            (read(0x680 + n as u32), read(0x6C0 + n as u32))
        }),
        ("pentium-m", 0x1C9, 8, |read, n| {
            let pair = read(0x40 + n as u32);
            (pair & PAIR, pair >> 32)
        }),
    ];
    for (name, tos, depth, entry) in cases {
        let store = STORES.iter().find(|store| store.model == name).unwrap();
        let mut g = store.guest();
        g.write_bytes(KERNEL, &assemble(32, KERNEL, |a| store.program(a)));
        g.update(|s| s.debugctl = 1);
        // The program overwrites LBR: stop at its loop, which the run that stops there enters, and
        // set it again.
        let stop = store.branches()[0].0;
        for limit in 1..100 {
            if g.soft.cpu.rip != stop {
                g.soft.run(limit);
            }
        }
        assert_eq!(g.soft.cpu.rip, stop, "{name}");
        g.update(|s| s.debugctl = 1);
        g.run();
        let mut read = |number| g.soft.cpu.read_msr(number).unwrap();
        let top = read(tos);
        let branches = &store.branches()[1..];
        let kept = branches.len().min(depth as usize);
        for (age, expected) in branches.iter().rev().take(kept).enumerate() {
            let n = top.wrapping_sub(age as u64) & (depth - 1);
            assert_eq!(entry(&mut read, n), *expected, "{name}: entry {n}");
        }
    }
}

#[test]
fn the_registers_of_each_model() {
    // Model, register, value written, what is read then; `None`: #GP.
    let cases: &[(&str, u32, u64, Option<u64>)] = &[
        ("pentium4", 0x1D9, 0x1F, Some(0x1F)),
        ("pentium4", 0x1D9, 0x20, None),
        ("pentium4", 0x600, 0xFFFF_FFFF, Some(0xFFFF_FFFF)),
        ("pentium4", 0x600, 1 << 32, None),
        ("pentium4", 0x1DB, u64::MAX, Some(u64::MAX)),
        ("pentium4", 0x1DA, 3, Some(3)),
        ("pentium4", 0x1DA, 4, None),
        ("pentium4", 0xC000_0080, 0, None),
        ("pentium4-64", 0x1D9, 0x7F, Some(0x7F)),
        ("pentium4-64", 0x1D9, 0x80, None),
        (
            "pentium4-64",
            0x600,
            0xFFFF_8000_0000_0000,
            Some(0xFFFF_8000_0000_0000),
        ),
        ("pentium4-64", 0x1DB, 0, None),
        ("pentium4-64", 0x345, 0, None),
        ("pentium4-64", 0xC1, 0, None),
        ("pentium4-64", 0x38F, 0, None),
        ("pentium4-64", 0xC000_0080, 0x901, Some(0x901)),
        ("pentium-m", 0x1D9, 0x1FF, Some(0x1FF)),
        ("pentium-m", 0x1D9, 0x200, None),
        ("pentium-m", 0x47, u64::MAX, Some(u64::MAX)),
        ("pentium-m", 0x60, 0, None),
        ("pentium-m", 0xC000_0080, 0x800, Some(0x800)),
        ("pentium-m", 0xC000_0080, 0x100, None),
        // IA32_MISC_ENABLE: performance monitoring (7), BTS (11), no PEBS (12). Without execute
        // disable, nothing disables it (34).
        ("pentium4", 0x1A0, 1, Some(0x1081)),
        ("pentium4", 0x1A0, 1 << 34, None),
        ("pentium4-64", 0x1A0, 1 << 34, Some(0x4_0000_1080)),
        ("pentium4-64", 0x1A0, 1 << 8, None),
        ("pentium-m", 0x1A0, 1, Some(0x1081)),
        ("core2", 0x1A0, 1, Some(0x1081)),
        ("core2", 0x1DA, 0, None),
        ("core2", 0x44, 0, None),
    ];
    for &(name, number, value, expected) in cases {
        let mut g = Guest::of(model(name).unwrap());
        let what = format!("{name} {number:#x} {value:#x}");
        let cpu = &mut g.soft.cpu;
        cpu.load_state(&ArchState::after_reset(cpu.model()));
        assert_eq!(
            cpu.write_msr(number, value).is_some(),
            expected.is_some(),
            "{what}"
        );
        if expected.is_some() {
            assert_eq!(cpu.read_msr(number), expected, "{what}");
        }
    }
}

#[test]
fn lahf_in_64_bit_mode_exists_with_its_feature() {
    for (name, exists) in [("core2", true), ("pentium4-64", false)] {
        let mut g = Guest::of(model(name).unwrap());
        let end = g.assemble(KERNEL, |a| {
            a.lahf()?;
            a.hlt()
        });
        match exists {
            true => g.run_to(end),
            false => g.run_to(handler(vbts_cpu::state::vector::UD) + 1),
        }
    }
}
