//! Reports about tasks on standard error: how one has crashed, and where one stands when the run
//! ends early.

use std::fmt::Write as _;

use iced_x86::{Decoder, DecoderOptions, FastFormatter};
use syscalls::Sysno;
use vbts_protocol::{Crash, REGISTERS};

use super::symbols::Symbolizer;
use super::task::Task;
use super::text::{printable, push_branch, push_place};
use crate::exit::signal_name;

/// Index of the instruction pointer in [`REGISTERS`].
pub const RIP: usize = 16;

/// Registers in a line of a report.
const REGISTERS_PER_LINE: usize = 4;

/// `si_code` of a signal that the kernel has raised for an exception without an address.
const SI_KERNEL: i32 = 0x80;

/// What the positive values of `si_code` mean (`sigaction(2)`).
const CODES: [(i32, i32, &str); 10] = [
    (libc::SIGSEGV, 1, "nothing is mapped there"),
    (libc::SIGSEGV, 2, "the mapping does not permit the access"),
    (libc::SIGBUS, 1, "misaligned"),
    (libc::SIGBUS, 2, "beyond the end of the file"),
    (libc::SIGFPE, 1, "integer division by zero"),
    (libc::SIGFPE, 2, "integer overflow"),
    (libc::SIGFPE, 3, "floating-point division by zero"),
    (libc::SIGILL, 2, "illegal operand"),
    (libc::SIGTRAP, 1, "breakpoint"),
    (libc::SIGTRAP, 2, "trace trap"),
];

/// How `task` has crashed: the signal, the instruction, the registers and the last branches.
pub fn of_crash(task: &Task, crash: &Crash, symbols: &mut Symbolizer) -> String {
    let signal = crash.signal.cast_signed();
    let mut text = format!(
        "vbts: task {} ({}) crashed: {}",
        task.id,
        printable(task.short_name()),
        signal_name(signal)
    );
    // Writing to a `String` does not fail.
    if crash.code > 0 && crash.code != SI_KERNEL {
        let _ = write!(text, " at address {:#x}", crash.address);
    }
    let known = |(s, code, _): &&(i32, i32, &str)| (*s, *code) == (signal, crash.code);
    if let Some((.., meaning)) = CODES.iter().find(known) {
        let _ = write!(text, " ({meaning})");
    }
    text.push('\n');
    let rip = crash.registers.get(RIP).copied().unwrap_or_default();
    let _ = writeln!(
        text,
        "  {}: {}",
        place(symbols, task, rip),
        disassembled(rip, &crash.instruction)
    );
    let registers: Vec<(&str, u64)> = REGISTERS.into_iter().zip(crash.registers).collect();
    for line in registers.chunks(REGISTERS_PER_LINE) {
        let mut separator = "  ";
        for (name, value) in line {
            let _ = write!(text, "{separator}{name:<6} {value:016x}");
            separator = "  ";
        }
        text.push('\n');
    }
    last_branches(&mut text, task, usize::MAX, symbols);
    text
}

/// A task at the end of a run that has ended before it did.
#[derive(Debug)]
pub struct Standing {
    /// The task.
    pub task: Task,
    /// Its name in the guest's kernel.
    pub name: Vec<u8>,
    /// The line of `/proc/TID/syscall`.
    pub syscall: String,
}

/// Where a task stands, with its last `branches` branches.
pub fn of_standing(standing: &Standing, branches: usize, symbols: &mut Symbolizer) -> String {
    let Standing {
        task,
        name,
        syscall,
    } = standing;
    let mut text = format!("  task {} ({}): ", task.id, printable(name));
    // Writing to a `String` does not fail.
    let _ = match parsed(syscall) {
        Some((number, at)) if number < 0 => {
            writeln!(text, "in the program at {}", place(symbols, task, at))
        }
        Some((number, at)) => {
            let name = usize::try_from(number).ok().and_then(Sysno::new);
            writeln!(
                text,
                "in system call {number} ({}) at {}",
                name.map_or("unknown", |name| name.name()),
                place(symbols, task, at)
            )
        }
        None => writeln!(text, "{}", printable(syscall.as_bytes())),
    };
    last_branches(&mut text, task, branches, symbols);
    text
}

/// The number of the system call, or -1 outside of one, and the instruction pointer in a line of
/// `/proc/PID/syscall`; `None` if the task was running.
fn parsed(line: &str) -> Option<(i64, u64)> {
    let number = line.split_whitespace().next()?.parse().ok()?;
    let at = line.split_whitespace().last()?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(at, 16).ok()?))
}

