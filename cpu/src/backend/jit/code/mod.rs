//! Code memory, and the native code in it.

pub(crate) mod allocator;
pub(crate) mod code_memory;
pub(crate) mod new_code;
pub(crate) mod store;
pub(crate) mod translation;
