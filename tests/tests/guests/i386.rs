//! 32-bit kernels. Debian's, with and without PAE, boot to a shell, on the software CPU with each
//! processor model. In our own, 32-bit programs of the host are traced.
//!
//! `ci/guest-rootfs --i386` fetches Debian's kernels, `guest-kernel/build --arch i386` builds ours.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};
use vbts_tests::programs;
use vbts_vmm::boot::cpio::Cpio;

use crate::stock_kernel::{PATIENCE, check_messages, file};

/// The flavours of Debian's kernels.
const FLAVOURS: [&str; 2] = ["686", "686-pae"];

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("boots_without_pae", without_pae),
            ("boots_with_pae", with_pae),
            ("boots_on_every_model", every_model),
            ("traces_its_kernel", traces_its_kernel),
            ("traces_threads", traces_threads),
            ("records_a_machine", records_a_machine),
            ("refuses_64_bit_programs", refuses_64_bit_programs),
        ],
    )
}

/// An initial RAM disk of Debian's for this kernel, whose first program runs the
/// script `job`.
fn initrd(directory: &Path, flavour: &str, job: &str) -> Result<PathBuf> {
    let mut more = Cpio::new();
    let mut image = fs::read(file(&format!("i386/initrd-{flavour}"))?)?;
    more.file("init.job", 0o644, job.as_bytes());
    image.extend(more.finish());
    let path = directory.join("initrd");
    fs::write(&path, image)?;
    Ok(path)
}

/// Runs `job` on the kernel. Returns the console's output.
fn run(machine: &Machine, flavour: &str, options: &[&str], job: &str) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let initrd = initrd(directory.path(), flavour, job)?;
    let mut command = machine.command(["run", "--memory", "512M", "--kernel"]);
    command
        .arg(file(&format!("i386/vmlinuz-{flavour}"))?)
        .arg("--initrd")
        .arg(initrd)
        .args(options);
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    Ok(String::from_utf8_lossy(&run.stdout).replace('\r', ""))
}

fn expect(output: &str, all: &[&str]) -> Result<()> {
    for expected in all {
        ensure!(output.contains(expected), "no {expected:?} in\n{output}");
    }
    check_messages(output)
}

/// A shell's view of the machine: a disk, processes, and a second processor.
const JOB: &str = "
    uname -m; echo nr: $(nproc); head -c 10 /dev/vda; echo
    echo $(seq 1000 | sort -rn | head -n 1) sorted; poweroff -f";

fn shell(machine: &Machine, flavour: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let disk = directory.path().join("disk");
    fs::write(&disk, [b"first disk", &[0; 4086][..]].concat())?;
    let disk = disk.display().to_string();
    let options = [
        "--accel",
        machine.accel(),
        "--cpu",
        "core2",
        "--smp",
        "2",
        "--disk",
        &disk,
    ];
    let output = run(machine, flavour, &options, JOB)?;
    let wanted = ["i686\nnr: 2\nfirst disk\n1000 sorted", "reboot: Power down"];
    expect(&output, &wanted)
}

fn without_pae(machine: &Machine) -> Result<()> {
    shell(machine, FLAVOURS[0])
}

fn with_pae(machine: &Machine) -> Result<()> {
    shell(machine, FLAVOURS[1])
}

fn every_model(machine: &Machine) -> Result<()> {
    file(&format!("i386/vmlinuz-{}", FLAVOURS[0]))?;
    let models = vbts_cpu::MODELS
        .iter()
        .filter_map(|name| vbts_cpu::model(name));
    for model in models.filter(|m| m.unsupported().is_none() && m.name != "core2") {
        for flavour in FLAVOURS {
            let options = ["--accel", "soft", "--cpu", model.name];
            let output = run(machine, flavour, &options, JOB)
                .with_context(|| format!("{} on {flavour}", model.name))?;
            expect(
                &output,
                &["i686\nnr: 1\n", "1000 sorted", "reboot: Power down"],
            )
            .with_context(|| format!("{} on {flavour}", model.name))?;
        }
    }
    Ok(())
}

