//! The process that reads symbols.
//!
//! The files that it reads can be hostile, and the libraries that read them are large. It therefore
//! has nothing but a socket to vbts, over which open files come, and it has limits: of memory, of
//! processor time for one request. If it dies, vbts lacks some names.
//!
//! There are two processes. The first starts the second, which reads, and starts another one if it
//! dies: vbts itself is in a sandbox by then, where no process can be started.

pub mod budget;
mod debug_info;
mod demangle;
mod elf;
mod inlined;
mod limits;
mod lines;
mod linkage;
pub mod object_file;
pub mod objects;
mod resolve;
mod scopes;
mod stream;
mod switches;
mod symbol_table;
mod units;
mod unwind;

pub use linkage::is_linkage;

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use rustix::process::{WaitOptions, waitpid};

use super::protocol::{MAX_PACKET, Reply, Request};
use objects::Objects;
use vbts_host::child;
use vbts_host::sandbox::{self, SymbolProcess};

/// Number of processes that read, one after the other.
const MAX_PROCESSES: u32 = 64;

/// What the first process has come to.
enum Turn {
    /// This is the process that reads.
    Reads(u32),
    /// The end of all.
    Ends,
}

/// Reads symbols for the process at the other end of standard input, in a sandbox if `confined`.
///
/// # Errors
/// The process cannot be confined, or its standard input is not such a socket.
pub fn run(confined: bool) -> anyhow::Result<()> {
    let socket = rustix::stdio::stdin();
    limits::prepare()?;
    if confined {
        sandbox::drop_all_capabilities()?;
        sandbox::confine(SymbolProcess::Starter)?;
    }
    let Turn::Reads(generation) = start_readers(socket)? else {
        return Ok(());
    };
    limits::confine_reader()?;
    if confined {
        sandbox::confine(SymbolProcess::Reader)?;
    }
    Ok(serve(socket, generation)?)
}

/// Starts processes that read, until one ends well. Returns in each of them, too.
fn start_readers(socket: BorrowedFd<'_>) -> anyhow::Result<Turn> {
    for generation in 0..MAX_PROCESSES {
        if limits::is_exhausted() {
            break;
        }
        let Some(reader) = child::fork()? else {
            return Ok(Turn::Reads(generation));
        };
        let Some((_, status)) = waitpid(Some(reader), WaitOptions::empty())? else {
            break;
        };
        if status.exit_status() == Some(0) {
            break;
        }
        let signal = status.terminating_signal().unwrap_or_default();
        reply(socket, &Reply::Ended { signal })?;
    }
    Ok(Turn::Ends)
}

/// Performs requests until the other end of the socket is closed.
fn serve(socket: BorrowedFd<'_>, generation: u32) -> io::Result<()> {
    let mut objects = Objects::default();
    let mut packet = vec![0; MAX_PACKET];
    loop {
        let (size, file) = receive(socket, &mut packet)?;
        if size == 0 {
            return Ok(());
        }
        let packet = packet.get(..size).unwrap_or_default();
        let request: Request = postcard::from_bytes(packet).map_err(io::Error::other)?;
        // The process before this one has died of the request.
        if request.generation != generation {
            continue;
        }
        limits::begin_request();
        objects.perform(request.action, file, &mut |answer| reply(socket, answer))?;
        limits::end_request();
    }
}

/// Receives a packet, and the file that comes with it.
fn receive(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<(usize, Option<File>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(packet)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last().map(|file: OwnedFd| file.into());
        }
    }
    Ok((received.bytes, file))
}

fn reply(socket: BorrowedFd<'_>, reply: &Reply<'_>) -> io::Result<()> {
    let packet = postcard::to_allocvec(reply).map_err(io::Error::other)?;
    send(socket, &packet, SendFlags::NOSIGNAL)?;
    Ok(())
}
