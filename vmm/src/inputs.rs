//! What comes into a run on virtual time from the host. Each input passes through [`Inputs`] at
//! its virtual time. It comes from the host, or from the host and is recorded, or from a recording.
//!
//! | module | contents |
//! |---|---|
//! | `recorder` | writes a recording |
//! | `excluded` | files whose contents are not recorded |
//! | `player` | takes the inputs out of a recording, and compares the run with it |
//! | `departed` | inputs for a replay that was changed |
//! | `service` | a 9P server behind a recording |

mod departed;
mod excluded;
mod player;
mod recorder;
mod service;

use std::fs::File;
use std::io::BufReader;
use std::sync::{Arc, Mutex};

use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use vbts_devices::lock;
use vbts_host::exit::Failure;
use vbts_recording::{Reader, Writer};

pub use excluded::Exclusions;
use player::{Player, PlayerState};
use recorder::Recorder;
pub(crate) use service::LoggedService;

/// Interval of marks in ns of virtual time.
const MARK_INTERVAL: u64 = 50_000_000;

/// Why a run cannot be recorded or replayed further.
#[derive(Debug, Error)]
pub enum InputError {
    /// The recording cannot be written.
    #[error("Cannot write the recording")]
    Write(#[source] vbts_recording::Error),
    /// The recording cannot be read.
    #[error("Cannot read the recording")]
    Read(#[source] vbts_recording::Error),
    /// The guest does something else than in the recorded run.
    #[error(
        "the replay differs from the recording at {time} ns: {found}, but in the recording {expected}"
    )]
    Divergence {
        /// Virtual time in ns.
        time: u64,
        /// The event of the recorded run.
        expected: String,
        /// The event of this run.
        found: String,
    },
    /// A replay that was changed needs an input that is not the next one of the recording.
    #[error("the changed program asks the host for what the recording does not have: {found}")]
    Unknown {
        /// The request.
        found: String,
    },
}

/// The position of the run loop: inputs for the guest come between two runs of a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Place {
    /// Virtual time in ns.
    time: u64,
    /// Number of the exit at this time, from 0.
    exit: u32,
}

/// The state of a machine, to compare two runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Virtual time in ns.
    pub time: u64,
    /// Instructions that all processors have retired.
    pub instructions: u64,
    /// Checksum of the registers of all processors.
    pub registers: u32,
}

/// The end of a recorded run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEnd {
    /// The exit status of `vbts`; `None` if the recording was cut off.
    pub status: Option<u8>,
    /// Why the run or the recording ended, if the guest did not end it.
    pub reason: Option<String>,
}

/// The side from which the inputs come.
#[derive(Debug)]
enum Log {
    Recorder(Recorder),
    Player(Box<Player>),
}

#[derive(Debug)]
struct State {
    log: Log,
    place: Place,
    /// Checksum of all bytes that the guest has sent to the host.
    output: crc32fast::Hasher,
    /// Virtual time in ns of the next mark.
    next_mark: u64,
    /// The first error, until [`Inputs::check`].
    error: Option<InputError>,
}

/// The position of a replay among its inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputsState {
    player: PlayerState,
    place: Place,
    /// Checksum of all bytes that the guest has sent to the host.
    output: u32,
}

/// The inputs of a run. Copies are the same inputs. The default is those of the host, which are not
/// recorded.
#[derive(Debug, Clone, Default)]
pub struct Inputs(Option<Arc<Mutex<State>>>);

impl Inputs {
    /// The host's inputs, which `writer` records, except for the contents of `excluded` files. It
    /// has the guest's files.
    pub fn recorded(writer: Writer<File>, excluded: Exclusions) -> Self {
        Self::with(Log::Recorder(Recorder::new(writer, excluded)))
    }

    /// The inputs of a recording. `reader` is behind the guest's files.
    pub fn replayed(reader: Reader<BufReader<File>>) -> Self {
        Self::with(Log::Player(Box::new(Player::new(reader))))
    }

