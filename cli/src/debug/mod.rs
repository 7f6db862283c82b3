//! `vbts debug`: GDB on a recording, forward and backward.
//!
//! | module | contents |
//! |---|---|
//! | `client` | gdb, connected, or the address at which another client connects |
//! | `files` | the program's files, of the host or of the recording |
//! | `kernel` | the file of the guest's kernel, for gdb |
//! | `mi` | a gdb that this program drives |
//! | `session` | the process with the replay, which serves the client |
//! | `snapshots` | the files with snapshots, for later sessions |

mod client;
mod files;
mod kernel;
mod mi;
mod relay;
mod session;
mod snapshots;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, Parser as _};
use vbts_host::exit::{Failure, say};
use vbts_vmm::memory::Size;

use crate::options::{EXIT_STATUS, Named, named, start_logging};
use crate::replay::ReplayedMachineArgs;
use crate::trace::{TraceDirectory, in_child};
use crate::{Cli, Command, record};
use client::Client;
pub(crate) use mi::{Answer, Gdb, Stopped, field, quoted};
use relay::Address;

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
    override_usage = "vbts debug [OPTIONS] FILE\n       vbts debug [OPTIONS] -- PROGRAM [ARG]...\n       vbts debug [OPTIONS] --kernel KERNEL"
)]
pub(crate) struct DebugArgs {
    /// Recording that vbts record has made
    #[arg(
        value_name = "FILE",
        required_unless_present_any = ["program", "kernel"],
        conflicts_with_all = ["program", "kernel"]
    )]
    pub file: Option<PathBuf>,
    /// What is debugged: a process, or with the kernel all that the processors execute, which are
    /// the threads then (default: kernel for the recording of a machine)
    #[arg(long, value_parser = named::<DebugView>(), value_name = "VIEW", help_heading = "Debugger options")]
    pub view: Option<DebugView>,
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
    /// Without FILE: guest kernel whose machine is recorded and debugged
    #[arg(
        long,
        value_name = "KERNEL",
        conflicts_with = "program",
        help_heading = "Recording options"
    )]
    pub kernel: Option<PathBuf>,
    /// With --kernel: initial RAM disk
    #[arg(
        long,
        value_name = "FILE",
        requires = "kernel",
        help_heading = "Recording options"
    )]
    pub initrd: Option<PathBuf>,
    /// With --kernel: words to add to the kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        requires = "kernel",
        allow_hyphen_values = true,
        help_heading = "Recording options"
    )]
    pub append: Option<String>,
    /// Without FILE: guest memory, as vbts record has it
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "file",
        help_heading = "Recording options"
    )]
    pub memory: Option<Size>,
    /// Without FILE: number of processors
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "file",
        help_heading = "Recording options"
    )]
    pub smp: Option<u32>,
    /// Program to record and debug, and its arguments
    #[arg(
        last = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

/// The part of a recording that is debugged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DebugView {
    Program,
    Kernel,
}

impl Named for DebugView {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Program, "program", "A process, in user mode"),
        (Self::Kernel, "kernel", "All that the processors execute"),
    ];
}

impl DebugArgs {
    /// Returns whether the processors are debugged, of a recording of a machine or of a program.
    ///
    /// # Errors
    /// A machine has no program that is known, or an option is one of programs.
    fn is_kernel_view(&self, is_machine: bool) -> anyhow::Result<bool> {
        let view = self.view.unwrap_or(match is_machine {
            true => DebugView::Kernel,
            false => DebugView::Program,
        });
        if is_machine && view == DebugView::Program {
            return Err(anyhow!(
                "--view program: the recording is of a machine, whose programs are not known"
            ));
        }
        if view == DebugView::Kernel && self.process.is_some() {
            return Err(anyhow!("--process is for --view program"));
        }
        Ok(view == DebugView::Kernel)
    }
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

/// Records the program or the machine in a temporary file.
fn record_first(args: &DebugArgs, directory: &TraceDirectory) -> Result<PathBuf, Failure> {
    let path = directory.file(TEMPORARY);
    let mut words: Vec<OsString> = ["vbts", "record", "--quiet", "--output"]
        .map(OsString::from)
        .into();
    words.push(path.clone().into());
    let mut add = |option: &str, value: Option<OsString>| {
        words.extend(value.into_iter().flat_map(|value| [option.into(), value]));
    };
    add(
        "--memory",
        args.memory.map(|size| size.0.to_string().into()),
    );
    add("--smp", args.smp.map(|count| count.to_string().into()));
    add("--kernel", args.kernel.clone().map(Into::into));
    add("--initrd", args.initrd.clone().map(Into::into));
    add("--append", args.append.clone().map(Into::into));
    if args.kernel.is_none() {
        words.push("--".into());
        words.extend(args.program.iter().cloned());
    }
    let parsed = Cli::try_parse_from(words).map_err(|error| anyhow!("{error}"))?;
    let Command::Record(record) = parsed.command else {
        return Err(anyhow!("the run cannot be recorded").into());
    };
    let status = in_child(|| record::main(&record))?;
    if !Path::new(&path).exists() {
        return Err(anyhow!("the run was not recorded: status {status}").into());
    }
    if !args.quiet {
        say(format_args!(
            "the run is recorded, with status {status}; the recording is removed at the end"
        ));
    }
    Ok(path)
}
