//! Layout of a table of jump targets, which indirect jumps look up.
//!
//! An entry is selected by bits of RIP. It contains the RIP to which it applies, then the address
//! of the code. Both share a cache line of the host.

/// Number of entries, a power of two.
const ENTRIES: usize = 1 << 16;
/// Size of an entry in bytes.
const ENTRY_SIZE: usize = 16;
/// Offset in an entry of the address of the code.
pub(crate) const JUMP_CODE: usize = 8;
/// Size of a table in bytes.
pub(crate) const TABLE_SIZE: usize = ENTRY_SIZE * ENTRIES;
/// Bits of a RIP that select the entry, whose offset is eight times their value.
pub(crate) const JUMP_MASK: usize = ENTRY_SIZE / 8 * (ENTRIES - 1);

/// Returns the offset of the entry for jumps to `rip`.
pub(crate) fn entry(rip: u64) -> usize {
    8 * (rip as usize & JUMP_MASK)
}
