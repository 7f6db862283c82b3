//! Any events and branches, and any code, as `vbts report` counts them: functions, call stacks,
//! lines.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::input::Input;
use vbts_trace::profile::Profile;
use vbts_trace::profile::code::{Files, Symbol, SymbolKind};
use vbts_trace::profile::generated::Generated;
use vbts_trace::profile::modules::{Module, ModuleKind};
use vbts_trace::{Branch, CodeSource, Crash, Event, Status};

/// Where the file is mapped, and its size in bytes.
const BASE: u64 = 0x40_0000;
const SIZE: usize = 0x100;
const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;
/// Branches that one operation repeats.
const REPEATED: usize = 5000;

/// A file of code, which is every file and the kernel, and code that programs have made.
struct Code<'a> {
    bytes: &'a [u8],
    symbols: &'a [u8],
    is_64_bit: bool,
    generated: Generated,
}

impl Files for Code<'_> {
    fn read(&mut self, module: &Module, offset: u64, bytes: &mut [u8]) -> usize {
        if module.kind == ModuleKind::Generated {
            self.generated.read_files();
            let code = self.generated.page(offset);
            bytes[..code.len()].copy_from_slice(code);
            return code.len();
        }
        let code = self.bytes.get(offset as usize % SIZE..).unwrap_or_default();
        let size = code.len().min(bytes.len());
        bytes[..size].copy_from_slice(&code[..size]);
        size
    }

    fn is_64_bit(&mut self, _: &Module) -> bool {
        self.is_64_bit
    }

    fn add_code(&mut self, _: &Module, source: CodeSource, _: u64, bytes: &[u8]) {
        self.generated.add(source, bytes);
    }

    fn symbols(&mut self, module: &Module) -> Vec<Symbol> {
        if module.kind == ModuleKind::Generated {
            self.generated.read_files();
            return self.generated.symbols();
        }
        let mut symbols: Vec<Symbol> = self
            .symbols
            .iter()
            .map(|byte| {
                let start = u64::from(byte & 0xFE);
                Symbol {
                    start,
                    end: start + 16,
                    kind: match byte & 1 {
                        0 => SymbolKind::Function,
                        1 => SymbolKind::LinkageHeader,
                        _ => SymbolKind::Linkage,
                    },
                }
            })
            .collect();
        symbols.sort_by_key(|symbol| symbol.start);
        symbols
    }
}

/// An address, mostly one in the file.
fn address(input: &mut Input<'_>) -> u64 {
    let byte = input.u8();
    match byte {
        0xFF => input.u64(),
        0xFE => KERNEL + u64::from(input.u8()),
        _ => BASE + u64::from(byte),
    }
}

fn event(input: &mut Input<'_>, kind: u8) -> Event {
    let (id, other) = (u32::from(input.u8() & 7), u32::from(input.u8() & 7));
    let time = 0;
    match kind {
        0 => Event::Start {
            id,
            parent: other,
            process: id / 2,
            time,
        },
        1 => Event::Exec {
            id,
            former: other,
            time,
            name: vec![id as u8],
        },
        2 => Event::End {
            time,
            status: Status::Exited(0),
        },
        3 => Event::Lost(u64::from(other)),
        4 => Event::Invalid,
        5 => Event::Gap { duration: 1, time },
        6 => Event::Switch {
            id,
            process: other,
            time,
            name: vec![id as u8],
        },
        7 => {
            let start = BASE + u64::from(other) * 0x10;
            let text = format!("{start:x}-{:x} r-xp 0 0:0 0 /f{id}\n", start + 0x1000);
            Event::Maps {
                process: id / 2,
                text: text.into(),
            }
        }
        8 => Event::ProcessEnd { process: id / 2 },
        9 => Event::Name(vec![id as u8]),
        10 => Event::KernelCode {
            address: address(input),
            bytes: input.bytes(8).to_vec(),
        },
        11 if other & 4 != 0 => Event::KernelFile {
            at: address(input),
            bytes: input.bytes(8).to_vec(),
        },
        11 => Event::Code {
            process: id / 2,
            source: match other & 3 {
                0 => CodeSource::Memory,
                1 => CodeSource::Vdso,
                2 => CodeSource::PerfMap,
                _ => CodeSource::JitDump,
            },
            at: address(input),
            bytes: input.bytes(128).to_vec(),
        },
        _ => Event::Crash(Box::new(Crash {
            signal: 11,
            code: 0,
            address: 0,
            registers: vec![address(input); 17],
            instruction: Vec::new(),
        })),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let count = usize::from(input.u8() & 15);
    let code = Code {
        symbols: input.bytes(count),
        bytes: input.bytes(SIZE),
        is_64_bit: flags & 1 == 0,
        generated: Generated::default(),
    };
    let mut profile = Profile::new(code, b"program", ());
    let mut given = 0_u64;
    while !input.is_empty() {
        let operation = input.u8();
        let task = u64::from(operation >> 4);
        match operation & 15 {
            kind @ 0..=11 => {
                let event = event(&mut input, kind);
                profile.item(vbts_trace::Item::Event { task, event });
            }
            kind => {
                let branch = Branch {
                    from: address(&mut input),
                    to: address(&mut input),
                };
                let branches = vec![branch; if kind == 15 { REPEATED } else { 1 }];
                given += branches.len() as u64;
                profile.branches(task, &branches);
            }
        }
    }
    profile.finish();
    let counts = profile.counts();
    // A task that starts again under its number was another one.
    assert!(counts.branches + counts.uncounted <= given);
    let tree = profile.tree();
    let totals = tree.totals();
    let own: u64 = tree.nodes().iter().map(|node| node.branches).sum();
    let roots = (0..)
        .zip(tree.nodes())
        .filter(|(at, node)| node.parent == *at);
    let all: u64 = roots.map(|(at, _)| totals[at as usize].1).sum();
    assert_eq!(own, all);
});
