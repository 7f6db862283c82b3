//! Everyday programs do in a guest what they do on the host, and their traces are whole: the rows
//! of `tests/real_programs/table`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, Skip, Test, TestModule};
use vbts_tests::program_table::{self, Row};
use vbts_tests::tasks::Trace;

/// Time for a traced run, on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(900);
/// Number of records up to which the branches of two replays are compared.
const MAX_COMPARED: u64 = 100_000_000;
/// How far the number of records may be from that of the table.
const FACTOR: u64 = 10;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    let rows = match program_table::rows() {
        Ok(rows) => rows,
        Err(error) => {
            let error = format!("{error:#}");
            let failed = move || Err(error.into());
            return vec![Trial::test(format!("{module}::table"), failed)];
        }
    };
    let tests = rows.into_iter().flat_map(|row| {
        let (name, recorded_name) = (row.test_name(), format!("slow::recorded::{}", row.name));
        let recorded_row = row.clone();
        [
            (
                name,
                Box::new(move |machine: &Machine| same(machine, &row)) as Test,
            ),
            (
                recorded_name,
                Box::new(move |machine: &Machine| recorded(machine, &recorded_row)) as Test,
            ),
        ]
    });
    machine::trials(module, tests.collect())
}

/// The directory of a row: a copy of the programs' files. The path is the same on the host and in
/// the guest.
struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        // A row may change the user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let scratch = Self { directory };
        copy(&program_table::directory(), &scratch.work())?;
        // The guest's clock may be before the time at which they were checked out.
        let old = std::time::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        for entry in fs::read_dir(scratch.work())? {
            fs::File::open(entry?.path())?.set_modified(old)?;
        }
        Ok(scratch)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The working directory.
    fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// Sets the working directory and the environment, which are the same for both runs.
    fn set_environment(&self, command: &mut Command) {
        let toolchain = Path::new(env!("CARGO")).parent();
        let toolchain = toolchain.unwrap_or(Path::new("/usr/bin")).display();
        command
            .current_dir(self.work())
            .env("PATH", format!("{toolchain}:/usr/bin:/bin:/usr/sbin:/sbin"))
            .env("HOME", self.work())
            .env("REPOSITORY", program_table::directory().join("../.."))
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("TERM", "dumb");
    }

    /// Runs lines of a shell on the host.
    fn run_on_host(&self, lines: &str) -> Result<Run> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", lines]).env_clear();
        command.stdin(std::process::Stdio::null());
        self.set_environment(&mut command);
        machine::finish(command)
    }

    /// Runs the row in a guest.
    fn run_in_guest(&self, machine: &Machine, row: &Row) -> Result<(Run, Trace)> {
        let output = self.path("trace");
        let options = ["trace", "--accel", machine.accel(), "--format", "json"];
        let mut command = self.command(machine, row, &options);
        command.arg("--output").arg(&output);
        command.args(["--", "/bin/sh", "-c", &row.run]);
        Trace::of(command, &output, LIMIT)
    }

    /// Records the row in the file `output`.
    fn record(&self, machine: &Machine, row: &Row, output: &Path) -> Result<Run> {
        let mut command = self.command(machine, row, &["record", "--quiet"]);
        command.arg("--output").arg(output);
        command.args(["--", "/bin/sh", "-c", &row.run]);
        machine::finish_within(command, LIMIT)
    }

    /// `vbts` with `options` and those of the row.
    fn command(&self, machine: &Machine, row: &Row, options: &[&str]) -> Command {
        let vbts = machine.command(options);
        let mut command = Command::new(vbts.get_program());
        command.args(vbts.get_args()).env_clear();
        command.envs(machine::variables(&vbts));
        command.stdin(std::process::Stdio::null());
        self.set_environment(&mut command);
        if let Some(memory) = &row.memory {
            command.args(["--memory", memory]);
        }
        if !row.keeps.is_empty() {
            command.args(["--share", &format!("{}:rw", self.work().display())]);
        }
        command
    }
}

/// Copies a directory with all attributes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.arg("-a").arg(from).arg(to);
    machine::finish(command)?.expect(0)?;
    Ok(())
}

/// Packages of a row that are not installed.
fn missing(row: &Row) -> Result<Vec<&str>> {
    let mut missing = Vec::new();
    for package in &row.packages {
        let mut command = Command::new("dpkg-query");
        command.args(["-W", "-f", "${Status}", package]);
        let run = machine::finish(command).context("dpkg-query")?;
        if !run.stdout.ends_with(b"ok installed") {
            missing.push(package.as_str());
        }
    }
    Ok(missing)
}

/// Prepares a row, whose packages must be installed.
fn prepared(row: &Row) -> Result<Scratch> {
    let missing = missing(row)?.join(" ");
    if !missing.is_empty() {
        return Err(Skip::program(format!("not installed: {missing}")));
    }
    let scratch = Scratch::new()?;
    if let Some(prepare) = &row.prepare {
        scratch.run_on_host(prepare)?.expect(0)?;
    }
    Ok(scratch)
}

