//! The functions of a Python program on a recording, with CPython 3.13: of this host, or of the
//! root `VBTS_PYTHON_ROOT`, which `ci/suite python-frames` makes.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Skip, TestModule};

use super::{both, check_order, needs_gdb};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("functions_have_files_and_lines", frames)])
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

fn frames(machine: &Machine) -> Result<()> {
    needs_gdb()?;
    let root = std::env::var_os("VBTS_PYTHON_ROOT").map_or_else(|| "/".into(), PathBuf::from);
    let python = root.join(PYTHON);
    if !python.exists() {
        return Err(Skip("there is no CPython 3.13: see ci/suite python-frames".into()).into());
    }
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let mut command = machine.command(["record", "--quiet", "--root"]);
    command.arg(&root).arg("-o").arg(file("run.vbts")).arg("--");
    command
        .arg(format!("/{PYTHON}"))
        .args(["-S", "-E", "-c", SCRIPT]);
    machine::finish(command)?.expect(0)?;
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
