//! The symbols of an ELF file: functions, stubs of the procedure linkage table, and source lines.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, ProgramHeader};
use object::{
    Endianness, FileKind, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache,
    RelocationTarget, SectionFlags, SymbolKind, elf,
};

use super::lines::Lines;
use crate::root::Root;

/// Directory of separate debug files, by build ID.
const DEBUG_FILES: &str = "/usr/lib/debug/.build-id";

/// Maximum size of a file in bytes. Its symbol table could take as much memory.
const MAX_FILE: u64 = 4 << 30;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    start: u64,
    /// First address after it.
    end: u64,
    /// Range of its name in `ObjectFile::names`.
    name: (u32, u32),
}

/// A loaded segment, which maps offsets in the file to addresses.
#[derive(Debug)]
struct Segment {
    offset: u64,
    size: u64,
    address: u64,
}

/// The symbols of one ELF file.
#[derive(Default)]
pub struct ObjectFile {
    segments: Vec<Segment>,
    /// Sorted by start address. They can overlap if the file says so.
    functions: Vec<Function>,
    names: String,
    lines: Option<Lines>,
}

impl std::fmt::Debug for ObjectFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectFile")
            .field("functions", &self.functions.len())
            .finish_non_exhaustive()
    }
}

impl ObjectFile {
    /// Reads the ELF file at `path` inside `root`; `None` if it is not an ELF file.
    pub fn open(root: &Root, path: &Path) -> Option<Self> {
        let file = root.open_file(path).ok().filter(is_suitable)?;
        let mut this = Self::default();
        let build_id = this.read(&file, true)?;
        let debug_file = build_id
            .and_then(|id| debug_file_path(&id))
            .and_then(|path| root.open_file(&path).ok())
            .filter(is_suitable);
        if let Some(debug_file) = &debug_file {
            this.read(debug_file, false);
        }
        this.finish();
        this.lines = debug_file.iter().chain([&file]).find_map(Lines::read);
        Some(this)
    }

    /// Reads the kernel at `path` of the host; `None` if the file has no functions, like a bzImage.
    /// The kernel runs at the addresses in the file.
    pub fn of_kernel(path: &Path) -> Option<Self> {
        let file = File::open(path).ok().filter(is_suitable)?;
        let mut this = Self::default();
        this.read(&file, true)?;
        this.finish();
        this.lines = Lines::read(&file);
        (!this.functions.is_empty()).then_some(this)
    }

