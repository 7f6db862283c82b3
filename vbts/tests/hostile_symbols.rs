//! Files whose symbols would take all memory or time, and the process that reads symbols.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod processes;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vbts_host::root::Root;
use vbts_symbols::Symbolizer;
use vbts_testkit::elf::{CODE, Program, nested_name};

use processes::{children, exists, send_signal, stop};

const MIB: u64 = 1 << 20;
/// Memory that this process and those below it may have in addition to what it had before.
const MEMORY: u64 = 900 * MIB;
/// Time for one file.
const TIME: Duration = Duration::from_secs(60);

/// The tests measure memory of all processes below this one, so they run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// The memory in bytes of this process and those below it that is no part of a file.
fn memory() -> u64 {
    let mut processes = vec![std::process::id()];
    let mut sum = 0;
    while let Some(pid) = processes.pop() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
        sum += size.map_or(0, |size| size.parse::<u64>().unwrap() << 10);
        processes.extend(children(pid));
    }
    sum
}

/// The most memory that `work` takes, and its result.
fn measured<T>(work: impl FnOnce() -> T) -> (u64, T) {
    /// Ends the meter, also after a panic.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let before = memory();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let meter = scope.spawn(|| {
            let mut most = 0;
            while !end.load(Ordering::Relaxed) {
                most = memory().max(most);
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        });
        let ended = End(&end);
        let result = work();
        drop(ended);
        (meter.join().unwrap().saturating_sub(before), result)
    })
}

fn symbolizer() -> Symbolizer {
    let mut symbols = Symbolizer::new(Root::open(Path::new("/")).unwrap(), Path::new("/"));
    let vbts = &mut Command::new(env!("CARGO_BIN_EXE_vbts"));
    symbols.start_reader(vbts, true).unwrap();
    symbols
}

/// Maps files one after the other.
fn map(symbols: &mut Symbolizer, files: &[PathBuf]) {
    let line = |(n, file): (usize, &PathBuf)| {
        let start = CODE + 0x1000 * n as u64;
        let path = file.display();
        format!("{start:x}-{:x} r-xp 1000 0:0 0 {path}\n", start + 0x1000)
    };
    let text: String = files.iter().enumerate().map(line).collect();
    symbols.set_maps(1, text.as_bytes());
}

fn label(symbols: &mut Symbolizer, address: u64) -> String {
    symbols.label(1, address, &mut Vec::new).to_owned()
}

/// A harmless program, with one function.
fn good() -> Program {
    Program::new(&[0x90; 16]).functions(&[(CODE, 16, "good")])
}

/// Checks that the labels of `program` take little memory and time, and that they neither harm
/// those of another file. Returns the label, and why names are missing.
#[track_caller]
fn check(program: &Program) -> (String, String) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    program.create(&path("bomb")).unwrap();
    good().create(&path("good")).unwrap();
    let mut symbols = symbolizer();
    map(&mut symbols, &[path("good"), path("bomb")]);
    assert_eq!(label(&mut symbols, CODE), "good+0x0 (good)");
    let bomb = CODE + 0x1000;
    let began = Instant::now();
    let (memory, found) = measured(|| label(&mut symbols, bomb));
    assert!(memory < MEMORY, "{} MiB", memory / MIB);
    assert!(began.elapsed() < TIME, "{:?}", began.elapsed());
    assert_eq!(label(&mut symbols, CODE + 4), "good+0x4 (good)");
    (found, symbols.unnamed().to_string())
}

fn program() -> Program {
    Program::new(&[0x90; 16])
}

#[test]
fn nested_names() {
    let name = nested_name(300);
    let (label, why) = check(&program().functions(&[(CODE, 16, &name)]));
    assert!(label.starts_with("f(a, b<a, a>, b<b<a, a>"), "{label}");
    assert!(label.len() < 5000, "{}", label.len());
    assert_eq!(why, "");
}

#[test]
fn many_small_units() {
    let program = program().functions(&[(CODE, 16, "main")]);
    let (label, why) = check(&program.small_units(87_000, 5_000));
    assert_eq!(label, "main+0x0 (bomb)");
    assert!(why.contains("no source lines"), "{why}");
}

#[test]
fn compressed_zeros() {
    let program = program().functions(&[(CODE, 16, "main")]);
    let program = program.debug(".debug_line", vec![0; 16]);
    let (label, why) = check(&program.compressed_zeros(".debug_info", 1 << 30));
    assert_eq!(label, "main+0x0 (bomb)");
    assert!(why.contains("no source lines"), "{why}");
}

#[test]
fn a_large_hole() {
    for name in [".plt", ".debug_info"] {
        let program = program().functions(&[(CODE, 16, "main")]);
        let program = program.debug(".debug_line", vec![0; 16]);
        let (_, why) = check(&program.hole(name, 3500 * MIB));
        assert!(why.contains("too large"), "{why}");
    }
}

#[test]
fn a_million_functions() {
    let (label, why) = check(&program().many_functions(1_000_000, 4000));
    assert!(label.starts_with("aaaa"), "{label}");
    assert_eq!(why, "");
    let (label, why) = check(&program().many_functions(8_000_000, 4000));
    assert_eq!(label, "bomb+0x1000");
    assert!(why.contains("too large"), "{why}");
}

#[test]
fn a_million_relocations() {
    let (label, why) = check(&program().many_relocations(1_000_000, 4000));
    assert_eq!((label.as_str(), why.as_str()), ("bomb+0x1000", ""));
    let (_, why) = check(&program().many_relocations(2_000_000, 4000));
    assert!(why.contains("too large"), "{why}");
}

