//! Code that is in no file, or in the place of that of a file: that of a JIT compiler, of a program
//! that has written over its own, and the vDSO.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{function_rows, functions, report, tool};

/// Calls and instructions of the functions that `programs/jit.c` makes, from what it does: 35 calls
/// that count from 10 down and one from 1000, each with two more instructions; 7 of the caller.
const COUNT_DOWN: (u64, u64) = (36, 35 * 22 + 2002);
const CALLER: (u64, u64) = (7, 7 * (4 + 5 * 5));
/// The source of these functions, as the program says.
const LOOPS: &str = "function count_down(n) {\n\tdo n--; while (n);\n}\n\nfunction caller() {\n\
                     \tfor (let i = 5; i; i--) count_down(10);\n}\n";
/// How often its lines are executed.
const LINES: [(u32, u64); 6] = [
    (1, 36),
    (2, 35 * 10 + 1000),
    (3, 36),
    (5, 7),
    (6, 7 * 5),
    (7, 7),
];
/// How often the program reads the clock besides.
const CLOCK: u64 = 100;

/// The functions of the program, which is called with `mode`. Its current directory is a writable
/// share.
fn traced(machine: &Machine, directory: &Path, mode: &str) -> Result<std::path::PathBuf> {
    let program = directory.join("jit");
    if !program.exists() {
        programs::gcc(&programs::source("jit.c"), &program, &["-O1", "-g"])?;
    }
    let trace = directory.join(format!("{mode}.btrace"));
    let source = directory.join("loops.js");
    std::fs::write(&source, LOOPS)?;
    let path = |path: &Path| path.to_str().map(str::to_owned).context("a path");
    let (program, source) = (path(&program)?, path(&source)?);
    let words: [&str; 3] = [&program, mode, &source];
    let options = ["--epoch", "0", "--quiet"];
    machine
        .trace("btrace", &trace, &options, &words)?
        .expect(0)?;
    Ok(trace)
}

/// Names and code come from a perf map, with the code in memory at the end, and from a jitdump.
pub(super) fn jit(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for mode in ["map", "dump", "gone"] {
        let trace = traced(machine, directory.path(), mode)?;
        let functions = functions(machine, &trace)?;
        for (name, expected) in [("jit::count_down", COUNT_DOWN), ("jit::caller", CALLER)] {
            let found = functions.get(name);
            ensure!(found == Some(&expected), "{mode}: {name}: {found:?}");
        }
        let folded = report(machine, &["folded"], &trace)?;
        let stack = "main;jit::caller;jit::count_down ";
        ensure!(folded.contains(stack), "{mode}: no {stack}: {folded}");
        if mode == "map" {
            continue;
        }
        // A dump has source lines, too.
        let source = directory.path().join("loops.js");
        let source = source.to_str().context("a path")?;
        let lines = report(machine, &["lcov", "--source", source], &trace)?;
        for (line, count) in LINES {
            let row = format!("\nDA:{line},{count}\n");
            ensure!(lines.contains(&row), "{mode}: no {row}: {lines}");
        }
    }
    // Without names, the code in memory has its instructions.
    let trace = traced(machine, directory.path(), "none")?;
    let modules = function_rows(&report(machine, &["modules", "--json"], &trace)?)?;
    let jit: Vec<_> = modules
        .iter()
        .filter(|(name, _)| name.starts_with("[JIT "))
        .collect();
    let sum = COUNT_DOWN.1 + CALLER.1;
    ensure!(jit.len() == 1 && jit[0].1.1 == sum, "{jit:?}");
    Ok(())
}

/// Calls of `count` in `programs/Words.java`.
const WORDS: u64 = 100;