    /// Adds the symbols of `file`, and its segments if it is the `mapped` file. Returns the build
    /// ID.
    fn read(&mut self, file: &File, mapped: bool) -> Option<Option<Vec<u8>>> {
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).ok()?;
        if mapped {
            self.segments = segments(&cache)?;
        }
        for symbol in object.symbols().chain(object.dynamic_symbols()) {
            let code = match symbol.kind() {
                SymbolKind::Text => true,
                // Entry points in assembly language often have no type.
                SymbolKind::Unknown | SymbolKind::Label => symbol
                    .section_index()
                    .and_then(|index| object.section_by_index(index).ok())
                    .is_some_and(|section| is_code(&section)),
                _ => false,
            };
            if let Ok(name) = symbol.name()
                && code
                && symbol.is_definition()
                && !name.is_empty()
            {
                self.add(symbol.address(), symbol.size(), name);
            }
        }
        if mapped {
            self.add_linkage_stubs(&object);
        }
        Some(object.build_id().ok().flatten().map(<[u8]>::to_vec))
    }

    fn add(&mut self, start: u64, size: u64, name: &str) {
        let Ok(from) = u32::try_from(self.names.len()) else {
            return;
        };
        self.names.push_str(name);
        let Ok(to) = u32::try_from(self.names.len()) else {
            return;
        };
        self.functions.push(Function {
            start,
            end: start.saturating_add(size),
            name: (from, to),
        });
    }

    /// Adds the stubs for calls into other objects, such as `puts@plt`. Each jumps through a slot
    /// of the global offset table, and the slot's relocation has the name of the function.
    fn add_linkage_stubs<'a>(&mut self, object: &impl Object<'a>) {
        let Some(table) = object.dynamic_symbol_table() else {
            return;
        };
        let slots: std::collections::HashMap<u64, String> = object
            .dynamic_relocations()
            .into_iter()
            .flatten()
            .filter_map(|(slot, relocation)| {
                let RelocationTarget::Symbol(index) = relocation.target() else {
                    return None;
                };
                Some((
                    slot,
                    table.symbol_by_index(index).ok()?.name().ok()?.to_owned(),
                ))
            })
            .collect();
        let slot_address = if object.is_64() {
            SlotAddress::RelativeToRip
        } else {
            let section = [".got.plt", ".got"];
            let mut found = section
                .iter()
                .filter_map(|name| object.section_by_name(name));
            SlotAddress::Absolute {
                table: found.next().map(|section| section.address()),
            }
        };
        for name in [".plt", ".plt.sec", ".plt.got"] {
            let Some(section) = object.section_by_name(name) else {
                continue;
            };
            let Ok(code) = section.data() else { continue };
            let (start, stub) = (section.address(), if name == ".plt.got" { 8 } else { 16 });
            for (slot, at) in linkage_jumps(code, start, slot_address) {
                if let Some(function) = slots.get(&slot) {
                    let entry = start + (at - start) / stub * stub;
                    self.add(entry, stub, &format!("{function}@plt"));
                }
            }
        }
    }

    /// Sorts the functions. A function without a size extends to the next one.
    fn finish(&mut self) {
        // Of several names for one address, a name with a size comes first, then the alphabet
        // decides.
        let names = &self.names;
        let name = |f: &Function| {
            names
                .get(f.name.0 as usize..f.name.1 as usize)
                .unwrap_or_default()
        };
        self.functions
            .sort_by(|a, b| (a.start, b.end, name(a)).cmp(&(b.start, a.end, name(b))));
        self.functions.dedup_by_key(|f| f.start);
        let starts: Vec<u64> = self
            .functions
            .iter()
            .skip(1)
            .map(|f| f.start)
            .chain([u64::MAX])
            .collect();
        for (function, next) in self.functions.iter_mut().zip(starts) {
            if function.end == function.start {
                function.end = next;
            }
        }
    }

    /// The address that the segment with `offset` in the file maps it to.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|s| offset.wrapping_sub(s.offset) < s.size)?;
        // The file can be malformed, so that the sum wraps.
        let distance = offset.wrapping_sub(segment.offset);
        Some(segment.address.wrapping_add(distance))
    }

    /// The function that contains `address`: its mangled name, and the offset in it.
    pub fn function(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.functions.partition_point(|f| f.start <= address);
        let function = self
            .functions
            .get(after.checked_sub(1)?)
            .filter(|f| address < f.end)?;
        let name = self
            .names
            .get(function.name.0 as usize..function.name.1 as usize)?;
        Some((name, address - function.start))
    }

    /// Source file and line of `address`.
    pub fn line(&self, address: u64) -> Option<(String, u32)> {
        self.lines.as_ref()?.find(address)
    }
}

/// Returns whether a section has code, by its flags: in a separate debug file it has no contents.
fn is_code<'a>(section: &impl ObjectSection<'a>) -> bool {
    match section.flags() {
        SectionFlags::Elf { sh_flags, .. } => sh_flags.contains(elf::SHF_EXECINSTR),
        _ => false,
    }
}

fn is_suitable(file: &File) -> bool {
    file.metadata()
        .is_ok_and(|m| m.is_file() && m.len() <= MAX_FILE)
}

fn segments<'a>(data: impl object::ReadRef<'a>) -> Option<Vec<Segment>> {
    match FileKind::parse(data).ok()? {
        FileKind::Elf32 => loaded_segments::<elf::FileHeader32<Endianness>, _>(data),
        FileKind::Elf64 => loaded_segments::<elf::FileHeader64<Endianness>, _>(data),
        _ => None,
    }
}

fn loaded_segments<'a, Elf, Data>(data: Data) -> Option<Vec<Segment>>
where
    Elf: FileHeader<Endian = Endianness>,
    Data: object::ReadRef<'a>,
{
    let header = Elf::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, data).ok()?;
    let loaded = headers.iter().filter(|h| h.p_type(endian) == elf::PT_LOAD);
    Some(
        loaded
            .map(|h| Segment {
                offset: h.p_offset(endian).into(),
                size: h.p_filesz(endian).into(),
                address: h.p_vaddr(endian).into(),
            })
            .collect(),
    )
}

fn debug_file_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    Some(PathBuf::from(format!(
        "{DEBUG_FILES}/{first:02x}/{}.debug",
        hex(rest)
    )))
}

/// How a stub of the procedure linkage table addresses its slot of the global offset table.
#[derive(Debug, Clone, Copy)]
enum SlotAddress {
    /// Relative to RIP: 64-bit code.
    RelativeToRip,
    /// Absolute, or relative to the table at this address, which EBX holds: 32-bit code.
    Absolute { table: Option<u64> },
}

