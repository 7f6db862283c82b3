//! `vbts record` and `vbts replay`: a replay prints what the recorded run has printed and ends as
//! it did, without anything of the host.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use vbts_recording::{Item, Reader, Writer};
use vbts_tests::machine::{self, Killed, Machine, Run, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("programs_and_their_processes", programs),
            ("several_processors_and_without_native_code", processors),
            ("branches_are_those_of_a_trace", branches),
            ("reports_are_those_of_a_trace", reports),
            ("formats_and_choices_of_a_trace", formats),
            ("the_trace_of_a_recording_is_kept", kept),
            ("branches_of_the_machine", machine_branches),
            ("files_of_the_host_are_not_needed", files),
            ("input_comes_at_its_time", input),
            ("signals_come_at_their_times", signals),
            ("the_end_by_a_signal_or_a_time_limit", ends_by_host),
            ("what_was_written_before_a_kill_replays", killed),
            ("a_recording_has_a_maximum_size", max_size),
            ("no_file_is_replaced_or_shown_to_others", care),
            ("damaged_recordings_are_refused", damaged),
            ("a_difference_is_told_with_its_place", difference),
            ("what_cannot_be_recorded", refused),
        ],
    )
}

/// A directory with a recording.
pub(super) struct Recorded {
    pub(super) directory: TempDir,
    pub(super) run: Run,
}

impl Recorded {
    pub(super) fn file(&self) -> PathBuf {
        self.directory.path().join("run.vbts")
    }

    /// Records `program` with `options`.
    pub(super) fn new(machine: &Machine, options: &[&str], program: &[&str]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut command = machine.command(["record", "--quiet", "-o"]);
        command.arg(directory.path().join("run.vbts"));
        command.args(options).arg("--").args(program);
        let run = machine::finish(command)?;
        Ok(Self { directory, run })
    }

    /// Replays the file with `options`, and compares the run with the recorded one.
    fn compare(&self, machine: &Machine, options: &[&str]) -> Result<()> {
        let replayed = replay(machine, &self.file(), options)?;
        ensure!(
            replayed.stdout == self.run.stdout
                && replayed.stderr == self.run.stderr
                && replayed.status == self.run.status,
            "{replayed:?}\ninstead of\n{:?}",
            self.run
        );
        let checked = replay(machine, &self.file(), &["--check"])?.expect(0)?;
        ensure!(checked.stdout.is_empty(), "{checked:?}");
        Ok(())
    }
}

/// Replays `file` in a process that finds no kernel of its own.
pub(super) fn replay(machine: &Machine, file: &Path, options: &[&str]) -> Result<Run> {
    let mut command = machine.command([OsStr::new("replay")]);
    command.args(["--quiet"]).args(options).arg(file);
    command.env("VBTS_KERNEL", "/nonexistent");
    command.env("VBTS_AGENT", "/nonexistent");
    machine::finish(command)
}

const SCRIPT: &str = "echo out; echo err >&2; date +%N; head -c 8 /dev/urandom | od
    (sleep 0.1; ls /) & (seq 1 2000 | sort -n | tail -1) & wait; exit 7";

fn programs(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, &[], &["/bin/sh", "-c", SCRIPT])?;
    ensure!(recorded.run.status == Some(7), "{:?}", recorded.run);
    recorded.compare(machine, &[])?;
    let recorded = Recorded::new(machine, &[], &["/bin/sh", "-c", "kill -SEGV $$"])?;
    ensure!(recorded.run.status == Some(139), "{:?}", recorded.run);
    recorded.compare(machine, &[])?;
    let script = "import json, sys; print(len(sys.modules)); json.dump([1.5], sys.stderr)";
    let recorded = Recorded::new(machine, &[], &["/usr/bin/python3", "-c", script])?;
    ensure!(recorded.run.stderr == "[1.5]", "{:?}", recorded.run);
    recorded.compare(machine, &[])
}

