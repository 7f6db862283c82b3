//! The trace of each test program in the guest must have the same branches as single-stepping it on
//! the host.
//!
//! With `VBTS_ORACLE=DIR` the test keeps the programs and the results of single-stepping in this
//! directory, and uses those that it finds there. A machine with an emulated processor needs the
//! results of another machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::branches::{self, Branch, Symbols};
use vbts_tests::machine::{self, Machine, Test, TestModule};
use vbts_tests::{oracle, programs};

/// The smallest buffer in use: 682 records, which the longest program fills more than a hundred
/// times.
const BUFFER: &str = "16K";

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    let mut tests: Vec<(&str, programs::Program, &[&str])> = programs::ALL
        .iter()
        .map(|&program| (program.name(), program, ["--buffer", BUFFER].as_slice()))
        .collect();
    tests.push(("default_buffer", programs::ALL[0], &[]));
    tests.push(("netburst", programs::ALL[0], &["--cpu", "pentium4-64"]));
    let several: [(&str, &[&str]); 3] = [
        ("tasks", &[]),
        ("tasks_small_buffer", &["--buffer", BUFFER]),
        ("tasks_on_4_processors", &["--smp", "4", "--buffer", BUFFER]),
    ];
    let mut all: Vec<(String, Test)> = Vec::new();
    for model in ["core2", "pentium4", "pentium-m"] {
        for &program in programs::I386 {
            let name = format!("i386::{model}::{}", program.name());
            let key = format!("i386-{}", program.name());
            let test = move |machine: &Machine| {
                let options = ["--cpu", model, "--buffer", BUFFER];
                compare(&machine.i386()?, &key, program, &options)
            };
            all.push((name, Box::new(test)));
        }
    }
    let one = tests.into_iter().map(|(name, program, options)| {
        let test: Test = Box::new(move |machine| compare(machine, name, program, options));
        (name.to_owned(), test)
    });
    let several = several.into_iter().map(|(name, options)| {
        let test: Test = Box::new(move |machine| compare_tasks(machine, options));
        (name.to_owned(), test)
    });
    all.extend(one.chain(several));
    machine::trials(module, all)
}

fn compare(
    machine: &Machine,
    name: &str,
    program: programs::Program,
    options: &[&str],
) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (path, expected) = match std::env::var_os("VBTS_ORACLE") {
        Some(kept) => kept_expectation(&Path::new(&kept).join(name), program)?,
        None => expectation(directory.path(), program)?,
    };

    let output = directory.path().join("trace");
    let run = machine
        .trace("raw", &output, options, &[&path])?
        .expect(program.status)?;
    ensure!(
        run.stdout == expected.stdout,
        "the output differs from that on the host:\n{}",
        String::from_utf8_lossy(&run.stdout)
    );
    ensure!(
        run.stderr.contains("lost: 0"),
        "records were lost: {}",
        run.stderr
    );
    let mut got = branches::parse_raw(&std::fs::read(&output)?)?;
    got.retain(Branch::is_user);
    if let Some(text) = branches::first_difference(&expected.branches, &got, &Symbols::read(&path)?)
    {
        bail!("{text}");
    }
    println!("{name}: {} branches, all equal", got.len());
    Ok(())
}

/// Compares each task with the one of the host that has the same place in the tree of tasks.
fn compare_tasks(machine: &Machine, options: &[&str]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = programs::TASKS.build(directory.path())?;
    let host = oracle::trace_tasks(&path)?;
    let output = directory.path().join("trace");
    let run = machine
        .trace("json", &output, options, &[&path])?
        .expect(programs::TASKS.status)?;
    ensure!(
        run.stdout == host.stdout,
        "other output than on the host:\n{}",
        String::from_utf8_lossy(&run.stdout)
    );
    ensure!(
        run.stderr.contains("lost: 0"),
        "records were lost: {}",
        run.stderr
    );
    let parents = host.tasks.iter().map(|task| task.parent).collect();
    let branches = host.tasks.into_iter().map(|task| task.branches).collect();
    let expected = by_place(parents, branches);
    let got = json_tasks(&std::fs::read_to_string(&output)?)?;
    ensure!(
        got.keys().eq(expected.keys()),
        "tasks {:?} instead of {:?}",
        got.keys(),
        expected.keys()
    );
    let symbols = Symbols::read(&path)?;
    for (place, branches) in &expected {
        let got = got.get(place).context("a task is missing")?;
        if let Some(text) = branches::first_difference(branches, got, &symbols) {
            bail!("task {place:?}: {text}");
        }
        println!("task {place:?}: {} branches, all equal", got.len());
    }
    Ok(())
}

