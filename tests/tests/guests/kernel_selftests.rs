//! The kernel's own tests of the x86 entry code (tools/testing/selftests/x86). They use features of
//! the processor that most programs do not use. Each test is the only program of a guest, and
//! reports whether it passed.
//!
//! `ci/suite kernel-selftests` builds them from the source of the guest kernel. Those for 32-bit
//! processes also run on a 32-bit kernel, if `guest-kernel/build --arch i386` has built one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Completion, Failed, Trial};
use vbts_tests::machine::{self, Machine, TestModule};
use vbts_tests::{programs, skips};
use vbts_vmm::boot::cpio::Cpio;

/// Wall-clock limit of one test, in seconds. On an idle machine most tests take one second.
/// syscall_numbering, with more than a billion instructions, takes half a minute.
const LIMIT: &str = "280";

/// Texts with which the kernel reports a problem on its console. Some tests pass although the
/// kernel has reported one.
const SPLATS: &[&str] = &["WARNING: ", "BUG: ", "Oops: ", "Kernel panic"];

/// Tests of features that the default model does not have, by how their names begin, and a model
/// that has them.
const LATER: [&str; 3] = ["corrupt_xstate_header", "fsgsbase", "syscall_arg_fault"];
const LATER_MODEL: &str = "x86-64-v3";

/// How the names of those for 32-bit processes end.
const END_32: &str = "_32";

/// Options for the compiler of a 32-bit program. Debian has the headers of asm/ only once.
const FLAGS_32: &[&str] = &["-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"];

/// Files that every test needs.
struct Setup {
    machine: Machine,
    /// The directory of the tests.
    programs: PathBuf,
    /// Options for the compiler of the first process.
    flags: &'static [&'static str],
    init: OnceLock<Result<Vec<u8>>>,
}

inventory::submit! { TestModule::new(module_path!(), trials) }

/// A trial for each program that was built.
fn trials(module: &str) -> Vec<Trial> {
    let mut all = Vec::new();
    let on_i386 = Machine::find().and_then(|machine| machine.i386());
    let i386 = format!("{module}::i386");
    for (module, machine, end, flags) in [
        (module, Machine::find(), "", &[][..]),
        (&i386, on_i386, END_32, FLAGS_32),
    ] {
        let found = machine.and_then(|machine| found(module, machine, end, flags));
        all.extend(found.unwrap_or_else(|error| {
            let (name, why) = (module.to_owned(), format!("{error:#}"));
            // Only the 32-bit guest is not built by each script that runs these tests.
            let skip = move || match end {
                "" => skips::without_machine(&name, &why),
                _ => Ok(skips::ignored(&name, &why)),
            };
            vec![Trial::ignorable_test(module, skip)]
        }));
    }
    all
}

/// The trials of the programs whose names end with `end`.
fn found(
    module: &str,
    machine: Machine,
    end: &str,
    flags: &'static [&'static str],
) -> Result<Vec<Trial>> {
    let setup = Arc::new(Setup {
        machine,
        programs: machine::find("VBTS_SELFTESTS", "guest/selftests/x86")
            .context("ci/suite kernel-selftests builds the kernel's tests")?,
        flags,
        init: OnceLock::new(),
    });
    let mut names = std::fs::read_dir(&setup.programs)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<String>>>()?;
    names.retain(|name| name.ends_with(end));
    names.sort();
    ensure!(
        !names.is_empty(),
        "no program in {}",
        setup.programs.display()
    );
    Ok(names
        .into_iter()
        .map(|name| {
            let setup = Arc::clone(&setup);
            Trial::ignorable_test(format!("{module}::{name}"), move || {
                run(&setup, &name).map_err(|error| Failed::from(format!("{error:#}")))
            })
        })
        .collect())
}

