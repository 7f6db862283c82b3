//! `vbts report` is confined, ends at its time limit and at a signal, and leaves no part of an
//! answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod processes;

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vbts_testkit::elf::{CODE, Program};
use vbts_trace::{Branch, Event, Run, Summary, Writer};

use processes::{children, exists, send_signal, stop};

/// Time after which something should have happened.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory with a trace, and what is traced.
struct Case {
    directory: TempDir,
}

impl Case {
    /// A trace with `count` branches of `program`.
    fn new(program: &Program, count: usize) -> Self {
        let this = Self {
            directory: TempDir::new().unwrap(),
        };
        program.create(&this.path("program")).unwrap();
        let file = BufWriter::new(File::create(this.path("a.btrace")).unwrap());
        let run = Run {
            command: vec!["/program".into()],
            scope: "user".into(),
            ..Run::default()
        };
        let mut trace = Writer::new(file, &run).unwrap();
        let start = Event::Start {
            id: 1,
            parent: 0,
            process: 1,
            time: 0,
        };
        trace.event(0, &start).unwrap();
        let end = CODE + 0x1000;
        let text = format!("{CODE:x}-{end:x} r-xp 1000 0:0 0 /program\n").into_bytes();
        let maps = Event::Maps { process: 1, text };
        trace.event(0, &maps).unwrap();
        let branch = Branch {
            from: CODE,
            to: CODE,
        };
        for _ in 0..count.div_ceil(1000) {
            trace.branches(0, &[branch; 1000]).unwrap();
        }
        trace.finish(&Summary::default()).unwrap();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A report of `what` that writes to `output`.
    fn command(&self, what: &str, options: &[&str]) -> Command {
        // A shell has what it starts in the background ignore SIGINT, and vbts would, too.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=INT", env!("CARGO_BIN_EXE_vbts")])
            .args(["report", what, "--output"])
            .arg(self.path("answer"))
            .arg("--root")
            .arg(self.directory.path())
            .args(options)
            .arg(self.path("a.btrace"))
            .stderr(Stdio::piped());
        command
    }
}

/// To read its lines takes some seconds: each unit goes through its part of a table.
fn hostile() -> Program {
    // JMP to itself.
    let program = Program::new(&[0xEB, 0xFE]).functions(&[(CODE, 2, "main")]);
    program.small_units(60_000, 5_000)
}

/// Waits until `what` is there.
#[track_caller]
fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < end, "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process that makes the report, once it is confined.
fn confined(report: &Child) -> u32 {
    wait_for(|| {
        let &[child, ..] = children(report.id()).as_slice() else {
            return None;
        };
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        (field(&status, "Seccomp") == Some("2")).then_some(child)
    })
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_thread_is_confined() {
    for (what, sandbox) in [("lines", "auto"), ("text", "auto"), ("lines", "strict")] {
        let case = Case::new(&hostile(), 1);
        let mut report = case.command(what, &["--sandbox", sandbox]).spawn().unwrap();
        let child = confined(&report);
        let mut threads = 0;
        for thread in std::fs::read_dir(format!("/proc/{child}/task")).unwrap() {
            let status = thread.unwrap().path().join("status");
            let status = std::fs::read_to_string(status).unwrap();
            assert_eq!(field(&status, "Seccomp"), Some("2"), "{what}: {status}");
            assert_eq!(field(&status, "NoNewPrivs"), Some("1"), "{what}: {status}");
            threads += 1;
        }
        assert!(threads > usize::from(what == "lines"), "{what}");
        let limits = std::fs::read_to_string(format!("/proc/{child}/limits")).unwrap();
        let data = limits
            .lines()
            .find(|line| line.starts_with("Max data size"));
        assert!(!data.unwrap().contains("unlimited"), "{limits}");
        send_signal("-TERM", report.id());
        report.wait().unwrap();
        assert!(!exists(child));
    }
}

#[test]
fn a_hostile_file_ends_at_the_time_limit() {
    const TIMEOUT: i32 = 124;
    let case = Case::new(&hostile(), 1);
    let mut report = case
        .command("lines", &["--timeout", "0.5"])
        .spawn()
        .unwrap();
    // The process that makes the report stands still, so nothing but the limit ends it.
    let mut stopped = None;
    wait_for(|| {
        if stopped.is_none() {
            stopped = children(report.id()).first().copied();
            stopped.iter().for_each(|child| stop(*child));
        }
        report.try_wait().unwrap()
    });
    let output = report.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(TIMEOUT), "{output:?}");
    assert!(stopped.is_none_or(|child| !exists(child)));
    let message = message(&output);
    assert!(message.contains("timeout"), "{message}");
    assert!(!case.path("answer").exists());
}

#[test]
fn an_interrupted_report_changes_no_file() {
    let case = Case::new(&hostile(), 1);
    for former in [None, Some("former")] {
        if let Some(former) = former {
            std::fs::write(case.path("answer"), former).unwrap();
        }
        let report = case.command("lines", &[]).spawn().unwrap();
        let child = confined(&report);
        send_signal("-INT", report.id());
        let output = report.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert_eq!(message(&output), "vbts: interrupted by SIGINT\n");
        assert!(!exists(child));
        let left = std::fs::read_to_string(case.path("answer")).ok();
        assert_eq!(left.as_deref(), former);
    }
}

#[test]
fn no_part_of_an_answer_is_left() {
    let case = Case::new(&hostile(), 20_000_000);
    for former in [None, Some("former")] {
        if let Some(former) = former {
            std::fs::write(case.path("answer"), former).unwrap();
        }
        let report = case.command("json", &[]).spawn().unwrap();
        let size = || std::fs::metadata(case.path("answer")).map_or(0, |status| status.len());
        wait_for(|| (size() > 1000).then_some(()));
        send_signal("-TERM", report.id());
        let output = report.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(143), "{output:?}");
        assert_eq!(case.path("answer").exists(), former.is_some());
        assert_eq!(size(), 0);
        let says_so = message(&output).contains("answer is empty now");
        assert_eq!(says_so, former.is_some(), "{output:?}");
    }
}

#[test]
fn what_cannot_be_read_leaves_no_file() {
    let case = Case::new(&hostile(), 1);
    std::fs::write(case.path("a.btrace"), "no trace").unwrap();
    let output = case.command("functions", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(!case.path("answer").exists());
}

#[test]
fn a_report_that_dies_says_so() {
    let case = Case::new(&hostile(), 1);
    let report = case.command("lines", &[]).spawn().unwrap();
    send_signal("-KILL", confined(&report));
    let output = report.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    let message = message(&output);
    assert_eq!(message, "vbts: the report was ended by SIGKILL\n");
}
