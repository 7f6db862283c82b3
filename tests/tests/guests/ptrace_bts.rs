//! Runs the cases of `vbts test` (guest-kernel/tests) for the guest kernel's `ptrace` BTS API, one
//! group in each test. Also tests `vbts test` itself with a suite whose cases crash or hang.

mod parts;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine, Run, Skip, TestModule};

/// A generation of the API, and how [`machine::find`] finds its kernel: a variable, and a file in
/// the directory of the guest.
struct Kernel {
    api: &'static str,
    variable: &'static str,
    file: &'static str,
}

const KERNELS: [Kernel; 4] = [
    Kernel {
        api: "new",
        variable: "VBTS_KERNEL",
        file: "vmlinux",
    },
    Kernel {
        api: "2007-11",
        variable: "VBTS_KERNEL_2007_11",
        file: "2007-11/vmlinux",
    },
    Kernel {
        api: "2007-man",
        variable: "VBTS_KERNEL_2007_MAN",
        file: "2007-man/vmlinux",
    },
    Kernel {
        api: "2007-12",
        variable: "VBTS_KERNEL_2007_12",
        file: "2007-12/vmlinux",
    },
];

/// Time limit of a group, or of all groups on several processors, on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(900);

type Test = fn(&Machine, &Path) -> Result<()>;

/// Tests of the command, with the new API's kernel.
const COMMAND: [(&str, Test); 12] = [
    ("several_processors", several_processors),
    ("two_kernels", two_kernels),
    ("bad_cases", bad_cases),
    ("retries", retries),
    ("junit", junit),
    ("parts", parts::parts),
    ("matrix", parts::matrix),
    ("time_limit", time_limit),
    ("interrupted", interrupted),
    ("no_bts", no_bts),
    ("no_boot", no_boot),
    ("another_generation", another_generation),
];

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    let mut tests = Vec::new();
    for kernel in &KERNELS {
        for group in groups(kernel.api).unwrap_or_default() {
            let name = group.clone();
            let test = move |machine: &Machine, kernel: &Path| whole_group(machine, kernel, &group);
            tests.push((name, on(kernel, test)));
        }
    }
    for (name, test) in COMMAND {
        tests.push((format!("command::{name}"), on(&KERNELS[0], test)));
    }
    for kernel in &KERNELS {
        let prefix = match kernel.api {
            "new" => String::new(),
            earlier => format!("{earlier}::"),
        };
        let test = |machine: &Machine, file: &Path| netburst(machine, kernel, file);
        tests.push((format!("{prefix}pentium4-64"), on(kernel, test)));
        for model in ["core2", "pentium4", "pentium-m"] {
            let test: machine::Test = Box::new(move |machine| on_i386(machine, kernel, model));
            tests.push((format!("{prefix}i386::{model}"), test));
        }
    }
    machine::trials(module, tests)
}

/// A test that is skipped if the kernel or the suite is missing.
fn on(
    kernel: &'static Kernel,
    test: impl Fn(&Machine, &Path) -> Result<()> + Send + 'static,
) -> machine::Test {
    Box::new(move |machine| {
        let found = machine::find("VBTS_SUITE", "guest/ptrace_bts")
            .and_then(|_| machine::find(kernel.variable, &format!("guest/{}", kernel.file)))
            .map_err(|reason| Skip(format!("{reason:#}")))?;
        test(machine, &found)
    })
}

/// `vbts test` on `kernel`, with its console in `directory`.
fn command(
    machine: &Machine,
    directory: &Path,
    kernel: &Path,
    options: &[&str],
) -> Result<Command> {
    let mut command = machine.command(["test", "--accel", machine.accel(), "--kernel"]);
    command
        .arg(kernel)
        .arg("--console")
        .arg(directory.join("console"))
        .args(options)
        .env(
            "VBTS_SUITE",
            machine::find("VBTS_SUITE", "guest/ptrace_bts")?,
        );
    Ok(command)
}

/// The names of the cases for a generation.
fn names(api: &str) -> Result<Vec<String>> {
    let machine = Machine::find()?;
    let run = machine::finish({
        let mut command = machine.command(["test", "--accel", "soft", "--list", "--api", api]);
        command.env(
            "VBTS_SUITE",
            machine::find("VBTS_SUITE", "guest/ptrace_bts")?,
        );
        command
    })?
    .expect(0)?;
    Ok(String::from_utf8(run.stdout)?
        .lines()
        .map(Into::into)
        .collect())
}

