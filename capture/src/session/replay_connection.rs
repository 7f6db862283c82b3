//! The sending half of the connection to the agent in a replay: the recording has what it sends.

use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock};

use super::recorded_input::RecordedInput;
use super::{Session, SessionError};
use vbts_host::exit::Failure;
use vbts_vmm::board::Board;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::RunObserver;

/// Sends the agent what it got in the recorded run, at the same times.
#[derive(Debug)]
pub struct ReplayConnection {
    session: Shared<Session>,
    input: RecordedInput,
}

impl ReplayConnection {
    /// A connection of `session` over `port`, whose inputs are those of a recording.
    pub fn new(
        session: Shared<Session>,
        port: Shared<MmioTransport<Console>>,
        inputs: Inputs,
    ) -> Self {
        let input = RecordedInput::new(port, inputs);
        Self { session, input }
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
        self.input.deliver(board);
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        lock(&self.session)
            .flush_line()
            .map_err(SessionError::into_failure)
    }
}