fn processors(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, &["--smp", "4"], &["/bin/sh", "-c", SCRIPT])?;
    ensure!(recorded.run.status == Some(7), "{:?}", recorded.run);
    recorded.compare(machine, &[])?;
    recorded.compare(machine, &["--jit", "off"])
}

/// Programs whose branches do not depend on the time.
const STEADY: [&[&str]; 3] = [
    &["/bin/echo", "text"],
    &["/bin/ls", "/usr"],
    &["/usr/bin/python3", "-S", "-c", "print(sum(range(1000)))"],
];

/// The raw records of `program` on the software processor.
fn trace(machine: &Machine, output: &Path, options: &[&str], program: &[&str]) -> Result<Vec<u8>> {
    let mut command = machine.command(["trace", "--accel", "soft", "--format", "raw", "--output"]);
    command.arg(output).args(options).arg("--").args(program);
    machine::finish(command)?.expect(0)?;
    Ok(fs::read(output)?)
}

fn branches(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let [traced, first, second] = ["traced", "first", "second"].map(|n| directory.path().join(n));
    let on_one = STEADY.iter().map(|program| (program, "1"));
    // With several processors, random numbers depend on the times of interrupts, and Python orders
    // its dictionaries by them.
    let on_several = STEADY.iter().take(2).map(|program| (program, "4"));
    for (program, processors) in on_one.chain(on_several) {
        let options = ["--smp", processors, "--epoch", "7"];
        let expected = trace(machine, &traced, &options, program)?;
        ensure!(expected.len() > 1000 && expected.len() % 24 == 0);
        let recorded = Recorded::new(machine, &options, program)?;
        for output in [&first, &second] {
            let output = output.to_str().context("a path")?;
            let options = ["--format", "raw", "--output", output];
            let run = replay(machine, &recorded.file(), &options)?.expect(0)?;
            ensure!(run.stdout == recorded.run.stdout, "{run:?}");
            let found = fs::read(output)?;
            let same = expected
                .iter()
                .zip(&found)
                .take_while(|(a, b)| a == b)
                .count();
            ensure!(
                found == expected,
                "{program:?} on {processors}: {} of {} records; the first {} are the same",
                found.len() / 24,
                expected.len() / 24,
                same / 24
            );
        }
    }
    // On standard output, without a file.
    let recorded = Recorded::new(machine, &["--epoch", "7"], STEADY[0])?;
    let run = replay(
        machine,
        &recorded.file(),
        &["--format", "raw", "--jit", "off"],
    )?;
    let run = run.expect(0)?;
    let expected = trace(machine, &traced, &["--epoch", "7"], STEADY[0])?;
    ensure!(
        run.stdout == expected && run.stderr == "text\n",
        "{}",
        run.stderr
    );
    Ok(())
}

/// Programs of several processes, and one that maps further code while it runs.
const MAPPING: [&[&str]; 2] = [
    &[
        "/bin/sh",
        "-c",
        "ls / > /dev/null; seq 1 20 > /dev/null; echo text",
    ],
    &[
        "/usr/bin/python3",
        "-S",
        "-c",
        "import _ctypes, _bz2, _json; print(_bz2)",
    ],
];

fn reports(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let traced = directory.path().join("run.btrace");
    for program in STEADY.iter().chain(&MAPPING) {
        let mut command = machine.command(["trace", "--accel", "soft", "--epoch", "7", "-o"]);
        command.arg(&traced).arg("--").args(*program);
        command.env("PYTHONHASHSEED", "0");
        machine::finish(command)?.expect(0)?;
        let file = directory.path().join("run.vbts");
        let mut command = machine.command(["record", "--force", "--epoch", "7", "-o"]);
        command.arg(&file).arg("--").args(*program);
        command.env("PYTHONHASHSEED", "0");
        machine::finish(command)?.expect(0)?;
        for kind in ["functions", "calls", "tasks", "modules", "text"] {
            let report = |file: &Path| {
                let mut command = machine.command(["report", kind]);
                command.arg(file).env("XDG_CACHE_HOME", directory.path());
                machine::finish(command)?.expect(0)
            };
            let (expected, found) = (report(&traced)?, report(&file)?);
            ensure!(
                !found.stdout.is_empty() && found.stdout == expected.stdout,
                "{kind} of {program:?}:\n{}\ninstead of\n{}",
                found.printed(),
                expected.printed()
            );
        }
    }
    Ok(())
}

