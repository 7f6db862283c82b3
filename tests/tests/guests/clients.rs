//! perf and GDB as Debian has them, on Debian's unmodified kernel and on our own: what they say of
//! programs whose every branch is known.
//!
//! They come from the root file system of `ci/guest-rootfs`, which is mounted read-only: from the
//! disk image, or over 9P by our kernel, which has no disk driver. What they print comes back as an
//! archive, on a second disk or in a second directory.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use object::{Object, ObjectSymbol};
use vbts_tests::branches::{Branch, Symbols, first_difference};
use vbts_tests::machine::{self, Machine, Test};
use vbts_tests::oracle::{self, Trace};
use vbts_tests::programs;

use crate::stock_kernel::{PATIENCE, file, initrd_with};

/// The kernel that a client runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Debian,
    Ours,
}

pub fn trials(module: &str) -> Vec<Trial> {
    type Client = fn(&Machine, Kernel) -> Result<()>;
    let clients: [(&str, Client); 4] = [
        ("perf_intel_bts", intel_bts),
        ("perf_branches", branches),
        ("perf_stat", stat),
        ("gdb", gdb),
    ];
    let kernels = [(Kernel::Debian, "debian"), (Kernel::Ours, "ours")];
    let tests = clients.iter().flat_map(|&(name, client)| {
        kernels.map(|(kernel, on)| {
            let test: Test = Box::new(move |machine: &Machine| client(machine, kernel));
            (format!("{name}_on_{on}"), test)
        })
    });
    machine::trials(module, tests.collect())
}

/// What the initial RAM disk does when it has mounted the root file system: runs /programs/commands
/// there, and puts what they have written into an archive.
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

/// Before that: two disks, one of which is the archive.
const DISKS: &str = "
    mount -t ext4 -o ro,noload /dev/vda /root || reboot -f
    archive=/dev/vdb";

/// Or two directories, one of which gets the archive.
const DIRECTORIES: &str = "
    mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=512000,ro root /root || reboot -f
    mkdir /share; mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share0 /share
    archive=/share/archive";

/// Before the commands. perf looks for the kernel's own symbols in /proc/kallsyms whenever it
/// starts, which takes the software CPU longer than what it is told to do; from a user who may not
/// see them it hides nothing else.
const PREPARE: &str = "
    export HOME=/tmp LC_ALL=C PATH=/usr/bin:/bin
    echo 2 >/proc/sys/kernel/kptr_restrict
    cd /tmp";

/// What the kernel says when it does not like something.
const COMPLAINTS: [&str; 5] = ["WARNING:", "BUG:", "Uhhuh", "Call Trace:", "soft lockup"];

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

/// Runs a shell script in the guest, in a directory with these files and an empty one, `results`.
fn run(
    machine: &Machine,
    kernel: Kernel,
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
    // A counter that is always on would keep the guest on the software CPU.
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
    // Another machine than the default.
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
    ensure!(
        !COMPLAINTS.iter().any(|text| messages.contains(text)),
        "the guest's kernel complains:\n{messages}"
    );
    Ok(results)
}

/// A test program, and what it did on the host.
struct Known {
    program: programs::Program,
    path: PathBuf,
    trace: Trace,
}

impl Known {
    fn name(&self) -> &'static str {
        self.program.name()
    }

    /// The program did in the guest what it does on the host.
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

    /// These are its branches.
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

/// Runs `commands` for every test program in turn, whose name is `$p` in them.
fn run_programs(
    machine: &Machine,
    kernel: Kernel,
    directory: &Path,
    before: &str,
    commands: &str,
) -> Result<(Vec<Known>, Results)> {
    // Before the long work: what is missing.
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
    let results = run(machine, kernel, directory, &script, &files)?;
    for known in &known {
        known.check_output(&results)?;
    }
    Ok((known, results))
}

/// An address without 0x.
fn address(text: &str) -> Result<u64> {
    u64::from_str_radix(text, 16).with_context(|| format!("no address: {text:?}"))
}

/// The branches of `perf script -F ip,addr`.
fn parse_script(text: &str) -> Result<Vec<Branch>> {
    text.lines()
        .map(|line| {
            let (from, to) = line
                .split_once("=>")
                .with_context(|| format!("no branch: {line:?}"))?;
            Ok(Branch {
                from: address(from.trim())?,
                to: address(to.trim())?,
            })
        })
        .collect()
}

