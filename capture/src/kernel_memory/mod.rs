//! The symbols and the code of a guest's kernel, out of its memory: for a kernel whose file has
//! none, such as a bzImage, and whose address is chosen at random (KASLR).
//!
//! | module | contents |
//! |---|---|
//! | `vmcoreinfo` | where the kernel says where its tables are |
//! | `kallsyms` | its tables of symbols |
//! | `page_tables` | its page tables |
//! | `modules` | the modules that it has loaded |
//!
//! The guest can write what it wants there. Each part has a limit, and a kernel that says nonsense
//! has no symbols.

mod kallsyms;
mod modules;
mod page_tables;
mod vmcoreinfo;

use vm_memory::{Bytes as _, GuestMemoryBackend as _};

use kallsyms::Tables;
use page_tables::PageTables;
use vbts_symbols::{KernelFunction, KernelImage};
use vbts_vmm::memory::GuestMemory;
use vmcoreinfo::Vmcoreinfo;

/// Number of symbols at most. Debian's kernels have 200,000.
const MAX_SYMBOLS: usize = 1 << 21;
/// Size in bytes of the table of names at most.
const MAX_NAMES: usize = 32 << 20;
/// Size in bytes of the tokens at most: their positions have 16 bits.
const MAX_TOKENS: usize = 1 << 16;
/// The symbol of the kernel's list of modules.
const LIST_OF_MODULES: &[u8] = b"modules";
/// Size in bytes of the code at most, with that of modules.
const MAX_CODE: u64 = 64 << 20;

/// The kernel in `memory`. `None` if it does not say where its symbols are: Linux does since 6.0
/// with CONFIG_VMCORE_INFO.
pub(crate) fn image(memory: &GuestMemory) -> Option<KernelImage> {
    let info = Vmcoreinfo::find(memory)?;
    let (mut functions, list) = functions(memory, &info)?;
    let function = |name: &[u8]| {
        let mut found = functions.iter().filter(|function| function.name == name);
        found.next().map(|function| function.address)
    };
    // The code that the kernel keeps: that of its start is not in memory any more.
    let start = info.symbol("_stext")?;
    let end = function(b"_etext").filter(|end| (start..start + MAX_CODE).contains(end));
    let code = match end {
        Some(end) => read(memory, &info, start, (end - start) as usize).unwrap_or_default(),
        None => Vec::new(),
    };
    let left = (MAX_CODE as usize).saturating_sub(code.len());
    let mut code = vec![(start, code)];
    if let (Some(list), Some(tables)) = (list, PageTables::new(memory, &info)) {
        for module in modules::loaded(&tables, list, left) {
            functions.extend(module.functions);
            code.push(module.code);
        }
    }
    tracing::debug!(
        functions = functions.len(),
        modules = code.len() - 1,
        "kernel in memory"
    );
    Some(KernelImage {
        is_64_bit: info.is_64_bit(),
        functions,
        code,
    })
}

/// The functions of the kernel without those of modules, and the address of its list of modules,
/// which it tells if it is built with CONFIG_KALLSYMS_ALL.
fn functions(
    memory: &GuestMemory,
    info: &Vmcoreinfo,
) -> Option<(Vec<KernelFunction>, Option<u64>)> {
    let table = |name: &str, most: usize| {
        let address = info.symbol(&format!("kallsyms_{name}"))?;
        read(memory, info, address, most)
    };
    let number = |name: &str, len: usize| {
        let bytes = table(name, len)?;
        let bytes = bytes.iter().rev();
        Some(bytes.fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let count = usize::try_from(number("num_syms", 4)?).ok()?;
    if count > MAX_SYMBOLS {
        return None;
    }
    let word = if info.is_64_bit() { 8 } else { 4 };
    let tables = Tables {
        names: &table("names", MAX_NAMES)?,
        tokens: &table("token_table", MAX_TOKENS)?,
        token_index: &table("token_index", MAX_TOKENS)?,
        offsets: &table("offsets", 4 * count)?,
        base: number("relative_base", word)?,
        count,
    };
    let (mut functions, mut list) = (Vec::new(), None);
    tables.symbols(|symbol| {
        if symbol.name == LIST_OF_MODULES {
            list = Some(symbol.address);
        }
        functions.extend(symbol.function());
    })?;
    Some((functions, list))
}

/// The bytes at `address` in the image of the kernel, `most` at most: fewer at the end of memory.
fn read(memory: &GuestMemory, info: &Vmcoreinfo, address: u64, most: usize) -> Option<Vec<u8>> {
    let at = info.physical(address)?;
    let region = memory.find_region(at)?;
    let left = vm_memory::GuestMemoryRegion::last_addr(region).0 - at.0;
    let mut bytes = vec![0; most.min(usize::try_from(left).ok()?.saturating_add(1))];
    memory.read_slice(&mut bytes, at).ok()?;
    Some(bytes)
}