    fn with(log: Log) -> Self {
        Self(Some(Arc::new(Mutex::new(State {
            log,
            place: Place::default(),
            output: crc32fast::Hasher::new(),
            next_mark: MARK_INTERVAL,
            error: None,
        }))))
    }

    /// Whether the host has no part in the run.
    pub fn is_replay(&self) -> bool {
        let state = self.0.as_deref();
        state.is_some_and(|state| matches!(lock(state).log, Log::Player(_)))
    }

    /// Whether inputs are recorded, or come from a recording.
    pub fn is_logged(&self) -> bool {
        self.0.is_some()
    }

    /// Notes bytes that the guest sends to the host.
    pub fn note_output(&self, bytes: &[u8]) {
        if let Some(state) = &self.0 {
            lock(state).output.update(bytes);
        }
    }

    /// Records bytes for a port of the guest, which it gets now.
    pub fn record_input(&self, bytes: &[u8]) {
        self.record(|recorder, place| recorder.input(place, bytes));
    }

    /// Takes the next bytes for a port of the guest out of the recording, if it gets some now.
    pub fn take_input(&self) -> Option<Vec<u8>> {
        self.play(|player, place| player.input(place)).flatten()
    }

    /// Notes the position of the run loop after an exit. Marks are made and compared here.
    pub(crate) fn exit(&self, now: u64, progress: impl FnOnce() -> Progress) {
        let Some(state) = &self.0 else {
            return;
        };
        let state = &mut *lock(state);
        let exit = match state.place.time == now {
            true => state.place.exit + 1,
            false => 0,
        };
        state.place = Place { time: now, exit };
        let output = || state.output.clone().finalize();
        let result = match &mut state.log {
            Log::Recorder(recorder) if now >= state.next_mark => {
                state.next_mark = now.saturating_add(MARK_INTERVAL);
                recorder.mark(progress(), output())
            }
            Log::Recorder(_) => Ok(()),
            Log::Player(player) => player.mark(now, progress, output),
        };
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
    }

    /// Whether the run ends at the present position, because the recording does.
    pub(crate) fn are_over(&self) -> bool {
        self.play(|player, place| Ok(player.is_over(place.time)))
            .unwrap_or(false)
    }

    /// The virtual time in ns at which the run loop has to stop for the next input of a recording.
    pub(crate) fn next_stop(&self) -> Option<u64> {
        self.play(|player, _| Ok(player.next_stop())).flatten()
    }

    /// An event of the host begins or ends: the inputs between are of this event.
    pub(crate) fn set_event(&self, is_event: bool) {
        self.record(|recorder, place| recorder.set_event(place, is_event));
    }

    /// Records that the run loop has waited for the host from `now` to `until`, in ns.
    pub(crate) fn record_wait(&self, now: u64, until: u64) {
        self.record(|recorder, _| recorder.wait(now, until));
    }

    /// Takes a wait that began at `now` out of the recording, if there was one. Returns its end in
    /// virtual ns.
    pub(crate) fn take_wait(&self, now: u64) -> Option<u64> {
        self.play(|player, _| Ok(player.wait(now))).flatten()
    }

    /// Writes what is recorded so far, before a wait.
    pub(crate) fn flush(&self) {
        self.record(|recorder, _| recorder.flush());
    }

    /// The error that ends the run, if there is one.
    ///
    /// # Errors
    /// The recording cannot be written or read, or a replay differs from it.
    pub fn check(&self) -> Result<(), Failure> {
        let error = self.0.as_deref().and_then(|state| lock(state).error.take());
        match error {
            Some(error) => Err(Failure::Error(error.into())),
            None => Ok(()),
        }
    }

