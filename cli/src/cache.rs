//! The directory of the user's cache that is for `vbts`.

use std::fs::{self, DirBuilder, File, FileTimes};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Its name in the directory of the user for caches.
const NAME: &str = "vbts";

/// The directory, or the one at `below` in it, which exists and is for the user alone: its
/// files tell what a program did. `None` if the user has no directory for caches.
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

/// Notes that a file of the cache is used now.
///
/// # Errors
/// The host refuses.
pub(crate) fn note_use(file: &File) -> io::Result<()> {
    file.set_times(FileTimes::new().set_accessed(SystemTime::now()))
}

/// Removes the files of `directory` that were not used for the longest time, until those that are
/// left have at most `limit` bytes, but not `newest`.
pub(crate) fn shrink(directory: &Path, newest: &Path, limit: u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut kept: Vec<_> = entries
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((metadata.accessed().ok()?, metadata.len(), entry.path()))
        })
        .filter(|(.., path)| path != newest)
        .collect();
    kept.sort();
    let mut size: u64 = kept.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in kept {
        if size <= limit {
            return;
        }
        size -= len;
        // Another process may have removed it.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_files_that_were_not_used_for_longest_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (name, age) in [("old", 30), ("used", 10), ("older", 40), ("newest", 50)] {
            let mut file = File::create(path(name)).unwrap();
            std::io::Write::write_all(&mut file, &[0; 100]).unwrap();
            let used = SystemTime::now() - Duration::from_secs(age);
            file.set_times(FileTimes::new().set_accessed(used)).unwrap();
        }
        shrink(directory.path(), &path("newest"), 150);
        let left = ["old", "used", "older", "newest"].map(|name| path(name).exists());
        assert_eq!(left, [false, true, false, true]);
    }
}
