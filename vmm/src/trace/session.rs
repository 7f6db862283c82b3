//! The receiving half of the connection to the agent: its messages become work for the thread that
//! writes the trace.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use thiserror::Error;
use vbts_devices::{ByteSink, GuestRam};
use vbts_protocol::{
    Decoder, ErrorKind, ExitStatus, Extents, MAX_OPEN_FILES, Scope, ToHost, VERSION,
};
use vm_memory::{Bytes, GuestAddress};

use super::destination::{Destination, stderr_is_file};
use super::format::Format;
use super::merge::Input;
use super::notes::Notes;
use super::queue::{Work, WriterError};
use super::streams::Positions;
use super::summary::{RunEnd, Summary};
use super::symbols::Symbolizer;
use super::task::Untraced;
use super::terminal::Restorer;
use super::writer::Writer;
use crate::escape::printable;
use crate::exit::Failure;
use crate::host::Alarm;

/// Why a session cannot continue.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The trace, or what the program prints, could not be written.
    #[error(transparent)]
    Writer(#[from] WriterError),
    /// The agent sent something that is not in the protocol.
    #[error("the guest's agent does not follow the protocol")]
    Protocol(#[from] vbts_protocol::Error),
    /// The agent has another version of the protocol.
    #[error(
        "the guest's agent is \"{0}\", but this vbts needs \"{VERSION}\": build the guest again"
    )]
    Version(String),
    /// The agent reported records at an address without memory.
    #[error("the guest's agent has records outside of the guest's memory, at {0:#x}")]
    Records(u64),
    /// The agent could not run the job.
    #[error("{text}")]
    Agent {
        /// The kind of the error.
        kind: ErrorKind,
        /// The agent's message.
        text: String,
    },
}

impl SessionError {
    /// The failure of the command that this error causes.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Writer(WriterError::Output(error)) => error.into_failure(),
            Self::Writer(WriterError::Interrupted) => Failure::Interrupted,
            Self::Agent { kind, text } => match kind {
                ErrorKind::NotFound => Failure::NotFound(anyhow!(text)),
                ErrorKind::PermissionDenied
                | ErrorKind::NotExecutable
                | ErrorKind::Start
                | ErrorKind::WorkingDirectory => Failure::NotExecutable(anyhow!(text)),
                _ => Failure::Error(anyhow!(text)),
            },
            error => Failure::Error(error.into()),
        }
    }
}

/// Maximum length of a name from the guest in bytes (`PATH_MAX` of Linux).
const MAX_NAME: usize = 4096;

/// How a trace is written.
pub struct Options {
    /// The branches to write.
    pub scope: Scope,
    /// Whether notes about the run and reports about single tasks go to standard error.
    pub reports: bool,
    /// The format.
    pub format: Box<dyn Format>,
    /// Names the addresses.
    pub symbols: Symbolizer,
    /// Where the trace and the program's output go.
    pub destination: Destination,
    /// Memory in bytes for records that wait for older ones of other tasks.
    pub merge_limit: usize,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Receives what the agent sends through the guest's console port.
pub struct Session {
    decoder: Decoder,
    memory: GuestRam,
    /// Records of a task that the agent has not confirmed yet.
    records: Option<(u32, Vec<u8>)>,
    writer: Writer,
    /// The agent is ready for a job.
    ready: bool,
    /// The program has started.
    started: bool,
    /// The guest's CLOCK_MONOTONIC in the last message that had it, until it is taken.
    time: Option<u64>,
    /// The program has stopped at its terminal.
    stopped: bool,
    /// Input, in bytes, that the agent has asked for since the last [`Session::take_wanted_input`],
    /// by stream.
    wanted_input: BTreeMap<u32, u64>,
    positions: Positions,
    ending: Option<ExitStatus>,
    /// The agent has drained everything because the host has ended the run.
    ended: bool,
    notes: Notes,
    /// Notes go to standard error.
    reports: bool,
    terminal: Option<Restorer>,
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
    /// Starts a session with a guest that has `memory`. `positions` are those of the regular files
    /// that the program has open. `alarm` interrupts waits for a slow reader.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start(
        memory: GuestRam,
        options: Options,
        positions: Positions,
        alarm: &Arc<Alarm>,
    ) -> io::Result<Self> {
        Ok(Self {
            decoder: Decoder::new(),
            memory,
            records: None,
            reports: options.reports,
            writer: Writer::start(options, alarm.clone())?,
            ready: false,
            started: false,
            time: None,
            stopped: false,
            wanted_input: BTreeMap::new(),
            positions,
            ending: None,
            ended: false,
            notes: Notes::default(),
            terminal: None,
            error: None,
        })
    }