fn groups(api: &str) -> Result<Vec<String>> {
    let mut groups: Vec<String> = names(api)?
        .iter()
        .filter_map(|name| Some(name.split_once('.')?.0.to_owned()))
        .collect();
    groups.dedup();
    Ok(groups)
}

/// The result lines of cases, without their numbers.
fn results(run: &Run) -> Vec<String> {
    String::from_utf8_lossy(&run.stdout)
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix("  ")?;
            let (result, rest) = line.split_once("ok ")?;
            let (_, name) = rest.split_once(' ')?;
            matches!(result, "" | "not ").then(|| format!("{result}ok {name}"))
        })
        .collect()
}

fn check_results(run: &Run, expected: &[&str]) -> Result<()> {
    let results = results(run);
    ensure!(results == expected, "{results:#?}\n{}", run.stderr);
    Ok(())
}

fn whole_group(machine: &Machine, kernel: &Path, group: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let api = KERNELS
        .iter()
        .map(|kernel| kernel.api)
        .find(|api| group.starts_with(api))
        .unwrap_or("new");
    let command = command(machine, directory.path(), kernel, &["--filter", group])?;
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    let results = results(&run);
    let wanted: Vec<String> = names(api)?
        .into_iter()
        .filter(|name| name.split_once('.').is_some_and(|(g, _)| g == group))
        .collect();
    ensure!(results.len() == wanted.len(), "{results:#?}");
    for name in wanted {
        let skipped = format!("ok {name} # SKIP ");
        ensure!(
            results
                .iter()
                .any(|line| *line == format!("ok {name}") || line.starts_with(&skipped)),
            "{name}: {results:#?}"
        );
    }
    Ok(())
}

/// With `--smp`, the cases that need several processors are not skipped.
fn several_processors(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let command = command(
        machine,
        directory.path(),
        kernel,
        &["--smp", "4", "--filter", "smp", "--filter", "hotplug"],
    )?;
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    let results = results(&run);
    ensure!(
        results.len() > 3 && !results.iter().any(|line| line.contains('#')),
        "{results:#?}"
    );
    Ok(())
}

/// On NetBurst all cases pass, or are skipped for a reason that holds there.
fn netburst(machine: &Machine, kernel: &Kernel, file: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let options = ["--cpu", "pentium4-64", "--smp", "2"];
    all_cases(
        command(machine, directory.path(), file, &options)?,
        kernel.api,
    )
}

/// So do all of a 32-bit kernel, on each processor of its time.
fn on_i386(machine: &Machine, kernel: &Kernel, model: &str) -> Result<()> {
    let suite = machine::find_i386("VBTS_SUITE_I386", "ptrace_bts")?;
    let file = machine::find_i386(&format!("{}_I386", kernel.variable), kernel.file)?;
    let directory = tempfile::tempdir()?;
    let options = ["--cpu", model, "--smp", "2"];
    let mut command = command(machine, directory.path(), &file, &options)?;
    command.env("VBTS_SUITE", suite);
    all_cases(command, kernel.api)
}

/// Runs a command that tests all cases for a generation. Those that are skipped have a known
/// reason, and none of an earlier generation is.
fn all_cases(command: Command, api: &str) -> Result<()> {
    let wanted = match api {
        "new" => 137,
        earlier => names(earlier)?.len(),
    };
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    let results = results(&run);
    let reasons = [
        "perf does not use this processor's Branch Trace Store",
        "this kernel has no page-table isolation",
        "this kernel has no control groups",
        "this kernel has no userfaultfd",
        "this kernel has no SELinux",
        "this kernel cannot test a suspend",
        "this kernel injects no failures",
        "this kernel has no x32 ABI",
        "a 32-bit kernel has no other code",
    ];
    let known = |line: &&String| match line.split_once(" # SKIP ") {
        Some((_, reason)) => reasons.contains(&reason),
        None => true,
    };
    let passed = results.iter().filter(|line| !line.contains('#')).count();
    ensure!(
        passed >= wanted && results.iter().all(|line| known(&line)),
        "{results:#?}"
    );
    Ok(())
}

/// `vbts test` with guest-kernel/tests/bad_suite.c.
fn bad(machine: &Machine, directory: &Path, kernel: &Path, options: &[&str]) -> Result<Command> {
    let program = guest_program::compile(directory, "bad_suite.c", &[])?;
    let mut command = command(machine, directory, kernel, options)?;
    command.env("VBTS_SUITE", program);
    Ok(command)
}

