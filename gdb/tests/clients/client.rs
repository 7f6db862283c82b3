//! Runs a client beside a server, connected by a Unix socket.

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use vbts_gdb::{SessionEnd, SessionError, Target, serve};

use crate::core_target::CoreTarget;
use crate::execution::execution;
use crate::recorded_target::RecordedTarget;

/// What a session with a client left.
pub struct Session<T> {
    /// What the client has printed.
    pub output: String,
    /// What it has printed as errors, warnings and output of the target.
    pub errors: String,
    pub target: T,
    pub end: Result<SessionEnd, SessionError>,
}

impl<T> Session<T> {
    /// Checks that the client has printed these texts, in this order.
    #[track_caller]
    pub fn shows(&self, texts: &[&str]) {
        find(&self.output, texts);
    }

    /// Checks the same of its errors.
    #[track_caller]
    pub fn fails_with(&self, texts: &[&str]) {
        find(&self.errors, texts);
    }
}

#[track_caller]
fn find(output: &str, texts: &[&str]) {
    let mut rest = output;
    for text in texts {
        let place = rest.find(text);
        let place = place.unwrap_or_else(|| panic!("no {text:?} in\n{rest}\n\nof\n{output}"));
        rest = &rest[place + text.len()..];
    }
}

/// Runs GDB with these commands after those that connect it, or returns `None` and says why.
pub fn gdb(commands: &[&str]) -> Option<Session<RecordedTarget>> {
    gdb_with(commands, |_| {})
}

/// As [`gdb`], with changes to the target.
pub fn gdb_with(
    commands: &[&str],
    change: impl FnOnce(&mut RecordedTarget),
) -> Option<Session<RecordedTarget>> {
    let target = execution().map(|execution| {
        let mut target = RecordedTarget::new(execution);
        change(&mut target);
        target
    });
    run("gdb", target, |path| gdb_arguments(path, commands))
}

/// As [`gdb`], for a core file.
pub fn gdb_with_core(commands: &[&str]) -> Option<Session<CoreTarget>> {
    run("gdb", CoreTarget::new(), |path| {
        gdb_arguments(path, commands)
    })
}

fn gdb_arguments(path: &str, commands: &[&str]) -> Vec<String> {
    let connect = format!("target remote {path}");
    let first = [
        "set debuginfod enabled off",
        "set width 0",
        "set style enabled off",
        "set remotetimeout 60",
        "set sysroot target:",
        &connect,
    ];
    let mut arguments = vec!["-nx".to_owned(), "-batch".to_owned()];
    for command in first.iter().chain(commands) {
        arguments.extend(["-ex".to_owned(), (*command).to_owned()]);
    }
    arguments
}

/// Runs LLDB with these commands after those that connect it, or returns `None` and says why.
pub fn lldb(commands: &[&str]) -> Option<Session<RecordedTarget>> {
    let execution = execution();
    run("lldb", execution.map(RecordedTarget::new), |path| {
        let file = execution.map_or_else(|_| String::new(), |run| run.file.display().to_string());
        let mut arguments = vec!["--no-lldbinit".to_owned(), "--batch".to_owned(), file];
        let connect = format!("process connect unix-connect://{path}");
        for command in [&*connect].iter().chain(commands) {
            arguments.extend(["-o".to_owned(), (*command).to_owned()]);
        }
        arguments
    })
}

/// Runs a client, whose arguments are made of the path of the socket.
fn run<T: Target>(
    program: &str,
    target: Result<T, &'static str>,
    arguments: impl FnOnce(&str) -> Vec<String>,
) -> Option<Session<T>> {
    let test = thread::current().name().unwrap_or(program).to_owned();
    let skip = |why: &str| {
        eprintln!("skipped: {test}: {why}");
        vbts_testkit::skips::note(&test, why);
        None
    };
    let mut target = match target {
        Ok(target) => target,
        Err(why) => return skip(why),
    };
    if Command::new(program).arg("--version").output().is_err() {
        return skip(&format!("no {program}"));
    }
    let (path, listener) = listen();
    let mut client = Command::new(program);
    client
        .args(arguments(&path.display().to_string()))
        .stdin(Stdio::null());
    let mut child = client
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (output, end) = match accept(&listener, &mut child) {
        Some(connection) => thread::scope(|scope| {
            let output = scope.spawn(|| child.wait_with_output().unwrap());
            let end = serve(connection, &mut target);
            (output.join().unwrap(), end)
        }),
        None => panic!(
            "{program} has not connected: {:?}",
            child.wait_with_output()
        ),
    };
    std::fs::remove_file(path).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Some(Session {
        output: text(output.stdout),
        errors: text(output.stderr),
        target,
        end,
    })
}

/// Waits until the client connects. `None`: it has ended without.
fn accept(listener: &UnixListener, child: &mut Child) -> Option<UnixStream> {
    listener.set_nonblocking(true).unwrap();
    loop {
        match listener.accept() {
            Ok((connection, _)) => {
                connection.set_nonblocking(false).unwrap();
                return Some(connection);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if child.try_wait().unwrap().is_some() {
                    return None;
                }
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Listens at a new path.
fn listen() -> (PathBuf, UnixListener) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // A path of a Unix socket has at most 107 bytes.
    let path = std::env::temp_dir().join(format!("vbts-gdb-{}-{number}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    (path, listener)
}
