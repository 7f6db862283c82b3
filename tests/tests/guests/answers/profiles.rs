//! Profiles for other tools.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Skip};

use super::{functions, llvm, option, report, tool, traced};

/// The Firefox profiler's own reader has the instructions of each function.
pub(super) fn firefox(machine: &Machine) -> Result<()> {
    tool("node", &[])?;
    let reader = "tools/firefox/node_modules/.bin/profiler-cli";
    let reader =
        machine::find("VBTS_PROFILER_CLI", reader).map_err(|error| Skip(format!("{error:#}")))?;
    let traced = traced(machine, &["-O2", "-g", "-static"], &[])?;
    let file = traced.directory.path().join("profile.json");
    std::fs::write(&file, report(machine, &["firefox"], &traced.trace)?)?;
    let ask = |words: &[&str]| {
        let mut command = Command::new("node");
        command.arg(&reader).args(words).env(
            "PROFILER_CLI_SESSION_DIR",
            traced.directory.path().join("sessions"),
        );
        machine::finish(command)
    };
    // Its server answers late if the machine has other work.
    ask(&["load", file.to_str().context("a path")?])?;
    let mut answer = ask(&["thread", "functions", "--json", "--limit", "0"])?;
    for _ in 0..100 {
        if answer.status == Some(0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        answer = ask(&["thread", "functions", "--json", "--limit", "0"])?;
    }
    ask(&["stop", "--all"])?;
    let answer: Value = serde_json::from_slice(&answer.expect(0)?.stdout)?;
    let theirs = answer["functions"].as_array().context("no functions")?;
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for row in theirs {
        let name = row["name"].as_str().context("no name")?;
        *sums.entry(name).or_default() += row["selfSamples"].as_u64().context("no count")?;
    }
    let ours = functions(machine, &traced.trace)?;
    for (name, (_, instructions)) in &ours {
        let theirs = sums.get(name.as_str()).copied();
        ensure!(
            theirs == Some(*instructions),
            "{name}: {instructions} instructions, {theirs:?} in the profiler"
        );
    }
    ensure!(ours.len() > 20, "{} functions", ours.len());
    Ok(())
}

/// Prints a line for each function of a timeline: how often it begins, and the instructions between
/// its beginnings and its ends. The slices of a track must be nested.
const PERFETTO: &str = "
import collections, sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

class Sequence:
    def __init__(self, packet):
        self.names, self.time = {}, 0
        self.defaults = packet.trace_packet_defaults
        clocks = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
        self.incremental = clocks[self.defaults.timestamp_clock_id].is_incremental

trace, sequences, open_slices = Trace(), {}, collections.defaultdict(list)
trace.ParseFromString(open(sys.argv[1], 'rb').read())
calls, total = collections.Counter(), collections.Counter()
tracks = {packet.track_descriptor.uuid for packet in trace.packet}
for packet in trace.packet:
    if packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        sequences[packet.trusted_packet_sequence_id] = Sequence(packet)
    if not packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE:
        continue
    sequence = sequences[packet.trusted_packet_sequence_id]
    for name in packet.interned_data.event_names:
        sequence.names[name.iid] = name.name
    if packet.HasField('track_event'):
        event, track = packet.track_event, sequence.defaults.track_event_defaults.track_uuid
        assert track in tracks
        sequence.time = packet.timestamp + (sequence.time if sequence.incremental else 0)
        slices = open_slices[track]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            slices.append((sequence.names[event.name_iid], sequence.time))
        else:
            assert event.type == TrackEvent.TYPE_SLICE_END
            name, since = slices.pop()
            calls[name] += 1
            if name not in (outer for outer, _ in slices):
                total[name] += sequence.time - since
assert not any(open_slices.values())
for name in calls:
    print(name, calls[name], total[name])
";

/// Perfetto's own reader finds the calls of each function, and its instructions with those of its
/// callees.
pub(super) fn perfetto(machine: &Machine) -> Result<()> {
    let packages = machine::find("VBTS_PERFETTO", "tools/perfetto")
        .map_err(|error| Skip(format!("{error:#}")))?;
    let traced = traced(machine, &["-O2", "-g", "-static"], &[])?;
    let file = traced.directory.path().join("answers.pftrace");
    let mut command = machine.command(["report", "timeline", "--output"]);
    command.args([&file, &traced.trace]);
    machine::finish(command)?.expect(0)?;
    let mut command = tool("python3", &["-c", PERFETTO])?;
    command.arg(&file).env("PYTHONPATH", &packages);
    let answer = machine::finish(command)?.expect(0)?;
    let answer = String::from_utf8(answer.stdout)?;
    let mut theirs: HashMap<&str, (u64, u64)> = HashMap::new();
    for line in answer.lines() {
        let mut words = line.rsplitn(3, ' ');
        let mut next = || words.next().context("a name and two numbers");
        let (total, calls) = (next()?.parse()?, next()?.parse()?);
        theirs.insert(next()?, (calls, total));
    }
    let rows = report(
        machine,
        &["functions", "--json", "--no-inline"],
        &traced.trace,
    )?;
    let mut compared = 0;
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row)?;
        let name = row["name"].as_str().context("no name")?;
        let ours = (row["calls"].as_u64(), row["total"].as_u64());
        // They call each other by jumps, and stay in one frame.
        if ["is_even", "is_odd"].contains(&name) {
            continue;
        }
        if let Some(&(calls, total)) = theirs.get(name) {
            let theirs = (Some(calls), Some(total));
            ensure!(
                ours == theirs,
                "{name}: {ours:?}, and {theirs:?} in Perfetto"
            );
            compared += 1;
        }
    }
    ensure!(compared > 20, "{compared} functions");
    Ok(())
}