impl Setup {
    /// The program of the guest's first process. The first call compiles it.
    fn init(&self) -> Result<&[u8]> {
        let compile = || {
            let source =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-kernel/tests/selftest_init.c");
            let directory = tempfile::tempdir()?;
            let init = programs::gcc(
                &source,
                &directory.path().join("init"),
                &[
                    &["-O2", "-Wall", "-Wextra", "-Werror", "-static"],
                    self.flags,
                ]
                .concat(),
            )?;
            Ok(std::fs::read(init)?)
        };
        let compiled: &Result<Vec<u8>> = self.init.get_or_init(compile);
        match compiled {
            Ok(init) => Ok(init),
            Err(error) => bail!("{error:#}"),
        }
    }
}

/// Boots a guest for one program.
fn run(setup: &Setup, name: &str) -> Result<Completion> {
    let directory = tempfile::tempdir()?;
    let mut archive = Cpio::new();
    archive.file("init", 0o755, setup.init()?);
    archive.file(name, 0o755, &std::fs::read(setup.programs.join(name))?);
    archive.directory("root", 0o755);
    archive.directory("dev", 0o755);
    archive.character_device("dev/console", 0o600, (5, 1));
    let initrd = directory.path().join("initrd");
    std::fs::write(&initrd, archive.finish())?;

    let mut command = setup
        .machine
        .command(["run", "--accel", "soft", "--timeout", LIMIT]);
    let executes = || vbts_cpu::model(LATER_MODEL).is_some_and(|m| m.unsupported().is_none());
    if LATER.iter().any(|first| name.starts_with(first)) && executes() {
        command.args(["--cpu", LATER_MODEL]);
    }
    command
        .args(["--root", "/", "--append", &format!("quiet -- {name}")])
        .arg("--kernel")
        .arg(setup.machine.kernel())
        .arg("--initrd")
        .arg(&initrd);
    let run = machine::finish(command)?;
    let output = String::from_utf8_lossy(&run.stdout).replace('\r', "");
    let verdict = match run.status {
        Some(124) => bail!("{name} did not end in {LIMIT} s\n{output}\n{}", run.stderr),
        _ => judge(name, &output),
    };
    verdict.with_context(|| {
        let status = run.status;
        format!(
            "exit status {status:?}, output:\n{output}\n{}\n{name}",
            run.stderr
        )
    })
}

/// The result of a test, by its exit status and its output: older tests do not exit with
/// `KSFT_SKIP`. Prints the reasons for the parts that a test has skipped.
fn judge(name: &str, output: &str) -> Result<Completion> {
    // The last message of init. It is missing if the guest ended before.
    let (printed, end) = output
        .trim_end()
        .rsplit_once("selftest: ")
        .context("the guest ended before the test did")?;
    let find = |word: &str| printed.lines().find(|line| line.contains(word));
    if let Some(line) = SPLATS.iter().find_map(|word| find(word)) {
        bail!("{end}, but the kernel reported: {line}");
    }
    let skip = match end {
        "exited with 4" => printed.lines().rfind(|line| !line.trim().is_empty()),
        // Parts of the test were started, and none of them passed.
        "exited with 0" if find("[OK]").is_none() => find("[SKIP]"),
        // No part of the test was started.
        "exited with 1" if find("[RUN]").or(find("[OK]")).is_none() => find("[SKIP]"),
        _ => None,
    };
    if let Some(line) = skip {
        return Ok(skips::ignored(name, reason(line)));
    }
    ensure!(end == "exited with 0", "{end}");
    if let Some(line) = find("[FAIL]").or_else(|| find("not ok ")) {
        bail!("{end}, but the test printed: {line}");
    }
    let skipped = printed.lines().filter(|line| line.contains("SKIP"));
    let parts: BTreeSet<_> = skipped.map(reason).collect();
    for part in parts {
        println!("     {name}: partly skipped: {part}");
    }
    Ok(Completion::Completed)
}

/// A test's reason without the marks around it.
fn reason(line: &str) -> &str {
    let (_, why) = line.split_once("SKIP").unwrap_or(("", line));
    why.trim_start_matches([']', '#', '\t', ' ']).trim_end()
}
