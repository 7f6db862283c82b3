//! The formats of programs that Linux runs: ELF files and scripts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use object::LittleEndian as Le;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{elf, pod};

use super::ProgramError;

/// Bytes of a script in which Linux looks for its `#!` line (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE: usize = 256;

/// Checks a program by `start`, its first bytes. Returns the program that loads or interprets it,
/// if it needs one. `path` is for messages.
///
/// # Errors
/// An x86-64 Linux does not run the program.
pub fn interpreter(path: &Path, start: &[u8]) -> Result<Option<PathBuf>, ProgramError> {
    if start.starts_with(&elf::ELFMAG) {
        return elf_interpreter(start).map_err(|what| ProgramError::WrongElf {
            path: path.into(),
            what,
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

/// The dynamic loader of an ELF program, or what the file is if it is no program for x86-64 Linux,
/// which runs 32-bit programs for x86, too.
fn elf_interpreter(start: &[u8]) -> Result<Option<PathBuf>, String> {
    match class(start)? {
        Class::Elf32 => loader::<elf::FileHeader32<Le>>(start),
        Class::Elf64 => loader::<elf::FileHeader64<Le>>(start),
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

/// The dynamic loader that the program headers in `start` name.
fn loader<Elf: FileHeader<Endian = Le>>(start: &[u8]) -> Result<Option<PathBuf>, String> {
    let (header, _) = pod::from_bytes::<Elf>(start).map_err(|()| truncated())?;
    if !matches!(header.e_type(Le), elf::ET_EXEC | elf::ET_DYN) {
        return Err("an ELF file that is no program".into());
    }
    let segments = program_headers(start, header).ok_or_else(truncated)?;
    let name = segments
        .iter()
        .find(|segment| segment.p_type(Le) == elf::PT_INTERP)
        .and_then(|segment| loader_name(start, segment));
    Ok(name)
}

fn program_headers<'a, Elf: FileHeader<Endian = Le>>(
    start: &'a [u8],
    header: &Elf,
) -> Option<&'a [Elf::ProgramHeader]> {
    let offset = usize::try_from(header.e_phoff(Le).into()).ok()?;
    let count = usize::from(header.e_phnum(Le));
    let (headers, _) = pod::slice_from_bytes(start.get(offset..)?, count).ok()?;
    Some(headers)
}

/// The name of the dynamic loader in `segment`; `None` if it is empty or not in `start`.
fn loader_name(start: &[u8], segment: &impl ProgramHeader<Endian = Le>) -> Option<PathBuf> {
    let offset = usize::try_from(segment.p_offset(Le).into()).ok()?;
    let len = usize::try_from(segment.p_filesz(Le).into()).ok()?;
    let name = start.get(offset..)?.get(..len)?;
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
