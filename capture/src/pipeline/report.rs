//! Reports about tasks on standard error: how one has crashed, and where one stands when the run
//! ends early.

use std::fmt::Write as _;

use iced_x86::{Decoder, DecoderOptions, FastFormatter, Instruction};
use syscalls::Sysno;
use vbts_cpu::model::Requirement;
use vbts_protocol::REGISTERS;
use vbts_trace::{Branch, Crash};

use super::callers::{self, Callers};
use crate::format::text::{push_address, push_branch, push_place};
use crate::task::{RECENT, Task};
use vbts_host::escape::printable;
use vbts_host::exit::signal_name;
use vbts_symbols::Symbolizer;

/// Index of the instruction pointer in [`REGISTERS`].
pub(crate) const RIP: usize = 16;

/// Index of the selector of the code segment in [`REGISTERS`].
const CS: usize = 18;

/// The selector of 64-bit code in Linux. Its others are of 32-bit code.
const USER_CS: u64 = 0x33;

/// Registers in a line of a report.
const REGISTERS_PER_LINE: usize = 4;

/// Number of branches and of callers that a report about a crash shows.
const SHOWN: usize = 12;
const SHOWN_CALLERS: usize = 16;

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
pub(crate) fn of_crash(task: &Task, crash: &Crash, symbols: &mut Symbolizer) -> String {
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
    let instruction = decoded(crash, rip);
    let mut frames = frames(symbols, task, rip).into_iter();
    let _ = writeln!(
        text,
        "  {}: {}",
        frames.next().unwrap_or_default(),
        disassembled(instruction.as_ref(), &crash.instruction)
    );
    // The kernel's own signal means that the processor does not have the instruction.
    if signal == libc::SIGILL
        && crash.code > 0
        && let Some(requirement) = instruction.as_ref().and_then(Requirement::of)
    {
        let _ = writeln!(text, "  {}", processors_with(&requirement));
    }
    let all = task.recent.branches();
    let callers = Callers::of(task, symbols);
    write_callers(&mut text, frames, task, &callers, symbols);
    let registers: Vec<(&str, u64)> = REGISTERS
        .into_iter()
        .zip(crash.registers.iter().copied())
        .collect();
    for line in registers.chunks(REGISTERS_PER_LINE) {
        let mut separator = "  ";
        for (name, value) in line {
            let _ = write!(text, "{separator}{name:<6} {value:016x}");
            separator = "  ";
        }
        text.push('\n');
    }
    // A program that ends itself is interesting up to its call of what does that.
    let aborted = (signal == libc::SIGABRT && crash.code <= 0)
        .then(|| own_call(&callers, task, rip, symbols))
        .flatten();
    let is_before = |at: &&usize| aborted.is_none_or(|call| **at <= call);
    let shown: Vec<Branch> = (callers.shown.iter().filter(is_before))
        .filter_map(|at| all.get(*at).copied())
        .collect();
    let what = aborted.and_then(|call| callers::name_at(symbols, task, all.get(call)?.to));
    let what = what.map_or(String::new(), |name| format!(" up to its call of {name}"));
    last_branches(&mut text, task, &shown, SHOWN, &what, symbols);
    text
}

/// Appends the calls that have led to where `task` is: those that were `inlined` there, the
/// innermost first, and its open ones.
fn write_callers(
    text: &mut String,
    inlined: impl Iterator<Item = String>,
    task: &Task,
    callers: &Callers,
    symbols: &mut Symbolizer,
) {
    let all = task.recent.branches();
    let open = callers.open.iter().rev().filter_map(|call| all.get(*call));
    let open = open.take(SHOWN_CALLERS);
    let open = open.flat_map(|call| frames(symbols, task, call.from));
    // Writing to a `String` does not fail.
    let mut title = "  called from:\n";
    for frame in inlined.chain(open) {
        let _ = writeln!(text, "{title}    {frame}");
        title = "";
    }
    if all.len() >= RECENT && !callers.open.is_empty() {
        let _ = writeln!(
            text,
            "    (these are in its last {RECENT} branches: `vbts report tail` has the whole stack)"
        );
    }
}

