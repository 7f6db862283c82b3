//! The client of a session: gdb, which is started and connected by a socket that only its user
//! reaches, or another one, which connects to an address.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, setpgid, waitpid,
};
use vbts_debugger::ProgramFiles;
use vbts_host::child::fork;
use vbts_host::exit::{Failure, conclude, killed_by, status};

use super::kernel::KernelView;
use super::relay::{Address, Relay};
use super::{DebugArgs, files, session};
use crate::recording::OldRecording;
use crate::trace::{TraceDirectory, in_child};

/// The names of files in the temporary directory.
const SOCKET: &str = "gdb.socket";
const SCRIPT: &str = "start.gdb";

/// gdb's name for a directory whose files the server has.
const TARGET: &str = "target:";

/// Time within which the process that serves gdb ends behind it, and how often that is checked.
const GRACE: Duration = Duration::from_secs(5);
const CHECK: Duration = Duration::from_millis(2);

/// Commands that gdb executes first. `SOCKET` stands for the path of the socket, `ROOT` for the
/// directory with the program's files, `DIRECTORY` for its working directory, and the line `# VIEW`
/// for commands of the kernel's view.
const COMMANDS: &str = include_str!("start.gdb");

/// The program that debugs.
#[derive(Debug)]
pub(super) enum Client {
    /// This gdb.
    Gdb(PathBuf),
    /// The client that connects to this address.
    Other(Address),
}

/// How the client of a session connects.
pub(super) enum Connecting {
    /// gdb connects to this socket.
    Gdb(UnixListener),
    /// Another one connects when the session is ready.
    Other(Relay),
}

/// A socket that only this user reaches.
fn private_socket(path: &Path) -> anyhow::Result<UnixListener> {
    let name = path.display();
    let listener = UnixListener::bind(path).with_context(|| format!("Cannot listen at {name}"))?;
    fs::set_permissions(path, Permissions::from_mode(0o600))
        .with_context(|| format!("Cannot restrict access to {name}"))?;
    Ok(listener)
}

