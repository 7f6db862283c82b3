//! Reports that show the branches of a trace one after the other.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use vbts_trace::{Branch, Event, Item, Reader, Run, Streams};

use super::files::{TraceFile, name_files, open_root, say_file_problems, say_unnamed};
use super::kernel::{Kernel, NO_KERNEL_NAMES};
use super::{ReportArgs, process};
use crate::own_program;
use vbts_capture::Format;
use vbts_capture::format::Json;
use vbts_capture::format::Text;
use vbts_capture::format::{FULL, Raw};
use vbts_capture::kept::{Only, Replay};
use vbts_capture::sink::Sink;
use vbts_capture::summary::Summary;
use vbts_capture::task::Task;
use vbts_host::exit::Failure;
use vbts_host::output::{Output, OutputError};
use vbts_symbols::Symbolizer;
use vbts_vmm::accel::Accel;
use vbts_vmm::config::SandboxMode;

/// The form in which branches are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// As text, with names.
    Text,
    /// As JSON.
    Json,
    /// As records, of one task.
    Raw,
}

/// Shows the branches of a trace.
///
/// # Errors
/// The trace is damaged, or the output fails.
pub(super) fn show(shown: Shown, args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let file = TraceFile::open(args, &args.file)?;
    let mut symbols = Symbolizer::new(open_root(args)?, Path::new("/"));
    let kernel = Kernel::find(args)?;
    if shown == Shown::Text {
        symbols
            .start_reader(&mut own_program(), args.sandbox != SandboxMode::Off)
            .context("Cannot start the process that reads symbols")?;
    }
    process::restrict_files(args.sandbox, &args.root)?;
    process::restrict_calls(args.sandbox)?;
    let mut trace = file.read()?;
    let range = trace.range(args)?;
    let (mut reader, name, traced) = (trace.reader, trace.name, trace.traced);
    let tasks = trace.tasks;
    if shown == Shown::Text {
        let named = name_files(&mut symbols, &mut reader, traced);
        named.with_context(|| format!("Cannot read {name}"))?;
    }
    let run = reader.run();
    symbols.set_directory(Path::new(&run.directory));
    if shown == Shown::Text
        && run.scope != "user"
        && let Some((path, file)) = kernel.of(&mut reader, NO_KERNEL_NAMES)?
    {
        symbols.set_kernel(file, &path.display().to_string());
    }
    let run = reader.run();
    let mut replay = Replay::new(run.streams);
    let only = Only {
        tasks: tasks.as_ref(),
        processor: args.processor,
    };
    let mut report = Report {
        symbols,
        format: format(shown, args.sched, run),
        out: Vec::new(),
        output,
    };
    report
        .output
        .truncate()
        .map_err(OutputError::into_failure)?;
    report
        .show(&mut reader, range, &mut replay, only, shown == Shown::Raw)
        .map_err(|error| match error.downcast::<OutputError>() {
            Ok(error) => error.into_failure(),
            Err(error) => error.context(format!("Cannot read {name}")).into(),
        })?;
    report.say_problems();
    Ok(())
}

/// A sink that formats and writes.
struct Report {
    symbols: Symbolizer,
    format: Box<dyn Format>,
    /// Formatted bytes that are not written yet.
    out: Vec<u8>,
    output: Output,
}

impl Report {
    /// Shows branches `range` of the trace that are of `only`, and what happens between them. If
    /// `one_task`, refuses branches of a second task.
    fn show(
        &mut self,
        reader: &mut Reader<BufReader<File>>,
        range: std::ops::Range<u64>,
        replay: &mut Replay,
        only: Only<'_>,
        one_task: bool,
    ) -> anyhow::Result<()> {
        let mut skipped = Ok(());
        reader.events_before(range.start, |task, event| {
            if skipped.is_ok() {
                skipped = replay.skip(task, event, self);
            }
        })?;
        skipped?;
        reader.seek(range.start)?;
        let whole = range.end == reader.records();
        let mut left = range.end.saturating_sub(range.start);
        let mut first_task = None;
        while left > 0 || whole {
            let item = match reader.next_item()? {
                None => break,
                Some(Item::Branches { task, branches }) => {
                    if one_task
                        && only == Only::default()
                        && *first_task.get_or_insert(task) != task
                    {
                        return Err(anyhow!(replay.several()));
                    }
                    let count = branches
                        .len()
                        .min(usize::try_from(left).unwrap_or(usize::MAX));
                    left -= count as u64;
                    let branches = branches.get(..count).unwrap_or_default();
                    Item::Branches { task, branches }
                }
                Some(item) => item,
            };
            replay.give(item, only, self)?;
        }
        if let Some(summary) = reader.summary() {
            let summary = Summary {
                unnamed: self.symbols.unnamed(),
                ..replay.summary(summary)?
            };
            self.format.summary(&summary, &mut self.out);
        }
        self.write()
    }

    /// Says which names the report lacks.
    fn say_problems(&self) {
        let (changed, replaced) = (
            "changed after the trace, so that its names can be wrong",
            "is not the file that was traced, by its build ID: it has no names",
        );
        say_file_problems("", self.symbols.mapped(), changed, replaced);
        say_unnamed("", self.symbols.readable_unnamed());
    }

    fn write(&mut self) -> anyhow::Result<()> {
        self.output.write_units(&self.out, self.format.unit())?;
        self.out.clear();
        Ok(())
    }

    /// Writes what is formatted, if it is much.
    fn write_if_full(&mut self) -> anyhow::Result<()> {
        match self.out.len() {
            FULL.. => self.write(),
            _ => Ok(()),
        }
    }
}

impl Sink for Report {
    type Error = anyhow::Error;

    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> anyhow::Result<()> {
        let mut rest = branches;
        while !rest.is_empty() {
            let (symbols, out) = (&mut self.symbols, &mut self.out);
            let count = self.format.branches(task, rest, symbols, out);
            rest = rest.get(count..).unwrap_or_default();
            self.write_if_full()?;
        }
        Ok(())
    }

    fn event(&mut self, task: &Task, event: &Event) -> anyhow::Result<()> {
        self.symbols.event(event);
        self.format.event(task, event, &mut self.out);
        self.write_if_full()
    }
}

fn format(shown: Shown, sched: bool, run: &Run) -> Box<dyn Format> {
    let sched = sched || run.sched;
    let accel = match run.accel.as_str() {
        "kvm" => Accel::Kvm,
        _ => Accel::Soft,
    };
    let of_machine = run.streams == Streams::Processors;
    match shown {
        Shown::Text if of_machine => Box::new(Text::new(sched).of_machine()),
        Shown::Text => Box::new(Text::new(sched)),
        Shown::Raw => Box::new(Raw),
        Shown::Json if of_machine => Box::new(Json::new(accel, sched).of_machine()),
        Shown::Json => Box::new(Json::new(accel, sched)),
    }
}
