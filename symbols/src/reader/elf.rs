//! ELF files for x86, as far as their symbols are concerned.
//!
//! The file can be anything. It is read, not mapped: the access to a mapped file that becomes
//! shorter raises SIGBUS. How much of one file is read into memory is limited.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use object::{CompressedData, CompressionFormat};

use super::stream::Stream;
use crate::elf::{Fields, HEADER_SIZE, Header, Segment, build_id};
use crate::protocol::Refusal;

/// Maximum number of bytes of one file that are read into memory.
const MAX_READ: u64 = 256 << 20;
/// Maximum number of relocations that name a function.
const MAX_RELOCATIONS: usize = 1 << 20;

const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOTE: u32 = 7;
const SHT_NOBITS: u32 = 8;
const SHT_REL: u32 = 9;
const SHT_DYNSYM: u32 = 11;
const SHF_EXECINSTR: u64 = 4;
const SHF_COMPRESSED: u64 = 1 << 11;
/// `ZLIB` and the size: what a section begins with in the format of GNU binutils before 2.26.
const GNU_HEADER: u64 = 12;
const ELFCOMPRESS_ZLIB: u32 = 1;
const ELFCOMPRESS_ZSTD: u32 = 2;

/// A section header.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    /// Address.
    pub address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

/// A symbol.
#[derive(Debug, Clone, Copy)]
pub struct Symbol {
    /// Offset of its name in the table's strings.
    pub name: u32,
    /// Its type (STT_…).
    pub kind: u8,
    /// The section that it is in.
    pub section: u16,
    /// Its address.
    pub value: u64,
    /// Its size.
    pub size: u64,
}

/// The symbols and names of a section.
#[derive(Debug, Default)]
pub struct SymbolTable {
    is_64: bool,
    symbols: Vec<u8>,
    /// Their names, each with a zero at its end.
    pub strings: Vec<u8>,
}

impl SymbolTable {
    /// Number of symbols.
    pub fn len(&self) -> usize {
        self.symbols.len() / self.entry()
    }

    fn entry(&self) -> usize {
        if self.is_64 { 24 } else { 16 }
    }

    /// The symbol with this index.
    pub fn get(&self, index: usize) -> Option<Symbol> {
        let at = index.checked_mul(self.entry())?;
        let symbol = Fields(self.symbols.get(at..)?);
        Some(match self.is_64 {
            true => Symbol {
                name: symbol.u32(0)?,
                kind: symbol.u8(4)? & 15,
                section: symbol.u16(6)?,
                value: symbol.u64(8)?,
                size: symbol.u64(16)?,
            },
            false => Symbol {
                name: symbol.u32(0)?,
                kind: symbol.u8(12)? & 15,
                section: symbol.u16(14)?,
                value: symbol.u32(4)?.into(),
                size: symbol.u32(8)?.into(),
            },
        })
    }
}