fn formats(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, &["--epoch", "7"], &["/bin/echo", "text"])?;
    let lines = |options: &[&str]| -> Result<(Vec<String>, String)> {
        let run = replay(machine, &recorded.file(), options)?.expect(0)?;
        let lines = String::from_utf8(run.stdout)?;
        Ok((lines.lines().map(str::to_owned).collect(), run.stderr))
    };
    let (text, stderr) = lines(&["--format", "text"])?;
    ensure!(text.len() > 1000 && stderr.contains("text\n"), "{stderr}");
    // The choices are those of a trace.
    let start = text.get(100).and_then(|line| line.split(' ').next());
    let start = format!("0x{}", start.context("no line")?);
    let options = ["--format", "text", "--start", &start, "--max-records", "5"];
    let (part, _) = lines(&options)?;
    let branches = part.iter().filter(|line| line.contains(" -> ")).count();
    ensure!(branches == 5, "{part:?}");
    let (json, _) = lines(&["--format", "json", "--scope", "all"])?;
    ensure!(json.len() > 2 * text.len(), "{}", json.len());
    ensure!(
        json.first()
            .is_some_and(|first| first.contains("\"kind\":\"start\""))
    );
    ensure!(json.last().is_some_and(|last| last.contains("\"exit\":0")));
    // A report follows the output of the program.
    let (reported, _) = lines(&["--report", "functions --limit 3", "--report", "stat"])?;
    ensure!(
        reported.first().is_some_and(|first| first == "text"),
        "{reported:?}"
    );
    ensure!(reported.iter().any(|line| line.contains("instructions")));
    let signals = ["/bin/sh", "-c", "trap : USR1; kill -USR1 $$; exit 4"];
    let recorded = Recorded::new(machine, &[], &signals)?;
    let run = replay(
        machine,
        &recorded.file(),
        &["--format", "json", "--until-signal", "USR1"],
    )?;
    let run = run.expect(4)?;
    ensure!(String::from_utf8(run.stdout)?.contains("\"kind\":\"signal\""));
    Ok(())
}

fn kept(machine: &Machine) -> Result<()> {
    let cache = tempfile::tempdir()?;
    let recorded = Recorded::new(machine, &[], &["/bin/echo", "text"])?;
    let report = |options: &[&str]| -> Result<Run> {
        let mut command = machine.command(["report", "stat"]);
        command.args(options).arg(recorded.file());
        command.env("XDG_CACHE_HOME", cache.path());
        machine::finish(command)
    };
    let traces = || -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(cache.path().join("vbts/replays"))?;
        Ok(entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?)
    };
    let first = report(&[])?.expect(0)?;
    let [trace] = <[PathBuf; 1]>::try_from(traces()?).map_err(|all| anyhow::anyhow!("{all:?}"))?;
    ensure!(report(&[])?.expect(0)?.stdout == first.stdout && traces()?.len() == 1);
    // What is kept is what the second report reads.
    fs::write(&trace, "no trace")?;
    report(&[])?.expect(125)?;
    report(&["--scope", "all"])?.expect(0)?;
    ensure!(traces()?.len() == 2);
    // A recording that was cut off has branches up to there.
    let contents = fs::read(recorded.file())?;
    fs::write(
        recorded.file(),
        contents.get(..contents.len() - 2000).context("short")?,
    )?;
    let cut = report(&[])?.expect(0)?;
    ensure!(cut.stderr.contains("it was cut off there"), "{cut:?}");
    fs::write(recorded.file(), contents.get(..100).context("short")?)?;
    report(&[])?.expect(125)?;
    ensure!(traces()?.len() == 3);
    Ok(())
}

