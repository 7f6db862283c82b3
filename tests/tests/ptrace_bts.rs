//! The guest kernel's `ptrace` BTS API, tested by a program inside the guest (guest-kernel/tests), which runs as its only
//! process. A guest for each group of its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine};

/// The groups of tests that need no more than one processor: name, and the kernel that they are for.
const GROUPS: [(&str, &Kernel); 7] = [
    ("basic", &NEW),
    ("signal", &NEW),
    ("virtual", &NEW),
    ("kernel", &NEW),
    ("task", &NEW),
    (
        "2007-11",
        &Kernel {
            variable: "VBTS_KERNEL_2007_11",
            below: "guest/2007-11/vmlinux",
        },
    ),
    (
        "2007-12",
        &Kernel {
            variable: "VBTS_KERNEL_2007_12",
            below: "guest/2007-12/vmlinux",
        },
    ),
];

const NEW: Kernel = Kernel {
    variable: "VBTS_KERNEL",
    below: "guest/vmlinux",
};

/// A kernel with a generation of the API: where [`machine::find`] looks for it.
struct Kernel {
    variable: &'static str,
    below: &'static str,
}

fn main() {
    let arguments = Arguments::from_args();
    let mut trials: Vec<Trial> = GROUPS
        .iter()
        .map(|&(group, kernel)| {
            trial(group, kernel, move |machine, kernel| {
                run(machine, kernel, group)
            })
        })
        .collect();
    trials.push(trial("no_bts", &NEW, no_bts));
    libtest_mimic::run(&arguments, trials).exit();
}

/// A test that is skipped if there is no such kernel, or no machine.
fn trial(
    name: &str,
    kernel: &'static Kernel,
    test: impl FnOnce(&Machine, &Path) -> Result<()> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        let found = Machine::find()
            .and_then(|machine| Ok((machine, machine::find(kernel.variable, kernel.below)?)));
        match found {
            Ok((machine, kernel)) => match test(&machine, &kernel) {
                Ok(()) => Ok(Completion::Completed),
                Err(error) => Err(Failed::from(format!("{error:#}"))),
            },
            Err(reason) => Ok(Completion::ignored_with(format!("skipped: {reason:#}"))),
        }
    })
}

/// What the program is made of besides its main file.
const SOURCES: [&str; 8] = [
    "bts.c",
    "basic.c",
    "signal.c",
    "virtual.c",
    "kernel.c",
    "task.c",
    "smp.c",
    "generations.c",
];

/// Compiles the program.
fn build(directory: &Path) -> Result<PathBuf> {
    guest_program::compile(directory, "ptrace_bts.c", &SOURCES)
}

/// Boots the program as PID 1.
fn boot(
    machine: &Machine,
    kernel: &Path,
    program: &Path,
    options: &[&str],
    argument: &str,
) -> Result<machine::Run> {
    let mut command = guest_program::command(machine, "soft", kernel, program, argument)?;
    command.args(["--timeout", "240"]).args(options);
    machine::finish(command)
}

fn run(machine: &Machine, kernel: &Path, group: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let pattern = format!("{group}.*");
    let list = Command::new(&program)
        .args(["--list", &pattern])
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let names = String::from_utf8(list.stdout)?;
    ensure!(!names.is_empty(), "{pattern} has no tests");

    let run = boot(machine, kernel, &program, &[], &pattern)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    for name in names.lines() {
        let passed = format!(" {name}\r\n");
        ensure!(
            output
                .split_inclusive('\n')
                .any(|line| line.starts_with("ok ") && line.ends_with(&passed)),
            "{name} was not run:\n{output}"
        );
    }
    Ok(())
}

/// With `--bts off` the guest's processor has no Branch Trace Store, and the kernel says so.
fn no_bts(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let run = boot(machine, kernel, &program, &["--bts", "off"], "")?.expect(2)?;
    let output = String::from_utf8_lossy(&run.stdout);
    ensure!(
        output.contains("SKIP no branch trace store: Operation not supported"),
        "{output}"
    );
    Ok(())
}