/// The place of a task in the tree of tasks: for each of its ancestors and itself, its number among
/// the tasks of the same parent.
type Place = Vec<usize>;

/// The branches of each task, from the index of each task's parent.
fn by_place(
    parents: Vec<Option<usize>>,
    branches: Vec<Vec<Branch>>,
) -> BTreeMap<Place, Vec<Branch>> {
    let mut places: Vec<Place> = Vec::new();
    for (index, parent) in parents.iter().enumerate() {
        let siblings = parents.iter().take(index).filter(|other| *other == parent);
        let mut place = parent
            .and_then(|parent| places.get(parent).cloned())
            .unwrap_or_default();
        place.push(siblings.count());
        places.push(place);
    }
    places.into_iter().zip(branches).collect()
}

/// The branches between user addresses of each task in a trace in JSON.
fn json_tasks(text: &str) -> Result<BTreeMap<Place, Vec<Branch>>> {
    // By ID, and thus in the order in which they were started.
    let mut tasks: BTreeMap<u64, (u64, Vec<Branch>)> = BTreeMap::new();
    for line in text.lines() {
        let object: serde_json::Value = serde_json::from_str(line)?;
        let id = |name: &str| object[name].as_u64().context("no task");
        let address = |name: &str| {
            let text = object[name]
                .as_str()
                .and_then(|text| text.strip_prefix("0x"));
            u64::from_str_radix(text.context("no address")?, 16).context("no number")
        };
        if object["kind"] == "start" {
            tasks.insert(id("task")?, (id("parent")?, Vec::new()));
        } else if object["kind"] == "branch" {
            let task = tasks.get_mut(&id("task")?);
            let (_, branches) = task.with_context(|| format!("a branch of no task: {line}"))?;
            let branch = Branch {
                from: address("from")?,
                to: address("to")?,
            };
            branches.extend(branch.is_user().then_some(branch));
        }
    }
    let ids: Vec<u64> = tasks.keys().copied().collect();
    let (parents, branches): (Vec<u64>, Vec<_>) = tasks.into_values().unzip();
    let index = |id: &u64| ids.iter().position(|other| other == id);
    Ok(by_place(parents.iter().map(index).collect(), branches))
}

/// The expected output and branches of a program.
struct Expected {
    stdout: Vec<u8>,
    branches: Vec<Branch>,
}

/// Builds a program in `directory`, and runs it on the host.
fn expectation(directory: &Path, program: programs::Program) -> Result<(PathBuf, Expected)> {
    let path = program.build(directory)?;
    let trace = oracle::trace(&path)?;
    ensure!(
        trace.status == program.status,
        "the program exited with {} on the host",
        trace.status
    );
    let expected = Expected {
        stdout: trace.stdout,
        branches: trace.branches,
    };
    Ok((path, expected))
}

/// Uses the program and the results in `directory`. If there are none, it builds the program there,
/// runs it on the host, and keeps the results.
fn kept_expectation(directory: &Path, program: programs::Program) -> Result<(PathBuf, Expected)> {
    let (stdout, branches) = (directory.join("stdout"), directory.join("branches"));
    // This file is written last.
    if branches.exists() {
        let read = |path: &Path| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let expected = Expected {
            stdout: read(&stdout)?,
            branches: branches::parse_raw(&read(&branches)?)?,
        };
        return Ok((directory.join(program.name()), expected));
    }
    std::fs::create_dir_all(directory)?;
    let (path, expected) = expectation(directory, program)?;
    std::fs::write(&stdout, &expected.stdout)?;
    std::fs::write(&branches, branches::to_raw(&expected.branches))?;
    Ok((path, expected))
}
