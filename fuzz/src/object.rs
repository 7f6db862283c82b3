//! ELF files whose symbols are read, in memory of the host.

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};
use vbts_symbols::reader::budget::Budget;
use vbts_symbols::reader::object_file::ObjectFile;

/// Maximum length of a label's part in bytes: a name of 4 KiB, an ellipsis and a suffix.
const MAX_PART: usize = 4096 + 8;
/// Size in bytes of the code whose inlined calls are looked up.
const INLINED: u64 = 256;

/// A file that has no name.
///
/// # Panics
/// The host has no descriptor left.
pub fn unnamed_file() -> File {
    memfd_create("object", MemfdFlags::CLOEXEC)
        .expect("a descriptor")
        .into()
}

/// Reads `file` as the process that reads symbols does. `None` if it is refused.
pub fn read(file: &File, debug_file: Option<&File>) -> Option<ObjectFile> {
    let mut budget = Budget::default();
    let (mut object, _) = ObjectFile::open(file, &mut budget).ok()?;
    if let Some(debug_file) = debug_file {
        // A debug file that is none adds nothing.
        let _ = object.add_debug_file(debug_file, &mut budget);
    }
    object.finish();
    // Lines that are malformed leave the functions as they are.
    let files = debug_file.into_iter().chain([file]);
    let copies = files.map(|file| file.try_clone().expect("a descriptor"));
    let _ = object.read_lines(copies, &mut budget);
    Some(object)
}

/// Looks up what is at `address`, and checks the sizes of what is found.
///
/// # Panics
/// A name or a path is too long.
pub fn look_up(object: &ObjectFile, address: u64) {
    if let Some((name, _)) = object.function(address) {
        assert!(name.len() <= MAX_PART, "{} bytes", name.len());
    }
    if let Some((path, line)) = object.line(address) {
        assert!(path.len() <= MAX_PART && line != 0, "{line}, {path}");
    }
    let end = address.saturating_add(INLINED);
    object.inlined(true, address..end, &mut |inlined| {
        let is_inside =
            |(start, after): &(u64, u64)| address <= *start && start < after && *after <= end;
        assert!(inlined.code.iter().all(is_inside), "{inlined:x?}");
        assert!(
            inlined.name.len() <= MAX_PART,
            "{} bytes",
            inlined.name.len()
        );
        true
    });
}
