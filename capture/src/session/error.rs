//! Why a session ends.

use anyhow::anyhow;
use thiserror::Error;
use vbts_protocol::{ErrorKind, VERSION};

use crate::pipeline::queue::WriterError;
use vbts_host::exit::Failure;

/// Why a session cannot continue.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The trace, or what the program prints, could not be written.
    #[error(transparent)]
    Writer(#[from] WriterError),
    /// The agent sent something that is not in the protocol.
    #[error(
        "the guest's agent does not follow the protocol of \"{VERSION}\": an older guest has to be \
         built again"
    )]
    Protocol(#[from] vbts_protocol::Error),
    /// The agent has another version of the protocol.
    #[error(
        "the guest's agent is \"{0}\", but this vbts needs \"{VERSION}\": build the guest again"
    )]
    Version(String),
    /// The agent could not run the job.
    #[error("{text}")]
    Agent {
        /// The kind of the error.
        kind: ErrorKind,
        /// The agent's message.
        text: String,
    },
}

impl SessionError {
    /// The failure of the command that this error causes.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Writer(WriterError::Output(error)) => error.into_failure(),
            Self::Writer(WriterError::Interrupted) => Failure::Interrupted,
            Self::Agent { kind, text } => match kind {
                ErrorKind::NotFound => Failure::NotFound(anyhow!(text)),
                ErrorKind::PermissionDenied
                | ErrorKind::NotExecutable
                | ErrorKind::Start
                | ErrorKind::WorkingDirectory => Failure::NotExecutable(anyhow!(text)),
                _ => Failure::Error(anyhow!(text)),
            },
            error => Failure::Error(error.into()),
        }
    }
}
