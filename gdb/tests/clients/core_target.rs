//! A target that is a core file: a real process of Linux, as it was at one time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use vbts_gdb::{
    Capabilities, RegisterLayout, Registers, Result, Resumption, Stop, StopPoint, StopReason,
    Target, TargetError, TargetFile, ThreadId, ThreadInfo,
};

const PROCESS: u32 = 77;
/// Types of segments and notes in ELF files.
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const NT_PRSTATUS: u32 = 1;
const NT_AUXV: u32 = 6;
/// Place of the registers in `struct elf_prstatus`.
const PR_REG: usize = 112;
/// The registers of `struct user_regs_struct` that have an index in `Registers::general`.
const GENERAL: [(usize, usize); 16] = [
    (0, 15),
    (1, 14),
    (2, 13),
    (3, 12),
    (4, 5),
    (5, 3),
    (6, 11),
    (7, 10),
    (8, 9),
    (9, 8),
    (10, 0),
    (11, 1),
    (12, 2),
    (13, 6),
    (14, 7),
    (19, 4),
];

/// A process at one time.
#[derive(Debug, Clone)]
pub struct CoreTarget {
    program: PathBuf,
    /// Memory, by address.
    memory: BTreeMap<u64, Vec<u8>>,
    threads: Vec<Registers>,
    auxiliary_vector: Vec<u8>,
    detached: bool,
}

impl CoreTarget {
    /// Makes the core file of the program, or returns why it cannot be made here.
    pub fn new() -> std::result::Result<Self, &'static str> {
        static TARGET: OnceLock<std::result::Result<CoreTarget, String>> = OnceLock::new();
        TARGET
            .get_or_init(make)
            .as_ref()
            .cloned()
            .map_err(String::as_str)
    }

    fn thread(&mut self, thread: ThreadId) -> Result<&mut Registers> {
        let index = thread
            .thread
            .checked_sub(PROCESS)
            .ok_or(TargetError::Errno(3))?;
        self.threads
            .get_mut(index as usize)
            .ok_or(TargetError::Errno(3))
    }

    fn stop() -> Stop {
        let thread = ThreadId {
            process: PROCESS,
            thread: PROCESS,
        };
        Stop {
            thread,
            reason: StopReason::Signal(5),
        }
    }
}

