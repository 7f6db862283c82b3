//! `vbts debug`: GDB on a recording, forward and backward.
//!
//! | module | contents |
//! |---|---|
//! | `client` | gdb, connected, or the address at which another client connects |
//! | `mi` | a gdb that this program drives |
//! | `session` | the process with the replay, which serves the client |
//! | `snapshots` | the files with snapshots, for later sessions |

mod client;
mod mi;
mod session;
mod snapshots;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, Parser as _};
use vbts_host::exit::{Failure, say};
use vbts_vmm::memory::Size;

use crate::options::{EXIT_STATUS, start_logging};
use crate::replay::ReplayedMachineArgs;
use crate::trace::{TraceDirectory, in_child};
use crate::{Cli, Command, record};
use client::{Address, Client};
pub(crate) use mi::{Answer, Gdb, Stopped, field, quoted};

/// Default maximum size of the snapshots.
const DEFAULT_SNAPSHOTS: Size = Size(1 << 30);
/// What can be done without gdb.
const OTHER_CLIENT: &str = ", or use --listen ADDRESS with another client";
/// The name of a temporary recording.
const TEMPORARY: &str = "program.vbts";

/// Arguments of `vbts debug`.
#[derive(Debug, Args)]
#[command(
    after_help = EXIT_STATUS,
    override_usage = "vbts debug [OPTIONS] FILE\n       vbts debug [OPTIONS] -- PROGRAM [ARG]..."
)]
pub(crate) struct DebugArgs {
    /// Recording that vbts record has made
    #[arg(
        value_name = "FILE",
        required_unless_present = "program",
        conflicts_with = "program"
    )]
    pub file: Option<PathBuf>,
    /// Debug this process, by its number or the name of its program. By default, the first one that
    /// crashed, or else the first
    #[arg(long, value_name = "PID|NAME", help_heading = "Debugger options")]
    pub process: Option<String>,
    /// Wait for another client at ADDRESS, [HOST:]PORT or the path of a Unix socket, instead of
    /// starting gdb. A client that connects sees everything that the program has in memory
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with_all = ["script", "batch"],
        help_heading = "Debugger options"
    )]
    pub listen: Option<String>,
    /// Have gdb execute the commands in SCRIPT
    #[arg(
        short = 'x',
        long,
        value_name = "SCRIPT",
        help_heading = "Debugger options"
    )]
    pub script: Vec<PathBuf>,
    /// Have gdb end after the scripts. The exit status is gdb's
    #[arg(long, help_heading = "Debugger options")]
    pub batch: bool,
    /// The gdb to start: a program, by its name or its path
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "gdb",
        help_heading = "Debugger options"
    )]
    pub gdb: OsString,
    /// Memory for snapshots of the replay. Those in the middle are dropped first
    #[arg(
        long,
        value_name = "SIZE",
        default_value_t = DEFAULT_SNAPSHOTS,
        help_heading = "Debugger options"
    )]
    pub snapshots: Size,
    /// Print no messages except errors
    #[arg(long, help_heading = "Debugger options")]
    pub quiet: bool,
    /// Machine options.
    #[command(flatten)]
    pub machine: ReplayedMachineArgs,
    /// Program to record and debug, and its arguments
    #[arg(
        last = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

/// Runs the command. The exit status is gdb's.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &DebugArgs) -> Result<u8, Failure> {
    start_logging(args.machine.log);
    let client = match &args.listen {
        Some(address) => Client::Other(Address::parse(address)?),
        None => Client::Gdb(client::find(&args.gdb, OTHER_CLIENT)?),
    };
    let directory = TraceDirectory::create()?;
    let file = match &args.file {
        Some(file) => file.clone(),
        None => record_first(args, &directory)?,
    };
    client.debug(args, &file, &directory)
}

/// Records the program in a temporary file.
fn record_first(args: &DebugArgs, directory: &TraceDirectory) -> Result<PathBuf, Failure> {
    let path = directory.file(TEMPORARY);
    let options = ["vbts", "record", "--quiet", "--output"].map(OsString::from);
    let words = options
        .into_iter()
        .chain([path.clone().into_os_string(), "--".into()])
        .chain(args.program.iter().cloned());
    let parsed = Cli::try_parse_from(words).map_err(|error| anyhow!("{error}"))?;
    let Command::Record(record) = parsed.command else {
        return Err(anyhow!("the program cannot be recorded").into());
    };
    let status = in_child(|| record::main(&record))?;
    if !Path::new(&path).exists() {
        return Err(anyhow!("the program was not recorded: status {status}").into());
    }
    if !args.quiet {
        say(format_args!(
            "the program is recorded, with status {status}; the recording is removed at the end"
        ));
    }
    Ok(path)
}
