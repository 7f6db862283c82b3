//! Templates: native code of instructions, a file a family.

mod accumulator;
mod coalesced_accesses;
mod coalesced_stack;
pub(crate) mod direct;
mod read_modify_write;
mod shift;
mod stack;
mod system;
mod vector;