fn machine_branches(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, &["--smp", "2"], &["/bin/sh", "-c", SCRIPT])?;
    let file = recorded.directory.path().join("run.btrace");
    let output = file.to_str().context("a path")?;
    let options = ["--scope", "all", "--record", output];
    replay(machine, &recorded.file(), &options)?.expect(7)?;
    let report = machine.run(["report", "tasks", output])?.expect(0)?;
    for name in ["sort", "tail", "swapper"] {
        ensure!(report.printed().contains(name), "{}", report.printed());
    }
    Ok(())
}

fn files(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("data");
    fs::write(&path, "content\n")?;
    let share = format!("{}:rw", directory.path().display());
    let script = "cat data; echo more >> data; cat data; echo new > other; cat < other";
    let recorded = Recorded::new(
        machine,
        &["--share", &share],
        &[
            "/bin/sh",
            "-c",
            &format!("cd {}; {script}", directory.path().display()),
        ],
    )?;
    ensure!(
        recorded.run.stdout == b"content\ncontent\nmore\nnew\n",
        "{:?}",
        recorded.run
    );
    ensure!(fs::read(&path)? == b"content\nmore\n");
    drop(directory);
    recorded.compare(machine, &[])?;
    ensure!(!path.exists(), "a replay writes no files");
    Ok(())
}

