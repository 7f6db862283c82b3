//! Debian's perf, GDB and rr, on Debian's unmodified kernel and on our own. They trace programs
//! whose branches are all known.
//!
//! They are in the root file system of `ci/guest-rootfs`, which is mounted read-only: from the disk
//! image, or over 9P by our kernel, which has no disk driver. The guest writes their output to an
//! archive, on a second disk or in a second directory.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::branches::{Branch, Symbols, first_difference};
use vbts_tests::machine::{self, Machine, Test, TestModule};
use vbts_tests::oracle::{self, Trace};
use vbts_tests::programs;

use crate::stock_kernel::{PATIENCE, check_messages, file, initrd_with};

mod gdb;
mod lbr;
mod perf;
mod profiles;
mod rr;

/// The kernel that a client runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Debian,
    Ours,
}

/// What a client runs on.
#[derive(Clone, Copy)]
struct Guest {
    kernel: Kernel,
    /// Model of the processor.
    model: &'static str,
}

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    type Client = fn(&Machine, Guest) -> Result<()>;
    let clients: [(&str, Client); 5] = [
        ("perf_intel_bts", perf::intel_bts),
        ("perf_branches", perf::branches),
        ("perf_stat", perf::stat),
        ("perf_test", perf::tests),
        ("gdb", gdb::gdb),
    ];
    let guest = |kernel, model| Guest { kernel, model };
    let guests = [
        ("debian", guest(Kernel::Debian, MODEL)),
        ("ours", guest(Kernel::Ours, MODEL)),
    ];
    let mut tests: Vec<(String, Test)> = Vec::new();
    let mut add = |name: &str, on: &str, client: Client, guest: Guest| {
        let test = move |machine: &Machine| client(machine, guest);
        tests.push((format!("{name}_on_{on}"), Box::new(test)));
    };
    for (name, client) in clients {
        for (on, guest) in guests {
            add(name, on, client, guest);
        }
    }
    // The processor whose errata do not keep Linux and GDB from these.
    let skylake = guest(Kernel::Debian, "skylake");
    add("perf_branches", "skylake", perf::branches, skylake);
    add("gdb", "skylake", gdb::gdb, skylake);
    add("rr", "skylake", rr::rr, skylake);
    add("profiles", "skylake", profiles::profiles, skylake);
    for (kernel, model) in [
        (Kernel::Debian, "core2"),
        (Kernel::Ours, "nehalem"),
        (Kernel::Debian, "haswell"),
        (Kernel::Ours, "skylake"),
    ] {
        add("perf_lbr", model, lbr::last_branches, guest(kernel, model));
    }
    machine::trials(module, tests)
}

