//! A symbol table of an ELF file.

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, Sym as _};

use crate::elf::{Class, Le, all};

/// A symbol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// Offset of its name in the table's strings.
    pub name: u32,
    /// Its type.
    pub kind: elf::SymbolType,
    /// The section that it is in.
    pub section: elf::SymbolSection,
    /// Its address.
    pub value: u64,
    /// Its size.
    pub size: u64,
}

/// The symbols and names of a section.
#[derive(Debug)]
pub(super) struct SymbolTable {
    class: Class,
    /// The entries as they are in the file.
    pub symbols: Vec<u8>,
    /// Their names, each with a zero at its end.
    pub strings: Vec<u8>,
}

impl SymbolTable {
    /// A table without symbols.
    pub(super) fn empty(class: Class) -> Self {
        Self {
            class,
            symbols: Vec::new(),
            strings: Vec::new(),
        }
    }

    /// Number of symbols.
    pub(super) fn len(&self) -> usize {
        match self.class {
            Class::Elf32 => all::<elf::Sym32<Le>>(&self.symbols).len(),
            Class::Elf64 => all::<elf::Sym64<Le>>(&self.symbols).len(),
        }
    }

    /// The symbol with this index.
    pub(super) fn get(&self, index: usize) -> Option<Symbol> {
        fn at<H: FileHeader<Endian = Le>>(symbols: &[u8], index: usize) -> Option<Symbol> {
            let symbol = all::<H::Sym>(symbols).get(index)?;
            Some(Symbol {
                name: symbol.st_name(Le),
                kind: symbol.st_type(),
                section: symbol.st_shndx(Le),
                value: symbol.st_value(Le).into(),
                size: symbol.st_size(Le).into(),
            })
        }
        match self.class {
            Class::Elf32 => at::<FileHeader32<Le>>(&self.symbols, index),
            Class::Elf64 => at::<FileHeader64<Le>>(&self.symbols, index),
        }
    }
}