/// The path of the gdb to start. `advice` says what else can be done than to install one.
///
/// # Errors
/// There is none.
pub(super) fn find(program: &OsStr, advice: &str) -> Result<PathBuf, Failure> {
    let is_file = |path: &Path| {
        let metadata = fs::metadata(path);
        metadata.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(program);
    let found = if path.components().count() > 1 {
        Some(path.to_path_buf()).filter(|path| is_file(path))
    } else {
        let search = std::env::var_os("PATH").unwrap_or_default();
        let mut paths = std::env::split_paths(&search).map(|directory| directory.join(path));
        paths.find(|path| is_file(path))
    };
    found.ok_or_else(|| {
        Failure::Host(format!(
            "{} is not installed: install the package gdb{advice}",
            path.display()
        ))
    })
}

impl Client {
    /// Debugs the recording `file`. Returns the exit status.
    ///
    /// # Errors
    /// The host starts no process, or the recording cannot be debugged.
    pub(super) fn debug(
        self,
        args: &DebugArgs,
        file: &Path,
        directory: &TraceDirectory,
    ) -> Result<u8, Failure> {
        match self {
            Self::Other(address) => {
                let (_, files) = files_of(args, file, &OldRecording::open(file)?)?;
                let path = address.path().map(Path::to_path_buf);
                let (relay, relaying) = Relay::start(address)?;
                // The process that serves can remove no files.
                let status = in_child(|| {
                    // It does not outlast a session that is killed.
                    set_parent_process_death_signal(Some(Signal::KILL))
                        .context("Cannot watch the session's process")?;
                    session::serve(args, file, Connecting::Other(relay), files)
                });
                // It may still send the end of the session to the client.
                let _ = waitpid(Some(relaying), WaitOptions::empty());
                if let Some(path) = path {
                    // The user may have removed it.
                    let _ = fs::remove_file(path);
                }
                Ok(status?)
            }
            Self::Gdb(gdb) => start_gdb(args, file, &gdb, directory),
        }
    }
}

/// The commands that connect a gdb to `socket`.
fn script(socket: &Path, directories: &[PathBuf; 2], kernel: Option<&KernelView>) -> String {
    let [root, directory] = directories
        .each_ref()
        .map(|path| path.display().to_string());
    let values = [
        (
            "# VIEW\n",
            kernel.map_or_else(String::new, KernelView::commands),
        ),
        ("ROOT", root),
        ("DIRECTORY", directory),
        ("SOCKET", socket.display().to_string()),
    ];
    replaced(COMMANDS, &values) + kernel.map_or("", KernelView::commands_after)
}

/// `text` with each name replaced by its value, in which the names stand for nothing.
fn replaced(text: &str, values: &[(&str, String)]) -> String {
    let mut result = String::new();
    let mut rest = text;
    loop {
        let found = values.iter().filter_map(|(name, value)| {
            let (before, after) = rest.split_once(name)?;
            Some((before, value, after))
        });
        let Some((before, value, after)) = found.min_by_key(|(before, ..)| before.len()) else {
            return result + rest;
        };
        result += before;
        result += value;
        rest = after;
    }
}

/// The directories of this host that were the root and the working directory of the recorded
/// program, if they are still there.
fn directories_of(recording: &OldRecording) -> [PathBuf; 2] {
    let directory = Path::new(&recording.directory);
    let root = recording.machine.root.as_deref().unwrap_or(Path::new("/"));
    [&directory.join(root), directory].map(|path| {
        // It is a part of a line for gdb.
        let has_name = path
            .to_str()
            .is_some_and(|name| !name.contains(char::is_control));
        let is_usable = has_name && path.is_absolute() && path.is_dir();
        if is_usable { path } else { Path::new("/") }.to_path_buf()
    })
}

/// The directories for gdb, and the program's files if they are in the recording alone.
fn files_of(
    args: &DebugArgs,
    file: &Path,
    recording: &OldRecording,
) -> Result<([PathBuf; 2], Option<ProgramFiles>), Failure> {
    let directories = directories_of(recording);
    if args.is_kernel_view(recording.facts.is_machine)? {
        return Ok((directories, None));
    }
    let files = files::of_recording(file, recording, &directories[0], args.quiet)?;
    Ok(match files {
        Some(_) => ([TARGET.into(), PathBuf::new()], files),
        None => (directories, None),
    })
}

/// Starts a process that serves the client of `listener`.
///
/// # Errors
/// The host starts no process.
fn start_server(
    args: &DebugArgs,
    file: &Path,
    listener: UnixListener,
    files: Option<ProgramFiles>,
) -> Result<Pid, Failure> {
    let started = fork().context("Cannot start a process for the replay")?;
    Ok(started.unwrap_or_else(|| {
        // The terminal's Ctrl-C is for gdb.
        let _ = setpgid(None, None);
        let served = session::serve(args, file, Connecting::Gdb(listener), files);
        std::process::exit(conclude(served).into());
    }))
}

/// Starts a process that serves a gdb, and writes the script with which that connects to it.
/// Returns the process and the script.
///
/// # Errors
/// The directory cannot be written, or the host starts no process.
pub(super) fn serve_gdb(
    args: &DebugArgs,
    file: &Path,
    directory: &TraceDirectory,
) -> Result<(Pid, PathBuf), Failure> {
    let recording = OldRecording::open(file)?;
    let kernel = KernelView::of(args, &recording, directory)?;
    let socket = directory.file(SOCKET);
    let listener = private_socket(&socket)?;
    let script = directory.file(SCRIPT);
    let (directories, files) = files_of(args, file, &recording)?;
    fs::write(
        &script,
        self::script(&socket, &directories, kernel.as_ref()),
    )
    .context("Cannot write a script for gdb")?;
    Ok((start_server(args, file, listener, files)?, script))
}

/// Starts gdb and a process that serves it, and waits for both.
fn start_gdb(
    args: &DebugArgs,
    file: &Path,
    gdb: &Path,
    directory: &TraceDirectory,
) -> Result<u8, Failure> {
    let (server, script) = serve_gdb(args, file, directory)?;
    let mut command = Command::new(gdb);
    command.args(["-q", "-nx"]);
    if args.batch {
        command.arg("-batch");
    }
    command.arg("-x").arg(&script);
    for script in &args.script {
        command.arg("-x").arg(script);
    }
    let spawned = command.spawn();
    // The terminal's Ctrl-C is for gdb, which does not inherit that it is held here.
    let held = vbts_host::HeldSignals::hold();
    let ended = spawned.and_then(|mut child| child.wait());
    let grace = match ended {
        Ok(_) => GRACE,
        Err(_) => Duration::ZERO,
    };
    let served = end_server(server, grace);
    held.forget(Signal::INT.as_raw());
    drop(held);
    let failed = served.filter(|status| *status != 0);
    let ended = ended.with_context(|| format!("Cannot start {}", gdb.display()))?;
    let code = match (
        ended.code(),
        std::os::unix::process::ExitStatusExt::signal(&ended),
    ) {
        (Some(code), _) => u8::try_from(code).unwrap_or(status::ERROR),
        (None, signal) => killed_by(signal.unwrap_or_default()),
    };
    // The replay has said why.
    Ok(failed
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(code))
}

/// Waits for the process that serves gdb, which ends with the connection, and returns its exit
/// status. One to which gdb has not connected does not end: after `grace` it is killed, and has no
/// status.
pub(super) fn end_server(server: Pid, grace: Duration) -> Option<i32> {
    let began = Instant::now();
    while began.elapsed() < grace {
        match waitpid(Some(server), WaitOptions::NOHANG) {
            Ok(None) => sleep(CHECK),
            Ok(Some((_, status))) => return status.exit_status(),
            Err(_) => return None,
        }
    }
    let _ = kill_process(server, Signal::TERM);
    let _ = waitpid(Some(server), WaitOptions::empty());
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_gdb_is_named() {
        let failure = find(OsStr::new("no-such-gdb"), "").unwrap_err();
        assert_eq!(failure.status(), 126);
        assert!(find(OsStr::new("/bin/sh"), "").is_ok());
    }

    #[test]
    fn paths_may_contain_the_names_of_others() {
        let socket = Path::new("/tmp/ROOT/DIRECTORY.socket");
        let directories = ["/home/SOCKET", "/srv/ROOT/SOCKET"].map(PathBuf::from);
        let script = script(socket, &directories, None);
        for line in [
            "set sysroot /home/SOCKET",
            "set solib-search-path /srv/ROOT/SOCKET",
            "target remote /tmp/ROOT/DIRECTORY.socket",
        ] {
            assert!(
                script.lines().any(|other| other == line),
                "{line}: {script}"
            );
        }
        assert!(!script.contains("VIEW"));
    }
}