/// The buffers of branch records in a file of `perf record`
/// (tools/perf/Documentation/perf.data-file-format.txt), with what is in each.
fn parse_buffers(data: &[u8]) -> Result<Vec<Vec<Branch>>> {
    /// PERF_RECORD_AUXTRACE: a header of eight bytes, of which type and size count here, and the
    /// size of what follows.
    const AUXTRACE: u64 = 71;
    let number = |at: u64, len: u64| -> Result<u64> {
        let bytes = usize::try_from(at)
            .ok()
            .and_then(|at| data.get(at..at.checked_add(len as usize)?))
            .context("the file is cut off")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |n, byte| n << 8 | u64::from(*byte)))
    };
    ensure!(data.starts_with(b"PERFILE2"), "no perf.data file");
    // The section `data` of struct perf_header.
    let (mut at, size) = (number(40, 8)?, number(48, 8)?);
    let end = at.saturating_add(size);
    let mut buffers = Vec::new();
    while at < end {
        let (kind, size) = (number(at, 4)?, number(at + 6, 2)?);
        ensure!(size >= 8, "an event of {size} bytes");
        let next = at + size;
        let following = if kind == AUXTRACE {
            number(at + 8, 8)?
        } else {
            0
        };
        at = next.saturating_add(following);
        if kind == AUXTRACE {
            let mut buffer = Vec::new();
            for record in (next..at).step_by(24) {
                let word = |n: u64| number(record + n * 8, 8);
                // The "predicted" flag is clear, as on the Core microarchitecture.
                ensure!(word(2)? & 0x10 == 0, "a predicted branch");
                buffer.push(Branch {
                    from: word(0)?,
                    to: word(1)?,
                });
            }
            buffers.push(buffer);
        }
    }
    Ok(buffers)
}

/// The PMU `intel_bts`: its buffer has the program's branches and the returns from the kernel.
/// `perf script` leaves out the last record of each buffer, because intel_bts_process_buffer() in
/// perf's util/intel-bts.c goes on while there is more than one, and empty records.
fn intel_bts(machine: &Machine, kernel: Kernel) -> Result<()> {
    const COMMANDS: &str = "
        perf record -q -N -B -o data --per-thread -e intel_bts//u -- ./$p >results/$p.output 2>results/$p.errors
        echo $? >results/$p.status
        perf script -i data --itrace=b -F ip,addr >results/$p.script 2>>results/$p.errors
        mv data results/$p.data";
    let directory = tempfile::tempdir()?;
    let before = "perf list >results/list 2>&1";
    let (known, results) = run_programs(machine, kernel, directory.path(), before, COMMANDS)?;
    let list = results.read("list")?;
    ensure!(
        list.lines()
            .any(|line| line.trim_start().starts_with("intel_bts//")),
        "perf list does not have intel_bts:\n{list}"
    );
    for known in &known {
        let name = known.name();
        let buffers = parse_buffers(&results.bytes(&format!("{name}.data"))?)?;
        let is_record = |branch: &Branch| (branch.from | branch.to) != 0;
        let mut all = buffers.concat();
        ensure!(
            all.iter().all(|branch| branch.to >> 63 == 0),
            "{name}: there is a branch to the kernel, which BTS_OFF_OS excludes"
        );
        all.retain(|branch| is_record(branch) && branch.is_user());
        known.check_branches(&all, &results)?;

        let shown: Vec<Branch> = buffers
            .iter()
            .flat_map(|buffer| buffer.split_last().map_or(&[][..], |(_, others)| others))
            .copied()
            .filter(is_record)
            .collect();
        let script = parse_script(&results.read(&format!("{name}.script"))?)?;
        if let Some(text) = first_difference(&shown, &script, &Symbols::read(&known.path)?) {
            bail!("{name}: perf script shows other branches than the buffers have: {text}");
        }
    }
    Ok(())
}

/// The event `branches` with a period of 1: the kernel makes a sample of each record between user
/// addresses.
fn branches(machine: &Machine, kernel: Kernel) -> Result<()> {
    // A ring with room for all: the kernel drops the samples of 2,560 records at once if they do
    // not fit.
    const COMMANDS: &str = "
        perf record -q -N -B -m 4096 -o data -e branches:u -c 1 -d -- ./$p >results/$p.output 2>results/$p.errors
        echo $? >results/$p.status
        perf script -i data -F ip,addr >results/$p.script 2>>results/$p.errors";
    let directory = tempfile::tempdir()?;
    let (known, results) = run_programs(machine, kernel, directory.path(), "", COMMANDS)?;
    for known in &known {
        let script = parse_script(&results.read(&format!("{}.script", known.name()))?)?;
        known.check_branches(&script, &results)?;
    }
    Ok(())
}

/// Counts are those of single-stepping.
fn stat(machine: &Machine, kernel: Kernel) -> Result<()> {
    // perf stat has nothing to say of a program that ends before it waits for it: its SIGCHLD
    // handler has forgotten it by then (skip_signal() in perf's builtin-stat.c), and it exits with
    // 0. Who runs first is another the next time.
    const COMMANDS: &str = "
        for again in 1 2 3 4 5; do
            perf stat -x, -o results/$p.stat -e instructions:u,branches:u -- ./$p >results/$p.output 2>results/$p.errors
            status=$?
            [ $status = 0 ] || break
        done
        echo $status >results/$p.status";
    let directory = tempfile::tempdir()?;
    let (known, results) = run_programs(machine, kernel, directory.path(), "", COMMANDS)?;
    for known in &known {
        let name = known.name();
        let text = results.read(&format!("{name}.stat"))?;
        // Number, unit, event, time that it counted, share of the time.
        let counts: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.split(',').take(5).collect())
            .collect();
        let Trace {
            instructions,
            branch_instructions,
            ..
        } = known.trace;
        let (instructions, branches) = (instructions.to_string(), branch_instructions.to_string());
        let mut rows = [(&instructions, "instructions:u"), (&branches, "branches:u")]
            .into_iter()
            .zip(&counts);
        let equal = rows.all(|((number, event), row)| match row.as_slice() {
            [n, "", e, _, share] => n == number && *e == event && *share == "100.00",
            _ => false,
        });
        ensure!(
            equal && counts.len() == 2,
            "{name}: not {instructions} instructions and {branches} branches:\n{text}"
        );
        println!("{name}: {instructions} instructions, {branches} branches");
    }
    Ok(())
}

