//! Functions that have no names: where the unwind table (`.eh_frame`) says that they are. Files
//! without symbols have it, too, because exceptions need it. The functions that the dynamic linker
//! calls first and last in a file are not in it. They are sections.

use std::ops::Range;

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice,
    FrameDescriptionEntry, LittleEndian, UnwindSection as _,
};

use super::budget::Budget;
use super::elf::{ElfFile, optional};
use crate::protocol::Refusal;

/// The sections with the code of `DT_INIT` and `DT_FINI`.
const INIT_AND_FINI: [&str; 2] = [".init", ".fini"];

/// A function without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unnamed {
    /// The addresses of its code.
    pub(super) addresses: Range<u64>,
    /// A compiler has moved the code away from a function, of which it is a part.
    pub(super) is_part: bool,
}

/// The functions, sorted.
///
/// # Errors
/// They are too many.
pub(super) fn functions(elf: &ElfFile<'_>, budget: &mut Budget) -> Result<Vec<Unnamed>, Refusal> {
    let mut functions = of_entries(elf, budget)?;
    let sections = INIT_AND_FINI
        .into_iter()
        .filter_map(|name| elf.section(name));
    functions.extend(sections.map(|section| Unnamed {
        addresses: section.addresses(),
        is_part: false,
    }));
    functions.sort_unstable_by_key(|function| (function.addresses.start, function.addresses.end));
    functions.dedup_by_key(|function| function.addresses.start);
    Ok(functions)
}

/// The code of each entry of the unwind table. An entry that cannot be read is the last one.
fn of_entries(elf: &ElfFile<'_>, budget: &mut Budget) -> Result<Vec<Unnamed>, Refusal> {
    let Some(section) = elf.section(".eh_frame") else {
        return Ok(Vec::new());
    };
    let bytes = optional(elf.contents(section))?;
    let mut table = EhFrame::new(&bytes, LittleEndian);
    table.set_address_size(if elf.is_64() { 8 } else { 4 });
    let bases = BaseAddresses::default().set_eh_frame(section.address);
    let mut entries = table.entries(&bases);
    let mut functions = Vec::new();
    // Most entries share their common part with the one before.
    let mut last: Option<(usize, CommonInformationEntry<EndianSlice<'_, LittleEndian>>)> = None;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(|table, bases, offset| match &last {
            Some((at, cie)) if *at == offset.0 => Ok(cie.clone()),
            _ => {
                let cie = table.cie_from_offset(bases, offset)?;
                last = Some((offset.0, cie.clone()));
                Ok(cie)
            }
        });
        let Ok(entry) = parsed else {
            break;
        };
        let start = entry.initial_address();
        // A vector has at most twice as much memory as it needs.
        budget.take(2 * size_of::<Unnamed>())?;
        functions.push(Unnamed {
            addresses: start..start.saturating_add(entry.len()),
            is_part: begins_in_a_frame(&entry, &table, &bases),
        });
    }
    Ok(functions)
}

/// Returns whether the code of an entry begins with something on the stack besides the return
/// address: the entry of a function does not. The frame that the kernel makes for the handler of a
/// signal has such an entry, too.
fn begins_in_a_frame(
    entry: &FrameDescriptionEntry<EndianSlice<'_, LittleEndian>>,
    table: &EhFrame<EndianSlice<'_, LittleEndian>>,
    bases: &BaseAddresses,
) -> bool {
    let mut instructions = entry.instructions(table, bases);
    while let Ok(Some(instruction)) = instructions.next() {
        match instruction {
            CallFrameInstruction::DefCfa { .. }
            | CallFrameInstruction::DefCfaOffset { .. }
            | CallFrameInstruction::DefCfaRegister { .. } => return !entry.is_signal_trampoline(),
            // From here on it is about the next instructions.
            CallFrameInstruction::AdvanceLoc { .. } | CallFrameInstruction::SetLoc { .. } => break,
            _ => {}
        }
    }
    false
}
