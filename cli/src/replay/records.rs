//! The branches of the whole machine of a replay, as a btrace file.

use std::path::Path;

use anyhow::anyhow;
use vbts_capture::RunEnd;
use vbts_capture::machine::kernel::Kernel;
use vbts_capture::machine::{Options, Recording};
use vbts_host::exit::{Failure, say};
use vbts_host::output::Output;
use vbts_protocol::Scope;
use vbts_vmm::accel::Accel;
use vbts_vmm::launch::Launch;
use vbts_vmm::machine::Machine;

use crate::progress::progress;
use crate::recording::OldRecording;
use crate::run::log_scope;
use crate::run_facts::{of_machine, summary};

/// The branches to write, and their open file.
#[derive(Debug)]
pub(super) struct Opened {
    scope: Scope,
    output: Output,
}

/// The branches that are being written.
#[derive(Debug)]
pub(super) struct Records(Recording);

impl Opened {
    /// Opens the file that gets the branches of `scope`.
    ///
    /// # Errors
    /// The file cannot be created, or is a terminal.
    pub(super) fn new(scope: Scope, path: &Path) -> Result<Self, Failure> {
        let output = Recording::open(path)?;
        if output.is_terminal() {
            return Err(anyhow!("--record: a btrace file is not written to a terminal").into());
        }
        Ok(Self { scope, output })
    }

    /// Starts to write the branches of a replay of `recording`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn start(
        self,
        recording: &OldRecording,
        launch: &Launch,
    ) -> Result<Records, Failure> {
        let OldRecording { facts, kernel, .. } = recording;
        let probe = Kernel::parse(kernel.image()).and_then(|kernel| kernel.task_probe());
        let command = (recording.command.clone(), recording.directory.clone());
        let machine = &recording.machine;
        let options = Options {
            output: self.output,
            run: of_machine(machine, kernel, self.scope, Accel::Soft, command),
            scope: log_scope(self.scope),
            is_32_bit: facts.is_32_bit,
            probes: probe.into_iter().collect(),
            last: None,
            progress: progress("{spinner} {elapsed} {msg}", false),
        };
        let recording = Recording::start(options, launch.alarm().clone())?;
        Ok(Records(recording))
    }
}

impl Records {
    /// Has the processors of `machine` log their branches.
    pub(super) fn attach(&self, machine: &mut Machine) {
        machine.record(|| self.0.log());
    }

    /// Writes the rest after a run that has ended so. The number is said unless `quiet`.
    ///
    /// # Errors
    /// The branches cannot be written.
    pub(super) fn finish(self, end: RunEnd, quiet: bool) -> Result<(), Failure> {
        let finished = self.0.finisher().finish(summary(end), Vec::new(), false);
        self.0.join();
        let records = finished?.records;
        if !quiet {
            say(format_args!("{records} branches"));
        }
        Ok(())
    }
}
