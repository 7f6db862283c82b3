//! The command line's contract: formats, outputs, what is forwarded, and exit status.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::{branches, programs};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("json_is_an_object_a_line", json_lines),
            ("json_and_raw_tell_the_same", formats_agree),
            ("text_is_symbolised", text),
            ("raw_to_standard_output_is_nothing_else", raw_to_stdout),
            ("a_minus_is_standard_output", minus),
            ("an_empty_variable_names_no_kernel", empty_variable),
            ("sched_events_alternate", sched),
            ("output_streams_are_kept_apart", streams),
            ("input_is_forwarded", input),
            ("arguments_are_forwarded", arguments),
            ("working_directory_is_the_same", working_directory),
            ("exit_status_is_forwarded", status),
            ("death_by_signal_is_forwarded", signal),
            ("the_host_is_read_only", read_only),
            ("a_share_can_be_written", share),
            ("probe_answers_in_json", probe),
            ("later_models_have_more_instructions", later_models),
            ("stats_add_up", stats),
        ],
    )
}

fn json(text: &str) -> Result<Vec<Value>> {
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
        .collect()
}

fn address(value: &Value) -> Result<u64> {
    let text = value
        .as_str()
        .and_then(|text| text.strip_prefix("0x"))
        .with_context(|| format!("no address: {value}"))?;
    Ok(u64::from_str_radix(text, 16)?)
}

fn json_lines(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    machine
        .trace("json", &output, &[], &["/bin/true"])?
        .expect(0)?;
    let lines = json(&std::fs::read_to_string(&output)?)?;
    let [start, exec, records @ .., end, summary] = lines.as_slice() else {
        bail!("{} lines", lines.len());
    };
    let task = &start["task"];
    ensure!(start["kind"] == "start" && start["parent"] == 0, "{start}");
    ensure!(exec["kind"] == "exec" && exec["task"] == *task, "{exec}");
    let name = std::fs::canonicalize("/bin/true")?;
    ensure!(exec["name"].as_str() == name.to_str(), "{exec}");
    for record in records {
        ensure!(record["kind"] == "branch", "{record}");
        ensure!(record["task"] == *task, "{record}");
        address(&record["from"])?;
        address(&record["to"])?;
    }
    ensure!(end["kind"] == "end" && end["exit"] == 0, "{end}");
    let expected = serde_json::json!({
        "kind": "summary", "records": records.len(), "lost": 0, "tasks": 1, "end": "exited",
        "exit": 0, "accel": machine.accel()
    });
    ensure!(*summary == expected, "{summary} instead of {expected}");
    Ok(())
}

fn formats_agree(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (raw, lines) = (directory.path().join("raw"), directory.path().join("json"));
    machine.trace("raw", &raw, &[], &["/bin/true"])?.expect(0)?;
    machine
        .trace("json", &lines, &[], &["/bin/true"])?
        .expect(0)?;
    let raw = branches::parse_raw(&std::fs::read(&raw)?)?;
    let mut lines = json(&std::fs::read_to_string(&lines)?)?;
    lines.retain(|line| line["kind"] == "branch");
    ensure!(
        lines.len() == raw.len(),
        "{} lines for {} records",
        lines.len(),
        raw.len()
    );
    for (branch, line) in raw.iter().zip(&lines) {
        ensure!(
            branch.from == address(&line["from"])? && branch.to == address(&line["to"])?,
            "{branch:x?} is {line}"
        );
    }
    Ok(())
}

fn text(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = vbts_tests::programs::ALL[0].build(directory.path())?;
    let output = directory.path().join("trace");
    let run = machine.trace("text", &output, &[], &[program])?.expect(0)?;
    let text = std::fs::read_to_string(&output)?;
    for wanted in ["fibonacci+0x", "recursion.c:", "start+0x"] {
        ensure!(text.contains(wanted), "no `{wanted}` in the trace");
    }
    ensure!(
        text.contains("lost: 0") || run.stderr.contains("lost: 0"),
        "no summary"
    );
    Ok(())
}

fn raw_to_stdout(machine: &Machine) -> Result<()> {
    let run = machine
        .run([
            "trace",
            "--accel",
            "soft",
            "--format",
            "raw",
            "--",
            "/bin/echo",
            "out",
        ])?
        .expect(0)?;
    let branches = branches::parse_raw(&run.stdout)?;
    ensure!(branches.len() > 100, "{} records", branches.len());
    ensure!(
        run.stderr.contains("out\n"),
        "the program's output is gone: {}",
        run.stderr
    );
    Ok(())
}

