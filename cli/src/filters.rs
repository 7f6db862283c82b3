//! The options that choose branches of a trace.

use clap::Args;

use vbts_capture::{Filters, Object, Point};
use vbts_host::exit::signal_name;

/// Number of signals of Linux.
const SIGNALS: i32 = 64;

/// Which branches of a trace to keep. The others are counted, and the trace says where they were.
#[derive(Debug, Clone, Default, Args)]
pub struct FilterArgs {
    /// Begin when the program reaches POINT: FUNCTION, FUNCTION+0xOFFSET, FILE:LINE,
    /// MODULE+0xOFFSET or 0xADDRESS; with #N at its end the Nth time
    #[arg(long, value_name = "POINT", help_heading = "Trace options")]
    pub start: Option<Point>,
    /// End when the program reaches POINT, after the beginning
    #[arg(long, value_name = "POINT", help_heading = "Trace options")]
    pub stop: Option<Point>,
    /// Keep only branches that begin or end in OBJECT: a function, a module ([kernel], [vdso],
    /// [anonymous] and the names of files) or 0xFIRST-0xEND. Can be repeated
    #[arg(long, value_name = "OBJECT", help_heading = "Trace options")]
    pub only: Vec<Object>,
    /// Leave out the branches that begin and end in OBJECT. Can be repeated
    #[arg(long, value_name = "OBJECT", help_heading = "Trace options")]
    pub skip: Vec<Object>,
    /// End after N branches
    #[arg(long, value_name = "N", help_heading = "Trace options",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub max_records: Option<u64>,
    /// End when a task gets a signal, such as USR1 or 10
    #[arg(long, value_name = "SIGNAL", value_parser = signal, help_heading = "Trace options")]
    pub until_signal: Option<u32>,
    /// Keep only the last N branches, however the run ends
    #[arg(long, value_name = "N", help_heading = "Trace options",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub last: Option<u64>,
}

impl From<&FilterArgs> for Filters {
    fn from(args: &FilterArgs) -> Self {
        let args = args.clone();
        Self {
            start: args.start,
            stop: args.stop,
            only: args.only,
            skip: args.skip,
            max_records: args.max_records,
            until_signal: args.until_signal,
            last: args.last,
        }
    }
}

/// Parses the name or the number of a signal.
fn signal(text: &str) -> Result<u32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is_it = |number: &i32| {
        let known = signal_name(*number);
        known.strip_prefix("SIG") == Some(name) || number.to_string() == text
    };
    match (1..=SIGNALS).find(is_it) {
        Some(number) => Ok(number.unsigned_abs()),
        None => Err("no signal of Linux".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("USR1", 10), ("SIGUSR1", 10), ("sigint", 2), ("34", 34)] {
            assert_eq!(signal(text), Ok(number), "{text}");
        }
        for text in ["", "SIG", "0", "65", "NOTHING", "-1"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }
}