    /// How the program ended, or `None` if it has not.
    pub fn ending(&self) -> Option<ExitStatus> {
        self.ending
    }

    /// The notes about the run.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// The note that the run waits for processes that the program has left, once it is due.
    pub(super) fn take_waiting_note(&mut self) -> Option<String> {
        let note = self.notes.take_waiting();
        note.filter(|_| self.reports && !stderr_is_file())
    }

    /// Host time so far in which the trace was formatted and written.
    pub fn writing(&self) -> Duration {
        self.writer.busy()
    }

    /// Prepares for the records that the guest drains when the run ends early.
    pub(super) fn expect_end(&mut self) {
        self.writer.expect_end();
    }

    /// Blocks until the trace and its summary are written. `end` says how the run ended if the
    /// program did not. If the run was `interrupted`, the wait for a reader that does not read is
    /// short. A further event of the alarm ends the trace.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish(&mut self, end: RunEnd, interrupted: bool) -> Result<Summary, SessionError> {
        self.positions.settle();
        let end = self.ending.map_or(end, RunEnd::Program);
        let drained = self.ended || self.ending.is_some();
        let summary = self.writer.finish(end, drained, interrupted);
        // The guest may have ended before the run loop has looked for an error.
        let error = self.error.take();
        // The writer has done so, unless it is stuck.
        if let Some(terminal) = self.terminal.take() {
            terminal.restore();
        }
        match error {
            Some(error) => Err(error),
            None => Ok(summary?),
        }
    }

    /// Returns whether the agent is ready for a job.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns whether the program has started.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Returns the guest's CLOCK_MONOTONIC in ns, if a message since the last call had it. The
    /// agent has read it just before.
    pub(super) fn take_time(&mut self) -> Option<u64> {
        self.time.take()
    }

    /// Returns whether the program has stopped at its terminal since the last call.
    pub(super) fn take_stopped(&mut self) -> bool {
        std::mem::take(&mut self.stopped)
    }

    /// Returns the number of bytes of input that the agent has asked for since the last call, by
    /// stream.
    pub(super) fn take_wanted_input(&mut self) -> BTreeMap<u32, u64> {
        std::mem::take(&mut self.wanted_input)
    }

    /// Returns the streams of the program whose readers have closed them since the last call.
    ///
    /// # Errors
    /// The session has ended with an error, which is returned once.
    pub(super) fn take_closed(&mut self) -> Result<Vec<u32>, SessionError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.writer.take_closed()?),
        }
    }

    /// Branches so far.
    pub fn records(&self) -> u64 {
        self.writer.records()
    }

    /// Restores the terminal after all output of the program so far, or in [`Session::finish`].
    pub fn restore_terminal(&mut self, restorer: Restorer) {
        self.terminal = Some(restorer.clone());
        // A writer that has failed writes nothing, so that the terminal can be restored now.
        let failed = self.writer.put(Work::RestoreTerminal(restorer.clone()));
        if failed.is_err() {
            restorer.restore();
        }
    }

    /// Writes the program's unfinished line, which may be a prompt.
    pub(super) fn flush_line(&self) -> Result<(), SessionError> {
        Ok(self.writer.put(Work::FlushLine)?)
    }

    fn take_frames(&mut self) -> Result<(), SessionError> {
        let Self {
            decoder,
            memory,
            records,
            writer,
            positions,
            ..
        } = self;
        while let Some(frame) = decoder.next_frame()? {
            let work = match ToHost::parse(frame)? {
                ToHost::Ready(version) if version == VERSION => {
                    self.ready = true;
                    continue;
                }
                ToHost::Ready(version) => {
                    let version = printable(version.as_bytes());
                    return Err(SessionError::Version(version));
                }
                ToHost::Started { .. } => {
                    self.started = true;
                    continue;
                }
                ToHost::Output { fd, bytes } => Work::Output {
                    fd,
                    bytes: bytes.into(),
                },
                ToHost::InputWant { fd, bytes } => {
                    // An agent that asks for streams that the job lacks gets no memory for them.
                    if fd < MAX_OPEN_FILES {
                        let wanted = self.wanted_input.entry(fd).or_default();
                        *wanted = wanted.saturating_add(bytes.into());
                    }
                    continue;
                }
                ToHost::Position { fd, offset } => {
                    positions.set(fd, offset);
                    continue;
                }
                ToHost::Records { task, extents } => {
                    *records = Some((task, read(memory, extents)?));
                    continue;
                }
                ToHost::RecordsValid => match records.take() {
                    Some((task, records)) => Work::Task(Input::Records { task, records }),
                    None => continue,
                },
                ToHost::Stopped => {
                    self.stopped = true;
                    continue;
                }
                ToHost::Outlived {
                    ended,
                    count,
                    names,
                } => {
                    self.notes.outlived(ended, count, names);
                    continue;
                }
                ToHost::Discarded { count, more, names } => {
                    self.notes.discarded(count, more, names);
                    continue;
                }
                ToHost::Exit(status) => {
                    self.ending = Some(status);
                    continue;
                }
                ToHost::Ended => {
                    self.ended = true;
                    continue;
                }
                ToHost::Error { kind, text, .. } => {
                    return Err(SessionError::Agent {
                        kind,
                        text: printable(text.as_bytes()),
                    });
                }
                message => {
                    self.started |= matches!(message, ToHost::TaskStart { .. });
                    match about_a_task(message) {
                        Some(input) => {
                            self.time = input.sent_at().or(self.time);
                            Work::Task(input)
                        }
                        None => continue,
                    }
                }
            };
            writer.put(work)?;
        }
        Ok(())
    }
}

