//! The connection to the process that reads symbols.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};

use super::protocol::{Action, MAX_PACKET, Reply, Request};
use vbts_host::WriteMonitor;

/// Subcommand of `vbts` that reads symbols.
pub const COMMAND: &str = "read-symbols";
/// Options of [`COMMAND`]: not in a sandbox.
const UNCONFINED: [&str; 2] = ["--sandbox", "off"];

/// Time for an answer. The process has a limit of its own that is much lower, of processor time.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for all answers once the run is interrupted.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Time for the processes to end.
const END_PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};
/// Interval at which a wait checks whether the run is interrupted.
const CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The process was killed by this signal, or ended without one. Another takes its place, which
    /// has no files.
    Died(i32),
    /// There are no replies any more, or they make no sense.
    Closed,
}

/// The connection to the process that reads symbols.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    starter: Child,
    generation: u32,
    packet: Vec<u8>,
    /// Says whether the run is interrupted: names are not worth a long wait then.
    writes: Arc<WriteMonitor>,
    /// The time that waits have taken since.
    waited: Duration,
}

impl Connection {
    /// Starts the process, which is the program `vbts`, in a sandbox if `confined`.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn start(vbts: &mut Command, confined: bool) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        vbts.arg(COMMAND);
        if !confined {
            vbts.args(UNCONFINED);
        }
        // It has nothing of the environment, which could be secret.
        vbts.env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let starter = vbts.spawn()?;
        // The other end of the socket is open there only.
        vbts.stdin(Stdio::null());
        Ok(Self {
            socket: ours,
            starter,
            generation: 0,
            packet: vec![0; MAX_PACKET],
            writes: Arc::default(),
            waited: Duration::ZERO,
        })
    }

    /// Makes waits short once the run whose trace these writes are is interrupted.
    pub(crate) fn end_with(&mut self, writes: Arc<WriteMonitor>) {
        self.writes = writes;
    }

    /// Sends a request, with a file.
    ///
    /// # Errors
    /// See [`Gone`].
    pub(crate) fn send(&mut self, action: Action, file: Option<&File>) -> Result<(), Gone> {
        let request = Request {
            generation: self.generation,
            action,
        };
        let sent = send(self.socket.as_fd(), &request, file.map(AsFd::as_fd));
        sent.map_err(|_| Gone::Closed)
    }

    /// Waits for a reply.
    ///
    /// # Errors
    /// See [`Gone`].
    pub(crate) fn receive(&mut self) -> Result<Reply<'_>, Gone> {
        let began = Instant::now();
        let size = self.wait(began);
        if self.writes.is_hurried() {
            self.waited += began.elapsed();
        }
        let Ok(size @ 1..) = size else {
            return Err(Gone::Closed);
        };
        let packet = self.packet.get(..size).unwrap_or_default();
        match postcard::from_bytes(packet) {
            Ok(Reply::Ended { signal }) => {
                self.generation += 1;
                Err(Gone::Died(signal))
            }
            Ok(reply) => Ok(reply),
            Err(_) => Err(Gone::Closed),
        }
    }

    /// Waits for a packet, and returns its size.
    fn wait(&mut self, began: Instant) -> io::Result<usize> {
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&CHECK_INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let read = || rustix::io::read(&self.socket, &mut self.packet);
                    return Ok(retry_on_intr(read)?);
                }
                Err(error) => return Err(error.into()),
            }
            let waited = began.elapsed();
            let hurry = self.writes.is_hurried();
            let stop = self.writes.is_stopped();
            if stop || waited > PATIENCE || hurry && self.waited + waited > LAST_PATIENCE {
                return Err(Errno::TIMEDOUT.into());
            }
        }
    }
}

impl Drop for Connection {
    /// Ends the processes, and waits for them. They may have work that takes longer: then they are
    /// killed when this process ends.
    fn drop(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Write);
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        if poll(&mut fds, Some(&END_PATIENCE)) == Ok(1) {
            let _ = self.starter.wait();
        }
    }
}

fn send(socket: BorrowedFd<'_>, request: &Request, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let packet = postcard::to_allocvec(request).map_err(io::Error::other)?;
    let files = file.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let parts = [IoSlice::new(&packet)];
    retry_on_intr(|| sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}
