//! A recording that every version with the same replay version replays: `tests/recordings`.
//!
//! It fails when the machine behaves differently than before. `REPLAY_VERSION` of
//! `recording/src/lib.rs` then has to grow, and the recording has to be made again:
//!
//!     VBTS_RECORD_GOLDEN=1 cargo test -p vbts-tests --test guests -- golden
//!
//! Its guest is a kernel of a few KiB, `golden.c`, so that neither a guest's kernel nor a compiler
//! is needed for the replay.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use vbts_recording::{Header, REPLAY_VERSION, Reader, Writer};
use vbts_tests::machine::{self, Machine, Run, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("the_machine_behaves_as_before", behaves),
            ("another_version_names_the_one_to_install", other_version),
        ],
    )
}

/// A file of `tests/recordings`.
fn file(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    directory.join(name)
}

/// Builds `golden.c`, records it, and keeps its output.
fn record(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let kernel = directory.path().join("golden");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-O2",
        "-ffreestanding",
        "-fno-pic",
        "-fno-stack-protector",
        "-msse2",
    ]);
    compiler.args([
        "-mno-red-zone",
        "-fcf-protection=none",
        "-nostdlib",
        "-static",
        "-s",
    ]);
    compiler.args(["-Wl,-Ttext=0x1000000,-e,start,--build-id=none,-z,noexecstack"]);
    compiler.arg("-o").arg(&kernel).arg(file("golden.c"));
    ensure!(compiler.status()?.success(), "{compiler:?}");
    let mut command = machine.command(["record", "--quiet", "--force", "--memory", "32M"]);
    command.arg("--kernel").arg(&kernel);
    let recorded = directory.path().join("golden.vbts");
    command.arg("-o").arg(&recorded);
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(b"typed\n")?;
    drop(writer);
    command.stdin(reader);
    let run = machine::finish(command)?.expect(7)?;
    fs::write(file("golden.txt"), run.stdout)?;
    rewrite(&recorded, &file("golden.vbts"), |header| {
        // Nothing of this machine.
        header.command = vec!["vbts".into(), "record".into()];
        header.directory = "/".into();
        header.guest["kernel"] = "golden".into();
        header.guest["run"] = serde_json::to_value(vbts_trace::Run::default()).unwrap_or_default();
    })
}

/// Writes the recording `from` to `to`, with another header.
fn rewrite(from: &Path, to: &Path, change: impl FnOnce(&mut Header)) -> Result<()> {
    let (mut header, mut reader) = Reader::new(File::open(from)?)?;
    change(&mut header);
    let mut writer = Writer::new(File::create(to)?, &header, u64::MAX)?;
    while let Some(item) = reader.next()? {
        writer.item(&item)?;
    }
    Ok(writer.flush()?)
}

fn replay(machine: &Machine, path: &Path, options: &[&str]) -> Result<Run> {
    let mut command = machine.command(["replay", "--quiet"]);
    command.args(options).arg(path);
    machine::finish(command)
}

fn behaves(machine: &Machine) -> Result<()> {
    if std::env::var_os("VBTS_RECORD_GOLDEN").is_some() {
        record(machine)?;
    }
    let expected = fs::read_to_string(file("golden.txt"))?;
    for options in [&[][..], &["--jit", "off"], &["--jit-threshold", "1"]] {
        let run = replay(machine, &file("golden.vbts"), options)?;
        ensure!(
            run.status == Some(7) && run.stdout == expected.as_bytes(),
            "the machine behaves differently than when the golden recording was made. If that is \
             intended, REPLAY_VERSION of recording/src/lib.rs has to grow, and \
             VBTS_RECORD_GOLDEN=1 makes the recording again.\n{options:?}: {run:?}\ninstead of \
             {expected}"
        );
    }
    // What it says of its machine is all that a replay needs.
    let size = fs::metadata(file("golden.vbts"))?.len();
    ensure!(size < 64 << 10, "{size} bytes");
    Ok(())
}

fn other_version(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("old.vbts");
    rewrite(&file("golden.vbts"), &path, |header| {
        header.replay_version = REPLAY_VERSION - 1;
        header.writer = "vbts 0.0.9".into();
    })?;
    let run = replay(machine, &path, &[])?.expect(125)?;
    ensure!(run.stdout.is_empty(), "{run:?}");
    for part in ["vbts 0.0.9 has made", "install vbts 0.0.9"] {
        ensure!(run.stderr.contains(part), "{part}: {run:?}");
    }
    // So do reports.
    let path = path.to_str().context("a path")?;
    for kind in ["stat", "inputs"] {
        let run = machine.run(["report", kind, path])?.expect(125)?;
        ensure!(run.stderr.contains("install vbts 0.0.9"), "{kind}: {run:?}");
    }
    Ok(())
}
