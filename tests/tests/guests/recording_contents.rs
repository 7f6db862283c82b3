//! What a recording contains, and what is kept out of it.

use std::fs;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Run, TestModule};

use super::recordings::{Recorded, replay};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("inputs_are_listed", listed),
            ("excluded_contents_are_kept_out", excluded),
            ("a_long_replay_opens_no_files", no_files),
            ("a_kernel_is_found_by_its_hash", referred_kernel),
        ],
    )
}

/// The rows of `vbts report inputs --json` of a kind.
fn rows(run: &Run, kind: &str) -> Result<Vec<Value>> {
    let text = std::str::from_utf8(&run.stdout)?;
    let rows: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    Ok(rows.into_iter().filter(|row| row["kind"] == kind).collect())
}

fn listed(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let data = directory.path().join("data file");
    fs::write(&data, "x".repeat(5000))?;
    let file = directory.path().join("run.vbts");
    let mut command = machine.command(["record", "--quiet", "-o"]);
    let script = "cat \"$1\" > /dev/null; ls /usr > /dev/null; readlink /bin; cat; kill -TERM $$";
    command
        .arg(&file)
        .args(["--", "/bin/sh", "-c", script, "sh"]);
    command
        .arg(&data)
        .env_clear()
        .env("SECRET", "abcde")
        .env("PATH", "/usr/bin");
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(b"typed text")?;
    drop(writer);
    command.stdin(reader);
    let run = machine::finish(command)?;
    ensure!(run.status == Some(143), "{run:?}");

    let report = |options: &[&str]| {
        let mut command = machine.command(["report", "inputs"]);
        command.args(options).arg(&file);
        machine::finish(command)?.expect(0)
    };
    let text = report(&[])?;
    for part in [
        "SECRET",
        "descriptor 0: 10 bytes",
        "/data file",
        "/bin/sh -c",
    ] {
        ensure!(text.printed().contains(part), "{part}: {}", text.printed());
    }
    ensure!(!text.printed().contains("abcde"), "{}", text.printed());
    let json = report(&["--json"])?;
    let environment = rows(&json, "environment")?;
    ensure!(
        environment
            .iter()
            .any(|row| row["name"] == "SECRET" && row["bytes"] == 5),
        "{environment:?}"
    );
    let input = rows(&json, "input")?;
    ensure!(input.len() == 1 && input[0]["bytes"] == 10, "{input:?}");
    let files = rows(&json, "file")?;
    let find = |path: &str, what: &str| {
        let row = files
            .iter()
            .find(|row| row["path"] == path && row["what"] == what);
        row.map(|row| row["bytes"].as_u64().unwrap_or(0))
    };
    let data = data.to_str().context("a path")?;
    ensure!(find(data, "contents") == Some(5000), "{files:?}");
    ensure!(find("/usr", "names") > Some(50), "{files:?}");
    ensure!(find("/bin", "link") >= Some(7), "{files:?}");

    // A trace has no inputs.
    let trace = directory.path().join("run.btrace");
    let trace = trace.to_str().context("a path")?;
    machine
        .run(["trace", "--accel", "soft", "-o", trace, "--", "/bin/true"])?
        .expect(0)?;
    let run = machine.run(["report", "inputs", trace])?.expect(125)?;
    ensure!(run.stderr.contains("is no recording"), "{run:?}");
    Ok(())
}

