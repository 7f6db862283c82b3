//! Names of functions and files.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{FUNCTIONS, functions, report, tool, traced};

/// Names in a file can be anything. In a document they stay text.
pub(super) fn hostile_names(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("a<b>&'\"\u{202e}.c");
    std::fs::write(
        &source,
        "__attribute__((noinline)) int f(int x) { __asm__ volatile(\"\"); return x; }\n\
         int main(void) { return f(0); }\n",
    )?;
    let program = directory.path().join("a<b>&'\"");
    programs::gcc(&source, &program, &["-O1", "-g", "-static", "-no-pie"])?;
    let mut rename = tool("objcopy", &["--redefine-sym"])?;
    rename.arg("f=<script>&\"'\x1b]]>;\n</svg>").arg(&program);
    machine::finish(rename)?.expect(0)?;
    let trace = directory.path().join("a.btrace");
    machine
        .trace(
            "btrace",
            &trace,
            &["--epoch", "0"],
            &[program.as_path(), Path::new("\x1b]0;<script>&\x07\u{202e}")],
        )?
        .expect(0)?;
    for (words, is_xml) in [
        (&["flamegraph"][..], true),
        (&["cobertura"], true),
        (&["html"], false),
        (&["functions"], false),
        (&["calls", "--least", "0"], false),
        (&["lcov"], false),
        (&["folded"], false),
        (&["tail"], false),
        (&["assembly"], false),
    ] {
        let text = report(machine, words, &trace)?;
        let plain = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
        ensure!(text.chars().all(plain), "{words:?}: {text}");
        if is_xml || words == ["html"] {
            ensure!(!text.contains("<script>&"), "{words:?}: {text}");
        }
        if is_xml {
            let file = directory.path().join("document.xml");
            std::fs::write(&file, text)?;
            let script = "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])";
            let mut command = tool("python3", &["-c", script])?;
            command.arg(&file);
            machine::finish(command)?.expect(0)?;
        }
    }
    Ok(())
}

/// The calls, branches and instructions of the functions that `wanted` accepts the place of.
fn rows_of(text: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<[u64; 4]>> {
    let mut rows = Vec::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line)?;
        let number = |name: &str| row[name].as_u64().context(format!("no {name}: {row}"));
        if row["place"].as_str().is_some_and(&wanted) {
            let [calls, branches, instructions, total] =
                ["calls", "branches", "instructions", "total"].map(number);
            rows.push([calls?, branches?, instructions?, total?]);
        }
    }
    Ok(rows)
}

/// The unwind table of a stripped program says where its functions are: what each has executed is
/// the same as with symbols.
pub(super) fn stripped(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O2", "-g"], &[])?;
    let text = report(machine, &FUNCTIONS, &traced.trace)?;
    let functions = rows_of(&text, |place| place.contains("answers.c:"))?;
    ensure!(functions.len() > 5, "{text}");
    let mut command = tool("strip", &["--strip-all"])?;
    command.arg(&traced.program);
    machine::finish(command)?.expect(0)?;
    let mut command = machine.command(["report"]);
    command.args(FUNCTIONS).arg(&traced.trace);
    let text = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    // Others are the compiler's, some of which have no entry.
    let mut stripped = rows_of(&text, |place| place == "answers")?;
    for function in functions {
        let Some(at) = stripped.iter().position(|row| *row == function) else {
            bail!("{function:?} is missing: {text}");
        };
        stripped.remove(at);
    }
    ensure!(text.contains("\"answers+0x"), "{text}");
    Ok(())
}

/// The dynamic linker jumps to the last function of a program, which has no symbol and is not in
/// the unwind table. What follows still has its callers.
pub(super) fn end_of_a_stripped_program(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O2", "-s"], &[])?;
    let text = report(machine, &["where"], &traced.trace)?;
    ensure!(text.contains("  exit+0x"), "{text}");
    Ok(())
}

/// GCC moves a part of `work` away, which leads back into the middle of `work`.
const MOVED: &str = r#"
    #include <stdio.h>
    __attribute__((noinline, cold)) void rare(int *sum) { *sum += 2; }
    __attribute__((noinline)) int last(int n) { return n * 3; }
    __attribute__((noinline)) int work(int n)
    {
        int sum = n, kept[4] = { n, n + 1, n + 2, n + 3 };
        for (int i = 0; i < 4; i++) {
            asm volatile("" : "+m"(kept));
            if (__builtin_expect(kept[i] == 3, 0))
                rare(&sum);
            sum += last(kept[i]);
        }
        return sum;
    }
    int main(void) { return work(1) > 100; }
"#;