/// A message about a task or a process; `None` for another message.
fn about_a_task(message: ToHost<'_>) -> Option<Input> {
    let name = |name: &[u8]| name.get(..MAX_NAME).unwrap_or(name).to_vec();
    let text = |text: &str| text.chars().take(MAX_NAME).collect();
    Some(match message {
        ToHost::TaskStart {
            task,
            parent,
            process,
            records,
            time,
        } => Input::Start {
            task,
            parent,
            process,
            capacity: records,
            time,
        },
        ToHost::TaskExec {
            task,
            former,
            time,
            name: path,
        } => Input::Exec {
            task,
            former,
            time,
            name: name(path),
        },
        ToHost::TaskEnd { task, time, status } => Input::End { task, time, status },
        ToHost::TaskUntraced {
            task,
            parent,
            time,
            name: comm,
            reason,
        } => Input::Untraced(Untraced {
            task,
            parent,
            time,
            name: name(comm),
            reason: text(reason),
        }),
        ToHost::Maps { process, text } => Input::Maps {
            process,
            text: text.into(),
        },
        ToHost::Lost { task, records } => Input::Lost { task, records },
        ToHost::Drained { task, time } => Input::Drained { task, time },
        ToHost::Crash(crash) => Input::Crash(crash),
        ToHost::Standing {
            task,
            syscall,
            name: comm,
        } => Input::Standing {
            task,
            syscall: text(syscall),
            name: name(comm),
        },
        _ => return None,
    })
}

