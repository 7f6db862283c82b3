//! Debian's unmodified kernel on the software CPU: its devices, its console, a root file system on
//! a disk, and shutdown.
//!
//! `ci/guest-rootfs --kernel-only` fetches the files that the first tests need. Without that option
//! it also makes the root file system that the others need. `VBTS_GUEST_ROOTFS` replaces the
//! directory `target/guest-rootfs`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_vmm::boot::cpio::Cpio;

/// Time limit of each wait on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(900);
/// A prompt of root's shell in the root file system.
const PROMPT: &str = "root@vbts-guest:~# ";

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("devices_and_power_off", devices),
            ("two_runs_have_the_same_output", same),
            ("sigterm_presses_the_power_button", power_button),
            (
                "keys_reach_the_guest_and_the_terminal_is_restored",
                terminal,
            ),
            ("boots_from_a_disk", disk),
            (
                "a_recording_has_the_names_of_a_kernel_without_a_file",
                names,
            ),
            ("sigterm_shuts_down_debian", sigterm),
            ("a_program_needs_the_kernel_of_vbts", program),
        ],
    )
}

/// A file that `ci/guest-rootfs` makes.
pub fn file(name: &str) -> Result<PathBuf> {
    let directory = machine::find("VBTS_GUEST_ROOTFS", "guest-rootfs")
        .map_err(|_| Skip("there is no target/guest-rootfs: ci/guest-rootfs makes it".into()))?;
    let path = directory.join(name);
    if !path.exists() {
        let path = path.display();
        return Err(Skip(format!("there is no {path}: ci/guest-rootfs makes it")).into());
    }
    Ok(path)
}

/// Texts with which the kernel reports a problem.
const COMPLAINTS: [&str; 5] = ["WARNING:", "BUG:", "Uhhuh", "Call Trace:", "soft lockup"];

/// The start of a message that is none: Linux takes each Skylake for vulnerable, and no register
/// could tell it otherwise (`cpu_vuln_blacklist` in arch/x86/kernel/cpu/common.c).
const RETBLEED: &str = "RETBleed: WARNING:";

/// Checks that the kernel has reported no problem.
pub fn check_messages(messages: &str) -> Result<()> {
    let complains = |line: &str| COMPLAINTS.iter().any(|text| line.contains(text));
    ensure!(
        !messages
            .lines()
            .any(|line| complains(line) && !line.contains(RETBLEED)),
        "the guest's kernel complains:\n{messages}"
    );
    Ok(())
}

/// An initial RAM disk whose first program runs the script `job`.
fn initrd(directory: &Path, job: &str) -> Result<PathBuf> {
    initrd_with(directory, job, &[])
}

/// As [`initrd`], with these programs in the directory `/programs`.
pub fn initrd_with(directory: &Path, job: &str, programs: &[(&str, &Path)]) -> Result<PathBuf> {
    let mut image = fs::read(file("initrd")?)?;
    let mut more = Cpio::new();
    more.file("init.job", 0o644, job.as_bytes());
    more.directory("programs", 0o755);
    for (name, path) in programs {
        more.file(&format!("programs/{name}"), 0o755, &fs::read(path)?);
    }
    image.extend(more.finish());
    let path = directory.join("initrd");
    fs::write(&path, image)?;
    Ok(path)
}

/// The command that boots the kernel.
pub fn boot(machine: &Machine, initrd: &Path, options: &[&str]) -> Result<Command> {
    let mut command = machine.command(["run", "--accel", "soft", "--memory", "512M", "--kernel"]);
    command
        .arg(file("vmlinuz")?)
        .arg("--initrd")
        .arg(initrd)
        .args(options);
    Ok(command)
}

/// A program is not traced with this kernel, and the message says what can be done with it.
fn program(machine: &Machine) -> Result<()> {
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--kernel"]);
    command.arg(file("vmlinuz")?).args(["--", "/bin/true"]);
    let run = machine::finish(command)?.expect(255)?;
    let wanted = "the kernel of vbts (guest-kernel/build), and `vbts run --record` records any";
    ensure!(run.stderr.contains(wanted), "{}", run.stderr);
    Ok(())
}

