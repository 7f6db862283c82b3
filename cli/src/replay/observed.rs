//! The machine of a recording, for an observer of its replay.

use std::sync::Arc;

use vbts_debugger::{AgentPort, Connection};
use vbts_devices::virtio::console::ConsolePort;
use vbts_host::Alarm;
use vbts_host::exit::Failure;
use vbts_protocol::PORT_NAME;
use vbts_vmm::config::{MachineConfig, RandomSource};
use vbts_vmm::launch::Launch;
use vbts_vmm::machine::Machine;
use vbts_vmm::memory::GuestMemory;

use crate::recording::OldRecording;

/// A machine that has not run, with the connection to its agent, or to its console.
pub(crate) struct ObservedMachine {
    /// The machine.
    pub machine: Machine,
    /// The connection.
    pub connection: Connection,
    /// The memory of the machine.
    pub memory: GuestMemory,
    /// Signals to this process.
    pub alarm: Arc<Alarm>,
}

impl ObservedMachine {
    /// The machine of `recording`. `host` says what the recording does not. This process can open
    /// no files any more.
    ///
    /// # Errors
    /// The host cannot have such a machine, or cannot confine it.
    pub(crate) fn of(recording: &OldRecording, host: &MachineConfig) -> Result<Self, Failure> {
        let is_machine = recording.facts.is_machine;
        let mut config = recording.machine_as(host);
        if is_machine {
            config.random = RandomSource::Fixed;
        }
        let mut launch = Launch::new(&config, false)?;
        let alarm = launch.alarm().clone();
        launch.set_inputs(recording.inputs.clone())?;
        // The order of the devices gives them their addresses.
        let connection = if is_machine {
            launch.add_replayed_shares(&recording.facts.shares)?;
            launch.add_entropy()?;
            launch.restrict_files()?;
            Connection::Console
        } else {
            launch.restrict_files()?;
            let port = AgentPort::new(&recording.inputs);
            let sink = Box::new(port.clone());
            let device = launch
                .board
                .add_console(vec![ConsolePort::named(PORT_NAME, sink)])?;
            launch.add_replayed_shares(&recording.facts.shares)?;
            Connection::Agent(port, device)
        };
        Ok(Self {
            memory: launch.memory().clone(),
            machine: launch.boot(&recording.kernel)?,
            connection,
            alarm,
        })
    }
}
