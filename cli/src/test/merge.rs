//! `vbts test --merge`: one report, and one verdict, of several reports.

use anyhow::{Context as _, anyhow};

use super::config::MergeConfig;
use crate::file_uses::FileUses;
use vbts_host::exit::{Failure, say};
use vbts_host::{Output, OutputError};
use vbts_suite::merge::Merged;
use vbts_suite::report::{ReportFormat, document};

/// Makes one report of several ones. Returns the exit status.
///
/// # Errors
/// A report cannot be read, is none of `vbts test`, or the merged one cannot be written.
pub(super) fn merge(config: &MergeConfig) -> Result<u8, Failure> {
    if config.report.format == Some(ReportFormat::Ktap) {
        return Err(anyhow!("--merge: a merged report is not KTAP, but junit or kcidb").into());
    }
    let mut uses = FileUses::default();
    let mut reports = Vec::new();
    for path in &config.reports {
        uses.reads("--merge", path);
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("Cannot read {name}"))?;
        reports.push((name, text));
    }
    if let Some(path) = config.report.path() {
        uses.writes("--output", path);
    }
    uses.check()?;
    let merged = Merged::new(&reports).context("--merge")?;
    let format = config.report.format.unwrap_or(ReportFormat::Junit);
    let text = document(merged.report(), format, config.report.build.as_ref())?;
    let mut output = match config.report.open()? {
        Some(file) => file,
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
