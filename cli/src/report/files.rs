//! The files of a report. They are opened before the process is confined, and read afterwards.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use vbts_protocol::Scope;
use vbts_trace::{Event, Reader};

use super::ReportArgs;
use super::kernel::{Kernel, NO_KERNEL_NAMES};
use super::process::temporary_file;
use super::tasks::TaskPattern;
use crate::own_program;
use vbts_analysis::{CodeFiles, MemoryCode};
use vbts_capture::kept::extract::{self, ExtractError};
use vbts_capture::{FilterNote, Filters};
use vbts_host::exit::{Failure, say};
use vbts_host::root::Root;
use vbts_symbols::{FileSymbols, MappedFiles, Problem, Symbolizer, Unnamed};
use vbts_vmm::config::SandboxMode;

/// Number of files that a message names.
const NAMED: usize = 4;

/// A trace that is open.
pub(super) struct TraceFile {
    file: File,
    name: String,
    traced: SystemTime,
    filter: Option<Filter>,
    tasks: Option<TaskPattern>,
}

/// What filters a trace.
struct Filter {
    args: ReportArgs,
    symbols: Symbolizer,
    kernel: Kernel,
    /// Gets what the filter leaves.
    to: File,
}

impl Filter {
    /// Opens what the filters of `args` need, if there are some.
    fn open(args: &ReportArgs) -> Result<Option<Self>, Failure> {
        let filters = Filters::from(&args.filters);
        if !filters.choose() && filters.last.is_none() {
            return Ok(None);
        }
        let mut symbols = Symbolizer::new(open_root(args)?, Path::new("/"));
        if filters.have_names() {
            let vbts = &mut own_program();
            let started = symbols.start_reader(vbts, args.sandbox != SandboxMode::Off);
            started.context("Cannot start the process that reads symbols")?;
        }
        Ok(Some(Self {
            args: args.clone(),
            symbols,
            kernel: Kernel::find(args)?,
            to: temporary_file().context("Cannot create a temporary file")?,
        }))
    }

    /// The part of a trace that they leave, as a trace of its own, with notes for the user.
    fn apply(
        self,
        reader: &mut Reader<BufReader<File>>,
        traced: SystemTime,
    ) -> Result<(Reader<BufReader<File>>, Vec<FilterNote>), Failure> {
        let Self {
            args,
            mut symbols,
            kernel,
            to,
        } = self;
        let (run, filters) = (reader.run(), Filters::from(&args.filters));
        let scope = extract::scope(&run.scope);
        filters.check(scope)?;
        symbols.set_directory(Path::new(&run.directory));
        if scope != Scope::User
            && filters.have_names()
            && let Some((path, file)) = kernel.of(reader, NO_KERNEL_NAMES)?
        {
            symbols.set_kernel(file, &path.display().to_string());
        }
        if filters.have_names() {
            name_files(&mut symbols, reader, traced).map_err(anyhow::Error::from)?;
        }
        let range = args.range(reader).map_err(ExtractError::from);
        let notes = range.and_then(|range| extract::write(reader, range, filters, symbols, &to));
        let notes = notes.map_err(anyhow::Error::from)?;
        let reader = Reader::new(BufReader::new(to)).map_err(anyhow::Error::from)?;
        Ok((reader, notes))
    }
}

impl TraceFile {
    /// Opens the trace at `path`, and what the filters of `args` need.
    ///
    /// # Errors
    /// It cannot be opened, or the host starts no process that reads symbols.
    pub(super) fn open(args: &ReportArgs, path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("Cannot open {name}"))?;
        let traced = file.metadata().and_then(|metadata| metadata.modified());
        Ok(Self {
            file,
            name,
            traced: traced.unwrap_or_else(|_| SystemTime::now()),
            filter: Filter::open(args)?,
            tasks: args.task.clone(),
        })
    }

    /// Begins to read it. Says so if it has no end. Filters it, if there are filters.
    ///
    /// # Errors
    /// It is no trace, or cannot be read, or filtered.
    pub(super) fn read(self) -> Result<Trace, Failure> {
        let cannot_read = || format!("Cannot read {}", self.name);
        let reader = Reader::new(BufReader::new(self.file)).with_context(cannot_read);
        let mut reader = reader?;
        if reader.summary().is_none() {
            say(format_args!(
                "{} has no end: its run was cut or is not over. {} branches are complete",
                self.name,
                reader.records()
            ));
        }
        let is_filtered = self.filter.is_some();
        if let Some(filter) = self.filter {
            let (part, notes) = match filter.apply(&mut reader, self.traced) {
                Err(Failure::Error(error)) => return Err(error.context(cannot_read()).into()),
                applied => applied?,
            };
            // A file without names may be why a name is unknown.
            let (errors, others): (Vec<_>, Vec<_>) =
                notes.into_iter().partition(|note| note.is_error);
            others.into_iter().for_each(|note| say(note.text));
            if let Some(error) = errors.into_iter().next() {
                return Err(anyhow!(error.text).into());
            }
            reader = part;
        }
        let tasks = self
            .tasks
            .map(|tasks| tasks.find(&mut reader))
            .transpose()?;
        Ok(Trace {
            reader,
            tasks,
            is_filtered,
            traced: self.traced,
            name: self.name,
        })
    }
}

