//! Whether a trace can be: from where one branch led, the processor must have come to the next one
//! in a straight line.
//!
//! The code is that of the program's file and of the guest's kernel. The kernel changes its code
//! while it starts; its file says where, and there either way is taken as possible.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Code as Op, Decoder, DecoderOptions, FlowControl, Instruction};
use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags, elf};

use crate::branches::{Branch, Symbols};

/// Longer stretches without a branch do not exist.
const LONGEST: usize = 4096;

/// Sizes in bytes of the kernel's `struct alt_instr`, `struct jump_entry` and `struct
/// static_call_site`.
const ALTERNATIVE: usize = 14;
const JUMP_ENTRY: usize = 16;
const STATIC_CALL: usize = 8;
/// Size of the call or jump at a static call, and of a trampoline's.
const CALL: u64 = 5;
const TRAMPOLINE: u64 = 8;

/// Where the kernel's code may not be what its file has.
#[derive(Clone, Copy, Debug)]
struct Site {
    /// First address after it.
    end: u64,
    /// Where a branch there leads, if it can only lead there.
    target: Option<u64>,
}

/// Code, and what can happen in it.
#[derive(Debug)]
pub struct Code {
    /// Executable segments: first address and contents.
    segments: Vec<(u64, Vec<u8>)>,
    sites: BTreeMap<u64, Site>,
    /// Where exceptions, interrupts and system calls enter the kernel.
    entries: Vec<Range<u64>>,
    /// The instructions that switch recording off, and the first ones after those that switch it
    /// on.
    off: Range<u64>,
    on: u64,
    symbols: Symbols,
}

/// How straight a line went.
enum Line {
    /// It came to the branch.
    Arrives,
    /// It came to where the kernel switches recording off.
    Off,
}

impl Code {
    /// Reads the code of `program` and of `kernel`, both ELF files that run where they were linked
    /// to.
    ///
    /// # Errors
    /// If one cannot be read, or `kernel` is no kernel with `PTRACE_BTS_CONFIG`.
    pub fn read(program: &Path, kernel: &Path) -> Result<Self> {
        let bytes = |path: &Path| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (program_bytes, kernel_bytes) = (bytes(program)?, bytes(kernel)?);
        let user = object::File::parse(&*program_bytes)?;
        let file = object::File::parse(&*kernel_bytes)?;

        let mut symbols: Vec<(String, Range<u64>)> = file
            .symbols()
            .filter_map(|s| {
                Some((
                    s.name().ok()?.to_owned(),
                    s.address()..s.address() + s.size(),
                ))
            })
            .collect();
        symbols.sort_by(|a, b| a.0.cmp(&b.0));
        let symbol = |name: &str| {
            let at = symbols.binary_search_by(|(other, _)| other.as_str().cmp(name));
            at.ok()
                .and_then(|at| symbols.get(at))
                .map(|(_, range)| range.clone())
                .with_context(|| format!("{} has no symbol {name}", kernel.display()))
        };
        let mut segments = executable(&file)?;
        let table = |start: &str, end: &str| -> Result<(u64, Vec<u8>)> {
            let range = symbol(start)?.start..symbol(end)?.start;
            let segment = file
                .segments()
                .find(|s| (s.address()..s.address() + s.size()).contains(&range.start));
            let data = segment
                .and_then(|s| s.data_range(range.start, range.end - range.start).ok()?)
                .with_context(|| format!("{start} is in no segment"))?;
            Ok((range.start, data.to_vec()))
        };
        let mut sites = BTreeMap::new();
        let mut add = |start: u64, end: u64, target| {
            let site = sites.entry(start).or_insert(Site { end, target });
            site.end = site.end.max(end);
        };
        let (at, data) = table("__alt_instructions", "__alt_instructions_end")?;
        for (n, entry) in data.chunks_exact(ALTERNATIVE).enumerate() {
            let start = relative(entry, 0, at + (n * ALTERNATIVE) as u64)?;
            let len = *entry.get(12).context("a short entry")?;
            add(start, start + u64::from(len), None);
        }
        let (at, data) = table("__start_static_call_sites", "__stop_static_call_sites")?;
        for (n, entry) in data.chunks_exact(STATIC_CALL).enumerate() {
            let start = relative(entry, 0, at + (n * STATIC_CALL) as u64)?;
            add(start, start + CALL, None);
        }
        let trampolines =
            symbol("__static_call_text_start")?.start..symbol("__static_call_text_end")?.start;
        for start in trampolines.step_by(TRAMPOLINE as usize) {
            add(start, start + CALL, None);
        }
        segments.extend(executable(&user)?);
        let mut this = Self {
            segments,
            sites,
            entries: Vec::new(),
            off: 0..0,
            on: 0,
            symbols: Symbols::read(kernel)?,
        };
        let (at, data) = table("__start___jump_table", "__stop___jump_table")?;
        for (n, entry) in data.chunks_exact(JUMP_ENTRY).enumerate() {
            let field = at + (n * JUMP_ENTRY) as u64;
            let start = relative(entry, 0, field)?;
            let target = Some(relative(entry, 4, field)?);
            let end = this.decode(start)?.next_ip();
            this.sites.insert(start, Site { end, target });
        }
        this.entries = symbols
            .iter()
            .filter(|(name, _)| is_entry(name))
            .map(|(_, range)| range.clone())
            .collect();
        this.off = this.wrmsr(symbol("intel_pmu_disable_bts")?)?;
        this.on = this.wrmsr(symbol("intel_pmu_enable_bts")?)?.end;
        Ok(this)
    }

