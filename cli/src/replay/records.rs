//! The branches of the whole machine of a replay, as a btrace file.

use std::path::Path;

use anyhow::anyhow;
use vbts_capture::RunEnd;
use vbts_capture::kernel_code::KernelText;
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
pub(super) struct Records {
    recording: Recording,
    kernel: KernelText,
}

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
        Ok(Records {
            recording: Recording::start(options, launch.alarm().clone())?,
            kernel: KernelText::new(kernel.image(), launch.memory()),
        })
    }
}

impl Records {
    /// Has the processors of `machine` log their branches.
    pub(super) fn attach(&self, machine: &mut Machine) {
        machine.record(|| self.recording.log());
    }

    /// Writes the rest after a run that has ended so, and what the kernel's file lacks. The number
    /// is said unless `quiet`.
    ///
    /// # Errors
    /// The branches cannot be written.
    pub(super) fn finish(self, end: RunEnd, quiet: bool) -> Result<(), Failure> {
        let Self { recording, kernel } = self;
        let finisher = recording.finisher();
        let finished = finisher.finish(summary(end), kernel.events(), false);
        recording.join();
        let records = finished?.records;
        if !quiet {
            say(format_args!("{records} branches"));
        }
        Ok(())
    }
}
