//! The virtio-console port to the host.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use vbts_protocol::{Decoder, ErrorKind, PORT_NAME, ToGuest, ToHost};

use crate::failure::Failure;

/// Time limit for the appearance of the port. The driver adds ports from a work queue after boot.
const APPEARS_WITHIN: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(1);

/// Memory in bytes that the host needs for a message about a task in addition to its contents.
const MESSAGE: u64 = 128;

/// The connection to the host.
#[derive(Debug)]
pub struct Port {
    file: File,
    decoder: Decoder,
    chunk: Box<[u8]>,
    out: Vec<u8>,
    /// Memory in bytes that the host needs to keep the messages about tasks since
    /// [`Self::reset_kept`].
    kept: u64,
}

impl Port {
    /// Waits for the port and opens it.
    pub fn open() -> Result<Self, Failure> {
        let mut waited = Duration::ZERO;
        let path = loop {
            if let Some(path) = find() {
                break path;
            }
            if waited >= APPEARS_WITHIN {
                return Err(Failure::new(
                    ErrorKind::Internal,
                    format_args!(
                        "there is no virtio port {PORT_NAME}: programs are traced with the kernel \
                         of vbts (guest-kernel/build), and `vbts run --record` records any kernel"
                    ),
                ));
            }
            sleep(RETRY);
            waited += RETRY;
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| Failure::os(ErrorKind::Internal, path.display(), error))?;
        Ok(Self {
            file,
            decoder: Decoder::new(),
            chunk: vec![0; 64 << 10].into(),
            out: Vec::new(),
            kept: 0,
        })
    }

    /// Memory in bytes that the host needs to keep the messages about tasks since
    /// [`Self::reset_kept`].
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Starts [`Self::kept`] again.
    pub fn reset_kept(&mut self) {
        self.kept = 0;
    }

    /// Sends one message.
    pub fn send(&mut self, message: &ToHost<'_>) -> Result<(), Failure> {
        self.out.clear();
        message
            .encode(&mut self.out)
            .map_err(|error| Failure::new(ErrorKind::Internal, error))?;
        self.kept += match message {
            // The host does not put them into the order of time.
            ToHost::Output { .. }
            | ToHost::InputWant { .. }
            | ToHost::Position { .. }
            | ToHost::Code { .. }
            | ToHost::BuildId { .. } => 0,
            ToHost::Records { extents, .. } | ToHost::Mapped { extents, .. } => {
                extents.iter().map(|extent| extent.len).sum()
            }
            _ => MESSAGE + self.out.len() as u64,
        };
        self.file.write_all(&self.out).map_err(broken)
    }

    /// Reads available bytes. Blocks until there is at least one.
    pub fn fill(&mut self) -> Result<(), Failure> {
        let n = loop {
            match self.file.read(&mut self.chunk) {
                Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        };
        self.decoder.push(self.chunk.get(..n).unwrap_or_default());
        Ok(())
    }

    /// Returns the next complete message, if there is one.
    pub fn next_message(&mut self) -> Result<Option<ToGuest<'_>>, Failure> {
        let protocol = |error| Failure::new(ErrorKind::Protocol, error);
        match self.decoder.next_frame().map_err(protocol)? {
            Some(frame) => ToGuest::parse(frame).map(Some).map_err(protocol),
            None => Ok(None),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn broken(error: io::Error) -> Failure {
    Failure::os(
        ErrorKind::Internal,
        format_args!("virtio port {PORT_NAME}"),
        error,
    )
}

/// Returns the path `/dev/vportNpM` of the port named [`PORT_NAME`].
fn find() -> Option<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        let node = Path::new("/dev").join(entry.file_name());
        if name.trim_end() == PORT_NAME && node.exists() {
            return Some(node);
        }
    }
    None
}
