//! The guest kernel's file: its symbols, and its identity in a kept trace.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use vbts_host::whole_file;
use vbts_symbols::elf;
use vbts_trace::Run;
use vbts_vmm::launch::KernelFiles;

/// Opens the kernel at `path` if it is an ELF file, which can have symbols. A bzImage has none.
pub(crate) fn with_symbols(path: &Path) -> Option<File> {
    let file = whole_file::open(path).ok()?;
    let mut magic = [0; 4];
    (file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF").then_some(file)
}

/// Records in `run` which kernel is booted.
pub(crate) fn identify(kernel: &KernelFiles, run: &mut Run) {
    let path = std::path::absolute(kernel.path()).unwrap_or_else(|_| kernel.path().to_owned());
    run.kernel = Some(path.display().to_string());
    run.kernel_build_id = elf::build_id_of(kernel.image()).map(elf::digits);
}
