//! A file that vbts writes has no other use, and keeps its contents until the run begins.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

/// Exit status of bad usage.
const USAGE: i32 = 125;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("used_twice", used_twice),
            ("within_a_share", within_a_share),
            ("run_that_does_not_begin", run_that_does_not_begin),
            ("regular_use", regular_use),
        ],
    )
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a strange directory")
}

fn used_twice(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("file");
    fs::copy("/bin/true", &file)?;
    let before = fs::read(&file)?;
    let link = directory.path().join("link");
    fs::hard_link(&file, &link)?;
    let (file, link) = (text(&file)?, text(&link)?);
    let kernel = text(machine.kernel())?;
    for (arguments, words) in [
        (
            &["run", "--kernel", kernel, "--disk", file, "--console", link][..],
            ["--disk", "--console"],
        ),
        (
            &["run", "--kernel", file, "--console", file],
            ["--kernel", "--console"],
        ),
        (
            &[
                "run",
                "--kernel",
                kernel,
                "--initrd",
                file,
                "--console",
                link,
            ],
            ["--initrd", "--console"],
        ),
        (
            &["trace", "--output", link, "--", file],
            ["--output", "the program"],
        ),
        (
            &[
                "trace",
                "--output",
                file,
                "--console",
                link,
                "--",
                "/bin/true",
            ],
            ["--output", "--console"],
        ),
        (
            &[
                "trace",
                "--kernel",
                file,
                "--output",
                file,
                "--",
                "/bin/true",
            ],
            ["--kernel", "--output"],
        ),
        (
            &["test", "--kernel", file, "--output", file],
            ["--kernel", "--output"],
        ),
        (
            &[
                "trace",
                "--report",
                "functions",
                "--output",
                link,
                "--",
                file,
            ],
            ["--output", "the program"],
        ),
        (
            &["report", "text", file, "--output", link],
            ["--output", "FILE"],
        ),
        (
            &["report", "diff", kernel, file, "--output", link],
            ["--output", "OTHER"],
        ),
        (
            &["report", "text", kernel, "--kernel", file, "--output", file],
            ["--output", "--kernel"],
        ),
    ] {
        let run = machine.run(arguments)?.expect(USAGE)?;
        for word in words {
            ensure!(run.stderr.contains(word), "{}", run.stderr);
        }
        ensure!(fs::read(file)? == before, "{arguments:?}");
    }
    let mut command = machine.command(["trace", "--output", link, "--", "/bin/cat"]);
    command.stdin(Stdio::from(fs::File::open(file)?));
    let run = machine::finish(command)?.expect(USAGE)?;
    ensure!(run.stderr.contains("standard input"), "{}", run.stderr);
    ensure!(fs::read(file)? == before, "standard input");
    Ok(())
}

fn within_a_share(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("trace");
    fs::write(&trace, "before")?;
    let share = format!("{}:rw", text(directory.path())?);
    let arguments = ["trace", "--share", &share, "--output", text(&trace)?];
    let run = machine.run(arguments.iter().chain(&["--", "/bin/true"]))?;
    let run = run.expect(USAGE)?;
    ensure!(
        run.stderr.contains("--output") && run.stderr.contains("--share"),
        "{}",
        run.stderr
    );
    ensure!(fs::read(&trace)? == b"before");
    // The guest only reads there.
    let share = text(directory.path())?;
    let arguments = ["trace", "--share", share, "--output", text(&trace)?];
    let run = machine.run(arguments.iter().chain(&["--", "/bin/true"]))?;
    run.expect(0)?;
    Ok(())
}

fn run_that_does_not_begin(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    for name in ["trace", "console", "kernel"] {
        fs::write(path(name), "before")?;
    }
    let (trace, console, kernel) = (path("trace"), path("console"), path("kernel"));
    let (trace, console, kernel) = (text(&trace)?, text(&console)?, text(&kernel)?);
    let outputs = ["--output", trace, "--console", console];
    for (command, rest) in [
        ("trace", &["--share", "/nonexistent", "--", "/bin/true"][..]),
        ("trace", &["--", "/nonexistent"]),
    ] {
        let run = machine.run([command].iter().chain(&outputs).chain(rest))?;
        ensure!(run.status != Some(0), "{}", run.stderr);
    }
    let run = machine.run(["run", "--kernel", kernel, "--console", console])?;
    run.expect(USAGE)?;
    for name in ["trace", "console"] {
        ensure!(fs::read(path(name))? == b"before", "{name}");
    }
    Ok(())
}

fn regular_use(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("trace");
    fs::write(&trace, "x".repeat(1 << 20))?;
    let mut traces = Vec::new();
    for _ in 0..2 {
        machine
            .trace("raw", &trace, &[], &["/bin/true"])?
            .expect(0)?;
        traces.push(fs::read(&trace)?);
    }
    ensure!(traces[0] == traces[1] && traces[0].len() < 1 << 20);
    let null = ["--console", "/dev/null"];
    let run = machine.trace("json", Path::new("/dev/null"), &null, &["/bin/true"])?;
    run.expect(0)?;
    // Standard output may be a file or a pipe by its name, too.
    for stdout in [Stdio::piped(), Stdio::from(fs::File::create(&trace)?)] {
        let mut command = machine.command(["trace", "--format", "json", "--output"]);
        command
            .args(["/dev/stdout", "--", "/bin/true"])
            .stdout(stdout);
        let status = command.stderr(Stdio::null()).spawn()?.wait_with_output()?;
        ensure!(status.status.success(), "{status:?}");
    }
    ensure!(fs::read_to_string(&trace)?.ends_with("}\n"));
    Ok(())
}
