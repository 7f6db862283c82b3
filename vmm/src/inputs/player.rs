//! Takes inputs out of a recording. The guest has to ask for the same things at the same times as
//! in the recorded run: anything else is a divergence, which is found where it begins.

use std::fs::File;
use std::io::BufReader;

use serde::{Deserialize, Serialize};
use vbts_recording::{Item, Position, Reader, Request};

use super::{InputError, Place, Progress, RecordedEnd};

/// Virtual times in ns are less.
const MAX_TIME: u64 = 1 << 63;

/// The inputs of a recording.
#[derive(Debug)]
pub(super) struct Player {
    reader: Reader<BufReader<File>>,
    /// The next item; `None` at the end of the file.
    pub(super) next: Option<Item<'static>>,
    /// The place of that item.
    place: Position,
    /// The time of the last item, in ns.
    last: u64,
    /// The error at which the recording ends, if it is damaged.
    damage: Option<vbts_recording::Error>,
    /// The run was changed: see [`super::departed`].
    has_departed: bool,
}

/// The position of a [`Player`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlayerState {
    /// Place of the next item.
    place: Position,
    /// The time of the item before, in ns.
    last: u64,
}

impl Player {
    pub(super) fn new(reader: Reader<BufReader<File>>) -> Self {
        let mut player = Self {
            place: Position::default(),
            reader,
            next: None,
            last: 0,
            damage: None,
            has_departed: false,
        };
        player.advance();
        player
    }

    /// Takes the next item. A file that was cut off or is damaged is replayed up to there.
    pub(super) fn advance(&mut self) -> Option<Item<'static>> {
        let taken = self.next.take();
        self.last = taken.as_ref().and_then(Item::time).unwrap_or(self.last);
        self.read_next();
        taken
    }

    fn read_next(&mut self) {
        let read = self.reader.position().and_then(|place| {
            self.place = place;
            self.reader.next()
        });
        match read {
            Ok(next) => self.next = next,
            Err(error) => self.damage = Some(error),
        }
    }

    /// Has the reader keep what [`Self::restore`] may go back to.
    pub(super) fn keep(&mut self) -> Result<(), InputError> {
        self.reader.keep().map_err(InputError::Read)
    }

    /// Compares the run with the recording no more.
    pub(super) fn leave(&mut self) {
        self.has_departed = true;
    }

    /// The position in the recording.
    pub(super) fn state(&self) -> PlayerState {
        PlayerState {
            place: self.place,
            last: self.last,
        }
    }

    /// Goes to a position that the player has had since [`Self::keep`].
    pub(super) fn restore(&mut self, state: &PlayerState) -> Result<(), InputError> {
        self.reader.seek(state.place).map_err(InputError::Read)?;
        (self.next, self.damage, self.last) = (None, None, state.last);
        self.has_departed = false;
        self.read_next();
        Ok(())
    }

    /// The reply to a request of the guest. `None` if the recording ends before it.
    pub(super) fn reply(
        &mut self,
        server: u8,
        time: u64,
        request: &[u8],
    ) -> Result<Option<Vec<u8>>, InputError> {
        if self.has_departed {
            return self.due_reply(server, request);
        }
        let found = Request::new(request);
        match &self.next {
            None | Some(Item::End { host: Some(_), .. } | Item::Excluded { .. }) => {
                return Ok(None);
            }
            Some(Item::Reply {
                server: recorded_server,
                time: recorded_time,
                request,
                ..
            }) if (*recorded_server, *recorded_time) == (server, time) && *request == found => {}
            _ => {
                let found = format!("server {server} of files gets {}", shown(&found));
                return Err(self.divergence(time, found));
            }
        }
        Ok(match self.advance() {
            Some(Item::Reply { reply, .. }) => Some(reply.into_owned()),
            _ => None,
        })
    }

    /// The end of a wait that began at `now`, if there was one.
    pub(super) fn wait(&mut self, now: u64) -> Option<u64> {
        if self.has_departed {
            return self.due_wait(now);
        }
        match self.next {
            Some(Item::Wait { time, until }) if time == now && (now..MAX_TIME).contains(&until) => {
                self.advance();
                Some(until)
            }
            _ => None,
        }
    }

    /// The next bytes for the guest, if it gets some at `place`.
    pub(super) fn input(&mut self, place: Place) -> Result<Option<Vec<u8>>, InputError> {
        if self.has_departed {
            return Ok(self.due_input(place.time));
        }
        let Some(Item::Input { time, exit, .. }) = &self.next else {
            return Ok(None);
        };
        let recorded = Place {
            time: *time,
            exit: *exit,
        };
        if recorded > place {
            return Ok(None);
        }
        if recorded < place {
            let found = format!("the run loop is at its exit {}", place.exit);
            return Err(self.divergence(place.time, found));
        }
        Ok(match self.advance() {
            Some(Item::Input { bytes, .. }) => Some(bytes.into_owned()),
            _ => None,
        })
    }

    /// Compares the state at `now` with a mark, if one is due.
    pub(super) fn mark(
        &mut self,
        now: u64,
        progress: impl FnOnce() -> Progress,
        output: impl FnOnce() -> u32,
    ) -> Result<(), InputError> {
        if self.has_departed {
            self.pass_until(now);
            return Ok(());
        }
        let Some(Item::Mark {
            time,
            instructions,
            registers,
            output: recorded_output,
        }) = self.next
        else {
            return Ok(());
        };
        if now < time {
            return Ok(());
        }
        let recorded = Progress {
            time,
            instructions,
            registers,
        };
        let (progress, output) = (progress(), output());
        if (progress, output) != (recorded, recorded_output) {
            let found = progress_text(progress, output);
            return Err(self.divergence(now, found));
        }
        self.advance();
        Ok(())
    }

    /// Whether nothing follows `now`.
    pub(super) fn is_over(&self, now: u64) -> bool {
        match &self.next {
            None => now >= self.last,
            Some(Item::End { time, host, .. }) => host.is_some() && now >= *time,
            Some(Item::Excluded { time, .. }) => now >= *time,
            _ => false,
        }
    }

    /// The time at which the run loop has to stop, if the next item demands it.
    pub(super) fn next_stop(&self) -> Option<u64> {
        match &self.next {
            None => Some(self.last),
            Some(Item::Input {
                time,
                is_event: true,
                ..
            })
            | Some(
                Item::End {
                    time,
                    host: Some(_),
                    ..
                }
                | Item::Excluded { time, .. },
            ) => Some(*time),
            _ => None,
        }
    }

    /// Compares the end of the run with that of the recorded one.
    pub(super) fn end(
        &mut self,
        progress: Progress,
        output: u32,
    ) -> Result<RecordedEnd, InputError> {
        if let Some(error) = self.damage.take() {
            return Err(InputError::Read(error));
        }
        let Some(Item::End {
            time,
            instructions,
            output: recorded_output,
            status,
            host,
        }) = &self.next
        else {
            let reason = match &self.next {
                None => None,
                Some(Item::Excluded { path, .. }) => Some(format!(
                    "{path} is read there, whose contents were kept out of the recording \
                     (--exclude)"
                )),
                Some(_) => return Err(self.divergence(progress.time, "the run ends".into())),
            };
            return Ok(RecordedEnd {
                status: None,
                reason,
            });
        };
        let found = (progress.time, progress.instructions, output);
        if found != (*time, *instructions, *recorded_output) {
            let found = format!("the run ends with {}", progress_text(progress, output));
            return Err(self.divergence(progress.time, found));
        }
        Ok(RecordedEnd {
            status: Some(*status),
            reason: host.as_deref().map(str::to_owned),
        })
    }

    fn divergence(&self, time: u64, found: String) -> InputError {
        let expected = match &self.next {
            None => "the end of the file follows".into(),
            Some(item) => item_text(item),
        };
        InputError::Divergence {
            time,
            expected,
            found,
        }
    }
}

