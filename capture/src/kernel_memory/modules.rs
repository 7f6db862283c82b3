//! The modules that a kernel has loaded (kernel/module/main.c of Linux).
//!
//! The list of modules leads to a `struct module` of each. It begins with state, links and name,
//! and the offsets of its other members depend on the configuration of the kernel. The member
//! `kallsyms` is found by its value: in a module that has been initialised, it points to the next
//! member, `core_kallsyms`.

use vbts_symbols::{KernelFunction, is_function_type};
use vbts_trace::profile::modules::KERNEL_START;

use super::kallsyms::MAX_NAME;
use super::page_tables::PageTables;

/// Number of modules at most. Debian's kernels load a hundred.
const MAX_MODULES: usize = 4096;
/// Number of symbols of all modules at most.
const MAX_SYMBOLS: usize = 1 << 18;
/// Bytes of a `struct module` that are looked at, at most.
const MAX_STRUCT: usize = 4096;
/// The member `list`, and the size of a word.
const LIST: u64 = 8;
const WORD: usize = 8;
/// Size of a symbol (`Elf64_Sym`).
const SYMBOL: usize = 24;

/// A loaded module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// Functions, with their linear addresses.
    pub functions: Vec<KernelFunction>,
    /// The address of its code, and the bytes.
    pub code: (u64, Vec<u8>),
}

/// `struct mod_kallsyms`.
struct Tables {
    symbols: u64,
    count: usize,
    names: u64,
    types: u64,
}

/// The modules in the list at `head`, with `max_code` bytes of code at most. A module that is not
/// understood is left out.
pub(super) fn loaded(memory: &PageTables<'_>, head: u64, max_code: usize) -> Vec<Module> {
    let mut modules = Vec::new();
    let (mut code, mut symbols) = (max_code, MAX_SYMBOLS);
    let mut link = memory.word(head);
    for _ in 0..MAX_MODULES {
        let Some(at) = link.filter(|at| *at != head && *at >= KERNEL_START) else {
            break;
        };
        let tables = tables(memory, at.wrapping_sub(LIST), symbols);
        if let Some(tables) = tables {
            symbols -= tables.count;
            if let Some(module) = module(memory, &tables, code) {
                code -= module.code.1.len();
                modules.push(module);
            }
        }
        link = memory.word(at);
    }
    modules
}

/// The module with these tables.
fn module(memory: &PageTables<'_>, tables: &Tables, max_code: usize) -> Option<Module> {
    let mut symbols = vec![0; tables.count * SYMBOL];
    let mut types = vec![0; tables.count];
    if !memory.read(tables.symbols, &mut symbols) || !memory.read(tables.types, &mut types) {
        return None;
    }
    let mut functions = Vec::new();
    let (mut start, mut end) = (u64::MAX, 0);
    for (symbol, kind) in symbols.chunks_exact(SYMBOL).zip(types) {
        let (name, rest) = symbol.split_first_chunk()?;
        let (_, rest) = rest.split_first_chunk::<4>()?;
        let (address, size) = rest.split_first_chunk()?;
        let (address, size) = (number(address), number(size.first_chunk()?));
        if !is_function_type(kind) || address < KERNEL_START {
            continue;
        }
        let name = tables.names.wrapping_add(u32::from_le_bytes(*name).into());
        let name = string(memory, name).filter(|name| !name.is_empty());
        let (Some(name), Some(after)) = (name, address.checked_add(size)) else {
            continue;
        };
        (start, end) = (start.min(address), end.max(after));
        functions.push(KernelFunction { address, name });
    }
    let mut code = match usize::try_from(end.checked_sub(start)?) {
        Ok(size) if size <= max_code => vec![0; size],
        _ => Vec::new(),
    };
    if !memory.read(start, &mut code) {
        code.clear();
    }
    Some(Module {
        functions,
        code: (start, code),
    })
}

/// The tables of symbols of the module whose structure is at `at`, with `max` symbols at most.
fn tables(memory: &PageTables<'_>, at: u64, max: usize) -> Option<Tables> {
    (0..MAX_STRUCT).step_by(WORD).find_map(|offset| {
        let member = at.wrapping_add(offset as u64);
        let next = member.wrapping_add(WORD as u64);
        if memory.word(member)? != next {
            return None;
        }
        let word = |n: u64| memory.word(next.wrapping_add(n * WORD as u64));
        let (symbols, names, types) = (word(0)?, word(2)?, word(3)?);
        // A number of 32 bits.
        let count = word(1)? as u32 as usize;
        let are_addresses = [symbols, names, types].iter().all(|at| *at >= KERNEL_START);
        (are_addresses && (1..=max).contains(&count)).then_some(Tables {
            symbols,
            count,
            names,
            types,
        })
    })
}

