//! Files that are found, or refused, by their build IDs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{Traced, functions, report, tool, traced};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The build ID of a file, as binutils' readelf says it.
pub(super) fn build_id(file: &Path) -> Result<String> {
    let mut command = tool("readelf", &["--notes"])?;
    command.arg(file);
    let notes = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    Ok(id.context("no build ID")?.to_owned())
}

/// The trace has the build ID of each executed file. A file with the same one is the same, also if
/// it is newer; one with another one has no names.
pub(super) fn replaced(machine: &Machine) -> Result<()> {
    let Traced {
        directory,
        program,
        trace,
    } = traced(machine, &["-O2", "-g", "-static"], &[])?;
    let id = build_id(&program)?;
    let file = std::fs::File::open(&trace)?;
    let mut reader = vbts_trace::Reader::new(std::io::BufReader::new(file))?;
    let mut ids = Vec::new();
    while let Some(item) = reader.next_item()? {
        if let vbts_trace::Item::Event { event, .. } = item
            && let vbts_trace::Event::BuildId { id, name } = event
        {
            ids.push((PathBuf::from(String::from_utf8(name)?), hex(&id)));
        }
    }
    ensure!(ids == [(program.clone(), id)], "{ids:?}");
    let before = functions(machine, &trace)?;
    let newer = directory.path().join("newer");
    std::fs::copy(&program, &newer)?;
    std::fs::rename(&newer, &program)?;
    ensure!(functions(machine, &trace)? == before, "the copy differs");
    let source = programs::source("answers.c");
    programs::gcc(&source, &program, &["-O1", "-g", "-static"])?;
    let message = format!("{} is not the file that was traced", program.display());
    for what in ["functions", "text"] {
        let mut command = machine.command(["report", what]);
        command.arg(&trace);
        let run = machine::finish(command)?.expect(0)?;
        ensure!(run.stderr.contains(&message), "{what}: {}", run.stderr);
        let rows = String::from_utf8(run.stdout)?;
        ensure!(!rows.contains("insert"), "{what}: {rows}");
        ensure!(rows.contains("answers+0x"), "{what}: {rows}");
    }
    let mut command = machine.command(["report", "diff"]);
    command.args([&trace, &trace]);
    let run = machine::finish(command)?.expect(0)?;
    let of_a_trace = format!("vbts: {}: {message}", trace.display());
    let said = run.stderr.matches(&of_a_trace).count();
    ensure!(said == 2, "said {said} times: {}", run.stderr);
    let mut command = machine.command(["report", "json", "--only", "insert"]);
    command.arg(&trace);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(
        run.stderr.contains("it is not the file that was traced"),
        "{}",
        run.stderr
    );
    Ok(())
}

/// The lines of a source file that is newer than the trace may be other ones.
pub(super) fn changed_source(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let (source, trace) = (path("answers.c"), path("a.btrace"));
    std::fs::copy(programs::source("answers.c"), &source)?;
    let program = programs::gcc(&source, &path("answers"), &["-O0", "-g"])?;
    machine
        .trace("btrace", &trace, &[], &[program])?
        .expect(0)?;
    let said = || -> Result<bool> {
        let mut command = machine.command(["report", "lines"]);
        command.arg(&trace);
        let run = machine::finish(command)?.expect(0)?;
        let message = format!("{} changed after the trace", source.display());
        Ok(run.stderr.contains(&message))
    };
    ensure!(!said()?, "a source file that is older than the trace");
    let mut text = std::fs::read(&source)?;
    text.insert(0, b'\n');
    std::fs::write(&source, text)?;
    ensure!(said()?, "nothing is said of a changed source file");
    Ok(())
}

/// Moves the debugging information of `program` to the file `to`.
pub(super) fn separate(program: &Path, to: &Path) -> Result<()> {
    for (option, to) in [("--only-keep-debug", to), ("--strip-all", program)] {
        let mut command = tool("objcopy", &[option])?;
        command.args([program, to]);
        machine::finish(command)?.expect(0)?;
    }
    Ok(())
}

/// A stripped program has the lines of the debug file that debuginfod's client has fetched.
pub(super) fn debuginfod(machine: &Machine) -> Result<()> {
    let Traced {
        directory,
        program,
        trace,
    } = traced(machine, &["-O0", "-g", "-static"], &[])?;
    let source = programs::source("answers.c");
    let words = ["lines", "--source", source.to_str().context("a path")?];
    let whole = report(machine, &words, &trace)?;
    let place = directory.path().join("cache").join(build_id(&program)?);
    std::fs::create_dir_all(&place)?;
    separate(&program, &place.join("debuginfo"))?;
    let lines = |cache: &Path| -> Result<machine::Run> {
        let mut command: Command = machine.command(["report"]);
        command
            .args(words)
            .arg(&trace)
            .env("DEBUGINFOD_CACHE_PATH", cache);
        machine::finish(command)?.expect(0)
    };
    let run = lines(&directory.path().join("cache"))?;
    ensure!(run.stderr.is_empty(), "{}", run.stderr);
    ensure!(String::from_utf8(run.stdout)? == whole, "other lines");
    let without = lines(directory.path())?;
    ensure!(
        without.stderr.contains("no source file was found"),
        "{}",
        without.stderr
    );
    Ok(())
}
