//! The options of a machine that is replayed: what its recording does not say.

use clap::Args;
use vbts_cpu::NativeOptions;
use vbts_vmm::config::{Accelerator, JitMode, LogLevel, MachineConfig, SandboxMode};

use crate::options::{default_of, named};

/// Options of the commands that replay a recording.
#[derive(Debug, Args)]
pub(crate) struct ReplayedMachineArgs {
    /// Whether the software CPU makes native code of what runs often
    #[arg(long, value_parser = named::<JitMode>(), value_name = "MODE", default_value = default_of::<JitMode>(), help_heading = "Machine options")]
    pub jit: JitMode,
    /// Runs of a block of code after which it becomes native code
    #[arg(long, hide = true, value_name = "N", default_value_t = NativeOptions::default().threshold)]
    pub jit_threshold: u32,
    /// What vbts reports about itself on standard error
    #[arg(long, value_parser = named::<LogLevel>(), value_name = "LEVEL", default_value = default_of::<LogLevel>(), help_heading = "Machine options")]
    pub log: LogLevel,
    /// How to confine vbts while the guest runs
    #[arg(long, value_parser = named::<SandboxMode>(), value_name = "MODE", default_value = default_of::<SandboxMode>(), help_heading = "Machine options")]
    pub sandbox: SandboxMode,
}

impl ReplayedMachineArgs {
    /// The part of the configuration that these options set.
    pub(crate) fn config(&self) -> MachineConfig {
        MachineConfig {
            accelerator: Accelerator::Soft,
            jit: self.jit,
            jit_threshold: self.jit_threshold,
            sandbox: self.sandbox,
            log: self.log,
            ..MachineConfig::default()
        }
    }
}