fn number(bytes: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*bytes)
}

/// The text at `address`, up to a zero.
fn string(memory: &PageTables<'_>, address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = address;
    while text.len() < MAX_NAME {
        // A piece does not reach into the next page, which may not exist.
        let mut piece = [0; 16];
        let piece = piece.get_mut(..16 - at as usize % 16)?;
        if !memory.read(at, piece) {
            return None;
        }
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(piece.get(..end)?);
            return Some(text);
        }
        text.extend_from_slice(piece);
        at = at.wrapping_add(piece.len() as u64);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::page_tables::tests::{FRAME, MAPPED, memory, tables};
    use super::*;
    use vbts_vmm::memory::GuestMemory;
    use vm_memory::{Bytes as _, GuestAddress};

    /// Offsets in the mapped page: the list of modules, a module, its symbols, their types and
    /// names, and its code.
    const HEAD: u64 = 0;
    const MODULE: u64 = 0x100;
    const KALLSYMS: u64 = 0x80;
    const SYMBOLS: u64 = 0x300;
    const TYPES: u64 = 0x400;
    const NAMES: u64 = 0x440;
    const CODE: u64 = 0x800;

    fn put(memory: &GuestMemory, at: u64, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            let at = GuestAddress(FRAME + at + 8 * n as u64);
            memory.write_obj(*word, at).unwrap();
        }
    }

    /// Memory with a module that has two functions and a variable.
    fn with_a_module() -> GuestMemory {
        let memory = memory();
        let link = MAPPED + MODULE + LIST;
        put(&memory, HEAD, &[link, link]);
        put(&memory, MODULE, &[0, MAPPED + HEAD, MAPPED + HEAD]);
        let core = MAPPED + MODULE + KALLSYMS + 8;
        let members = [core, MAPPED + SYMBOLS, 4, MAPPED + NAMES, MAPPED + TYPES];
        put(&memory, MODULE + KALLSYMS, &members);
        // The first symbol of each file is empty.
        for (n, (name, address, size)) in [
            (0, 0, 0),
            (1, MAPPED + CODE, 16),
            (6, MAPPED + CODE + 16, 8),
            (11, MAPPED + 0x900, 8),
        ]
        .into_iter()
        .enumerate()
        {
            put(&memory, SYMBOLS + 24 * n as u64, &[name, address, size]);
        }
        let bytes = |at: u64, bytes: &[u8]| {
            memory.write_slice(bytes, GuestAddress(FRAME + at)).unwrap();
        };
        bytes(TYPES, b"utTd");
        bytes(NAMES, b"\0init\0exit\0variable\0");
        bytes(CODE, &[0x90; 24]);
        memory
    }

    #[test]
    fn functions_and_code_of_a_module_are_found() {
        let memory = with_a_module();
        let found = loaded(&tables(&memory), MAPPED + HEAD, 1 << 20);
        let function = |address, name: &[u8]| KernelFunction {
            address,
            name: name.into(),
        };
        let expected = Module {
            functions: vec![
                function(MAPPED + CODE, b"init"),
                function(MAPPED + CODE + 16, b"exit"),
            ],
            code: (MAPPED + CODE, vec![0x90; 24]),
        };
        assert_eq!(found, [expected]);
        let found = loaded(&tables(&memory), MAPPED + HEAD, 23);
        assert!(found[0].code.1.is_empty());
    }

    #[test]
    fn modules_that_make_no_sense_have_no_functions() {
        let at = |offset| MAPPED + offset;
        let module = MODULE + KALLSYMS;
        for (place, value) in [
            (HEAD, 0),
            (HEAD, at(0x2000)),
            (module, 0),
            (module + 8, at(0x1FF8)),
            (module + 16, 1 << 20),
            (module + 32, 0x1000),
        ] {
            let memory = with_a_module();
            put(&memory, place, &[value]);
            let found = loaded(&tables(&memory), at(HEAD), 1 << 20);
            assert!(found.is_empty(), "{place:x}");
        }
        // A list without end.
        let memory = with_a_module();
        put(&memory, MODULE + LIST, &[at(MODULE + LIST)]);
        let found = loaded(&tables(&memory), at(HEAD), 1 << 20);
        assert_eq!(found.len(), MAX_MODULES);
    }
}