/// AutoFDO's create_gcov has the counts of source lines, those of an inlined function among them.
pub(super) fn autofdo(machine: &Machine) -> Result<()> {
    for place in ["-no-pie", "-pie"] {
        // The tool does not know later versions of DWARF.
        let flags = ["-O2", "-gdwarf-4", "-static", place];
        let traced = traced(machine, &flags, &[])?;
        let path = |name: &str| traced.directory.path().join(name);
        let (text, profile) = (path("answers.txt"), path("answers.afdo"));
        std::fs::write(&text, report(machine, &["autofdo"], &traced.trace)?)?;
        let mut create = tool("create_gcov", &["--profiler=text", "--gcov_version=2"])?;
        create
            .arg(option("--binary", &traced.program))
            .arg(option("--profile", &text))
            .arg(option("--gcov", &profile));
        machine::finish(create)?.expect(0)?;
        let mut dump = tool("dump_gcov", &["--gcov_version=2"])?;
        dump.arg(&profile);
        let dumped = machine::finish(dump)?.expect(0)?;
        let dumped = String::from_utf8(dumped.stdout)?;
        let head = |name: &str| {
            let mut lines = dumped.lines();
            lines
                .find(|line| line.starts_with(&format!("{name} total:")))
                .and_then(|line| line.rsplit_once("head:")?.1.parse::<u64>().ok())
        };
        // Calls of functions that are not inlined everywhere.
        let ours = functions(machine, &traced.trace)?;
        for name in ["insert", "leaf"] {
            let calls = ours.get(name).map(|counts| counts.0);
            ensure!(calls.is_some(), "{name} is inlined");
            ensure!(head(name) == calls, "{name}: {calls:?}: {dumped}");
        }
    }
    Ok(())
}

/// perf reads all branches of all tasks, with names and build IDs, and llvm-profgen makes a profile
/// of them with which clang compiles.
pub(super) fn perf(machine: &Machine) -> Result<()> {
    let mut script = tool("perf", &["script", "-F", "tid,brstack", "-i"])?;
    let flags = ["-O2", "-g", "-pthread", "-Wl,--build-id=0x0123456789abcdef"];
    let traced = traced(machine, &flags, &["k"])?;
    let data = traced.directory.path().join("perf.data");
    let mut ours = machine.command(["report", "perf", "--output"]);
    ours.arg(&data).arg(&traced.trace);
    machine::finish(ours)?.expect(0)?;
    script.arg(&data);
    let theirs = machine::finish(script)?.expect(0)?;
    let mut read: HashMap<u64, Vec<(String, String)>> = HashMap::new();
    for line in String::from_utf8(theirs.stdout)?.lines() {
        let mut words = line.split_whitespace();
        let task = words.next().context("no task")?.parse()?;
        let branches = words.rev().filter_map(|word| {
            let mut ends = word.split('/');
            Some((ends.next()?.to_owned(), ends.next()?.to_owned()))
        });
        read.entry(task).or_default().extend(branches);
    }
    let mut traced_branches: HashMap<u64, Vec<(String, String)>> = HashMap::new();
    for line in report(machine, &["json"], &traced.trace)?.lines() {
        let object: Value = serde_json::from_str(line)?;
        if object["kind"] == "branch" {
            let end = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
            let task = object["task"].as_u64().context("no task")?;
            traced_branches
                .entry(task)
                .or_default()
                .push((end("from"), end("to")));
        }
    }
    ensure!(read.len() == 3, "{} tasks", read.len());
    ensure!(read == traced_branches, "perf has read other branches");
    let mut ids = tool("perf", &["buildid-list", "-i"])?;
    ids.arg(&data);
    let ids = String::from_utf8(machine::finish(ids)?.expect(0)?.stdout)?;
    let name = traced.program.to_str().context("a path")?;
    ensure!(
        ids.lines()
            .any(|line| line.starts_with("0123456789abcdef") && line.ends_with(name)),
        "{ids}"
    );
    let mut report = tool(
        "perf",
        &["report", "--stdio", "--sort", "comm,symbol_to", "-i"],
    )?;
    report.arg(&data);
    let text = machine::finish(report)?.expect(0)?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let is_row = |line: &str| line.contains("answers") && line.contains("[.] insert");
    ensure!(text.lines().any(is_row), "{text}");
    Ok(())
}