/// A part of a function that the compiler has moved away has an entry of its own in the unwind
/// table. Stacks of a program without symbols do not have it as a function.
pub(super) fn moved_part_of_a_stripped_program(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("moved.c"), MOVED)?;
    programs::gcc(&at("moved.c"), &at("moved"), &["-O2"])?;
    let mut symbols = tool("nm", &["--defined-only"])?;
    symbols.arg(at("moved"));
    let symbols = String::from_utf8(machine::finish(symbols)?.expect(0)?.stdout)?;
    ensure!(symbols.contains(" work.cold"), "{symbols}");
    let mut strip = tool("strip", &[])?;
    strip.arg(at("moved"));
    machine::finish(strip)?.expect(0)?;
    let trace = at("moved.btrace");
    machine
        .trace("btrace", &trace, &[], &[at("moved")])?
        .expect(0)?;
    // The stacks from main on: main, work, last and rare, all as if the part were in its place.
    let folded = report(machine, &["folded"], &trace)?;
    let stacks = folded
        .lines()
        .filter_map(|line| line.split_once("__libc_start_call_main;moved+"));
    let mut depths: Vec<usize> = stacks
        .map(|(_, frames)| frames.split(';').count())
        .collect();
    depths.sort_unstable();
    ensure!(depths == [1, 2, 3, 3], "{folded}");
    Ok(())
}

/// GCC moves the second call of `last` away, with the end of `turn`.
const TURNED: &str = r#"
    __attribute__((noipa, cold)) void rare(int *sum) { *sum += 2; }
    __attribute__((noipa)) int last(int n) { return n * 3; }
    int global;
    __attribute__((noipa)) int turn(int n)
    {
        int sum = last(n) + n;
        if (__builtin_expect(n == 3, 0)) {
            rare(&global);
            return last(sum);
        }
        return sum;
    }
    int main(void) { return turn(3) > 100; }
"#;

/// A part of a function that the compiler has moved away can end with a tail call.
pub(super) fn tail_call_of_a_moved_part(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("turned.c"), TURNED)?;
    programs::gcc(&at("turned.c"), &at("turned"), &["-O2"])?;
    let mut symbols = tool("nm", &["--defined-only"])?;
    symbols.arg(at("turned"));
    let symbols = String::from_utf8(machine::finish(symbols)?.expect(0)?.stdout)?;
    ensure!(symbols.contains(" turn.cold"), "{symbols}");
    let last = symbols.lines().find(|line| line.ends_with(" last"));
    let (last, _) = last.and_then(|line| line.split_once(' ')).context("last")?;
    let unnamed = format!("turned+0x{:x}", u64::from_str_radix(last, 16)?);
    for name in ["last", unnamed.as_str()] {
        let trace = at("turned.btrace");
        machine
            .trace("btrace", &trace, &[], &[at("turned")])?
            .expect(0)?;
        let functions = functions(machine, &trace)?;
        let calls = functions.get(name).map(|(calls, _)| *calls);
        ensure!(calls == Some(2), "{name}: {calls:?}");
        let mut strip = tool("strip", &[])?;
        strip.arg(at("turned"));
        machine::finish(strip)?.expect(0)?;
    }
    Ok(())
}

/// Each frame of a stack has its position, also in a function without a symbol: where the function
/// called the next one.
pub(super) fn positions_in_a_stripped_program(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("moved.c"), MOVED)?;
    programs::gcc(&at("moved.c"), &at("moved"), &["-O2"])?;
    let mut dump = tool("objdump", &["--disassemble", "--no-show-raw-insn"])?;
    dump.arg(at("moved"));
    let dump = String::from_utf8(machine::finish(dump)?.expect(0)?.stdout)?;
    let call = |of: &str, callee: &str| -> Result<u64> {
        let (_, code) = dump.split_once(&format!("<{of}>:")).context("code")?;
        let mut lines = code.lines();
        let is_call = |line: &&str| line.contains("call ") && line.contains(callee);
        let line = lines.find(is_call).context("a call")?;
        // The position is in the instruction, at its end.
        let after = lines.next().context("the next instruction")?;
        ensure!(after.contains(':'), "{line}: {after}");
        let (address, _) = after.trim().split_once(':').context("an address")?;
        Ok(u64::from_str_radix(address, 16)? - 1)
    };
    let (in_part, in_main) = (call("work.cold", "<rare>")?, call("main", "<work>")?);
    // The symbol of `rare` is kept: the run stops there.
    let mut strip = tool("strip", &["--keep-symbol=rare"])?;
    strip.arg(at("moved"));
    machine::finish(strip)?.expect(0)?;
    let trace = at("moved.btrace");
    machine
        .trace("btrace", &trace, &["--stop", "rare"], &[at("moved")])?
        .expect(0)?;
    let text = report(machine, &["where"], &trace)?;
    let (_, stack) = text.split_once("stack:").context("a stack")?;
    let part = format!("(moved+0x{in_part:x})");
    ensure!(stack.contains(&part), "no {part}: {text}");
    let position = format!("  moved+0x{in_main:x}\n");
    ensure!(stack.contains(&position), "no {position}: {text}");
    Ok(())
}
