//! Coverage of source lines.

use std::collections::HashMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{report, tool, traced};

/// The counts of lines in the format of gcov.
fn line_counts(text: &str) -> HashMap<u32, u64> {
    let mut counts = HashMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').map(str::trim);
        let (Some(count), Some(number)) = (fields.next(), fields.next()) else {
            continue;
        };
        let count = match count.trim_end_matches('*') {
            "#####" => Some(0),
            count => count.parse().ok(),
        };
        if let (Some(count), Ok(number)) = (count, number.parse()) {
            counts.insert(number, count);
        }
    }
    counts
}

/// Lines have the counts of gcov, if the compiler's table of lines has instructions of them: not
/// the head of a function, whose first line is that of the brace, and not a label.
pub(super) fn gcov(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O0", "-g", "-static"], &[])?;
    let directory = traced.directory.path();
    let source = programs::source("answers.c");
    let mut command = tool("gcov", &[])?;
    let covered = directory.join("covered");
    let flags = ["-O0", "-g", "--coverage", "-fprofile-abs-path"];
    programs::gcc(&source, &covered, &flags)?;
    machine::finish(Command::new(&covered))?.expect(0)?;
    command
        .args(["--stdout", "covered-answers.gcda"])
        .current_dir(directory);
    let theirs = machine::finish(command)?.expect(0)?;
    let theirs = line_counts(&String::from_utf8(theirs.stdout)?);
    let words = ["lines", "--source", source.to_str().context("a path")?];
    let ours = line_counts(&report(machine, &words, &traced.trace)?);
    ensure!(theirs.len() > 50, "gcov knows {} lines", theirs.len());
    let text = std::fs::read_to_string(&source)?;
    let text: Vec<&str> = text.lines().collect();
    let mut different = Vec::new();
    let mut equal = 0;
    for (line, count) in &theirs {
        let text = text.get(*line as usize - 1).unwrap_or(&"").trim();
        match ours.get(line) {
            Some(ours) if ours == count => equal += 1,
            // No instruction belongs to these, but gcov counts the block that begins there.
            None if text.ends_with(')') && !text.ends_with(";") => {}
            None if text.starts_with("case ") || text == "default:" => {}
            ours => different.push(format!("{line}: {ours:?}, gcov: {count}: {text}")),
        }
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));
    ensure!(equal > 50, "{equal} lines are equal");
    Ok(())
}

/// Size in bytes of a unit of debugging information that is larger than what is read of a file.
const LARGE: u64 = 300 << 20;

/// Debugging information can be large, and compressed.
pub(super) fn debug_information(machine: &Machine) -> Result<()> {
    let source = programs::source("answers.c");
    let words = ["lines", "--source", source.to_str().context("a path")?];
    let small = traced(machine, &["-O0", "-g", "-static", "-Wl,--build-id"], &[])?;
    let lines = report(machine, &words, &small.trace)?;
    ensure!(line_counts(&lines).len() > 50, "{lines}");
    for format in ["zlib", "zlib-gnu", "zstd"] {
        let mut command = tool("objcopy", &[])?;
        command
            .arg(format!("--compress-debug-sections={format}"))
            .arg(&small.program);
        // The format is newer than some versions of objcopy.
        let run = machine::finish(command)?;
        if format == "zstd" && run.status != Some(0) {
            continue;
        }
        run.expect(0)?;
        let compressed = report(machine, &words, &small.trace)?;
        ensure!(compressed == lines, "{format}: {compressed}");
    }
    // A unit with a single entry, and zeros after it.
    let rest = LARGE - 8;
    let unit = format!(
        ".section .debug_abbrev\n.Labbreviations: .byte 1, 0x11, 0, 0, 0, 0\n\
         .section .debug_info\n.long {LARGE}\n.value 4\n.long .Labbreviations\n.byte 8, 1\n\
         .zero {rest}\n.section .note.GNU-stack,\"\",@progbits\n"
    );
    let file = small.directory.path().join("large.s");
    std::fs::write(&file, unit)?;
    let flags = ["-O0", "-g", "-static", file.to_str().context("a path")?];
    let large = traced(machine, &flags, &[])?;
    ensure!(large.program.metadata()?.len() > LARGE, "no large file");
    let large = report(machine, &words, &large.trace)?;
    ensure!(large == lines, "{large}");
    Ok(())
}

/// genhtml of lcov accepts the tracefile, and counts as we do.
pub(super) fn genhtml(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O0", "-g", "-static"], &[])?;
    let source = programs::source("answers.c");
    let words = ["lcov", "--source", source.to_str().context("a path")?];
    let text = report(machine, &words, &traced.trace)?;
    ensure!(text.contains("FNDA:0,never\n"), "{text}");
    ensure!(text.contains("FNDA:465,fib\n"), "{text}");
    // `n < 2` of `fib`: taken, not taken.
    let line = "BRDA:26,0,0,";
    ensure!(text.contains(line), "{text}");
    let tracefile = traced.directory.path().join("answers.info");
    std::fs::write(&tracefile, &text)?;
    let mut command = tool("genhtml", &["--branch-coverage", "--output-directory"])?;
    command
        .arg(traced.directory.path().join("html"))
        .arg(&tracefile);
    let run = machine::finish(command)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout).into_owned() + &run.stderr;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    for (hit, found, what) in [("LH:", "LF:", "lines"), ("FNH:", "FNF:", "functions")] {
        let (hit, found) = (value(hit).context("hit")?, value(found).context("found")?);
        ensure!(
            output.contains(&format!("({hit} of {found} {what}")),
            "{what}: {output}"
        );
    }
    Ok(())
}
