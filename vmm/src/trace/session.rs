//! The conversation with the agent inside the guest.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{ByteSink, GuestRam, Shared, lock};
use vbts_protocol::{
    Decoder, ErrorKind, ExitStatus, Extents, Job, Scope, ToGuest, ToHost, VERSION,
};
use vm_memory::{Bytes, GuestAddress};

use super::destination::Destination;
use super::format::{Format, Summary};
use super::writer::{Work, Writer, WriterError};
use crate::board::Board;
use crate::exit::{Failure, killed_by};
use crate::host::input::Offer;
use crate::host::{Alarm, Event, Input};
use crate::machine::RunObserver;

/// The most standard input that one answer carries, in bytes.
const MAX_INPUT: usize = 64 << 10;
/// While input is awaited it is looked for this often in virtual time, in ns.
const INPUT_CHECK_INTERVAL: u64 = 1_000_000;
/// Index of the agent's port on its console device.
const AGENT_PORT: usize = 0;

/// Why a session ended early.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The trace, or what the program prints, could not be written.
    #[error(transparent)]
    Writer(#[from] WriterError),
    /// The agent said something that is not in the protocol.
    #[error("the guest's agent does not follow the protocol")]
    Protocol(#[from] vbts_protocol::Error),
    /// The agent is of another version.
    #[error(
        "the guest's agent is \"{0}\", but this vbts needs \"{VERSION}\": build the guest again"
    )]
    Version(String),
    /// The agent said that records are where there is no memory.
    #[error("the guest's agent has records outside of the guest's memory, at {0:#x}")]
    Records(u64),
    /// The agent could not run the job.
    #[error("{text}")]
    Agent {
        /// What kind of error.
        kind: ErrorKind,
        /// In the agent's words.
        text: String,
    },
}

impl SessionError {
    /// What this means for the command.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Writer(WriterError::Output(error)) => error.into_failure(),
            Self::Writer(WriterError::Interrupted) => Failure::Interrupted,
            error => Failure::Error(error.into()),
        }
    }
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// As the guest's kernel says.
    pub status: ExitStatus,
}

impl Ending {
    /// The exit status that a shell would see.
    pub fn code(self) -> u8 {
        match self.status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => killed_by(signal.into()),
        }
    }
}

