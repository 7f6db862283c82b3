//! The program to run in the guest: found as `execvp` would find it, and looked at before a machine
//! is booted for it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use object::LittleEndian as Le;
use object::{elf, pod};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fstat, open};
use thiserror::Error;

use crate::walk;

/// Where `execvp` looks when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Interpreters of interpreters that Linux follows (`BINPRM` recursion limit).
const MAX_INTERPRETERS: u32 = 5;
/// Bytes of a script that Linux looks at for its `#!` line (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE: usize = 256;

/// Why a program cannot be run in the guest.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// There is no such file.
    #[error("{}: not found", .0.display())]
    NotFound(PathBuf),
    /// Not in any directory of `PATH`.
    #[error("{}: not found in PATH ({path})", .name.display())]
    NotInPath {
        /// The program.
        name: PathBuf,
        /// The directories.
        path: String,
    },
    /// A directory or a device.
    #[error("{}: is {what}, not a program", .path.display())]
    NotAFile {
        /// Which file.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// No permission to execute it.
    #[error("{}: no permission to execute it", .0.display())]
    NotExecutable(PathBuf),
    /// Neither ELF nor a script.
    #[error("{}: is neither an ELF program nor a script with #!", .0.display())]
    UnknownFormat(PathBuf),
    /// An ELF file that an x86-64 Linux does not run.
    #[error("{}: is {what}; only x86-64 programs can run", .path.display())]
    WrongElf {
        /// Which file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// The file that would load or interpret it.
    #[error("{}: its interpreter cannot run", .path.display())]
    Interpreter {
        /// Which file.
        path: PathBuf,
        /// What is wrong with its interpreter.
        source: Box<ProgramError>,
    },
    /// Interpreters without end.
    #[error("{}: too many levels of #! interpreters", .0.display())]
    TooManyInterpreters(PathBuf),
    /// The file cannot be read.
    #[error("Cannot read {}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The directory that is the guest's root: all paths, and symbolic links on them, are resolved
/// inside it.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    /// Opens `path`.
    ///
    /// # Errors
    /// It is not a directory that can be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let fd = open(
            &path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { path, fd })
    }

    /// Where it is on the host.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file of the guest, given by its absolute path there, for reading.
    ///
    /// # Errors
    /// As `open` has them.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        // Devices and pipes must not block us.
        self.open_with(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
    }

    fn open_with(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        Ok(walk::open(self.fd.as_fd(), path, flags)?.into())
    }

    /// `path` of the host as the guest sees it, or `None` if it lies outside the root.
    pub fn guest_path(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.path)
            .ok()
            .map(|inside| Path::new("/").join(inside))
    }
}

/// Finds `name` as `execvp` in directory `cwd` of the guest would, with the `PATH` of `search`, and
/// checks that the guest can run it. Returns its absolute path in the guest.
///
/// # Errors
/// There is no such program, or it cannot run.
pub fn find(
    root: &Root,
    cwd: &Path,
    name: &OsStr,
    search: Option<&OsStr>,
) -> Result<PathBuf, ProgramError> {
    if name.is_empty() {
        return Err(ProgramError::NotFound(PathBuf::from("\"\"")));
    }
    if name.as_bytes().contains(&b'/') {
        let path = cwd.join(name);
        check(root, cwd, &path, MAX_INTERPRETERS)?;
        return Ok(path);
    }
    let search = search.unwrap_or(OsStr::new(DEFAULT_PATH));
    let mut denied = None;
    for directory in search.as_bytes().split(|b| *b == b':') {
        let path = cwd.join(OsStr::from_bytes(directory)).join(name);
        match check(root, cwd, &path, MAX_INTERPRETERS) {
            Ok(()) => return Ok(path),
            Err(ProgramError::NotFound(_) | ProgramError::NotAFile { .. }) => {}
            // `execvp` goes on, but remembers.
            Err(error @ ProgramError::NotExecutable(_)) => denied = denied.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(denied.unwrap_or_else(|| ProgramError::NotInPath {
        name: name.into(),
        path: search.to_string_lossy().into_owned(),
    }))
}

fn check(root: &Root, cwd: &Path, path: &Path, levels: u32) -> Result<(), ProgramError> {
    let read_error = |source| ProgramError::Read {
        path: path.into(),
        source,
    };
    // Opening with O_PATH needs no permission to read, which executing does not need either.
    let handle = root
        .open_with(path, OFlags::PATH)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                ProgramError::NotFound(path.into())
            }
            _ => read_error(error),
        })?;
    let status = fstat(&handle).map_err(|error| read_error(error.into()))?;
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
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    if accessat(CWD, link.as_str(), Access::EXEC_OK, AtFlags::EACCESS).is_err() {
        return Err(ProgramError::NotExecutable(path.into()));
    }
    let mut file = match root.open_file(path) {
        Ok(file) => file,
        // Executable but not readable: the guest's server cannot read it either.
        Err(error) => return Err(read_error(error)),
    };
    let mut start = Vec::new();
    (&mut file)
        .take(1 << 16)
        .read_to_end(&mut start)
        .map_err(read_error)?;

    let interpreter = if start.starts_with(&elf::ELFMAG) {
        check_elf(path, &start)?
    } else if let Some(line) = start.strip_prefix(b"#!") {
        Some(script_interpreter(line).ok_or_else(|| ProgramError::UnknownFormat(path.into()))?)
    } else {
        return Err(ProgramError::UnknownFormat(path.into()));
    };
    let Some(interpreter) = interpreter else {
        return Ok(());
    };
    let levels = levels
        .checked_sub(1)
        .ok_or_else(|| ProgramError::TooManyInterpreters(path.into()))?;
    check(root, cwd, &cwd.join(interpreter), levels).map_err(|error| match error {
        ProgramError::TooManyInterpreters(_) => ProgramError::TooManyInterpreters(path.into()),
        source => ProgramError::Interpreter {
            path: path.into(),
            source: Box::new(source),
        },
    })
}