fn same(machine: &Machine, row: &Row) -> Result<()> {
    let scratch = prepared(row)?;
    let (work, prepared, kept) = (
        scratch.work(),
        scratch.path("prepared"),
        scratch.path("host"),
    );
    copy(&work, &prepared)?;
    let host = scratch.run_on_host(&row.run)?;
    fs::rename(&work, &kept)?;
    fs::rename(&prepared, &work)?;
    let (guest, trace) = scratch.run_in_guest(machine, row)?;

    let status = host.status.context("killed on the host")?;
    let guest = guest.expect(status)?;
    compare("standard output", &host.stdout, &guest.stdout)?;
    let ours = ["vbts: records: ", "vbts: discarded changes to "];
    let is_ours = |line: &&str| ours.iter().any(|start| line.starts_with(start));
    let stderr: String = (guest.stderr.split_inclusive('\n'))
        .filter(|line| !is_ours(line))
        .collect();
    compare("standard error", host.stderr.as_bytes(), stderr.as_bytes())?;
    for name in &row.keeps {
        same_files(&kept.join(name), &work.join(name))?;
    }
    check(row, trace)
}

/// Records a row, and replays it: with the same output and status, and twice with the same
/// branches.
fn recorded(machine: &Machine, row: &Row) -> Result<()> {
    let scratch = prepared(row)?;
    let file = scratch.path("run.vbts");
    let recorded = scratch.record(machine, row, &file)?;
    let status = recorded.status.context("killed")?;
    // A replay needs none of the files.
    fs::remove_dir_all(scratch.work())?;
    let replay = |options: &[&str]| -> Result<Run> {
        let mut command = machine.command(["replay"]);
        command.args(options).arg(&file);
        machine::finish_within(command, LIMIT)
    };
    let first = replay(&["--check"])?.expect(0)?;
    if row.records > MAX_COMPARED {
        let second = replay(&["--check", "--jit", "off"])?.expect(0)?;
        return compare(
            "messages",
            first.stderr.as_bytes(),
            second.stderr.as_bytes(),
        );
    }
    let traces = ["first.btrace", "second.btrace"].map(|name| scratch.path(name));
    for trace in &traces {
        let output = trace.to_str().context("a path")?;
        let run = replay(&["--quiet", "--output", output])?.expect(status)?;
        compare("standard output", &recorded.stdout, &run.stdout)?;
        compare(
            "standard error",
            recorded.stderr.as_bytes(),
            run.stderr.as_bytes(),
        )?;
    }
    let [first, second] = &traces;
    ensure!(fs::read(first)? == fs::read(second)?, "the branches differ");
    Ok(())
}

fn compare(what: &str, host: &[u8], guest: &[u8]) -> Result<()> {
    ensure!(
        host == guest,
        "{what} on the host:\n{}\nin the guest:\n{}",
        String::from_utf8_lossy(host),
        String::from_utf8_lossy(guest)
    );
    Ok(())
}

/// Checks that two files, or the files of two directories, are the same.
fn same_files(host: &Path, guest: &Path) -> Result<()> {
    let both =
        [host, guest].map(|path| path.symlink_metadata().context(path.display().to_string()));
    let [a, b] = both;
    let (a, b) = (a?, b?);
    let name = guest.display();
    ensure!(
        a.mode() == b.mode(),
        "{name}: {:o}, {:o}",
        a.mode(),
        b.mode()
    );
    if a.is_dir() {
        let names = |path: &Path| -> Result<Vec<_>> {
            let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name()));
            let mut names = entries.collect::<Result<Vec<_>>>()?;
            names.sort();
            Ok(names)
        };
        let list = names(host)?;
        ensure!(list == names(guest)?, "the files in {name}");
        for entry in list {
            same_files(&host.join(&entry), &guest.join(&entry))?;
        }
    } else if a.is_file() {
        ensure!(
            fs::read(host)? == fs::read(guest)?,
            "the contents of {name}"
        );
    }
    Ok(())
}

/// Whether a file is the program `name`, which may have a version and an architecture in its name:
/// `x86_64-linux-gnu-gcc-12` is `gcc`.
fn is_program(file: &str, name: &str) -> bool {
    let without_version = |word: &str| {
        word.trim_end_matches(|c: char| c.is_ascii_digit())
            .to_owned()
    };
    file == name
        || file
            .split(['-', '.'])
            .any(|word| without_version(word) == without_version(name))
}

/// Checks the trace of a row.
fn check(row: &Row, trace: Trace) -> Result<()> {
    let trace = trace.expect_whole()?;
    for name in &row.executes {
        let mut executed = trace.tasks.iter().flat_map(|task| &task.executed);
        ensure!(
            executed.any(|executed| is_program(executed, name)),
            "{name} is not in {:#?}",
            trace.tasks
        );
    }
    ensure!(
        row.untraced.is_none() == trace.untraced.is_empty(),
        "not traced: {:?}",
        trace.untraced
    );
    let (tasks, records) = (trace.tasks.len(), trace.branches());
    ensure!(tasks >= row.tasks, "{tasks} tasks instead of {}", row.tasks);
    ensure!(
        records <= row.records * FACTOR && row.records <= records * FACTOR,
        "{records} records instead of about {}",
        row.records
    );
    Ok(())
}
