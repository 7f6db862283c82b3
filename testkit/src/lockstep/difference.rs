//! Finds and reports the differences between two machines.

use std::fmt::{self, Write as _};
use std::sync::atomic::Ordering;

use iced_x86::{Decoder, DecoderOptions};

use crate::lockstep::Recipe;
use crate::lockstep::layout::{RAM, region};
use crate::lockstep::machine::Machine;
use crate::lockstep::program::Program;

/// Lines of a report about one thing.
const LINES: usize = 12;
/// Instructions of a report.
const INSTRUCTIONS: usize = 24;

/// Two machines that run the same program have come to differ.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The program.
    pub recipe: Recipe,
    /// The number of the run after which they differ.
    pub run: u64,
    /// The length of that run in instructions.
    pub length: u64,
    /// A report of the differences, and the last instructions.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            recipe,
            run,
            length,
            what,
        } = self;
        writeln!(
            f,
            "a difference after run {run} of {length} instructions: {what}"
        )?;
        let program = Program::new(recipe);
        writeln!(f, "{:?}, model {}", program.native, program.model.name)?;
        writeln!(f, "steps: {:?}", program.kinds)?;
        write!(f, "{recipe}")
    }
}

/// Compares a processor of two machines. Returns what differs.
pub(super) fn of_processor(expected: &Machine, got: &Machine, processor: usize) -> Option<String> {
    let of = |machine: &Machine| machine.processors[processor].soft.cpu.state();
    let (a, b) = (of(expected), of(got));
    let interrupts = |machine: &Machine| {
        let platform = &machine.processors[processor].platform;
        platform.performance_interrupts.load(Ordering::Relaxed)
    };
    let (due, were) = (interrupts(expected), interrupts(got));
    if due != were {
        return Some(format!(
            "\n  {were} performance-monitoring interrupts instead of {due}"
        ));
    }
    if a == b {
        return None;
    }
    let (a, b) = (format!("{a:#x?}"), format!("{b:#x?}"));
    let mut field = "";
    let mut text = String::new();
    let mut lines = 0;
    for (a, b) in a.lines().zip(b.lines()) {
        if a.starts_with("    ") && !a.starts_with("     ") && !a.trim().starts_with([']', '}']) {
            field = a.trim();
        }
        if a != b && lines < LINES {
            let _ = write!(text, "\n  {field} {} instead of {}", b.trim(), a.trim());
            lines += 1;
        }
    }
    Some(text)
}

/// Compares the memory of two machines. Returns what differs.
pub(super) fn of_memory(expected: &Machine, got: &Machine) -> Option<String> {
    let (a, b) = (expected.ram.bytes(), got.ram.bytes());
    if a == b {
        return None;
    }
    let differs = |at: &usize| a[*at..*at + 8] != b[*at..*at + 8];
    let places = (0..RAM).step_by(8).filter(differs).take(LINES);
    Some(places.fold(String::new(), |mut text, at| {
        let word = |bytes: &[u8]| {
            let bytes = bytes[at..at + 8].iter().rev();
            bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let _ = write!(
            text,
            "\n  memory at {at:#x} ({}): {:#x} instead of {:#x}",
            region(at as u64),
            word(b),
            word(a)
        );
        text
    }))
}

/// Compares the logs of a processor of two machines. Returns what differs.
pub(super) fn of_log(
    expected: &mut Machine,
    got: &mut Machine,
    processor: usize,
) -> Option<String> {
    let [a, b] = [expected, got].map(|m| m.processors[processor].log());
    if a == b {
        return None;
    }
    let equal = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let [a, b] = [a, b].map(|log| log.into_iter().skip(equal).take(LINES).collect::<Vec<_>>());
    Some(format!(
        "\n  log of processor {processor} from entry {equal} on: {b:x?} instead of {a:x?}"
    ))
}

/// The last instructions that a machine that steps has executed.
pub(super) fn trail(machine: &Machine, processor: usize) -> String {
    let cr3 = machine.processors[processor].soft.cpu.sys.cr3;
    let first = machine.trail.len().saturating_sub(INSTRUCTIONS);
    let mut text = format!("\nthe last instructions of processor {processor}:");
    for &rip in &machine.trail[first..] {
        let bytes: Vec<u8> = (rip..rip.wrapping_add(15))
            .map_while(|la| physical(machine, cr3, la))
            .map(|at| machine.ram.bytes()[at])
            .collect();
        let i = Decoder::with_ip(64, &bytes, rip, DecoderOptions::NONE).decode();
        let shown = &bytes[..i.len().min(bytes.len())];
        let _ = write!(text, "\n  {rip:#x} {shown:02x?} {i}");
    }
    text
}

/// Translates a linear address by the page tables in memory, without a check of rights.
fn physical(machine: &Machine, cr3: u64, la: u64) -> Option<usize> {
    const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
    let mut table = cr3 & ADDRESS;
    for shift in [39, 30, 21, 12] {
        let at = table + 8 * (la >> shift & 511);
        if at + 8 > RAM as u64 {
            return None;
        }
        let entry = machine.ram.read_u64(at);
        if entry & 1 == 0 {
            return None;
        }
        table = entry & ADDRESS;
    }
    let at = (table | la & 0xFFF) as usize;
    (at < RAM).then_some(at)
}
