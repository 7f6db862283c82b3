//! `vbts test --merge`: one report, and one verdict, of several reports.

use anyhow::{Context as _, anyhow};

use super::{TestArgs, report_path};
use crate::file_uses::FileUses;
use vbts_host::exit::{Failure, say};
use vbts_host::{Output, OutputError};
use vbts_suite::merge::Merged;
use vbts_suite::report::{ReportFormat, document};

/// Runs the command.
///
/// # Errors
/// A report cannot be read, is none of `vbts test`, or the merged one cannot be written.
pub fn main(args: &TestArgs) -> Result<u8, Failure> {
    if args.report == Some(ReportFormat::Ktap) {
        return Err(anyhow!("--merge: a merged report is not KTAP, but junit or kcidb").into());
    }
    let mut uses = FileUses::default();
    let mut reports = Vec::new();
    for path in &args.merge {
        uses.reads("--merge", path);
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("Cannot read {name}"))?;
        reports.push((name, text));
    }
    if let Some(path) = report_path(args) {
        uses.writes("--output", path);
    }
    uses.check()?;
    let merged = Merged::new(&reports).context("--merge")?;
    let format = args.report.unwrap_or(ReportFormat::Junit);
    let text = document(merged.report(), format, args.kcidb_build.as_ref())?;
    let mut output = match report_path(args) {
        Some(path) => {
            let file = Output::open(path).context("--output")?;
            file.truncate().context("--output")?;
            file
        }
        None => Output::stdout()?,
    };
    output
        .write(text.as_bytes())
        .map_err(OutputError::into_failure)?;
    merged.problems().iter().for_each(say);
    say(format_args!(
        "{} ({} reports)",
        merged.counts(),
        reports.len()
    ));
    Ok(u8::from(!merged.is_good()))
}
