//! Writes a recording.

use std::fs::File;

use vbts_recording::{Item, Request, Writer};

use super::excluded::Exclusions;
use super::{InputError, Place, Progress};

/// Records the inputs of the host.
#[derive(Debug)]
pub(super) struct Recorder {
    writer: Writer<File>,
    /// The inputs are of an event of the host.
    in_event: bool,
    /// The present event has an input.
    event_has_input: bool,
    /// Files whose contents are not recorded.
    excluded: Exclusions,
    /// The file that has ended the recording, because its contents are not recorded.
    ended_by: Option<String>,
}

impl Recorder {
    pub(super) fn new(writer: Writer<File>, excluded: Exclusions) -> Self {
        Self {
            writer,
            in_event: false,
            event_has_input: false,
            excluded,
            ended_by: None,
        }
    }

    pub(super) fn reply(
        &mut self,
        server: u8,
        time: u64,
        request: &[u8],
        reply: &[u8],
    ) -> Result<(), InputError> {
        if let Some(path) = self.excluded.reads(server, request, reply) {
            self.item(&Item::Excluded {
                server,
                time,
                path: (&path).into(),
            })?;
            self.flush()?;
            self.ended_by.get_or_insert(path);
            return Ok(());
        }
        self.item(&Item::Reply {
            server,
            time,
            request: Request::new(request),
            reply: reply.into(),
        })
    }

    pub(super) fn wait(&mut self, time: u64, until: u64) -> Result<(), InputError> {
        self.item(&Item::Wait { time, until })
    }

    pub(super) fn input(&mut self, place: Place, bytes: &[u8]) -> Result<(), InputError> {
        self.event_has_input |= self.in_event;
        self.item(&Item::Input {
            time: place.time,
            exit: place.exit,
            is_event: self.in_event,
            bytes: bytes.into(),
        })
    }

    /// Begins or ends an event. The run loop has stopped for it, so it is recorded even if it has
    /// no input.
    pub(super) fn set_event(&mut self, place: Place, is_event: bool) -> Result<(), InputError> {
        let has_input = std::mem::take(&mut self.event_has_input);
        let ends = self.in_event && !is_event;
        let recorded = match ends && !has_input {
            true => self.input(place, &[]),
            false => Ok(()),
        };
        self.in_event = is_event;
        self.event_has_input = false;
        recorded
    }

    pub(super) fn mark(&mut self, progress: Progress, output: u32) -> Result<(), InputError> {
        self.item(&Item::Mark {
            time: progress.time,
            instructions: progress.instructions,
            registers: progress.registers,
            output,
        })?;
        self.flush()
    }

    /// Returns the size of the file in bytes.
    pub(super) fn end(
        &mut self,
        progress: Progress,
        output: u32,
        status: u8,
        reason: Option<&str>,
    ) -> Result<u64, InputError> {
        self.item(&Item::End {
            time: progress.time,
            instructions: progress.instructions,
            output,
            status,
            host: reason.map(Into::into),
        })?;
        self.flush()?;
        Ok(self.writer.written())
    }

    /// The file at which the recording has ended, because its contents are not recorded.
    pub(super) fn ended_by(&self) -> Option<String> {
        self.ended_by.clone()
    }

    pub(super) fn flush(&mut self) -> Result<(), InputError> {
        self.writer.flush().map_err(InputError::Write)
    }

    fn item(&mut self, item: &Item<'_>) -> Result<(), InputError> {
        if self.ended_by.is_some() {
            return Ok(());
        }
        self.writer.item(item).map_err(InputError::Write)
    }
}