/// Copies records out of guest memory.
fn read(memory: &GuestRam, extents: Extents<'_>) -> Result<Vec<u8>, SessionError> {
    // `Extents` has checked that this is at most MAX_RECORDS bytes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::destination::{StdoutUse, TraceTo};
    use crate::trace::format::tests::{records, symbols};
    use crate::trace::json::Json;
    use vbts_protocol::Extent;

    fn memory() -> GuestRam {
        GuestRam::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap()
    }

    fn session(memory: GuestRam, file: &std::path::Path) -> Session {
        let alarm = Arc::new(Alarm::new(Default::default(), None).unwrap());
        let options = Options {
            scope: Scope::User,
            reports: true,
            format: Box::new(Json::new(crate::accel::Accel::Soft, false)),
            symbols: symbols(),
            destination: Destination::new(TraceTo::File(file), StdoutUse::Program).unwrap(),
            merge_limit: 1 << 20,
        };
        Session::start(memory, options, Positions::default(), &alarm).unwrap()
    }

    const START: ToHost<'_> = ToHost::TaskStart {
        task: 5,
        parent: 0,
        process: 5,
        records: 100,
        time: 1,
    };

    fn lines(file: &std::path::Path) -> Vec<String> {
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().map(String::from).collect()
    }

    /// Stores records in two extents; the second one is at the end of the memory.
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
    fn messages_become_a_trace() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("trace");
        let memory = memory();
        let mut session = session(memory.clone(), &file);
        let records = records(&[[1, 0x1000, 0x2000], [0, 0, 0], [1, 0x3000, 0x4000]]);
        let extents = stored(&memory, &records);
        let bytes = frames(&[
            ToHost::Ready(VERSION),
            START,
            ToHost::Maps {
                process: 5,
                text: b"",
            },
            ToHost::TaskUntraced {
                task: 6,
                parent: 5,
                time: 2,
                name: b"",
                reason: "",
            },
            ToHost::InputWant { fd: 0, bytes: 10 },
            ToHost::InputWant { fd: 0, bytes: 20 },
            ToHost::InputWant { fd: 5, bytes: 1 },
            // A page was moved meanwhile, so the agent repeats the message.
            ToHost::Records {
                task: 5,
                extents: Extents::new(&extents[..0]).unwrap(),
            },
            ToHost::Records {
                task: 5,
                extents: Extents::new(&extents).unwrap(),
            },
            ToHost::RecordsValid,
            ToHost::RecordsValid,
            ToHost::Lost {
                task: 5,
                records: 2,
            },
            ToHost::Exit(ExitStatus::Signal(11)),
        ]);
        for piece in bytes.chunks(7) {
            assert_eq!(session.put(piece), piece.len());
        }
        assert!(session.error.is_none() && session.ready && session.started);
        assert_eq!(session.take_wanted_input(), [(0, 30), (5, 1)].into());
        let killed = ExitStatus::Signal(11);
        assert_eq!(session.ending(), Some(killed));
        let summary = session.finish(RunEnd::Error, false).unwrap();
        assert_eq!((summary.records, summary.lost, summary.untraced), (2, 3, 1));
        assert_eq!(
            (summary.end, summary.undrained),
            (RunEnd::Program(killed), 0)
        );
        let lines = lines(&file);
        assert_eq!(lines.len(), 6);
        assert_eq!(
            lines[5],
            "{\"kind\":\"summary\",\"records\":2,\"lost\":3,\"lost_at_least\":true,\
             \"untraced\":1,\"tasks\":1,\"end\":\"signal\",\"exit\":139,\"signal\":11,\
             \"accel\":\"soft\"}"
        );
    }

    #[test]
    fn a_run_that_ends_early_says_whether_the_buffers_were_drained() {
        for (drained, expected) in [(true, ""), (false, ",\"undrained_at_most\":100")] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("trace");
            let mut session = session(memory(), &file);
            session.put(&frames(&[
                START,
                ToHost::Standing {
                    task: 5,
                    syscall: "running",
                    name: b"a",
                },
            ]));
            if drained {
                session.put(&frames(&[ToHost::Ended]));
            }
            session.finish(RunEnd::Timeout, false).unwrap();
            let last = lines(&file).pop();
            assert_eq!(
                last.unwrap(),
                format!(
                    "{{\"kind\":\"summary\",\"records\":0,\"lost\":0{expected},\"tasks\":1,\
                     \"end\":\"timeout\",\"accel\":\"soft\"}}"
                )
            );
        }
    }

    #[test]
    fn a_hostile_agent_ends_the_session() {
        let mut outside = Vec::new();
        let (address, len) = ((1 << 20) - 16, 24);
        Extents::push(&mut outside, Extent { address, len });
        for (bytes, message) in [
            (
                frames(&[ToHost::Records {
                    task: 1,
                    extents: Extents::new(&outside).unwrap(),
                }]),
                "outside of the guest's memory",
            ),
            (
                frames(&[ToHost::Drained { task: 9, time: 0 }]),
                "task 9, which is not traced",
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
            if session.error.is_some() {
                session.put(&[1; 100_000]);
            }
            let error = match session.take_closed() {
                Err(error) => error,
                Ok(_) => session.finish(RunEnd::Error, false).unwrap_err(),
            };
            let error = error.to_string();
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
            START,
            ToHost::Records { task: 5, extents },
            ToHost::RecordsValid,
        ]));
        let failure = session
            .finish(RunEnd::Error, false)
            .unwrap_err()
            .into_failure();
        assert_eq!(failure.status(), 125);
        assert!(failure.to_string().contains("No space left"), "{failure}");
    }
}
