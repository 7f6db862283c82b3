//! ELF files for x86, as far as their symbols are concerned.
//!
//! The file can be anything. It is read, not mapped: the access to a mapped file that becomes
//! shorter raises SIGBUS. How much of one file is read into memory is limited.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{
    CompressionHeader as _, FileHeader, Rel as _, Rela as _, SectionHeader as _,
};
use object::{CompressedData, CompressionFormat};

use super::stream::Stream;
use super::symbol_table::SymbolTable;
use crate::elf::{
    Class, HEADER_SIZE, Le, Segment, all, build_id_among, front, programs_place, segments_of,
};
use crate::protocol::Refusal;

/// Maximum number of bytes of one file that are read into memory.
const MAX_READ: u64 = 256 << 20;
/// Maximum number of relocations that name a function.
const MAX_RELOCATIONS: usize = 1 << 20;

/// `ZLIB` and the size: what a section begins with in the format of GNU binutils before 2.26.
const GNU_HEADER: u64 = 12;

/// A section header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Section {
    name: u32,
    kind: elf::SectionType,
    flags: elf::SectionFlags,
    /// Address.
    pub address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

impl Section {
    fn new<H: FileHeader<Endian = Le>>(header: &H::SectionHeader) -> Self {
        Self {
            name: header.sh_name(Le),
            kind: header.sh_type(Le),
            flags: header.sh_flags(Le),
            address: header.sh_addr(Le).into(),
            offset: header.sh_offset(Le).into(),
            size: header.sh_size(Le).into(),
            link: header.sh_link(Le),
        }
    }

    /// Returns the addresses of its contents.
    pub(super) fn addresses(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }

    fn is_compressed(&self) -> bool {
        self.flags.contains(elf::SHF_COMPRESSED)
    }
}

/// An ELF file.
#[derive(Debug)]
pub(super) struct ElfFile<'a> {
    file: &'a File,
    /// Bytes that may still be read.
    left: Cell<u64>,
    class: Class,
    /// Its loaded segments.
    pub segments: Vec<Segment>,
    sections: Vec<Section>,
    /// The names of the sections.
    names: Vec<u8>,
}

impl<'a> ElfFile<'a> {
    /// Reads the headers of `file`.
    ///
    /// # Errors
    /// It is no ELF file for x86, or its headers are too large.
    pub(super) fn open(file: &'a File) -> Result<Self, Refusal> {
        let left = Cell::new(MAX_READ);
        let start = read(file, &left, 0, HEADER_SIZE as u64)?;
        let class = Class::of(&start).ok_or(Refusal::NotElf)?;
        let mut this = Self {
            file,
            left,
            class,
            segments: Vec::new(),
            sections: Vec::new(),
            names: Vec::new(),
        };
        match class {
            Class::Elf32 => this.read_headers::<FileHeader32<Le>>(&start)?,
            Class::Elf64 => this.read_headers::<FileHeader64<Le>>(&start)?,
        }
        Ok(this)
    }

    fn read_headers<H: FileHeader<Endian = Le>>(&mut self, start: &[u8]) -> Result<(), Refusal> {
        let header = front::<H>(start).ok_or(Refusal::NotElf)?;
        let (at, size) = programs_place(header).ok_or(Refusal::TooLarge)?;
        self.segments = segments_of::<H>(&self.read(at, size)?, elf::PT_LOAD);
        let size = usize::from(header.e_shnum(Le)) * size_of::<H::SectionHeader>();
        // A file without sections has no symbols.
        let sections = optional(self.read(header.e_shoff(Le).into(), size as u64))?;
        let sections = all::<H::SectionHeader>(&sections).iter();
        self.sections = sections.map(Section::new::<H>).collect();
        let names = self.sections.get(usize::from(header.e_shstrndx(Le).0));
        self.names = match names {
            Some(names) => optional(self.contents(names))?,
            None => Vec::new(),
        };
        Ok(())
    }

    /// Whether the file has 64 bits.
    pub(super) fn is_64(&self) -> bool {
        self.class == Class::Elf64
    }

    /// Reads a part of the file.
    fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>, Refusal> {
        read(self.file, &self.left, offset, size)
    }