/// A case that crashes the guest has failed, and another guest runs the cases after it.
fn bad_cases(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let command = bad(machine, directory.path(), kernel, &["--case-timeout", "10"])?;
    let run = machine::finish(command)?.expect(1)?;
    check_results(
        &run,
        &[
            "ok bad.pass",
            "not ok bad.fail",
            "not ok bad.crash # ERROR Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
            "ok bad.pass_again",
            "not ok bad.hang # TIMEOUT no result after 10 s",
            "not ok bad.warn",
            "not ok bad.reset # ERROR the guest ended or was reset",
            "ok good.pass",
            "ok release.known",
            "ok flaky.first",
            "not ok flaky.alone",
        ],
    )?;
    let text = String::from_utf8_lossy(&run.stdout);
    for line in [
        "  # bad.fail: bad_suite.c:1: <a> & \"b\"",
        "  # bad.warn: the kernel complained: WARNING: CPU: 0 PID: 1 at bad_suite.c:2",
        "not ok 1 bad",
        "ok 2 good",
    ] {
        ensure!(text.lines().any(|l| l == line), "no '{line}' in:\n{text}");
    }
    for message in [
        "failed: bad.fail, bad.crash, bad.hang, bad.warn, bad.reset, flaky.alone",
        "passed: 5, failed: 6, skipped: 0",
        "console log: ",
    ] {
        ensure!(run.stderr.contains(message), "{}", run.stderr);
    }
    let console = std::fs::read_to_string(directory.path().join("console"))?;
    ensure!(console.contains("Kernel panic") && console.contains("=== guest 5: "));
    Ok(())
}

/// A case that fails runs again, in a guest of its own. It has failed in any case, and the report
/// says whether another run passed.
fn retries(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let report = directory.path().join("report.xml");
    let options = [
        "--retries",
        "2",
        "--filter",
        "flaky",
        "--filter",
        "bad.[cf]*",
    ];
    let mut command = bad(machine, directory.path(), kernel, &options)?;
    command.args(["--report", "junit", "--output"]).arg(&report);
    let run = machine::finish(command)?.expect(1)?;
    check_results(
        &run,
        &[
            "not ok bad.fail",
            "not ok bad.crash # ERROR Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
            "ok flaky.first",
            "not ok flaky.alone",
        ],
    )?;
    let text = String::from_utf8_lossy(&run.stdout);
    for line in [
        "  # bad.fail: 3 runs failed",
        "  # bad.crash: 3 runs failed",
        "  # flaky.alone: flaky: run 2 did not fail",
    ] {
        ensure!(text.lines().any(|l| l == line), "no '{line}' in:\n{text}");
    }
    for message in [
        "failed: bad.fail, bad.crash, flaky.alone\n",
        "flaky: flaky.alone\n",
        "passed: 1, failed: 3, skipped: 0",
    ] {
        ensure!(run.stderr.contains(message), "{}", run.stderr);
    }
    let text = std::fs::read_to_string(&report)?;
    // The last two are of the cases that failed three times.
    for (element, count) in [("flakyFailure", 1), ("rerunFailure", 2), ("rerunError", 2)] {
        let found = text.matches(&format!("<{element} ")).count();
        ensure!(found == count, "{found} {element}, not {count}:\n{text}");
    }
    let merged = |options: &[&str]| {
        let mut command = machine.command(["test", "--merge"]);
        command.arg(&report).args(options);
        machine::finish(command)?.expect(1)
    };
    let run = merged(&[])?;
    let message = "flaky: ptrace_bts.flaky.alone\n";
    ensure!(run.stderr.contains(message), "{}", run.stderr);
    let run = merged(&["--report", "kcidb", "--kcidb-build", "vbts:retries"])?;
    let results: serde_json::Value = serde_json::from_slice(&run.stdout)?;
    let tests = results["tests"].as_array().map_or(&[][..], Vec::as_slice);
    let flaky = tests.iter().filter(|test| test["misc"]["flaky"] == true);
    let flaky: Vec<_> = flaky.map(|test| (&test["path"], &test["status"])).collect();
    ensure!(
        matches!(&flaky[..], [(path, status)]
            if *path == "ptrace_bts.flaky.alone" && *status == "FAIL"),
        "{results}"
    );
    Ok(())
}

