//! The client of a session: gdb, which is started and connected by a socket that only its user
//! reaches, or another one, which connects to an address.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, anyhow};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, setpgid, waitpid,
};
use vbts_host::child::fork;
use vbts_host::exit::{Failure, conclude, killed_by, say, status};

use super::kernel::KernelView;
use super::{DebugArgs, session};
use crate::trace::{TraceDirectory, in_child};

/// The names of files in the temporary directory.
const SOCKET: &str = "gdb.socket";
const SCRIPT: &str = "start.gdb";

/// Commands that gdb executes first. `SOCKET` stands for the path of the socket.
const COMMANDS: &str = include_str!("start.gdb");

/// The program that debugs.
#[derive(Debug)]
pub(super) enum Client {
    /// This gdb.
    Gdb(PathBuf),
    /// The client that connects to this address.
    Other(Address),
}

/// An address at which a client connects.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A socket that waits for a client.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Address {
    /// The address of `--listen`.
    ///
    /// # Errors
    /// The text is no address.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let (host, port) = match text.rsplit_once(':') {
            None | Some(("", _)) => (None, text.trim_start_matches(':')),
            Some((host, port)) => (Some(host.trim_matches(['[', ']'])), port),
        };
        let host = match host {
            None | Some("localhost") => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Some(host) => host.parse().ok(),
        };
        match (host, port.parse()) {
            (Some(host), Ok(port)) => Ok(Self::Tcp(SocketAddr::new(host, port))),
            _ => Err(anyhow!(
                "--listen: '{text}' is neither [HOST:]PORT, with an IP address as the host, nor the \
                 path of a socket"
            )
            .into()),
        }
    }

    fn listen(&self) -> anyhow::Result<Listener> {
        Ok(match self {
            Self::Tcp(address) => Listener::Tcp(
                TcpListener::bind(address)
                    .with_context(|| format!("Cannot listen at {address}"))?,
            ),
            Self::Unix(path) => Listener::Unix(private_socket(path)?),
        })
    }
}

impl Listener {
    /// Waits for a client.
    ///
    /// # Errors
    /// The host refuses it.
    pub(super) fn accept(self) -> anyhow::Result<File> {
        let connection: OwnedFd = match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Packets are short, and each waits for its answer.
                stream.set_nodelay(true)?;
                stream.into()
            }
            Self::Unix(listener) => listener.accept()?.0.into(),
        };
        Ok(connection.into())
    }
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
                let listener = address.listen()?;
                let place = match &address {
                    Address::Tcp(address) => address.to_string(),
                    Address::Unix(path) => path.display().to_string(),
                };
                say(format_args!(
                    "target remote {place}: a client that connects sees all memory of the program"
                ));
                // The process that serves can remove no files.
                let status = in_child(|| {
                    // It does not outlast a session that is killed.
                    set_parent_process_death_signal(Some(Signal::KILL))
                        .context("Cannot watch the session's process")?;
                    session::serve(args, file, listener)
                });
                if let Address::Unix(path) = &address {
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
fn script(socket: &Path, kernel: Option<&KernelView>) -> String {
    let view = kernel.map_or_else(String::new, KernelView::commands);
    let commands = COMMANDS
        .replace("# VIEW\n", &view)
        .replace("SOCKET", &socket.display().to_string());
    commands + kernel.map_or("", KernelView::commands_after)
}

/// Starts a process that serves the client of `listener`.
///
/// # Errors
/// The host starts no process.
fn start_server(args: &DebugArgs, file: &Path, listener: Listener) -> Result<Pid, Failure> {
    let started = fork().context("Cannot start a process for the replay")?;
    Ok(started.unwrap_or_else(|| {
        // The terminal's Ctrl-C is for gdb.
        let _ = setpgid(None, None);
        std::process::exit(conclude(session::serve(args, file, listener)).into());
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
    let kernel = KernelView::of(args, file, directory)?;
    let socket = directory.file(SOCKET);
    let listener = Listener::Unix(private_socket(&socket)?);
    let script = directory.file(SCRIPT);
    fs::write(&script, self::script(&socket, kernel.as_ref()))
        .context("Cannot write a script for gdb")?;
    Ok((start_server(args, file, listener)?, script))
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
    // It ends with the connection. One to which gdb has not connected does not.
    let _ = kill_process(server, Signal::TERM);
    let served = waitpid(Some(server), WaitOptions::empty());
    drop(held);
    let failed = match served {
        Ok(Some((_, status))) => status.exit_status().filter(|status| *status != 0),
        _ => None,
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_of_this_host_unless_they_say_otherwise() {
        let parse = |text| Address::parse(text).ok();
        let tcp = |text: &str| Some(Address::Tcp(text.parse().unwrap()));
        assert_eq!(parse("1234"), tcp("127.0.0.1:1234"));
        assert_eq!(parse(":1234"), tcp("127.0.0.1:1234"));
        assert_eq!(parse("localhost:1"), tcp("127.0.0.1:1"));
        assert_eq!(parse("0.0.0.0:1234"), tcp("0.0.0.0:1234"));
        assert_eq!(parse("[::1]:1234"), tcp("[::1]:1234"));
        assert_eq!(parse("./socket"), Some(Address::Unix("./socket".into())));
        for wrong in ["", "x", "1:2:x", "70000", "host:1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_missing_gdb_is_named() {
        let failure = find(OsStr::new("no-such-gdb"), "").unwrap_err();
        assert_eq!(failure.status(), 126);
        assert!(find(OsStr::new("/bin/sh"), "").is_ok());
    }
}