/// Methods that Java's virtual machine has compiled. It calls them through stubs, which jump behind
/// their beginning, and its interpreter returns to them by jumps.
pub(super) fn java(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut compiler = tool("javac", &["-d"])?;
    compiler
        .arg(directory.path())
        .arg(programs::source("Words.java"));
    machine::finish(compiler)?.expect(0)?;
    let trace = directory.path().join("words.btrace");
    let words = [
        "java",
        "-Xcomp",
        "-XX:TieredStopAtLevel=1",
        "-XX:CompileCommand=quiet",
        "-XX:CompileCommand=dontinline,Words.count",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:+DumpPerfMapAtExit",
        "-cp",
        directory.path().to_str().context("a path")?,
        "Words",
    ];
    let options = ["--memory", "1G", "--quiet"];
    let run = machine.trace("btrace", &trace, &options, &words)?;
    ensure!(run.expect(0)?.stdout == b"2000\n");
    // It says what has no explanation: the virtual machine changes its code while it runs.
    let mut command = machine.command(["report"]);
    command.args(super::FUNCTIONS).arg(&trace);
    let rows = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let functions = function_rows(&rows)?;
    let name = "int Words.count(java.util.List, java.lang.String)";
    let (calls, _) = functions.get(name).context("no Words.count")?;
    ensure!(*calls == WORDS, "{calls} calls");
    Ok(())
}

/// The functions of the vDSO have names and instructions, in programs of 64 and of 32 bits.
pub(super) fn vdso(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for (flags, name) in [
        (&["-O1", "-g"][..], "clock_gettime"),
        (&["-O1", "-g", "-m32", "-static"], "__vdso_clock_gettime64"),
    ] {
        let program = directory.path().join("jit");
        let compiled = programs::gcc(&programs::source("jit.c"), &program, flags);
        if flags.contains(&"-m32") && compiled.is_err() {
            eprintln!("left out, because the compiler has no C library of 32 bits");
            continue;
        }
        compiled?;
        let trace = traced(machine, directory.path(), "clock")?;
        let answer = report(machine, &super::FUNCTIONS, &trace)?;
        // The C library's function has the same name.
        let of_vdso: Vec<&str> = answer.lines().filter(|row| row.contains("[vdso")).collect();
        let found = function_rows(&of_vdso.join("\n"))?;
        let (calls, instructions) = *found.get(name).with_context(|| answer.clone())?;
        ensure!(calls == CLOCK, "{name}: {calls} calls");
        ensure!(instructions >= 10 * calls, "{name}: {instructions}");
    }
    Ok(())
}

/// A program that writes over its code: what it executes before that is its file's, and what it
/// executes afterwards is that in memory.
const WRITES_CODE: &str = r#"
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

__attribute__((noinline, aligned(64))) int changed(int n)
{
	__asm__ volatile(".skip 32, 0x90");
	return n + 1;
}

/* mov ecx, 100; again: dec ecx; jnz again; mov eax, 42; ret */
static const unsigned char code[] = {
	0xb9, 100, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xb8, 42, 0, 0, 0, 0xc3,
};

int main(void)
{
	int (*volatile function)(int) = changed;
	int before = function(1);
	uintptr_t page = (uintptr_t)changed & -4096UL;
	if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
		return 1;
	memcpy((void *)changed, code, sizeof(code));
	return before == 2 && function(1) == 42 ? 0 : 2;
}
"#;
/// Instructions of the function in the file: `nop`, `lea` and `ret`; and in memory.
const IN_FILE: u64 = 32 + 2;
const IN_MEMORY: u64 = 1 + 2 * 100 + 2;

/// Code that a program has written over that of its file is counted as it was executed.
pub(super) fn written_over(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("writes.c"), WRITES_CODE)?;
    let program = programs::gcc(&path("writes.c"), &path("writes"), &["-O1", "-g"])?;
    let trace = path("trace.btrace");
    machine
        .trace("btrace", &trace, &["--quiet"], &[&program])?
        .expect(0)?;
    let functions = functions(machine, &trace)?;
    let found = functions.get("changed");
    ensure!(found == Some(&(2, IN_FILE + IN_MEMORY)), "{found:?}");
    let assembly = report(machine, &["assembly", "--function", "changed"], &trace)?;
    ensure!(assembly.contains("(taken 99)"), "{assembly}");
    Ok(())
}
