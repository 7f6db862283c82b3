//! Finds the program to run in the guest as `execvp` does, and checks it before a machine is booted
//! for it.
//!
//! | module | contents |
//! |---|---|
//! | `executable` | the formats of programs that Linux runs |
//! | `streams` | the program's open descriptors, of this process and in the guest |
//! | `terminal` | the program's terminal |

mod executable;
mod streams;
mod terminal;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType, accessat, fstat};
use thiserror::Error;

use vbts_guest_files::arch::Arch;
use vbts_host::exit::Failure;
use vbts_host::root::Root;

pub use streams::{Positions, Streams};
pub use terminal::{Restorer, Terminal};

/// Directories that `execvp` searches if the environment has no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Interpreters of interpreters that Linux follows (`BINPRM` recursion limit).
const MAX_INTERPRETERS: u32 = 5;
/// Bytes at the start of a file that are read: the header of an ELF file, or the first line of a
/// script.
const START: u64 = 256;

/// Why a program cannot be run in the guest.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// The file does not exist.
    #[error("{}: not found", .0.display())]
    NotFound(PathBuf),
    /// No directory of `PATH` has the program.
    #[error("{}: not found in PATH ({path})", .name.display())]
    NotInPath {
        /// The program.
        name: PathBuf,
        /// The directories.
        path: String,
    },
    /// The file is a directory or a device.
    #[error("{}: is {what}, not a program", .path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// The user may not execute the file.
    #[error("{}: no permission to execute it", .0.display())]
    NotExecutable(PathBuf),
    /// The user may execute the file, but not read it.
    #[error(
        "{}: no permission to read it, which the guest needs in order to execute it",
        .0.display()
    )]
    NotReadable(PathBuf),
    /// The file is neither an ELF file nor a script.
    #[error("{}: is neither an ELF program nor a script with #!", .0.display())]
    UnknownFormat(PathBuf),
    /// An ELF file that the guest's Linux does not run.
    #[error("{}: is {what}; only programs for {allowed} can run", .path.display())]
    WrongElf {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
        /// What the guest's Linux runs.
        allowed: &'static str,
    },
    /// The dynamic loader or the interpreter of the file cannot run.
    #[error("{}: its interpreter cannot run", .path.display())]
    Interpreter {
        /// The file.
        path: PathBuf,
        /// What is wrong with its interpreter.
        source: Box<ProgramError>,
    },
    /// The interpreter has an interpreter, and so on.
    #[error("{}: too many levels of #! interpreters", .0.display())]
    TooManyInterpreters(PathBuf),
    /// The file cannot be read.
    #[error("Cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the host.
        source: io::Error,
    },
}

impl ProgramError {
    /// The failure of the command, with the status that a shell has for it.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::NotFound(_) | Self::NotInPath { .. } => Failure::NotFound(self.into()),
            Self::Read { .. } => Failure::Error(self.into()),
            _ => Failure::NotExecutable(self.into()),
        }
    }
}

