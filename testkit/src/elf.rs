//! ELF files for tests of what reads them, hostile ones among them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Address at which the code of a program begins.
pub const CODE: u64 = 0x40_1000;
/// Offset of the code in the file.
const CODE_OFFSET: u64 = 0x1000;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_RELA: u32 = 4;
const SHT_DYNSYM: u32 = 11;
const SHF_COMPRESSED: u64 = 1 << 11;
const STT_FUNC: u8 = 2;

/// A section.
#[derive(Debug, Clone, Default)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    /// Index of the section that it belongs to.
    link: u32,
    bytes: Vec<u8>,
    /// Its size, if the file has a hole behind `bytes`.
    size: u64,
}

/// A 64-bit program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    code: Vec<u8>,
    address: u64,
    sections: Vec<Section>,
}

impl Program {
    /// A program with this code.
    pub fn new(code: &[u8]) -> Self {
        Self {
            code: code.to_vec(),
            address: CODE,
            sections: vec![Section::default()],
        }
    }

    /// Sets the address of the code.
    #[must_use]
    pub fn at(self, address: u64) -> Self {
        Self { address, ..self }
    }

    fn section(mut self, name: &'static str, kind: u32, link: u32, bytes: Vec<u8>) -> Self {
        self.sections.push(Section {
            name,
            kind,
            link,
            bytes,
            ..Section::default()
        });
        self
    }

    /// Adds a section of debugging information, such as `.debug_info`.
    #[must_use]
    pub fn debug(self, name: &'static str, bytes: Vec<u8>) -> Self {
        self.section(name, SHT_PROGBITS, 0, bytes)
    }

