//! Answers about the guest's kernel.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::{guest_program, programs};

use super::build_ids::build_id;
use super::gaps;

/// The kernel has patched its code, and the straight lines in it are those that were executed.
pub(super) fn patched(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("a.btrace");
    let options = ["--scope", "all"];
    machine
        .trace("btrace", &trace, &options, &["/bin/true"])?
        .expect(0)?;
    let missing = gaps(machine, &trace)?;
    ensure!(missing == 0, "{missing} gaps in a program's trace");
    // While the kernel boots, it executes its code before and after the patches.
    let source = directory.path().join("end.S");
    std::fs::write(&source, ".globl _start\n_start: ud2\n")?;
    let flags = ["-nostdlib", "-static", "-no-pie"];
    let program = programs::gcc(&source, &directory.path().join("end"), &flags)?;
    let mut command = guest_program::command(machine, "soft", machine.kernel(), &program, "")?;
    command.arg("--record").arg(&trace);
    // The kernel panics when PID 1 ends.
    machine::finish(command)?.expect(255)?;
    let file = std::fs::File::open(&trace).context("no recording")?;
    let reader = vbts_trace::Reader::new(std::io::BufReader::new(file))?;
    ensure!(reader.records() > 1_000_000, "{}", reader.records());
    let missing = gaps(machine, &trace)?;
    ensure!(missing < 100, "{missing} gaps in a recording");
    Ok(())
}

/// Two runs whose system calls differ part in the kernel's dispatcher of system calls, in the trace
/// of a program as in the recording of a machine.
pub(super) fn system_calls_differ(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut traces = Vec::new();
    for (call, number) in [("getpid", 39), ("getppid", 110)] {
        let path = |extension: &str| directory.path().join(call).with_extension(extension);
        let code = format!(
            ".globl _start\n_start: mov ${number}, %eax; syscall\nmov $60, %eax; syscall\n"
        );
        std::fs::write(path("S"), code)?;
        let flags = ["-nostdlib", "-static", "-no-pie"];
        let program = programs::gcc(&path("S"), &path("program"), &flags)?;
        machine.trace("btrace", &path("btrace"), &["--scope", "all"], &[&program])?;
        let mut command = guest_program::command(machine, "soft", machine.kernel(), &program, "")?;
        command.arg("--record").arg(path("machine"));
        // The kernel panics when PID 1 ends.
        machine::finish(command)?.expect(255)?;
        traces.push((path("btrace"), path("machine")));
    }
    let [(trace, recording), (other_trace, other_recording)] = &traces[..] else {
        unreachable!("two programs")
    };
    for (options, first, second) in [
        (&["--module", "[kernel]"][..], trace, other_trace),
        (&[], recording, other_recording),
    ] {
        let mut command = machine.command(["report", "diff", "--kernel"]);
        command
            .arg(machine.kernel())
            .args(options)
            .args([first, second]);
        let text = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
        for (run, callee) in [("first", "__do_sys_getpid"), ("second", "__do_sys_getppid")] {
            let differs = |line: &str| {
                line.trim_start().starts_with(&format!("{run} "))
                    && line.contains(" x64_sys_call+0x")
                    && line.ends_with(&format!(" -> {callee}"))
            };
            ensure!(text.lines().any(differs), "no {callee} in {text}");
        }
    }
    Ok(())
}

/// The bytes of the kernel's build ID, changed.
fn with_another_build_id(kernel: &[u8], id: &str) -> Result<Vec<u8>> {
    let digits = id.as_bytes().chunks_exact(2);
    let id: Result<Vec<u8>> = digits
        .map(|two| Ok(u8::from_str_radix(std::str::from_utf8(two)?, 16)?))
        .collect();
    let id = id?;
    let mut changed = kernel.to_vec();
    let mut places = 0;
    for at in 0..kernel.len() - id.len() {
        if kernel[at..].starts_with(&id) {
            changed[at] ^= 0xFF;
            places += 1;
        }
    }
    ensure!(places > 0, "the kernel does not have its build ID");
    Ok(changed)
}

/// A report finds the kernel that was traced, and takes names and code from no other one.
pub(super) fn found(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let (kernel, other) = (path("vmlinux"), path("other"));
    std::fs::copy(machine.kernel(), &kernel)?;
    let contents = std::fs::read(&kernel)?;
    std::fs::write(
        &other,
        with_another_build_id(&contents, &build_id(&kernel)?)?,
    )?;
    let trace = path("a.btrace");
    let options = [
        "--scope",
        "all",
        "--kernel",
        kernel.to_str().context("a path")?,
    ];
    machine
        .trace("btrace", &trace, &options, &["/bin/true"])?
        .expect(0)?;
    let report = |what: &str, default: &Path, options: &[&OsStr]| {
        let mut command = machine.command(["report", what]);
        if what == "functions" {
            command.args(["--limit", "10000"]);
        }
        command
            .env("VBTS_KERNEL", default)
            .args(options)
            .arg(&trace);
        machine::finish(command)?.expect(0)
    };
    let refused = format!("{} is not the kernel that was traced", other.display());
    let has_names = |run: &machine::Run| {
        let text = String::from_utf8_lossy(&run.stdout);
        text.contains("entry_SYSCALL_64")
    };
    for what in ["functions", "text"] {
        let run = report(what, &other, &[])?;
        ensure!(
            has_names(&run) && !run.stderr.contains("kernel"),
            "{what}: {}",
            run.stderr
        );
        std::fs::rename(&kernel, path("moved"))?;
        let run = report(what, machine.kernel(), &[])?;
        ensure!(
            has_names(&run) && !run.stderr.contains("kernel"),
            "{what}: {}",
            run.stderr
        );
        for (default, options) in [
            (other.as_path(), &[][..]),
            (machine.kernel(), &["--kernel".as_ref(), other.as_os_str()]),
        ] {
            let run = report(what, default, options)?;
            ensure!(!has_names(&run), "{what}: names of another kernel");
            ensure!(run.stderr.contains(&refused), "{what}: {}", run.stderr);
        }
        std::fs::rename(path("moved"), &kernel)?;
    }
    Ok(())
}