/// The kernel is a bzImage, which moves itself to a random address. The names in its recording are
/// those that the guest reads in `/proc/kallsyms`, with those of modules. The driver of
/// `/dev/hwrng` is one.
fn names(machine: &Machine) -> Result<()> {
    const JOB: &str = "
        grep ' [tT] [a-z_0-9]*$' /proc/kallsyms > /symbols; wc -l < /symbols
        awk 'NR % 16 == 0 { print \"symbol\", $1, $3 }' /symbols
        awk '$2 ~ /[tT]/ && $4 == \"[virtio_rng]\" { print \"module\", $1, $3 }' /proc/kallsyms
        head -c 64 /dev/hwrng > /dev/null; poweroff -f";
    let directory = tempfile::tempdir()?;
    let initrd = initrd(directory.path(), JOB)?;
    let recording = directory.path().join("boot.btrace");
    let mut command = boot(machine, &initrd, &["--record-last", "2000000", "--record"])?;
    command.arg(&recording).stdin(Stdio::null());
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    let mut symbols: HashMap<&str, Vec<u64>> = HashMap::new();
    let console = String::from_utf8_lossy(&run.stdout);
    let mut of_module = HashSet::new();
    for line in console.lines() {
        if let Some((kind @ ("symbol" | "module"), symbol)) = line.trim_end().split_once(' ')
            && let Some((address, name)) = symbol.split_once(' ')
        {
            let address = u64::from_str_radix(address, 16)?;
            symbols.entry(name).or_default().push(address);
            if kind == "module" {
                of_module.insert(name);
            }
        }
    }
    let report = |words: &[&str]| -> Result<String> {
        let mut command = machine.command(["report"]);
        command.args(words).arg(&recording);
        let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
        Ok(String::from_utf8(run.stdout)?)
    };
    let text = report(&["text"])?;
    let mut compared = HashSet::new();
    for words in text.lines().flat_map(|line| line.split(" -> ")) {
        let Some((address, label)) = words.split_once(' ') else {
            continue;
        };
        let label = label.split(' ').next().unwrap_or_default();
        if let Some((name, offset)) = label.rsplit_once("+0x")
            && let Some(starts) = symbols.get(name)
        {
            let offset = u64::from_str_radix(offset, 16)?;
            let start = u64::from_str_radix(address, 16)? - offset;
            ensure!(starts.contains(&start), "{words}: {name} is at {starts:x?}");
            compared.insert(name);
        }
    }
    ensure!(
        compared.len() > 50,
        "{} of {} names were compared",
        compared.len(),
        symbols.len()
    );
    let found = compared.intersection(&of_module).count();
    ensure!(found > 1, "{of_module:?} are not among {compared:?}");
    let functions = report(&["functions", "--json", "--limit", "100000"])?;
    for name in compared.intersection(&of_module) {
        let row = functions
            .lines()
            .find(|row| row.contains(&format!("\"name\":\"{name}\"")));
        let row = row.with_context(|| format!("no {name}"))?;
        ensure!(!row.contains("\"instructions\":0,"), "no code: {row}");
    }
    let counted = functions
        .lines()
        .filter(|line| !line.contains("\"instructions\":0,"));
    let (counted, all) = (counted.count(), functions.lines().count());
    ensure!(counted > all / 2, "{counted} of {all} functions have code");
    Ok(())
}

fn devices(machine: &Machine) -> Result<()> {
    const JOB: &str = "
        echo nr: $(nproc); cat /proc/interrupts; cat /sys/class/misc/hw_random/rng_current
        head -c 10 /dev/vda; echo; cat /sys/block/vda/ro /sys/block/vdb/ro /sys/block/vda/size
        head -c 512 /dev/vda | dd of=/dev/vda bs=512 seek=3 conv=fsync 2>/dev/null
        blkdiscard -o 4096 -l 4096 /dev/vda; sync; tail -c 3 /dev/vdb; echo
        dd if=/dev/zero of=/dev/vdb bs=512 count=1 conv=fsync 2>&1 | tail -n 1
        od -An -tx1 -N8 /dev/hwrng; date -u +%Y; poweroff -f";
    let directory = tempfile::tempdir()?;
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let mut contents = vec![0x55; 1 << 20];
    contents[..10].copy_from_slice(b"first disk");
    fs::write(&first, &contents)?;
    fs::write(&second, [&[b'x'; 509][..], b"end"].concat())?;
    let initrd = initrd(directory.path(), JOB)?;
    let mut command = boot(machine, &initrd, &["--smp", "2", "--disk"])?;
    command.arg(&first).arg("--disk");
    command.arg(format!("{},ro", second.display()));
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    for expected in [
        "ACPI: PM: (supports S0 S5)",
        "nr: 2",
        "5-fasteoi   virtio0",
        "ACPI:Ged",
        "ttyS0",
        "virtio_rng.0",
        "first disk",
        "\n0\r\n1\r\n2048\r\n",
        "\nend\r\n",
        "2026",
        "reboot: Power down",
    ] {
        ensure!(output.contains(expected), "no {expected:?} in\n{output}");
    }
    let disk = fs::File::open(&first)?;
    let mut sector = [0; 512];
    disk.read_exact_at(&mut sector, 3 * 512)?;
    ensure!(
        sector == contents[..512],
        "the sector that the guest wrote is not on the disk"
    );
    ensure!(disk.metadata()?.len() == contents.len() as u64);
    ensure!(
        fs::read(&second)?[0] == b'x',
        "a read-only disk was written"
    );
    Ok(())
}

