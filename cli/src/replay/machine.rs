//! The replay of a machine of the user, which has a console and no program.

use anyhow::anyhow;
use vbts_capture::RunEnd;
use vbts_host::exit::Failure;
use vbts_protocol::ExitStatus;
use vbts_vmm::board::Board;
use vbts_vmm::config::{MachineConfig, RandomSource};
use vbts_vmm::inputs::Inputs;
use vbts_vmm::launch::Launch;
use vbts_vmm::machine::{End, RunObserver};

use super::records::Opened;
use super::run::{Branches, ProgramOutput, Replay, Replayed, TaskTrace, with_place};
use crate::recording::OldRecording;

/// Gives the guest what was typed in the recorded run.
#[derive(Debug)]
struct Typist(Inputs);

impl RunObserver for Typist {
    fn after_exit(&mut self, board: &Board, _now: u64) -> Result<(), Failure> {
        while let Some(bytes) = self.0.take_input() {
            // The guest had room for it.
            board.push_serial_input(&bytes);
        }
        Ok(())
    }
}

/// Replays `recording`, which is of a machine.
///
/// # Errors
/// The run differs from the recorded one, or its branches cannot be written.
pub(super) fn run(replay: Replay, recording: &OldRecording) -> Result<Replayed, Failure> {
    let config = MachineConfig {
        random: RandomSource::Fixed,
        ..recording.machine_as(&replay.machine)
    };
    let branches = match replay.branches {
        Branches::None => None,
        Branches::Machine(opened) => Some(opened),
        // All tasks are the machine's.
        Branches::Tasks(TaskTrace {
            path: Some(path),
            scope,
            ..
        }) => Some(Opened::new(scope, &path)?),
        Branches::Tasks(_) => {
            let error = anyhow!("the recording is of a machine: --record FILE writes its branches");
            return Err(error.into());
        }
    };
    let mut launch = Launch::new(&config, replay.program_output == ProgramOutput::Streams)?;
    launch.set_inputs(recording.inputs.clone())?;
    launch.add_replayed_shares(&recording.facts.shares)?;
    launch.add_entropy()?;
    // All threads start after this.
    launch.restrict_files()?;
    let records = match branches {
        Some(opened) => Some(opened.start(recording, &launch)?),
        None => None,
    };
    let mut machine = launch.boot(&recording.kernel)?;
    if let Some(records) = &records {
        records.attach(&mut machine);
    }
    let ended = machine.run(&mut Typist(recording.inputs.clone()));
    machine.end_recording();
    let outcome = ended.map_err(|failure| with_place(failure, &machine, &recording.kernel));
    let end = match &outcome {
        Ok(End::Status(status)) => RunEnd::Program(ExitStatus::Code(*status)),
        Ok(_) => RunEnd::Stopped,
        Err(failure) => RunEnd::of_failure(failure),
    };
    if let Some(records) = records {
        records.finish(end, replay.quiet)?;
    }
    match outcome {
        // A failure of the guest is one of the recorded run, too.
        Ok(_) | Err(Failure::Guest { .. }) => {}
        Err(failure) => return Err(failure),
    }
    Replayed::compare(&machine)
}