/// A trace.
pub(super) struct Trace {
    /// The trace.
    pub reader: Reader<BufReader<File>>,
    /// The thread IDs of the tasks that are wanted, if not all are.
    pub tasks: Option<BTreeSet<u32>>,
    /// It has only what the filters have left.
    is_filtered: bool,
    /// When it was written.
    pub traced: SystemTime,
    /// Its path.
    pub name: String,
}

impl Trace {
    /// The numbers of the branches that `args` select.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub(super) fn range(&mut self, args: &ReportArgs) -> Result<Range<u64>, Failure> {
        if self.is_filtered {
            return Ok(0..self.reader.records());
        }
        let records = self.reader.records();
        if let Some(from) = args.from
            && from > records
        {
            let name = &self.name;
            return Err(anyhow!("--from {from}: {name} has {records} branches").into());
        }
        let range = args.range(&mut self.reader);
        Ok(range.with_context(|| format!("Cannot read {}", self.name))?)
    }
}

/// Opens the directory of the traced files.
///
/// # Errors
/// It cannot be opened.
pub(super) fn open_root(args: &ReportArgs) -> Result<Root, Failure> {
    let root = Root::open(&args.root);
    Ok(root.with_context(|| format!("--root: cannot open {}", args.root.display()))?)
}

/// A trace whose code is read, too.
pub(super) struct Source {
    trace: TraceFile,
    kernel: Kernel,
    symbols: FileSymbols,
    memory: MemoryCode,
}

impl Source {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// It cannot be opened, or the host starts no process that reads symbols.
    pub(super) fn open(args: &ReportArgs, path: &Path) -> Result<Self, Failure> {
        let confined = args.sandbox != SandboxMode::Off;
        let symbols = FileSymbols::new(open_root(args)?, &mut own_program(), confined);
        Ok(Self {
            trace: TraceFile::open(args, path)?,
            kernel: Kernel::find(args)?,
            symbols: symbols.context("Cannot start the process that reads symbols")?,
            memory: MemoryCode::new().context("Cannot make a file in memory")?,
        })
    }

    /// Begins to read it. Returns the traced files, too.
    ///
    /// # Errors
    /// It is no trace, or there is no kernel.
    pub(super) fn read(self) -> Result<(Trace, CodeFiles), Failure> {
        let traced = self.trace.traced;
        let mut trace = self.trace.read()?;
        let run = trace.reader.run();
        let directory = run.directory.clone().into();
        let mut files = CodeFiles::new(self.symbols, self.memory, directory, traced);
        if run.scope != "user"
            && let Some((path, file)) = self.kernel.of(
                &mut trace.reader,
                "the kernel's branches are counted, but not its instructions",
            )?
        {
            files.set_kernel(file, &path.display().to_string());
        }
        Ok((trace, files))
    }
}

/// Says which of the mapped files could not be used. Each message begins with `of`. The texts are
/// for a file that has changed since the trace, and for another one.
pub(super) fn say_file_problems(of: &str, files: &MappedFiles, changed: &str, replaced: &str) {
    for (problem, message) in [
        (Problem::Changed, changed),
        (Problem::Replaced, replaced),
        (
            Problem::Missing,
            "cannot be opened; --root DIR says where the traced files are",
        ),
    ] {
        say_files(of, files.problems().with(problem), message);
    }
}

/// Says what is true of some files, and names the first of them. Each message begins with `of`.
pub(super) fn say_files<'a>(of: &str, names: impl Iterator<Item = &'a str>, message: &str) {
    let names: Vec<&str> = names.collect();
    let more = names.len().saturating_sub(NAMED);
    for name in names.iter().take(NAMED) {
        say(format_args!("{of}{name} {message}"));
    }
    if more > 0 {
        say(format_args!("{of}{more} more files: the same"));
    }
}

/// Says for which files names are missing. The message begins with `of`.
pub(super) fn say_unnamed(of: &str, unnamed: &Unnamed) {
    if !unnamed.is_empty() {
        say(format_args!("{of}names are missing of {unnamed}"));
    }
}

/// Tells `symbols` when its files were traced, and which they were. That is at the end of a trace,
/// and the first branches need it.
///
/// # Errors
/// The trace cannot be read, or is damaged.
pub(super) fn name_files(
    symbols: &mut Symbolizer,
    reader: &mut Reader<BufReader<File>>,
    traced: SystemTime,
) -> Result<(), vbts_trace::Error> {
    let files = symbols.mapped_mut();
    files.set_traced(traced);
    reader.events_before(u64::MAX, |_, event| {
        if let Event::BuildId { id, name } = event {
            files.add_build_id(&name, id);
        }
    })
}
