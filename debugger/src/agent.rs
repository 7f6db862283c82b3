//! The connection to the agent in a replay: what the agent sends tells of the program, and what it
//! receives is in the recording.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{ByteSink, Shared, lock, shared};
use vbts_host::Event;
use vbts_host::exit::Failure;
use vbts_protocol::{Decoder, ToHost};
use vbts_vmm::board::Board;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::{ReplayObserver, RunObserver};

/// The agent's port among the ports of its console device.
const AGENT_PORT: usize = 0;
/// Processes whose mappings are kept, at most.
const MAX_PROCESSES: usize = 1 << 12;
/// Bytes of the program's output that wait to be shown, at most.
const MAX_OUTPUT: usize = 1 << 20;

/// A process that the agent has told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Started {
    /// Number of the process, and of its first thread.
    pub process: u32,
    /// Virtual time in ns at which the agent has told it.
    pub time: u64,
}

/// A task that a signal has killed for what its instruction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crashed {
    /// Number of the thread.
    pub thread: u32,
    /// Virtual time in ns at which the agent has told it.
    pub time: u64,
}

/// The port of the agent, with the bytes of a frame that is not complete.
#[derive(Debug, Default)]
struct Port {
    inputs: Inputs,
    bytes: Vec<u8>,
}

/// The agent's port, for the device.
#[derive(Debug, Clone)]
pub struct AgentPort(Shared<Port>);

impl ByteSink for AgentPort {
    fn put(&mut self, bytes: &[u8]) -> usize {
        let mut port = lock(&self.0);
        port.inputs.note_output(bytes);
        port.bytes.extend_from_slice(bytes);
        bytes.len()
    }
}

impl AgentPort {
    /// The port of the agent in a replay of `inputs`.
    pub fn new(inputs: &Inputs) -> Self {
        Self(shared(Port {
            inputs: inputs.clone(),
            bytes: Vec::new(),
        }))
    }
}

/// What the agent has told, and what it gets.
#[derive(Debug)]
pub(crate) struct Agent {
    port: AgentPort,
    device: Shared<MmioTransport<Console>>,
    inputs: Inputs,
    /// Bytes for which the port had no room yet.
    outbox: Vec<u8>,
    /// The program.
    pub program: Option<Started>,
    /// The first task that has crashed.
    pub crash: Option<Crashed>,
    /// The last mappings of each process, as in /proc/PID/maps.
    pub maps: BTreeMap<u32, Vec<u8>>,
    /// Output of the program that was not shown.
    pub output: Vec<u8>,
    /// Virtual time in ns up to which output is not shown, or has been.
    pub shown: u64,
}

impl Agent {
    pub(crate) fn new(
        port: AgentPort,
        device: Shared<MmioTransport<Console>>,
        inputs: Inputs,
    ) -> Self {
        Self {
            port,
            device,
            inputs,
            outbox: Vec::new(),
            program: None,
            crash: None,
            maps: BTreeMap::new(),
            output: Vec::new(),
            shown: u64::MAX,
        }
    }

    fn flush(&mut self, board: &Board) {
        if self.outbox.is_empty() {
            return;
        }
        let (taken, effects) = lock(&self.device).push_input(AGENT_PORT, &self.outbox);
        self.outbox.drain(..taken);
        board.apply(effects);
    }

    /// Reads the frames that are complete at `now`.
    fn receive(&mut self, now: u64) -> Result<(), Failure> {
        let bytes = std::mem::take(&mut lock(&self.port.0).bytes);
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        let mut read = 0;
        let cannot_read = |_| Failure::Error(anyhow::anyhow!("the agent sends no valid messages"));
        while let Some(frame) = decoder.next_frame().map_err(cannot_read)? {
            read += HEADER + frame.len();
            match ToHost::parse(frame).map_err(cannot_read)? {
                ToHost::TaskStart {
                    process, parent: 0, ..
                } => {
                    self.program.get_or_insert(Started { process, time: now });
                }
                ToHost::Crash(crash) => {
                    let thread = crash.task;
                    self.crash.get_or_insert(Crashed { thread, time: now });
                }
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
        let rest = bytes.get(read..).unwrap_or_default();
        let mut port = lock(&self.port.0);
        port.bytes.splice(0..0, rest.iter().copied());
        Ok(())
    }
}

/// Bytes of the header of a frame.
const HEADER: usize = 8;

impl RunObserver for Agent {
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        if !lock(&self.port.0).bytes.is_empty() {
            self.receive(now)?;
        }
        if self.shown != u64::MAX {
            self.shown = self.shown.max(now);
        }
        while let Some(bytes) = self.inputs.take_input() {
            self.outbox.extend_from_slice(&bytes);
            self.flush(board);
        }
        self.flush(board);
        Ok(())
    }

    fn event(&mut self, _board: &Board, event: Event) -> Result<(), Failure> {
        match event {
            Event::Signal(signal) => Err(Failure::Signal(signal)),
            Event::Timeout => Ok(()),
        }
    }

    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

impl ReplayObserver for Agent {
    fn save(&mut self) -> Vec<u8> {
        let port = lock(&self.port.0);
        let mut state = (port.bytes.len() as u64).to_le_bytes().to_vec();
        state.extend_from_slice(&port.bytes);
        state.extend_from_slice(&self.outbox);
        state
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), Failure> {
        let damaged = || anyhow::anyhow!("the state of the connection to the agent is damaged");
        let (len, rest) = state.split_first_chunk().ok_or_else(damaged)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| damaged())?;
        let (partial, outbox) = rest.split_at_checked(len).ok_or_else(damaged)?;
        lock(&self.port.0).bytes = partial.to_vec();
        self.outbox = outbox.to_vec();
        Ok(())
    }
}