fn minus(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let in_directory = |words: &[&str]| {
        let mut command = machine.command(words);
        command.current_dir(&directory).stdin(Stdio::null());
        machine::finish(command)
    };
    in_directory(&["trace", "-o", "x.btrace", "--", "/bin/true"])?.expect(0)?;
    for words in [
        &["report", "stat", "-o", "-", "x.btrace"][..],
        &["trace", "--report", "stat", "-o", "-", "--", "/bin/true"],
        &["stat", "-o", "-", "--", "/bin/true"],
    ] {
        let run = in_directory(words)?.expect(0)?;
        let text = String::from_utf8_lossy(&run.stdout);
        ensure!(text.contains("instructions"), "{words:?}: {text}");
    }
    let run = in_directory(&["record", "-o", "-", "--", "/bin/true"])?.expect(125)?;
    ensure!(run.stderr.contains("standard output"), "{}", run.stderr);
    ensure!(!directory.path().join("-").exists(), "there is a file -");
    Ok(())
}

fn empty_variable(machine: &Machine) -> Result<()> {
    let mut command = machine.command(["trace", "--output", "/dev/null", "--", "/bin/true"]);
    command.env("VBTS_KERNEL", "");
    machine::finish(command)?.expect(0)?;
    Ok(())
}

fn sched(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    machine
        .trace(
            "json",
            &output,
            &["--sched"],
            &["/bin/sh", "-c", "sleep 0.05; :"],
        )?
        .expect(0)?;
    let lines = json(&std::fs::read_to_string(&output)?)?;
    let events: Vec<&Value> = lines
        .iter()
        .filter(|line| line["kind"] == "arrive" || line["kind"] == "depart")
        .collect();
    ensure!(events.len() >= 4, "{} events", events.len());
    for pair in events.windows(2) {
        ensure!(
            pair[0]["kind"] != pair[1]["kind"],
            "{} and {}",
            pair[0],
            pair[1]
        );
        ensure!(
            pair[0]["time"].as_u64() <= pair[1]["time"].as_u64(),
            "{} and {}",
            pair[0],
            pair[1]
        );
    }
    Ok(())
}

fn streams(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let run = machine
        .trace(
            "raw",
            &directory.path().join("trace"),
            &[],
            &["/bin/sh", "-c", "echo out; echo err >&2"],
        )?
        .expect(0)?;
    ensure!(
        run.stdout == b"out\n",
        "standard output: {}",
        String::from_utf8_lossy(&run.stdout)
    );
    ensure!(
        run.stderr.contains("err\n") && !run.stderr.contains("out"),
        "standard error: {}",
        run.stderr
    );
    Ok(())
}

