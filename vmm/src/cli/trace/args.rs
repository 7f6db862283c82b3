//! The arguments of `vbts trace`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use vbts_protocol::Scope;

use crate::cli::options::{EXIT_STATUS, MachineArgs};
use crate::exit::Failure;
use crate::memory::Size;

/// Formats of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// For people: one line a branch, with functions and source lines
    Text,
    /// One JSON object a line
    Json,
    /// Records of 24 bytes, little-endian: from, to, flags
    Raw,
}

/// Which branches to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// Branches of the program, without the kernel's returns to it
    User,
    /// Branches into and inside the kernel: system calls, faults, and interrupts while the program
    /// runs
    Kernel,
    /// All branches
    All,
}

impl From<ScopeArg> for Scope {
    fn from(arg: ScopeArg) -> Self {
        match arg {
            ScopeArg::User => Self::User,
            ScopeArg::Kernel => Self::Kernel,
            ScopeArg::All => Self::All,
        }
    }
}

/// Arguments of `vbts trace`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS, override_usage = "vbts trace [OPTIONS] -- PROGRAM [ARG]...")]
pub struct TraceArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Guest kernel (default: $VBTS_KERNEL, else the one that was built with vbts)
    #[arg(long, value_name = "FILE", help_heading = "Machine options")]
    pub kernel: Option<PathBuf>,
    /// Format of the trace
    #[arg(
        long,
        value_enum,
        default_value = "text",
        help_heading = "Trace options"
    )]
    pub format: TraceFormat,
    /// Write the trace to FILE. By default it goes to standard output: text together with the
    /// output of the program, json and raw alone, with the output of the program on standard error
    #[arg(long, value_name = "FILE", help_heading = "Trace options")]
    pub output: Option<PathBuf>,
    /// Which branches to record
    #[arg(
        long,
        value_enum,
        default_value = "user",
        help_heading = "Trace options"
    )]
    pub scope: ScopeArg,
    /// Size of the guest kernel's trace buffer. The program waits while a full buffer is emptied.
    /// Inside a system call, the kernel moves the records to a quarter of the guest's memory
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4M",
        help_heading = "Trace options"
    )]
    pub buffer: Size,
    /// Also record when the program arrives on a processor and departs from it
    #[arg(long, help_heading = "Trace options")]
    pub sched: bool,
    /// Print at the end how the time was spent
    #[arg(long, help_heading = "Trace options")]
    pub stats: bool,
    /// Program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl TraceArgs {
    /// Refuses options that make a trace impossible.
    ///
    /// # Errors
    /// The buffer is too small.
    pub fn check(&self) -> Result<(), Failure> {
        let record = vbts_protocol::RECORD_SIZE as u64;
        if self.buffer.0 < record {
            return Err(
                anyhow::anyhow!("--buffer {}: a record takes {record} bytes", self.buffer).into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::Parser;

    /// The arguments of `vbts trace` from its command line.
    pub(crate) fn args(words: &[&str]) -> TraceArgs {
        let words = ["vbts", "trace"].iter().chain(words);
        match crate::cli::Cli::try_parse_from(words).unwrap().command {
            crate::cli::Command::Trace(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        for words in [
            &["--sched", "--", "ls", "--format", "x"][..],
            &["--sched", "ls", "--format", "x"],
        ] {
            let args = args(words);
            assert!(args.sched);
            assert_eq!(args.program, ["ls", "--format", "x"]);
            assert_eq!(args.format, TraceFormat::Text);
        }
    }

    #[test]
    fn a_mistyped_option_is_not_a_program() {
        for words in [
            &["--outputt", "file", "--", "ls"][..],
            &["--outputt=file", "ls"],
            &["--outputt", "ls"],
            &["--shed", "ls", "--all"],
        ] {
            let words = ["vbts", "trace"].iter().chain(words);
            let error = crate::cli::Cli::try_parse_from(words).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument);
        }
        let error = crate::cli::Cli::try_parse_from(["vbts", "trace", "--outputt", "f", "ls"]);
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("similar argument exists: '--output'"),
            "{text}"
        );
        // After "--" a program may have any name.
        assert_eq!(args(&["--", "--outputt", "x"]).program, ["--outputt", "x"]);
    }

    #[test]
    fn a_buffer_holds_a_record() {
        assert!(args(&["--buffer", "23", "x"]).check().is_err());
        assert!(args(&["--buffer", "24", "x"]).check().is_ok());
    }
}
