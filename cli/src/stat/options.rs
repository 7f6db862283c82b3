//! The options of `vbts stat`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use vbts_capture::TraceConfig;
use vbts_protocol::{Follow, Scope};

use crate::options::{EXIT_STATUS, MachineArgs, is_stdout, named};

/// Arguments of `vbts stat`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS, override_usage = "vbts stat [OPTIONS] -- PROGRAM [ARG]...")]
pub(crate) struct StatArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Guest kernel (default: $VBTS_KERNEL, else the one that was built with vbts)
    #[arg(long, value_name = "FILE", help_heading = "Machine options")]
    pub kernel: Option<PathBuf>,
    /// What to count: programs, the kernel while it works for them, or both
    #[arg(long, value_parser = named::<Scope>(), default_value = "user")]
    pub scope: Scope,
    /// Which processes and threads to count
    #[arg(long, value_parser = named::<Follow>(), value_name = "TASKS", default_value = "all")]
    pub follow: Follow,
    /// Write the counts to FILE instead of standard error
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a JSON object with all functions, for --against
    #[arg(long)]
    pub json: bool,
    /// Compare with the counts in FILE, which --json has written
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// With --against: end with status 1 if the program has executed P percent more instructions
    #[arg(
        long,
        value_name = "P",
        requires = "against",
        allow_negative_numbers = true
    )]
    pub fail_above: Option<Percent>,
    /// Program to run, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

/// A number of percent that is not negative, such as `1`, `0.5` or `1%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Percent(pub f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').unwrap_or(text).parse();
        let number = number.map_err(|_| "no number of percent, such as 1%".to_owned())?;
        match number {
            0.0..=1e9 => Ok(Self(number)),
            _ => Err("not between 0 and 1000000000".into()),
        }
    }
}

impl StatArgs {
    /// The configuration of the trace that is counted.
    pub(crate) fn config(&self) -> TraceConfig {
        let written = self.output.iter().filter(|path| !is_stdout(path));
        TraceConfig {
            machine: self.machine.config_of_trace(),
            kernel: self.kernel.clone(),
            scope: self.scope,
            follow: self.follow,
            quiet: true,
            report_outputs: written.cloned().collect(),
            ..TraceConfig::new(&self.program)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_are_read() {
        assert_eq!("1%".parse(), Ok(Percent(1.0)));
        assert_eq!("0.25".parse(), Ok(Percent(0.25)));
        for text in ["", "%", "-1", "x", "nan", "inf"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }
}
