//! The host's files in the guest: many of them with few descriptors.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Skip};

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("many_files_with_256_descriptors", many_files),
            ("unlinked_programs_with_256_descriptors", unlinked),
        ],
    )
}

/// A command line of `vbts trace` that may open 256 files, without the program.
fn with_few_descriptors(machine: &Machine) -> Command {
    let trace = machine.command(["trace", "--accel", machine.accel(), "--format", "raw"]);
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
        .arg(trace.get_program())
        .args(trace.get_args())
        .args(["--output", "/dev/null"]);
    for (name, value) in trace.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

/// Every file of a tree, lines in it, and what git says about it.
const LOOK: &str = "export LC_ALL=C; cd \"$0\"
    find . -xdev -path ./.git -prune -o -print | sort
    find . -xdev -path ./.git -prune -o -type f -printf '%p %s %n %m %T@\\n' | sort
    grep -r needle src | sort
    git status --short
    git log --oneline
    git grep -c needle | sort
    cat src/dir1*/file1* | cksum";

/// A tree with a few thousand files, which is larger than a few hundred descriptors.
fn tree(directory: &Path) -> Result<()> {
    for i in 0..60 {
        let directory = directory.join(format!("src/dir{i}/deep/deeper"));
        fs::create_dir_all(&directory)?;
        for j in 0..30 {
            let needle = if (i + j) % 37 == 0 { "needle" } else { "hay" };
            let text = format!("file {j} of directory {i}\n{needle}\n");
            let place = directory.ancestors().nth(j % 3).context("no parent")?;
            fs::write(place.join(format!("file{j}")), text)?;
        }
    }
    let git = "export HOME=/ GIT_CONFIG_NOSYSTEM=1; cd \"$0\"; git init -q . && git add . && \
               git -c user.name=n -c user.email=e@example.org commit -qm first";
    let made = Command::new("/bin/sh")
        .args(["-c", git])
        .arg(directory)
        .output()?;
    if !made.status.success() {
        let error = String::from_utf8_lossy(&made.stderr).into_owned();
        return Err(Skip(format!("git: {error}")).into());
    }
    fs::write(directory.join("src/dir7/deep/file1"), "changed\n")?;
    fs::write(directory.join("src/dir8/new"), "new\n")?;
    fs::remove_file(directory.join("src/dir9/deep/deeper/file0"))?;
    Ok(())
}

fn many_files(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    tree(directory.path())?;
    let look = |mut command: Command| {
        command.args(["/bin/sh", "-c", LOOK]).arg(directory.path());
        machine::finish(command)?.expect(0)
    };
    let mut trace = with_few_descriptors(machine);
    trace.arg("--");
    let guest = look(trace)?;
    let host = look(Command::new("env"))?;
    ensure!(host.stdout.len() > 100_000, "the host shows few files");
    let (host, guest) = (
        String::from_utf8(host.stdout)?,
        String::from_utf8(guest.stdout)?,
    );
    let mut differences = String::new();
    for (a, b) in host
        .lines()
        .zip(guest.lines())
        .filter(|(a, b)| a != b)
        .take(5)
    {
        writeln!(differences, "host:  {a}\nguest: {b}")?;
    }
    let lines = (host.lines().count(), guest.lines().count());
    ensure!(host == guest, "lines: {lines:?}\n{differences}");
    Ok(())
}

/// A program and a file that are removed on the host while the guest uses them.
fn unlinked(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let shared = directory.path();
    tree(shared)?;
    fs::copy("/bin/sh", shared.join("sh"))?;
    let data: String = (0..100_000).map(|i| format!("line {i}\n")).collect();
    fs::write(shared.join("data"), &data)?;
    // The guest tells by a file when it runs, and waits for one of the host. Meanwhile it uses more
    // files than there are descriptors.
    let script = "exec 3<data; find . >/dev/null; echo > ready
        until [ -e go ]; do find . >/dev/null; done
        find . >/dev/null; cksum <&3";
    let mut command = with_few_descriptors(machine);
    command
        .arg("--share")
        .arg(format!("{}:rw", shared.display()))
        .args(["--", "./sh", "-c", script])
        .current_dir(shared);
    let (removed, gone) = (shared.join("sh"), shared.join("data"));
    let (ready, go) = (shared.join("ready"), shared.join("go"));
    let host = std::thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..6000 {
            if ready.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        fs::remove_file(removed)?;
        fs::remove_file(gone)?;
        fs::write(go, "")
    });
    let run = machine::finish(command);
    let changed = host.join().ok().context("the host's part panicked")?;
    let run = run?.expect(0)?;
    changed?;
    let expected = directory.path().join("expected");
    fs::write(&expected, &data)?;
    let host = Command::new("cksum")
        .stdin(fs::File::open(&expected)?)
        .output()?;
    ensure!(run.stdout == host.stdout, "{run:?}");
    Ok(())
}
