//! The kernel of a trace, for the names and the instructions of its branches.

use std::fs::File;
use std::path::PathBuf;

use vbts_trace::Run;

use super::ReportArgs;
use crate::kernel_file;
use vbts_guest_files::arch::Arch;
use vbts_guest_files::{self, Api};
use vbts_host::exit::{Failure, say};
use vbts_symbols::elf::build_id;
use vbts_symbols::elf::digits;

/// What follows if there is no kernel for the names of a trace.
pub(super) const NO_KERNEL_NAMES: &str = "the kernel's addresses have no names";

/// The guest's kernel, as far as the command line says which one it is.
pub(super) struct Kernel {
    is_given: bool,
    path: Result<PathBuf, Failure>,
    /// The file at `path`, if that is ELF.
    file: Option<File>,
}

impl Kernel {
    /// Opens the kernel of `args`, or the default one.
    pub(super) fn find(args: &ReportArgs) -> Self {
        let path = vbts_guest_files::kernel(args.kernel.as_deref(), Api::New, Arch::X86_64);
        Self {
            is_given: args.kernel.is_some(),
            file: path.as_deref().ok().and_then(kernel_file::with_symbols),
            path,
        }
    }

    /// The kernel that was traced in `run`, and its path. If none can be used, a message says why,
    /// and what follows from that.
    ///
    /// # Errors
    /// There is no kernel.
    pub(super) fn of(
        self,
        run: &Run,
        what_follows: &str,
    ) -> Result<Option<(PathBuf, File)>, Failure> {
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
        for path in candidates(run, self.is_given, self.path)? {
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
                "{} has no symbols: {what_follows}; an uncompressed vmlinux has symbols",
                path.display()
            ));
        }
        Ok(None)
    }
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
