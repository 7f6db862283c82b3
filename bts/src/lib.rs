//! The Intel Debug Store as the manual describes it: the IA32_DEBUGCTL bits of each processor
//! generation, the DS management area, the 64-bit branch record, and the [`Recorder`] that a
//! virtual CPU calls after every transfer of control.
//!
//! The crate is pure: it knows no operating system, no hypervisor and no way to reach memory but
//! [`DsMemory`].
//!
//! Sections are those of the Intel SDM Vol. 3B, chapter "Debug, Branch Profile, TSC, ... Features":
//! 17 in the editions up to 2019, 18 and 19 in later ones, with the same sub-section numbers.

#![forbid(unsafe_code)]

mod debugctl;
mod ds_area;
mod recorder;

pub use debugctl::{DebugCtl, Layout, Microarchitecture};
pub use ds_area::{BranchRecord, BtsFields, DS_INDEX_OFFSET, RECORD_SIZE};
pub use recorder::{DropReason, DsArea, DsFault, DsMemory, Gp, Recorder, Stored};
