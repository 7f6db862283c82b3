//! The file of the guest's kernel, for gdb: names, lines and types.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use vbts_host::exit::Failure;

use super::DebugArgs;
use crate::recording::OldRecording;
use crate::trace::TraceDirectory;

/// The name of a copy in the temporary directory.
const COPY: &str = "vmlinux";

/// What gdb is told of the kernel's view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelView {
    /// The file of the kernel; `None` if it is compressed and has no symbols.
    pub symbols: Option<PathBuf>,
}

impl KernelView {
    /// The kernel's view of `recording`, if that is what `args` debug.
    ///
    /// # Errors
    /// The kernel cannot be copied to `directory`.
    pub(super) fn of(
        args: &DebugArgs,
        recording: &OldRecording,
        directory: &TraceDirectory,
    ) -> Result<Option<Self>, Failure> {
        if !args.is_kernel_view(recording.facts.is_machine)? {
            return Ok(None);
        }
        let image = recording.kernel.image();
        if !is_elf(image) {
            return Ok(Some(Self { symbols: None }));
        }
        // Beside the file may be what it refers to, such as gdb's scripts of the kernel.
        let original = recording.kernel.path();
        let is_name = !original.to_string_lossy().contains(char::is_control);
        let is_same = is_name && fs::read(original).is_ok_and(|contents| contents == image);
        let symbols = match is_same {
            true => original.to_path_buf(),
            false => {
                let copy = directory.file(COPY);
                fs::write(&copy, image).context("Cannot write a copy of the kernel for gdb")?;
                copy
            }
        };
        Ok(Some(Self {
            symbols: Some(symbols),
        }))
    }

    /// The commands of gdb for it, before it is connected.
    pub(super) fn commands(&self) -> String {
        let mut commands =
            String::from("# The kernel patches its code.\nset trust-readonly-sections off\n");
        if let Some(symbols) = &self.symbols {
            commands += &format!("file {}\n", escaped(symbols));
        }
        commands
    }

    /// The commands when it is connected: the replay makes a file of the symbols that a compressed
    /// kernel has in its memory.
    pub(super) fn commands_after(&self) -> &'static str {
        match self.symbols {
            Some(_) => "",
            None => "symbol-file target:/kernel\nframe\n",
        }
    }
}

/// Returns whether the kernel is a vmlinux, which runs at the addresses of its symbols: what
/// relocates a kernel is the code that decompresses it.
fn is_elf(image: &[u8]) -> bool {
    image.starts_with(b"\x7fELF")
}

/// A path as an argument of a command of gdb.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for character in path.display().to_string().chars() {
        if " \t\"'\\".contains(character) {
            text.push('\\');
        }
        text.push(character);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gdb_reads_a_path_with_spaces() {
        let view = KernelView {
            symbols: Some("/a b/vm'linux".into()),
        };
        assert!(view.commands().contains("file /a\\ b/vm\\'linux\n"));
        let none = KernelView { symbols: None };
        assert!(!none.commands().contains("file"));
    }
}
