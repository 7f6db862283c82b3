//! The machine of a recorded program, for an observer of its replay.

use vbts_debugger::AgentPort;
use vbts_devices::Shared;
use vbts_devices::virtio::console::{Console, ConsolePort};
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_host::exit::Failure;
use vbts_protocol::PORT_NAME;
use vbts_vmm::config::MachineConfig;
use vbts_vmm::launch::Launch;
use vbts_vmm::machine::Machine;

use crate::recording::OldRecording;

/// A machine that has not run, with the agent's connection.
pub(crate) struct ObservedMachine {
    /// The machine.
    pub machine: Machine,
    /// The port of the agent.
    pub port: AgentPort,
    /// The device with that port.
    pub device: Shared<MmioTransport<Console>>,
}

impl ObservedMachine {
    /// The machine of `recording`. `host` says what the recording does not. This process can open
    /// no files any more.
    ///
    /// # Errors
    /// The host cannot have such a machine, or cannot confine it.
    pub(crate) fn of(recording: &OldRecording, host: &MachineConfig) -> Result<Self, Failure> {
        let config = recording.machine_as(host);
        let mut launch = Launch::new(&config, false)?;
        launch.set_inputs(recording.inputs.clone())?;
        launch.restrict_files()?;
        let port = AgentPort::new(&recording.inputs);
        // The order of the devices gives them their addresses.
        let device = launch
            .board
            .add_console(vec![ConsolePort::named(PORT_NAME, Box::new(port.clone()))])?;
        launch.add_replayed_shares(&recording.facts.shares)?;
        Ok(Self {
            machine: launch.boot(&recording.kernel)?,
            port,
            device,
        })
    }
}
