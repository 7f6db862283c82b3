//! The functions of a Python program on a recording, with CPython 3.13: of this host, or of the
//! root `VBTS_PYTHON_ROOT`, which `ci/suite python-frames` makes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use tempfile::TempDir;
use vbts_tests::machine::{self, Machine, Skip, TestModule};

use super::{both, check_order, needs_gdb};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("functions_have_files_and_lines", frames),
            ("the_stack_at_a_crash_has_functions", crash),
            ("another_version_is_named", other_version),
        ],
    )
}

const PYTHON: &str = "usr/bin/python3.13";

const SCRIPT: &str = "import posix
class Shop:
    def price(self):
        return [posix.getppid()
                for _ in range(1)]
def größe(n):
    return Shop().price()
größe(2)
";

const CRASH: &str = "import posix
def fail(n):
    if n == 0:
        posix.abort()
    fail(n - 1)
fail(1)
";

/// The directory with Python.
fn root() -> PathBuf {
    std::env::var_os("VBTS_PYTHON_ROOT").map_or_else(|| "/".into(), PathBuf::from)
}

/// Records a script, which ends with a status, as `run.vbts` in a directory.
fn record(machine: &Machine, script: &str, status: i32) -> Result<TempDir> {
    needs_gdb()?;
    if !root().join(PYTHON).exists() {
        return Err(Skip("there is no CPython 3.13: see ci/suite python-frames".into()).into());
    }
    let directory = tempfile::tempdir()?;
    let mut command = machine.command(["record", "--quiet", "--root"]);
    command.arg(root()).arg("-o");
    command.arg(directory.path().join("run.vbts")).arg("--");
    command
        .arg(format!("/{PYTHON}"))
        .args(["-S", "-E", "-c", script]);
    machine::finish(command)?.expect(status)?;
    Ok(directory)
}

/// `vbts report where` shows the functions at the end of a recording, but not of a trace.
fn crash(machine: &Machine) -> Result<()> {
    let directory = record(machine, CRASH, 128 + 6)?;
    let file = |name: &str| directory.path().join(name);
    let report = |name: &str| {
        let mut command = machine.command(["report", "where", "--root"]);
        command.arg(root()).arg(file(name));
        Ok::<_, anyhow::Error>(both(&machine::finish(command)?.expect(0)?))
    };
    let expected = [
        "stack:",
        "_PyEval_EvalFrameDefault",
        "  Python:",
        "     0  fail <string>:4",
        "     1  fail <string>:5",
        "     2  <module> <string>:6",
    ];
    check_order(&report("run.vbts")?, &expected)?;
    let mut command = machine.command(["replay", "--quiet", "--output"]);
    command.arg(file("run.btrace")).arg(file("run.vbts"));
    machine::finish(command)?;
    let text = report("run.btrace")?;
    ensure!(text.contains("which a trace does not have"), "{text}");
    ensure!(text.contains("_PyEval_EvalFrameDefault"), "{text}");
    ensure!(!text.contains("fail <string>"), "{text}");
    Ok(())
}

/// The stack of another version of CPython has no functions, and the report says why. It says
/// nothing else.
fn other_version(machine: &Machine) -> Result<()> {
    needs_gdb()?;
    let python = Path::new("/usr/bin/python3");
    let target = fs::read_link(python);
    if !target.is_ok_and(|target| target.ends_with("python3.11")) {
        return Err(Skip("/usr/bin/python3 is not CPython 3.11".into()).into());
    }
    let directory = tempfile::tempdir()?;
    let recording = directory.path().join("run.vbts");
    let mut command = machine.command(["record", "--quiet", "-o"]);
    command.arg(&recording).arg("--").arg(python);
    command.args(["-S", "-E", "-c", "for i in range(99999): pass"]);
    machine::finish(command)?.expect(0)?;
    let mut command = machine.command(["report", "where", "--to", "1000000"]);
    command.arg(&recording);
    let run = machine::finish(command)?.expect(0)?;
    let stdout = String::from_utf8_lossy(&run.stdout);
    ensure!(stdout.contains("_PyEval_EvalFrameDefault"), "{stdout}");
    ensure!(!stdout.contains("Python:"), "{stdout}");
    let expected = "vbts: the Python functions of the stack are not shown: the program has no \
                    CPython 3.13 with a global interpreter lock, whose frames are known here\n";
    ensure!(run.stderr == expected, "{}", run.stderr);
    Ok(())
}

fn frames(machine: &Machine) -> Result<()> {
    let directory = record(machine, SCRIPT, 0)?;
    let file = |name: &str| directory.path().join(name);
    let debug = |commands: &str| {
        fs::write(file("commands.gdb"), format!("goto end\n{commands}"))?;
        let mut command = machine.command(["debug", "--batch", "-x"]);
        command.arg(file("commands.gdb")).arg(file("run.vbts"));
        machine::finish(command)
    };
    let run = debug("break getppid\nreverse-continue\npython-frames\n")?.expect(0)?;
    let expected = [
        "#0  Shop.price <string>:4",
        "#1  größe <string>:7",
        "#2  <module> <string>:8",
    ];
    check_order(&both(&run), &expected)?;
    let text = both(&debug("python-frames\n")?.expect(0)?);
    ensure!(text.contains("executes no Python"), "{text}");
    Ok(())
}