    /// For a recording of the machine, which goes on where the kernel switches its own recording
    /// off.
    #[must_use]
    pub fn of_machine(self) -> Self {
        Self {
            off: u64::MAX..u64::MAX,
            ..self
        }
    }

    /// Checks a whole trace, which begins when the kernel switches recording on.
    ///
    /// Returns how often recording was off.
    ///
    /// # Errors
    /// Says where one branch cannot follow another.
    pub fn check(&self, branches: &[Branch]) -> Result<usize> {
        self.check_from(self.on, branches)
    }

    /// Checks a part of a trace that starts with the processor at `at`.
    ///
    /// # Errors
    /// Says where one branch cannot follow another.
    pub fn check_from(&self, mut at: u64, branches: &[Branch]) -> Result<usize> {
        // Most of a trace is what was there before. Each with whether recording was off in between.
        let mut seen = HashMap::new();
        let mut gaps = 0;
        for (n, branch) in branches.iter().enumerate() {
            let off = match seen.entry((at, branch.from, branch.to)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => *new.insert(
                    self.follows(at, branch)
                        .with_context(|| self.describe(branches, n))?,
                ),
            };
            gaps += usize::from(off);
            at = branch.to;
        }
        Ok(gaps)
    }

    /// Checks that the next branch from `at` can be `branch`. Returns whether recording was off in
    /// between.
    fn follows(&self, at: u64, branch: &Branch) -> Result<bool> {
        match self.line(at, branch)? {
            Line::Arrives => Ok(false),
            Line::Off => match self.line(self.on, branch)? {
                Line::Arrives => Ok(true),
                Line::Off => bail!("recording is switched on and off, without a branch"),
            },
        }
    }