/// With `--output`, the file has the JUnit report, and standard output still has the KTAP lines.
fn junit(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let report = directory.path().join("report.xml");
    let filter = ["--filter", "bad.[fp]*", "--filter", "*.warn"];
    let mut command = bad(machine, directory.path(), kernel, &filter)?;
    command.args(["--report", "junit", "--output"]).arg(&report);
    let run = machine::finish(command)?.expect(1)?;
    check_results(
        &run,
        &[
            "ok bad.pass",
            "not ok bad.fail",
            "ok bad.pass_again",
            "not ok bad.warn",
        ],
    )?;
    let text = std::fs::read_to_string(&report)?;
    for part in [
        "<testsuite name=\"ptrace_bts.bad\" tests=\"4\" skipped=\"0\" errors=\"0\" failures=\"2\"",
        "<testcase name=\"pass\" classname=\"ptrace_bts.bad\"",
        "message=\"bad_suite.c:1: &lt;a&gt; &amp; &quot;b&quot;\"",
        "<system-out>WARNING: CPU: 0 PID: 1 at bad_suite.c:2</system-out>",
    ] {
        ensure!(text.contains(part), "no '{part}' in:\n{text}");
    }
    Ok(())
}

/// Several kernels are tested one after the other, and compared.
fn two_kernels(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (other, report) = (
        directory.path().join("other"),
        directory.path().join("report.xml"),
    );
    std::fs::copy(kernel, &other)?;
    let filter = ["--filter", "basic.[cw]*"];
    let mut command = command(machine, directory.path(), kernel, &filter)?;
    command.arg("--kernel").arg(&other);
    command.args(["--report", "junit", "--output"]).arg(&report);
    let run = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8_lossy(&run.stdout);
    let second = format!("ok 2 basic ({})", other.display());
    ensure!(text.starts_with("KTAP version 1\n1..2\n"), "{text}");
    ensure!(text.lines().any(|line| line == second), "{text}");
    let same = "all cases have the same outcome on all kernels";
    ensure!(run.stderr.contains(same), "{}", run.stderr);
    let report = std::fs::read_to_string(&report)?;
    let suite = format!("<testsuite name=\"ptrace_bts.basic ({})\"", other.display());
    ensure!(report.contains(&suite), "{report}");
    Ok(())
}

/// When the time limit is reached, the running case has failed, and the report has the others as
/// not run.
fn time_limit(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let options = ["--timeout", "10", "--filter", "*.hang", "--filter", "good"];
    let command = bad(machine, directory.path(), kernel, &options)?;
    let run = machine::finish(command)?.expect(124)?;
    check_results(
        &run,
        &[
            "not ok bad.hang # TIMEOUT the time limit was reached",
            "not ok good.pass # ERROR not run: the time limit was reached",
        ],
    )
}

/// SIGINT ends the guest, and the report is complete.
fn interrupted(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let console = directory.path().join("console");
    let mut command = bad(
        machine,
        directory.path(),
        kernel,
        &["--filter", "*.hang", "--report", "junit"],
    )?;
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start vbts")?;
    let mut child = machine::Killed(child);
    let began = std::time::Instant::now();
    while !std::fs::read_to_string(&console).is_ok_and(|text| text.contains("start bad.hang")) {
        ensure!(
            began.elapsed() < Duration::from_secs(60),
            "the case did not start within a minute"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.0.id())?);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
    let status = machine::wait(&mut child.0, Duration::from_secs(30))?;
    ensure!(status == Some(130), "{status:?}");
    let mut text = String::new();
    if let Some(mut stdout) = child.0.stdout.take() {
        std::io::Read::read_to_string(&mut stdout, &mut text)?;
    }
    ensure!(
        text.contains("<error message=\"interrupted by SIGINT\" type=\"not run\"/>")
            && text.ends_with("</testsuites>\n"),
        "{text}"
    );
    Ok(())
}

/// Without a Branch Trace Store the report has one line, which skips all cases.
fn no_bts(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let command = command(machine, directory.path(), kernel, &["--bts", "off"])?;
    let run = machine::finish(command)?.expect(125)?;
    ensure!(
        run.stdout
            == b"KTAP version 1\n1..0 # SKIP no branch trace store: Operation not supported\n",
        "{}",
        String::from_utf8_lossy(&run.stdout)
    );
    let message = run.stderr.lines().last().unwrap_or_default();
    ensure!(message.contains("no case was run"), "{}", run.stderr);
    Ok(())
}

/// If the kernel does not boot, no case has failed.
fn no_boot(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let options = ["--append", "rdinit=/none init=/none"];
    let command = command(machine, directory.path(), kernel, &options)?;
    let run = machine::finish(command)?.expect(255)?;
    ensure!(run.stdout.is_empty(), "{run:?}");
    ensure!(run.stderr.contains("Kernel panic"), "{}", run.stderr);
    Ok(())
}

fn another_generation(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let command = command(machine, directory.path(), kernel, &["--api", "2007-12"])?;
    let run = machine::finish(command)?.expect(125)?;
    ensure!(
        run.stderr.contains("has the API of 'new'"),
        "{}",
        run.stderr
    );
    Ok(())
}
