//! Programs that LLVM's BOLT makes of a profile.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine};

use super::{llvm, traced};

/// The tools of BOLT.
pub struct Bolt {
    perf2bolt: PathBuf,
    llvm_bolt: PathBuf,
}

impl Bolt {
    /// The installed ones.
    pub fn find() -> Result<Self> {
        let [perf2bolt, llvm_bolt] = llvm(["perf2bolt", "llvm-bolt"])?;
        Ok(Self {
            perf2bolt,
            llvm_bolt,
        })
    }

    /// Makes the profile `fdata` of another one of a program, in which every branch must be one of
    /// the program. Returns what perf2bolt prints.
    pub fn convert(
        &self,
        options: &[&str],
        profile: &Path,
        program: &Path,
        fdata: &Path,
    ) -> Result<String> {
        let mut command = Command::new(&self.perf2bolt);
        command.args(options).arg("-p").arg(profile);
        command.arg("-o").arg(fdata).arg(program);
        let output = machine::finish(command)?.expect(0)?.printed();
        for problem in [
            "traces mismatching disassembled function contents: ",
            "out of range traces involving unknown regions: ",
        ] {
            // With --pa, the second begins with a capital letter.
            let count = number_after(&output.to_lowercase(), problem);
            ensure!(count == Some(0), "{problem}{count:?}: {output}");
        }
        ensure!(output.contains("PERF2BOLT: wrote "), "{output}");
        Ok(output)
    }

    /// Makes the program `faster` of a program and its profile. By what llvm-bolt says, it takes
    /// fewer branches.
    pub fn optimise(&self, program: &Path, fdata: &Path, faster: &Path) -> Result<()> {
        let mut command = Command::new(&self.llvm_bolt);
        command
            .arg(program)
            .arg("-o")
            .arg(faster)
            .arg("-data")
            .arg(fdata)
            .args(["-reorder-blocks=ext-tsp", "-reorder-functions=hfsort"])
            .args(["-split-functions", "-dyno-stats"]);
        let output = machine::finish(command)?.expect(0)?.printed();
        let taken = output.lines().filter_map(|line| {
            let (count, name) = line.split_once(" : ")?;
            let is_it = name.split(" (").next() == Some("taken branches");
            is_it.then(|| count.trim().parse::<u64>().ok()).flatten()
        });
        let taken: Vec<u64> = taken.collect();
        ensure!(
            matches!(taken[..], [before, after] if after < before),
            "{taken:?}: {output}"
        );
        Ok(())
    }
}

/// The number that follows `before` in a text.
pub fn number_after(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    rest.get(..digits.unwrap_or(rest.len()))?.parse().ok()
}

/// Number of taken branches in a file, by its path.
fn branches(machine: &Machine, trace: &Path, file: &Path) -> Result<u64> {
    let mut command = machine.command(["report", "modules", "--json"]);
    command.arg(trace);
    let rows = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let rows = rows.lines().map(serde_json::from_str::<Value>);
    let rows: Vec<Value> = rows.collect::<Result<_, _>>()?;
    let row = rows
        .iter()
        .find(|row| row["name"].as_str() == file.to_str());
    row.and_then(|row| row["branches"].as_u64())
        .with_context(|| format!("no {}: {rows:?}", file.display()))
}

/// perf2bolt finds the profile without mismatches, and llvm-bolt makes a program of it that does
/// the same with fewer taken branches: as it says itself, and by a trace.
pub(super) fn optimised(machine: &Machine) -> Result<()> {
    let bolt = Bolt::find()?;
    let flags = ["-O2", "-g", "-Wl,--emit-relocs", "-pthread"];
    let traced = traced(machine, &flags, &["k"])?;
    let path = |name: &str| traced.directory.path().join(name);
    let (profile, fdata, faster) = (path("preaggregated"), path("fdata"), path("answers.bolt"));
    let mut ours = machine.command(["report", "bolt", "--output"]);
    ours.arg(&profile).arg(&traced.trace);
    machine::finish(ours)?.expect(0)?;
    bolt.convert(&["--pa"], &profile, &traced.program, &fdata)?;
    bolt.optimise(&traced.program, &fdata, &faster)?;
    let results = [&traced.program, &faster].map(|program| {
        let mut command = Command::new(program);
        command.arg("k");
        machine::finish(command)?.expect(0)
    });
    let [first, second] = results;
    ensure!(first?.stdout == second?.stdout, "another result");
    let again = path("again.btrace");
    let words = [faster.to_str().context("a path")?, "k"];
    machine
        .trace("btrace", &again, &["--epoch", "0"], &words)?
        .expect(0)?;
    let before = branches(machine, &traced.trace, &traced.program)?;
    let after = branches(machine, &again, &faster)?;
    ensure!(after < before, "{before} branches, then {after}");
    Ok(())
}
