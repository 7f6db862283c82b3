//! Inputs for a replay that a debugger has changed. It is at other places than the recorded run, so
//! each input comes when it is due: the reply to a request if that is the next one in the
//! recording, and bytes for the guest at the first exit at their time or behind it.

use vbts_recording::{Item, Request};

use super::InputError;
use super::player::Player;

impl Player {
    /// Passes the items that concern nothing of a changed replay at `now`.
    pub(super) fn pass_until(&mut self, now: u64) {
        while let Some(Item::Mark { .. }) | Some(Item::Wait { .. }) = &self.next {
            if matches!(self.next, Some(Item::Wait { until, .. }) if until > now) {
                return;
            }
            self.advance();
        }
    }

    /// The reply to a request.
    pub(super) fn due_reply(
        &mut self,
        server: u8,
        request: &[u8],
    ) -> Result<Option<Vec<u8>>, InputError> {
        self.pass_until(u64::MAX);
        let found = Request::new(request);
        match &self.next {
            Some(Item::Reply {
                server: recorded_server,
                request,
                ..
            }) if *recorded_server == server && *request == found => Ok(match self.advance() {
                Some(Item::Reply { reply, .. }) => Some(reply.into_owned()),
                _ => None,
            }),
            _ => Err(InputError::Unknown {
                found: wanted(request),
            }),
        }
    }

    /// The next bytes for the guest, if they are due at `now`.
    pub(super) fn due_input(&mut self, now: u64) -> Option<Vec<u8>> {
        self.pass_until(now);
        let is_due = matches!(&self.next, Some(Item::Input { time, .. }) if *time <= now);
        match is_due.then(|| self.advance()).flatten() {
            Some(Item::Input { bytes, .. }) => Some(bytes.into_owned()),
            _ => None,
        }
    }

    /// The end of a wait for the host that begins at `now`, if the recorded run has begun to wait,
    /// too.
    pub(super) fn due_wait(&mut self, now: u64) -> Option<u64> {
        self.pass_until(now);
        match self.next {
            Some(Item::Wait { time, until }) if time <= now => {
                self.advance();
                Some(until)
            }
            _ => None,
        }
    }
}

/// What a 9P request wants, in words.
fn wanted(request: &[u8]) -> String {
    /// Types of 9P2000.L.
    const READ: u8 = 116;
    const WRITE: u8 = 118;
    const WALK: u8 = 110;
    match request.get(4) {
        Some(&READ) => "contents of a file (such as a page of code that has not been executed)",
        Some(&WRITE) => "to write to a file",
        Some(&WALK) => "to look up a file",
        _ => "an operation on a file",
    }
    .into()
}
