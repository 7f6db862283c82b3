//! GDB: `record btrace bts`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSymbol};
use vbts_tests::machine::Machine;
use vbts_tests::programs;

use super::{Guest, run};
use crate::answers::{Counts, functions as functions_of};
use crate::stock_kernel::file;

/// The commands for GDB. Each @ begins a section of its output.
const GDB: &str = r#"
set width 0
set height 0
set confirm off
set startup-with-shell off
starti
record btrace bts
break *finish
continue
echo @info\n
info record
echo @instructions\n
record instruction-history 1,100
echo @calls\n
record function-call-history /ic 1,100
echo @reverse-stepi\n
reverse-stepi
printf "\n%#lx\n", (long) $pc
echo @reverse-stepi again\n
reverse-stepi
printf "\n%#lx\n", (long) $pc
echo @reverse-finish\n
reverse-finish
printf "\n%#lx\n", (long) $pc
echo @goto\n
record goto 6
printf "\n%#lx\n", (long) $pc
echo @stop\n
record goto end
record stop
printf "\n%#lx\n", (long) $pc
continue
"#;

/// Checks the history of `record btrace bts`, and reverse execution in it.
pub(super) fn gdb(machine: &Machine, guest: Guest) -> Result<()> {
    file("root")?;
    let directory = tempfile::tempdir()?;
    let source = programs::source("history.S");
    let program = programs::compile(&source, &directory.path().join("history"), &[])?;
    let script = directory.path().join("gdb");
    fs::write(&script, GDB)?;
    let results = run(
        machine,
        guest,
        directory.path(),
        "gdb -nx -q -batch -x script ./history >results/gdb 2>&1",
        &[("history", &program), ("script", &script)],
    )?;
    let output = results.read("gdb")?;
    println!("{output}");
    check_gdb(&output, &program).with_context(|| output.clone())?;
    let reported = reported(machine, &program, &directory.path().join("history.btrace"))?;
    let history = function_counts(section(&output, "calls")?)?;
    ensure!(history.len() == 3, "{history:?}");
    for (name, (calls, instructions)) in history {
        let counts = reported.get(&name).copied();
        // The kernel has called _start.
        let calls = calls.max(1);
        ensure!(counts == Some((calls, instructions)), "{name}: {counts:?}");
    }
    Ok(())
}

/// Calls and instructions of the functions in GDB's history of calls: a row is a part of a
/// function, and one that is further to the right than the row before is called.
fn function_counts(history: &str) -> Result<BTreeMap<String, (u64, u64)>> {
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut last = 0;
    for row in history.lines() {
        let mut fields = row.split('\t');
        let name = fields.nth(1).context("no function")?;
        let range = fields.next().and_then(|text| text.strip_prefix("inst "));
        let (first, end) = range
            .and_then(|text| text.split_once(','))
            .context("no range")?;
        let instructions = end.parse::<u64>()? - first.parse::<u64>()? + 1;
        let depth = name.len() - name.trim_start().len();
        let sum = counts.entry(name.trim_start().to_owned()).or_default();
        sum.0 += u64::from(depth > last);
        sum.1 += instructions;
        last = depth;
    }
    Ok(counts)
}

/// Calls and instructions of the functions of a program by `vbts report`.
fn reported(machine: &Machine, program: &Path, trace: &Path) -> Result<Counts> {
    machine
        .trace("btrace", trace, &["--epoch", "0"], &[program])?
        .expect(0)?;
    functions_of(machine, trace)
}

/// The section of GDB's output with this name.
fn section<'a>(output: &'a str, name: &str) -> Result<&'a str> {
    let (_, rest) = output
        .split_once(&format!("@{name}\n"))
        .with_context(|| format!("GDB has not reached {name}"))?;
    Ok(rest.split('@').next().unwrap_or_default())
}

fn check_gdb(output: &str, program: &Path) -> Result<()> {
    let at = functions(program)?;
    let at = |name: &str, offset: u64| -> Result<u64> {
        let start = at.get(name).with_context(|| format!("no {name}"))?;
        Ok(start + offset)
    };
    let section = |name: &str| section(output, name);

    let info = section("info")?;
    for expected in [
        "Recording format: Branch Trace Store.",
        "Recorded 12 instructions in 7 functions (0 gaps) for thread 1 ",
    ] {
        ensure!(info.contains(expected), "info record has no {expected:?}");
    }

    let mut expected = Vec::new();
    for (number, (function, offset)) in [
        ("_start", 0),
        ("outer", 0),
        ("outer", 5),
        ("leaf", 0),
        ("leaf", 2),
        ("outer", 10),
        ("outer", 5),
        ("leaf", 0),
        ("leaf", 2),
        ("outer", 10),
        ("outer", 12),
        ("_start", 5),
    ]
    .into_iter()
    .enumerate()
    {
        expected.push((format!("{}", number + 1), at(function, offset)?));
    }
    let mut got = Vec::new();
    for line in section("instructions")?.lines() {
        let mut words = line.split_whitespace();
        let (number, address) = (words.next(), words.next());
        let address = address.and_then(|text| text.strip_prefix("0x"));
        got.push((
            number.unwrap_or_default().to_owned(),
            super::address(address.context("no address")?)?,
        ));
    }
    ensure!(
        got == expected,
        "instructions {got:x?}\ninstead of {expected:x?}"
    );

    let calls: Vec<&str> = section("calls")?.lines().collect();
    let expected = [
        "1\t_start\tinst 1,1",
        "2\t  outer\tinst 2,3",
        "3\t    leaf\tinst 4,5",
        "4\t  outer\tinst 6,7",
        "5\t    leaf\tinst 8,9",
        "6\t  outer\tinst 10,11",
        "7\t_start\tinst 12,12",
    ];
    ensure!(calls == expected, "calls {calls:#?}");

    for (name, expected) in [
        ("reverse-stepi", at("_start", 5)?),
        ("reverse-stepi again", at("outer", 12)?),
        ("reverse-finish", at("_start", 0)?),
        ("goto", at("outer", 10)?),
        ("stop", at("finish", 0)?),
    ] {
        ensure!(
            section(name)?
                .lines()
                .any(|line| line == format!("{expected:#x}")),
            "{name} does not lead to {expected:#x}"
        );
    }
    ensure!(section("stop")?.contains("exited normally"));
    Ok(())
}

/// Returns the addresses of a program's functions, by name.
fn functions(program: &Path) -> Result<BTreeMap<String, u64>> {
    let bytes = fs::read(program)?;
    let file = object::File::parse(&*bytes)?;
    Ok(file
        .symbols()
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
        .collect())
}
