//! What the agent gets in a replay, out of the recording.

use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock};

use super::agent_connection::AGENT_PORT;
use vbts_vmm::board::Board;
use vbts_vmm::inputs::Inputs;

/// Sends the agent what it got in the recorded run, at the same times.
#[derive(Debug)]
pub struct RecordedInput {
    port: Shared<MmioTransport<Console>>,
    inputs: Inputs,
    /// Bytes for which the port had no room yet.
    outbox: Vec<u8>,
}

impl RecordedInput {
    /// The input in the recording `inputs`, for the agent behind the console device `port`.
    pub fn new(port: Shared<MmioTransport<Console>>, inputs: Inputs) -> Self {
        Self {
            port,
            inputs,
            outbox: Vec::new(),
        }
    }

    /// Delivers what the agent gets after this exit of the processor.
    pub fn deliver(&mut self, board: &Board) {
        while let Some(bytes) = self.inputs.take_input() {
            self.outbox.extend_from_slice(&bytes);
            self.flush(board);
        }
        self.flush(board);
    }

    fn flush(&mut self, board: &Board) {
        if self.outbox.is_empty() {
            return;
        }
        let (taken, effects) = lock(&self.port).push_input(AGENT_PORT, &self.outbox);
        self.outbox.drain(..taken);
        board.apply(effects);
    }

    /// The bytes that were taken out of the recording, and for which the port had no room yet.
    pub fn undelivered(&self) -> &[u8] {
        &self.outbox
    }

    /// Replaces the bytes of [`Self::undelivered`], for a replay that goes to another time.
    pub fn set_undelivered(&mut self, bytes: &[u8]) {
        self.outbox = bytes.to_vec();
    }
}