/// Returns whether the decompressed contents of a recording contain `text`.
fn contains(recorded: &Recorded, text: &[u8]) -> Result<bool> {
    use vbts_recording::{Item, Reader};
    let (_, mut reader) = Reader::new(fs::File::open(recorded.file())?)?;
    while let Some(item) = reader.next()? {
        let (Item::Reply { reply: bytes, .. } | Item::Input { bytes, .. }) = item else {
            continue;
        };
        if bytes.windows(text.len()).any(|window| window == text) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn excluded(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let secrets = directory.path().join("secrets");
    fs::create_dir(&secrets)?;
    let secret = secrets.join("key");
    fs::write(&secret, "the secret key\n")?;
    fs::write(directory.path().join("secrets2"), "no secret\n")?;
    let secrets = secrets.to_str().context("a path")?;
    let share = format!("{}:rw", directory.path().display());
    let script = format!("echo a; cat {secrets}2; ls {secrets}; cat {secrets}/key; echo b");
    let program = ["/bin/sh", "-c", &script];
    for options in [
        &["--exclude", secrets][..],
        &["--exclude", secrets, "--share", &share],
        &["--exclude", secret.to_str().context("a path")?],
    ] {
        let recorded = Recorded::new(machine, options, &program)?;
        let expected = b"a\nno secret\nkey\nthe secret key\nb\n";
        ensure!(recorded.run.stdout == expected, "{:?}", recorded.run);
        ensure!(!contains(&recorded, b"the secret key")?, "{options:?}");
        let replayed = replay(machine, &recorded.file(), &[])?.expect(125)?;
        ensure!(replayed.stdout == b"a\nno secret\nkey\n", "{replayed:?}");
        ensure!(
            replayed.stderr.contains("key is read there") && replayed.stderr.contains("--exclude"),
            "{replayed:?}"
        );
    }
    // Without the option it is there.
    let recorded = Recorded::new(machine, &[], &program)?;
    ensure!(contains(&recorded, b"the secret key")?);

    // A file that the program has open from the start.
    let file = directory.path().join("run.vbts");
    let mut command = machine.command(["record", "--exclude", secrets, "-o"]);
    command
        .arg(&file)
        .args(["--", "/bin/cat"])
        .stdin(fs::File::open(&secret)?);
    let run = machine::finish(command)?.expect(0)?;
    ensure!(run.stdout == b"the secret key\n", "{run:?}");
    ensure!(run.stderr.contains("which --exclude keeps out"), "{run:?}");
    let replayed = replay(machine, &file, &[])?.expect(125)?;
    ensure!(replayed.stdout.is_empty(), "{replayed:?}");

    let recorded = Recorded::new(machine, &["--exclude", "/nonexistent"], &["/bin/true"])?;
    ensure!(recorded.run.status == Some(125) && !recorded.file().exists());
    Ok(())
}

fn referred_kernel(machine: &Machine) -> Result<()> {
    // The kernel is at its path for the recorded run alone.
    let kernels = tempfile::tempdir()?;
    let kernel = |name: &str| kernels.path().join(name);
    fs::copy(machine.kernel(), kernel("recorded"))?;
    let path = kernel("recorded");
    let options = [
        "--refer-kernel",
        "--kernel",
        path.to_str().context("a path")?,
    ];
    let program = ["/bin/sh", "-c", "echo text; exit 3"];
    let recorded = Recorded::new(machine, &options, &program)?;
    ensure!(recorded.run.status == Some(3), "{:?}", recorded.run);
    let len = fs::metadata(recorded.file())?.len();
    ensure!(len < 2 << 20, "{len} bytes");
    let replay_with = |named: &str| {
        let mut command = machine.command(["replay", "--quiet"]);
        command
            .arg(recorded.file())
            .env("VBTS_KERNEL", kernel(named));
        machine::finish(command)
    };
    let same = |named: &str| {
        let replayed = replay_with(named)?.expect(3)?;
        ensure!(replayed.stdout == recorded.run.stdout, "{replayed:?}");
        Ok(())
    };
    same("nothing")?;
    fs::rename(kernel("recorded"), kernel("renamed"))?;
    same("renamed")?;
    // Another kernel, at either place.
    let mut other = fs::read(kernel("renamed"))?;
    *other.last_mut().context("a byte")? ^= 1;
    fs::write(kernel("other"), &other)?;
    fs::write(kernel("recorded"), &other)?;
    let missing = replay_with("other")?.expect(126)?;
    for part in ["SHA-256", "/recorded", "VBTS_KERNEL"] {
        ensure!(missing.stderr.contains(part), "{part}: {missing:?}");
    }
    let mut command = machine.command(["report", "inputs"]);
    command.arg(recorded.file());
    let listed = machine::finish(command)?.expect(0)?;
    ensure!(
        listed.printed().contains("not in the file, SHA-256"),
        "{listed:?}"
    );
    Ok(())
}

/// A replay that opened a file would be killed. Threads write the traces, and their heaps grow and
/// shrink.
fn no_files(machine: &Machine) -> Result<()> {
    let script = "print(sum(len(str(i)) for i in range(300000)))";
    let recorded = Recorded::new(machine, &[], &["/usr/bin/python3", "-c", script])?;
    let path = |name: &str| recorded.directory.path().join(name);
    let output = path("run.btrace");
    let output = output.to_str().context("a path")?;
    for options in [
        &["--scope", "all", "--record", output][..],
        &["--scope", "all", "--output", output],
        &["--format", "raw", "--output", output],
    ] {
        let run = replay(machine, &recorded.file(), options)?.expect(0)?;
        ensure!(run.stdout == recorded.run.stdout, "{run:?}");
        let len = fs::metadata(output)?.len();
        ensure!(len > 100_000, "{options:?}: {len} bytes");
    }
    let checked = replay(machine, &recorded.file(), &["--check"]);
    checked?.expect(0)?;
    Ok(())
}
