//! The `vbts` command line: options, commands, help and manual pages.
//!
//! A command parses its options, makes a configuration of them, which is plain data, and runs that
//! with the crates below. The crate has nothing that another program could use, except [`main`].
//!
//! | module | contents |
//! |---|---|
//! | `options`, `filters` | options that several commands have |
//! | `trace`, `run`, `test`, `report` | each a directory, with its options, configuration and run |
//! | `guest` | `vbts guest`: the run of a configuration in a file |
//! | `record`, `replay`, `recording` | recordings of runs |
//! | `debug` | GDB on a recording |
//! | `probe`, `setup`, `completions`, `help` | the small commands |
//! | `cache` | the directory for traces that are kept |
//! | `usage` | the help of commands with many options |
//! | `pager` | a pager for reports on a terminal |
//! | `file_uses` | no file is written that has another use |
//! | `kernel_file` | the guest kernel's symbols and identity |
//! | `progress`, `stats` | progress; how the time was spent |
//! | `rescue` | the end of a run whose run loop does not answer |
//!
//! # Example
//!
//! ```
//! let args = ["vbts", "probe", "--no-such-option"].map(Into::into);
//! assert_eq!(vbts_cli::main(args), 125);
//! ```

#![warn(unreachable_pub)]

mod cache;
mod colours;
mod completions;
mod debug;
mod file_uses;
mod filters;
mod guest;
mod help;
mod kernel_file;
#[cfg(test)]
mod manual;
mod options;
mod pager;
mod probe;
mod progress;
mod record;
mod recording;
mod referred_kernel;
mod replay;
mod report;
mod rescue;
mod run;
mod run_facts;
mod setup;
mod sha256;
mod stat;
mod stats;
mod test;
mod trace;
mod usage;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process;

use clap::{Parser, Subcommand};

use options::{EXIT_STATUS, default_of, named};
use vbts_host::exit::{Failure, conclude, status};
use vbts_host::output::survive_file_size_limit;
use vbts_host::{Output, OutputError};
use vbts_vmm::config::SandboxMode;

/// Shows exactly what a Linux program executes, branch by branch, without hardware support.
#[derive(Debug, Parser)]
#[command(name = "vbts", version, max_term_width = 100)]
#[command(after_help = "vbts help has the topics of the documentation.", after_long_help = EXIT_STATUS)]
#[command(disable_help_subcommand = true)]
struct Cli {
    /// Do not show reports and help in a pager
    #[arg(long)]
    no_pager: bool,
    /// The command.
    #[command(subcommand)]
    command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program inside a guest and record every branch that it takes
    Trace(trace::TraceArgs),
    /// Show a trace that was kept in a file
    Report(report::ReportArgs),
    /// Run a program inside a guest and count what it executes, exactly
    Stat(stat::StatArgs),
    /// Run a program inside a guest, and keep what comes in from outside, to run it again
    Record(record::RecordArgs),
    /// Run a recording again, on any machine
    Replay(replay::ReplayArgs),
    /// Debug a recording with GDB, forward and backward
    Debug(debug::DebugArgs),
    /// Run the regression suite of the ptrace BTS requests in guests
    Test(test::TestArgs),
    /// Boot a guest kernel, with its console on standard input and output
    Run(run::RunArgs),
    /// Print what this host offers, and which accelerator `auto` selects
    Probe(probe::ProbeArgs),
    /// Build the guest's files, or fetch them, and install them
    Setup(setup::SetupArgs),
    /// Print the script with which a shell completes the command line
    Completions(completions::CompletionsArgs),
    /// Print the help of a command, or a page of the documentation
    Help(help::HelpArgs),
    /// Boot the guest of a configuration file, for `vbts test`
    #[command(hide = true)]
    Guest(guest::GuestArgs),
    /// Read symbols for `vbts trace`, which is at the other end of standard input
    #[command(hide = true, name = vbts_symbols::COMMAND)]
    ReadSymbols(ReadSymbolsArgs),
}

/// Arguments of the process that reads symbols.
#[derive(Debug, clap::Args)]
struct ReadSymbolsArgs {
    /// How to confine the process
    #[arg(long, value_parser = named::<SandboxMode>(), default_value = default_of::<SandboxMode>())]
    sandbox: SandboxMode,
}

/// Runs the command line `args`, the first of which is the program's name. Returns the exit status.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    survive_file_size_limit();
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            if !usage::print(&args, &error) {
                let _ = error.print();
            }
            return parse_status(&error);
        }
    };
    match pager::run(&cli, &args) {
        Some(status) => status,
        None => conclude(run(&cli.command)),
    }
}

fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Probe(args) => probe::main(args),
        Command::Run(args) => run::main(args),
        Command::Trace(args) => trace::main(args),
        Command::Record(args) => record::main(args),
        Command::Replay(args) => replay::main(args),
        Command::Debug(args) => debug::main(args),
        Command::Stat(args) => stat::main(args),
        Command::Report(args) => replay::report(args),
        Command::Test(args) => test::main(args),
        Command::Setup(args) => setup::main(args),
        Command::Completions(args) => completions::main(args),
        Command::Help(args) => help::main(args),
        Command::Guest(args) => guest::main(args),
        Command::ReadSymbols(args) => {
            vbts_symbols::reader::run(args.sandbox != SandboxMode::Off)?;
            Ok(0)
        }
    }
}

/// The name, in argument 0, of a process that a process of vbts has started as a part of itself.
/// A program that uses vbts as a library becomes `vbts` by it.
pub const PART_NAME: &str = "vbts-part";

/// This program, to start as a part of itself.
fn own_program() -> process::Command {
    let mut command = process::Command::new("/proc/self/exe");
    command.arg0(PART_NAME);
    command
}

/// Prints `text` on standard output. Returns the exit status.
fn print(text: &[u8]) -> Result<u8, Failure> {
    Output::stdout()
        .and_then(|mut stdout| stdout.write(text))
        .map_err(OutputError::into_failure)?;
    Ok(0)
}

/// The exit status for an error of usage or a request for help.
fn parse_status(error: &clap::Error) -> u8 {
    if error.use_stderr() { status::ERROR } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The exit status of a command line that does not start a guest.
    fn status_of(args: &[&str]) -> u8 {
        match Cli::try_parse_from(["vbts"].iter().chain(args)) {
            Err(error) => parse_status(&error),
            Ok(cli) => match run(&cli.command) {
                Ok(status) => status,
                Err(failure) => failure.status(),
            },
        }
    }

    #[test]
    fn help_is_success() {
        for args in [
            &["--help"][..],
            &["trace", "--help"],
            &["help", "run"],
            &["help", "help"],
            &["help", "trace-format"],
            &["help"],
            &["--version"],
        ] {
            assert_eq!(status_of(args), 0, "{args:?}");
        }
    }

    #[test]
    fn bad_usage_is_125() {
        for args in [
            &[][..],
            &["frobnicate"],
            &["help", "frobnicate"],
            &["completions"],
            &["trace"],
            &["run"],
            &["run", "--kernel"],
            &["trace", "--memory", "lots", "--", "true"],
            &["trace", "--memory", "1M", "--", "true"],
            &["trace", "--smp", "0", "--", "true"],
            &["trace", "--cpu", "z80", "--", "true"],
            &["trace", "--accel", "tcg", "--", "true"],
            &["trace", "--bts", "off", "--", "true"],
            &["trace", "--scope", "hypervisor", "--", "true"],
            &["trace", "--timeout", "-1", "--", "true"],
            &["trace", "--root", "/nonexistent", "--", "true"],
            &["trace", "--share", "/nonexistent", "--", "true"],
            &["run", "--kernel", "/nonexistent"],
            &["run", "--kernel", "/dev/null"],
            &["run", "--kernel", "/etc/passwd"],
            &["run", "--kernel", "/etc/passwd", "--disk", "/dev/null"],
            &["test", "--api", "2008"],
            &["test", "--report", "xml"],
            &["test", "--smp", "0"],
            &["test", "--case-timeout", "0"],
            &["test", "basic"],
        ] {
            assert_eq!(status_of(args), 125, "{args:?}");
        }
    }

    #[test]
    fn what_the_host_cannot_do_is_126() {
        for args in [
            &["trace", "--accel", "kvm", "--", "true"][..],
            &["run", "--accel", "kvm", "--kernel", "/nonexistent"],
            &["test", "--accel", "kvm"],
            &["trace", "--bts", "passthrough", "--", "true"],
        ] {
            assert_eq!(status_of(args), 126, "{args:?}");
        }
    }

    #[test]
    fn a_program_that_does_not_exist_is_127_and_one_that_is_none_126() {
        for (program, status) in [("/nonexistent", 127), ("/", 126)] {
            assert_eq!(status_of(&["trace", "--", program]), status, "{program}");
        }
    }
}
