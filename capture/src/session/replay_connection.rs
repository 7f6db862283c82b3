//! The sending half of the connection to the agent in a replay: the recording has what it sends.

use std::os::fd::BorrowedFd;

use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock};

use super::agent_connection::AGENT_PORT;
use super::{Session, SessionError};
use vbts_host::Event;
use vbts_host::exit::Failure;
use vbts_vmm::board::Board;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::RunObserver;

/// Sends the agent what it got in the recorded run, at the same times.
#[derive(Debug)]
pub struct ReplayConnection {
    session: Shared<Session>,
    port: Shared<MmioTransport<Console>>,
    inputs: Inputs,
    /// Bytes for which the port had no room yet.
    outbox: Vec<u8>,
}

impl ReplayConnection {
    /// A connection of `session` over `port`, whose inputs are those of a recording.
    pub fn new(
        session: Shared<Session>,
        port: Shared<MmioTransport<Console>>,
        inputs: Inputs,
    ) -> Self {
        Self {
            session,
            port,
            inputs,
            outbox: Vec::new(),
        }
    }

    fn flush(&mut self, board: &Board) {
        if self.outbox.is_empty() {
            return;
        }
        let (taken, effects) = lock(&self.port).push_input(AGENT_PORT, &self.outbox);
        self.outbox.drain(..taken);
        board.apply(effects);
    }
}

impl RunObserver for ReplayConnection {
    fn reads_log(&self) -> bool {
        lock(&self.session).has_waiting()
    }

    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        // What the agent asks for is in the recording, and a reader that has closed its end of the
        // output is not one of the recorded run.
        let mut session = lock(&self.session);
        session.receive_waiting(now);
        session.take_closed().map_err(SessionError::into_failure)?;
        session.take_wanted_input();
        session.take_time();
        session.take_stopped();
        drop(session);
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

    fn idle(&mut self) -> Result<(), Failure> {
        lock(&self.session)
            .flush_line()
            .map_err(SessionError::into_failure)
    }
}