/// What the agent says, as it comes out of the guest's console port.
pub struct Session {
    decoder: Decoder,
    memory: GuestRam,
    /// Records that do not count yet, and whose.
    records: Option<(u32, Vec<u8>)>,
    writer: Writer,
    ready: bool,
    started: bool,
    /// Standard input that the agent has asked for since it was last looked at, in bytes.
    wanted: u64,
    ending: Option<Ending>,
    error: Option<SessionError>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("records", &self.writer.records())
            .field("started", &self.started)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session with a guest that has this `memory`, whose trace, of `scope`, becomes `format` and
    /// goes to `destination`. `alarm` interrupts waits for a slow reader.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start(
        memory: GuestRam,
        scope: Scope,
        format: Box<dyn Format>,
        destination: Destination,
        alarm: &Arc<Alarm>,
    ) -> io::Result<Self> {
        Ok(Self {
            decoder: Decoder::new(),
            memory,
            records: None,
            writer: Writer::start(scope, format, destination, alarm.clone())?,
            ready: false,
            started: false,
            wanted: 0,
            ending: None,
            error: None,
        })
    }

    /// How the program ended, if it has.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// How long it has taken so far to format and write the trace.
    pub fn writing(&self) -> Duration {
        self.writer.busy()
    }

    /// Waits until the trace is written, with its end. A run that was `interrupted` does not wait
    /// long for a reader that does not read.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(&mut self, interrupted: bool) -> Result<Summary, SessionError> {
        let exit = self.ending.map_or(0, Ending::code);
        Ok(self.writer.finish(exit, interrupted)?)
    }

    /// What has gone wrong, once.
    fn take_error(&mut self) -> Option<SessionError> {
        let error = self.error.take();
        error.or_else(|| self.writer.take_error().map(SessionError::from))
    }

    fn take_frames(&mut self) -> Result<(), SessionError> {
        let Self {
            decoder,
            memory,
            records,
            writer,
            ..
        } = self;
        while let Some(frame) = decoder.next_frame()? {
            match ToHost::parse(frame)? {
                ToHost::Ready(version) if version == VERSION => self.ready = true,
                ToHost::Ready(version) => return Err(SessionError::Version(version.into())),
                ToHost::Started { .. } if self.started => writer.put(Work::Untraced)?,
                ToHost::Started { .. } => self.started = true,
                ToHost::Stdout(bytes) => writer.put(Work::Stdout(bytes.into()))?,
                ToHost::Stderr(bytes) => writer.put(Work::Stderr(bytes.into()))?,
                ToHost::StdinWant(n) => self.wanted = self.wanted.saturating_add(n.into()),
                ToHost::Maps { pid, text } => writer.put(Work::Maps {
                    pid,
                    text: text.into(),
                })?,
                ToHost::Lost(n) => writer.put(Work::Lost(n))?,
                ToHost::Records { pid, extents } => {
                    *records = Some((pid, read(memory, extents)?));
                }
                ToHost::RecordsStand => {
                    if let Some((pid, records)) = records.take() {
                        writer.put(Work::Records { pid, records })?;
                    }
                }
                ToHost::Exit(status) => self.ending = Some(Ending { status }),
                ToHost::Error { kind, text, .. } => {
                    return Err(SessionError::Agent {
                        kind,
                        text: text.into(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The records in these pieces of memory.
fn read(memory: &GuestRam, extents: Extents<'_>) -> Result<Vec<u8>, SessionError> {
    // No more than MAX_RECORDS bytes.
    let len = extents.iter().map(|extent| extent.len as usize).sum();
    let mut records = Vec::with_capacity(len);
    for extent in extents.iter() {
        let (at, len) = (GuestAddress(extent.address), extent.len as usize);
        memory
            .write_all_volatile_to(at, &mut records, len)
            .map_err(|_| SessionError::Records(extent.address))?;
    }
    Ok(records)
}

impl ByteSink for Session {
    fn put(&mut self, bytes: &[u8]) -> usize {
        if self.error.is_none() {
            self.decoder.push(bytes);
            self.error = self.take_frames().err();
        }
        bytes.len()
    }
}

/// Sends the job, standard input and signals to the agent inside the guest.
#[derive(Debug)]
pub struct AgentConnection {
    session: Shared<Session>,
    port: Shared<MmioTransport<Console>>,
    /// Until it is sent.
    job: Option<Job>,
    input: Input,
    /// Bytes of standard input that the agent still waits for.
    wanted: u64,
    /// Virtual time at which to look for input that was not there.
    next_check: u64,
    /// Frames that wait for room in the port.
    outbox: Vec<u8>,
    interrupted: bool,
    progress: Option<indicatif::ProgressBar>,
}

impl AgentConnection {
    /// Drives `session` over `port`: the agent runs `job` with `input` as its standard input.
    pub fn new(
        session: Shared<Session>,
        port: Shared<MmioTransport<Console>>,
        job: Job,
        input: Input,
    ) -> Self {
        Self {
            session,
            port,
            job: Some(job),
            input,
            wanted: 0,
            next_check: 0,
            outbox: Vec::new(),
            interrupted: false,
            progress: None,
        }
    }

    /// Shows the numbers on `progress` as they grow.
    pub fn show_progress(&mut self, progress: indicatif::ProgressBar) {
        self.progress = Some(progress);
    }

    fn send(&mut self, message: &ToGuest<'_>) -> Result<(), Failure> {
        message.encode(&mut self.outbox)?;
        Ok(())
    }

    fn flush(&mut self, board: &Board) {
        if self.outbox.is_empty() {
            return;
        }
        let (taken, effects) = lock(&self.port).push_input(AGENT_PORT, &self.outbox);
        self.outbox.drain(..taken);
        board.apply(effects);
    }

    fn send_input(&mut self) -> Result<(), Failure> {
        let mut bytes = vec![
            0;
            usize::try_from(self.wanted)
                .unwrap_or(usize::MAX)
                .min(MAX_INPUT)
        ];
        match self.input.read(&mut bytes) {
            Offer::Bytes(n) => {
                self.wanted -= n as u64;
                self.send(&ToGuest::Stdin(bytes.get(..n).unwrap_or_default()))
            }
            Offer::End => {
                self.wanted = 0;
                self.send(&ToGuest::StdinEof)
            }
            Offer::NotReady => Ok(()),
        }
    }
}

impl RunObserver for AgentConnection {
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        let mut session = lock(&self.session);
        if let Some(error) = session.take_error() {
            return Err(error.into_failure());
        }
        let (ready, wanted) = (session.ready, std::mem::take(&mut session.wanted));
        if let Some(progress) = &self.progress {
            progress.set_position(session.writer.records());
        }
        drop(session);
        if ready && let Some(job) = self.job.take() {
            self.send(&ToGuest::Job(Box::new(job)))?;
        }
        self.wanted = self.wanted.saturating_add(wanted);
        if self.wanted > 0 && (wanted > 0 || now >= self.next_check) {
            self.next_check = now.saturating_add(INPUT_CHECK_INTERVAL);
            self.send_input()?;
        }
        self.flush(board);
        Ok(())
    }

    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure> {
        match event {
            // The first interrupt is the program's: it may want to end in its own way.
            Event::Signal(signal_hook::consts::SIGINT)
                if !self.interrupted && lock(&self.session).started =>
            {
                self.interrupted = true;
                self.send(&ToGuest::Signal(signal_hook::consts::SIGINT as u32))?;
                self.flush(board);
                Ok(())
            }
            Event::Signal(signal) => Err(Failure::Signal(signal)),
            Event::Timeout => Ok(()),
        }
    }

    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        let input = (self.wanted > 0 && self.input.is_open()).then(|| self.input.fd());
        input.into_iter().collect()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        // What looks like an unfinished line may be a prompt.
        self.next_check = 0;
        lock(&self.session)
            .writer
            .put(Work::FlushLine)
            .map_err(|error| SessionError::from(error).into_failure())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::format::Json;
    use crate::trace::format::tests::records;
    use vbts_protocol::Extent;

    fn memory() -> GuestRam {
        GuestRam::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap()
    }

    fn session(memory: GuestRam, file: &std::path::Path) -> Session {
        let alarm = Arc::new(Alarm::new(Default::default(), None).unwrap());
        let destination = Destination::new(Some(file), false).unwrap();
        let json = Box::new(Json::new(crate::accel::Accel::Soft));
        Session::start(memory, Scope::User, json, destination, &alarm).unwrap()
    }

    /// Stores records in two pieces of memory; the second is the last there is.
    fn stored(memory: &GuestRam, records: &[u8]) -> Vec<u8> {
        let (first, second) = records.split_at(20);
        let mut extents = Vec::new();
        for (bytes, address) in [(first, 0x1000), (second, (1 << 20) - second.len() as u64)] {
            memory.write_slice(bytes, GuestAddress(address)).unwrap();
            let len = bytes.len() as u64;
            Extents::push(&mut extents, Extent { address, len });
        }
        extents
    }

    fn frames(messages: &[ToHost<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|m| m.encode(&mut bytes).unwrap());
        bytes
    }

    #[test]
    fn a_session_becomes_a_trace() {
        let directory = std::env::temp_dir().join(format!("vbts-session-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let memory = memory();
        let mut session = session(memory.clone(), &directory.join("trace"));
        let records = records(&[[1, 0x1000, 0x2000], [0, 0, 0], [1, 0x3000, 0x4000]]);
        let extents = stored(&memory, &records);
        let bytes = frames(&[
            ToHost::Ready(VERSION),
            ToHost::Started { pid: 5 },
            ToHost::Maps { pid: 5, text: b"" },
            ToHost::Started { pid: 6 },
            ToHost::StdinWant(10),
            ToHost::StdinWant(20),
            // Pages of the first were moved.
            ToHost::Records {
                pid: 5,
                extents: Extents::new(&extents[..0]).unwrap(),
            },
            ToHost::Records {
                pid: 5,
                extents: Extents::new(&extents).unwrap(),
            },
            ToHost::RecordsStand,
            ToHost::RecordsStand,
            ToHost::Lost(2),
            ToHost::Exit(ExitStatus::Signal(11)),
        ]);
        for piece in bytes.chunks(7) {
            assert_eq!(session.put(piece), piece.len());
        }
        assert!(session.error.is_none() && session.ready && session.started);
        assert_eq!(session.wanted, 30);
        assert_eq!(session.ending().unwrap().code(), 139);
        assert_eq!(
            session.finish(false).unwrap(),
            Summary {
                records: 2,
                lost: 3,
                lost_more: true,
                untraced: 1,
                exit: 139
            }
        );
        let text = std::fs::read_to_string(directory.join("trace")).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.ends_with(
                "\"records\":2,\"lost\":3,\"lost_at_least\":true,\"untraced\":1,\"exit\":139,\"accel\":\"soft\"}\n"
            ),
            "{text}"
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_hostile_agent_ends_the_session() {
        let mut outside = Vec::new();
        let (address, len) = ((1 << 20) - 16, 24);
        Extents::push(&mut outside, Extent { address, len });
        for (bytes, message) in [
            (
                frames(&[ToHost::Records {
                    pid: 1,
                    extents: Extents::new(&outside).unwrap(),
                }]),
                "outside of the guest's memory",
            ),
            (
                frames(&[ToHost::Ready("another 9")]),
                "build the guest again",
            ),
            (vec![0xFF; 8], "does not follow the protocol"),
            (
                frames(&[ToHost::Error {
                    kind: ErrorKind::NotFound,
                    errno: 2,
                    text: "no such thing",
                }]),
                "no such thing",
            ),
        ] {
            let mut session = session(memory(), "/dev/null".as_ref());
            session.put(&bytes);
            session.put(&[1; 100_000]);
            let error = session.take_error().unwrap().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_full_disk_ends_the_session() {
        let memory = memory();
        let mut session = session(memory.clone(), "/dev/full".as_ref());
        let extents = stored(&memory, &records(&[[1, 2, 3]]));
        let extents = Extents::new(&extents).unwrap();
        session.put(&frames(&[
            ToHost::Records { pid: 1, extents },
            ToHost::RecordsStand,
        ]));
        let failure = session.finish(false).unwrap_err().into_failure();
        assert_eq!(failure.status(), 125);
        assert!(failure.to_string().contains("No space left"), "{failure}");
    }
}
