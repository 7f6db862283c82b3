//! The state of a whole machine.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vbts_cpu::ArchState;
use vbts_devices::{StateError, lock};

use super::Machine;
use super::virtual_time::Schedule;
use crate::board::{BoardState, MAX_DEADLINE};
use crate::console::ConsoleState;
use crate::memory::{ContentsError, MemoryContents};

/// Everything that decides how a machine on the software CPU continues. It can be restored to a
/// machine of the same configuration: the same processors and devices, as much memory, and the same
/// files of the host.
///
/// The contents of disks and shared directories, and the host's side of the connections to the
/// guest, are not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineState {
    /// Name of the processor model.
    model: String,
    schedule: Schedule,
    processors: Vec<ArchState>,
    devices: Devices,
    memory: MemoryContents,
}

/// The part of the state that is that of devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Devices {
    board: BoardState,
    console: ConsoleState,
}

/// Why a machine cannot be saved or restored.
#[derive(Debug, Error)]
pub enum MachineStateError {
    /// The processors run on the host's time, which cannot be stopped.
    #[error(
        "a machine on the host's time cannot be saved or restored: run it with --accel soft --clock virtual"
    )]
    HostTime,
    /// The inputs are recorded, or those of a recording.
    #[error("a run that is recorded cannot be saved, and neither can a replay")]
    Logged,
    /// A device cannot be saved or restored.
    #[error(transparent)]
    Device(#[from] StateError),
    /// Guest memory cannot be saved or restored.
    #[error(transparent)]
    Memory(#[from] ContentsError),
    /// The machine has other processors.
    #[error("the saved machine had {saved}, and this one has {present}")]
    OtherProcessors {
        /// Number and model of the saved machine's processors.
        saved: String,
        /// Number and model of this machine's processors.
        present: String,
    },
    /// The virtual times are not those of a machine that has run.
    #[error("the state has virtual times that no machine reaches")]
    Time,
    /// The bytes were not written by this version of vbts, or are damaged.
    #[error("this is not the state of a machine: {0}")]
    Encoding(#[from] postcard::Error),
}

impl MachineState {
    /// Encodes the state. Only the same version of vbts can decode it.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn encode(&self) -> Result<Vec<u8>, MachineStateError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// The bytes are not an encoded state.
    pub fn decode(bytes: &[u8]) -> Result<Self, MachineStateError> {
        let (state, rest) = postcard::take_from_bytes(bytes)?;
        if rest.is_empty() {
            Ok(state)
        } else {
            Err(postcard::Error::DeserializeBadEncoding.into())
        }
    }

    /// Virtual time in ns.
    pub fn now(&self) -> u64 {
        self.schedule.now
    }
}

/// Returns whether no calculation with the counts and times of a machine overflows.
pub(super) fn has_possible_times<'a>(
    schedule: &Schedule,
    mut processors: impl ExactSizeIterator<Item = &'a ArchState>,
) -> bool {
    let count = processors.len();
    let possible = |processor: &ArchState| {
        let progress = &processor.progress;
        let usage = &progress.usage;
        let counts = [
            progress.instructions,
            progress.skipped,
            progress.idle_cycles,
            usage.traced_user,
            usage.traced_kernel,
            usage.user,
            usage.kernel,
        ];
        // A sum of four is the most that is computed, and of all processors.
        let most = MAX_DEADLINE / 4 / count as u64;
        let mut counts = counts.iter().chain(&progress.branches);
        counts.all(|count| *count < most)
            && progress.spin.since <= progress.instructions
            && progress.instructions + progress.skipped <= schedule.now
    };
    schedule.is_possible(count) && processors.all(possible)
}

impl Machine {
    /// The state of the machine, between two runs. The machine continues from it as one to which it
    /// is restored.
    ///
    /// # Errors
    /// The machine runs on the host's time, its inputs are recorded or those of a recording, or a
    /// device holds something that a state cannot contain, such as an open file of the host.
    pub fn save(&mut self) -> Result<MachineState, MachineStateError> {
        if self.host_clock.is_some() {
            return Err(MachineStateError::HostTime);
        }
        if self.inputs.is_logged() {
            return Err(MachineStateError::Logged);
        }
        let devices = self.save_devices()?;
        let processors = self.vcpus.iter_mut();
        let processors = processors.map(|vcpu| vcpu.soft_mut().checkpoint());
        Ok(MachineState {
            processors: processors.collect(),
            model: self.model().to_owned(),
            schedule: self.schedule.clone(),
            devices,
            memory: MemoryContents::save(&self.memory)?,
        })
    }

    /// Puts the machine into `state`, between two runs.
    ///
    /// # Errors
    /// The machine runs on the host's time, or the state is that of a machine of another
    /// configuration, or one that a machine never has. The machine must not run after an error.
    pub fn restore(&mut self, state: &MachineState) -> Result<(), MachineStateError> {
        if self.host_clock.is_some() {
            return Err(MachineStateError::HostTime);
        }
        let (saved, present) = (state.processors.len(), self.vcpus.len());
        if saved != present || state.model != self.model() {
            let describe = |count: usize, model: &str| format!("{count} processors {model}");
            return Err(MachineStateError::OtherProcessors {
                saved: describe(saved, &state.model),
                present: describe(present, self.model()),
            });
        }
        if !has_possible_times(&state.schedule, state.processors.iter()) {
            return Err(MachineStateError::Time);
        }
        state.memory.restore(&self.memory)?;
        self.restore_devices(&state.devices)?;
        for (vcpu, state) in self.vcpus.iter_mut().zip(&state.processors) {
            vcpu.restore(state);
        }
        self.schedule = state.schedule.clone();
        Ok(())
    }

    /// The state of the devices. An unfinished line of the console is copied before.
    pub(super) fn save_devices(&self) -> Result<Devices, StateError> {
        let mut console = lock(&self.console);
        console.flush();
        Ok(Devices {
            console: console.state(),
            board: self.board.state()?,
        })
    }

    /// Puts the devices into `state`. Their parts in guest memory are there already.
    pub(super) fn restore_devices(&self, state: &Devices) -> Result<(), StateError> {
        self.board.restore(&state.board)?;
        lock(&self.console).restore(&state.console)
    }

    /// Name of the processor model.
    fn model(&self) -> &'static str {
        let first = self.vcpus.first();
        first.map_or("", |vcpu| vcpu.soft().cpu.model().name)
    }
}

#[cfg(test)]
mod tests;
