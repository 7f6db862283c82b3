//! Debian's 32-bit kernels on the software CPU, with and without PAE: they boot to a shell on each
//! processor model.
//!
//! `ci/guest-rootfs --i386` fetches the kernels.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts::boot::cpio::Cpio;
use vbts_tests::machine::{self, Machine};

use crate::stock_kernel::{PATIENCE, check_messages, file};

/// The flavours of Debian's kernels.
const FLAVOURS: [&str; 2] = ["686", "686-pae"];

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("boots_without_pae", without_pae),
            ("boots_with_pae", with_pae),
            ("boots_on_every_model", every_model),
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
    let mut command = machine.command(["run", "--accel", "soft", "--memory", "512M", "--kernel"]);
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
    let options = ["--cpu", "core2", "--smp", "2", "--disk", &disk];
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
            let output = run(machine, flavour, &["--cpu", model.name], JOB)
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
