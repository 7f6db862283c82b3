//! The session with one client: its state, and which function answers which packet.

use std::io;

use thiserror::Error;

use super::packet::{Connection, Packets};
use super::text::{Arguments, ThreadSelector};
use super::{
    branch_trace, files, memory, objects, process, query, registers, resume, stop_points, threads,
};
use crate::registers::RegisterLayout;
use crate::stop::{Stop, StopReason};
use crate::target::{Capabilities, Result, Target, TargetError, ThreadId};

/// End of a session that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client has detached from all processes.
    Detached,
    /// The client has killed the target.
    Killed,
    /// The connection has ended.
    Disconnected,
}

/// Why a session cannot continue.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The connection has failed, or a packet is too long.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The target cannot continue, for the reason of [`TargetError::Fatal`].
    #[error("{0}")]
    Target(String),
}

/// Serves a client until the session ends. The connection must be in blocking mode.
///
/// # Errors
///
/// The connection fails, the client sends a packet that is longer than the server has announced, or
/// the target reports [`TargetError::Fatal`].
pub fn serve<C: Connection>(
    connection: C,
    target: &mut dyn Target,
) -> std::result::Result<SessionEnd, SessionError> {
    let mut packets = Packets::new(connection);
    let stop = match target.current_stop() {
        Ok(stop) => stop,
        Err(error) => return Err(SessionError::Target(error.to_string())),
    };
    let mut session = Session::new(target, stop);
    let mut end = SessionEnd::Disconnected;
    while let Some(packet) = packets.receive()? {
        match session.answer(&packet) {
            Ok(Outcome::Reply(reply)) => packets.send(&reply)?,
            Ok(Outcome::StopAcknowledging) => {
                packets.send(b"OK")?;
                packets.stop_acknowledging();
            }
            Ok(Outcome::Output(output)) => {
                resume::send_console(&mut packets, &output)?;
                packets.send(b"OK")?;
            }
            Ok(Outcome::Detached) => {
                end = SessionEnd::Detached;
                packets.send(b"OK")?;
            }
            Ok(Outcome::Killed) => return Ok(SessionEnd::Killed),
            Ok(Outcome::Resume(resumption)) => {
                if !resume::run(&mut session, &mut packets, &resumption)? {
                    return Ok(end);
                }
            }
            Err(TargetError::Fatal(reason)) => return Err(SessionError::Target(reason)),
            Err(error) => packets.send(&error_reply(&error))?,
        }
    }
    Ok(end)
}

/// Consequence of a packet.
#[derive(Debug)]
pub(super) enum Outcome {
    Reply(Vec<u8>),
    /// `OK`, and no acknowledgements from then on.
    StopAcknowledging,
    /// Text for the terminal, and `OK`.
    Output(Vec<u8>),
    /// `OK`, and the target runs on without the client.
    Detached,
    /// The end of the session, without a reply.
    Killed,
    /// Execution, with a reply at the next stop.
    Resume(crate::resumption::Resumption),
}

impl Outcome {
    pub(super) fn ok() -> Result<Self> {
        Ok(Self::Reply(b"OK".to_vec()))
    }
}

impl From<String> for Outcome {
    fn from(text: String) -> Self {
        Self::Reply(text.into_bytes())
    }
}

/// The state of a session.
pub(super) struct Session<'t> {
    pub(super) target: &'t mut dyn Target,
    pub(super) capabilities: Capabilities,
    pub(super) client: Client,
    /// The last stop.
    pub(super) stop: Stop,
    /// Number of resumptions and jumps: what was read of the target is out of date when it changes.
    pub(super) generation: u64,
    /// The thread that registers, memory and most queries are about.
    pub(super) general: ThreadSelector,
    /// The threads that `c`, `s`, `bc` and `bs` are about.
    pub(super) resumed: ThreadSelector,
    pub(super) objects: objects::Cache,
    pub(super) files: files::OpenFiles,
    pub(super) branch_trace: branch_trace::Settings,
    pub(super) thread_list: threads::Listing,
}

/// Features that the client understands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Client {
    pub(super) multiprocess: bool,
    pub(super) software_breakpoints: bool,
    pub(super) hardware_breakpoints: bool,
    pub(super) fork_events: bool,
    pub(super) vfork_events: bool,
    pub(super) exec_events: bool,
    pub(super) no_resumed: bool,
}

type Handler = fn(&mut Session<'_>, Arguments<'_>) -> Result<Outcome>;

/// How a packet is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// By its whole text.
    Whole,
    /// By its beginning. The rest is the arguments.
    Begin,
}
use Match::{Begin, Whole};

