//! Messages of the agent: a change of the session's state, or work for the thread that writes the
//! trace.

use vbts_devices::ByteSink;
use vbts_protocol::{Decoder, MAX_OPEN_FILES, ToHost, VERSION};
use vbts_trace::Event;

use super::messages::{MAX_NAME, about_a_task, code_source};
use super::{RecordSource, Session, SessionError};
use crate::guest_records::GuestRecords;
use crate::pipeline::merge::AgentEvent;
use crate::pipeline::queue::Work;
use vbts_host::escape::printable;
use vbts_host::terminal::Keys;
use vbts_symbols::elf::MAX_BUILD_ID;

/// A request for input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InputWanted {
    /// The most bytes; 0 is none.
    pub bytes: u32,
    /// It is for a terminal in canonical mode.
    pub canonical: bool,
}

impl InputWanted {
    /// What is wanted of a terminal.
    pub(crate) fn keys(self) -> Option<Keys> {
        match (self.bytes, self.canonical) {
            (0, _) => None,
            (_, true) => Some(Keys::Lines),
            (_, false) => Some(Keys::All),
        }
    }
}

impl ByteSink for Session {
    fn put(&mut self, bytes: &[u8]) -> usize {
        self.inputs.note_output(bytes);
        if self.error.is_none() {
            self.decoder.push(bytes);
            match self.source {
                RecordSource::Host(_) => self.has_waiting = true,
                _ => self.error = self.take_messages().err(),
            }
        }
        bytes.len()
    }
}

impl Session {
    /// Takes the messages that have arrived.
    ///
    /// # Errors
    /// A message cannot be right, or the trace cannot be written.
    pub(super) fn take_messages(&mut self) -> Result<(), SessionError> {
        // Messages borrow from the decoder.
        let mut decoder = std::mem::take(&mut self.decoder);
        let taken = self.take_messages_of(&mut decoder);
        self.decoder = decoder;
        taken
    }

    fn take_messages_of(&mut self, decoder: &mut Decoder) -> Result<(), SessionError> {
        while let Some(frame) = decoder.next_frame()? {
            if let Some(work) = self.message(ToHost::parse(frame)?)? {
                self.writer.put(work)?;
            }
        }
        Ok(())
    }

    /// Takes a message. Returns the work for the thread that writes the trace, if there is some.
    fn message(&mut self, message: ToHost<'_>) -> Result<Option<Work>, SessionError> {
        match message {
            ToHost::Output { fd, bytes } => {
                let bytes = bytes.into();
                return Ok(Some(Work::Output { fd, bytes }));
            }
            ToHost::Mapped { task, extents } => {
                self.mapped += 1;
                return Ok(Some(Work::Mapped {
                    task,
                    records: GuestRecords::new(&self.memory, extents, self.is_32_bit)?,
                    message: self.mapped,
                }));
            }
            ToHost::RecordsValid => {
                let valid = self.records.take();
                let event = valid.map(|(task, records)| AgentEvent::Records { task, records });
                return Ok(event.map(Work::Agent));
            }
            ToHost::Code { process, .. } if !self.source.has_process(process) => {}
            ToHost::Code {
                process,
                source,
                at,
                bytes,
            } => {
                return Ok(Some(Work::Event(Event::Code {
                    process,
                    source: code_source(source),
                    at,
                    bytes: bytes.into(),
                })));
            }
            ToHost::BuildId { id, name } => {
                return Ok(Some(Work::Event(Event::BuildId {
                    id: id.get(..MAX_BUILD_ID).unwrap_or(id).into(),
                    name: name.get(..MAX_NAME).unwrap_or(name).into(),
                })));
            }
            ToHost::Records { task, extents } => {
                let drained = GuestRecords::new(&self.memory, extents, self.is_32_bit)?;
                self.records = Some((task, drained.read_drained(self.writer.pool())?));
            }
            ToHost::Reuse { messages } => self.writer.read_mapped(messages)?,
            ToHost::Ready(version) if version == VERSION => self.ready = true,
            ToHost::Ready(version) => {
                let version = printable(version.as_bytes());
                return Err(SessionError::Version(version));
            }
            ToHost::Error { kind, text, .. } => {
                let text = printable(text.as_bytes());
                return Err(SessionError::Agent { kind, text });
            }
            ToHost::Started { .. } => self.started = true,
            ToHost::Stopped => self.stopped = true,
            ToHost::Deadlock => self.deadlock = true,
            ToHost::Exit(status) => self.ending = Some(status),
            ToHost::Ended => self.ended = true,
            // An agent that asks for streams that the job lacks gets no memory for them.
            ToHost::InputWant { fd, .. } if fd >= MAX_OPEN_FILES => {}
            ToHost::InputWant {
                fd,
                bytes,
                canonical,
            } => {
                let wanted = InputWanted { bytes, canonical };
                self.wanted_input.insert(fd, wanted);
            }
            ToHost::Position { fd, offset } => self.positions.set(fd, offset),
            ToHost::Outlived {
                ended,
                count,
                names,
            } => self.notes.outlived(ended, count, names),
            ToHost::Discarded { count, more, names } => self.notes.discarded(count, more, names),
            message => {
                self.started |= matches!(message, ToHost::TaskStart { .. });
                if let Some(event) = about_a_task(message) {
                    return self.task_event(event);
                }
            }
        }
        Ok(None)
    }

    /// Takes an event of a task. Returns as [`Self::message`] does.
    fn task_event(&mut self, event: AgentEvent) -> Result<Option<Work>, SessionError> {
        self.time = event.sent_at().or(self.time);
        match &mut self.source {
            RecordSource::Guest => Ok(Some(Work::Agent(event))),
            RecordSource::Host(recorder) => {
                let events = recorder.event(event);
                self.put_events(events)?;
                Ok(None)
            }
            RecordSource::Later => Ok(None),
        }
    }
}