fn make() -> std::result::Result<CoreTarget, String> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/threads.c");
    let (program, core) = (directory.join("threads"), directory.join("threads.core"));
    let gcc = Command::new("gcc")
        .args(["-g", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(gcc.map_err(|error| format!("no gcc: {error}"))?.success());
    let _ = std::fs::remove_file(&core);
    // The file has all mappings.
    let script = "echo 0x7f > /proc/self/coredump_filter && exec gdb -nx -batch \
                  -iex 'set debuginfod enabled off' -ex 'break stop_here' -ex run \
                  -ex \"generate-core-file $1\" -ex kill \"$0\"";
    let mut gdb = Command::new("sh");
    gdb.args(["-c", script]).args([&program, &core]);
    let output = gdb.stdin(Stdio::null()).output().unwrap();
    let file = std::fs::read(&core).map_err(|_| {
        format!(
            "gdb makes no core file: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    Ok(parse(program, &file))
}

fn parse(program: PathBuf, file: &[u8]) -> CoreTarget {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let half = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let short = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    let mut target = CoreTarget {
        program,
        memory: BTreeMap::new(),
        threads: Vec::new(),
        auxiliary_vector: Vec::new(),
        detached: false,
    };
    for index in 0..short(56) {
        let header = word(32) as usize + index * short(54);
        let (offset, address) = (word(header + 8) as usize, word(header + 16));
        let size = word(header + 32) as usize;
        match half(header) {
            PT_LOAD => {
                target
                    .memory
                    .insert(address, file[offset..offset + size].to_vec());
            }
            PT_NOTE => {
                let mut at = offset;
                while at < offset + size {
                    let (name, length) = (half(at) as usize, half(at + 4) as usize);
                    let contents = at + 12 + name.next_multiple_of(4);
                    match half(at + 8) {
                        NT_PRSTATUS => {
                            let registers = contents + PR_REG;
                            target
                                .threads
                                .push(registers_of(|index| word(registers + 8 * index)));
                        }
                        NT_AUXV => {
                            target.auxiliary_vector = file[contents..contents + length].to_vec();
                        }
                        _ => {}
                    }
                    at = contents + length.next_multiple_of(4);
                }
            }
            _ => {}
        }
    }
    target
}

fn registers_of(word: impl Fn(usize) -> u64) -> Registers {
    let mut registers = Registers {
        rip: word(16),
        rflags: word(18),
        orig_rax: word(15),
        fs_base: word(21),
        gs_base: word(22),
        ..Registers::default()
    };
    for (index, general) in GENERAL {
        registers.general[general] = word(index);
    }
    registers
}

impl Target for CoreTarget {
    fn capabilities(&self) -> Capabilities {
        Capabilities::AUXILIARY_VECTOR | Capabilities::EXECUTABLE
    }

    fn register_layout(&mut self, _: u32) -> Result<RegisterLayout> {
        Ok(RegisterLayout {
            is_32_bit: false,
            is_linux: true,
            has_avx: false,
            has_control: false,
        })
    }

    fn threads(&mut self) -> Result<Vec<ThreadInfo>> {
        let count = if self.detached {
            0
        } else {
            self.threads.len() as u32
        };
        let thread = |thread| ThreadInfo {
            id: ThreadId {
                process: PROCESS,
                thread,
            },
            name: "threads".to_owned(),
            processor: None,
            state: String::new(),
        };
        Ok((PROCESS..PROCESS + count).map(thread).collect())
    }

    fn current_stop(&mut self) -> Result<Stop> {
        Ok(Self::stop())
    }

    fn read_registers(&mut self, thread: ThreadId) -> Result<Registers> {
        self.thread(thread).cloned()
    }

    fn write_registers(&mut self, thread: ThreadId, registers: &Registers) -> Result<()> {
        *self.thread(thread)? = registers.clone();
        Ok(())
    }

    fn read_memory(&mut self, _: ThreadId, address: u64, buffer: &mut [u8]) -> Result<usize> {
        let (start, bytes) = self
            .memory
            .range(..=address)
            .next_back()
            .ok_or(TargetError::Errno(14))?;
        let rest = bytes
            .get((address - start) as usize..)
            .filter(|rest| !rest.is_empty());
        let rest = rest.ok_or(TargetError::Errno(14))?;
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_memory(&mut self, _: ThreadId, _: u64, _: &[u8]) -> Result<()> {
        Err(TargetError::Refused(
            "a core file does not change".to_owned(),
        ))
    }

    fn add_stop_point(&mut self, _: u32, _: StopPoint) -> Result<()> {
        Ok(())
    }

    fn remove_stop_point(&mut self, _: u32, _: StopPoint) -> Result<()> {
        Ok(())
    }

    fn resume(&mut self, _: &Resumption) -> Result<()> {
        Err(TargetError::Refused(
            "a core file does not execute".to_owned(),
        ))
    }

    fn run(&mut self, _: &mut Vec<u8>) -> Result<Option<Stop>> {
        Ok(Some(Self::stop()))
    }

    fn interrupt(&mut self) -> Result<Stop> {
        Ok(Self::stop())
    }

    fn detach(&mut self, _: Option<u32>) -> Result<()> {
        self.detached = true;
        Ok(())
    }

    fn kill(&mut self, _: Option<u32>) -> Result<()> {
        Ok(())
    }

    fn executable(&mut self, _: u32) -> Result<Vec<u8>> {
        Ok(self.program.to_str().unwrap().as_bytes().to_vec())
    }

    fn auxiliary_vector(&mut self, _: u32) -> Result<Vec<u8>> {
        Ok(self.auxiliary_vector.clone())
    }

    fn open_file(&mut self, _: Option<u32>, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        let path = std::str::from_utf8(path).map_err(|_| TargetError::Errno(2))?;
        let file = std::fs::read(path).map_err(|_| TargetError::Errno(2))?;
        Ok(Box::new(file))
    }
}
