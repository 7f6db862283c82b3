//! The directory of the user's cache that is for `vbts`.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// Its name in the directory of the user for caches.
const NAME: &str = "vbts";

/// The directory, or the one at `below` in it, which exists and is for the user alone: a trace
/// tells what a program did. `None` if the user has no directory for caches.
pub(crate) fn directory(below: &str) -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let cache = cache.or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    let directory = cache.join(NAME).join(below);
    let created = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory);
    created.is_ok().then_some(directory)
}
