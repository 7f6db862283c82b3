//! Errors that say the cause.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Skip, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("out_of_memory", out_of_memory),
            ("out_of_memory_little_by_little", little_by_little),
            ("memory_that_was_refused", refused_memory),
            ("a_program_that_cannot_be_read", unreadable),
            ("no_proc", no_proc),
            ("names_that_an_interpreter_has", interpreted),
        ],
    )
}

/// A program takes more memory than the guest has, by itself and as a child.
fn out_of_memory(machine: &Machine) -> Result<()> {
    let trace = tempfile::NamedTempFile::new()?;
    let greedy = "/usr/bin/python3 -c 'x = [b\"x\" * (1 << 26) for _ in range(9)]'";
    for (script, status) in [
        (format!("exec {greedy}"), 128 + 9),
        (format!("{greedy}; :"), 0),
    ] {
        let options = ["--memory", "128M", "--follow", "none"];
        let program = ["/bin/sh", "-c", &script];
        let run = machine.trace("raw", trace.path(), &options, &program)?;
        let run = run.expect(status)?;
        let message = " (python3); more --memory than 128M may help";
        ensure!(
            run.stderr.contains("the guest ran out of memory") && run.stderr.contains(message),
            "{}",
            run.stderr
        );
    }
    Ok(())
}

/// A program fills the memory with small allocations. The kernel could go on for long with the
/// pages of its text: it reclaims them, and the program makes it read them again.
fn little_by_little(machine: &Machine) -> Result<()> {
    let trace = tempfile::NamedTempFile::new()?;
    let options = ["--memory", "64M", "--timeout", "120"];
    let program = ["/bin/sh", "-c", "exec tail /dev/zero"];
    let run = machine.trace("text", trace.path(), &options, &program)?;
    let run = run.expect(128 + 9)?;
    let message = " (tail); more --memory than 64M may help";
    ensure!(run.stderr.contains(message), "{}", run.stderr);
    Ok(())
}

/// A program asks for more memory than the guest has at once. If it does without, that is no cause.
fn refused_memory(machine: &Machine) -> Result<()> {
    let trace = tempfile::NamedTempFile::new()?;
    let greedy = "bytearray(1 << 28)";
    let refused = "bytes, which is more than its memory; more --memory than 128M may help";
    for (script, status) in [
        (greedy.to_owned(), 1),
        (format!("try: {greedy}\nexcept MemoryError: pass"), 0),
    ] {
        let options = ["--memory", "128M", "--follow", "none"];
        let program = ["/usr/bin/python3", "-c", &script];
        let run = machine.trace("raw", trace.path(), &options, &program)?;
        let run = run.expect(status)?;
        let is_named = run.stderr.contains(refused) && run.stderr.contains("(python3)");
        ensure!(is_named == (status != 0), "{}", run.stderr);
    }
    Ok(())
}

/// A user without privileges: the mode of a file counts for it.
const NOBODY: u32 = 65534;

fn unreadable(machine: &Machine) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("only root can run vbts as another user".into()).into());
    }
    let directory = tempfile::tempdir()?;
    let open = || Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open())?;
    let path = |name: &str| directory.path().join(name);
    let own = machine.command(["trace"]);
    for (from, name) in [
        (own.get_program().as_ref(), "vbts"),
        (machine.kernel(), "vmlinux"),
        (machine.agent(), "agent"),
        ("/bin/true".as_ref(), "true"),
    ] {
        fs::copy(from, path(name))?;
        fs::set_permissions(path(name), open())?;
    }
    fs::set_permissions(path("true"), Permissions::from_mode(0o711))?;
    fs::create_dir(path("closed"))?;
    fs::set_permissions(path("closed"), Permissions::from_mode(0o700))?;
    let run = |program: &str| {
        let mut command = Command::new(path("vbts"));
        command
            .args(["trace", "--accel", machine.accel(), "--output", "/dev/null"])
            .args(["--", program])
            .env("VBTS_KERNEL", path("vmlinux"))
            .env("VBTS_AGENT", path("agent"))
            .env("PATH", format!("{}:/bin", path("closed").display()))
            .current_dir(directory.path())
            .gid(NOBODY)
            .uid(NOBODY);
        machine::finish(command)
    };
    // The guest reads what it executes; the host's kernel does not need to.
    let refused = run("./true")?.expect(126)?;
    ensure!(
        refused.stderr.contains("no permission to read it"),
        "{}",
        refused.stderr
    );
    // As execvp does, a directory that cannot be searched is left out.
    run("true")?.expect(0)?;
    Ok(())
}

fn no_proc(machine: &Machine) -> Result<()> {
    // A container can have several mounts on /proc.
    let without = "mount --make-rprivate / && umount -l /proc && \
                   while umount -l /proc 2>&-; do :; done; exec \"$@\"";
    let in_namespace = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", without, "sh"])
            .args(words);
        command
    };
    let possible = machine::finish(in_namespace(&["true"]));
    if !possible.is_ok_and(|run| run.status == Some(0)) {
        return Err(Skip("this user cannot unmount /proc".into()).into());
    }
    let trace = machine.command(["trace", "--output", "/dev/null", "--", "/bin/true"]);
    let mut command = in_namespace(&[]);
    machine::append(&mut command, &trace);
    let run = machine::finish(command)?.expect(126)?;
    ensure!(
        run.stderr.contains("/proc is not mounted"),
        "{}",
        run.stderr
    );
    Ok(())
}

/// A report shows the functions of an interpreter, and says what names those of the program.
fn interpreted(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("python.btrace");
    let script = "print(sum(number * number for number in range(9999)))";
    let program = ["/usr/bin/python3", "-I", "-S", "-c", script];
    machine.trace("btrace", &trace, &[], &program)?.expect(0)?;
    for (report, is_said) in [("functions", true), ("calls", true), ("modules", false)] {
        let mut command = machine.command(["report", report]);
        let run = {
            command.arg(&trace);
            machine::finish(command)?
        }
        .expect(0)?;
        let says = run.stderr.contains("`python3 -X perf` gives each function");
        ensure!(says == is_said, "{report}: {}", run.stderr);
    }
    Ok(())
}
