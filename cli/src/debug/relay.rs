//! Connects another client than gdb to the session, when that is ready.
//!
//! A client waits for its first answer, and the first replay of a recording can take minutes. So
//! connections are refused until the session can answer. It is in its sandbox then, in which it
//! accepts no connection: another process does, and relays what both send.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, anyhow};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use vbts_host::child::fork;
use vbts_host::exit::{Failure, say};

/// What the session sends when it can answer.
const READY: u8 = 1;

/// An address at which a client connects.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A socket with an address, at which connections are refused yet.
struct Bound {
    socket: OwnedFd,
    address: Address,
}

/// The end of the session on the relay.
pub(super) struct Relay(File);

impl Relay {
    /// Starts the process that connects a client at `address`. It ends when the client or the
    /// session does, and with this process.
    ///
    /// # Errors
    /// The address cannot be used, or the host starts no process.
    pub(super) fn start(address: Address) -> anyhow::Result<(Self, Pid)> {
        let bound = Bound::new(address)?;
        let (ours, relays) = UnixStream::pair().context("Cannot connect the session")?;
        let started = fork().context("Cannot start a process for the client")?;
        let Some(relaying) = started else {
            drop(ours);
            // Without that it would outlast a session that is killed.
            let is_watched = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
            if is_watched && let Err(error) = relay(relays, &bound) {
                say(format_args!("the client cannot be connected: {error:#}"));
            }
            std::process::exit(0);
        };
        Ok((Self(OwnedFd::from(ours).into()), relaying))
    }

    /// Lets the client connect. Returns the connection.
    ///
    /// # Errors
    /// The process has ended.
    pub(super) fn connect(mut self) -> io::Result<File> {
        self.0.write_all(&[READY])?;
        Ok(self.0)
    }
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

    /// The path of a Unix socket.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Bound {
    fn new(address: Address) -> anyhow::Result<Self> {
        let open = |family| socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let bound = || -> io::Result<OwnedFd> {
            match &address {
                Address::Tcp(address) => {
                    let socket = open(match address {
                        SocketAddr::V4(_) => AddressFamily::INET,
                        SocketAddr::V6(_) => AddressFamily::INET6,
                    })?;
                    // The port of a session that has just ended can be used.
                    sockopt::set_socket_reuseaddr(&socket, true)?;
                    bind(&socket, address)?;
                    Ok(socket)
                }
                Address::Unix(path) => {
                    let socket = open(AddressFamily::UNIX)?;
                    bind(&socket, &SocketAddrUnix::new(path)?)?;
                    // Nothing can connect before.
                    fs::set_permissions(path, Permissions::from_mode(0o600))?;
                    Ok(socket)
                }
            }
        };
        let socket = bound().with_context(|| format!("Cannot listen at {address}"))?;
        Ok(Self { socket, address })
    }

    /// Waits for a client. Returns none if `session` ends before.
    fn accept(&self, session: &UnixStream) -> io::Result<Option<File>> {
        listen(self.socket.as_fd(), 1)?;
        say(format_args!(
            "target remote {}: a client that connects sees all memory of the program",
            self.address
        ));
        let mut descriptors = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(session, PollFlags::IN),
        ];
        while let Err(Errno::INTR) = poll(&mut descriptors, None) {}
        // The session sends nothing that a client has not asked for.
        if !descriptors[1].revents().is_empty() {
            return Ok(None);
        }
        let socket = self.socket.try_clone()?;
        Ok(Some(match self.address {
            Address::Tcp(_) => {
                let (stream, _) = TcpListener::from(socket).accept()?;
                // Packets are short, and each waits for its answer.
                stream.set_nodelay(true)?;
                OwnedFd::from(stream).into()
            }
            Address::Unix(_) => OwnedFd::from(UnixListener::from(socket).accept()?.0).into(),
        }))
    }
}

/// Relays between the session and its client, until one of them ends.
fn relay(session: UnixStream, bound: &Bound) -> io::Result<()> {
    let mut ready = [0];
    if (&session).read(&mut ready)? == 0 {
        // The session has ended, and has said why.
        return Ok(());
    }
    let Some(client) = bound.accept(&session)? else {
        return Ok(());
    };
    let (mut from_client, mut to_session) = (client.try_clone()?, session.try_clone()?);
    thread::spawn(move || {
        // An error is the end of the client, too.
        let _ = io::copy(&mut from_client, &mut to_session);
        let _ = to_session.shutdown(Shutdown::Write);
    });
    // The thread ends with this process.
    let _ = io::copy(&mut &session, &mut &client);
    Ok(())
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
    fn a_client_is_connected_when_the_session_is_ready() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let bound = Bound::new(Address::Unix(path.clone())).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let (mut session, relays) = UnixStream::pair().unwrap();
        let relaying = thread::spawn(move || relay(relays, &bound));
        assert!(UnixStream::connect(&path).is_err());
        session.write_all(&[READY]).unwrap();
        let mut client = loop {
            if let Ok(client) = UnixStream::connect(&path) {
                break client;
            }
            thread::yield_now();
        };
        client.write_all(b"question").unwrap();
        let mut question = [0; 8];
        session.read_exact(&mut question).unwrap();
        session.write_all(b"answer").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // The end of the client is that of the session, and the other way round.
        assert_eq!(session.read(&mut question).unwrap(), 0);
        drop(session);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"answer");
        relaying.join().unwrap().unwrap();
    }

    #[test]
    fn an_address_that_is_in_use_is_refused() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let refused = Bound::new(Address::Tcp(taken.local_addr().unwrap()));
        let error = refused.err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.starts_with("Cannot listen at 127.0.0.1:")));
    }
}
