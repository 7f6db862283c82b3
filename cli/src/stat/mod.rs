//! `vbts stat`: counts what a program executes.

mod options;

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, anyhow};
pub(crate) use options::StatArgs;
use vbts_analysis::Stat;
use vbts_host::exit::{Failure, say};
use vbts_host::output::{Output, OutputError};

use crate::options::is_stdout;
use crate::report::{self, ReportArgs};
use crate::trace::{Reported, TraceDirectory, trace_and_report};

/// Maximum size in bytes of a file of counts.
const MAX_FILE: u64 = 1 << 30;
/// The exit status if a program has executed more than `--fail-above` allows.
const ABOVE: u8 = 1;

/// Runs the command. The exit status is that of the program, or [`ABOVE`] if that has succeeded.
///
/// # Errors
/// The program cannot be traced, or a file of counts cannot be read or written.
pub(crate) fn main(args: &StatArgs) -> Result<u8, Failure> {
    // A mistake in a name is found before the program runs.
    let before = args.against.as_deref().map(read).transpose()?;
    let kind = report::named("stat").context("there is no report of counts")?;
    let directory = TraceDirectory::create()?;
    let counts = directory.file("stat.json");
    let made = trace_and_report(args.config(), &directory, None, |trace| {
        vec![ReportArgs {
            json: true,
            output: Some(counts.clone()),
            ..ReportArgs::new(kind, trace.into())
        }]
    });
    let Reported {
        status: code,
        is_complete,
    } = made?;
    if !is_complete {
        return Ok(code);
    }
    let stat = read(&counts)?;
    write(args, &stat, before.as_ref())?;
    if let (Some(limit), Some(before)) = (args.fail_above, &before) {
        let growth = stat.growth_since(before);
        if growth > limit.0 {
            say(format_args!(
                "{growth:.3}% more instructions than before: --fail-above {}%",
                limit.0
            ));
            return Ok(if code == 0 { ABOVE } else { code });
        }
    }
    Ok(code)
}

/// Reads counts that `--json` has written.
fn read(path: &Path) -> anyhow::Result<Stat> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("Cannot open {name}"))?;
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    if size > MAX_FILE {
        return Err(anyhow!("{name} is too large for a file of counts"));
    }
    let stat = serde_json::from_reader(std::io::BufReader::new(file));
    stat.with_context(|| format!("{name} has no counts of vbts stat --json"))
}

/// Writes the counts, and how they differ from those of the run `before`.
fn write(args: &StatArgs, stat: &Stat, before: Option<&Stat>) -> Result<(), Failure> {
    let mut text = Vec::new();
    if args.json {
        serde_json::to_writer(&mut text, stat).map_err(anyhow::Error::from)?;
        text.push(b'\n');
    } else {
        stat.text(&mut text)?;
        if let Some(before) = before {
            stat.compare(before, &mut text)?;
        }
    }
    let output = match &args.output {
        // The program's output is on standard output.
        None => Output::stderr(),
        Some(path) if is_stdout(path) => Output::stdout(),
        Some(path) => Output::create(path),
    };
    output
        .and_then(|mut output| output.write(&text))
        .map_err(OutputError::into_failure)
}