    /// Adds functions: the address, the size and the name of each.
    #[must_use]
    pub fn functions(self, functions: &[(u64, u64, &str)]) -> Self {
        let (mut symbols, mut strings) = (vec![0; 24], vec![0]);
        for (address, size, name) in functions {
            symbol(&mut symbols, strings.len() as u32, *address, *size);
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        self.symbol_table(".symtab", SHT_SYMTAB, symbols, strings)
    }

    /// Adds `count` functions with the same name, which has `length` characters.
    #[must_use]
    pub fn many_functions(self, count: u64, length: usize) -> Self {
        let mut symbols = vec![0; 24];
        for n in 0..count {
            symbol(&mut symbols, 1, CODE + n, 1);
        }
        let strings = [&[0][..], &vec![b'a'; length], &[0]].concat();
        self.symbol_table(".symtab", SHT_SYMTAB, symbols, strings)
    }

    fn symbol_table(
        self,
        name: &'static str,
        kind: u32,
        symbols: Vec<u8>,
        strings: Vec<u8>,
    ) -> Self {
        let link = self.sections.len() as u32 + 1;
        self.section(name, kind, link, symbols)
            .section(".strtab", SHT_STRTAB, 0, strings)
    }

    /// Adds `count` relocations of a function whose name has `length` characters.
    #[must_use]
    pub fn many_relocations(self, count: u64, length: usize) -> Self {
        let mut symbols = vec![0; 24];
        // It is in another object.
        symbol(&mut symbols, 1, 0, 0);
        symbols[30] = 0;
        let strings = [&[0][..], &vec![b'a'; length], &[0]].concat();
        let table = self.sections.len() as u32;
        let mut relocations = Vec::new();
        for n in 0..count {
            for word in [CODE + n, 7 | 1 << 32, 0] {
                relocations.extend_from_slice(&word.to_le_bytes());
            }
        }
        self.symbol_table(".dynsym", SHT_DYNSYM, symbols, strings)
            .section(".rela.plt", SHT_RELA, table, relocations)
    }

    /// Adds a section `name` of `size` bytes that are a hole of the file.
    #[must_use]
    pub fn hole(mut self, name: &'static str, size: u64) -> Self {
        self = self.section(name, SHT_PROGBITS, 0, Vec::new());
        if let Some(section) = self.sections.last_mut() {
            section.size = size;
        }
        self
    }

    /// Adds a section `name` of `size` zeros, which are compressed.
    #[must_use]
    pub fn compressed_zeros(mut self, name: &'static str, size: u64) -> Self {
        /// Zeros in a block of Zstandard.
        const BLOCK: u64 = 128 << 10;
        const ELFCOMPRESS_ZSTD: u64 = 2;
        let mut bytes: Vec<u8> = [ELFCOMPRESS_ZSTD, size, 1]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        // The magic number, no flags, and a window of a block.
        bytes.extend_from_slice(&[0x28, 0xB5, 0x2F, 0xFD, 0, 0x38]);
        let blocks = size.div_ceil(BLOCK);
        for block in 1..=blocks {
            let length = (size - (block - 1) * BLOCK).min(BLOCK) as u32;
            let header = u32::from(block == blocks) | 1 << 1 | length << 3;
            bytes.extend_from_slice(&header.to_le_bytes()[..3]);
            bytes.push(0);
        }
        self = self.debug(name, bytes);
        if let Some(section) = self.sections.last_mut() {
            section.flags = SHF_COMPRESSED;
        }
        self
    }

    /// Adds debugging information of `units` units of 12 bytes, each with another part of one table
    /// of `abbreviations`.
    #[must_use]
    pub fn small_units(self, units: u32, abbreviations: u16) -> Self {
        // A table has 7 bytes for each: the code, DW_TAG_compile_unit, no children, no attributes.
        // The last one is that of the units, so that it is in each part.
        let table = (1..=abbreviations).rev().flat_map(|n| {
            let code = [0x80 | n as u8, 0x80 | (n >> 7) as u8, (n >> 14) as u8];
            [code[0], code[1], code[2], 0x11, 0, 0, 0]
        });
        let mut info = Vec::new();
        for unit in 0..units {
            let offset = 7 * (unit % u32::from(abbreviations));
            info.extend_from_slice(&8u32.to_le_bytes());
            info.extend_from_slice(&4u16.to_le_bytes());
            info.extend_from_slice(&offset.to_le_bytes());
            info.extend_from_slice(&[8, 1]);
        }
        self.debug(".debug_abbrev", table.chain([0]).collect())
            .debug(".debug_info", info)
            .debug(".debug_line", vec![0; 16])
    }

    /// Adds debugging information of `units` units, which share a table with `rows` lines for the
    /// code, one for each byte, in the source files `/0` and `/1` in turn.
    #[must_use]
    pub fn many_lines(self, units: u32, rows: u32) -> Self {
        // DW_TAG_compile_unit with DW_AT_stmt_list, DW_AT_low_pc and DW_AT_high_pc.
        let abbreviations = vec![1, 0x11, 0, 0x10, 0x17, 0x11, 1, 0x12, 6, 0, 0, 0];
        let mut unit = vec![24, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0];
        unit.extend_from_slice(&self.address.to_le_bytes());
        unit.extend_from_slice(&rows.to_le_bytes());
        let info = unit.repeat(units as usize);
        // The header of version 4: the sizes of the standard opcodes' operands and the files.
        let mut header = vec![1, 1, 1, 0xFB, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0];
        header.extend_from_slice(b"/0\0\0\0\0/1\0\0\0\0\0");
        // DW_LNE_set_address.
        let mut program = vec![0, 9, 2];
        program.extend_from_slice(&self.address.to_le_bytes());
        for row in 0..rows {
            // DW_LNS_set_file; the next line and the next address.
            program.extend_from_slice(&[4, 1 + (row % 2) as u8, 33]);
        }
        // DW_LNE_end_sequence.
        program.extend_from_slice(&[0, 1, 1]);
        let size = 6 + header.len() as u32 + program.len() as u32;
        let mut line = size.to_le_bytes().to_vec();
        line.extend_from_slice(&[4, 0]);
        line.extend_from_slice(&(header.len() as u32).to_le_bytes());
        line.extend_from_slice(&header);
        line.extend_from_slice(&program);
        self.debug(".debug_abbrev", abbreviations)
            .debug(".debug_info", info)
            .debug(".debug_line", line)
    }

    /// Creates the file at `path`.
    ///
    /// # Errors
    /// Those of the host.
    pub fn create(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.mode(0o755).open(path)?;
        self.write(&file)?;
        Ok(file)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of the host.
    pub fn write(&self, file: &File) -> io::Result<()> {
        let mut sections = self.sections.clone();
        let mut names = vec![0];
        for section in sections.iter().chain([&Section::default()]).skip(1) {
            names.extend_from_slice(section.name.as_bytes());
            names.push(0);
        }
        sections.push(Section {
            name: "",
            kind: SHT_STRTAB,
            bytes: names,
            ..Section::default()
        });
        let mut at = CODE_OFFSET + self.code.len() as u64;
        let mut table = Vec::new();
        let mut name = 1u32;
        for (n, section) in sections.iter().enumerate() {
            let size = section.size.max(section.bytes.len() as u64);
            file.write_all_at(&section.bytes, at)?;
            let is_null = n == 0;
            let name_at = if is_null { 0 } else { name };
            table.extend_from_slice(&name_at.to_le_bytes());
            table.extend_from_slice(&section.kind.to_le_bytes());
            for word in [section.flags, 0, at, size] {
                table.extend_from_slice(&word.to_le_bytes());
            }
            table.extend_from_slice(&section.link.to_le_bytes());
            table.extend_from_slice(&0u32.to_le_bytes());
            for word in [1u64, 0] {
                table.extend_from_slice(&word.to_le_bytes());
            }
            if !is_null {
                name += section.name.len() as u32 + 1;
            }
            at += size;
        }
        file.write_all_at(&table, at)?;
        file.write_all_at(&self.code, CODE_OFFSET)?;
        file.write_all_at(&self.headers(at, sections.len() as u16), 0)
    }

    fn headers(&self, sections_at: u64, sections: u16) -> Vec<u8> {
        let mut header = vec![0; HEADER + PROGRAM_HEADER];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        let size = self.code.len() as u64;
        put(0, b"\x7fELF\x02\x01\x01");
        // An executable file for x86-64.
        put(16, &[2, 0, 62, 0, 1]);
        put(24, &self.address.to_le_bytes());
        put(32, &(HEADER as u64).to_le_bytes());
        put(40, &sections_at.to_le_bytes());
        for (at, value) in [
            (52, 64),
            (54, 56),
            (56, 1),
            (58, 64),
            (60, sections),
            (62, sections - 1),
        ] {
            put(at, &value.to_le_bytes());
        }
        // A loaded segment that can be read and executed.
        put(64, &[1, 0, 0, 0, 5]);
        for (n, word) in [CODE_OFFSET, self.address, self.address, size, size, 0x1000]
            .iter()
            .enumerate()
        {
            put(72 + 8 * n, &word.to_le_bytes());
        }
        header
    }
}

fn symbol(symbols: &mut Vec<u8>, name: u32, address: u64, size: u64) {
    symbols.extend_from_slice(&name.to_le_bytes());
    // It is global, and in the first section.
    symbols.extend_from_slice(&[1 << 4 | STT_FUNC, 0, 1, 0]);
    symbols.extend_from_slice(&address.to_le_bytes());
    symbols.extend_from_slice(&size.to_le_bytes());
}

/// A mangled C++ function whose parameters are pairs of the parameter before, so that each doubles
/// the length of what the name stands for.
pub fn nested_name(levels: usize) -> String {
    let mut name = String::from("_Z1f1a");
    for n in 0..levels {
        // `S0_` and so on are the parts of the name so far.
        let part = match n {
            0 => "S_".into(),
            n => format!("S{}_", in_base_36(2 * n - 1)),
        };
        name += &format!("1bI{part}{part}E");
    }
    name
}

fn in_base_36(number: usize) -> String {
    let digit = |n: usize| char::from(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[n % 36]);
    match number {
        0..36 => digit(number).into(),
        _ => [digit(number / 36), digit(number)].iter().collect(),
    }
}