    /// Goes on from `at` to `branch`, or as far as recording goes.
    fn line(&self, at: u64, branch: &Branch) -> Result<Line> {
        let mut ip = at;
        for _ in 0..LONGEST {
            if let Some(site) = self.sites.get(&ip) {
                if (ip..site.end).contains(&branch.from) {
                    let wrong = site.target.is_some_and(|target| target != branch.to);
                    ensure!(!wrong || self.is_event(branch), "this jump leads elsewhere");
                    return Ok(Line::Arrives);
                }
                ip = site.end;
                continue;
            }
            // Even where there is no code: an exception may be about that.
            if ip == branch.from && self.is_event(branch) {
                return Ok(Line::Arrives);
            }
            let instruction = self.decode(ip)?;
            if ip == branch.from {
                ensure!(
                    leads_to(&instruction, branch.to),
                    "{instruction} does not lead there"
                );
                return Ok(Line::Arrives);
            }
            if ip == self.off.start {
                return Ok(Line::Off);
            }
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => ip = instruction.next_ip(),
                _ => bail!(
                    "{instruction} at {} was not recorded",
                    self.symbols.name(ip)
                ),
            }
        }
        bail!("there is no branch for {LONGEST} instructions");
    }

    /// Whether a branch may happen at any instruction: an exception or an interrupt.
    fn is_event(&self, branch: &Branch) -> bool {
        self.entries.iter().any(|range| range.contains(&branch.to))
    }

    fn decode(&self, at: u64) -> Result<Instruction> {
        let bytes = self
            .segments
            .iter()
            .find_map(|(start, bytes)| bytes.get(usize::try_from(at.checked_sub(*start)?).ok()?..))
            .with_context(|| format!("there is no code at {}", self.symbols.name(at)))?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        ensure!(
            instruction.code() != Op::INVALID,
            "no instruction at {}",
            self.symbols.name(at)
        );
        Ok(instruction)
    }

    /// The one WRMSR in a function.
    fn wrmsr(&self, function: Range<u64>) -> Result<Range<u64>> {
        let mut found = Vec::new();
        let mut ip = function.start;
        while ip < function.end {
            let instruction = self.decode(ip)?;
            if instruction.code() == Op::Wrmsr {
                found.push(ip..instruction.next_ip());
            }
            ip = instruction.next_ip();
        }
        match found.as_slice() {
            [one] => Ok(one.clone()),
            _ => bail!(
                "{} has {} WRMSR",
                self.symbols.name(function.start),
                found.len()
            ),
        }
    }

    /// The branches up to number `n`.
    fn describe(&self, branches: &[Branch], n: usize) -> String {
        let mut text = format!("record {n} of {} does not follow:", branches.len());
        for (at, branch) in branches
            .iter()
            .enumerate()
            .take(n + 1)
            .skip(n.saturating_sub(4))
        {
            let (from, to) = (self.symbols.name(branch.from), self.symbols.name(branch.to));
            text.push_str(&format!("\n  {at:6} {from} -> {to}"));
        }
        text
    }
}

/// Where the processor enters the kernel by itself, by the names of Linux.
fn is_entry(name: &str) -> bool {
    const NAMES: [&str; 4] = [
        "asm_int80_emulation",
        "early_idt_handler_array",
        "irq_entries_start",
        "spurious_entries_start",
    ];
    name.starts_with("asm_exc_") || name.starts_with("asm_sysvec_") || NAMES.contains(&name)
}

/// Whether `instruction` can be a branch to `to`.
fn leads_to(instruction: &Instruction, to: u64) -> bool {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            instruction.near_branch_target() == to
        }
        // SYSCALL is among these.
        FlowControl::Call => match instruction.code() {
            Op::Syscall | Op::Sysenter => to >> 63 != 0,
            _ => instruction.near_branch_target() == to,
        },
        FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return => true,
        _ => false,
    }
}

/// The executable segments of a file.
fn executable(file: &object::File<'_>) -> Result<Vec<(u64, Vec<u8>)>> {
    file.segments()
        .filter(|segment| match segment.flags() {
            SegmentFlags::Elf { p_flags, .. } => p_flags.contains(elf::PF_X),
            _ => false,
        })
        .map(|segment| Ok((segment.address(), segment.data()?.to_vec())))
        .collect()
}

/// The address in a field at `offset` of `entry`, which lies at `at` and counts from that field.
fn relative(entry: &[u8], offset: usize, at: u64) -> Result<u64> {
    let field = entry.get(offset..).and_then(<[u8]>::first_chunk);
    let distance = i32::from_le_bytes(*field.context("a short entry")?);
    Ok((at + offset as u64).wrapping_add_signed(distance.into()))
}