/// The innermost open call in the program's own file, or else in another file than that of `rip`.
fn own_call(callers: &Callers, task: &Task, rip: u64, symbols: &Symbolizer) -> Option<usize> {
    let all = task.recent.branches();
    let file = |at: &usize| symbols.file(task.process, all.get(*at)?.from);
    let last = symbols.file(task.process, rip);
    let mut open = callers.open.iter().rev();
    let own = open.find(|at| file(at).is_some_and(|file| file.as_bytes() == task.name));
    let mut open = callers.open.iter().rev();
    own.or_else(|| open.find(|at| file(at) != last)).copied()
}

/// A task at the end of a run that has ended before it did.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The task.
    pub task: Task,
    /// Its name in the guest's kernel.
    pub name: Vec<u8>,
    /// The line of `/proc/TID/syscall`.
    pub syscall: Vec<u8>,
}

/// Describes where a task stands: in a system call with its callers, and else with its last
/// `branches` branches.
pub(crate) fn of_standing(
    standing: &Standing,
    branches: usize,
    symbols: &mut Symbolizer,
) -> String {
    let Standing {
        task,
        name,
        syscall,
    } = standing;
    let mut text = format!("  task {} ({}): ", task.id, printable(name));
    let parsed = std::str::from_utf8(syscall).ok().and_then(parsed);
    // Writing to a `String` does not fail.
    let _ = match parsed {
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
        None => writeln!(text, "{}", printable(syscall)),
    };
    let callers = Callers::of(task, symbols);
    write_callers(&mut text, std::iter::empty(), task, &callers, symbols);
    if callers.open.is_empty() || parsed.is_none_or(|(number, _)| number < 0) {
        let all = task.recent.branches();
        last_branches(&mut text, task, all, branches, "", symbols);
    }
    text
}

/// The number of the system call, or -1 outside of one, and the instruction pointer in a line of
/// `/proc/PID/syscall`; `None` if the task was running.
fn parsed(line: &str) -> Option<(i64, u64)> {
    let number = line.split_whitespace().next()?.parse().ok()?;
    let at = line.split_whitespace().last()?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(at, 16).ok()?))
}

/// The frames of `address`, the innermost first, each with the address.
fn frames(symbols: &mut Symbolizer, task: &Task, address: u64) -> Vec<String> {
    let labels = symbols.frames(task.process, address);
    if labels.is_empty() {
        return vec![place(symbols, task, address)];
    }
    let frames = labels.iter().map(|label| {
        let mut frame = Vec::new();
        push_address(address, &mut frame);
        frame.push(b' ');
        frame.extend_from_slice(label.as_bytes());
        printable(&frame)
    });
    frames.collect()
}

/// `address` with its label.
fn place(symbols: &mut Symbolizer, task: &Task, address: u64) -> String {
    let mut out = Vec::new();
    push_place(symbols, task.process, address, &mut out);
    printable(&out)
}

/// The instruction at `rip`, if it can be read.
fn decoded(crash: &Crash, rip: u64) -> Option<Instruction> {
    let bits = match crash.registers.get(CS) {
        Some(&USER_CS) => 64,
        _ => 32,
    };
    let mut decoder = Decoder::with_ip(bits, &crash.instruction, rip, DecoderOptions::NONE);
    decoder.can_decode().then(|| decoder.decode())
}

/// The text of an instruction that `bytes` begin with.
fn disassembled(instruction: Option<&Instruction>, bytes: &[u8]) -> String {
    let Some(instruction) = instruction else {
        return "no instruction can be read there".into();
    };
    if instruction.is_invalid() {
        let list: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        return format!("no valid instruction: {}", list.join(" "));
    }
    let mut text = String::new();
    let mut formatter = FastFormatter::new();
    formatter.options_mut().set_use_hex_prefix(true);
    formatter.format(instruction, &mut text);
    text
}

/// What an instruction needs, and which processor models have it.
fn processors_with(requirement: &Requirement) -> String {
    let needs = requirement.extensions.join(" and ");
    match requirement.models.as_slice() {
        [] => format!("it needs {needs}, which no --cpu model has"),
        models => format!("it needs {needs}: use --cpu {}", models.join(" or ")),
    }
}