/// The packets that begin with neither `q` nor `Q`. The first match counts.
const PACKETS: &[(Match, &str, Handler)] = &[
    (Whole, "!", process::extended),
    (Whole, "?", resume::last_stop),
    (Begin, "D", process::detach),
    (Begin, "G", registers::write_all),
    (Begin, "H", threads::select),
    (Begin, "M", memory::write),
    (Begin, "P", registers::write_one),
    (Begin, "R", process::restart),
    (Begin, "T", threads::is_alive),
    (Begin, "X", memory::write_binary),
    (Begin, "Z", stop_points::add),
    (Whole, "bc", resume::backward_continue),
    (Whole, "bs", resume::backward_step),
    (Begin, "C", resume::continue_with_signal),
    (Begin, "S", resume::step_with_signal),
    (Whole, "c", resume::continue_all),
    (Whole, "g", registers::read_all),
    (Whole, "k", process::kill),
    (Begin, "m", memory::read),
    (Begin, "p", registers::read_one),
    (Whole, "s", resume::step),
    (Begin, "vAttach;", process::attach),
    (Whole, "vCont?", resume::actions),
    (Begin, "vCont;", resume::continue_by_thread),
    (Begin, "vFile:", files::answer),
    (Begin, "vKill;", process::kill_one),
    (Begin, "vRun;", process::run),
    (Begin, "x", memory::read_binary),
    (Begin, "z", stop_points::remove),
];

/// Looks a packet up in a table of handlers.
pub(super) fn dispatch(
    table: &[(Match, &str, Handler)],
    session: &mut Session<'_>,
    packet: &[u8],
) -> Result<Outcome> {
    for &(how, name, handler) in table {
        if let Some(arguments) = packet.strip_prefix(name.as_bytes())
            && (how == Begin || arguments.is_empty())
        {
            return handler(session, Arguments(arguments));
        }
    }
    Err(TargetError::Unsupported)
}

impl<'t> Session<'t> {
    fn new(target: &'t mut dyn Target, stop: Stop) -> Self {
        let mut session = Self {
            capabilities: target.capabilities(),
            target,
            client: Client::default(),
            general: ThreadSelector::Any,
            stop,
            generation: 0,
            resumed: ThreadSelector::Any,
            objects: objects::Cache::default(),
            files: files::OpenFiles::default(),
            branch_trace: branch_trace::Settings::default(),
            thread_list: threads::Listing::default(),
        };
        session.select_stopped();
        session
    }

    pub(super) fn answer(&mut self, packet: &[u8]) -> Result<Outcome> {
        match packet.first() {
            Some(b'q' | b'Q') => dispatch(query::PACKETS, self, packet),
            _ => dispatch(PACKETS, self, packet),
        }
    }

    /// Makes the thread that has stopped the current one, as the client does, too.
    pub(super) fn select_stopped(&mut self) {
        let Stop { thread, reason } = &self.stop;
        self.general = match reason {
            StopReason::Exited { .. } | StopReason::Killed { .. } => ThreadSelector::Any,
            _ => ThreadSelector::Thread(Some(thread.process), thread.thread),
        };
    }

    /// Notes a stop that the target has reached.
    pub(super) fn stopped(&mut self, stop: Stop) {
        self.stop = stop;
        self.generation += 1;
        self.select_stopped();
    }

    /// Returns the current thread: the one that the client has selected, or else the one that has
    /// stopped, or the first of the selected process.
    ///
    /// # Errors
    ///
    /// ESRCH: no such thread exists.
    pub(super) fn thread(&mut self) -> Result<ThreadId> {
        self.find_thread(self.general)
    }

    pub(super) fn find_thread(&mut self, selector: ThreadSelector) -> Result<ThreadId> {
        // The target refuses threads that do not exist, and a list of all takes it longer.
        if let ThreadSelector::Thread(Some(process), thread) = selector {
            return Ok(ThreadId { process, thread });
        }
        let threads = self.target.threads()?;
        let mut found = threads
            .iter()
            .map(|thread| thread.id)
            .filter(|&id| selector.matches(id));
        let first = found.next().ok_or(NO_SUCH_THREAD)?;
        Ok(if found.any(|id| id == self.stop.thread) {
            self.stop.thread
        } else {
            first
        })
    }

    /// Returns the layout of the registers of a thread.
    pub(super) fn layout(&mut self, thread: ThreadId) -> Result<RegisterLayout> {
        self.target.register_layout(thread.process)
    }

    /// Refuses an operation that the target does not have.
    pub(super) fn require(&self, capability: Capabilities) -> Result<()> {
        if self.capabilities.contains(capability) {
            Ok(())
        } else {
            Err(TargetError::Unsupported)
        }
    }
}

/// ESRCH.
pub(super) const NO_SUCH_THREAD: TargetError = TargetError::Errno(3);

/// Returns the reply for an error.
pub(super) fn error_reply(error: &TargetError) -> Vec<u8> {
    match error {
        TargetError::Unsupported => Vec::new(),
        TargetError::Errno(number) => format!("E{number:02x}").into_bytes(),
        TargetError::Refused(reason) | TargetError::Fatal(reason) => {
            // Reserved characters would have to be escaped, which GDB does not undo here.
            let text: String = reason
                .chars()
                .map(|character| match character {
                    '#' | '$' | '}' | '*' => ' ',
                    character if character.is_control() => ' ',
                    character => character,
                })
                .take(1000)
                .collect();
            format!("E.{text}").into_bytes()
        }
    }
}
