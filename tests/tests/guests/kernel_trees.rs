//! `vbts test` in a kernel tree: it builds the kernel, and runs the tests that the tree has. The
//! trees here have a Makefile that installs the guest kernel instead of building one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine, Run, TestModule};

/// Makefile of all trees. Configurations accumulate options; $BROKEN loses one.
const MAKEFILE: &str = "\
x86_64_defconfig:
\techo CONFIG_MINE=y > $(O)/.config
olddefconfig:
\ttest -z \"$$BROKEN\" || sed -i /X86_PTRACE_BTS/d $(O)/.config
vmlinux:
\tmkdir -p $(O)/include/config
\techo 6.12.1-tree > $(O)/include/config/kernel.release
\tcp KERNEL $(O)/vmlinux
kselftest-install:
\tmkdir -p $(INSTALL_PATH)/demo
\tcp tools/testing/selftests/demo/*.sh $(INSTALL_PATH)/demo
\tcd $(INSTALL_PATH) && printf 'demo:%s\\n' $$(cd demo && ls) > kselftest-list.txt
";

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("build", build),
            ("kselftest", kselftest),
            ("kunit", kunit),
            ("bisect", bisect),
        ],
    )
}

/// A source tree whose make installs the guest kernel. Returns its directory.
fn tree(directory: &Path) -> Result<PathBuf> {
    let source = directory.join("linux");
    for file in ["Kbuild", "MAINTAINERS", "arch/x86/Kconfig", "init/main.c"] {
        write(&source.join(file), "")?;
    }
    let kernel = machine::find("VBTS_KERNEL", "guest/vmlinux")?;
    let makefile = MAKEFILE.replace("KERNEL", &kernel.display().to_string());
    write(&source.join("Makefile"), &makefile)?;
    Ok(source)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::create_dir_all(path.parent().context("a parent")?)?;
    Ok(std::fs::write(path, text)?)
}

/// `vbts test` in `current`, with the suite of the guest kernel.
fn run(machine: &Machine, current: &Path, words: &[&str], broken: &str) -> Result<Run> {
    let mut command = machine.command(["test", "--accel", machine.accel()]);
    let suite = machine::find("VBTS_SUITE", "guest/ptrace_bts")?;
    command.env("VBTS_SUITE", suite).env("BROKEN", broken);
    command.env_remove("VBTS_KERNEL").args(words);
    command.current_dir(current);
    machine::finish(command)
}

/// `--build` configures and builds a tree, and the kernel of a build directory is the default.
fn build(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = tree(directory.path())?;
    let output = directory.path().join("out");
    let filter = ["--filter", "basic.wrap"];
    let with_build = ["--filter", "basic.wrap", "--build", "../out"];
    let unbuilt = run(machine, &source, &filter, "")?.expect(125)?;
    ensure!(
        unbuilt.stderr.contains("has no vmlinux"),
        "{}",
        unbuilt.stderr
    );
    let built = run(machine, &source, &with_build, "")?.expect(0)?;
    ensure!(built.stderr.contains("(6.12.1-tree)"), "{}", built.stderr);
    let config = std::fs::read_to_string(output.join(".config"))?;
    ensure!(
        config.starts_with("CONFIG_MINE=y\n") && config.contains("\nCONFIG_X86_PTRACE_BTS=y\n"),
        "{config}"
    );
    // Options that are there are not added again.
    run(machine, &source, &with_build, "")?.expect(0)?;
    ensure!(config == std::fs::read_to_string(output.join(".config"))?);
    let found = run(machine, &output, &filter, "")?.expect(0)?;
    let message = "testing ./vmlinux of this kernel tree (6.12.1-tree)";
    ensure!(found.stderr.contains(message), "{}", found.stderr);
    let broken = run(machine, &source, &with_build, "1")?.expect(125)?;
    let message = "cannot have CONFIG_X86_PTRACE_BTS=y";
    ensure!(broken.stderr.contains(message), "{}", broken.stderr);
    Ok(())
}

/// Tests of tools/testing/selftests pass, fail, skip themselves with a reason, and hang; a script
/// need not be executable, and can write files.
fn kselftest(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = tree(directory.path())?;
    let target = source.join("tools/testing/selftests/demo");
    write(&target.join("Makefile"), "")?;
    write(&target.join("config"), "CONFIG_DEMO=m\n")?;
    for (name, text, mode) in [
        (
            "fails.sh",
            "echo '# WARNING: it is bad'\necho 'not ok 1 bad'\nexit 1\n",
            0o755,
        ),
        ("hangs.sh", "sleep 1000\n", 0o755),
        (
            "passes.sh",
            "echo x > file && test \"$(cat file)\" = x\n",
            0o644,
        ),
        ("skips.sh", "echo 'ok 1 # SKIP no device'\nexit 4\n", 0o755),
    ] {
        let path = target.join(name);
        write(&path, &format!("#!/bin/sh\n{text}"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
    }
    let words = [
        "--build",
        "../out",
        "--kselftest",
        "demo",
        "--case-timeout",
        "12",
    ];
    let ran = run(machine, &source, &words, "")?.expect(1)?;
    let text = String::from_utf8_lossy(&ran.stdout);
    for line in [
        "  # demo.fails.sh: status 1: not ok 1 bad",
        "  not ok 1 demo.fails.sh",
        "  # demo.hangs.sh: no end after 10 s: ",
        "  not ok 2 demo.hangs.sh",
        "  ok 3 demo.passes.sh",
        "  ok 4 demo.skips.sh # SKIP ok 1 # SKIP no device",
    ] {
        let found = text.lines().any(|l| l.trim_end() == line.trim_end());
        ensure!(found, "no '{line}' in:\n{text}\n{}", ran.stderr);
    }
    let config = std::fs::read_to_string(directory.path().join("out/.config"))?;
    ensure!(config.contains("CONFIG_DEMO=y\n"), "{config}");
    // What the tests write is not on the host.
    ensure!(
        !directory
            .path()
            .join("out/kselftest_install/demo/file")
            .exists()
    );
    let unknown = ["--build", "../out", "--kselftest", "none"];
    let unknown = run(machine, &source, &unknown, "")?.expect(125)?;
    ensure!(
        unknown.stderr.contains("no such target"),
        "{}",
        unknown.stderr
    );
    Ok(())
}

/// A kernel without KUnit has no tests to run.
fn kunit(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let kernel = machine::find("VBTS_KERNEL", "guest/vmlinux")?;
    let kernel = kernel.to_str().context("the kernel's path")?;
    let words = ["--kunit", "--kernel", kernel];
    let ran = run(machine, directory.path(), &words, "")?.expect(125)?;
    ensure!(ran.stderr.contains("CONFIG_KUNIT=y"), "{}", ran.stderr);
    ensure!(ran.stdout.starts_with(b"KTAP version 1\n1..0 # SKIP "));
    Ok(())
}

fn guest_kernel_script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../guest-kernel")
        .join(name)
}

/// guest-kernel/bisect finds the commit whose kernel fails a case, skips one that cannot be built,
/// and leaves the tree as it was.
fn bisect(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = tree(directory.path())?;
    let git = |words: &[&str]| -> Result<String> {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
            .args(words)
            .current_dir(&source)
            .output()?;
        ensure!(output.status.success(), "git {words:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    git(&["init", "-q", "-b", "main"])?;
    // From commit 3 on, the kernel has another release, with which a case of bad_suite.c fails.
    let good = std::fs::read_to_string(source.join("Makefile"))?;
    let renames = "\tsed -i s/-vbts/-oops/g $(O)/vmlinux\nkselftest-install:";
    let bad = good.replace("kselftest-install:", renames);
    let broken = good.replace("vmlinux:\n", "vmlinux:\n\tfalse\n");
    let mut commits = Vec::new();
    for (number, makefile) in [&good, &broken, &good, &bad, &bad].iter().enumerate() {
        std::fs::write(source.join("Makefile"), makefile)?;
        std::fs::write(source.join("number"), number.to_string())?;
        git(&["add", "-A"])?;
        git(&["commit", "-q", "-m", &format!("commit {number}")])?;
        commits.push(git(&["rev-parse", "HEAD"])?);
    }
    let mut command = Command::new(guest_kernel_script("bisect"));
    command
        .args([&commits[0], "main", "--build", "../out"])
        .args(["--accel", machine.accel(), "--filter", "release.known"])
        .current_dir(&source)
        .env("VBTS", machine.binary())
        .env(
            "VBTS_SUITE",
            guest_program::compile(directory.path(), "bad_suite.c", &[])?,
        )
        .env_remove("VBTS_KERNEL");
    let found = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8_lossy(&found.stdout);
    ensure!(
        text == format!("{} commit 3\n", commits[3]),
        "{text}\n{}",
        found.stderr
    );
    // It is not because of the commit that cannot be built.
    ensure!(found.stderr.contains(&commits[2]), "{}", found.stderr);
    ensure!(git(&["symbolic-ref", "--short", "HEAD"])? == "main");
    ensure!(git(&["status", "--porcelain"])?.is_empty());
    Ok(())
}
