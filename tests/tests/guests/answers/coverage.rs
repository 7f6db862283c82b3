//! Coverage of source lines.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{llvm, option, report, tool, traced};

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

/// The counts of lines in a tracefile of lcov.
fn tracefile_counts(text: &str) -> HashMap<u32, u64> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("DA:"));
    rows.filter_map(|row| {
        let (line, rest) = row.split_once(',')?;
        let count = rest.split(',').next()?;
        Some((line.parse().ok()?, count.parse().ok()?))
    })
    .collect()
}

/// Whether a line is a label of a `switch`.
fn is_label(text: &str) -> bool {
    text.starts_with("case ") || text == "default:"
}

/// Each of their lines has the same count in ours, unless the text of the line and our count are
/// such that they `differ` for a known reason.
fn compare(
    source: &Path,
    ours: &HashMap<u32, u64>,
    theirs: &HashMap<u32, u64>,
    differ: fn(&str, Option<&u64>) -> bool,
) -> Result<()> {
    ensure!(theirs.len() > 50, "{} lines", theirs.len());
    let text = std::fs::read_to_string(source)?;
    let text: Vec<&str> = text.lines().collect();
    let mut different = Vec::new();
    let mut equal = 0;
    for (line, count) in theirs {
        let text = text.get(*line as usize - 1).unwrap_or(&"").trim();
        match ours.get(line) {
            Some(ours) if ours == count => equal += 1,
            ours if differ(text, ours) => {}
            ours => different.push(format!("{line}: {ours:?}, expected {count}: {text}")),
        }
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));
    ensure!(equal > 50, "{equal} lines are equal");
    Ok(())
}

/// Lines have the counts that gcov has of the same run, if the compiler's table of lines has
/// instructions of them: not the head of a function, whose first line is that of the brace, and not
/// a label.
pub(super) fn gcov(machine: &Machine) -> Result<()> {
    let mut command = tool("gcov", &[])?;
    let (kept, shared) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (trace, directory) = (kept.path().join("trace"), shared.path());
    let source = programs::source("answers.c");
    let covered = directory.join("covered");
    let flags = ["-O0", "-g", "-static", "--coverage", "-fprofile-abs-path"];
    programs::gcc(&source, &covered, &flags)?;
    let share = format!("{}:rw", directory.display());
    machine
        .trace("btrace", &trace, &["--share", &share], &[&covered])?
        .expect(0)?;
    command
        .args(["--stdout", "covered-answers.gcda"])
        .current_dir(directory);
    let theirs = machine::finish(command)?.expect(0)?;
    let theirs = line_counts(&String::from_utf8(theirs.stdout)?);
    let words = ["lines", "--source", source.to_str().context("a path")?];
    let ours = line_counts(&report(machine, &words, &trace)?);
    // gcov counts the block that begins there.
    compare(&source, &ours, &theirs, |text, ours| {
        ours.is_none() && (text.ends_with(')') || is_label(text))
    })
}

/// Lines have the counts of llvm-cov, which are those of regions of the source. The traced program
/// does not count: Clang gives the instructions that do so the line of the statement before them.
pub(super) fn llvm_cov(machine: &Machine) -> Result<()> {
    let [clang, profdata, cov] = llvm(["clang", "llvm-profdata", "llvm-cov"])?;
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let source = programs::source("answers.c");
    let compile = |program: &Path, flags: &[&str]| {
        let mut clang = Command::new(&clang);
        clang.args(["-O0", "-g", "-static"]).args(flags);
        clang.args([Path::new("-o"), program, &source]);
        machine::finish(clang)?.expect(0)
    };
    let (plain, covered, trace) = (path("plain"), path("covered"), path("trace"));
    let (raw, merged) = (path("raw"), path("merged"));
    compile(&plain, &[])?;
    let counting = option("-fprofile-instr-generate", &raw);
    compile(&covered, &[&counting, "-fcoverage-mapping"])?;
    machine.trace("btrace", &trace, &[], &[&plain])?.expect(0)?;
    machine::finish(Command::new(&covered))?.expect(0)?;
    let mut merge = Command::new(profdata);
    merge.args([Path::new("merge"), Path::new("-o"), &merged, &raw]);
    machine::finish(merge)?.expect(0)?;
    let mut export = Command::new(cov);
    export
        .args(["export", "-format=lcov"])
        .arg(option("-instr-profile", &merged))
        .arg(&covered);
    let theirs = machine::finish(export)?.expect(0)?;
    let theirs = tracefile_counts(&String::from_utf8(theirs.stdout)?);
    let words = ["lcov", "--source", source.to_str().context("a path")?];
    let ours = tracefile_counts(&report(machine, &words, &trace)?);
    // The instruction of `} else {` ends the block before it, and its last region is that after it.
    compare(&source, &ours, &theirs, |text, ours| {
        let is_declaration = text.ends_with(';') && !text.contains(['=', '(']);
        let has_no_code = is_label(text) || is_declaration || text == "}";
        text == "} else {" || ours.is_none() && has_no_code
    })
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
    let output = run.printed();
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
