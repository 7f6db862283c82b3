//! What the fuzz targets share.
//!
//! | module | what it is |
//! |---|---|
//! | [`input`] | the bytes that the fuzzer provides, taken from the front |
//! | [`memory`] | guest memory between pages that nobody may touch |
//! | [`guest`] | a small machine with a software CPU, page tables, descriptor tables and handlers |
//! | [`walk`] | an independent page walk |
//! | [`tree`] | directories to share with a guest, beside a file that it must never see |

pub mod guest;
pub mod input;
pub mod memory;
pub mod tree;
pub mod walk;
