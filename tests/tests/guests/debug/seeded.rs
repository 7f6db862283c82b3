//! Bugs in real programs, in plug-ins of some, and in kernels: a session of five commands leads
//! from the crash to the line that has overwritten a pointer.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use tempfile::tempdir;
use vbts_tests::machine::{self, Machine, Skip, TestModule};

use super::{both, check_order, debug, guide_in, needs_gdb};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_builtin_of_bash", |machine| find(machine, &BASH)),
            ("an_extension_of_sqlite", |machine| find(machine, &SQLITE)),
            ("a_kernel", |machine| find(machine, &KERNEL)),
            ("linux", linux),
            ("debians_sqlite", |machine| {
                of_debian(machine, "SQLite", "sqlite/sqlite3")
            }),
            ("debians_bash", |machine| {
                of_debian(machine, "bash", "bash/bash")
            }),
            ("debians_python", |machine| {
                of_debian(machine, "Python", "python/python")
            }),
        ],
    )
}

/// The end of the line with the bug.
const GUILTY: &str = "// guilty";
/// How plug-ins are compiled.
const SHARED: &[&str] = &["-fPIC", "-shared"];

/// A bug, and the way to it.
struct Case {
    /// The name of its source in tests/seeded.
    source: &'static str,
    /// Options of gcc.
    compiled: &'static [&'static str],
    /// Options of `vbts record` behind the name of the recording. `OBJECT` stands for what was
    /// compiled.
    run: &'static [&'static str],
    /// The status of the run.
    status: i32,
    /// GDB's commands, and what they show, the guilty line apart.
    commands: &'static str,
    shown: &'static [&'static str],
}

const BASH: Case = Case {
    source: "bash.c",
    compiled: SHARED,
    run: &[
        "--",
        "bash",
        "-c",
        "enable -f OBJECT note; note one; note two; note 'three hundred and seven'; note four; note",
    ],
    status: 139,
    commands: "frame function note\nprint *notes->next\nwatch -l notes->next->next
reverse-continue\nup\n",
    shown: &["note (words=0x0)", "{text = \"three hundre\", next = 0x"],
};

const SQLITE: Case = Case {
    source: "sqlite.c",
    compiled: SHARED,
    run: &[
        "--",
        "sqlite3",
        ":memory:",
        "-cmd",
        ".load OBJECT sqlite3_extension_init",
        "select tally(value) from (select 1 as value union all select 6 union all select 2)",
    ],
    status: 139,
    commands: "bt 1\nprint tally\nwatch tally.counted\nreverse-continue\nprint grade\n",
    shown: &["in ?? ()", "<add_one+1>, total = 3", "<add_one>"],
};

/// The machine resets.
const KERNEL: Case = Case {
    source: "kernel.c",
    compiled: &[
        "-ffreestanding",
        "-fno-stack-protector",
        "-fno-pie",
        "-fcf-protection=none",
        "-mno-red-zone",
        "-no-pie",
        "-static",
        "-nostdlib",
        "-Wl,-Ttext=0x1000000",
        "-Wl,--build-id=none",
    ],
    run: &["--memory", "64M", "--kernel", "OBJECT"],
    status: 255,
    commands: "bt 2\nprint tasks[2]\nwatch tasks[2].run\nreverse-continue\nbt 2\n",
    shown: &["kernel ()", "{name = \"network \", run = 0x"],
};

/// A program of Debian with a bug, below the directory that `ci/suite seeded-crashes` makes.
fn of_debian(machine: &Machine, heading: &str, program: &str) -> Result<()> {
    let built = machine::find("VBTS_SEEDED_CRASHES", "seeded-crashes");
    let built = built.map(|directory| directory.join(program));
    let Some(built) = built.ok().filter(|path| path.exists()) else {
        let why = format!("there is no seeded-crashes/{program}: ci/suite seeded-crashes");
        return Err(Skip(why).into());
    };
    by_guide(machine, heading, &built)
}

/// Linux with a bug, if it was built.
fn linux(machine: &Machine) -> Result<()> {
    let below = "guest-debug-info-gdb-scripts/with/linux/vmlinux";
    let Ok(built) = machine::find("VBTS_SEEDED_LINUX", below) else {
        let why = format!("there is no {below}: docs/guide/debug-a-recording.md");
        return Err(Skip(why).into());
    };
    if Command::new("cpio").arg("--version").output().is_err() {
        return Err(Skip("cpio is not installed".into()).into());
    }
    by_guide(machine, "Linux", &built)
}

/// The section of the guide with the way to the bug of a program.
fn by_guide(machine: &Machine, heading: &str, program: &Path) -> Result<()> {
    let directory = tempdir()?;
    let name = program.file_name().context("a name")?;
    symlink(program, directory.path().join(name))?;
    guide_in(machine, heading, directory.path())
}

fn find(machine: &Machine, case: &Case) -> Result<()> {
    needs_gdb()?;
    let directory = tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeded")
        .join(case.source);
    let text = fs::read_to_string(&source)?;
    let object = file("object.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-g", "-O0", "-U_FORTIFY_SOURCE", "-o"])
        .arg(&object);
    gcc.args(case.compiled).arg(&source);
    let compiled = machine::finish(gcc)?;
    if compiled.stderr.contains("sqlite3ext.h: No such file") {
        return Err(Skip("the headers of SQLite are not installed".into()).into());
    }
    compiled.expect(0)?;
    let object = object.to_str().context("a path")?;
    if let ["--", program, ..] = case.run
        && Command::new(program).arg("--version").output().is_err()
    {
        return Err(Skip(format!("{program} is not installed")).into());
    }
    let mut command = machine.command(["record", "--quiet", "-o"]);
    command.arg(file("run.vbts"));
    command.args(case.run.iter().map(|word| word.replace("OBJECT", object)));
    machine::finish(command)?.expect(case.status)?;
    fs::write(file("commands.gdb"), case.commands)?;
    ensure!(case.commands.lines().count() == 5);
    let run = debug(machine, &[], &file("run.vbts"), &file("commands.gdb"))?;
    let line = text.lines().position(|line| line.ends_with(GUILTY));
    let guilty = format!("{}:{}", case.source, line.context("no guilty line")? + 1);
    let (words, text) = (["Old value", "New value"], both(&run.expect(0)?));
    check_order(&text, case.shown)?;
    check_order(&text, &[&words[..], &[&guilty]].concat())
}
