//! Separate debug files, which are found by build ID: those of distributions, and those that
//! debuginfod's client has fetched before. Nothing is fetched.

use std::env;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::elf::digits;
use vbts_host::root::Root;

/// Directory of the debug files of distributions, in the guest.
const DISTRIBUTION: &str = "/usr/lib/debug/.build-id";

/// Where separate debug files are.
#[derive(Debug)]
pub struct DebugFiles {
    /// The cache of debuginfod's client, on this machine.
    cache: Option<Root>,
}

/// The cache of debuginfod's client on this machine.
pub fn debuginfod_cache() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let variables = ["DEBUGINFOD_CACHE_PATH", "XDG_CACHE_HOME", "HOME"].map(set);
    let variables = variables.map(|value| value.map(PathBuf::from));
    let mut places = cache_places(variables).into_iter();
    places.find(|place| place.is_dir())
}

impl DebugFiles {
    /// The places on this machine.
    pub fn of_environment() -> Self {
        let cache = debuginfod_cache().and_then(|cache| Root::open(&cache).ok());
        Self { cache }
    }

    /// Opens the debug file of a file with this build ID in the guest with this root, if there is
    /// one.
    ///
    /// # Errors
    /// There is one, and it cannot be opened.
    pub fn open(&self, root: &Root, build_id: &[u8]) -> io::Result<Option<File>> {
        let Some((first, rest)) = build_id.split_at_checked(1) else {
            return Ok(None);
        };
        let (first, rest) = (digits(first), digits(rest));
        let name = format!("{DISTRIBUTION}/{first}/{rest}.debug");
        let file = if_there(root.open_file(Path::new(&name)))?;
        let (None, Some(cache)) = (&file, &self.cache) else {
            return Ok(file);
        };
        let name = format!("/{first}{rest}/debuginfo");
        let Some(file) = if_there(cache.open_file(Path::new(&name)))? else {
            return Ok(None);
        };
        Ok(file.metadata()?.is_file().then_some(file))
    }
}

/// A file, or nothing if there is none, or none for this process.
fn if_there(file: io::Result<File>) -> io::Result<Option<File>> {
    match file {
        Ok(file) => Ok(Some(file)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// The directories of the cache, of which the first that exists is used (debuginfod-find(1)):
/// with these values of DEBUGINFOD_CACHE_PATH, XDG_CACHE_HOME and HOME.
fn cache_places([path, cache, home]: [Option<PathBuf>; 3]) -> Vec<PathBuf> {
    if let Some(path) = path {
        return vec![path];
    }
    let old = home
        .as_ref()
        .map(|home| home.join(".debuginfod_client_cache"));
    let cache = cache.or_else(|| Some(home?.join(".cache")));
    let new = cache.map(|cache| cache.join("debuginfod_client"));
    old.into_iter().chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_its_client_looks_for_it() {
        let places = |values: [&str; 3]| {
            let value = |value: &str| (!value.is_empty()).then(|| PathBuf::from(value));
            cache_places(values.map(value))
        };
        assert_eq!(places(["/c", "/x", "/h"]), [Path::new("/c")]);
        let old = Path::new("/h/.debuginfod_client_cache");
        assert_eq!(
            places(["", "/x", "/h"]),
            [old, Path::new("/x/debuginfod_client")]
        );
        let new = Path::new("/h/.cache/debuginfod_client");
        assert_eq!(places(["", "", "/h"]), [old, new]);
        assert!(places(["", "", ""]).is_empty());
    }

    #[test]
    fn a_file_of_the_distribution_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let root = Root::open(at).unwrap();
        let files = DebugFiles {
            cache: Root::open(at).ok(),
        };
        let found = |text: &str| {
            let mut file = files.open(&root, &[0xAB, 0, 0x1C]).unwrap().unwrap();
            let mut read = String::new();
            std::io::Read::read_to_string(&mut file, &mut read).unwrap();
            assert_eq!(read, text);
        };
        assert!(files.open(&root, &[0xAB, 0, 0x1C]).unwrap().is_none());
        assert!(files.open(&root, &[]).unwrap().is_none());
        std::fs::create_dir_all(at.join("ab001c")).unwrap();
        std::fs::write(at.join("ab001c/debuginfo"), "cache").unwrap();
        found("cache");
        std::fs::create_dir_all(at.join("usr/lib/debug/.build-id/ab")).unwrap();
        std::fs::write(at.join("usr/lib/debug/.build-id/ab/001c.debug"), "package").unwrap();
        found("package");
    }
}