/// An ELF file.
#[derive(Debug)]
pub struct ElfFile<'a> {
    file: &'a File,
    /// Bytes that may still be read.
    left: Cell<u64>,
    /// It is a 64-bit file.
    pub is_64: bool,
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
    pub fn open(file: &'a File) -> Result<Self, Refusal> {
        let mut this = Self {
            file,
            left: Cell::new(MAX_READ),
            is_64: false,
            segments: Vec::new(),
            sections: Vec::new(),
            names: Vec::new(),
        };
        let header = this.read(0, HEADER_SIZE as u64)?;
        let header = Header::parse(&header).ok_or(Refusal::NotElf)?;
        this.is_64 = header.is_64;
        this.read_headers(header)?;
        Ok(this)
    }

    fn read_headers(&mut self, header: Header<'_>) -> Result<(), Refusal> {
        let is_64 = self.is_64;
        let fields = header.fields;
        let word = |at_64, at_32| fields.word(is_64, at_64, at_32).ok_or(Refusal::NotElf);
        let short = |at_64, at_32| {
            let at = if is_64 { at_64 } else { at_32 };
            fields.u16(at).ok_or(Refusal::NotElf)
        };
        let (at, size) = header.programs_place().ok_or(Refusal::TooLarge)?;
        self.segments = header.loaded(&self.read(at, size)?);
        let entry = if is_64 { 64 } else { 40 };
        let count = u64::from(short(60, 48)?);
        // A file without sections has no symbols.
        let sections = optional(self.read(word(40, 32)?, count * entry))?;
        self.sections = sections
            .chunks_exact(entry as usize)
            .filter_map(|section| {
                let section = Fields(section);
                Some(Section {
                    name: section.u32(0)?,
                    kind: section.u32(4)?,
                    flags: section.word(is_64, 8, 8)?,
                    address: section.word(is_64, 16, 12)?,
                    offset: section.word(is_64, 24, 16)?,
                    size: section.word(is_64, 32, 20)?,
                    link: section.u32(if is_64 { 40 } else { 24 })?,
                })
            })
            .collect();
        let names = self.sections.get(usize::from(short(62, 50)?)).copied();
        self.names = names.map_or(Ok(Vec::new()), |names| optional(self.contents(&names)))?;
        Ok(())
    }

    /// Reads a part of the file.
    fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>, Refusal> {
        let mut bytes = vec![0; self.take(size)?];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map(|()| bytes).map_err(|error| refusal(&error))
    }

    /// Takes `size` bytes from what may still be read.
    fn take(&self, size: u64) -> Result<usize, Refusal> {
        take(&self.left, size)
    }

    /// The section called `name`.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| {
            let bytes = self.names.get(section.name as usize..);
            let rest = bytes.and_then(|bytes| bytes.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// Returns whether the section with this index has code, by its flags: in a separate debug file
    /// it has no contents.
    pub fn is_code(&self, section: u16) -> bool {
        let section = self.sections.get(usize::from(section));
        section.is_some_and(|section| section.flags & SHF_EXECINSTR != 0)
    }

    /// The contents of `section` in the file.
    ///
    /// # Errors
    /// The file ends before, or the section is too large.
    pub fn contents(&self, section: &Section) -> Result<Vec<u8>, Refusal> {
        match section.kind {
            SHT_NOBITS => Ok(Vec::new()),
            _ => self.read(section.offset, section.size),
        }
    }

    /// The contents of `section`, decompressed.
    ///
    /// # Errors
    /// As [`Self::contents`], or they cannot be decompressed.
    pub fn decompressed(&self, section: &Section) -> Result<Vec<u8>, Refusal> {
        let bytes = self.contents(section)?;
        if section.flags & SHF_COMPRESSED == 0 {
            return Ok(bytes);
        }
        let header = Fields(&bytes);
        let format = match header.u32(0) {
            Some(ELFCOMPRESS_ZLIB) => CompressionFormat::Zlib,
            Some(ELFCOMPRESS_ZSTD) => CompressionFormat::Zstandard,
            _ => return Err(Refusal::NotElf),
        };
        let size = header.word(self.is_64, 8, 4).ok_or(Refusal::NotElf)?;
        let data = bytes.get(if self.is_64 { 24 } else { 12 }..);
        self.decompress(format, data.unwrap_or_default(), size)
    }

    /// The contents of `section`, decompressed, from their front. What is read of them may take the
    /// memory that others of the file have left.
    ///
    /// # Errors
    /// They cannot be decompressed.
    pub fn stream(&self, section: &Section) -> Result<Stream<'_>, Refusal> {
        if section.kind == SHT_NOBITS {
            return Err(Refusal::NotElf);
        }
        let left = &self.left;
        if section.flags & SHF_COMPRESSED == 0 {
            return Ok(Stream::plain(self.file, section.offset, section.size, left));
        }
        let header_size = if self.is_64 { 24 } else { 12 };
        let header = self.read(section.offset, header_size)?;
        let at = section.offset.checked_add(header_size);
        let size = section.size.checked_sub(header_size);
        let (at, size) = at.zip(size).ok_or(Refusal::NotElf)?;
        match Fields(&header).u32(0) {
            Some(ELFCOMPRESS_ZLIB) => Ok(Stream::zlib(self.file, at, size, left)),
            Some(ELFCOMPRESS_ZSTD) => Stream::zstd(self.file, at, size, left),
            _ => Err(Refusal::NotElf),
        }
    }

    /// [`Self::stream`] of the format of GNU binutils before 2.26.
    ///
    /// # Errors
    /// As [`Self::stream`].
    pub fn stream_gnu(&self, section: &Section) -> Result<Stream<'_>, Refusal> {
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
    pub fn decompressed_gnu(&self, section: &Section) -> Result<Vec<u8>, Refusal> {
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
        self.take(uncompressed_size)?;
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
    pub fn symbol_tables(&self) -> Result<[SymbolTable; 2], Refusal> {
        Ok([self.table(SHT_SYMTAB)?, self.table(SHT_DYNSYM)?])
    }

    fn table(&self, kind: u32) -> Result<SymbolTable, Refusal> {
        let mut table = SymbolTable {
            is_64: self.is_64,
            ..SymbolTable::default()
        };
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
    pub fn dynamic_relocations(&self) -> Result<Vec<(u64, u32)>, Refusal> {
        let is_64 = self.is_64;
        let mut all = Vec::new();
        for section in &self.sections {
            let entry = match (section.kind, is_64) {
                (SHT_RELA, true) => 24,
                (SHT_REL, true) => 16,
                (SHT_RELA, false) => 12,
                (SHT_REL, false) => 8,
                _ => continue,
            };
            let table = self.sections.get(section.link as usize);
            if table.is_none_or(|table| table.kind != SHT_DYNSYM) {
                continue;
            }
            for relocation in optional(self.contents(section))?.chunks_exact(entry) {
                let relocation = Fields(relocation);
                let symbol = match is_64 {
                    true => relocation.u32(12),
                    false => relocation.u32(4).map(|info| info >> 8),
                };
                if let Some(address) = relocation.word(is_64, 0, 0)
                    && let Some(symbol) = symbol
                    && symbol != 0
                {
                    if all.len() == MAX_RELOCATIONS {
                        return Err(Refusal::TooLarge);
                    }
                    all.push((address, symbol));
                }
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    /// The build ID; nothing if it has none.
    ///
    /// # Errors
    /// The notes are too large.
    pub fn build_id(&self) -> Result<Vec<u8>, Refusal> {
        for section in self.sections.iter().filter(|s| s.kind == SHT_NOTE) {
            let notes = optional(self.contents(section))?;
            if let Some(id) = build_id(&notes) {
                return Ok(id.to_vec());
            }
        }
        Ok(Vec::new())
    }
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
pub fn optional<T: Default>(read: Result<T, Refusal>) -> Result<T, Refusal> {
    match read {
        Err(Refusal::NotElf) => Ok(T::default()),
        read => read,
    }
}
