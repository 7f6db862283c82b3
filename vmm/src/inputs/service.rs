//! A 9P server behind a recording.

use vbts_devices::lock;
use vbts_devices::ninep::{ServerState, Service};

use super::{Inputs, Log};

/// Answers the requests of the guest from the host's files, and records that; or from a recording.
#[derive(Debug)]
pub(crate) struct LoggedService {
    inputs: Inputs,
    /// Its number among the servers of the machine.
    number: u8,
    /// Virtual time in ns.
    now: u64,
    /// The server of the host's files; `None` in a replay.
    server: Option<Box<dyn Service>>,
}

impl LoggedService {
    pub(crate) fn new(inputs: Inputs, number: u8, server: Option<Box<dyn Service>>) -> Self {
        Self {
            inputs,
            number,
            now: 0,
            server,
        }
    }
}

impl Service for LoggedService {
    fn handle(&mut self, request: &[u8], reply: &mut Vec<u8>) {
        if let Some(server) = &mut self.server {
            server.handle(request, reply);
        } else {
            reply.clear();
        }
        let Some(state) = &self.inputs.0 else {
            return;
        };
        let state = &mut *lock(state);
        let passed = match &mut state.log {
            Log::Recorder(recorder) => recorder.reply(self.number, self.now, request, reply),
            Log::Player(player) => player.reply(self.number, self.now, request).map(|found| {
                // At the end of the recording, the run ends before the guest misses the reply.
                *reply = found.unwrap_or_default();
            }),
        };
        if let Err(error) = passed {
            state.error.get_or_insert(error);
        }
    }

    fn advance_to(&mut self, now: u64) {
        self.now = now;
        if let Some(server) = &mut self.server {
            server.advance_to(now);
        }
    }

    fn reset(&mut self) {
        if let Some(server) = &mut self.server {
            server.reset();
        }
    }

    fn state(&self) -> Result<ServerState, String> {
        match &self.server {
            Some(server) => server.state(),
            None => Ok(ServerState::default()),
        }
    }

    fn restore(&mut self, state: &ServerState) -> Result<(), String> {
        match &mut self.server {
            Some(server) => server.restore(state),
            // The files are in the recording, with what the guest has open of them.
            None if *state == ServerState::default() => Ok(()),
            None => Err("the files of a replay are in the recording".into()),
        }
    }
}
