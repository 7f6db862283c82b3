//! The mapped files of a trace, and whether they are still those that were traced.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use vbts_trace::profile::modules::is_anonymous;

use crate::elf::build_id;
use vbts_host::escape::printable;
use vbts_host::root::Root;

/// Maximum number of files that are named because something is wrong with them.
const MAX_NAMED: usize = 1 << 10;
/// Maximum number of files whose build IDs are kept.
const MAX_BUILD_IDS: usize = 1 << 14;
/// What the kernel appends to the path of a file that has no name any more.
const DELETED: &str = " (deleted)";

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// It cannot be opened.
    Missing,
    /// It was changed after the trace was written.
    Changed,
    /// It is another file: its build ID differs.
    Replaced,
}

/// What is wrong with files, by their names.
#[derive(Debug, Default)]
pub struct Problems(BTreeMap<String, Problem>);

impl Problems {
    /// Adds a file, if there are not too many.
    pub fn add(&mut self, name: &[u8], problem: Problem) {
        if self.0.len() < MAX_NAMED {
            self.0.insert(printable(name), problem);
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Problem)> {
        self.0
            .iter()
            .map(|(name, problem)| (name.as_str(), *problem))
    }

    /// The names of the files that have this problem.
    pub fn with(&self, problem: Problem) -> impl Iterator<Item = &str> {
        self.iter()
            .filter_map(move |(name, is)| (is == problem).then_some(name))
    }
}

/// The mapped files of a trace.
#[derive(Debug)]
pub struct MappedFiles {
    root: Root,
    /// When the trace was written; `None` while the program runs.
    traced: Option<SystemTime>,
    /// The build IDs of files when they were traced.
    build_ids: HashMap<String, Vec<u8>>,
    problems: Problems,
}

impl MappedFiles {
    /// The files below `root` of a program that runs.
    pub fn new(root: Root) -> Self {
        Self {
            root,
            traced: None,
            build_ids: HashMap::new(),
            problems: Problems::default(),
        }
    }

    /// Where they are.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Sets when their trace was written.
    pub fn set_traced(&mut self, time: SystemTime) {
        self.traced = Some(time);
    }

    /// Sets the build ID that a file had when it was traced.
    pub fn add_build_id(&mut self, name: &[u8], id: Vec<u8>) {
        if self.build_ids.len() < MAX_BUILD_IDS {
            let name = String::from_utf8_lossy(name).into_owned();
            self.build_ids.insert(name, id);
        }
    }

    /// The build ID that a file had when it was traced, if that is known.
    pub fn build_id(&self, name: &str) -> Option<&[u8]> {
        self.build_ids.get(name).map(Vec::as_slice)
    }

    /// Whether the contents of a file have changed since the trace was written.
    pub fn is_newer(&self, file: &Metadata) -> bool {
        self.traced.is_some_and(|traced| is_newer(file, traced))
    }

    /// What is wrong with those that were opened.
    pub fn problems(&self) -> &Problems {
        &self.problems
    }

    /// Opens the file that is mapped as `name`: `None` if there is none, or another one than the
    /// traced one.
    pub fn open(&mut self, name: &str) -> Option<(File, Metadata)> {
        let path = Path::new(name.strip_suffix(DELETED).unwrap_or(name));
        if !path.is_absolute() {
            return None;
        }
        match self.open_regular(path) {
            Ok((file, metadata)) => self.check(name, file, metadata),
            Err(error) => {
                // A running program can map files that exist in the guest only.
                if self.traced.is_some() || error.kind() != ErrorKind::NotFound {
                    self.add_problem(name, Problem::Missing);
                }
                None
            }
        }
    }

    /// Opens the regular file at `path` in the guest.
    ///
    /// # Errors
    /// Those of `open`, or there is none.
    pub fn open_regular(&self, path: &Path) -> io::Result<(File, Metadata)> {
        let file = self.root.open_file(path)?;
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok((file, metadata)),
            false => Err(ErrorKind::NotFound.into()),
        }
    }

    /// Returns `file` if it is the one that was traced.
    fn check(&mut self, name: &str, file: File, metadata: Metadata) -> Option<(File, Metadata)> {
        if self.traced.is_none() {
            return Some((file, metadata));
        }
        if let Some(known) = self.build_ids.get(name) {
            if build_id(&file).as_ref() != Some(known) {
                self.add_problem(name, Problem::Replaced);
                return None;
            }
        } else if self.is_newer(&metadata) {
            self.add_problem(name, Problem::Changed);
        }
        Some((file, metadata))
    }

    fn add_problem(&mut self, name: &str, problem: Problem) {
        if !is_anonymous(name) {
            self.problems.add(name.as_bytes(), problem);
        }
    }
}

/// Whether the contents of a file have changed since `time`.
fn is_newer(file: &Metadata, time: SystemTime) -> bool {
    let traced = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let traced = (traced.as_secs() as i64, i64::from(traced.subsec_nanos()));
    (file.mtime(), file.mtime_nsec()) > traced
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: SystemTime = UNIX_EPOCH;

    /// What is wrong with `names`, in the traces that `prepare` makes of mapped files.
    fn problems(
        names: &[&str],
        prepare: impl FnOnce(&mut MappedFiles),
    ) -> Vec<(String, Problem, bool)> {
        let mut files = MappedFiles::new(Root::open(Path::new("/")).unwrap());
        prepare(&mut files);
        let opened: Vec<bool> = names
            .iter()
            .map(|name| files.open(name).is_some())
            .collect();
        let problem = |(name, problem): (&str, Problem)| {
            let at = names.iter().position(|other| *other == name).unwrap();
            (name.to_owned(), problem, opened[at])
        };
        files.problems().iter().map(problem).collect()
    }

    #[test]
    fn files_of_a_trace_must_be_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing").display().to_string();
        let deleted = format!("{path} (deleted)");
        let names = [
            &path,
            &deleted,
            "/memfd:code (deleted)",
            "/SYSV00000000 (deleted)",
            "[vdso]",
            "",
        ];
        let found = problems(&names, |files| files.set_traced(NOW));
        let missing = |name| (name, Problem::Missing, false);
        assert_eq!(found, [missing(path.clone()), missing(deleted.clone())]);
        // Those of a running program can be in the guest.
        assert_eq!(problems(&names, |_| {}), []);
        let inside_a_file = ["/proc/self/exe/code"];
        let found = problems(&inside_a_file, |_| {});
        assert_eq!(found, [missing(inside_a_file[0].to_owned())]);
    }

    #[test]
    fn files_of_a_trace_must_be_the_same() {
        let program = std::env::current_exe().unwrap().display().to_string();
        let names = [program.as_str()];
        let id = build_id(&File::open(&program).unwrap());
        let changed = problems(&names, |files| files.set_traced(NOW));
        assert_eq!(changed, [(program.clone(), Problem::Changed, true)]);
        let late = SystemTime::now() + Duration::from_secs(1);
        assert_eq!(problems(&names, |files| files.set_traced(late)), []);
        let with_id = |id: Vec<u8>| {
            problems(&names, |files| {
                files.set_traced(NOW);
                files.add_build_id(program.as_bytes(), id);
            })
        };
        assert_eq!(
            with_id(vec![1, 2]),
            [(program.clone(), Problem::Replaced, false)]
        );
        if let Some(id) = id {
            assert_eq!(with_id(id), []);
        }
    }
}
