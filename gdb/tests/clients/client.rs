//! Runs a client beside a server, connected by a Unix socket.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use vbts_gdb::{SessionEnd, SessionError, serve};

use crate::execution::execution;
use crate::recorded_target::RecordedTarget;

/// What a session with a client left.
pub struct Session {
    /// What the client has printed.
    pub output: String,
    /// What it has printed as errors, warnings and output of the target.
    pub errors: String,
    pub target: RecordedTarget,
    pub end: Result<SessionEnd, SessionError>,
}

impl Session {
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
pub fn gdb(commands: &[&str]) -> Option<Session> {
    gdb_with(commands, |_| {})
}

/// As [`gdb`], with changes to the target.
pub fn gdb_with(commands: &[&str], change: impl FnOnce(&mut RecordedTarget)) -> Option<Session> {
    let test = thread::current().name().unwrap_or("gdb").to_owned();
    let skip = |why: &str| {
        eprintln!("skipped: {test}: {why}");
        vbts_testkit::skips::note(&test, why);
        None
    };
    let execution = match execution() {
        Ok(execution) => execution,
        Err(why) => return skip(why),
    };
    if Command::new("gdb").arg("--version").output().is_err() {
        return skip("no gdb");
    }
    let (path, listener) = listen();
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    // A wrong reply fails the test at once instead of being asked for again.
    gdb.args(["-ex", "set width 0", "-ex", "set style enabled off"]);
    gdb.args(["-ex", "set remotetimeout 60", "-ex", "set sysroot target:"]);
    gdb.arg("-ex")
        .arg(format!("target remote {}", path.display()));
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let child = gdb
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let mut target = RecordedTarget::new(execution);
    change(&mut target);
    let (connection, _) = listener.accept().unwrap();
    let server = thread::scope(|scope| {
        let output = scope.spawn(|| child.wait_with_output().unwrap());
        let end = serve(connection, &mut target);
        (output.join().unwrap(), end)
    });
    std::fs::remove_file(path).unwrap();
    let (output, end) = server;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Some(Session {
        output: text(output.stdout),
        errors: text(output.stderr),
        target,
        end,
    })
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