/// A report finds the kernel of the trace, and names its functions.
fn traces_its_kernel(machine: &Machine) -> Result<()> {
    let machine = machine.i386()?;
    let directory = tempfile::tempdir()?;
    let program = programs::I386.last().context("no program")?;
    let path = program.build(directory.path())?;
    let trace = directory.path().join("trace");
    let options = ["--cpu", "pentium-m", "--scope", "all"];
    let run = machine.trace("btrace", &trace, &options, &[&path])?;
    let run = run.expect(program.status)?;
    ensure!(run.stderr.contains("lost: 0"), "{}", run.stderr);
    let mut report = machine.command(["report", "functions"]);
    report.args(["--limit", "1000"]).arg(&trace);
    let report = machine::finish(report)?.expect(0)?;
    let table = String::from_utf8_lossy(&report.stdout);
    for function in ["ia32_sys_call ([kernel])", "ackermann (programs/ia32.c:31)"] {
        ensure!(table.contains(function), "no {function} in\n{table}");
    }
    ensure!(
        !report.stderr.contains("cannot be read") && !report.stderr.contains("does not lead"),
        "{}",
        report.stderr
    );
    Ok(())
}

/// The C library's threads, and its entry into the kernel through the vDSO.
fn traces_threads(machine: &Machine) -> Result<()> {
    const SOURCE: &str = "
        #include <pthread.h>
        #include <stdio.h>
        static int sums[4];
        static void *add(void *sum) { for (int i = 0; i < 1000; i++) *(int *)sum += i; return 0; }
        int main(void) {
            pthread_t threads[4];
            for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, add, &sums[i]);
            for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
            return printf(\"%d\\n\", sums[0] + sums[3]) != 7;
        }";
    let machine = machine.i386()?;
    let directory = tempfile::tempdir()?;
    let (source, path) = (
        directory.path().join("threads.c"),
        directory.path().join("threads"),
    );
    fs::write(&source, SOURCE)?;
    programs::gcc(&source, &path, &["-m32", "-static", "-pthread"])?;
    let trace = directory.path().join("trace");
    let options = ["--cpu", "pentium4", "--smp", "2", "--follow", "all"];
    let run = machine
        .trace("json", &trace, &options, &[&path])?
        .expect(0)?;
    ensure!(run.stdout == b"999000\n", "{run:?}");
    ensure!(run.stderr.contains("lost: 0"), "{}", run.stderr);
    let text = fs::read_to_string(&trace)?;
    let started = text.matches("\"kind\":\"start\"").count();
    ensure!(started == 5, "{started} tasks");
    Ok(())
}

/// The recording begins at a function of the kernel, and has the names of others and of its tasks.
/// Without a program the kernel panics.
fn records_a_machine(machine: &Machine) -> Result<()> {
    let machine = machine.i386()?;
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("machine.btrace");
    let mut command = machine.command(["run", "--accel", "soft", "--cpu", "pentium4", "--kernel"]);
    command
        .arg(machine.kernel())
        .args([
            "--append",
            "quiet",
            "--record-from",
            "kernel_init",
            "--record",
        ])
        .arg(&trace);
    machine::finish(command)?.expect(255)?;
    let mut report = machine.command(["report", "text"]);
    report.arg(&trace);
    let text = machine::finish(report)?.expect(0)?.stdout;
    let text = String::from_utf8_lossy(&text);
    let first = text.lines().nth(1).context("no branch")?;
    ensure!(first.contains(" kernel_init+0x"), "{first}");
    ensure!(text.contains(" panic+0x"), "no panic() in the recording");
    let mut report = machine.command(["report", "json", "--task", "2"]);
    report.arg(&trace);
    let json = machine::finish(report)?.expect(0)?.stdout;
    let json = String::from_utf8_lossy(&json);
    let mut switches = json.lines().filter(|line| line.contains("\"switch\""));
    let named = switches.any(|line| line.contains("\"kthreadd\""));
    ensure!(named, "task 2 is not kthreadd: {:?}", json.lines().next());
    Ok(())
}

fn refuses_64_bit_programs(machine: &Machine) -> Result<()> {
    let run = machine
        .i386()?
        .run(["trace", "--cpu", "pentium4", "--", "/bin/true"])?
        .expect(126)?;
    let message = "/bin/true: is a 64-bit ELF file, and the guest's kernel has 32 bits";
    ensure!(run.stderr.contains(message), "{}", run.stderr);
    Ok(())
}
