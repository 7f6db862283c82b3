//! The files of a report. They are opened before the process is confined, and read afterwards.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::Context as _;
use vbts_trace::{Reader, Run};

use super::report::ReportArgs;
use super::trace::{OWN_PROGRAM, elf_file};
use crate::answers::CodeFiles;
use crate::config::SandboxMode;
use crate::exit::{Failure, say};
use crate::guest_files::{self, Api};
use crate::root::Root;
use crate::trace::symbols::FileSymbols;

/// A trace that is open.
pub struct TraceFile {
    file: File,
    name: String,
    traced: SystemTime,
}

impl TraceFile {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("Cannot open {name}"))?;
        let traced = file.metadata().and_then(|metadata| metadata.modified());
        Ok(Self {
            file,
            name,
            traced: traced.unwrap_or_else(|_| SystemTime::now()),
        })
    }

    /// Begins to read it.
    ///
    /// # Errors
    /// It is no trace, or cannot be read.
    pub fn read(self) -> Result<Trace, Failure> {
        let reader = Reader::new(BufReader::new(self.file));
        Ok(Trace {
            reader: reader.with_context(|| format!("Cannot read {}", self.name))?,
            name: self.name,
        })
    }
}

/// A trace.
pub struct Trace {
    /// The trace.
    pub reader: Reader<BufReader<File>>,
    /// Its path.
    pub name: String,
}

impl Trace {
    /// Says so if the trace has no end.
    pub fn say_if_cut(&self) {
        if self.reader.summary().is_none() {
            say(format_args!(
                "{} has no end: its run was cut or is not over. {} branches are complete",
                self.name,
                self.reader.records()
            ));
        }
    }
}

/// The guest's kernel, as far as the command line says which one it is.
pub struct Kernel {
    is_given: bool,
    path: Result<PathBuf, Failure>,
    file: Option<File>,
}

impl Kernel {
    /// Opens the kernel of `args`, or the default one.
    pub fn find(args: &ReportArgs) -> Self {
        let path = guest_files::kernel(args.kernel.as_deref(), Api::New);
        Self {
            is_given: args.kernel.is_some(),
            file: path.as_deref().ok().and_then(elf_file),
            path,
        }
    }

    /// The path of the kernel of `run`, and its file if that is ELF.
    ///
    /// # Errors
    /// There is none.
    pub fn of(self, run: &Run) -> Result<(PathBuf, Option<File>), Failure> {
        match &run.kernel {
            Some(recorded) if !self.is_given => {
                let recorded = PathBuf::from(recorded);
                let is_open = self.path.as_ref().is_ok_and(|path| *path == recorded);
                let file = match is_open {
                    true => self.file,
                    false => elf_file(&recorded),
                };
                Ok((recorded, file))
            }
            _ => Ok((self.path?, self.file)),
        }
    }
}

/// Opens the directory of the traced files.
///
/// # Errors
/// It cannot be opened.
pub fn open_root(args: &ReportArgs) -> Result<Root, Failure> {
    let root = Root::open(&args.root);
    Ok(root.with_context(|| format!("--root: cannot open {}", args.root.display()))?)
}

/// A trace whose code is read, too.
pub struct Source {
    trace: TraceFile,
    kernel: Kernel,
    root: Root,
    symbols: FileSymbols,
}

impl Source {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// It cannot be opened, or the host starts no process that reads symbols.
    pub fn open(args: &ReportArgs, path: &Path) -> Result<Self, Failure> {
        let confined = args.sandbox != SandboxMode::Off;
        let symbols = FileSymbols::new(open_root(args)?, &mut Command::new(OWN_PROGRAM), confined);
        Ok(Self {
            trace: TraceFile::open(path)?,
            kernel: Kernel::find(args),
            root: open_root(args)?,
            symbols: symbols.context("Cannot start the process that reads symbols")?,
        })
    }

    /// Begins to read it. Returns the traced files, too.
    ///
    /// # Errors
    /// It is no trace, or there is no kernel.
    pub fn read(self) -> Result<(Trace, CodeFiles), Failure> {
        let traced = self.trace.traced;
        let trace = self.trace.read()?;
        let run = trace.reader.run();
        let directory = run.directory.clone().into();
        let mut files = CodeFiles::new(self.root, self.symbols, directory, traced);
        if run.scope != "user" {
            match self.kernel.of(run)? {
                (path, Some(file)) => files.set_kernel(file, &path.display().to_string()),
                (path, None) => say(format_args!(
                    "{} has no symbols and no code that can be read: \
                     the kernel's branches are counted, but not its instructions",
                    path.display()
                )),
            }
        }
        trace.say_if_cut();
        Ok((trace, files))
    }
}
