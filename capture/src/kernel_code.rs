//! The part of the guest's kernel that a kept trace contains, because the kernel's file lacks it.
//!
//! While it boots and runs, Linux patches its code: alternatives for the features of the processor,
//! static keys and calls, returns, and the calls of ftrace. So the file has other instructions than
//! those that the processor executed. The difference at the end of a run is part of a kept trace.
//! If the file has no symbols, the trace has a file that is made from the kernel's memory.

use object::read::elf::{ElfFile, FileHeader, ProgramHeader as _};
use object::{FileKind, LittleEndian, Object as _, ObjectSection as _, SectionFlags, elf};
use vbts_trace::Event;
use vbts_trace::profile::modules::extend_32;
use vm_memory::{Bytes as _, GuestAddress};

use crate::kernel_memory;
use crate::machine::kernel::Kernel;
use vbts_vmm::memory::GuestMemory;

/// Bytes of the kernel's file in an event.
const FILE_PIECE: usize = 1 << 20;
/// Bytes that are compared at a time.
const PIECE: usize = 64 << 10;
/// Equal bytes between two differences that belong to one change, at most. An event has about as
/// many bytes of its own.
const JOINED: usize = 8;
/// Code that differs to a larger part is that of another kernel.
const MAX_PART: usize = 4;
/// Sections that the kernel gives up when it has booted.
const GIVEN_UP: [&str; 3] = [".init", ".exit", ".altinstr"];

/// A section with code.
#[derive(Debug)]
struct Section {
    /// Its linear address.
    address: u64,
    /// Where it is in the guest's memory.
    place: GuestAddress,
    /// The bytes in the file.
    code: Vec<u8>,
}

/// The code in the file of a guest's kernel, and the memory that it is loaded to.
#[derive(Debug)]
pub struct KernelText {
    sections: Vec<Section>,
    has_symbols: bool,
    memory: GuestMemory,
}

impl KernelText {
    /// The code of the kernel in the ELF file `image`; none of another file, such as a bzImage.
    pub fn new(image: &[u8], memory: &GuestMemory) -> Self {
        Self {
            sections: sections(image).unwrap_or_default(),
            has_symbols: Kernel::parse(image).is_some(),
            memory: memory.clone(),
        }
    }

    /// Returns what reports about the kernel need besides its file, as the memory has it now: the
    /// differences from the file, each as [`Event::KernelCode`], or symbols and code in pieces,
    /// each as [`Event::KernelFile`], if the file has no symbols.
    pub fn events(&self) -> Vec<Event> {
        match self.has_symbols {
            true => self.changes(),
            false => self.file().unwrap_or_default(),
        }
    }

    /// An ELF file with the symbols and the code of the kernel in `memory`, at the addresses at
    /// which it runs. `None` if the kernel does not say where its symbols are.
    pub fn file_of(memory: &GuestMemory) -> Option<Vec<u8>> {
        let image = kernel_memory::image(memory)?;
        match image.to_elf() {
            Ok(file) => Some(file),
            Err(error) => {
                tracing::debug!(%error, "no file with the kernel's symbols");
                None
            }
        }
    }

    fn file(&self) -> Option<Vec<Event>> {
        let file = Self::file_of(&self.memory)?;
        let pieces = file.chunks(FILE_PIECE).enumerate();
        let pieces = pieces.map(|(number, bytes)| Event::KernelFile {
            at: (number * FILE_PIECE) as u64,
            bytes: bytes.into(),
        });
        Some(pieces.collect())
    }

    fn changes(&self) -> Vec<Event> {
        let mut changes = Vec::new();
        for section in &self.sections {
            let mut found = Vec::new();
            self.compare(section, &mut found);
            let different: usize = found.iter().map(Event::size).sum();
            if different <= section.code.len() / MAX_PART {
                changes.append(&mut found);
            }
        }
        tracing::debug!(
            changes = changes.len(),
            "code of the kernel that has changed"
        );
        changes
    }

    fn compare(&self, section: &Section, changes: &mut Vec<Event>) {
        let mut memory = vec![0; PIECE];
        let mut at = 0;
        for code in section.code.chunks(PIECE) {
            let Some(memory) = memory.get_mut(..code.len()) else {
                return;
            };
            let place = section.place.0.checked_add(at);
            let read = place.map(|place| self.memory.read_slice(memory, GuestAddress(place)));
            if !matches!(read, Some(Ok(()))) {
                return;
            }
            differences(section.address.wrapping_add(at), code, memory, changes);
            at += code.len() as u64;
        }
    }
}

/// Adds what differs between `code`, which is at `address`, and `memory`, which is as long.
fn differences(address: u64, code: &[u8], memory: &[u8], changes: &mut Vec<Event>) {
    if code == memory {
        return;
    }
    let different = code.iter().zip(memory).enumerate();
    let mut different = different.filter(|(_, (a, b))| a != b).map(|(at, _)| at);
    let mut next = different.next();
    while let Some(start) = next {
        let mut end = start + 1;
        loop {
            next = different.next();
            match next {
                Some(at) if at - end <= JOINED => end = at + 1,
                _ => break,
            }
        }
        changes.push(Event::KernelCode {
            address: address.wrapping_add(start as u64),
            bytes: memory.get(start..end).unwrap_or_default().into(),
        });
    }
}

/// The sections with code that the kernel keeps.
fn sections(image: &[u8]) -> Option<Vec<Section>> {
    match FileKind::parse(image).ok()? {
        FileKind::Elf32 => sections_of::<elf::FileHeader32<LittleEndian>>(image),
        FileKind::Elf64 => sections_of::<elf::FileHeader64<LittleEndian>>(image),
        _ => None,
    }
}

fn sections_of<H: FileHeader<Endian = LittleEndian>>(image: &[u8]) -> Option<Vec<Section>> {
    let file = ElfFile::<H>::parse(image).ok()?;
    let endian = file.endian();
    let segments = file.elf_header().program_headers(endian, image).ok()?;
    let mut sections = Vec::new();
    for section in file.sections() {
        let name = section.name().unwrap_or_default();
        let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
            continue;
        };
        let flags = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
        if sh_flags & flags != flags || GIVEN_UP.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let (address, size) = (section.address(), section.size());
        let place = segments.iter().find_map(|segment| {
            let distance = address.checked_sub(segment.p_vaddr(endian).into())?;
            let is_in = segment.p_type(endian) == elf::PT_LOAD
                && distance.checked_add(size)? <= segment.p_filesz(endian).into();
            is_in.then(|| segment.p_paddr(endian).into().checked_add(distance))?
        });
        if let (Some(place), Ok(code)) = (place, section.data()) {
            let address = match file.is_64() {
                true => address,
                false => extend_32(address),
            };
            sections.push(Section {
                address,
                place: GuestAddress(place),
                code: code.into(),
            });
        }
    }
    Some(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_joined_if_they_are_close() {
        let code = [0; 64];
        let mut memory = code;
        for at in [0, 3, 20, 63] {
            memory[at] = 1;
        }
        let mut changes = Vec::new();
        differences(0x1000, &code, &memory, &mut changes);
        let change = |address, bytes: &[u8]| Event::KernelCode {
            address,
            bytes: bytes.into(),
        };
        let expected = [
            change(0x1000, &[1, 0, 0, 1]),
            change(0x1014, &[1]),
            change(0x103F, &[1]),
        ];
        assert_eq!(changes, expected);
    }

    #[test]
    fn other_files_have_no_code() {
        assert!(sections(b"MZ").is_none());
        assert!(sections(&[0; 4096]).is_none());
    }
}
