//! `vbts trace`: runs a program of the host in a guest and prints every branch that it takes.
//!
//! | module | contents |
//! |---|---|
//! | `options` | the options, and the configuration that they make |
//! | `run` | the run of a configuration, and what it prints at its end |
//! | `guest` | the guest of the run: its files, its job and the session that traces it |
//! | `job` | what the agent in the guest executes |
//! | `date` | the date at which the guest boots |
//! | `format` | the format, and the facts about the run in a kept trace |
//! | `report` | `--report`: a run and reports of it |
//! | `summary` | what a run on a terminal shows, without further options |

mod date;
mod format;
mod guest;
mod job;
mod options;
mod report;
mod run;
mod summary;

pub(crate) use date::parse as parse_date;
pub(crate) use options::{TraceArgs, wait_all};
pub(crate) use report::{Reported, TraceDirectory, in_child, outputs, trace_and_report};
pub(crate) use run::{finish, run_recorded};
use vbts_host::exit::Failure;

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &TraceArgs) -> Result<u8, Failure> {
    if !args.report.is_empty() {
        report::main(args)
    } else if summary::is_wanted(args) {
        summary::main(args)
    } else {
        run::run(&args.config())
    }
}