/// Finds the indirect jumps through a slot in `code` at `start`. Returns the addresses of the slot
/// and of the jump.
fn linkage_jumps(
    code: &[u8],
    start: u64,
    slots: SlotAddress,
) -> impl Iterator<Item = (u64, u64)> + '_ {
    code.windows(6).enumerate().filter_map(move |(i, bytes)| {
        let &[opcode, modrm, ref displacement @ ..] = bytes else {
            return None;
        };
        let displacement = i32::from_le_bytes(*displacement.first_chunk()?);
        let at = start.wrapping_add(i as u64);
        let base = match (opcode, modrm, slots) {
            // jmp *displacement(%rip)
            (0xFF, 0x25, SlotAddress::RelativeToRip) => at.wrapping_add(6),
            // jmp *displacement
            (0xFF, 0x25, SlotAddress::Absolute { .. }) => {
                return Some((u64::from(displacement.cast_unsigned()), at));
            }
            // jmp *displacement(%ebx)
            (0xFF, 0xA3, SlotAddress::Absolute { table: Some(table) }) => table,
            _ => return None,
        };
        Some((base.wrapping_add_signed(displacement.into()), at))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file without code, with one function.
    pub(crate) fn with_function(start: u64, size: u64, name: &str) -> ObjectFile {
        let mut file = ObjectFile::default();
        file.add(start, size, name);
        file.finish();
        file
    }

    fn own() -> ObjectFile {
        let root = Root::open(Path::new("/")).unwrap();
        ObjectFile::open(&root, &std::env::current_exe().unwrap()).unwrap()
    }

    #[inline(never)]
    fn a_function_of_this_test() -> u32 {
        std::hint::black_box(line!())
    }

    #[test]
    fn functions_and_lines_of_this_program() {
        let line = a_function_of_this_test();
        let file = own();
        let index = file
            .functions
            .iter()
            .position(|f| {
                file.names[f.name.0 as usize..f.name.1 as usize].contains("a_function_of_this_test")
            })
            .unwrap();
        let address = file.functions[index].start;
        let (name, offset) = file.function(address).unwrap();
        assert!(name.contains("a_function_of_this_test"));
        assert_eq!(offset, 0);
        assert_eq!(file.function(address + 1).unwrap().1, 1);
        // At least one instruction is on the line that the function returned. Others may be inlined
        // from elsewhere.
        let function = file.functions[index].clone();
        let mut lines = (function.start..function.end).filter_map(|a| file.line(a));
        assert!(lines.any(|(path, n)| path.ends_with("object_file.rs") && n.abs_diff(line) <= 2));
    }

    #[test]
    fn functions_of_a_stripped_library_have_linkage_stubs() {
        // Such as `malloc@plt`: every dynamic program calls the C library.
        let file = own();
        let stubs = file.names.contains("@plt");
        let root = Root::open(Path::new("/")).unwrap();
        let shell = ObjectFile::open(&root, Path::new("/bin/sh")).unwrap();
        assert!(stubs || shell.names.contains("@plt"));
    }

    #[test]
    fn files_that_are_not_elf_have_no_symbols() {
        let root = Root::open(Path::new("/")).unwrap();
        for path in ["/etc/passwd", "/dev/null", "/nonexistent", "/"] {
            assert!(ObjectFile::open(&root, Path::new(path)).is_none(), "{path}");
            assert!(ObjectFile::of_kernel(Path::new(path)).is_none(), "{path}");
        }
    }

    #[test]
    fn a_kernel_is_a_file_of_the_host_with_functions() {
        let file = ObjectFile::of_kernel(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(file.functions, own().functions);
        assert!(file.lines.is_some());
    }

    #[test]
    fn jumps_of_linkage_stubs_are_found() {
        let code = [
            0xF3, 0x0F, 0x1E, 0xFA, 0xF2, 0xFF, 0x25, 0x10, 0, 0, 0, 0x90, 0xFF, 0xA3, 0x0C, 0, 0,
            0,
        ];
        let jumps = |slots| linkage_jumps(&code, 0x1000, slots).collect::<Vec<_>>();
        assert_eq!(jumps(SlotAddress::RelativeToRip), [(0x101B, 0x1005)]);
        assert_eq!(
            jumps(SlotAddress::Absolute { table: None }),
            [(0x10, 0x1005)]
        );
        let table = Some(0x4000);
        assert_eq!(
            jumps(SlotAddress::Absolute { table }),
            [(0x10, 0x1005), (0x400C, 0x100C)]
        );
    }

    #[test]
    fn offsets_become_addresses() {
        let file = ObjectFile {
            segments: vec![Segment {
                offset: 0x1000,
                size: 0x500,
                address: 0x40_1000,
            }],
            ..ObjectFile::default()
        };
        assert_eq!(file.address_of_offset(0x1234), Some(0x40_1234));
        assert_eq!(file.address_of_offset(0x1500), None);
        assert_eq!(file.address_of_offset(0xFFF), None);
    }
}