/// `address` with its label.
fn place(symbols: &mut Symbolizer, task: &Task, address: u64) -> String {
    let mut out = Vec::new();
    push_place(symbols, task.process, address, &mut out);
    printable(&out)
}

/// The instruction at `rip` that `bytes` begin with.
fn disassembled(rip: u64, bytes: &[u8]) -> String {
    let mut decoder = Decoder::with_ip(64, bytes, rip, DecoderOptions::NONE);
    if !decoder.can_decode() {
        return "no instruction can be read there".into();
    }
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        let list: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        return format!("no valid instruction: {}", list.join(" "));
    }
    let mut text = String::new();
    let mut formatter = FastFormatter::new();
    formatter.options_mut().set_use_hex_prefix(true);
    formatter.format(&instruction, &mut text);
    text
}

/// Appends the last branches of `task`, at most `limit`.
fn last_branches(text: &mut String, task: &Task, limit: usize, symbols: &mut Symbolizer) {
    let all = task.recent.branches();
    let shown = all
        .get(all.len().saturating_sub(limit)..)
        .unwrap_or_default();
    if shown.is_empty() {
        return;
    }
    // Writing to a `String` does not fail.
    let _ = writeln!(text, "  its last {} branches:", shown.len());
    for branch in shown {
        let mut out = Vec::new();
        push_branch(symbols, task.process, *branch, &mut out);
        let _ = writeln!(text, "    {}", printable(&out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::format::tests::{records, symbols, task};
    use vbts_protocol::Scope;

    fn mapped() -> Symbolizer {
        let mut symbols = symbols();
        let line = b"401000-402000 r-xp 00001000 00:00 0 /nonexistent/prog\n";
        symbols.set_maps(1, line);
        symbols
    }

    #[test]
    fn a_crash_shows_the_instruction_and_how_the_task_came_there() {
        let mut task = task(57, "prog");
        let branches = records(&[[1, 0x40_1000, 0x40_1010]]);
        task.recent.push(&branches, Scope::User);
        let mut crash = Crash {
            task: 57,
            signal: 11,
            code: 1,
            address: 0x10,
            registers: std::array::from_fn(|n| n as u64),
            instruction: vec![0x8B, 0x40, 0x10, 0x90],
        };
        crash.registers[RIP] = 0x40_1010;
        let text = of_crash(&task, &crash, &mut mapped());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "vbts: task 57 (prog) crashed: SIGSEGV at address 0x10 (nothing is mapped there)"
        );
        assert_eq!(lines[1], "  000000401010 prog+0x1010: mov eax,[rax+0x10]");
        assert_eq!(
            lines[2],
            "  rax    0000000000000000  rbx    0000000000000001  \
             rcx    0000000000000002  rdx    0000000000000003"
        );
        assert_eq!(
            lines[6],
            "  rip    0000000000401010  rflags 0000000000000011"
        );
        assert_eq!(
            lines[7..],
            [
                "  its last 1 branches:",
                "    000000401000 prog+0x1000 -> 000000401010 prog+0x1010"
            ]
        );
        crash.signal = 6;
        crash.code = -6;
        for (bytes, expected) in [
            (&[][..], "no instruction can be read there"),
            (&[0x06, 0x90], "no valid instruction: 06 90"),
        ] {
            crash.instruction = bytes.to_vec();
            let text = of_crash(&task, &crash, &mut mapped());
            assert!(text.starts_with("vbts: task 57 (prog) crashed: SIGABRT\n"));
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn where_a_task_stands_has_the_system_call_and_the_place() {
        let mut task = task(57, "prog");
        let branches = records(&[[1, 1, 2], [1, 3, 4]]);
        task.recent.push(&branches, Scope::User);
        for (syscall, expected) in [
            ("running", "running"),
            (
                "-1 0x7ffd 0x401001",
                "in the program at 000000401001 prog+0x1001",
            ),
            (
                "202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd 0x5000",
                "in system call 202 (futex) at 000000005000",
            ),
            (
                "99999 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd 0x5000",
                "in system call 99999 (unknown) at 000000005000",
            ),
            ("7 x\n", "7 x\\n"),
            ("", ""),
        ] {
            let standing = Standing {
                task: task.clone(),
                name: b"a".to_vec(),
                syscall: syscall.into(),
            };
            assert_eq!(
                of_standing(&standing, 1, &mut mapped()),
                format!(
                    "  task 57 (a): {expected}\n  its last 1 branches:\n    \
                     000000000003 -> 000000000004\n"
                )
            );
        }
    }
}