/// The interpreter that the rest of a `#!` line names.
fn script_interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.get(..line.len().min(SCRIPT_LINE - 2))?;
    let line = line.split(|b| *b == b'\n').next()?;
    let word = line
        .split(|b| matches!(b, b' ' | b'\t'))
        .find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// Checks an ELF program by its first bytes; returns the dynamic loader that it asks for.
fn check_elf(path: &Path, start: &[u8]) -> Result<Option<PathBuf>, ProgramError> {
    let wrong = |what: &str| {
        Err(ProgramError::WrongElf {
            path: path.into(),
            what: what.into(),
        })
    };
    // Class, byte order and machine lie at the same places in both classes.
    let (Some(class), Some(order), Some(machine)) = (
        start.get(4),
        start.get(5),
        start.get(18..).and_then(|m| m.first_chunk()),
    ) else {
        return wrong("a truncated ELF file");
    };
    let machine = match elf::DataEncoding(*order) {
        elf::ELFDATA2MSB => elf::Machine(u16::from_be_bytes(*machine)),
        _ => elf::Machine(u16::from_le_bytes(*machine)),
    };
    if machine != elf::EM_X86_64 {
        let bits = if elf::FileClass(*class) == elf::ELFCLASS64 {
            64
        } else {
            32
        };
        return wrong(&format!(
            "a {bits}-bit ELF file for {}",
            machine_name(machine)
        ));
    }
    if elf::FileClass(*class) != elf::ELFCLASS64 {
        return wrong("a 32-bit (x32) ELF file");
    }
    let Ok((header, _)) = pod::from_bytes::<elf::FileHeader64<Le>>(start) else {
        return wrong("a truncated ELF file");
    };
    if !matches!(header.e_type.get(Le), elf::ET_EXEC | elf::ET_DYN) {
        return wrong("an ELF file that is no program");
    }
    let segments = usize::try_from(header.e_phoff.get(Le))
        .ok()
        .and_then(|offset| start.get(offset..))
        .and_then(|rest| {
            pod::slice_from_bytes::<elf::ProgramHeader64<Le>>(rest, header.e_phnum.get(Le).into())
                .ok()
        });
    let Some((segments, _)) = segments else {
        return wrong("a truncated ELF file");
    };
    let Some(interp) = segments.iter().find(|s| s.p_type.get(Le) == elf::PT_INTERP) else {
        return Ok(None);
    };
    let (offset, len) = (
        interp.p_offset.get(Le) as usize,
        interp.p_filesz.get(Le) as usize,
    );
    let name = start
        .get(offset..)
        .and_then(|rest| rest.get(..len))
        .unwrap_or_default();
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    Ok((!name.is_empty()).then(|| PathBuf::from(OsString::from_vec(name.to_vec()))))
}

fn machine_name(machine: elf::Machine) -> String {
    let name = match machine {
        elf::EM_386 => "x86",
        elf::EM_AARCH64 => "AArch64",
        elf::EM_ARM => "Arm",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC64 => "64-bit PowerPC",
        elf::EM_PPC => "PowerPC",
        elf::EM_S390 => "s390",
        elf::EM_MIPS => "MIPS",
        elf::EM_LOONGARCH => "LoongArch",
        elf::EM_SPARCV9 => "SPARC V9",
        elf::Machine(other) => return format!("machine number {other}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A directory that is removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("vbts-{}-{name}", std::process::id()));
            std::fs::create_dir_all(path.join("bin")).unwrap();
            Self(path.canonicalize().unwrap())
        }

        fn put(&self, name: &str, mode: u32, contents: &[u8]) {
            let path = self.0.join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
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
        let scratch = Scratch::new("find");
        let root = Root::open(&scratch.0).unwrap();
        scratch.put("bin/good", 0o755, &elf_file(2, 62));
        scratch.put("plain", 0o644, &elf_file(2, 62));
        scratch.put("script", 0o755, b"#! /bin/good -x\n");
        symlink("/bin/good", scratch.0.join("link")).unwrap();
        let find = |cwd: &str, name: &str| {
            find(
                &root,
                Path::new(cwd),
                OsStr::new(name),
                Some(OsStr::new("/nowhere:/bin")),
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
    fn what_the_guest_cannot_run_is_refused() {
        let scratch = Scratch::new("refuse");
        let root = Root::open(&scratch.0).unwrap();
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
            (&elf_file(1, 3), "a 32-bit ELF file for x86"),
            (&elf_file(1, 62), "x32"),
            (&elf_file(2, 183), "a 64-bit ELF file for AArch64"),
            (&elf_file(2, 4711), "machine number 4711"),
            (&elf_file(2, 62)[..40], "truncated"),
            (&object_file, "no program"),
        ] {
            scratch.put("program", 0o755, contents);
            let error = find(&root, Path::new("/"), OsStr::new("/program"), None).unwrap_err();
            let error = format!("{:#}", anyhow::Error::from(error));
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn dynamic_programs_need_their_loader() {
        let root = Root::open(Path::new("/")).unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(
            find(&root, Path::new("/"), own.as_os_str(), None).unwrap(),
            own
        );
        assert_eq!(root.guest_path(&own), Some(own));
    }
}
