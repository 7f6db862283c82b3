//! `vbts record` and `vbts replay` of machines: Debian's unmodified kernel, and vbts's own.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tempfile::TempDir;
use vbts_tests::machine::{self, Machine, Run, TestModule};

use super::stock_kernel::{PATIENCE, file, initrd_with};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("debian_with_typed_input", debian),
            ("the_kernel_of_vbts", own),
        ],
    )
}

/// What the first process does. The kernel of vbts cannot power off.
const JOB: &str = "read line; echo \"typed: $line\"; echo processors: $(nproc)
    head -c 8 /dev/urandom | od; cat /proc/uptime; reboot -f";

/// A machine that was recorded.
struct Recorded {
    directory: TempDir,
    run: Run,
}

impl Recorded {
    /// Records a machine of `kernel`, whose first process does [`JOB`], with typed input.
    fn new(machine: &Machine, kernel: &Path, options: &[&str]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let initrd = initrd_with(directory.path(), JOB, &[])?;
        let mut command = machine.command(["record", "--quiet", "--memory", "512M", "-o"]);
        command.arg(directory.path().join("run.vbts"));
        command.args(options).arg("--kernel").arg(kernel);
        command.arg("--initrd").arg(&initrd);
        let (reader, mut writer) = std::io::pipe()?;
        writer.write_all(b"some words\n")?;
        drop(writer);
        command.stdin(reader);
        let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
        // A replay needs no files.
        fs::remove_file(initrd)?;
        let recorded = Self { directory, run };
        let console = recorded.console();
        ensure!(console.contains("typed: some words"), "{console}");
        Ok(recorded)
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&self.run.stdout).into_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command of vbts about the recording.
    fn ask(&self, machine: &Machine, words: &[&str], name: &str) -> Result<Run> {
        let mut command: Command = machine.command(words);
        command.arg(self.path(name));
        command.env("XDG_CACHE_HOME", self.directory.path());
        machine::finish_within(command, PATIENCE)?.expect(0)
    }

    /// Replays the machine, and compares its console.
    fn compare(&self, machine: &Machine) -> Result<()> {
        let replayed = self.ask(machine, &["replay", "--quiet"], "run.vbts")?;
        ensure!(
            replayed.stdout == self.run.stdout,
            "{replayed:?}\ninstead of\n{:?}",
            self.run
        );
        let checked = self.ask(machine, &["replay", "--check"], "run.vbts")?;
        ensure!(checked.stdout.is_empty(), "{checked:?}");
        let inputs = self.ask(machine, &["report", "inputs"], "run.vbts")?;
        ensure!(inputs.printed().contains("11 bytes"), "{inputs:?}");
        Ok(())
    }

    /// Checks that a report has the kernel's functions.
    fn check_functions(&self, machine: &Machine, name: &str) -> Result<()> {
        let functions = self.ask(
            machine,
            &["report", "functions", "--json", "--limit", "100000"],
            name,
        )?;
        let rows: Vec<Value> = std::str::from_utf8(&functions.stdout)?
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        let named = |row: &&Value| {
            let name = row["name"].as_str().unwrap_or_default();
            !name.is_empty() && !name.starts_with('[') && !name.starts_with("0x")
        };
        let count = rows.iter().filter(named).count();
        ensure!(
            count > 1000 && count > rows.len() / 2,
            "{count} of {} functions have names",
            rows.len()
        );
        for function in ["vfs_read", "do_sys_openat2", "kernel_init"] {
            ensure!(
                rows.iter().any(|row| row["name"] == function),
                "{function} is not among {count} functions"
            );
        }
        Ok(())
    }
}

/// The kernel is a bzImage without symbols, whose names a replay finds in the guest's memory.
fn debian(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, &file("vmlinuz")?, &["--smp", "2"])?;
    let console = recorded.console();
    ensure!(console.contains("processors: 2"), "{console}");
    recorded.compare(machine)?;
    recorded.check_functions(machine, "run.vbts")
}

fn own(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, machine.kernel(), &[])?;
    recorded.compare(machine)?;
    let trace = recorded.path("run.btrace");
    let trace = trace.to_str().unwrap_or_default();
    let words = ["replay", "--quiet", "--record", trace];
    let replayed = recorded.ask(machine, &words, "run.vbts")?;
    ensure!(replayed.stdout == recorded.run.stdout, "{replayed:?}");
    recorded.check_functions(machine, "run.btrace")
}
