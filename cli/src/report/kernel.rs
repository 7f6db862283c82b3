//! The kernel of a trace, for the names and the instructions of its branches.

use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{MemfdFlags, memfd_create};
use vbts_trace::{Event, Reader, Run};

use super::ReportArgs;
use crate::kernel_file;
use vbts_guest_files::arch::Arch;
use vbts_guest_files::{self, Api};
use vbts_host::exit::{Failure, say};
use vbts_symbols::elf::{build_id, digits};
use vbts_symbols::system_map;

/// Size in bytes of a kernel's file in a trace, at most.
const MAX_FILE: u64 = 256 << 20;

/// What follows if there is no kernel for the names of a trace.
pub(super) const NO_KERNEL_NAMES: &str = "the kernel's addresses have no names";

/// The guest's kernel, as far as the command line says which one it is.
pub(super) struct Kernel {
    is_given: bool,
    path: Result<PathBuf, Failure>,
    /// The file at `path`, if that is ELF.
    file: Option<File>,
    /// The path of a list of symbols, and an ELF file that is made of it.
    system_map: Option<(PathBuf, File)>,
    /// Gets the file of the kernel that the trace has.
    from_trace: File,
}

impl Kernel {
    /// Opens the kernel of `args`, or the default one.
    ///
    /// # Errors
    /// The list of symbols cannot be read, or the host makes no file in memory.
    pub(super) fn find(args: &ReportArgs) -> Result<Self, Failure> {
        let path = vbts_guest_files::kernel(args.kernel.as_deref(), Api::New, Arch::X86_64);
        let system_map = args.system_map.as_deref().map(read_system_map);
        Ok(Self {
            is_given: args.kernel.is_some(),
            file: path.as_deref().ok().and_then(kernel_file::with_symbols),
            path,
            system_map: system_map.transpose()?,
            from_trace: memory_file()?,
        })
    }

    /// The kernel that was traced, and its path. If none can be used, a message says why, and what
    /// follows from that.
    ///
    /// # Errors
    /// There is no kernel, or the trace is damaged.
    pub(super) fn of(
        mut self,
        reader: &mut Reader<BufReader<File>>,
        what_follows: &str,
    ) -> Result<Option<(PathBuf, File)>, Failure> {
        if self.system_map.is_some() {
            return Ok(self.system_map);
        }
        if !self.is_given && copy_kernel(reader, &self.from_trace)? {
            let path = reader.run().kernel.clone().unwrap_or_default();
            return Ok(Some((path.into(), self.from_trace)));
        }
        let run = reader.run();
        let own = self.path.as_ref().ok().cloned();
        // It may be outside of what this process can open by now.
        let open = |path: &PathBuf| match &self.file {
            Some(file) if own.as_ref() == Some(path) => file.try_clone().ok(),
            _ => kernel_file::with_symbols(path),
        };
        let traced = run.kernel_build_id.as_deref();
        let is_traced = |file: &File| {
            traced.is_none_or(|traced| build_id(file).is_some_and(|id| digits(&id) == traced))
        };
        let (mut without_symbols, mut other) = (None, None);
        let path = std::mem::replace(&mut self.path, Ok(PathBuf::new()));
        for path in candidates(run, self.is_given, path)? {
            match open(&path) {
                Some(file) if is_traced(&file) => return Ok(Some((path, file))),
                Some(_) => other.get_or_insert(path),
                None => without_symbols.get_or_insert(path),
            };
        }
        if let Some(path) = other {
            say(format_args!(
                "{} is not the kernel that was traced, by its build ID: {what_follows}; \
                 --kernel FILE names that kernel",
                path.display()
            ));
        } else if let Some(path) = without_symbols {
            say(format_args!(
                "{} has no symbols: {what_follows}; an uncompressed vmlinux has symbols, and \
                 --system-map FILE names the kernel's functions",
                path.display()
            ));
        }
        Ok(None)
    }
}

/// A file in memory.
fn memory_file() -> anyhow::Result<File> {
    let file = memfd_create("vbts-kernel", MemfdFlags::CLOEXEC);
    Ok(file.context("Cannot make a file in memory")?.into())
}

/// Reads a list of symbols. Returns its path, too.
fn read_system_map(path: &Path) -> Result<(PathBuf, File), Failure> {
    let read = || -> anyhow::Result<File> {
        let image = system_map::parse(&std::fs::read(path)?)?;
        let mut file = memory_file()?;
        file.write_all(&image.to_elf()?)?;
        Ok(file)
    };
    let file = read().with_context(|| format!("--system-map {}", path.display()))?;
    Ok((path.to_owned(), file))
}

/// Copies the kernel's file that a trace has, if it has one, to the file `to`.
///
/// # Errors
/// The trace is damaged, or there is not enough memory.
fn copy_kernel(reader: &mut Reader<BufReader<File>>, mut to: &File) -> Result<bool, Failure> {
    let mut copied = Ok(0);
    let read = reader.events_before(u64::MAX, |_, event| {
        // The pieces are in order.
        if let (Event::KernelFile { at, bytes }, &Ok(end)) = (event, &copied)
            && at == end
            && end < MAX_FILE
        {
            copied = to.write_all(&bytes).map(|()| end + bytes.len() as u64);
        }
    });
    read.context("Cannot read the trace")?;
    Ok(copied.context("Cannot copy the kernel of the trace")? > 0)
}

/// The paths at which the kernel of `run` may be: `own` if it `is_given`, else that is the default.
fn candidates(
    run: &Run,
    is_given: bool,
    own: Result<PathBuf, Failure>,
) -> Result<Vec<PathBuf>, Failure> {
    let recorded = run.kernel.as_ref().filter(|_| !is_given);
    let default = match arch(run) {
        Arch::I386 if !is_given => vbts_guest_files::kernel(None, Api::New, Arch::I386),
        _ => own,
    };
    Ok(match (recorded.map(PathBuf::from), default) {
        // The trace can be that of another machine, and the kernel of this one the same.
        (Some(recorded), Ok(default)) if run.kernel_build_id.is_some() => vec![recorded, default],
        (Some(recorded), _) => vec![recorded],
        (None, default) => vec![default?],
    })
}

/// The architecture of the default kernel on the processor of `run`.
fn arch(run: &Run) -> Arch {
    let model = run.other.get("cpu").and_then(|name| name.as_str());
    let model = model.and_then(vbts_cpu::model);
    model.map_or(Arch::X86_64, Arch::of_model)
}
