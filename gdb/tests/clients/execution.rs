//! A recorded execution: the registers before each instruction, and the bytes that it changes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use vbts_cpu::Exit;
use vbts_gdb::{Avx, Branch, Control, Fxsave, Registers};
use vbts_testkit::descriptor::{KERNEL_CODE64, KERNEL_DATA, selector};
use vbts_testkit::{Environment, Machine};

/// Size of memory in bytes.
pub const MEMORY: usize = 0x4_0000;
const GDT: u64 = 0x1000;
const PAGE_TABLES: u64 = 0x2000;
const STACK: u64 = 0x1_0000;
/// Address of the program.
const PROGRAM: u64 = 0x1_0000;
const DESCRIPTORS: &[(u16, u64)] = &[
    (selector::KERNEL_CS, KERNEL_CODE64),
    (selector::KERNEL_SS, KERNEL_DATA),
];
/// Instructions that the program executes at most.
const MAX_STEPS: usize = 20_000;

/// An execution until HLT.
#[derive(Debug)]
pub struct Execution {
    /// The program's file.
    pub file: PathBuf,
    /// Memory at the end.
    pub final_memory: Vec<u8>,
    /// Registers before each instruction. The last one is HLT.
    pub states: Vec<Registers>,
    /// What each instruction changes: address, byte before, byte after.
    pub changes: Vec<Vec<(usize, u8, u8)>>,
}

impl Execution {
    /// Returns the branches among the first `count` instructions.
    pub fn branches(&self, from: usize, to: usize) -> Vec<Branch> {
        (from..to)
            .filter_map(|step| {
                let (from, to) = (self.states[step].rip, self.states[step + 1].rip);
                // No instruction has more than 15 bytes, and no branch of the program is that
                // short, but those of its loops are backward.
                let is_branch = to < from || to > from + 15 || self.is_taken(step);
                is_branch.then_some(Branch { from, to })
            })
            .collect()
    }

    /// Returns whether the instruction of a step transferred control, by its length.
    fn is_taken(&self, step: usize) -> bool {
        let from = self.states[step].rip;
        let code = &self.final_memory[from as usize..][..16];
        let mut decoder = iced_x86::Decoder::with_ip(64, code, from, 0);
        decoder.decode().next_ip() != self.states[step + 1].rip
    }

    /// Returns the address of a symbol of the program.
    pub fn symbol(&self, name: &str) -> u64 {
        let output = Command::new("nm").arg(&self.file).output().expect("nm");
        let output = String::from_utf8(output.stdout).unwrap();
        let line = output
            .lines()
            .find(|line| line.split(' ').nth(2) == Some(name))
            .unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    }
}

/// Returns the execution of the program, which all tests share, or why there is none.
pub fn execution() -> Result<&'static Execution, &'static str> {
    static EXECUTION: OnceLock<Result<Execution, String>> = OnceLock::new();
    EXECUTION
        .get_or_init(|| compile().map(|file| record(&file)))
        .as_ref()
        .map_err(String::as_str)
}

fn compile() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/tour.c");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tour");
    let text = format!("-Wl,-Ttext-segment={PROGRAM:#x}");
    let result = Command::new("gcc")
        .args([
            "-g",
            "-O0",
            "-ffreestanding",
            "-fno-pie",
            "-no-pie",
            "-static",
            "-nostdlib",
        ])
        .args([
            "-fno-stack-protector",
            "-fcf-protection=none",
            "-fno-asynchronous-unwind-tables",
        ])
        .args(["-Wl,-z,noseparate-code", "-Wl,--build-id=none", &text, "-o"])
        .args([&file, &source])
        .output();
    let result = result.map_err(|error| format!("no gcc: {error}"))?;
    assert!(
        result.status.success(),
        "{}",
        String::from_utf8_lossy(&result.stderr)
    );
    Ok(file)
}

fn record(file: &Path) -> Execution {
    let mut environment = Environment::new(MEMORY);
    environment.gdt(GDT, DESCRIPTORS, selector::KERNEL_SS);
    environment.page_tables(PAGE_TABLES, |_| 3);
    let entry = load(&mut environment, &std::fs::read(file).unwrap());
    environment.start(selector::KERNEL_CS, selector::KERNEL_SS, entry, STACK);

    let mut machine = environment.machine(vbts_cpu::model("core2").unwrap());
    let mut memory = machine.ram.bytes().to_vec();
    let mut states = vec![registers(&machine)];
    let mut changes = Vec::new();
    loop {
        let exit = machine.soft.run(states.len() as u64);
        let now = machine.ram.bytes();
        let mut changed = Vec::new();
        // Most lines are the same, and comparing whole ones is fast.
        for (line, (old, new)) in memory.chunks(256).zip(now.chunks(256)).enumerate() {
            if old != new {
                let bytes = old
                    .iter()
                    .zip(new)
                    .enumerate()
                    .filter(|(_, (old, new))| old != new);
                changed.extend(bytes.map(|(at, (&old, &new))| (256 * line + at, old, new)));
            }
        }
        for &(at, _, new) in &changed {
            memory[at] = new;
        }
        if matches!(exit, Exit::Halt { .. }) {
            break;
        }
        changes.push(changed);
        states.push(registers(&machine));
        assert!(states.len() < MAX_STEPS);
    }
    Execution {
        file: file.to_owned(),
        final_memory: memory,
        states,
        changes,
    }
}

/// Loads the segments of an ELF file and returns the entry.
fn load(environment: &mut Environment, file: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let half = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    let (entry, headers) = (word(24), word(32) as usize);
    for header in (0..half(56)).map(|index| headers + half(54) * index) {
        // PT_LOAD.
        if file[header..header + 4] == [1, 0, 0, 0] {
            let (offset, address, size) = (word(header + 8), word(header + 16), word(header + 32));
            environment.write(address, &file[offset as usize..][..size as usize]);
        }
    }
    entry
}

fn registers(machine: &Machine) -> Registers {
    let state = machine.soft.cpu.state();
    let st = std::array::from_fn(|index| {
        let mut value = [0; 10];
        value.copy_from_slice(&state.x87.st(index).to_le_bytes()[..10]);
        value
    });
    Registers {
        general: state.gpr,
        rip: state.rip,
        rflags: state.rflags,
        segments: state.seg.map(|segment| segment.selector),
        fs_base: state.seg[4].base,
        gs_base: state.seg[5].base,
        orig_rax: u64::MAX,
        fxsave: Some(Fxsave {
            fcw: state.x87.fcw,
            fsw: state.x87.fsw,
            ftw: 0xffff,
            st,
            xmm: state.xmm,
            mxcsr: state.mxcsr,
            ..Fxsave::default()
        }),
        avx: Some(Avx {
            ymmh: state.ymm_high,
        }),
        control: Some(Control {
            cr0: state.sys.cr0,
            cr3: state.sys.cr3,
            cr4: state.sys.cr4,
            efer: state.sys.efer,
            ..Control::default()
        }),
    }
}
