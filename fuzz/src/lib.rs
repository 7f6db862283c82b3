//! What the fuzz targets share. Guest memory and the platform around a processor are those of the
//! test kit.
//!
//! | module | contents |
//! |---|---|
//! | [`input`] | the bytes that the fuzzer provides, taken from the front |
//! | [`canary`] | the contents of files that a guest must never see |
//! | [`code`] | inputs that are code |
//! | [`edit`] | edits of an encoded state |
//! | [`guest`] | a small machine with a software CPU, page tables, descriptor tables and handlers |
//! | [`machine`] | a whole machine with a tiny kernel |
//! | [`walk`] | an independent page walk |
//! | [`moving_tree`] | a share whose files the host replaces and moves meanwhile |
//! | [`ninep`] | a session with the 9P server |
//! | [`object`] | files whose symbols are read |
//! | [`tree`] | directories to share with a guest, beside a file that it must never see |

pub mod canary;
pub mod code;
pub mod edit;
pub mod guest;
pub mod input;
pub mod machine;
pub mod moving_tree;
pub mod ninep;
pub mod object;
pub mod tree;
pub mod walk;