/// What GDB is told. Each @ begins what one of its answers is looked for in.
const GDB: &str = r#"
set width 0
set height 0
set confirm off
set startup-with-shell off
starti
record btrace bts
break *finish
continue
echo @info\n
info record
echo @instructions\n
record instruction-history 1,100
echo @calls\n
record function-call-history /ic 1,100
echo @reverse-stepi\n
reverse-stepi
printf "\n%#lx\n", (long) $pc
echo @reverse-stepi again\n
reverse-stepi
printf "\n%#lx\n", (long) $pc
echo @reverse-finish\n
reverse-finish
printf "\n%#lx\n", (long) $pc
echo @goto\n
record goto 6
printf "\n%#lx\n", (long) $pc
echo @stop\n
record goto end
record stop
printf "\n%#lx\n", (long) $pc
continue
"#;

/// `record btrace bts`: history, and going back in it.
fn gdb(machine: &Machine, kernel: Kernel) -> Result<()> {
    file("root")?;
    let directory = tempfile::tempdir()?;
    let source = programs::source("history.S");
    let program = programs::compile(&source, &directory.path().join("history"), &[])?;
    let script = directory.path().join("gdb");
    fs::write(&script, GDB)?;
    let results = run(
        machine,
        kernel,
        directory.path(),
        "gdb -nx -q -batch -x script ./history >results/gdb 2>&1",
        &[("history", &program), ("script", &script)],
    )?;
    let output = results.read("gdb")?;
    println!("{output}");
    check_gdb(&output, &program).with_context(|| output.clone())
}

fn check_gdb(output: &str, program: &Path) -> Result<()> {
    let at = functions(program)?;
    let at = |name: &str, offset: u64| -> Result<u64> {
        let start = at.get(name).with_context(|| format!("no {name}"))?;
        Ok(start + offset)
    };
    let section = |name: &str| -> Result<&str> {
        let (_, rest) = output
            .split_once(&format!("@{name}\n"))
            .with_context(|| format!("GDB did not come to {name}"))?;
        Ok(rest.split('@').next().unwrap_or_default())
    };

    let info = section("info")?;
    for expected in [
        "Recording format: Branch Trace Store.",
        "Recorded 12 instructions in 7 functions (0 gaps) for thread 1 ",
    ] {
        ensure!(info.contains(expected), "info record has no {expected:?}");
    }

    let mut expected = Vec::new();
    for (number, (function, offset)) in [
        ("_start", 0),
        ("outer", 0),
        ("outer", 5),
        ("leaf", 0),
        ("leaf", 2),
        ("outer", 10),
        ("outer", 5),
        ("leaf", 0),
        ("leaf", 2),
        ("outer", 10),
        ("outer", 12),
        ("_start", 5),
    ]
    .into_iter()
    .enumerate()
    {
        expected.push((format!("{}", number + 1), at(function, offset)?));
    }
    let mut got = Vec::new();
    for line in section("instructions")?.lines() {
        let mut words = line.split_whitespace();
        let (number, address) = (words.next(), words.next());
        let address = address.and_then(|text| text.strip_prefix("0x"));
        got.push((
            number.unwrap_or_default().to_owned(),
            self::address(address.context("no address")?)?,
        ));
    }
    ensure!(
        got == expected,
        "instructions {got:x?}\ninstead of {expected:x?}"
    );

    let calls: Vec<&str> = section("calls")?.lines().collect();
    let expected = [
        "1\t_start\tinst 1,1",
        "2\t  outer\tinst 2,3",
        "3\t    leaf\tinst 4,5",
        "4\t  outer\tinst 6,7",
        "5\t    leaf\tinst 8,9",
        "6\t  outer\tinst 10,11",
        "7\t_start\tinst 12,12",
    ];
    ensure!(calls == expected, "calls {calls:#?}");

    for (name, expected) in [
        ("reverse-stepi", at("_start", 5)?),
        ("reverse-stepi again", at("outer", 12)?),
        ("reverse-finish", at("_start", 0)?),
        ("goto", at("outer", 10)?),
        ("stop", at("finish", 0)?),
    ] {
        ensure!(
            section(name)?
                .lines()
                .any(|line| line == format!("{expected:#x}")),
            "{name} does not lead to {expected:#x}"
        );
    }
    ensure!(section("stop")?.contains("exited normally"));
    Ok(())
}

/// Where the functions of a program begin.
fn functions(program: &Path) -> Result<BTreeMap<String, u64>> {
    let bytes = fs::read(program)?;
    let file = object::File::parse(&*bytes)?;
    Ok(file
        .symbols()
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
        .collect())
}
