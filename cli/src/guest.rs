//! `vbts guest`: boots the guest of a configuration file, as `vbts run` does from options.
//!
//! `vbts test` starts it for each guest: a process of its own can be sandboxed and killed.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::run::{self, RunConfig};
use vbts_host::exit::Failure;
use vbts_vmm::config::GuestConfig;

/// Arguments of `vbts guest`.
#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// A guest's configuration ([`GuestConfig`]) as JSON
    pub config: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &GuestArgs) -> Result<u8, Failure> {
    let path = args.config.display();
    let text = std::fs::read(&args.config).with_context(|| format!("Cannot read {path}"))?;
    let guest: GuestConfig = serde_json::from_slice(&text)
        .with_context(|| format!("{path} is not the configuration of a guest"))?;
    run::run(&RunConfig {
        guest,
        recording: None,
        inputs: None,
    })
}