/// llvm-profgen makes a profile of perf's text, with inlined functions. llvm-profdata reads it, and
/// clang compiles with it.
pub(super) fn llvm_profile(machine: &Machine) -> Result<()> {
    let [clang, profgen, profdata] = llvm(["clang", "llvm-profgen", "llvm-profdata"])?;
    let mut script = tool(
        "perf",
        &["script", "--show-mmap-events", "-F", "ip,brstack", "-i"],
    )?;
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let source = vbts_tests::programs::source("inlined.c");
    let compile = |program: &Path, flag: &str| {
        let mut command = Command::new(&clang);
        command
            .args([
                "-O2",
                "-g",
                "-fdebug-info-for-profiling",
                "-static",
                flag,
                "-o",
            ])
            .args([program, &source]);
        machine::finish(command)?.expect(0)
    };
    let (program, faster) = (path("inlined"), path("faster"));
    compile(&program, "-Wl,--build-id")?;
    let (trace, data) = (path("inlined.btrace"), path("perf.data"));
    machine
        .trace("btrace", &trace, &["--epoch", "0"], &[&program])?
        .expect(0)?;
    let mut ours = machine.command(["report", "perf", "--output"]);
    ours.arg(&data).arg(&trace);
    machine::finish(ours)?.expect(0)?;
    let (text, profile) = (path("script"), path("profile"));
    script.arg(&data);
    std::fs::write(&text, machine::finish(script)?.expect(0)?.stdout)?;
    let mut generate = Command::new(profgen);
    generate
        .arg("--format=text")
        .arg(option("--binary", &program))
        .arg(option("--perfscript", &text))
        .arg(option("--output", &profile));
    machine::finish(generate)?.expect(0)?;
    let profile_text = std::fs::read_to_string(&profile)?;
    // The code between two samples is in none of them: one execution of some 700.
    let count = |start: &str| {
        let mut lines = profile_text.lines();
        let line = lines.find(|line| line.starts_with(start));
        line.and_then(|line| line.strip_prefix(start)?.parse::<u64>().ok())
    };
    for (line, executed) in [(" 3: weigh:", 0), ("  1: ", 20_000), ("  1.2: ", 13_333)] {
        let counted = count(line);
        ensure!(
            counted.is_some_and(|count| executed == 0 || executed - count < executed / 100),
            "{line}{counted:?}: {profile_text}"
        );
    }
    ensure!(profile_text.contains(" rare:20\n"), "{profile_text}");
    let mut show = Command::new(profdata);
    show.args(["show", "--sample"]).arg(&profile);
    let shown = String::from_utf8(machine::finish(show)?.expect(0)?.stdout)?;
    for expected in [
        "  5: 20, calls: rare:20\n",
        "  3: inlined callee: weigh: ",
        "Function: rare: ",
    ] {
        ensure!(shown.contains(expected), "no {expected:?}: {shown}");
    }
    compile(&faster, &option("-fprofile-sample-use", &profile))?;
    let results = [&program, &faster].map(|program| {
        let run = machine::finish(Command::new(program))?.expect(0)?;
        anyhow::Ok(run.stdout)
    });
    let [first, second] = results;
    ensure!(first? == second?, "another result");
    Ok(())
}