fn input(machine: &Machine) -> Result<()> {
    for processors in ["1", "3"] {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("run.vbts");
        let mut command = machine.command(["record", "--quiet", "--smp", processors, "-o"]);
        command.arg(&file);
        command.args(["--", "/bin/sh", "-c", "echo ready; cat -n; echo end"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Killed(command.spawn()?);
        let mut shown = vec![0; 6];
        let stdout = child.0.stdout.as_mut().context("no pipe")?;
        stdout.read_exact(&mut shown)?;
        let mut stdin = child.0.stdin.take().context("no pipe")?;
        for text in ["one\n", "two\nthree"] {
            std::thread::sleep(Duration::from_millis(100));
            stdin.write_all(text.as_bytes())?;
        }
        drop(stdin);
        stdout.read_to_end(&mut shown)?;
        ensure!(child.0.wait()?.success());
        ensure!(shown.ends_with(b"threeend\n"), "{shown:?}");
        let replayed = replay(machine, &file, &[])?.expect(0)?;
        ensure!(replayed.stdout == shown, "{replayed:?}");
    }
    Ok(())
}

/// Records `script`, and sends `vbts` a signal each time it prints a line, `count` times. Returns
/// the exit status and what was printed.
fn signalled(machine: &Machine, file: &Path, script: &str, count: usize) -> Result<(i32, Vec<u8>)> {
    let mut command = machine.command(["record", "--quiet", "-o"]);
    command.arg(file).args(["--", "/bin/sh", "-c", script]);
    command.stdout(Stdio::piped());
    let mut child = Killed(command.spawn()?);
    let pid = Pid::from_raw(i32::try_from(child.0.id())?);
    let mut shown = Vec::new();
    let stdout = child.0.stdout.as_mut().context("no pipe")?;
    for _ in 0..count {
        let mut line = [0; 2];
        stdout.read_exact(&mut line)?;
        shown.extend(line);
        kill(pid, Signal::SIGINT)?;
    }
    stdout.read_to_end(&mut shown)?;
    let status = machine::wait(&mut child.0, Duration::from_secs(60))?;
    Ok((status.context("killed")?, shown))
}

fn signals(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("run.vbts");
    let script = "trap 'echo $i; exit 9' INT; i=0; echo a; while :; do i=$((i+1)); done";
    let (status, shown) = signalled(machine, &file, script, 1)?;
    ensure!(status == 9 && shown.len() > 3, "{status} {shown:?}");
    let replayed = replay(machine, &file, &[])?.expect(9)?;
    // The number says at which instruction the signal came.
    ensure!(replayed.stdout == shown, "{replayed:?}");
    Ok(())
}

fn ends_by_host(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("run.vbts");
    let script = "trap 'echo b' INT; echo a; while :; do :; done";
    let (status, shown) = signalled(machine, &file, script, 2)?;
    ensure!(status == 130 && shown == b"a\nb\n", "{status} {shown:?}");
    let replayed = replay(machine, &file, &[])?.expect(130)?;
    ensure!(replayed.stdout == shown, "{replayed:?}");
    ensure!(
        replayed.stderr.contains("interrupted by SIGINT"),
        "{replayed:?}"
    );

    let script = ["/bin/sh", "-c", "echo a; while :; do :; done"];
    let recorded = Recorded::new(machine, &["--timeout", "2"], &script)?;
    ensure!(recorded.run.status == Some(124), "{:?}", recorded.run);
    let replayed = replay(machine, &recorded.file(), &[])?.expect(124)?;
    ensure!(replayed.stdout == recorded.run.stdout, "{replayed:?}");
    Ok(())
}

fn killed(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("run.vbts");
    let mut command = machine.command(["record", "--quiet", "-o"]);
    let script = "i=0; while :; do i=$((i+1)); echo $i; done";
    command.arg(&file).args(["--", "/bin/sh", "-c", script]);
    command.stdout(Stdio::piped());
    let mut child = Killed(command.spawn()?);
    let pid = Pid::from_raw(i32::try_from(child.0.id())?);
    let mut shown = vec![0; 200_000];
    let stdout = child.0.stdout.as_mut().context("no pipe")?;
    stdout.read_exact(&mut shown)?;
    kill(pid, Signal::SIGKILL)?;
    stdout.read_to_end(&mut shown)?;
    let replayed = replay(machine, &file, &[])?.expect(125)?;
    ensure!(
        replayed.stderr.contains("it was cut off there"),
        "{replayed:?}"
    );
    // The last part may not have been written.
    ensure!(
        shown.starts_with(&replayed.stdout) && replayed.stdout.len() > 100_000,
        "{} of {} bytes",
        replayed.stdout.len(),
        shown.len()
    );
    Ok(())
}

fn max_size(machine: &Machine) -> Result<()> {
    const SIZE: u64 = 8 << 20;
    let script = "echo a; cat /usr/bin/* > /dev/null";
    let recorded = Recorded::new(machine, &["--max-size", "8M"], &["/bin/sh", "-c", script])?;
    let Run { status, stderr, .. } = &recorded.run;
    ensure!(
        *status == Some(125) && stderr.contains("its maximum size of 8388608 bytes"),
        "{status:?} {stderr}"
    );
    let len = fs::metadata(recorded.file())?.len();
    ensure!(len <= SIZE, "{len} bytes");
    let replayed = replay(machine, &recorded.file(), &[])?.expect(125)?;
    ensure!(replayed.stdout == b"a\n", "{replayed:?}");
    ensure!(
        replayed.stderr.contains("it was cut off there"),
        "{replayed:?}"
    );
    Ok(())
}

fn care(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let record = |options: &[&str]| {
        let mut command = machine.command(["record"]);
        command.args(options).args(["--", "/bin/true"]);
        command.current_dir(directory.path());
        machine::finish(command)
    };
    let run = record(&[])?.expect(0)?;
    let said =
        "it contains the files that the program reads, its environment, and all that is typed";
    ensure!(run.stderr.contains(said), "{run:?}");
    let file = directory.path().join("true.vbts");
    let mode = fs::metadata(&file)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let before = fs::read(&file)?;
    let run = record(&[])?.expect(125)?;
    ensure!(run.stderr.contains("true.vbts exists"), "{run:?}");
    ensure!(fs::read(&file)? == before);
    record(&["--force"])?.expect(0)?;
    // A link is not followed.
    fs::remove_file(&file)?;
    let target = directory.path().join("target");
    std::os::unix::fs::symlink(&target, &file)?;
    record(&[])?.expect(125)?;
    record(&["--force"])?.expect(0)?;
    ensure!(!target.exists() && file.symlink_metadata()?.is_file());
    Ok(())
}

fn damaged(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, &[], &["/bin/echo", "text"])?;
    let file = recorded.file();
    let contents = fs::read(&file)?;
    let damaged = |at: usize| {
        let mut contents = contents.clone();
        contents[at] ^= 1;
        contents
    };
    for (contents, message) in [
        (Vec::new(), "no recording of vbts"),
        (damaged(0), "no recording of vbts"),
        (damaged(8), "version 0 of the format"),
        (damaged(30), "damaged"),
        (contents[..contents.len() / 2].to_vec(), "damaged"),
        (damaged(contents.len() / 2), "damaged"),
        (damaged(contents.len() - 1), "damaged"),
    ] {
        fs::write(&file, contents)?;
        let run = replay(machine, &file, &[])?.expect(125)?;
        ensure!(run.stderr.contains(message), "{message}: {run:?}");
    }
    Ok(())
}

/// Writes the recording `from` to `to`, with another request in the place of one of `ls`.
fn change_request(from: &Path, to: &Path) -> Result<()> {
    let count = |reader: &mut Reader<File>| -> Result<usize> {
        let mut replies = 0;
        while let Some(item) = reader.next()? {
            replies += usize::from(matches!(item, Item::Reply { .. }));
        }
        Ok(replies)
    };
    let changed = count(&mut Reader::new(File::open(from)?)?.1)? * 3 / 4;
    let (header, mut reader) = Reader::new(File::open(from)?)?;
    let mut writer = Writer::new(File::create(to)?, &header, u64::MAX)?;
    let mut replies = 0;
    while let Some(mut item) = reader.next()? {
        if let Item::Reply { request, .. } = &mut item {
            request.checksum ^= u32::from(replies == changed);
            replies += 1;
        }
        writer.item(&item)?;
    }
    Ok(writer.flush()?)
}

fn difference(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, &[], &["/bin/ls", "-l", "/usr/bin", "/etc"])?;
    let file = recorded.directory.path().join("changed.vbts");
    change_request(&recorded.file(), &file)?;
    for options in [&[][..], &["--jit", "off"], &["--check"]] {
        let run = replay(machine, &file, options)?.expect(125)?;
        for part in [
            "the replay differs from the recording at ",
            "a 9P request of type ",
            "; this is processor 0, task ",
            "(ls), at 0xffffffff8",
            "+0x",
            ", entered from 0x7f",
        ] {
            ensure!(run.stderr.contains(part), "{part}: {run:?}");
        }
    }
    // No report is made of what differs.
    let mut command = machine.command(["report", "stat"]);
    command
        .arg(&file)
        .env("XDG_CACHE_HOME", recorded.directory.path());
    let run = machine::finish(command)?.expect(125)?;
    ensure!(
        run.stdout.is_empty() && run.stderr.contains("cannot be replayed"),
        "{run:?}"
    );
    let mut kept = fs::read_dir(recorded.directory.path().join("vbts/replays"))?;
    ensure!(kept.next().is_none());
    Ok(())
}

fn refused(machine: &Machine) -> Result<()> {
    for (options, status) in [(["--accel", "kvm"], 126), (["--clock", "host"], 126)] {
        let recorded = Recorded::new(machine, &options, &["/bin/true"])?;
        ensure!(recorded.run.status == Some(status), "{:?}", recorded.run);
        ensure!(!recorded.file().exists(), "{options:?}");
    }
    let recorded = Recorded::new(machine, &[], &["/nonexistent"])?;
    ensure!(recorded.run.status == Some(127) && !recorded.file().exists());
    // The guest could change it.
    let directory = tempfile::tempdir()?;
    let mut command = machine.command(["record", "--share"]);
    command.arg(format!("{}:rw", directory.path().display()));
    let file = directory.path().join("run.vbts");
    command.arg("-o").arg(&file).args(["--", "/bin/true"]);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(!file.exists() && run.stderr.contains("-o"), "{run:?}");
    Ok(())
}