fn input(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut command = machine.command(["trace", "--accel", "soft", "--format", "raw", "--output"]);
    command
        .arg(directory.path().join("trace"))
        .args(["--", "/bin/cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // More than any pipe or ring on the way holds.
    let sent: Vec<u8> = (0..300_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let mut stdin = child.stdin.take().context("no pipe")?;
    let copy = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let output = child.wait_with_output()?;
    ensure!(
        writer.join().is_ok_and(|result| result.is_ok()),
        "it did not read all"
    );
    ensure!(output.status.success(), "{}", output.status);
    ensure!(
        output.stdout == sent,
        "{} bytes came back of {}",
        output.stdout.len(),
        sent.len()
    );
    Ok(())
}

fn arguments(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let words = [
        "/usr/bin/printf",
        "[%s]",
        "",
        "a b",
        "--format",
        "-x",
        "ü\n",
        "$HOME",
    ];
    let run = machine
        .trace("raw", &directory.path().join("trace"), &[], &words)?
        .expect(0)?;
    let expected = "[][a b][--format][-x][ü\n][$HOME]";
    ensure!(
        run.stdout == expected.as_bytes(),
        "{}",
        String::from_utf8_lossy(&run.stdout)
    );
    Ok(())
}

fn working_directory(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("here"), "found\n")?;
    let mut command = machine.command([
        "trace",
        "--accel",
        "soft",
        "--format",
        "raw",
        "--output",
        "/dev/null",
        "--",
    ]);
    command
        .args(["/bin/sh", "-c", "pwd; cat here"])
        .current_dir(directory.path());
    let run = machine::finish(command)?.expect(0)?;
    let expected = format!("{}\nfound\n", directory.path().display());
    ensure!(
        run.stdout == expected.as_bytes(),
        "{}",
        String::from_utf8_lossy(&run.stdout)
    );
    Ok(())
}

fn status(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for status in [0, 1, 42, 123] {
        let script = format!("exit {status}");
        machine
            .trace(
                "raw",
                &directory.path().join("trace"),
                &[],
                &["/bin/sh", "-c", &script],
            )?
            .expect(status)?;
    }
    Ok(())
}

fn signal(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let run = machine
        .trace(
            "raw",
            &directory.path().join("trace"),
            &[],
            &["/bin/sh", "-c", "kill -TERM $$"],
        )?
        .expect(128 + 15)?;
    ensure!(run.stderr.contains("SIGTERM"), "{}", run.stderr);
    Ok(())
}

/// What a program for x86-64-v2 computes is the same as on the host; on a processor without its
/// instructions it does not get far.
fn later_models(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = programs::compile(
        &programs::source("x86_64_v2.c"),
        &directory.path().join("x86_64_v2"),
        &["-march=x86-64-v2"],
    )?;
    let later = vbts_cpu::model("x86-64-v2").context("no such model")?;
    let missing = later.missing_on_host();
    if !missing.is_empty() {
        let why = format!("the host has no {} itself", missing.join(", "));
        return Err(Skip(why).into());
    }
    let host = std::process::Command::new(&program).output()?;
    ensure!(host.status.success(), "{host:?}");
    for (model, expected) in [("core2", 1), ("x86-64-v2", 0), ("nehalem", 0)] {
        let trace = directory.path().join("trace");
        let run = machine
            .trace("raw", &trace, &["--cpu", model], &[&program])?
            .expect(expected)?;
        if expected == 0 {
            ensure!(run.stdout == host.stdout, "{model}: {run:?}");
        }
    }
    Ok(())
}

fn read_only(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("file");
    std::fs::write(&file, "before")?;
    let script = format!(
        "echo after > {0}; cat {0}; rm {0}; test ! -e {0}; touch {0}.new /etc/vbts-test",
        file.display()
    );
    let run = machine
        .trace(
            "raw",
            &directory.path().join("trace"),
            &[],
            &["/bin/sh", "-c", &script],
        )?
        .expect(0)?;
    // The program sees its own changes, the host does not.
    ensure!(
        run.stdout == b"after\n",
        "{}",
        String::from_utf8_lossy(&run.stdout)
    );
    ensure!(
        std::fs::read_to_string(&file)? == "before",
        "the guest wrote to the host"
    );
    let left: Vec<_> = std::fs::read_dir(directory.path())?
        .map(|entry| entry.map(|e| e.file_name()))
        .collect::<Result<_, _>>()?;
    ensure!(left.len() == 2, "{left:?}");
    ensure!(
        !std::path::Path::new("/etc/vbts-test").exists(),
        "the guest wrote to /etc"
    );
    Ok(())
}

fn share(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let shared = directory.path().join("shared");
    std::fs::create_dir(&shared)?;
    let option = format!("{}:rw", shared.display());
    let script = format!("echo written > {}/file", shared.display());
    machine
        .trace(
            "raw",
            &directory.path().join("trace"),
            &["--share", &option],
            &["/bin/sh", "-c", &script],
        )?
        .expect(0)?;
    ensure!(std::fs::read_to_string(shared.join("file"))? == "written\n");
    Ok(())
}

fn probe(machine: &Machine) -> Result<()> {
    let run = machine.run(["probe", "--json"])?.expect(0)?;
    let answer: Value = serde_json::from_slice(&run.stdout)?;
    let accelerator = answer["auto"]["accel"].as_str().unwrap_or_default();
    ensure!(["kvm", "soft"].contains(&accelerator), "{answer}");
    Ok(())
}

fn stats(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let options = ["--stats", "--log", "debug"];
    let run = machine
        .trace("raw", &output, &options, &["/bin/true"])?
        .expect(0)?;
    let after = |text: &str| -> Result<u64> {
        let (_, rest) = run
            .stderr
            .split_once(text)
            .with_context(|| format!("no \"{text}\": {}", run.stderr))?;
        let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit());
        Ok(digits.clone().next().unwrap_or_default().parse()?)
    };
    let total = after("instructions on the software CPU:")?;
    ensure!(total == after("end instructions=")?, "{}", run.stderr);
    let parts: Vec<u64> = run
        .stderr
        .lines()
        .filter(|line| line.starts_with("  ") && line.contains(" % "))
        .map(|line| Ok(line.split_whitespace().next().unwrap_or_default().parse()?))
        .collect::<Result<_>>()?;
    let &[program, ..] = &parts[..] else {
        bail!("no parts: {}", run.stderr);
    };
    ensure!(
        parts.len() == 4 && parts.iter().sum::<u64>() == total,
        "{parts:?}"
    );
    // A branch is an instruction, and there is one in a few.
    let branches = std::fs::metadata(&output)?.len() / 24;
    ensure!(
        program > branches && program < 50 * branches,
        "{program} instructions, {branches} branches"
    );
    ensure!(
        run.stderr.contains("formatting and writing the trace"),
        "{}",
        run.stderr
    );
    Ok(())
}
