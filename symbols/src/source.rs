//! What reads symbols: a process, or nothing.

use std::fs::File;

use super::connection::{Connection, Gone};
use super::protocol::{Action, Reply};

/// What reads symbols.
#[derive(Debug)]
pub(crate) enum Source {
    /// Nothing: addresses have no names.
    Absent,
    /// A process of its own.
    Process(Connection),
    /// This process, for tests.
    #[cfg(test)]
    Local(Box<local::Local>),
}

impl Source {
    /// Returns whether nothing reads symbols.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Sends a request, with a file.
    ///
    /// # Errors
    /// See [`Gone`].
    pub(crate) fn send(&mut self, action: Action, file: Option<&File>) -> Result<(), Gone> {
        match self {
            Self::Absent => Err(Gone::Closed),
            Self::Process(connection) => connection.send(action, file),
            #[cfg(test)]
            Self::Local(local) => local.send(action, file),
        }
    }

    /// Waits for a reply.
    ///
    /// # Errors
    /// See [`Gone`].
    pub(crate) fn receive(&mut self) -> Result<Reply<'_>, Gone> {
        match self {
            Self::Absent => Err(Gone::Closed),
            Self::Process(connection) => connection.receive(),
            #[cfg(test)]
            Self::Local(local) => local.receive(),
        }
    }
}

#[cfg(test)]
pub(crate) mod local {
    use std::collections::VecDeque;

    use super::*;
    use crate::reader::objects::Objects;

    /// Reads symbols in this process.
    #[derive(Debug, Default)]
    pub(crate) struct Local {
        objects: Objects,
        replies: VecDeque<Vec<u8>>,
        packet: Vec<u8>,
    }

    impl Local {
        pub(crate) fn send(&mut self, action: Action, file: Option<&File>) -> Result<(), Gone> {
            let file = file.map(|file| file.try_clone().unwrap());
            let replies = &mut self.replies;
            self.objects
                .perform(action, file, &mut |reply| {
                    replies.push_back(postcard::to_allocvec(reply).unwrap());
                    Ok(())
                })
                .unwrap();
            Ok(())
        }

        pub(crate) fn receive(&mut self) -> Result<Reply<'_>, Gone> {
            self.packet = self.replies.pop_front().ok_or(Gone::Closed)?;
            Ok(postcard::from_bytes(&self.packet).unwrap())
        }
    }
}
