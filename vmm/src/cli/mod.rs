//! The `vbts` command line.

pub mod options;
pub mod probe;
pub mod run;
pub mod trace;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::{conclude, status};

/// A small virtual machine monitor that gives a Linux guest a working Intel Branch Trace Store.
#[derive(Debug, Parser)]
#[command(name = "vbts", version, max_term_width = 100, after_help = EXIT_STATUS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what this host offers, and which accelerator `auto` takes, and why
    Probe(probe::ProbeArgs),
    /// Boot a guest kernel, with its console on standard input and output
    Run(run::RunArgs),
    /// Run a program inside a guest and print every branch that it takes
    Trace(trace::TraceArgs),
}

/// Shown after every help text.
pub const EXIT_STATUS: &str = "\
Exit status:
  the guest command's own, 128+n if signal n killed it; besides
  124  --timeout was reached
  125  bad usage, or an error of vbts itself
  126  this host cannot do what was asked for
  255  the guest panicked, crashed or can never go on
When the guest command itself ends with one of these, a line on standard error says so.";

/// Runs the command line `args` (the first is the program's name).
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(status::ERROR) } else { ExitCode::SUCCESS };
        }
    };
    conclude(match &cli.command {
        Command::Probe(args) => probe::main(args),
        Command::Run(args) => run::main(args),
        Command::Trace(args) => trace::main(args),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_usage_is_125_and_help_is_0() {
        let exit = |args: &[&str]| {
            let args = std::iter::once("vbts").chain(args.iter().copied()).map(OsString::from);
            format!("{:?}", main(args))
        };
        let code = |n: u8| format!("{:?}", ExitCode::from(n));
        assert_eq!(exit(&["--help"]), code(0));
        assert_eq!(exit(&["trace", "--help"]), code(0));
        assert_eq!(exit(&["--version"]), code(0));
        for bad in [
            &[][..],
            &["frobnicate"],
            &["trace"],
            &["run"],
            &["run", "--kernel"],
            &["trace", "--memory", "lots", "--", "true"],
            &["trace", "--smp", "2", "--", "true"],
            &["trace", "--smp", "0", "--", "true"],
            &["trace", "--cpu", "z80", "--", "true"],
            &["trace", "--accel", "tcg", "--", "true"],
            &["trace", "--bts", "off", "--", "true"],
            &["trace", "--scope", "kernel", "--", "true"],
            &["trace", "--timeout", "-1", "--", "true"],
            &["trace", "--memory", "1M", "--", "true"],
            &["run", "--kernel", "/nonexistent"],
            &["run", "--kernel", "/dev/null"],
            &["run", "--kernel", "/etc/passwd"],
            &["run", "--kernel", "/etc/passwd", "--disk", "/dev/null"],
        ] {
            assert_eq!(exit(bad), code(125), "{bad:?}");
        }
        for host in [&["trace", "--accel", "kvm", "--", "true"][..], &["trace", "--bts", "passthrough", "--", "true"]] {
            assert_eq!(exit(host), code(126), "{host:?}");
        }
    }
}