/// Appends the last ones of the branches `all` of `task`, at most `limit`, with a title that ends
/// with `what`.
fn last_branches(
    text: &mut String,
    task: &Task,
    all: &[Branch],
    limit: usize,
    what: &str,
    symbols: &mut Symbolizer,
) {
    let shown = all
        .get(all.len().saturating_sub(limit)..)
        .unwrap_or_default();
    if shown.is_empty() {
        return;
    }
    // Writing to a `String` does not fail.
    let _ = writeln!(text, "  its last {} branches{what}:", shown.len());
    for branch in shown {
        let mut out = Vec::new();
        push_branch(symbols, task.process, branch, &mut out);
        let _ = writeln!(text, "    {}", printable(&out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::symbols;
    use crate::task::tests::task;
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
        let branch = Branch {
            from: 0x40_1000,
            to: 0x40_1010,
        };
        task.recent.push(&[branch], Scope::User);
        let mut crash = Crash {
            signal: 11,
            code: 1,
            address: 0x10,
            registers: (0..REGISTERS.len() as u64).collect(),
            instruction: vec![0x8B, 0x40, 0x10, 0x90],
        };
        crash.registers[RIP] = 0x40_1010;
        crash.registers[CS] = USER_CS;
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
            "  rip    0000000000401010  rflags 0000000000000011  cs     0000000000000033"
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

    /// The lines of the report about `instruction` in the code segment `cs`, without its registers.
    fn instruction_lines(signal: i32, code: i32, cs: u64, instruction: &[u8]) -> Vec<String> {
        let mut crash = Crash {
            signal: signal.cast_unsigned(),
            code,
            address: 0x40_1010,
            registers: vec![0; REGISTERS.len()],
            instruction: instruction.to_vec(),
        };
        crash.registers[RIP] = 0x40_1010;
        crash.registers[CS] = cs;
        let text = of_crash(&task(57, "prog"), &crash, &mut mapped());
        let lines = text.lines().skip(1).map(str::to_owned);
        lines.take_while(|line| !line.contains("rax ")).collect()
    }

    #[test]
    fn an_illegal_instruction_shows_which_processors_have_it() {
        const ILL_ILLOPN: i32 = 2;
        const POPCNT: &[u8] = &[0xF3, 0x0F, 0xB8, 0xC1];
        let lines = |instruction| {
            let lines = instruction_lines(libc::SIGILL, ILL_ILLOPN, USER_CS, instruction);
            lines.join("\n").replace("  000000401010 prog+0x1010: ", "")
        };
        for (instruction, expected) in [
            (
                POPCNT,
                "popcnt eax,ecx\n  it needs POPCNT: use --cpu x86-64-v2 or nehalem or x86-64-v3-basic or x86-64-v3 or haswell or skylake or max",
            ),
            (
                &[0xC5, 0xFD, 0xFE, 0xC1],
                "vpaddd ymm0,ymm0,ymm1\n  it needs AVX2: use --cpu x86-64-v3-basic or x86-64-v3 or haswell or skylake or max",
            ),
            (
                &[0x62, 0xF1, 0x7D, 0x09, 0xFE, 0xC1],
                "vpaddd xmm0{k1},xmm0,xmm1\n  \
                 it needs AVX512VL and AVX512F, which no --cpu model has",
            ),
            (&[0x0F, 0x0B], "ud2"),
            (&[0x06], "no valid instruction: 06"),
            (&[], "no instruction can be read there"),
        ] {
            assert_eq!(lines(instruction), expected);
        }
        // Another process has sent the signal, or it is another one.
        for (signal, code) in [(libc::SIGILL, 0), (libc::SIGSEGV, 1)] {
            assert_eq!(instruction_lines(signal, code, USER_CS, POPCNT).len(), 1);
        }
    }

    #[test]
    fn an_instruction_is_that_of_its_code_segment() {
        const USER32_CS: u64 = 0x23;
        // INC EAX, or a REX prefix
        let bytes = [0x40, 0x8B, 0x00];
        for (cs, expected) in [(USER_CS, "mov eax,[rax]"), (USER32_CS, "inc eax")] {
            let lines = instruction_lines(libc::SIGSEGV, 1, cs, &bytes);
            assert_eq!(lines, [format!("  000000401010 prog+0x1010: {expected}")]);
        }
    }

    #[test]
    fn where_a_task_stands_has_the_system_call_and_the_place() {
        let mut task = task(57, "prog");
        let branches = [Branch { from: 1, to: 2 }, Branch { from: 3, to: 4 }];
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
