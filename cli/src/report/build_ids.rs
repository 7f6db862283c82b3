//! The build IDs of the files that a trace has executed, as `perf buildid-list` prints them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Context as _;
use vbts_host::escape::printable;
use vbts_host::exit::Failure;
use vbts_host::output::Output;
use vbts_symbols::elf::digits;
use vbts_trace::Event;

use super::files::TraceFile;
use super::{ReportArgs, process};

/// Shows them: one line a file, with the build ID that it had when it was traced.
///
/// # Errors
/// The file is no trace or is damaged, or the output fails.
pub(super) fn show(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let file = TraceFile::open(args, &args.file)?;
    process::restrict_files(args.sandbox, &args.root)?;
    process::restrict_calls(args.sandbox)?;
    let mut trace = file.read()?;
    let mut files = BTreeSet::new();
    let read = trace.reader.events_before(u64::MAX, |_, event| {
        if let Event::BuildId { id, name } = event {
            files.insert((name, id));
        }
    });
    read.with_context(|| format!("Cannot read {}", trace.name))?;
    let mut text = String::new();
    for (name, id) in files {
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "{} {}", digits(&id), printable(&name));
    }
    process::write_whole(output, &text)
}
