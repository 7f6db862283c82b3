//! The symbols and the code of a guest's kernel, out of its memory: for a kernel whose file has
//! none, such as a bzImage, and whose address is chosen at random (KASLR).
//!
//! | module | contents |
//! |---|---|
//! | `vmcoreinfo` | where the kernel says where its tables are |
//! | `kallsyms` | its tables of symbols |
//!
//! The guest can write what it wants there. Each part has a limit, and a kernel that says nonsense
//! has no symbols.

mod kallsyms;
mod vmcoreinfo;

use vm_memory::{Bytes as _, GuestMemoryBackend as _};

use kallsyms::Tables;
use vbts_symbols::KernelImage;
use vbts_vmm::memory::GuestMemory;
use vmcoreinfo::Vmcoreinfo;

/// Number of symbols at most. Debian's kernels have 200,000.
const MAX_SYMBOLS: usize = 1 << 21;
/// Size in bytes of the table of names at most.
const MAX_NAMES: usize = 32 << 20;
/// Size in bytes of the tokens at most: their positions have 16 bits.
const MAX_TOKENS: usize = 1 << 16;
/// Size in bytes of the code at most.
const MAX_CODE: u64 = 64 << 20;

/// The kernel in `memory`. `None` if it does not say where its symbols are: Linux does since 6.0
/// with CONFIG_VMCORE_INFO.
pub(crate) fn image(memory: &GuestMemory) -> Option<KernelImage> {
    let info = Vmcoreinfo::find(memory)?;
    let functions = functions(memory, &info)?;
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
    tracing::debug!(
        functions = functions.len(),
        code = code.len(),
        "kernel in memory"
    );
    Some(KernelImage {
        is_64_bit: info.is_64_bit(),
        functions,
        code: (start, code),
    })
}

fn functions(memory: &GuestMemory, info: &Vmcoreinfo) -> Option<Vec<vbts_symbols::KernelFunction>> {
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
    tables.functions()
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