/// Finds `name` as `execvp` in directory `cwd` of the guest would, with the `PATH` of `search`, and
/// checks that the guest, whose kernel is of `arch`, can run it. Returns its absolute path in the
/// guest.
///
/// # Errors
/// There is no such program, or it cannot run.
pub fn find(
    root: &Root,
    cwd: &Path,
    name: &OsStr,
    search: Option<&OsStr>,
    arch: Arch,
) -> Result<PathBuf, ProgramError> {
    if name.is_empty() {
        return Err(ProgramError::NotFound(PathBuf::from("\"\"")));
    }
    if name.as_bytes().contains(&b'/') {
        let path = cwd.join(name);
        check(root, cwd, &path, MAX_INTERPRETERS, arch)?;
        return Ok(path);
    }
    let search = search.unwrap_or(OsStr::new(DEFAULT_PATH));
    let mut denied = None;
    for directory in search.as_bytes().split(|b| *b == b':') {
        let path = cwd.join(OsStr::from_bytes(directory)).join(name);
        match check(root, cwd, &path, MAX_INTERPRETERS, arch) {
            Ok(()) => return Ok(path),
            Err(ProgramError::NotFound(_) | ProgramError::NotAFile { .. }) => {}
            // `execvp` tries the other directories first.
            Err(error @ ProgramError::NotExecutable(_)) => denied = denied.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(denied.unwrap_or_else(|| ProgramError::NotInPath {
        name: name.into(),
        path: search.to_string_lossy().into_owned(),
    }))
}

/// Checks that the guest can run the program at `path`, with at most `levels` interpreters.
fn check(
    root: &Root,
    cwd: &Path,
    path: &Path,
    levels: u32,
    arch: Arch,
) -> Result<(), ProgramError> {
    check_executable(root, path)?;
    // 9P needs to read a program that the guest executes.
    let file = root.open_file(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ProgramError::NotReadable(path.into()),
        _ => read_error(path, error),
    })?;
    let start = read_start(&file).map_err(|error| read_error(path, error))?;
    let Some(interpreter) = executable::interpreter(path, &file, &start, arch)? else {
        return Ok(());
    };
    let levels = levels
        .checked_sub(1)
        .ok_or_else(|| ProgramError::TooManyInterpreters(path.into()))?;
    let found = check(root, cwd, &cwd.join(interpreter), levels, arch);
    found.map_err(|error| match error {
        ProgramError::TooManyInterpreters(_) => ProgramError::TooManyInterpreters(path.into()),
        source => ProgramError::Interpreter {
            path: path.into(),
            source: Box::new(source),
        },
    })
}

/// Checks that `path` is a regular file that the user may execute. No permission to read it is
/// needed.
fn check_executable(root: &Root, path: &Path) -> Result<(), ProgramError> {
    let file = root.find(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            ProgramError::NotFound(path.into())
        }
        // A directory on the way may not be searched.
        io::ErrorKind::PermissionDenied => ProgramError::NotExecutable(path.into()),
        _ => read_error(path, error),
    })?;
    let status = fstat(&file).map_err(|error| read_error(path, error.into()))?;
    let what = match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        _ => Some("a special file"),
    };
    if let Some(what) = what {
        return Err(ProgramError::NotAFile {
            path: path.into(),
            what,
        });
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    accessat(CWD, link.as_str(), Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|_| ProgramError::NotExecutable(path.into()))
}

fn read_start(file: &File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    file.take(START).read_to_end(&mut start)?;
    Ok(start)
}

