//! The connection to the agent in a replay: what the agent sends tells of the program, and what it
//! receives is in the recording.

use std::collections::BTreeMap;

use vbts_capture::RecordedInput;
use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{ByteSink, Shared, lock, shared};
use vbts_host::exit::Failure;
use vbts_protocol::{Decoder, ToHost};
use vbts_vmm::board::Board;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::{ReplayObserver, RunObserver};

use crate::processes::Processes;

/// Processes whose mappings are kept, at most.
const MAX_PROCESSES: usize = 1 << 12;
/// Bytes of the program's output that wait to be shown, at most.
const MAX_OUTPUT: usize = 1 << 20;

/// The port of the agent, with the frames that it has sent and that were not read.
#[derive(Debug)]
struct Port {
    inputs: Inputs,
    frames: Decoder,
}

/// The agent's port, for the device.
#[derive(Debug, Clone)]
pub struct AgentPort(Shared<Port>);

impl ByteSink for AgentPort {
    fn put(&mut self, bytes: &[u8]) -> usize {
        let mut port = lock(&self.0);
        port.inputs.note_output(bytes);
        port.frames.push(bytes);
        bytes.len()
    }
}

impl AgentPort {
    /// The port of the agent in a replay of `inputs`.
    pub fn new(inputs: &Inputs) -> Self {
        Self(shared(Port {
            inputs: inputs.clone(),
            frames: Decoder::new(),
        }))
    }
}

/// The connection of a replay to its guest.
#[expect(missing_debug_implementations, reason = "a device has none")]
pub enum Connection {
    /// To the agent, by its port and the device with that port.
    Agent(AgentPort, Shared<MmioTransport<Console>>),
    /// To the console of a machine, which has no agent.
    Console,
}

/// Input of the guest.
#[derive(Debug)]
enum Input {
    ToAgent(AgentPort, RecordedInput),
    /// Typed characters.
    ToConsole(Inputs),
}

/// Messages that the agent has sent, and the input that it gets. A machine without an agent has
/// the input alone.
#[derive(Debug)]
pub(crate) struct Agent {
    input: Input,
    /// The processes of the run.
    pub processes: Processes,
    /// The run is the first one, whose messages tell of the processes.
    pub is_first_run: bool,
    /// The last mappings of each process, as in /proc/PID/maps.
    pub maps: BTreeMap<u32, Vec<u8>>,
    /// Output of the program that was not shown.
    pub output: Vec<u8>,
    /// Virtual time in ns up to which output is not shown, or has been.
    pub shown: u64,
}

impl Agent {
    pub(crate) fn new(connection: Connection, inputs: Inputs) -> Self {
        Self {
            input: match connection {
                Connection::Agent(port, device) => {
                    Input::ToAgent(port, RecordedInput::new(device, inputs))
                }
                Connection::Console => Input::ToConsole(inputs),
            },
            processes: Processes::default(),
            is_first_run: true,
            maps: BTreeMap::new(),
            output: Vec::new(),
            shown: u64::MAX,
        }
    }

    /// Shows a message to the user, among the output of the program.
    pub(crate) fn say(&mut self, message: &str) {
        self.output.extend_from_slice(message.as_bytes());
    }

    /// Reads the frames that are complete at `now`.
    fn receive(&mut self, now: u64) -> Result<(), Failure> {
        let Input::ToAgent(port, _) = &self.input else {
            return Ok(());
        };
        let port = &mut *lock(&port.0);
        let cannot_read = |_| Failure::Error(anyhow::anyhow!("the agent sends no valid messages"));
        while let Some(frame) = port.frames.next_frame().map_err(cannot_read)? {
            let message = ToHost::parse(frame).map_err(cannot_read)?;
            if self.is_first_run {
                self.processes.note(&message, now);
            }
            match message {
                ToHost::Maps { process, text }
                    if self.maps.len() < MAX_PROCESSES || self.maps.contains_key(&process) =>
                {
                    self.maps.insert(process, text.to_vec());
                }
                ToHost::Output { bytes, .. } if now > self.shown => {
                    let room = MAX_OUTPUT.saturating_sub(self.output.len());
                    self.output
                        .extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl RunObserver for Agent {
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        self.receive(now)?;
        if self.shown != u64::MAX {
            self.shown = self.shown.max(now);
        }
        match &mut self.input {
            Input::ToAgent(_, input) => input.deliver(board),
            Input::ToConsole(inputs) => {
                while let Some(bytes) = inputs.take_input() {
                    // The guest had room for it.
                    board.push_serial_input(&bytes);
                }
            }
        }
        Ok(())
    }
}

impl ReplayObserver for Agent {
    fn save(&mut self) -> Vec<u8> {
        let Input::ToAgent(port, input) = &self.input else {
            return Vec::new();
        };
        let port = lock(&port.0);
        let partial = port.frames.rest();
        let mut state = (partial.len() as u64).to_le_bytes().to_vec();
        state.extend_from_slice(partial);
        state.extend_from_slice(input.undelivered());
        state
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), Failure> {
        let damaged = || anyhow::anyhow!("the state of the connection to the agent is damaged");
        let Input::ToAgent(port, input) = &mut self.input else {
            return match state.is_empty() {
                true => Ok(()),
                false => Err(damaged().into()),
            };
        };
        let (len, rest) = state.split_first_chunk().ok_or_else(damaged)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| damaged())?;
        let (partial, undelivered) = rest.split_at_checked(len).ok_or_else(damaged)?;
        let mut frames = Decoder::new();
        frames.push(partial);
        lock(&port.0).frames = frames;
        input.set_undelivered(undelivered);
        Ok(())
    }
}
