//! ELF files for kernels whose own file has no symbols, such as a bzImage.

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, Sym, Writer};

/// Returns whether a symbol of this type, as nm has it, is code.
pub fn is_function_type(kind: u8) -> bool {
    matches!(kind, b't' | b'T' | b'w' | b'W')
}

/// Alignment of code in the file.
const ALIGNMENT: u64 = 16;
/// Size in bytes that the last function is taken to have.
const MAX_FUNCTION: u64 = 4096;

/// A function of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFunction {
    /// Its linear address while the kernel runs.
    pub address: u64,
    /// Its name, without zero bytes.
    pub name: Vec<u8>,
}

/// The names of a kernel's functions, and its code as far as it is known.
#[derive(Debug, Default)]
pub struct KernelImage {
    /// The addresses have 64 bits.
    pub is_64_bit: bool,
    /// The functions, in any order.
    pub functions: Vec<KernelFunction>,
    /// Linear addresses of code, and the bytes: of the kernel, and of each of its modules.
    pub code: Vec<(u64, Vec<u8>)>,
}

impl KernelImage {
    /// Encodes the image as an ELF file that has the addresses of the running kernel. A function
    /// has no size: it extends to the next one.
    ///
    /// # Errors
    /// The file would exceed the limits of its class.
    pub fn to_elf(&self) -> Result<Vec<u8>, object::write::Error> {
        let mut out = Vec::new();
        let mut writer = Writer::new(Endianness::Little, self.is_64_bit, &mut out);

        writer.reserve_null_section_index();
        let text_name = writer.add_section_name(b".text");
        let texts: Vec<_> = self
            .code
            .iter()
            .map(|(start, code)| {
                let end = start.saturating_add(code.len() as u64);
                (*start..end, writer.reserve_section_index())
            })
            .collect();
        let freed_name = writer.add_section_name(b".text.freed");
        let freed = writer.reserve_section_index();
        writer.reserve_symtab_section_index();
        writer.reserve_strtab_section_index();
        writer.reserve_shstrtab_section_index();
        writer.reserve_null_symbol_index();
        // What follows the kernel's code is not in memory any more, such as that of its start.
        let end = texts.first().map_or(0, |(addresses, _)| addresses.end);
        let section_of = |function: &KernelFunction| {
            let mut texts = texts.iter();
            let first = texts.clone().next().filter(|_| function.address < end);
            let found = texts.find(|(addresses, _)| addresses.contains(&function.address));
            found.or(first).map_or(freed, |(_, index)| *index)
        };
        let mut last = None;
        let symbols: Vec<_> = self
            .functions
            .iter()
            .map(|function| {
                let section = section_of(function);
                if section == freed {
                    last = last.max(Some(function.address));
                }
                writer.reserve_symbol_index(Some(section));
                (section, writer.add_string(&function.name))
            })
            .collect();
        let last = last.map_or(end, |last| last.saturating_add(MAX_FUNCTION));
        writer.reserve_file_header();
        writer.reserve_program_headers(self.code.len() as u32);
        let offsets: Vec<u64> = self
            .code
            .iter()
            .map(|(_, code)| writer.reserve(code.len() as u64, ALIGNMENT))
            .collect();
        writer.reserve_symtab();
        writer.reserve_strtab()?;
        writer.reserve_shstrtab()?;
        writer.reserve_section_headers();

        writer.write_file_header(&FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: elf::ET_EXEC,
            e_machine: match self.is_64_bit {
                true => elf::EM_X86_64,
                false => elf::EM_386,
            },
            e_entry: 0,
            e_flags: elf::FileFlags(0),
        })?;
        writer.write_align_program_headers();
        for ((address, code), offset) in self.code.iter().zip(&offsets) {
            writer.write_program_header(&ProgramHeader {
                p_type: elf::PT_LOAD,
                p_flags: elf::PF_R | elf::PF_X,
                p_offset: *offset,
                p_vaddr: *address,
                p_paddr: *address,
                p_filesz: code.len() as u64,
                p_memsz: code.len() as u64,
                p_align: 1,
            });
        }
        for (_, code) in &self.code {
            writer.write_align(ALIGNMENT);
            writer.write(code);
        }
        writer.write_null_symbol();
        for (function, (section, name)) in self.functions.iter().zip(symbols) {
            writer.write_symbol(&Sym {
                section: Some(section.0),
                st_name: writer.string_offset(Some(name)),
                st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
                st_other: elf::SymbolOther(0),
                st_shndx: elf::SHN_UNDEF,
                st_value: function.address,
                st_size: 0,
            });
        }
        writer.write_strtab();
        writer.write_shstrtab();
        writer.write_null_section_header();
        for ((address, code), offset) in self.code.iter().zip(&offsets) {
            writer.write_section_header(&SectionHeader {
                sh_name: writer.section_name_offset(Some(text_name)),
                sh_type: elf::SHT_PROGBITS,
                sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
                sh_addr: *address,
                sh_offset: *offset,
                sh_size: code.len() as u64,
                sh_link: 0,
                sh_info: 0,
                sh_addralign: ALIGNMENT,
                sh_entsize: 0,
            });
        }
        writer.write_section_header(&SectionHeader {
            sh_name: writer.section_name_offset(Some(freed_name)),
            sh_type: elf::SHT_NOBITS,
            sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
            sh_addr: end,
            sh_offset: 0,
            sh_size: last.saturating_sub(end),
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 1,
            sh_entsize: 0,
        });
        writer.write_symtab_section_header(1);
        writer.write_strtab_section_header();
        writer.write_shstrtab_section_header();
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

    #[test]
    fn the_file_has_the_functions_and_the_code() {
        for (is_64_bit, start) in [(true, 0xFFFF_FFFF_B100_0000), (false, 0xC100_0000)] {
            let function = |distance, name: &[u8]| KernelFunction {
                address: start + distance,
                name: name.to_vec(),
            };
            let module = start + 0x4000;
            let functions = [(0x10, "first"), (0x30, "freed"), (0x4000, "of_a_module")];
            let image = KernelImage {
                is_64_bit,
                functions: functions
                    .iter()
                    .map(|(at, name)| function(*at, name.as_bytes()))
                    .collect(),
                code: vec![(start, vec![0x90; 0x20]), (module, vec![0xC3; 8])],
            };
            let bytes = image.to_elf().unwrap();
            let file = object::File::parse(&bytes[..]).unwrap();
            assert_eq!(file.is_64(), is_64_bit);
            let symbols = file.symbols().map(|s| (s.address(), s.name().unwrap()));
            let symbols: Vec<_> = symbols.collect();
            assert_eq!(symbols, functions.map(|(at, name)| (start + at, name)));
            let segments = file.segments().map(|s| (s.address(), s.data().unwrap()));
            let segments: Vec<_> = segments.collect();
            let expected: [(u64, &[u8]); 2] = [(start, &[0x90; 0x20]), (module, &[0xC3; 8])];
            assert_eq!(segments, expected);
            let sections: Vec<_> = file
                .symbols()
                .map(|symbol| symbol.section_index().map(|index| index.0))
                .collect();
            assert_eq!(sections, [Some(1), Some(3), Some(2)]);
        }
    }
}