fn read_error(path: &Path, source: io::Error) -> ProgramError {
    ProgramError::Read {
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::TempDir;

    struct Scratch(TempDir);

    impl Scratch {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            std::fs::create_dir(directory.path().join("bin")).unwrap();
            Self(directory)
        }

        fn root(&self) -> Root {
            Root::open(self.0.path()).unwrap()
        }

        fn put(&self, name: &str, mode: u32, contents: &[u8]) {
            let path = self.0.path().join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
    }

    fn find_program(root: &Root, arch: Arch) -> Result<PathBuf, ProgramError> {
        find(root, Path::new("/"), OsStr::new("/program"), None, arch)
    }

    fn elf_file(class: u8, machine: u16) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..7].copy_from_slice(&[0x7F, b'E', b'L', b'F', class, 1, 1]);
        file[16] = 2;
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file
    }

    #[test]
    fn programs_are_found_as_execvp_does() {
        let scratch = Scratch::new();
        let root = scratch.root();
        scratch.put("bin/good", 0o755, &elf_file(2, 62));
        scratch.put("plain", 0o644, &elf_file(2, 62));
        scratch.put("script", 0o755, b"#! /bin/good -x\n");
        symlink("/bin/good", scratch.0.path().join("link")).unwrap();
        let find = |cwd: &str, name: &str| {
            find(
                &root,
                Path::new(cwd),
                OsStr::new(name),
                Some(OsStr::new("/nowhere:/bin")),
                Arch::X86_64,
            )
            .map_err(|e| e.to_string())
        };
        assert_eq!(find("/", "good"), Ok("/bin/good".into()));
        assert_eq!(find("/bin", "./good"), Ok("/bin/./good".into()));
        assert_eq!(
            find("/", "/link"),
            Ok("/link".into()),
            "links stay inside the root"
        );
        assert_eq!(find("/", "./script"), Ok("/./script".into()));
        assert!(
            find("/", "script")
                .unwrap_err()
                .contains("not found in PATH (/nowhere:/bin)")
        );
        assert!(find("/", "./nothing").unwrap_err().contains("not found"));
        assert!(find("/", "./plain").unwrap_err().contains("permission"));
        assert!(find("/", "/bin").unwrap_err().contains("is a directory"));
        assert!(find("/", "").is_err());
    }

    #[test]
    fn files_that_the_guest_cannot_run_are_refused() {
        let scratch = Scratch::new();
        let root = scratch.root();
        scratch.put("program", 0o755, &elf_file(1, 3));
        let program = find_program(&root, Arch::X86_64);
        assert!(program.is_ok(), "32-bit programs run: {program:?}");
        let mut object_file = elf_file(2, 62);
        object_file[16] = 1;
        for (contents, message) in [
            (&b"hello\n"[..], "neither an ELF program nor a script"),
            (b"", "neither an ELF program nor a script"),
            (b"#!\n", "neither an ELF program nor a script"),
            (
                b"#!/no/interpreter\n",
                "its interpreter cannot run: /no/interpreter: not found",
            ),
            (b"#!/program\n", "too many levels"),
            (&elf_file(1, 40), "a 32-bit ELF file for Arm"),
            (&elf_file(1, 3)[..40], "truncated"),
            (&elf_file(1, 62), "x32"),
            (&elf_file(2, 183), "a 64-bit ELF file for AArch64"),
            (&elf_file(2, 4711), "machine number 4711"),
            (&elf_file(2, 62)[..40], "truncated"),
            (&object_file, "no program"),
        ] {
            scratch.put("program", 0o755, contents);
            let error = find_program(&root, Arch::X86_64).unwrap_err();
            let error = format!("{:#}", anyhow::Error::from(error));
            assert!(error.contains(message), "{error}");
        }
        scratch.put("program", 0o755, &elf_file(2, 62));
        assert!(find_program(&root, Arch::X86_64).is_ok());
        let error = find_program(&root, Arch::I386).unwrap_err().to_string();
        assert!(error.contains("the guest's kernel has 32 bits"), "{error}");
    }

    #[test]
    fn program_headers_can_be_anywhere() {
        const AT: usize = 2 << 20;
        let scratch = Scratch::new();
        let root = scratch.root();
        let mut file = elf_file(2, 62);
        file.resize(AT + 56, 0);
        file[32..40].copy_from_slice(&(AT as u64).to_le_bytes());
        file[56] = 1;
        // PT_INTERP: offset and size of the name.
        file[AT] = 3;
        file[AT + 8..AT + 16].copy_from_slice(&(AT as u64 + 56).to_le_bytes());
        file[AT + 32] = 8;
        file.extend_from_slice(b"/loader\0");
        scratch.put("program", 0o755, &file);
        let find = || find_program(&root, Arch::X86_64);
        let error = format!("{:#}", anyhow::Error::from(find().unwrap_err()));
        assert!(error.contains("/loader: not found"), "{error}");
        scratch.put("loader", 0o755, &elf_file(2, 62));
        assert!(find().is_ok());
        scratch.put("program", 0o755, &file[..AT + 55]);
        let error = format!("{:#}", anyhow::Error::from(find().unwrap_err()));
        assert!(error.contains("truncated"), "{error}");
    }

    #[test]
    fn dynamic_programs_need_their_loader() {
        let root = Root::open(Path::new("/")).unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(
            find(&root, Path::new("/"), own.as_os_str(), None, Arch::X86_64).unwrap(),
            own
        );
        assert_eq!(root.guest_path(&own), Some(own));
    }
}
