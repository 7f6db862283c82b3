//! The formats of programs that Linux runs: ELF files and scripts.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use object::LittleEndian as Le;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{elf, pod};

use super::ProgramError;
use vbts_guest_files::arch::Arch;

/// Bytes of a script in which Linux looks for its `#!` line (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE: usize = 256;
/// Maximum length in bytes of the name of a dynamic loader (`PATH_MAX`).
const MAX_LOADER: usize = 4096;

/// Checks a program by `start`, its first bytes, and by what an ELF file refers to. Returns the
/// program that loads or interprets it, if it needs one. `path` is for messages.
///
/// # Errors
/// A Linux of `arch` does not run the program.
pub(super) fn interpreter(
    path: &Path,
    file: &File,
    start: &[u8],
    arch: Arch,
) -> Result<Option<PathBuf>, ProgramError> {
    if start.starts_with(&elf::ELFMAG) {
        return elf_interpreter(file, start, arch).map_err(|what| ProgramError::WrongElf {
            path: path.into(),
            what,
            allowed: match arch {
                Arch::X86_64 => "x86-64 and 32-bit x86",
                Arch::I386 => "32-bit x86",
            },
        });
    }
    start
        .strip_prefix(b"#!")
        .and_then(script_interpreter)
        .map(Some)
        .ok_or_else(|| ProgramError::UnknownFormat(path.into()))
}

/// The interpreter in `line`, the text after `#!`.
fn script_interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.get(..line.len().min(SCRIPT_LINE - 2))?;
    let line = line.split(|b| *b == b'\n').next()?;
    let word = line
        .split(|b| matches!(b, b' ' | b'\t'))
        .find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// The dynamic loader of an ELF program, or what the file is if it is no program for a Linux of
/// `arch`. That of x86-64 runs 32-bit programs for x86, too.
fn elf_interpreter(file: &File, start: &[u8], arch: Arch) -> Result<Option<PathBuf>, String> {
    match class(start)? {
        Class::Elf64 if arch == Arch::I386 => {
            Err("a 64-bit ELF file, and the guest's kernel has 32 bits".into())
        }
        Class::Elf32 => loader::<elf::FileHeader32<Le>>(file, start),
        Class::Elf64 => loader::<elf::FileHeader64<Le>>(file, start),
    }
}

/// The layout of an ELF file.
enum Class {
    Elf32,
    Elf64,
}

fn truncated() -> String {
    "a truncated ELF file".into()
}

/// Checks class and machine of an ELF file, which have the same offsets in all classes.
fn class(start: &[u8]) -> Result<Class, String> {
    let (Some(&class), Some(&order), Some(&machine)) = (
        start.get(4),
        start.get(5),
        start.get(18..).and_then(|machine| machine.first_chunk()),
    ) else {
        return Err(truncated());
    };
    let is_64_bit = elf::FileClass(class) == elf::ELFCLASS64;
    let machine = elf::Machine(match elf::DataEncoding(order) {
        elf::ELFDATA2MSB => u16::from_be_bytes(machine),
        _ => u16::from_le_bytes(machine),
    });
    match (machine, is_64_bit) {
        (elf::EM_X86_64, true) => Ok(Class::Elf64),
        (elf::EM_386, false) => Ok(Class::Elf32),
        (elf::EM_X86_64, false) => Err("a 32-bit (x32) ELF file".into()),
        (machine, _) => {
            let bits = if is_64_bit { 64 } else { 32 };
            let name = machine_name(machine);
            Err(format!("a {bits}-bit ELF file for {name}"))
        }
    }
}

/// The dynamic loader that the program headers name.
fn loader<Elf: FileHeader<Endian = Le>>(
    file: &File,
    start: &[u8],
) -> Result<Option<PathBuf>, String> {
    let (header, _) = pod::from_bytes::<Elf>(start).map_err(|()| truncated())?;
    if !matches!(header.e_type(Le), elf::ET_EXEC | elf::ET_DYN) {
        return Err("an ELF file that is no program".into());
    }
    let segments = program_headers(file, header).ok_or_else(truncated)?;
    let (segments, _) = pod::slice_from_bytes::<Elf::ProgramHeader>(&segments, count(header))
        .map_err(|()| truncated())?;
    let name = segments
        .iter()
        .find(|segment| segment.p_type(Le) == elf::PT_INTERP)
        .and_then(|segment| loader_name(file, segment));
    Ok(name)
}

/// Number of program headers.
fn count<Elf: FileHeader<Endian = Le>>(header: &Elf) -> usize {
    usize::from(header.e_phnum(Le))
}

/// The program headers. They can be anywhere in the file: BOLT moves them.
fn program_headers<Elf: FileHeader<Endian = Le>>(file: &File, header: &Elf) -> Option<Vec<u8>> {
    let mut headers = vec![0; count(header) * size_of::<Elf::ProgramHeader>()];
    file.read_exact_at(&mut headers, header.e_phoff(Le).into())
        .ok()?;
    Some(headers)
}

/// The name of the dynamic loader in `segment`; `None` if it is empty, too long or not in the file.
fn loader_name(file: &File, segment: &impl ProgramHeader<Endian = Le>) -> Option<PathBuf> {
    let size = usize::try_from(segment.p_filesz(Le).into()).ok()?;
    let mut name = vec![0; Some(size).filter(|size| *size <= MAX_LOADER)?];
    file.read_exact_at(&mut name, segment.p_offset(Le).into())
        .ok()?;
    let name = name.split(|b| *b == 0).next()?;
    (!name.is_empty()).then(|| PathBuf::from(OsString::from_vec(name.to_vec())))
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
