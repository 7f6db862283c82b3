//! `vbts report` with traces that would take all memory: a few bytes of a trace can stand for a
//! deep stack, for large mappings, or for many tasks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use vbts_testkit::elf::{CODE, Program};
use vbts_trace::{Branch, Event, Run, Summary, Writer};

/// Memory that `vbts report` may have, in KiB. The process that reads symbols has its own limit.
const MEMORY: u32 = 512 << 10;

type Trace = Writer<BufWriter<File>>;

fn start(trace: &mut Trace, task: u64, parent: u32, process: u32) {
    let event = Event::Start {
        id: task as u32 + 1,
        parent,
        process,
        time: task,
    };
    trace.event(task, &event).unwrap();
}

/// Checks that reports on a trace take little memory. `write` writes it in a directory.
#[track_caller]
fn check(whats: &[&str], write: impl FnOnce(&mut Trace, &Path)) {
    check_with(MEMORY, &[], whats, write);
}

/// As [`check`], with the traced program, which jumps to itself, and its source files `/0` and
/// `/1`.
#[track_caller]
fn check_program(memory: u32, whats: &[&str], program: &Program, size: u64) {
    let root = TempDir::new().unwrap();
    program.create(&root.path().join("program")).unwrap();
    for source in ["0", "1"] {
        std::fs::write(root.path().join(source), "source\n").unwrap();
    }
    let root = root.path().to_str().unwrap();
    check_with(memory, &["--root", root], whats, |trace, _| {
        start(trace, 0, 0, 1);
        let end = CODE + size;
        let text = format!("{CODE:x}-{end:x} r-xp 1000 0:0 0 /program\n").into_bytes();
        trace.event(0, &Event::Maps { process: 1, text }).unwrap();
        let jump = Branch {
            from: CODE,
            to: CODE,
        };
        trace.branches(0, &[jump; 10]).unwrap();
    });
}

#[track_caller]
fn check_with(
    memory: u32,
    options: &[&str],
    whats: &[&str],
    write: impl FnOnce(&mut Trace, &Path),
) {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("a.btrace");
    let run = Run {
        command: vec!["/program".into()],
        scope: "user".into(),
        ..Run::default()
    };
    let mut trace = Writer::new(BufWriter::new(File::create(&file).unwrap()), &run).unwrap();
    write(&mut trace, directory.path());
    let summary = Summary {
        records: trace.records(),
        end: "exited".into(),
        exit: Some(0),
        ..Summary::default()
    };
    trace.finish(&summary).unwrap();
    drop(trace);
    for what in whats {
        let script = format!("ulimit -d {memory} && exec \"$@\"");
        let done = Command::new("sh")
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_vbts"), "report"])
            .args([*what, "--output", "/dev/null"])
            .args(options)
            .arg(&file)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{what}: {}: {message}", done.status);
    }
}

/// A branch outside of all mappings.
const BRANCH: Branch = Branch { from: 0, to: 0 };

#[test]
fn forks_of_a_deep_recursion() {
    check(&["functions", "timeline", "tail"], |trace, directory| {
        let program = directory.join("program");
        // CALL of itself.
        let code = [0xE8, 0xFB, 0xFF, 0xFF, 0xFF];
        Program::new(&code).create(&program).unwrap();
        start(trace, 0, 0, 1);
        let text = format!(
            "{CODE:x}-{:x} r-xp 1000 0:0 0 {}\n",
            CODE + 0x1000,
            program.display()
        );
        let (process, text) = (1, text.into_bytes());
        trace.event(0, &Event::Maps { process, text }).unwrap();
        let call = Branch {
            from: CODE,
            to: CODE,
        };
        trace.branches(0, &[call; 65_000]).unwrap();
        for task in 1..1000 {
            start(trace, task, 1, task as u32 + 1);
            trace.branches(task, &[call; 10]).unwrap();
        }
    });
}

#[test]
fn mappings_of_many_processes() {
    check(&["functions", "tasks"], |trace, _| {
        let name = "a".repeat(300);
        let line = |n: u32| format!("{n:x}000-{n:x}fff r-xp 0 0:0 0 /{name}\n");
        let text: String = (0..60_000).map(line).collect();
        let text = text.into_bytes();
        for task in 0..40 {
            let process = task as u32 + 1;
            start(trace, task, 0, process);
            let text = text.clone();
            trace.event(task, &Event::Maps { process, text }).unwrap();
            trace.branches(task, &[BRANCH; 2]).unwrap();
        }
    });
}

#[test]
fn many_long_names_of_programs() {
    check(&["functions", "tasks"], |trace, _| {
        start(trace, 0, 0, 1);
        for time in 0..700_u64 {
            let mut name = vec![b'a'; 1 << 20];
            name[..8].copy_from_slice(&time.to_le_bytes());
            let (id, former) = (1, 1);
            let event = Event::Exec {
                id,
                former,
                time,
                name,
            };
            trace.event(0, &event).unwrap();
            trace.branches(0, &[BRANCH; 2]).unwrap();
        }
    });
}

#[test]
fn many_tasks_that_have_not_started() {
    check(&["functions"], |trace, _| {
        for task in 0..1_400_000 {
            trace.branches(task, &[BRANCH]).unwrap();
        }
    });
}

/// The trace is decoded ahead, but not all of it.
#[test]
fn large_events_after_one_that_takes_long() {
    check(&["functions"], |trace, _| {
        start(trace, 0, 0, 1);
        for n in 0..25 {
            let text = vec![if n == 0 { b'\n' } else { b' ' }; 30 << 20];
            let process = 1;
            trace.event(0, &Event::Maps { process, text }).unwrap();
        }
    });
}

#[test]
fn many_different_branches() {
    check(&["functions", "calls"], |trace, _| {
        start(trace, 0, 0, 1);
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 20
        };
        for _ in 0..1000 {
            let branches = [(); 4096].map(|()| Branch {
                from: random(),
                to: random(),
            });
            trace.branches(0, &branches).unwrap();
        }
    });
}

/// Code of `size` bytes that jumps to itself.
fn code(size: usize) -> Vec<u8> {
    let mut code = vec![0x90; size];
    code[..2].copy_from_slice(&[0xEB, 0xFE]);
    code
}

#[test]
fn many_lines_of_source() {
    const ROWS: u32 = 30_000;
    let program = Program::new(&code(ROWS as usize));
    let program = program.functions(&[(CODE, ROWS.into(), "main")]);
    let program = program.many_lines(300, ROWS);
    let whats = ["lines", "lcov", "cobertura", "html", "assembly", "files"];
    check_program(MEMORY, &whats, &program, ROWS.into());
}

#[test]
fn instructions_with_long_names() {
    const SIZE: u64 = 300_000;
    let program = Program::new(&code(SIZE as usize));
    let program = program.functions(&[(CODE, SIZE, &"a".repeat(4000))]);
    check_program(MEMORY / 2, &["assembly"], &program, SIZE);
}

#[test]
fn lines_of_functions_with_long_names() {
    const SIZE: u32 = 300_000;
    let program = Program::new(&code(SIZE as usize));
    let program = program.many_functions(SIZE.into(), 4000);
    let program = program.many_lines(1, SIZE);
    check_program(MEMORY / 2, &["lcov"], &program, SIZE.into());
}
