//! The branches of a replay: those of the program's first task as raw records, or those of the
//! whole machine as a btrace file.

use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use anyhow::anyhow;
use vbts_capture::RunEnd;
use vbts_capture::machine::kernel::Kernel;
use vbts_capture::machine::{FirstTask, Options, Recording, Written};
use vbts_cpu::{BranchLog, Probe};
use vbts_devices::lock;
use vbts_host::exit::{Failure, say};
use vbts_host::output::{Output, OutputError};
use vbts_protocol::Scope;
use vbts_vmm::accel::Accel;
use vbts_vmm::launch::Launch;
use vbts_vmm::machine::Machine;

use crate::progress::progress;
use crate::recording::OldRecording;
use crate::run::log_scope;
use crate::run_facts::{of_machine, summary};

/// The format of the branches of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordFormat {
    /// The branches of the program's first task, as 24-byte records.
    Raw,
    /// The branches of the machine, for reports.
    Btrace,
}

/// The branches to write, and their open file.
#[derive(Debug)]
pub(super) struct Opened {
    format: RecordFormat,
    scope: Scope,
    output: Output,
}

/// The branches that are being written.
#[derive(Debug)]
pub(super) enum Records {
    /// Raw records.
    Raw(Option<Box<BranchLog>>, Arc<Mutex<Written>>),
    /// A btrace file.
    Btrace(Recording),
}

impl Opened {
    /// Opens the file that gets the branches of `scope`; standard output if there is no path.
    ///
    /// # Errors
    /// The file cannot be created, or the format has no such branches.
    pub(super) fn new(
        format: RecordFormat,
        scope: Scope,
        path: Option<&Path>,
    ) -> Result<Self, Failure> {
        if format == RecordFormat::Raw && scope != Scope::User {
            let message = "--scope: --format raw has the branches of the program; --format btrace \
                has those of the kernel";
            return Err(anyhow!(message).into());
        }
        let output = match path {
            Some(path) => Output::open(path),
            None => Output::stdout(),
        };
        let output = output.map_err(OutputError::into_failure)?;
        if output.is_terminal() {
            return Err(
                anyhow!("branches are not written to a terminal: use --output FILE").into(),
            );
        }
        Ok(Self {
            format,
            scope,
            output,
        })
    }

    /// Starts to write the branches of a replay of `recording`. `program` becomes the ID of the
    /// program's first task.
    ///
    /// # Errors
    /// The file cannot be written, or the kernel does not tell about its tasks.
    pub(super) fn start(
        self,
        recording: &OldRecording,
        launch: &Launch,
        program: Arc<AtomicU32>,
    ) -> Result<Records, Failure> {
        let OldRecording { facts, kernel, .. } = recording;
        let probe = Kernel::parse(kernel.image()).and_then(|kernel| kernel.task_probe());
        let probes: Vec<Probe> = probe.into_iter().collect();
        match self.format {
            RecordFormat::Raw if probes.is_empty() => Err(anyhow!(
                "the kernel of the recording does not tell about its tasks, so the branches of the \
                 program cannot be told from others"
            )
            .into()),
            RecordFormat::Raw => {
                self.output.truncate().map_err(OutputError::into_failure)?;
                let (log, written) = FirstTask::log(self.output, probes, facts.is_32_bit, program);
                Ok(Records::Raw(Some(log), written))
            }
            RecordFormat::Btrace => {
                let command = (recording.command.clone(), recording.directory.clone());
                let machine = &recording.machine;
                let options = Options {
                    output: self.output,
                    run: of_machine(machine, kernel, self.scope, Accel::Soft, command),
                    scope: log_scope(self.scope),
                    is_32_bit: facts.is_32_bit,
                    probes,
                    last: None,
                    progress: progress("{spinner} {elapsed} {msg}", false),
                };
                let recording = Recording::start(options, launch.alarm().clone())?;
                Ok(Records::Btrace(recording))
            }
        }
    }
}

impl Records {
    /// Has the processors of `machine` log their branches.
    pub(super) fn attach(&mut self, machine: &mut Machine) {
        match self {
            // The processors of a replay take turns, and share one log.
            Self::Raw(log, _) => {
                if let Some(log) = log.take() {
                    machine.record_in(log);
                }
            }
            Self::Btrace(recording) => machine.record(|| recording.log()),
        }
    }

    /// Writes the rest after a run that has ended so. The number is said unless `quiet`.
    ///
    /// # Errors
    /// The branches cannot be written.
    pub(super) fn finish(
        self,
        machine: &mut Machine,
        end: RunEnd,
        quiet: bool,
    ) -> Result<(), Failure> {
        machine.end_recording();
        let records = match self {
            Self::Raw(_, written) => {
                let Written { records, error } = &mut *lock(&written);
                if let Some(error) = error.take() {
                    return Err(error.into_failure());
                }
                *records
            }
            Self::Btrace(recording) => {
                let finished = recording.finisher().finish(summary(end), Vec::new(), false);
                recording.join();
                finished?.records
            }
        };
        if !quiet {
            say(format_args!("{records} branches"));
        }
        Ok(())
    }
}
