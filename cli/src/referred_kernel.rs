//! The guest kernel of a recording that has its hash in place of its contents
//! (`vbts record --refer-kernel`).

use std::path::Path;

use vbts_guest_files::arch::Arch;
use vbts_guest_files::{Api, kernel};
use vbts_host::exit::Failure;
use vbts_host::whole_file;
use vbts_symbols::elf::digits;

use crate::sha256::of_parts;

/// The hash of a kernel for a recording.
pub(crate) fn hash(image: &[u8]) -> String {
    digits(&of_parts(&[image]))
}

/// Finds the kernel with this `hash`: the one that `$VBTS_KERNEL` names or that is installed, or
/// the file `recorded`, which was the kernel's.
///
/// # Errors
/// None of them has the hash.
pub(crate) fn find(hash: &str, recorded: &Path, is_32_bit: bool) -> Result<Vec<u8>, Failure> {
    let arch = match is_32_bit {
        true => Arch::I386,
        false => Arch::X86_64,
    };
    let installed = kernel(None, Api::New, arch).ok();
    let mut candidates = installed.as_deref().into_iter().chain([recorded]);
    let found = candidates.find_map(|path| {
        let image = whole_file::read(path).ok()?;
        (self::hash(&image) == hash).then_some(image)
    });
    found.ok_or_else(|| {
        Failure::Host(format!(
            "the recording refers to its guest kernel, which is not on this host: {}, SHA-256 \
             {hash}; VBTS_KERNEL=FILE names it",
            recorded.display()
        ))
    })
}