    /// The section called `name`.
    pub(super) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| {
            let bytes = self.names.get(section.name as usize..);
            let rest = bytes.and_then(|bytes| bytes.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// Returns whether the section with this index has code, by its flags: in a separate debug file
    /// it has no contents.
    pub(super) fn is_code(&self, section: elf::SymbolSection) -> bool {
        let section = self.sections.get(usize::from(section.0));
        section.is_some_and(|section| section.flags.contains(elf::SHF_EXECINSTR))
    }

    /// The contents of `section` in the file.
    ///
    /// # Errors
    /// The file ends before, or the section is too large.
    pub(super) fn contents(&self, section: &Section) -> Result<Vec<u8>, Refusal> {
        match section.kind {
            elf::SHT_NOBITS => Ok(Vec::new()),
            _ => self.read(section.offset, section.size),
        }
    }

    /// The contents of `section`, decompressed.
    ///
    /// # Errors
    /// As [`Self::contents`], or they cannot be decompressed.
    pub(crate) fn decompressed(&self, section: &Section) -> Result<Vec<u8>, Refusal> {
        let bytes = self.contents(section)?;
        if !section.is_compressed() {
            return Ok(bytes);
        }
        let header = self.compression(&bytes)?;
        let data = bytes.get(self.compression_size()..);
        self.decompress(header.format, data.unwrap_or_default(), header.size)
    }

    /// The offset in the file of the contents of `section`, if it has some and they are not
    /// compressed.
    pub(super) fn place(&self, section: &Section) -> Option<u64> {
        let is_plain = section.kind != elf::SHT_NOBITS && !section.is_compressed();
        is_plain.then_some(section.offset)
    }

    /// Size in bytes of the header of a compressed section.
    fn compression_size(&self) -> usize {
        match self.class {
            Class::Elf32 => size_of::<elf::CompressionHeader32<Le>>(),
            Class::Elf64 => size_of::<elf::CompressionHeader64<Le>>(),
        }
    }

    /// The header of a compressed section, at the front of its contents.
    fn compression(&self, contents: &[u8]) -> Result<Compression, Refusal> {
        fn at<H: FileHeader<Endian = Le>>(contents: &[u8]) -> Option<Compression> {
            let header = front::<H::CompressionHeader>(contents)?;
            Some(Compression {
                format: match header.ch_type(Le) {
                    elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                    elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                    _ => return None,
                },
                size: header.ch_size(Le).into(),
            })
        }
        let header = match self.class {
            Class::Elf32 => at::<FileHeader32<Le>>(contents),
            Class::Elf64 => at::<FileHeader64<Le>>(contents),
        };
        header.ok_or(Refusal::NotElf)
    }

    /// The contents of `section`, decompressed, from their front. What is read of them may take the
    /// memory that others of the file have left.
    ///
    /// # Errors
    /// They cannot be decompressed.
    pub(super) fn stream(&self, section: &Section) -> Result<Stream<'_>, Refusal> {
        if section.kind == elf::SHT_NOBITS {
            return Err(Refusal::NotElf);
        }
        let left = &self.left;
        if !section.is_compressed() {
            return Ok(Stream::plain(self.file, section.offset, section.size, left));
        }
        let header_size = self.compression_size() as u64;
        let header = self.read(section.offset, header_size)?;
        let at = section.offset.checked_add(header_size);
        let size = section.size.checked_sub(header_size);
        let (at, size) = at.zip(size).ok_or(Refusal::NotElf)?;
        match self.compression(&header)?.format {
            CompressionFormat::Zlib => Ok(Stream::zlib(self.file, at, size, left)),
            _ => Stream::zstd(self.file, at, size, left),
        }
    }

    /// [`Self::stream`] of the format of GNU binutils before 2.26.
    ///
    /// # Errors
    /// As [`Self::stream`].
    pub(crate) fn stream_gnu(&self, section: &Section) -> Result<Stream<'_>, Refusal> {
        let header = self.read(section.offset, GNU_HEADER)?;
        let at = section.offset.checked_add(GNU_HEADER);
        let size = section.size.checked_sub(GNU_HEADER);
        let place = at.zip(size).filter(|_| header.starts_with(b"ZLIB"));
        let (at, size) = place.ok_or(Refusal::NotElf)?;
        Ok(Stream::zlib(self.file, at, size, &self.left))
    }

    /// The contents of `section` in the format of GNU binutils before 2.26.
    ///
    /// # Errors
    /// As [`Self::decompressed`].
    pub(crate) fn decompressed_gnu(&self, section: &Section) -> Result<Vec<u8>, Refusal> {
        let bytes = self.contents(section)?;
        let header = bytes
            .strip_prefix(b"ZLIB")
            .and_then(<[u8]>::split_first_chunk);
        let (size, data) = header.ok_or(Refusal::NotElf)?;
        self.decompress(CompressionFormat::Zlib, data, u64::from_be_bytes(*size))
    }

