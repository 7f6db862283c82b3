//! The procedure linkage table, with the stubs for calls into other objects, such as `puts@plt`.
//! Each stub jumps through a slot of the global offset table, and the slot's relocation has the
//! name of the function. Until the slot has the function's address, it leads to the header of the
//! table, which jumps to the dynamic linker's resolver.

use super::elf::ElfFile;
use super::symbol_table::SymbolTable;
use crate::protocol::Refusal;

/// Names of functions of glibc's dynamic linker that find the function that a stub is for, or
/// their beginnings.
const RESOLVERS: [&[u8]; 4] = [
    b"_dl_runtime_resolve",
    b"_dl_runtime_profile",
    b"_dl_fixup",
    b"_dl_profile_fixup",
];

/// Code in the procedure linkage table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stub {
    /// Its address.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Offset of the function's name in the strings of the dynamic symbols. `None`: it is for a
    /// function without a name there, or a part of another stub.
    pub name: Option<u32>,
    /// It is the header.
    pub is_header: bool,
}

/// Whether a label names code between a call and the function that is meant: a stub, the header
/// of the procedure linkage table, or the resolver.
pub fn is_linkage(name: &str) -> bool {
    name.ends_with("@plt") || name == ".plt" || is_resolver(name.as_bytes())
}

/// Whether the function with this name finds the function that a stub is for.
pub(super) fn is_resolver(name: &[u8]) -> bool {
    RESOLVERS.iter().any(|resolver| name.starts_with(resolver))
}

/// The stubs of `elf`, whose dynamic symbols are `symbols`. Only sections with code that the file
/// has count.
///
/// # Errors
/// They are too many.
pub(super) fn stubs(elf: &ElfFile<'_>, symbols: &SymbolTable) -> Result<Vec<Stub>, Refusal> {
    let relocations = elf.dynamic_relocations()?;
    let slots = if elf.is_64() {
        SlotAddress::RelativeToRip
    } else {
        let mut tables = [".got.plt", ".got"]
            .iter()
            .filter_map(|name| elf.section(name));
        SlotAddress::Absolute {
            table: tables.next().map(|section| section.address),
        }
    };
    let mut stubs = Vec::new();
    for name in [".plt", ".plt.sec", ".plt.got", ".iplt"] {
        let Some(section) = elf.section(name) else {
            continue;
        };
        let code = super::elf::optional(elf.contents(section))?;
        let (start, size) = (section.address, if name == ".plt.got" { 8 } else { 16 });
        let first = stubs.len();
        stubs.extend((0..code.len() / size).map(|n| Stub {
            start: start.wrapping_add((n * size) as u64),
            size: size as u64,
            name: None,
            is_header: n == 0 && name == ".plt" && is_header(&code),
        }));
        for (slot, at) in jumps(&code, start, slots) {
            // Of several relocations of a slot, the last one counts.
            let after = relocations.partition_point(|(address, _)| *address <= slot);
            let relocation = after.checked_sub(1).and_then(|at| relocations.get(at));
            let number = at.wrapping_sub(start) as usize / size;
            if let Some((address, symbol)) = relocation
                && *address == slot
                && let Some(symbol) = symbols.get(*symbol as usize)
                && let Some(stub) = stubs.get_mut(first + number)
            {
                // The first symbol is none, and has an empty name.
                stub.name = Some(symbol.name).filter(|name| *name != 0);
            }
        }
    }
    Ok(stubs)
}

/// Whether `code` begins with the header: PUSH of a word of the global offset table, relative to
/// RIP or absolute, or relative to the table in EBX.
fn is_header(code: &[u8]) -> bool {
    matches!(code, [0xFF, 0x35 | 0xB3, ..])
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
fn jumps(code: &[u8], start: u64, slots: SlotAddress) -> impl Iterator<Item = (u64, u64)> + '_ {
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
mod tests {
    use super::*;

    #[test]
    fn headers_and_resolvers_are_known() {
        assert!(is_header(&[0xFF, 0x35, 0xE2, 0x2F, 0, 0, 0xFF, 0x25]));
        assert!(!is_header(&[0xFF, 0x25, 0xE2, 0x2F, 0, 0]));
        assert!(!is_header(&[]));
        assert!(is_resolver(b"_dl_runtime_resolve_xsavec"));
        assert!(!is_resolver(b"_dl_relocate_object"));
    }

    #[test]
    fn jumps_of_linkage_stubs_are_found() {
        let code = [
            0xF3, 0x0F, 0x1E, 0xFA, 0xF2, 0xFF, 0x25, 0x10, 0, 0, 0, 0x90, 0xFF, 0xA3, 0x0C, 0, 0,
            0,
        ];
        let jumps = |slots| jumps(&code, 0x1000, slots).collect::<Vec<_>>();
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
}