#[test]
fn many_large_files() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = TempDir::new().unwrap();
    let files: Vec<PathBuf> = (0..200)
        .map(|n| {
            let path = directory.path().join(format!("{n}"));
            let name = format!("f{n}");
            let program = program().functions(&[(CODE, 16, &name)]);
            // Strings that belong to no symbol, and lines that are none.
            let program = program.hole(".debug_line", 20 * MIB);
            program.create(&path).unwrap();
            path
        })
        .collect();
    let mut symbols = symbolizer();
    map(&mut symbols, &files);
    let (memory, ()) = measured(|| {
        for n in 0..files.len() as u64 {
            let label = label(&mut symbols, CODE + 0x1000 * n);
            assert_eq!(label, format!("f{n}+0x0 ({n})"));
        }
    });
    assert!(memory < MEMORY, "{} MiB", memory / MIB);
    assert_eq!(symbols.unnamed().to_string(), "");
}

#[test]
fn a_file_with_many_names_is_read_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = TempDir::new().unwrap();
    let first = directory.path().join("0");
    program()
        .many_functions(1_000_000, 100)
        .create(&first)
        .unwrap();
    let mut files = vec![first.clone()];
    for n in 1..100 {
        let path = directory.path().join(format!("{n}"));
        std::fs::hard_link(&first, &path).unwrap();
        files.push(path);
    }
    let mut symbols = symbolizer();
    map(&mut symbols, &files);
    for n in 0..files.len() as u64 {
        let label = label(&mut symbols, CODE + 0x1000 * n);
        assert!(label.ends_with(&format!("({n})")), "{label}");
    }
    assert_eq!(symbols.reads(), 1);
}

/// A symbolizer with the harmless program, and the process that it has started.
fn started(directory: &TempDir) -> (Symbolizer, u32) {
    let path = directory.path().join("good");
    good().create(&path).unwrap();
    let before = children(std::process::id());
    let mut symbols = symbolizer();
    map(&mut symbols, &[path]);
    let mut started = children(std::process::id());
    started.retain(|pid| !before.contains(pid));
    let [starter] = started[..] else {
        panic!("{started:?}");
    };
    assert_eq!(label(&mut symbols, CODE), "good+0x0 (good)");
    (symbols, starter)
}

#[test]
fn signals_of_a_terminal_are_for_vbts() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = TempDir::new().unwrap();
    let (mut symbols, starter) = started(&directory);
    for signal in ["-INT", "-QUIT", "-TERM", "-HUP"] {
        send_signal(signal, starter);
        send_signal(signal, children(starter)[0]);
    }
    assert_eq!(label(&mut symbols, CODE + 1), "good+0x1 (good)");
    assert_eq!(symbols.unnamed().to_string(), "");
}

#[test]
fn no_process_is_left() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = TempDir::new().unwrap();
    let (mut symbols, starter) = started(&directory);
    let reader = children(starter)[0];
    symbols.end_reader();
    assert!(!exists(starter) && !exists(reader));
}

/// A kernel that does nothing, with lines that take longer to read the more there are of them.
fn hostile_kernel(start: u64) -> Program {
    let program = Program::new(&[0xEB, 0xFE]).at(start);
    let program = program.functions(&[(start, 2, "start_kernel")]);
    program.small_units(500_000, 5_000)
}

#[test]
fn symbols_of_the_kernel_are_read_when_they_are_needed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start = 0xFFFF_FFFF_8100_0000;
    let kernel = tempfile::tempfile().unwrap();
    hostile_kernel(start).write(&kernel).unwrap();
    let mut symbols = symbolizer();
    symbols.set_kernel(kernel, "vmlinux");
    assert_eq!(symbols.reads(), 0);
    let began = Instant::now();
    let (memory, label) = measured(|| label(&mut symbols, start));
    assert_eq!(label, "start_kernel+0x0 [kernel]");
    assert!(memory < MEMORY, "{} MiB", memory / MIB);
    assert!(began.elapsed() < TIME, "{:?}", began.elapsed());
    let why = symbols.unnamed().to_string();
    assert!(why.contains("no source lines"), "{why}");
}

#[test]
fn the_time_limit_holds_with_a_hostile_kernel() {
    const TIMEOUT: i32 = 124;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = TempDir::new().unwrap();
    let kernel = directory.path().join("vmlinux");
    hostile_kernel(0x100_0000).create(&kernel).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_vbts"))
        .args(["trace", "--scope", "all", "--timeout", "1"])
        .args(["--format", "text", "--output", "/dev/null", "--kernel"])
        .arg(kernel)
        .arg("/bin/true")
        // It is not executed.
        .env("VBTS_AGENT", "/bin/true")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The process that reads stands still, so nothing but the limit ends the run.
    let mut stopped = None;
    let end = Instant::now() + TIME;
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break status;
        }
        if stopped.is_none() {
            let starters = children(run.id());
            stopped = starters.into_iter().flat_map(children).next();
            stopped.iter().for_each(|reader| stop(*reader));
        }
        if Instant::now() > end {
            run.kill().unwrap();
            panic!("the run does not end");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(status.code(), Some(TIMEOUT), "{:?}", run.wait_with_output());
}

#[test]
fn the_end_of_the_process_costs_names_only() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = TempDir::new().unwrap();
    let (mut symbols, starter) = started(&directory);
    // Another process takes the place of one that reads.
    send_signal("-KILL", children(starter)[0]);
    assert_eq!(label(&mut symbols, CODE + 1), "good+0x1 (good)");
    // With the process that starts others, the one that reads ends.
    let reader = children(starter)[0];
    send_signal("-KILL", starter);
    let end = Instant::now() + TIME;
    while exists(reader) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(label(&mut symbols, CODE + 2), "good+0x1002");
    assert_eq!(label(&mut symbols, CODE + 1), "good+0x1 (good)");
    let why = symbols.unnamed().to_string();
    assert!(why.contains("not read any more"), "{why}");
}
