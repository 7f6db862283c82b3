//! What runs in the guests: the suite of the `PTRACE_BTS` requests, or the kernel's own tests.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::Case;
use super::guest::Settings;
use super::kunit;
use super::lines::{Line, parse};
use vbts_vmm::boot::cpio::Cpio;

/// The name of no case. A guest with it reports what its kernel can run, and ends.
pub(crate) const NO_CASE: &str = "-";
/// The longest limit of a case that the suite accepts, in seconds.
const MAX_CASE_SECONDS: u64 = 1_000_000;

/// Where the cases come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The suite of the requests. Its program becomes the first process.
    Requests,
    /// The KUnit tests that are built into the kernel, which runs them before it needs a process.
    Kunit,
    /// Tests of the kernel's tools/testing/selftests, which the suite's program runs.
    Kselftest {
        /// Directory of the host in which the tests are installed. The guest has it, too.
        directory: PathBuf,
        /// All of them.
        cases: Vec<Case>,
    },
}

/// What a guest gets besides its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// A cpio archive.
    pub initramfs: Option<Vec<u8>>,
    /// Words for the kernel's command line.
    pub words: String,
}

/// Parses the console of a guest.
#[derive(Debug)]
pub enum Parser {
    /// The suite's program names its lines.
    Named,
    /// KUnit.
    Kunit(kunit::Parser),
}

impl Source {
    /// How many of `names`, the cases of a group that have no result yet, one guest can run. `all`
    /// is the number of cases of that group.
    pub fn batch(&self, names: &[String], all: usize) -> usize {
        match self {
            Self::Requests | Self::Kselftest { .. } => names.len(),
            // KUnit takes one pattern: a whole group, or a single case.
            Self::Kunit if names.len() == all => all,
            Self::Kunit => 1,
        }
    }

    /// What a guest with `settings` gets that runs `names`, one [`Self::batch`].
    pub fn contents(&self, names: &[String], settings: &Settings) -> Contents {
        match self {
            Self::Requests => Contents {
                initramfs: Some(initramfs(&settings.program, b"", names)),
                words: case_limit(settings.limit),
            },
            Self::Kselftest { directory, .. } => {
                let head = [b"kselftest ", directory.as_os_str().as_bytes(), b"\n"].concat();
                Contents {
                    initramfs: Some(initramfs(&settings.program, &head, names)),
                    words: case_limit(settings.limit),
                }
            }
            Self::Kunit => Contents {
                initramfs: None,
                words: kunit::words(names),
            },
        }
    }

    /// A parser of the console of a guest that runs `names`.
    pub fn parser(&self, names: &[String]) -> Parser {
        match self {
            Self::Requests | Self::Kselftest { .. } => Parser::Named,
            Self::Kunit => Parser::Kunit(kunit::Parser::new(names)),
        }
    }
}

impl Parser {
    /// What a line of the console says.
    pub fn lines(&mut self, line: &str) -> Vec<Line> {
        match self {
            Self::Named => vec![parse(line)],
            Self::Kunit(parser) => parser.lines(line),
        }
    }
}

/// The word of the kernel's command line that tells the suite's program the limit of a case. The
/// kernel passes unknown words to the first process. The program ends a case after 5/6 of the
/// limit, so that its guest need not be killed.
fn case_limit(limit: Duration) -> String {
    let seconds = (limit.as_secs() / 6 * 5).clamp(1, MAX_CASE_SECONDS);
    format!("CASE_SECONDS={seconds}")
}

/// An initramfs with `program` as the first process, and with `head` and `names` in the file where
/// it looks for the cases to run.
fn initramfs(program: &[u8], head: &[u8], names: &[String]) -> Vec<u8> {
    let mut list = head.to_vec();
    for name in names {
        list.extend_from_slice(name.as_bytes());
        list.push(b'\n');
    }
    let mut cpio = Cpio::new();
    vbts_guest_files::add_devices(&mut cpio);
    cpio.file("init", 0o755, program);
    cpio.file("cases", 0o644, &list);
    cpio.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_initramfs_has_the_program_and_its_cases() {
        let archive = initramfs(b"program", b"", &names(&["a.b", "c.d"]));
        let archive = String::from_utf8_lossy(&archive);
        assert!(archive.contains("cases\0") && archive.contains("a.b\nc.d\n"));
        assert!(archive.contains("dev/kmsg\0"));
    }

    #[test]
    fn kunit_runs_a_whole_group_or_one_case() {
        let all = names(&["a.x", "a.y", "a.z"]);
        assert_eq!(Source::Kunit.batch(&all, 3), 3);
        assert_eq!(Source::Kunit.batch(&all[1..], 3), 1);
        assert_eq!(Source::Requests.batch(&all[1..], 3), 2);
    }
}