/// The job of the initial RAM disk after it has mounted the root file system: it runs
/// /programs/commands there, and puts their files into an archive.
const JOB: &str = "
    for directory in dev proc sys; do mount -o bind /$directory /root/$directory; done
    mount -t tmpfs tmpfs /root/tmp
    cp /programs/* /root/tmp
    mkdir /root/tmp/results
    chroot /root /bin/sh /tmp/commands
    dmesg >/root/tmp/results/dmesg
    tar -C /root/tmp/results -cf $archive .
    sync
    reboot -f";

/// Mounts the first of two disks. The other one is the archive.
const DISKS: &str = "
    mount -t ext4 -o ro,noload /dev/vda /root || reboot -f
    archive=/dev/vdb";

/// Mounts two directories. The archive is in the second one.
const DIRECTORIES: &str = "
    mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=512000,ro root /root || reboot -f
    mkdir /share; mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share0 /share
    archive=/share/archive";

/// Prepares for the commands. Whenever perf starts, it searches /proc/kallsyms for the kernel's
/// symbols, which takes the software CPU longer than the command itself. Restricting the symbols
/// hides nothing else.
const PREPARE: &str = "
    export HOME=/tmp LC_ALL=C PATH=/usr/bin:/bin
    echo 2 >/proc/sys/kernel/kptr_restrict
    cd /tmp";

/// Files that the commands have written.
struct Results {
    directory: PathBuf,
}

impl Results {
    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.directory.join(name);
        fs::read(&path).with_context(|| format!("no {}", path.display()))
    }

    fn read(&self, name: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(name)?).into_owned())
    }
}

/// The model of the processor that a guest has by default.
const MODEL: &str = "core2";

/// Runs a shell script in the guest, in a directory with these files and an empty one, `results`.
fn run(
    machine: &Machine,
    Guest { kernel, model }: Guest,
    directory: &Path,
    commands: &str,
    files: &[(&str, &Path)],
) -> Result<Results> {
    let script = directory.join("commands");
    fs::write(&script, format!("{PREPARE}\n{commands}\n"))?;
    let share = directory.join("share");
    fs::create_dir(&share)?;
    let archive = share.join("archive");
    File::create(&archive)?.set_len(256 << 20)?;
    let files = [files, &[("commands", script.as_path())]].concat();
    let mount = match kernel {
        Kernel::Debian => DISKS,
        Kernel::Ours => DIRECTORIES,
    };
    let initrd = initrd_with(directory, &format!("{mount}{JOB}"), &files)?;

    let mut command = machine.command(["run", "--accel", machine.accel(), "--memory", "512M"]);
    if model != MODEL {
        command.args(["--cpu", model]);
    }
    // A counter that always counts would keep the guest on the software CPU.
    let append = match machine.accel() {
        "soft" => "quiet",
        _ => "quiet nmi_watchdog=0",
    };
    command.args(["--append", append, "--initrd"]).arg(initrd);
    command.arg("--kernel");
    match kernel {
        Kernel::Debian => {
            let disk = format!("{},ro", file("rootfs.img")?.display());
            command.arg(file("vmlinuz")?).arg("--disk").arg(disk);
            command.arg("--disk").arg(&archive);
        }
        Kernel::Ours => {
            let share = format!("{}:rw", share.display());
            command.arg(machine.kernel()).arg("--root");
            command.arg(file("root")?).arg("--share").arg(share);
        }
    }
    // Options for a machine that is not the default one.
    let options = std::env::var("VBTS_OPTIONS").unwrap_or_default();
    command.args(options.split_whitespace());
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    let results = directory.join("results");
    fs::create_dir(&results)?;
    let unpacked = Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&results)
        .output()?;
    ensure!(
        unpacked.status.success(),
        "no results:\n{}",
        String::from_utf8_lossy(&run.stdout)
    );
    let results = Results { directory: results };
    let messages = results
        .read("dmesg")
        .with_context(|| String::from_utf8_lossy(&run.stdout).into_owned())?;
    check_messages(&messages)?;
    Ok(results)
}

/// A test program, and its trace on the host.
struct Known {
    program: programs::Program,
    path: PathBuf,
    trace: Trace,
}

impl Known {
    fn name(&self) -> &'static str {
        self.program.name()
    }

    /// Checks that the program had the same output and status in the guest as on the host.
    fn check_output(&self, results: &Results) -> Result<()> {
        let name = self.name();
        let (status, output) = (
            results.read(&format!("{name}.status"))?,
            results.read(&format!("{name}.output"))?,
        );
        // perf blocks SIGWINCH, also for the program that it starts (pthread__block_sigwinch() in
        // its perf.c), and this program exits with 1 if a signal is blocked.
        let expected = match name {
            "syscalls" => 1,
            _ => self.program.status,
        };
        ensure!(
            status.trim() == expected.to_string() && output.as_bytes() == self.trace.stdout,
            "{name} exits with {status}\n{output}\n{}",
            results.read(&format!("{name}.errors"))?
        );
        Ok(())
    }

    /// Checks that `got` are the program's branches.
    fn check_branches(&self, got: &[Branch], results: &Results) -> Result<()> {
        let symbols = Symbols::read(&self.path)?;
        if let Some(text) = first_difference(&self.trace.branches, got, &symbols) {
            let errors = results.read(&format!("{}.errors", self.name()))?;
            bail!("{}: {text}\n{errors}", self.name());
        }
        println!("{}: {} branches, all equal", self.name(), got.len());
        Ok(())
    }
}

/// Runs `before`, then `commands` for each test program. `$p` is the name of the program.
fn run_programs(
    machine: &Machine,
    guest: Guest,
    directory: &Path,
    before: &str,
    commands: &str,
) -> Result<(Vec<Known>, Results)> {
    // This fails early if the root file system is missing.
    file("root")?;
    let known: Vec<Known> = programs::ALL
        .iter()
        .map(|&program| {
            let path = program.build(directory)?;
            let trace = oracle::trace(&path)?;
            Ok(Known {
                program,
                path,
                trace,
            })
        })
        .collect::<Result<_>>()?;
    let files: Vec<(&str, &Path)> = known
        .iter()
        .map(|known| (known.name(), known.path.as_path()))
        .collect();
    let mut script = format!("{before}\n");
    for (name, _) in &files {
        writeln!(script, "p={name}\n{commands}")?;
    }
    let results = run(machine, guest, directory, &script, &files)?;
    for known in &known {
        known.check_output(&results)?;
    }
    Ok((known, results))
}

/// Parses a hexadecimal address without 0x.
fn address(text: &str) -> Result<u64> {
    u64::from_str_radix(text, 16).with_context(|| format!("no address: {text:?}"))
}