fn progress_text(progress: Progress, output: u32) -> String {
    let Progress {
        instructions,
        registers,
        ..
    } = progress;
    format!("{instructions} instructions, registers {registers:08x}, output {output:08x}")
}

fn item_text(item: &Item<'_>) -> String {
    match item {
        Item::File { .. } | Item::Boot => "a file of the guest follows".into(),
        Item::Reply {
            server,
            time,
            request,
            ..
        } => format!(
            "server {server} of files gets {} at {time} ns",
            shown(request)
        ),
        Item::Random { wanted, .. } => format!("{wanted} random bytes are asked for"),
        Item::Wait { time, until } => format!("the guest waits from {time} to {until} ns"),
        Item::Input { time, exit, .. } => {
            format!("an input comes at {time} ns, at exit {exit}")
        }
        Item::Mark {
            time,
            instructions,
            registers,
            output,
        } => {
            let progress = Progress {
                time: *time,
                instructions: *instructions,
                registers: *registers,
            };
            format!(
                "a mark at {time} ns has {}",
                progress_text(progress, *output)
            )
        }
        Item::Excluded { path, .. } => format!("{path} is read, which was kept out"),
        Item::End {
            time,
            instructions,
            output,
            ..
        } => format!(
            "the run ends at {time} ns with {instructions} instructions, output {output:08x}"
        ),
    }
}

/// A request, as messages show it: its 9P type and tag, and its first bytes.
fn shown(request: &Request) -> String {
    let bytes = request.start.get(4..).unwrap_or(&request.start);
    let kind = bytes.first().copied().unwrap_or_default();
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "a 9P request of type {kind}, {} bytes, {text}… ({:08x})",
        request.len, request.checksum
    )
}