fn same(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let initrd = initrd(
        directory.path(),
        "dmesg; head -c 100 /dev/vda; od -An -tx1 -N32 /dev/hwrng /dev/urandom; poweroff -f",
    )?;
    let disk = directory.path().join("disk");
    fs::write(&disk, [7; 4096])?;
    let once = || -> Result<Vec<u8>> {
        let mut command = boot(machine, &initrd, &["--disk"])?;
        command.arg(&disk);
        Ok(machine::finish_within(command, PATIENCE)?.expect(0)?.stdout)
    };
    ensure!(once()? == once()?, "two runs differ");
    Ok(())
}

/// A guest that is used through its serial console.
pub struct Session {
    child: Child,
    input: fs::File,
    output: Arc<Mutex<String>>,
    /// Number of bytes of the output that `wait_for` has consumed.
    seen: usize,
}

impl Session {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let input = OwnedFd::from(child.stdin.take().context("no pipe")?).into();
        let output = OwnedFd::from(child.stdout.take().context("no pipe")?).into();
        Ok(Self::new(child, input, output))
    }

    fn new(child: Child, input: fs::File, mut from: fs::File) -> Self {
        let output = Arc::new(Mutex::new(String::new()));
        let shared = output.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..n]).into_owned();
                shared
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&text);
            }
        });
        Self {
            child,
            input,
            output,
            seen: 0,
        }
    }

    fn output(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.clone()
    }

    /// Waits for `text`. Returns the output before it.
    fn wait_for(&mut self, text: &str) -> Result<String> {
        let start = Instant::now();
        loop {
            let output = self.output();
            let new = output.get(self.seen..).unwrap_or_default();
            if let Some(at) = new.find(text) {
                let before = new[..at].to_owned();
                self.seen += at + text.len();
                return Ok(before);
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                bail!("no {text:?} ({ended:?}):\n{output}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types a command. Returns the output before the next prompt.
    pub fn command(&mut self, line: &str) -> Result<String> {
        writeln!(self.input, "{line}")?;
        self.wait_for("\n")?;
        self.wait_for(PROMPT)
    }

    /// Types a command. Its output must contain `expected`.
    pub fn expect(&mut self, line: &str, expected: &str) -> Result<()> {
        let output = self.command(line)?;
        ensure!(output.contains(expected), "{line}: {output}");
        Ok(())
    }

    /// Types the command that powers off the guest, and waits for the end.
    pub fn power_off(&mut self) -> Result<()> {
        writeln!(self.input, "poweroff")?;
        self.end().map(drop)
    }

    fn terminate(&self) -> Result<()> {
        Ok(kill(
            Pid::from_raw(self.child.id() as i32),
            Signal::SIGTERM,
        )?)
    }

    /// Waits for the end of vbts, which must succeed. Returns all output.
    fn end(&mut self) -> Result<String> {
        let status = machine::wait(&mut self.child, PATIENCE)?;
        let output = self.output();
        ensure!(status == Some(0), "exit status {status:?}:\n{output}");
        Ok(output)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn power_button(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    // The first event: KEY_POWER (116) is pressed.
    let job = "until [ -e /dev/input/event0 ]; do sleep 0.1; done; (sleep 1; echo ready) &
        dd if=/dev/input/event0 bs=24 count=1 2>/dev/null | od -An -tu2 -j16; poweroff -f";
    let initrd = initrd(directory.path(), job)?;
    let mut session = Session::start(boot(machine, &initrd, &[])?)?;
    session.wait_for("ready")?;
    session.terminate()?;
    let output = session.end()?;
    let event = output.split_once("ready").map_or("", |(_, rest)| rest);
    let words: Vec<_> = event.split_whitespace().take(4).collect();
    ensure!(words == ["1", "116", "1", "0"], "{output}");

    // A kernel that has not unmasked the interrupt, here because it is still booting, ends at once.
    let mut session = Session::start(boot(machine, &initrd, &["--append", "acpi=off"])?)?;
    session.wait_for("Linux version")?;
    session.terminate()?;
    let status = machine::wait(&mut session.child, PATIENCE)?;
    ensure!(status == Some(128 + 15), "exit status {status:?}");
    Ok(())
}

/// The guest gets every key except Ctrl-A, and vbts restores the terminal at the end. The test uses
/// our own kernel, because it boots faster.
fn terminal(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let initrd = initrd(directory.path(), "exec setsid cttyhack sh")?;
    let pty = openpty(None, None)?;
    let before = tcgetattr(&pty.slave)?;
    let mut command = machine.command(["run", "--accel", "soft", "--timeout", "300", "--kernel"]);
    command
        .arg(machine.kernel())
        .arg("--initrd")
        .arg(initrd)
        .stdin(pty.slave.try_clone()?)
        .stdout(pty.slave.try_clone()?)
        .stderr(pty.slave.try_clone()?);
    let child = command.spawn()?;
    let master = fs::File::from(pty.master);
    let mut session = Session::new(child, master.try_clone()?, master);
    session.wait_for("/ # ")?;
    let cooked = LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG;
    let flags = tcgetattr(&pty.slave)?.local_flags;
    ensure!((flags & cooked).is_empty(), "not in raw mode: {flags:?}");
    session
        .input
        .write_all(b"echo st''arted; sleep 10000; echo e''nd\n")?;
    session.wait_for("started")?;
    session.input.write_all(b"\x03")?;
    session.wait_for("/ # ")?;
    session.input.write_all(b"echo $?\n")?;
    session.wait_for("130\r\n")?;
    session.input.write_all(b"\x01x")?;
    let status = machine::wait(&mut session.child, PATIENCE)?;
    ensure!(status == Some(130), "exit status {status:?}");
    let after = tcgetattr(&pty.slave)?;
    ensure!(after == before, "{before:?}\nbecame\n{after:?}");
    ensure!(!session.output().contains("\nend"), "Ctrl-C was lost");
    Ok(())
}

/// Boots Debian with systemd from `copy`, a new copy of the root file system.
pub fn debian(machine: &Machine, copy: &Path, options: &[&str]) -> Result<Session> {
    let done = Command::new("cp")
        .args(["--sparse=always", "--reflink=auto"])
        .arg(file("rootfs.img")?)
        .arg(copy)
        .status()?;
    ensure!(done.success(), "cannot copy the root file system");
    let mut command = boot(
        machine,
        &file("initrd")?,
        &["--append", "root=/dev/vda quiet"],
    )?;
    command.arg("--disk").arg(copy).args(options);
    let mut session = Session::start(command)?;
    session.wait_for(PROMPT)?;
    Ok(session)
}

/// Checks that the file system in `image` was unmounted and has no errors.
pub fn is_clean(image: &Path) -> Result<()> {
    let check = Command::new("/sbin/e2fsck")
        .arg("-fn")
        .arg(image)
        .output()?;
    let text = String::from_utf8_lossy(&check.stdout);
    ensure!(check.status.success(), "{text}");
    Ok(())
}

fn disk(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let image = directory.path().join("root.img");
    let mut session = debian(machine, &image, &[])?;
    session.command("cd /root; stty -echo cols 200")?;
    session.expect("systemctl is-system-running --wait", "running")?;
    session.expect(
        "printf '#include <stdio.h>\\nint main(){puts(\"com\" \"piled\");}' >a.c; gcc a.c && ./a.out",
        "compiled",
    )?;
    session.expect("dpkg --audit && apt-get --version", "apt 2")?;
    session.expect(
        "seq 200000 >numbers; sync; echo 3 >/proc/sys/vm/drop_caches; sha256sum <numbers",
        "5af7b95208fdcff454bab3f5eddf567a688a3796c703d4fef91072e38645c062",
    )?;
    session.expect("fstrim -v /", "trimmed")?;
    // The only error that the kernel reports is the missing PCI bus.
    session.expect(
        "echo errors: $(dmesg --level=err,crit,alert,emerg | grep -vc 'PCI: Fatal: No config space access')",
        "errors: 0\r\n",
    )?;
    session.power_off()?;
    is_clean(&image)
}

fn sigterm(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let image = directory.path().join("root.img");
    let mut session = debian(machine, &image, &[])?;
    session.command("echo something >file")?;
    session.terminate()?;
    let output = session.end()?;
    ensure!(output.contains("reboot: Power down"), "{output}");
    is_clean(&image)
}