    /// Records the end of a run with the exit status `status`. The `reason` is that of the host, if
    /// the guest did not end the run.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub(crate) fn record_end(
        &self,
        progress: Progress,
        status: u8,
        reason: Option<&str>,
    ) -> Result<u64, Failure> {
        let Some(state) = &self.0 else {
            return Ok(0);
        };
        let state = &mut *lock(state);
        let output = state.output.clone().finalize();
        let Log::Recorder(recorder) = &mut state.log else {
            return Ok(0);
        };
        let ended = recorder.end(progress, output, status, reason);
        ended.map_err(|error| Failure::Error(error.into()))
    }

    /// The file at which the recording has ended before the run, because its contents are not
    /// recorded.
    pub fn ended_by(&self) -> Option<String> {
        let state = &*lock(self.0.as_ref()?);
        match &state.log {
            Log::Recorder(recorder) => recorder.ended_by(),
            Log::Player(_) => None,
        }
    }

    /// Compares the end of a replay with that of the recorded run, which it returns.
    ///
    /// # Errors
    /// They differ.
    pub(crate) fn compare_end(&self, progress: Progress) -> Result<RecordedEnd, Failure> {
        let Some(state) = &self.0 else {
            return Err(anyhow!("the run is no replay").into());
        };
        let state = &mut *lock(state);
        let output = state.output.clone().finalize();
        let Log::Player(player) = &mut state.log else {
            return Err(anyhow!("the run is no replay").into());
        };
        let ended = player.end(progress, output);
        ended.map_err(|error| Failure::Error(error.into()))
    }

    /// Begins to keep what [`Self::restore`] needs.
    ///
    /// # Errors
    /// The run is recorded, which cannot go back, or there is no memory.
    pub(crate) fn keep(&self) -> Result<(), Failure> {
        let Some(state) = &self.0 else {
            return Ok(());
        };
        match &mut lock(state).log {
            Log::Player(player) => player.keep().map_err(|error| Failure::Error(error.into())),
            Log::Recorder(_) => Err(anyhow!("a run that is recorded cannot go back").into()),
        }
    }

    /// Has a replay that is going to be changed not be compared with the recording, until
    /// [`Self::restore`].
    pub(crate) fn leave(&self) {
        self.play(|player, _| {
            player.leave();
            Ok(())
        });
    }

    /// The position of a replay; `None` if the run is none.
    pub(crate) fn state(&self) -> Option<InputsState> {
        let state = lock(self.0.as_ref()?);
        let Log::Player(player) = &state.log else {
            return None;
        };
        Some(InputsState {
            player: player.state(),
            place: state.place,
            output: state.output.clone().finalize(),
        })
    }

    /// Puts a replay at a position that it has had since [`Self::keep`].
    ///
    /// # Errors
    /// The recording has no such position, or cannot be read.
    pub(crate) fn restore(&self, saved: &InputsState) -> Result<(), Failure> {
        let Some(state) = &self.0 else {
            return Err(anyhow!("the run is no replay").into());
        };
        let state = &mut *lock(state);
        let Log::Player(player) = &mut state.log else {
            return Err(anyhow!("the run is no replay").into());
        };
        let restored = player.restore(&saved.player);
        restored.map_err(|error| Failure::Error(error.into()))?;
        state.place = saved.place;
        state.output = crc32fast::Hasher::new_with_initial(saved.output);
        state.error = None;
        Ok(())
    }

    fn record(&self, f: impl FnOnce(&mut Recorder, Place) -> Result<(), InputError>) {
        let Some(state) = &self.0 else {
            return;
        };
        let state = &mut *lock(state);
        if let Log::Recorder(recorder) = &mut state.log
            && state.error.is_none()
            && let Err(error) = f(recorder, state.place)
        {
            state.error = Some(error);
        }
    }

    /// Calls `f` in a replay. Returns `None` otherwise, and after an error.
    fn play<T>(&self, f: impl FnOnce(&mut Player, Place) -> Result<T, InputError>) -> Option<T> {
        let state = &mut *lock(self.0.as_ref()?);
        let Log::Player(player) = &mut state.log else {
            return None;
        };
        match f(player, state.place) {
            Ok(value) => Some(value),
            Err(error) => {
                state.error.get_or_insert(error);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