    fn decompress(
        &self,
        format: CompressionFormat,
        data: &[u8],
        uncompressed_size: u64,
    ) -> Result<Vec<u8>, Refusal> {
        // Decompression returns at most this size.
        take(&self.left, uncompressed_size)?;
        let data = CompressedData {
            format,
            data,
            uncompressed_size,
        };
        let bytes = data.decompress().map_err(|_| Refusal::NotElf)?;
        Ok(bytes.into_owned())
    }

    /// The symbol tables: that of the linker, and that of the dynamic linker.
    ///
    /// # Errors
    /// They are too large.
    pub(crate) fn symbol_tables(&self) -> Result<[SymbolTable; 2], Refusal> {
        Ok([self.table(elf::SHT_SYMTAB)?, self.table(elf::SHT_DYNSYM)?])
    }

    fn table(&self, kind: elf::SectionType) -> Result<SymbolTable, Refusal> {
        let mut table = SymbolTable::empty(self.class);
        if let Some(section) = self.sections.iter().find(|section| section.kind == kind)
            && let Some(strings) = self.sections.get(section.link as usize)
        {
            table.symbols = optional(self.contents(section))?;
            table.strings = optional(self.contents(strings))?;
        }
        Ok(table)
    }

    /// The relocations that belong to dynamic symbols: the address, and the index of the symbol.
    /// They are sorted.
    ///
    /// # Errors
    /// They are too many.
    pub(crate) fn dynamic_relocations(&self) -> Result<Vec<(u64, u32)>, Refusal> {
        match self.class {
            Class::Elf32 => self.relocations::<FileHeader32<Le>>(),
            Class::Elf64 => self.relocations::<FileHeader64<Le>>(),
        }
    }

    fn relocations<H: FileHeader<Endian = Le>>(&self) -> Result<Vec<(u64, u32)>, Refusal> {
        let mut found = Vec::new();
        for section in &self.sections {
            let table = self.sections.get(section.link as usize);
            if table.is_none_or(|table| table.kind != elf::SHT_DYNSYM) {
                continue;
            }
            let mut add = |address: u64, symbol: u32| match found.len() {
                _ if symbol == 0 => Ok(()),
                MAX_RELOCATIONS => Err(Refusal::TooLarge),
                _ => {
                    found.push((address, symbol));
                    Ok(())
                }
            };
            match section.kind {
                elf::SHT_RELA => {
                    for entry in all::<H::Rela>(&optional(self.contents(section))?) {
                        add(entry.r_offset(Le).into(), entry.r_sym(Le, false))?;
                    }
                }
                elf::SHT_REL => {
                    for entry in all::<H::Rel>(&optional(self.contents(section))?) {
                        add(entry.r_offset(Le).into(), entry.r_sym(Le))?;
                    }
                }
                _ => {}
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The build ID; nothing if it has none.
    ///
    /// # Errors
    /// The notes are too large.
    pub(super) fn build_id(&self) -> Result<Vec<u8>, Refusal> {
        for section in self.sections.iter().filter(|s| s.kind == elf::SHT_NOTE) {
            let notes = optional(self.contents(section))?;
            if let Some(id) = build_id_among(&notes) {
                return Ok(id.to_vec());
            }
        }
        Ok(Vec::new())
    }
}

/// The header of a compressed section.
struct Compression {
    format: CompressionFormat,
    /// Size in bytes without compression.
    size: u64,
}

/// Reads a part of `file`, within what is `left`.
fn read(file: &File, left: &Cell<u64>, offset: u64, size: u64) -> Result<Vec<u8>, Refusal> {
    let mut bytes = vec![0; take(left, size)?];
    let read = file.read_exact_at(&mut bytes, offset);
    read.map(|()| bytes).map_err(|error| refusal(&error))
}

/// Takes `size` bytes from those that are left.
pub(super) fn take(left: &Cell<u64>, size: u64) -> Result<usize, Refusal> {
    left.set(left.get().checked_sub(size).ok_or(Refusal::TooLarge)?);
    usize::try_from(size).map_err(|_| Refusal::TooLarge)
}

/// Why bytes could not be read: the host did not read them, or the file does not have them.
pub(super) fn refusal(error: &io::Error) -> Refusal {
    match error.raw_os_error() {
        // No file has such an offset.
        None | Some(libc::EINVAL) => Refusal::NotElf,
        Some(_) => Refusal::Unreadable,
    }
}

/// What a part of the file has: nothing, if it is malformed.
pub(super) fn optional<T: Default>(read: Result<T, Refusal>) -> Result<T, Refusal> {
    match read {
        Err(Refusal::NotElf) => Ok(T::default()),
        read => read,
    }
}
